"""How code of slices and updates finds tensors in memory: sliced axes first, what lies at one place contiguous."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tiles.errors import NoTileCode
from tiles.graph import IndexMap


def is_plain(index_map: IndexMap) -> bool:
    """Return whether every axis lies along a domain dimension from its start on, or is one place."""
    moving = [axis for axis in index_map.axes if axis.terms]
    return all(axis.offset == 0 and len(axis.terms) == 1 and axis.terms[0][1] == 1 for axis in moving)


def check_indices(dtype: str) -> None:
    """Raise NoTileCode where indices are not read as they are."""
    if dtype != "int32":
        raise NoTileCode(f"indices of {dtype}", expected="int32")


def rows_first(x: np.ndarray, index_map: IndexMap, first: Sequence[int], rest: Sequence[int]) -> np.ndarray:
    """Return an operand ``[cells, *extents]`` as ``[cells, rows, elements]``: along ``first``, then ``rest``."""
    place = {axis.terms[0][0]: 1 + at for at, axis in enumerate(index_map.axes) if axis.terms}
    single = [1 + at for at, axis in enumerate(index_map.axes) if not axis.terms]
    moved = np.ascontiguousarray(x.transpose([0, *(place[d] for d in (*first, *rest)), *single]))
    rows = math.prod(moved.shape[1 : 1 + len(first)])
    return moved.reshape(len(x), rows, math.prod(moved.shape[1 + len(first) :]))


def index_rows(x: np.ndarray, index_map: IndexMap, lead: Sequence[int], sizes: Sequence[int]) -> np.ndarray:
    """Return an operand of indices ``[cells, *extents]`` as int32 ``[cells, places]`` along ``lead``, repeated where it does not vary."""
    held = [sizes[d] if d in index_map.dims else 1 for d in lead]
    found = rows_first(x, index_map, [d for d in lead if d in index_map.dims], ()).reshape(len(x), *held)
    whole = np.broadcast_to(found, (len(x), *(sizes[d] for d in lead)))
    return np.ascontiguousarray(whole.reshape(len(x), -1), np.int32)


def along_axes(x: np.ndarray, sizes: Sequence[int], dims: Sequence[int], wanted: Sequence[int]) -> np.ndarray:
    """Return ``[cells, ...]`` along ``dims`` with its axes along ``wanted``; the others are of one element."""
    full = x.reshape(len(x), *(sizes[d] for d in dims))
    dropped = [d for d in dims if d not in wanted]
    moved = full.transpose([0, *(1 + tuple(dims).index(d) for d in (*wanted, *dropped))])
    return moved.reshape(moved.shape[: 1 + len(wanted)])
