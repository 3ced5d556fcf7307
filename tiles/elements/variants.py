"""A codelet's variant: its tile code with the closed form of its cycles, made once for all cells that run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tiles._jax_compat import Jaxpr
from tiles.cached import cached_property
from tiles.elements.cell import ACCESS_BYTES, Arrangement
from tiles.elements.compile import compile_cell
from tiles.elements.cost import Formula, code_bytes, formula_of, slots_basis
from tiles.elements.isa import InstructionSet, of_target
from tiles.elements.tilecode import TileCode
from tiles.errors import NoTileCode, OutOfRegisters
from tiles.target import Basis, Target


@dataclass(frozen=True, eq=False)
class Variant:
    """Code and what it costs.

    Attributes:
      name: of the variant, for the printer.
      generation: name of the instruction set.
      formula: tile cycles of a vertex, from its extents.
      code_bytes: of the workers' and the supervisor's instructions.
      scratch_bytes: of memory that each worker needs for values that move or are spilled.
      basis: the weakest basis among the slots of its instructions.
      make: returns the code: where its figures were read from disk, it is compiled when somebody wants to see it.
    """

    name: str
    generation: str
    formula: Formula
    code_bytes: int
    scratch_bytes: int
    basis: Basis
    make: Callable[[], TileCode]

    @staticmethod
    def of(code: TileCode, isa: InstructionSet) -> Variant:
        """Return the variant of some code."""
        size = code_bytes(code, isa) + code.supervisor.code_bytes(isa)
        formula, basis = formula_of(code, isa), slots_basis(code, isa)
        return Variant(code.name, code.generation, formula, size, code.scratch_bytes, basis, lambda: code)

    @cached_property
    def code(self) -> TileCode:
        """The code for one worker; all run it."""
        return replace(self.make(), name=self.name)

    def named(self, name: str) -> Variant:
        """Return the variant under another name."""
        return replace(self, name=name)


@dataclass(frozen=True)
class NoVariant:
    """Why there is no variant, to be remembered in its place: an error's parts, since errors change when raised.

    Attributes:
      what: happened; it begins with the name of the variant where ``lacks_registers``.
      expected: instead, if known.
      lacks_registers: whether it is an ``OutOfRegisters``, else a ``NoTileCode``.
    """

    what: str
    expected: str | None
    lacks_registers: bool

    def error(self) -> NoTileCode | OutOfRegisters:
        """Return the error."""
        kind = OutOfRegisters if self.lacks_registers else NoTileCode
        return kind(self.what, expected=self.expected)

    def named(self, name: str) -> NoVariant:
        """Return the reason under the name of another variant."""
        if not self.lacks_registers:
            return self
        return replace(self, what=name + self.what.removeprefix(UNNAMED))


UNNAMED = "variant"
"""Name of what is compiled once for all the names that ask for it."""


def variant_or_why(make: Callable[[], Variant]) -> Variant | NoVariant:
    """Return what ``make`` returns, or why it returns none."""
    try:
        return make()
    except (NoTileCode, OutOfRegisters) as error:
        expected = None if error.expected is None else str(error.expected)
        return NoVariant(error.what, expected, isinstance(error, OutOfRegisters))


def existing(found: Variant | NoVariant) -> Variant:
    """Return a variant.

    Raises:
      NoTileCode, OutOfRegisters: there is none.
    """
    if isinstance(found, Variant):
        return found
    raise found.error()


def compile_variant(
    jaxpr: Jaxpr,
    dtypes: tuple[tuple[str, ...], tuple[str, ...]],
    arrangement: Arrangement,
    isa: InstructionSet,
    name: str,
) -> Variant:
    """Return the variant of a cell's jaxpr; arguments and errors as of ``compile_cell``."""
    return Variant.of(compile_cell(jaxpr, dtypes, arrangement, isa, name), isa)


ACCESSES = 3
"""Accesses of the instruction that makes most of them: two loads and a store."""


def instructions_for(target: Target) -> InstructionSet:
    """Return the instruction set that code for a target is made of.

    Raises:
      NoTileCode: the target's workers, vectors or accesses are not those of its generation.
    """
    isa = of_target(target)
    workers = isa["worker_contexts"]
    if (target.workers_per_tile, target.worker_issue_interval_cycles) != (workers, workers):
        raise NoTileCode(
            f"{target.workers_per_tile} workers that issue every {target.worker_issue_interval_cycles} cycles",
            expected=f"{workers} of {isa.name}",
        )
    vectors = ACCESS_BYTES // 4, ACCESS_BYTES // 2
    if (target.float_vector_width, target.half_vector_width) != vectors:
        raise NoTileCode(
            f"vectors of {target.float_vector_width} floats and {target.half_vector_width} halves",
            expected=f"{vectors[0]} and {vectors[1]} of {isa.name}",
        )
    if target.max_accesses_per_instruction < ACCESSES:
        raise NoTileCode(
            f"instructions of {target.max_accesses_per_instruction} accesses to memory",
            expected=f"{ACCESSES} of {isa.name}",
        )
    return isa
