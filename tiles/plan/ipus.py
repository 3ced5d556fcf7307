"""What an exchange brings from each IPU to each other one, derived per axis from layouts and slices.

An element crosses to an IPU once, however many of its tiles take it. Along an axis, elements that lie in one part and
are read by the same slices are alike: stretches between the ends of parts and of slices. An IPU needs the product of
stretches where its cells are a box of the grid; else stretches are combined, block by block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np

from tiles.graph import AxisSplit, Layout
from tiles.numerics.arrays import distinct
from tiles.numerics.dtypes import WORD_BYTES, itemsize
from tiles.plan.slices import AxisSlices, Slices
from tiles.target import Target

MOST_COMBINED = 1 << 24
"""Combinations of stretches that are looked at together."""


@dataclass(frozen=True, eq=False)
class _Stretches:
    """The stretches of one axis, in order; those of a part follow each other.

    Args:
      lengths: elements of each that any slice may read, int64 ``[stretches]``.
      parts: number of the first stretch of every part, int64 ``[parts]``.
      low: lowest index of each, int64 ``[stretches]``.
      slices: which slices read anything, by their lowest index; int64.
      span: first and one past the last of these slices that read each stretch, int64 ``[stretches]``; None where
        slices lie one inside another.
      bounds: lowest and highest index of these slices.
    """

    lengths: np.ndarray
    parts: np.ndarray
    low: np.ndarray
    slices: np.ndarray
    span: tuple[np.ndarray, np.ndarray] | None
    bounds: tuple[np.ndarray, np.ndarray]

    def read_by(self, read: np.ndarray, axis: int, chosen: slice = slice(None)) -> np.ndarray:
        """Return which stretches are read where some slices are.

        Args:
          read: whether somebody reads each slice of the axis, bool, with the slices along ``axis``.
          axis: a dimension of ``read``.
          chosen: the stretches to look at.

        Returns:
          bool, with the stretches along ``axis``.
        """
        read = np.moveaxis(np.take(read, self.slices, axis), axis, 0)
        if self.span is None:
            low = self.low[chosen][:, None]
            inside = (self.bounds[0] <= low) & (low <= self.bounds[1])
            found = np.tensordot(inside.astype(np.float32), read.astype(np.float32), 1) > 0
        else:
            before = np.zeros((len(read) + 1, *read.shape[1:]), np.int32)
            np.cumsum(read, axis=0, out=before[1:])
            found = before[self.span[1][chosen]] > before[self.span[0][chosen]]
        return np.moveaxis(found, 0, axis)


def ipu_bytes(source: Layout, slices: Slices, dtype: str, target: Target) -> np.ndarray:
    """Return what each IPU sends to each other one when slices are brought to their cells.

    Args:
      source: where the tensor lies.
      slices: what every cell reads of it.
      dtype: the tensor's.
      target: the machine.

    Returns:
      Bytes, int64 ``[num_ipus, num_ipus]``, from row to column; of every part on a tile whole words. 0 on the
      diagonal.
    """
    count = target.num_ipus
    found = np.zeros((count, count), np.int64)
    if count == 1:
        return found
    here, there = source.tiles // target.tiles_per_ipu, slices.tiles // target.tiles_per_ipu
    first = int(here[0])
    if (here == first).all() and (there == first).all():
        return found
    stretches = [_stretches(*each) for each in zip(slices.axes, source.axes, strict=True)]
    sizes = [axis.first.size for axis in slices.axes]
    cells = np.ravel_multi_index(slices.coordinates, sizes) if sizes else np.zeros(there.size, np.int64)
    for ipu in np.unique(there).tolist():
        read = np.zeros(math.prod(sizes), bool)
        read[cells[there == ipu]] = True
        elements = _needed(stretches, read.reshape(sizes))
        words = -(-elements * itemsize(dtype) // WORD_BYTES)
        np.add.at(found[:, ipu], here, words * WORD_BYTES)
    np.fill_diagonal(found, 0)
    return found


def paired_ipu_bytes(
    source: np.ndarray, destination: np.ndarray, lengths: np.ndarray, dtype: str, target: Target
) -> np.ndarray:
    """Return what ``ipu_bytes`` does, of elements that each go from one tile to one tile.

    Args:
      source: tiles that send, integers ``[stretches]``.
      destination: tiles that receive, integers ``[stretches]``.
      lengths: elements that go from one to the other, int64 ``[stretches]``.
      dtype: the elements'.
      target: the machine.
    """
    count = target.num_ipus
    if count == 1:
        return np.zeros((1, 1), np.int64)
    pairs = source.astype(np.int64) * count + destination // target.tiles_per_ipu
    elements = np.bincount(pairs, lengths, target.num_tiles * count).astype(np.int64)
    words = -(-elements * itemsize(dtype) // WORD_BYTES)
    found = words.reshape(count, target.tiles_per_ipu, count).sum(axis=1) * WORD_BYTES
    np.fill_diagonal(found, 0)
    return found


def _stretches(axis: AxisSlices, split: AxisSplit) -> _Stretches:
    """Return the stretches of an axis of a tensor that is cut as ``split`` and read in some slices."""
    low, high = axis.bounds
    slices = np.flatnonzero(high >= low)
    slices = slices[np.argsort(low[slices], kind="stable")]
    low, high = low[slices], high[slices]
    begins = distinct(np.concatenate([split.lo, low, high + 1, [0]]))
    begins = begins[(begins < split.size) | (begins == 0)]
    ends = np.append(begins[1:], split.size)
    lengths, step = ends - begins, abs(axis.step)
    if step > 1:  # all slices of one dimension read indices of one remainder
        place = int(low[0]) % step if low.size else 0
        lengths = (ends - place + step - 1) // step - (begins - place + step - 1) // step
    span = None
    if (np.diff(high) >= 0).all():
        span = np.searchsorted(high, begins), np.searchsorted(low, begins, "right")
    return _Stretches(lengths, np.searchsorted(begins, split.lo), begins, slices, span, (low, high))


def _needed(stretches: list[_Stretches], read: np.ndarray) -> np.ndarray:
    """Return how many elements of every part somebody reads, int64 ``[parts]``.

    Args:
      stretches: of every axis.
      read: whether he reads each combination of slices, bool, a dimension per axis.
    """
    if not stretches:
        return read.reshape(1).astype(np.int64)
    axes = range(read.ndim)
    along = [np.asarray(read.any(axis=tuple(a for a in axes if a != axis))) for axis in axes]
    if (reduce(np.logical_and.outer, along) == read).all():
        counts = [
            np.add.reduceat(np.where(each.read_by(those, 0), each.lengths, 0), each.parts)
            for each, those in zip(stretches, along, strict=True)
        ]
        return reduce(np.multiply.outer, counts).reshape(-1)
    first, *others = stretches
    for axis, each in enumerate(others, 1):
        read = each.read_by(read, axis)
    block = max(1, MOST_COMBINED // max(1, math.prod(read.shape[1:])))
    counted = [
        _counted(others, first.read_by(read, 0, slice(begin, begin + block)))
        * first.lengths[begin : begin + block].reshape(-1, *(1,) * len(others))
        for begin in range(0, first.lengths.size, block)
    ]
    return np.add.reduceat(np.concatenate(counted), first.parts, axis=0).reshape(-1)


def _counted(others: list[_Stretches], needed: np.ndarray) -> np.ndarray:
    """Return the elements of every part along all axes but the first, of stretches that are needed or not."""
    counts = needed.astype(np.int64)
    for axis, each in enumerate(others, 1):
        along = [1] * counts.ndim
        along[axis] = -1
        counts = np.add.reduceat(counts * each.lengths.reshape(along), each.parts, axis=axis)
    return counts
