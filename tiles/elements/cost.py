"""What tile code costs, as closed forms in a cell's extents: slots of each worker, tile cycles, bytes of code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiles.cached import cached_property
from tiles.elements.extents import Extent, Step, evaluated, in_steps
from tiles.elements.isa import InstructionSet
from tiles.elements.tilecode import (
    AUX,
    JOINED,
    JOINED_MAX,
    MAIN,
    Block,
    Bundle,
    Item,
    Loop,
    Repeat,
    TileCode,
    instructions_of,
    walk,
)
from tiles.elements.workers import SHARES_MAX
from tiles.errors import NoTileCode
from tiles.numerics.shared import Amount
from tiles.target import Basis


@dataclass(frozen=True)
class Cost:
    """What a vertex costs at some extents.

    Attributes:
      slots: of each worker, ``[workers, ...]`` for candidates ``[...]``.
      cycles: of the tile, the supervisor's part included, ``[...]``.
      code_bytes: of the workers' and the supervisor's instructions.
      registers: main and aux registers.
      basis: the weakest basis among the slots of its instructions.
    """

    slots: np.ndarray
    cycles: np.ndarray
    supervisor_cycles: int
    code_bytes: int
    scratch_bytes: int
    registers: tuple[int, int]
    basis: Basis


def cost_of(code: TileCode, extents: Mapping[str, Amount], isa: InstructionSet) -> Cost:
    """Return the cost of one vertex of all workers, for many candidates at once.

    Args:
      code: of the variant.
      extents: "n" and where the code asks for it "rows": numbers or arrays ``[...]``.
      isa: the instruction set that it was compiled for.

    Raises:
      NoTileCode: extents beyond what the loop's counters can count.
    """
    arrays = {name: np.asarray(value, np.int64) for name, value in extents.items()}
    shape = np.broadcast_shapes(*(a.shape for a in arrays.values())) if arrays else ()
    workers = isa["worker_contexts"]
    env: dict[str, Any] = dict(arrays)
    env["worker"] = np.arange(workers).reshape((workers,) + (1,) * len(shape))
    _check(code, env, isa)
    slots = np.broadcast_to(items_slots(code.items, env, isa), (workers, *shape))
    supervisor = code.supervisor
    cycles = supervisor.cycles(isa) + workers * slots.max(axis=0)
    return Cost(
        slots,
        cycles,
        supervisor.cycles(isa),
        code_bytes(code, isa) + supervisor.code_bytes(isa),
        code.scratch_bytes * workers,
        code.registers,
        slots_basis(code, isa),
    )


def slots_basis(code: TileCode, isa: InstructionSet) -> Basis:
    """Return the weakest basis among the slots of a variant's instructions."""
    return Basis.weakest(isa.row(i.mnemonic).slots_basis for i in instructions_of(code.items))


