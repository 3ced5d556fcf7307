"""Casts inside vertices of contractions: of operands before they pass through the units, and of sums; code and cycles."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import numpy as np

from tiles._jax_compat import make_jaxpr
from tiles.elements import (
    CellFunction,
    InstructionSet,
    TileCode,
    Variant,
    compile_cell,
    contiguous,
    instructions_for,
)
from tiles.elements.kept_variants import kept_variant
from tiles.elements.variants import UNNAMED, NoVariant, existing
from tiles.errors import NoTileCode, OutOfRegisters
from tiles.graph import Cycles
from tiles.numerics.dtypes import is_float, is_integer, to_jax, unsigned_of
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.inner_loops import loop_of
from tiles.poplibs.popops.reduce import cast_accumulator
from tiles.target import Basis, Target

NO_CAST = Cycles(np.int64(0), Basis.DOCUMENTED, "")


@lru_cache(maxsize=64)
def cast_variant(isa: InstructionSet, dtype: str, out_dtype: str) -> Variant | NoVariant:
    """Return the code that casts sums."""
    return kept_variant(
        ("cast of sums", dtype, out_dtype),
        isa,
        lambda: Variant.of(compiled_cast(cast_cell(dtype, out_dtype), isa), isa),
    )


@lru_cache(maxsize=64)
def cast_cell(dtype: str, out_dtype: str) -> CellFunction:
    """Return the cell that casts a sum, or an operand; integers that floats hold, to the bit."""

    def cast(x: jax.Array) -> tuple[jax.Array, ...]:
        if is_integer(to_jax(out_dtype)) and is_float(dtype):
            x = x.astype(np.int32)  # of which narrower integers keep the lowest bits
        elif is_integer(to_jax(dtype)) and is_float(out_dtype):
            return (x.astype(to_jax(out_dtype)),)
        return (cast_accumulator(x, out_dtype),)

    jaxpr: Any = make_jaxpr(cast)(jax.ShapeDtypeStruct((), to_jax(dtype)))
    return CellFunction(jaxpr, ((dtype,), (out_dtype,)), contiguous(1))


def compiled_cast(cell: CellFunction, isa: InstructionSet) -> TileCode:
    """Return the code of a cell that casts."""
    return compile_cell(cell.jaxpr, cell.dtypes, cell.arrangement, isa, UNNAMED)


@lru_cache(maxsize=64)
def words_cell(dtype: str, out_dtype: str) -> CellFunction:
    """Return the cell that fills up words with zeros: what operands of a contraction are widened to in the ring."""
    return cast_cell(unsigned_of(dtype).name, unsigned_of(out_dtype).name)


def cast_cycles(dtype: str, out_dtype: str, elements: Amount, target: Target) -> Cycles:
    """Return the cycles of casting elements on all workers, inside a vertex.

    They are those of PopLibs' loops where it has them, else of the code; ASSUMED where there is none.
    """
    if dtype == out_dtype:
        return NO_CAST
    share = -(-np.asarray(elements) // target.workers_per_tile)
    cast = loop_of("convert", {"dtype": out_dtype}, dtype)
    worker = 18 + 19 + cast.total(share, out_dtype, target)
    found = Cycles(12 + target.worker_issue_interval_cycles * worker, cast.basis, cast.source)
    return found if cast.basis is not Basis.ASSUMED else _by_code(dtype, out_dtype, elements, target) or found


def casts_by_code(dtype: str, out_dtype: str, target: Target) -> bool:
    """Return whether there is tile code that casts."""
    return _by_code(dtype, out_dtype, 0, target) is not None


def _by_code(dtype: str, out_dtype: str, elements: Amount, target: Target) -> Cycles | None:
    try:
        variant = existing(cast_variant(instructions_for(target), dtype, out_dtype))
    except (NoTileCode, OutOfRegisters):
        return None
    basis = Basis.ASSUMED if variant.basis is Basis.ASSUMED else Basis.DERIVED
    source = (
        f"tile code of the element compiler; slots: {variant.basis}, configs/isa/{variant.generation}.json"
    )
    return Cycles(variant.formula.cycles(elements), basis, source)
