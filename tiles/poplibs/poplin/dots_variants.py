"""Variants of the code of sums of products off the multiply units, and what they cost."""

from __future__ import annotations

from functools import lru_cache

import jax

from tiles._jax_compat import make_jaxpr
from tiles.elements import (
    Arrangement,
    CellFunction,
    InstructionSet,
    TileCode,
    Variant,
    compile_dots,
    compile_vertical,
    instructions_for,
)
from tiles.elements.cell import ACCESS_BYTES
from tiles.elements.dots import MULTIPLY_ADD
from tiles.elements.kept_variants import kept_variant
from tiles.elements.values import BFLOAT16
from tiles.elements.variants import UNNAMED, NoVariant, existing
from tiles.errors import NoTileCode, OutOfRegisters
from tiles.graph import Cycles
from tiles.numerics.dtypes import WORD_BYTES, is_integer, itemsize, to_jax
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.reduce import cast_accumulator
from tiles.target import Basis, Target

SOURCE = "tile code of the element compiler, configs/isa"


@lru_cache(maxsize=64)
def step_cell(dtype: str, sums: str) -> CellFunction:
    """Return one step of a sum of products: of the sum and of an element of each operand.

    Raises:
      NoTileCode: sums that are no words, or elements longer than these.
    """
    if itemsize(sums) != WORD_BYTES or itemsize(dtype) > WORD_BYTES:
        raise NoTileCode(f"products of {dtype} into {sums}", expected="sums of whole words")

    def step(total: jax.Array, x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
        return (total + cast_accumulator(x, sums) * cast_accumulator(w, sums),)

    dtypes = (sums, dtype, dtype)
    jaxpr = make_jaxpr(step)(*(jax.ShapeDtypeStruct((), to_jax(d)) for d in dtypes))
    return CellFunction(jaxpr, (dtypes, (sums,)), Arrangement((), ()))


def compiled_dots(reads_partials: bool, cell: CellFunction, isa: InstructionSet) -> TileCode:
    """Return the code of dot products whose step is a cell."""
    sums, dtype, _ = cell.dtypes[0]
    return compile_dots(isa, dtype, cell.jaxpr, sums, UNNAMED, reads_partials=reads_partials)


def compiled_vertical(width: int, cell: CellFunction, isa: InstructionSet) -> TileCode:
    """Return the code of products side by side whose step is a cell."""
    sums, dtype, _ = cell.dtypes[0]
    return compile_vertical(isa, dtype, width, cell.jaxpr, sums, UNNAMED)


@lru_cache(maxsize=64)
def dots_variant(isa: InstructionSet, dtype: str, sums: str, reads_partials: bool) -> Variant | NoVariant:
    """Return the code of dot products of a dtype, in the accumulators or, of integers and bfloat16, in registers."""

    def make() -> Variant:
        if dtype not in MULTIPLY_ADD:
            return Variant.of(compiled_dots(reads_partials, step_cell(dtype, sums), isa), isa)
        code = compile_dots(isa, dtype, None, sums, UNNAMED, reads_partials=reads_partials)
        return Variant.of(code, isa)

    return kept_variant(("dots", dtype, sums, reads_partials), isa, make)


@lru_cache(maxsize=16)
def vertical_variant(isa: InstructionSet, dtype: str, width: int) -> Variant | NoVariant:
    """Return the code of products of ``width`` halves side by side."""
    return kept_variant(
        ("products side by side", dtype, width),
        isa,
        lambda: Variant.of(compile_vertical(isa, dtype, width, name=UNNAMED), isa),
    )


def register_cycles(
    dtype: str, sums: str, inputs: Amount, results: Amount, later: Amount, target: Target
) -> Cycles | None:
    """Return what dot products of integers and bfloat16 take by their code, which PopLibs has no vertices for; None without any.

    Args:
      dtype: of the operands.
      sums: dtype of the sums.
      inputs: that a dot product adds up.
      results: of a cell.
      later: how often a cell's dot products go on to others.
      target: the machine.
    """
    is_of_registers = is_integer(to_jax(dtype)) or dtype == BFLOAT16
    if not is_of_registers or itemsize(dtype) > WORD_BYTES or itemsize(sums) != WORD_BYTES:
        return None
    try:
        isa = instructions_for(target)
        first, more = (existing(dots_variant(isa, dtype, sums, goes_on)) for goes_on in (False, True))
    except (NoTileCode, OutOfRegisters):
        return None
    n = -(-inputs // of_access(dtype))
    value = first.formula.cycles(n, results) + later * more.formula.cycles(n, results)
    return Cycles(value, Basis.DERIVED, SOURCE)


def of_access(dtype: str) -> int:
    """Return the elements of an access of 64 bits."""
    return max(1, ACCESS_BYTES // itemsize(dtype))