@dataclass(frozen=True)
class Formula:
    """The slots of a worker as a sum of products of loop counts: what planning prices thousands of cells with.

    Attributes:
      terms: slots, and the counts that they are multiplied by.
      supervisor_cycles: of the supervisor's part.
      workers: of a tile; each of their slots is one tile cycle for every worker.
      n_max, rows_max: extents of one vertex beyond which its loops' counters cannot count.
    """

    terms: tuple[tuple[int, tuple[Extent, ...]], ...]
    supervisor_cycles: int
    workers: int
    n_max: int
    rows_max: int

    def cycles(self, n: Amount, rows: Amount = 1) -> Amount:
        """Return the tile cycles of a vertex, for arrays of extents at once.

        Workers take vectors and rows in turn and the last of them what fills no vector, so the slowest is the first
        or the last. What one vertex cannot count is as many vertices one after another as it takes.
        """
        n, rows = np.asarray(n, np.int64), np.asarray(rows, np.int64)
        by_n, by_rows = (np.maximum(1, -(-a // most)) for a, most in ((n, self.n_max), (rows, self.rows_max)))
        vertices = by_n * by_rows
        many = bool(np.any(vertices > 1))
        if many:
            n, rows = -(-n // by_n), -(-rows // by_rows)
        slots = np.maximum(self._slots(n, rows, 0), self._slots(n, rows, self.workers - 1))
        cycles = self.supervisor_cycles + self.workers * slots
        return cycles * vertices if many else cycles

    def _slots(self, n: np.ndarray, rows: np.ndarray, worker: int) -> Amount:
        env = {"n": n, "rows": rows, "worker": worker}
        forms, terms = self._by_place
        values: list[Amount] = []
        for kind, args in forms:
            values.append(evaluated(kind, args, values, env))
        total: Amount = 0
        for slots, places in terms:
            product: Amount = slots
            for place in places:
                product = product * values[place]
            total = total + product
        return total

    @cached_property
    def _by_place(self) -> tuple[tuple[Step, ...], tuple[tuple[int, tuple[int, ...]], ...]]:
        """The distinct forms in the counts, each after those it is made of, and the terms with the places of their counts.

        Forms are slow to compare, and counts have most of theirs in common.
        """
        forms, places = in_steps(count for _, product in self.terms for count in product)
        return forms, tuple(
            (slots, tuple(places[count] for count in product)) for slots, product in self.terms
        )


def formula_of(code: TileCode, isa: InstructionSet) -> Formula:
    """Return the closed form of what one vertex of some code costs; of code not scheduled yet, the least it can cost."""
    terms: dict[tuple[Extent, ...], int] = {}
    _collect(code.items, (), terms, isa)
    workers, vectors, rows = isa["worker_contexts"], SHARES_MAX, SHARES_MAX
    if any(isinstance(item, Repeat) for item in walk(code.items)):
        rows = min(rows, isa["repeat_count_max"])
        vectors = rows if "rows" in code.arguments else min(vectors, workers * isa["repeat_count_max"])
    counts = tuple((slots, product) for product, slots in terms.items())
    return Formula(counts, code.supervisor.cycles(isa), workers, vectors * code.lanes, rows)


def _collect(
    items: tuple[Item, ...],
    counts: tuple[Extent, ...],
    terms: dict[tuple[Extent, ...], int],
    isa: InstructionSet,
) -> None:
    """Add the slots of items that run as often as the product of ``counts`` says."""
    for item in items:
        if isinstance(item, Block):
            _add(terms, counts, block_slots(item, isa))
        elif isinstance(item, Repeat):
            _add(terms, counts, block_slots(item.lead, isa) + 1)
            _add(terms, (*counts, item.trips), block_slots(item.body, isa))
        elif isinstance(item, Loop):
            _add(terms, (*counts, item.trips), 1)
            _collect(item.body, (*counts, item.trips), terms, isa)
        else:
            _add(terms, counts, 1)
            _collect(item.body, (*counts, item.taken), terms, isa)


def _add(terms: dict[tuple[Extent, ...], int], counts: tuple[Extent, ...], slots: int) -> None:
    terms[counts] = terms.get(counts, 0) + slots


def _check(code: TileCode, env: Mapping[str, Amount], isa: InstructionSet) -> None:
    limit = isa["repeat_count_max"]
    for item in walk(code.items):
        if isinstance(item, Repeat):
            most = np.max(item.trips.evaluate(env))
            if most > limit:
                raise NoTileCode(
                    f"a loop of {most:,} iterations", expected=f"at most {limit:,} on {isa.name}"
                )
    for name in ("n", "rows"):
        if name in env and np.max(env[name]) // (code.lanes if name == "n" else 1) > SHARES_MAX:
            raise NoTileCode(
                f"{name} = {np.max(env[name]):,}", expected=f"at most {SHARES_MAX * code.lanes:,}"
            )


def items_slots(items: tuple[Item, ...], env: Mapping[str, Amount], isa: InstructionSet) -> Amount:
    """Return the slots of items: numbers of bundles times how often they run."""
    total: Amount = 0
    for item in items:
        if isinstance(item, Block):
            total = total + block_slots(item, isa)
        elif isinstance(item, Repeat):
            body = block_slots(item.body, isa)
            total = total + block_slots(item.lead, isa) + 1 + body * item.trips.evaluate(env)
        elif isinstance(item, Loop):
            total = total + item.trips.evaluate(env) * (1 + items_slots(item.body, env, isa))
        else:
            total = total + 1 + item.taken.evaluate(env) * items_slots(item.body, env, isa)
    return total


def block_slots(block: Block, isa: InstructionSet) -> int:
    """Return the slots of a block's bundles; before it is scheduled, the least that it can take.

    Nothing that scheduling does saves an instruction, but for two accesses that may be joined in one.
    """
    if block.bundles is not None:
        return sum(bundle_slots(bundle, isa) for bundle in block.bundles)
    slots = {MAIN: 0, AUX: 0}
    for i in block.instructions:
        slots[i.slot] += (1 if i.mnemonic in JOINED else JOINED_MAX) * isa.row(i.mnemonic).issue_slots
    return -(-max(slots.values()) // JOINED_MAX)


def bundle_slots(bundle: Bundle, isa: InstructionSet) -> int:
    """Return the slots of a bundle: those of its longer half."""
    return max((isa.row(i.mnemonic).issue_slots for i in bundle.instructions), default=1)


def code_bytes(code: TileCode, isa: InstructionSet) -> int:
    """Return the bytes of a variant's code for the workers.

    A bundle is two instructions at an address that is a multiple of 8 bytes; what comes before it and would end
    at an odd instruction is made a bundle with a ``nop``. In repeat loops everything is a bundle.
    """
    return _Layout(isa).items(code.items, 0)


class _Layout:
    """Places instructions one after the other; addresses are bytes from the start of the code."""

    def __init__(self, isa: InstructionSet) -> None:
        self.one = isa["instruction_bytes"]

    def items(self, items: tuple[Item, ...], at: int) -> int:
        for item in items:
            if isinstance(item, Block):
                at = self.block(item, at)
            elif isinstance(item, Repeat):
                at = self.aligned(self.block(item.lead, at) + self.one) + 2 * self.one * len(
                    item.body.bundles or ()
                )
            elif isinstance(item, Loop):
                at = self.items(item.body, at) + self.one
            else:
                at = self.items(item.body, at + self.one)
        return at

    def aligned(self, at: int) -> int:
        return -(-at // (2 * self.one)) * 2 * self.one

    def block(self, block: Block, at: int) -> int:
        for bundle in block.bundles or ():
            both = bundle.main is not None and bundle.aux is not None
            at = self.aligned(at) + 2 * self.one if both else at + self.one
        return at
