"""What an exchange costs at least, seen from one cell: numbers only, no tables over tiles.

A plan whose least cost lies above another plan's exact one need not be priced. The cell is the middle one: its
parts are full, and a window around it lies inside the tensor wherever the plan has more than two parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiles.graph import Affine, AxisSplit, Layout, OpForm, Plan
from tiles.graph.layout import align_up, ceil_div
from tiles.numerics.dtypes import itemsize
from tiles.target import Target


@dataclass(frozen=True)
class Arrival:
    """What the middle cell receives of one operand at least.

    Args:
      size_bytes: bytes from other tiles.
      runs: contiguous runs they arrive in.
      may_share: whether the tiles of its exchange bus may all take the same.
    """

    size_bytes: int
    runs: int
    may_share: bool


def least_arrival(source: Layout, form: OpForm, plan: Plan, k: int, dtype: str, target: Target) -> Arrival:
    """Return what the middle cell of a plan receives at least of operand ``k``, which lies in ``source``."""
    needed = held = runs = 1
    for axis, split in zip(form.operands[k].axes, source.axes, strict=True):
        first, count, step = _middle_slice(axis, plan.splits)
        inside, pieces = _inside(first, count, step, split)
        needed *= inside
        held *= min(inside, split.grain)
        runs *= pieces
    missing = max(0, needed - held)
    size_bytes = align_up(missing * itemsize(dtype), 4)
    return Arrival(size_bytes, max(runs - 1, 1) if missing else 0, _may_share(form, plan, k))


def least_exchange_cycles(arrivals: Sequence[Arrival], target: Target) -> int:
    """Return what the exchange before a compute set lasts at least; see ``exchange_cycles``."""
    alone = sum(a.size_bytes for a in arrivals if not a.may_share)
    shared = sum(a.size_bytes for a in arrivals if a.may_share)
    if not alone + shared:
        return 0
    lanes = alone + ceil_div(shared, target.tiles_per_shared_exchange_bus)
    busiest = max(ceil_div(lanes, target.exchange_bytes_per_cycle), 2 * sum(a.runs for a in arrivals))
    return busiest + target.exchange_phase_overhead_cycles


def _middle_slice(axis: Affine, splits: Sequence[AxisSplit]) -> tuple[int, int, int]:
    """Return first index, count and step of what the middle cell reads along an axis; see ``axis_slices``."""
    low = high = axis.offset
    count, step = 1, 1
    for d, coefficient in axis.terms:
        split = splits[d]
        start = (split.parts - 1) // 2 * split.grain
        count = min(split.grain, split.size - start)
        ends = coefficient * start, coefficient * (start + count - 1)
        low, high, step = low + min(ends), high + max(ends), coefficient
    if len(axis.terms) > 1:
        return low, high - low + 1, 1
    return (low if step > 0 else high), count, step


def _inside(first: int, count: int, step: int, split: AxisSplit) -> tuple[int, int]:
    """Return how many elements of a slice lie inside the tensor, and in how many pieces of its parts at least."""
    size = split.size
    if step > 0:
        begin, end = max(0, -(first // step)), min((size - 1 - first) // step, count - 1)
    else:
        begin, end = max(0, -((size - 1 - first) // -step)), min(first // -step, count - 1)
    if end < begin:
        return 0, 0
    inside = end - begin + 1
    if abs(step) != 1:
        return inside, inside
    ends = first + begin * step, first + end * step
    return inside, max(ends) // split.grain - min(ends) // split.grain + 1


def _may_share(form: OpForm, plan: Plan, k: int) -> bool:
    """Whether neighbours on an exchange bus may read the same of operand ``k``.

    They do not where the part of a dimension that the operand varies with changes from each tile to the next.
    """
    used = set(form.operands[k].dims)
    if all(d in used for d, split in enumerate(plan.splits) if split.is_split):
        return False
    splits = (plan.splits[d] for d in used)
    return not any(
        split.is_split and len(split.digits) == 1 and abs(split.digits[0][1]) == 1 for split in splits
    )
