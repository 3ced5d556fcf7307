"""Cycles of slices and updates at runtime offsets, as PopLibs' estimators state them for a vertex.

Sources, all of graphcore/poplibs: ``getDynamicSlice1DEstimate`` of lib/popops/popopsCycleEstimators.cpp, which is also
that of ``DynamicUpdateSlice1D``; ``getMultiSliceCycleEstimate``, also of ``MultiUpdate``, and
``getMultiUpdateOpCycleEstimate`` of lib/popops/PerformanceEstimation.cpp. How many offsets a worker finds in its part is
the rule of the planner of lib/popops/DynamicSlice.cpp: offsets are taken to be spread evenly over the whole tensor
(``IndicesDistribution::UNIFORM``, its default), and a worker's number is rounded up.
"""

from __future__ import annotations

import numpy as np

from tiles.graph.layout import ceil_div
from tiles.numerics.dtypes import itemsize
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.elementwise_cycles import fill_slots
from tiles.target import Target

_WORD_BYTES = 4
STATED_BYTES = 4
"""Of the longest elements that the estimators of lookups have."""
SOURCE = "graphcore/poplibs lib/popops: estimators of DynamicSlice1D, MultiSlice and MultiUpdateOp"

_COPIED = {1: (4, 3), 2: (2, 2), 4: (2, 2)}
"""By bytes of an element: how many of a row a worker of MultiSlice copies at once, and its slots; 8 bytes as two words."""


def dynamic_slice_cycles(row: Amount, slices: Amount, dtype: str, target: Target) -> Amount:
    """Return the cycles of slicing, or updating, at one offset: workers share each row's elements.

    Args:
      row: elements at one place of the sliced dimension.
      slices: consecutive places that are copied.
      dtype: of the elements.
      target: the machine.
    """
    size = itemsize(dtype)
    words = np.asarray(row, np.int64) * (2 if size == 8 else 1)
    at_once = 4 if size == 1 else target.data_path_bytes // min(size, 4)
    copies = ceil_div(words, target.workers_per_tile) // at_once
    slots = 76 + (72 + 2 * copies) * slices if size == 1 else 39 + (24 + 2 * copies) * slices
    return 25 + target.worker_issue_interval_cycles * slots


def slices_of_worker(lookups: Amount, share: Amount, target: Target) -> tuple[Amount, Amount]:
    """Return a worker's offsets in a vertex' part of a table and its other ones: lookups are shared out to the workers.

    Args:
      lookups: of the vertex.
      share: of the table that its part is.
      target: the machine.
    """
    each = ceil_div(np.asarray(lookups, np.int64), target.workers_per_tile)
    inside = np.ceil(each * share).astype(np.int64)
    return inside, each - inside


def updates_of_worker(updates: Amount, places: Amount, whole: int, target: Target) -> tuple[Amount, Amount]:
    """Return a worker's offsets that are its own and its other ones: workers own places and see every update.

    Args:
      updates: of the vertex.
      places: of the updated dimension in its part.
      whole: places of the whole dimension.
      target: the machine.
    """
    own = ceil_div(np.asarray(places, np.int64), target.workers_per_tile)
    inside = np.minimum(ceil_div(np.asarray(updates, np.int64) * own, whole), updates)
    return inside, updates - inside


def multi_slice_cycles(
    row: Amount,
    inside: Amount,
    outside: Amount,
    dtype: str,
    target: Target,
    sharers: Amount = 1,
    frame: int = 30,
) -> Amount:
    """Return the cycles of copying a row for every offset of one worker.

    Args:
      row: elements of a row.
      inside: offsets of a worker that are in the vertex' part of the table.
      outside: its other offsets.
      dtype: of the elements.
      target: the machine.
      sharers: workers that copy each row together.
      frame: slots around the loop over offsets: 30 of slices, 29 of updates.
    """
    size = itemsize(dtype)
    elements, slots = _COPIED[min(size, 4)]
    vectors = ceil_div(np.asarray(row, np.int64) * (2 if size == 8 else 1), elements)
    each = inside * (19 + slots * ceil_div(vectors, sharers)) + outside * 8
    return target.worker_issue_interval_cycles * (frame + each)


def multi_update_cycles(row: Amount, inside: Amount, outside: Amount, dtype: str, target: Target) -> Amount:
    """Return the cycles of combining a row with an update for every offset of one worker.

    Args:
      row: elements of a row.
      inside: offsets of a worker that are in the vertex' part of the result.
      outside: its other offsets.
      dtype: of the elements.
      target: the machine.
    """
    size = itemsize(dtype)
    elements = np.asarray(row, np.int64)
    words = np.asarray(ceil_div(elements * size, _WORD_BYTES), np.int64)
    narrow = size < _WORD_BYTES
    # rows that end inside a word are updated by C++, element by element
    each = np.where(elements * size % _WORD_BYTES > 0, 20 * elements, (words - 1) * 3)
    slots = (33 if narrow else 32) + inside * ((12 if narrow else 11) + each) + outside * 5
    return target.worker_issue_interval_cycles * slots


def fill_cycles(elements: Amount, dtype: str, target: Target) -> Amount:
    """Return the cycles in which all workers fill what is not copied or updated: PopLibs' vertex of ``Fill``."""
    share = ceil_div(np.asarray(elements, np.int64), target.workers_per_tile)
    return target.worker_issue_interval_cycles * fill_slots(share, dtype, target)
