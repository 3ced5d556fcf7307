"""Tile code of scans: rows of words, a worker each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from tiles._jax_compat import make_jaxpr
from tiles.elements import (
    Arrangement,
    CellFunction,
    InstructionSet,
    TileCode,
    Variant,
    compile_scan,
    instructions_for,
)
from tiles.elements.kept_variants import kept_variant
from tiles.elements.variants import UNNAMED, NoVariant, existing
from tiles.graph import Extents, VertexCode
from tiles.graph.cycles import CodeMemory
from tiles.numerics.dtypes import to_jax
from tiles.poplibs.popops.expression import ONE_ELEMENT, Body, body_dtypes, evaluate_body
from tiles.poplibs.popops.map_code import check_widths
from tiles.target import Target


def scan_code(
    body: Body,
    outputs: tuple[int, ...],
    dtypes: tuple[str, ...],
    dimension: int,
    is_reversed: bool,
    extents: Extents,
    target: Target,
    name: str,
) -> tuple[VertexCode, ...]:
    """Return the code of vertices that scan whole rows; arguments as of ``Scan``.

    Raises:
      NoTileCode: elements that are no whole words, an operation without code, or one that branches.
      OutOfRegisters: too few registers, even with values spilled.
    """
    n = np.asarray(extents.sizes[dimension], np.int64)
    question = (body, outputs, dtypes, is_reversed)
    variant = existing(_variant(instructions_for(target), *question)).named(name)
    rows = extents.points // np.maximum(n, 1)
    compiled = _backwards if is_reversed else _forwards
    part = VertexCode(
        variant,
        n,
        rows,
        cell=partial(_cell, *question),
        kernel=_Scan(dimension, len(dtypes)),
        compiled=compiled,
    )
    return (part,)


@lru_cache(maxsize=256)
def _variant(isa: InstructionSet, *question: Any) -> Variant | NoVariant:
    def make() -> Variant:
        cell = _cell(*question)
        return Variant.of(compile_scan(cell.jaxpr, cell.dtypes[1], isa, question[-1], UNNAMED), isa)

    return kept_variant(("scan", *question), isa, make)


def _forwards(cell: CellFunction, isa: InstructionSet) -> TileCode:
    return compile_scan(cell.jaxpr, cell.dtypes[1], isa)


def _backwards(cell: CellFunction, isa: InstructionSet) -> TileCode:
    return compile_scan(cell.jaxpr, cell.dtypes[1], isa, is_reversed=True)


@lru_cache(maxsize=256)
def _cell(body: Body, outputs: tuple[int, ...], dtypes: tuple[str, ...], is_reversed: bool) -> CellFunction:
    """Return one step: of the values that the row has come to, then of its next elements."""
    check_widths(body_dtypes(body, dtypes * 2))

    def step(*values: jax.Array) -> tuple[jax.Array, ...]:
        come, here = values[: len(dtypes)], values[len(dtypes) :]
        known = evaluate_body(body, [*here, *come] if is_reversed else [*come, *here], ONE_ELEMENT)
        return tuple(known[i] for i in outputs)

    jaxpr = make_jaxpr(step)(*(jax.ShapeDtypeStruct((), to_jax(d)) for d in dtypes * 2))
    return CellFunction(jaxpr, (dtypes * 2, dtypes), Arrangement((), ()))


@dataclass(frozen=True)
class _Scan:
    """Rows that lie along one dimension of arrays of one shape."""

    dimension: int
    arrays: int

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        n = sizes[self.dimension]
        rows = [np.moveaxis(x, 1 + self.dimension, -1).reshape(len(x), -1, n) for x in operands]
        memory = {f"in{k}": np.ascontiguousarray(x) for k, x in enumerate(rows)}
        memory |= {f"out{k}": np.zeros_like(x) for k, x in enumerate(rows)}
        return memory, {"row_bytes": n * rows[0].itemsize}

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        kept = [size for d, size in enumerate(sizes) if d != self.dimension]
        found = [memory[f"out{k}"] for k in range(self.arrays)]
        n = sizes[self.dimension]
        assert all(x.shape[1] == math.prod(kept) for x in found)
        return [np.moveaxis(x.reshape(len(x), *kept, n), -1, 1 + self.dimension) for x in found]
