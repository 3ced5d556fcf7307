"""Cycles of moving an operand's elements into the order of a result: what is moved how, seen from the maps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tiles.graph import Cycles, Extents, OpForm
from tiles.numerics.dtypes import itemsize
from tiles.plan.transpose_cycles import SOURCE, copy_cycles, rearrange_cycles, repeat_cycles, transpose_cycles
from tiles.target import Basis, Target


@dataclass(frozen=True)
class Movement:
    """How an operand's elements lie against a result's, with common dimensions folded.

    Args:
      kind: "copy" (same order), "repeat" (the result repeats elements), "transpose" (two blocks swapped) or
        "gather" (any other permutation).
      batch: domain dimensions in front of the swapped blocks.
      rows: dimensions of the first block as the operand stores it.
      columns: dimensions of the second block.
      run: innermost dimensions that operand and result share.
    """

    kind: str
    batch: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    run: tuple[int, ...] = ()


@lru_cache(maxsize=4096)
def movement(form: OpForm, k: int, result: int = 0, single: frozenset[int] = frozenset()) -> Movement:
    """Classify how operand k is moved into a result's order; dimensions of size 1 do not matter.

    Args:
      form: the operation.
      k: the operand's number.
      result: the result's number.
      single: dimensions of which a cell has one element.
    """
    wanted = tuple(d for d in form.results[result].dims if form.dims[d].size > 1 and d not in single)
    held = tuple(d for d in form.operands[k].dims if form.dims[d].size > 1 and d not in single)
    if set(held) != set(wanted):
        return Movement("repeat", run=_common_suffix(held, wanted))
    if held == wanted:
        return Movement("copy", run=held)
    lead = len(_common_suffix(held[::-1], wanted[::-1]))
    rest_held, rest_wanted = held[lead:], wanted[lead:]
    for cut in range(1, len(rest_held)):
        if rest_held[cut:] + rest_held[:cut] == rest_wanted:
            return Movement("transpose", held[:lead], rest_held[:cut], rest_held[cut:])
    return Movement("gather", run=_common_suffix(held, wanted))


def _common_suffix(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    count = 0
    while count < min(len(a), len(b)) and a[-1 - count] == b[-1 - count]:
        count += 1
    return a[len(a) - count :]


def movement_cycles(form: OpForm, k: int, extents: Extents, target: Target) -> Cycles:
    """Return the cycles of writing a result-shaped buffer from operand k, all workers together.

    Cells that have one element of some dimensions are moved as if there were none of these: a permutation of many may be
    a plain transpose there.
    """
    moved = movement(form, k)
    if moved.kind != "gather":
        return _moved_cycles(moved, form, k, extents, target)
    dims = moved_dims(form, k)
    shape = np.broadcast_shapes(*(np.shape(size) for size in extents.sizes))
    single = np.stack([np.broadcast_to(extents.sizes[d], shape).reshape(-1) == 1 for d in dims])
    ways, of_cell = np.unique(single, axis=1, return_inverse=True)
    found = [
        _moved_cycles(
            movement(form, k, 0, frozenset(d for d, is_single in zip(dims, way, strict=True) if is_single)),
            form,
            k,
            extents,
            target,
        )
        for way in ways.T.tolist()
    ]
    if len(found) == 1:
        return found[0]
    values = np.stack([np.broadcast_to(each.value, shape).reshape(-1) for each in found])
    value = np.take_along_axis(values, of_cell.reshape(1, -1), 0).reshape(shape)
    return Cycles(value, Basis.weakest([each.basis for each in found]), SOURCE)


def moved_dims(form: OpForm, k: int) -> tuple[int, ...]:
    """Return the dimensions of more than one element that an operand and the result have."""
    return tuple(d for d in form.operands[k].dims if form.dims[d].size > 1)


def _moved_cycles(moved: Movement, form: OpForm, k: int, extents: Extents, target: Target) -> Cycles:
    """Return the cycles of one kind of movement."""
    size = itemsize(extents.operand_dtypes[k])
    if moved.kind == "transpose":
        rows, columns = extents.product(moved.rows), extents.product(moved.columns)
        return transpose_cycles(extents.product(moved.batch), rows, columns, size, target)
    elements = extents.product([d for d, dim in enumerate(form.dims) if not dim.is_reduced])
    run = extents.product(moved.run) * size
    if moved.kind == "copy":
        return Cycles(
            copy_cycles(elements * size, target), Basis.DOCUMENTED, "local copy: 8 bytes a cycle aligned"
        )
    if moved.kind == "repeat":
        return Cycles(repeat_cycles(elements * size, run, target), Basis.ASSUMED, SOURCE)
    return Cycles(rearrange_cycles(elements * size, run, target), Basis.FITTED, SOURCE)
