"""What slices read of a long axis, by stretches between their ends, is what a table of all its indices says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tiles.plan import truth
from tiles.plan.coverage import Counted, Coverage, Stretches, Strided
from tiles.plan.slices import SHORT, AxisSlices

SLICES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=8)


@given(SLICES, st.integers(0, 40))
def test_stretches_say_what_a_table_says(slices: list[tuple[int, int]], size: int) -> None:
    ends = [(low, min(low + count, size)) for low, count in slices if low < size]
    low, high = (np.array([end[k] for end in ends], np.int64) for k in range(2))
    counts = np.zeros(size, np.int64)
    for a, b in ends:
        counts[a:b] += 1
    _say_the_same(Stretches.of(low, high, size), counts)


@given(SLICES, st.integers(0, 60), st.integers(2, 5), st.integers(0, 9))
def test_strided_slices_say_what_a_table_says(
    slices: list[tuple[int, int]], size: int, step: int, offset: int
) -> None:
    counts = np.zeros(size, np.int64)
    ends: list[tuple[int, int]] = []
    for low, count in slices:
        read = np.arange(offset + low * step, min(offset + (low + count) * step, size), step)
        counts[read] += 1
        ends += [(read[0], read[-1])] if read.size else []
    low, high = (np.array([end[k] for end in ends], np.int64) for k in range(2))
    _say_the_same(Strided.of(low, high, step, size), counts)


def _say_the_same(found: Coverage, counts: np.ndarray, ends: int | None = None) -> None:
    """Compare what is asked of all indices, or of so many at both ends of a long axis."""
    table, size, every = Counted(counts), counts.size, np.arange(counts.size + 1)
    if ends is not None:
        every = np.concatenate([every[:ends], every[-ends:]])
    for name in ("any_before", "one_before", "next_read"):
        assert (getattr(found, name)(every) == getattr(table, name)(every)).all(), name
    for least in (1, 2):
        wide = np.append(-1, every)
        assert (found.is_read(wide, least) == table.is_read(wide, least)).all()
        assert (found.begun(every, least) == table.begun(every, least)).all()
        begins = (counts >= least) & (np.append(0, counts[:-1]) < least)
        inside = every[every < size]
        assert (found.begun(inside, least) == np.cumsum(begins)[inside]).all()


@given(
    st.lists(st.tuples(st.integers(-20, 60), st.integers(0, 30)), min_size=1, max_size=3),
    st.sampled_from((-5, -3, -2, 2, 3, 4)),
    st.integers(0, 4),
)
def test_strided_slices_of_a_long_axis_are_counted_by_their_ends(
    slices: list[tuple[int, int]], step: int, offset: int
) -> None:
    size = SHORT + 10 if step % 2 else SHORT + 1
    begin, direction = (0, 1) if step > 0 else (size - 1, -1)
    first = np.array([begin + direction * offset + low * step for low, _ in slices], np.int64)
    axis = AxisSlices(size, (0,), (first.size,), first, np.array([count for _, count in slices]), step)
    assert isinstance(axis.covered, Strided)
    _say_the_same(axis.covered, axis.coverage, 300)


@given(
    st.lists(st.booleans(), min_size=1, max_size=5),
    st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_what_holds_for_all_or_none_is_as_an_array_of_it(a, b):
    """Of any mix of answers, whatever stands for an array of them."""
    a, b = np.array(a), np.array(b[: len(a)])
    x, y, number = np.arange(a.size), -np.arange(a.size), np.arange(a.size)[::-1]
    for one in (a, truth.settled(a)):
        for other in (b, truth.settled(b)):
            np.testing.assert_array_equal(_spread(truth.both(one, other), a.size), a & b)
            np.testing.assert_array_equal(_spread(truth.either(one, other), a.size), a | b)
        np.testing.assert_array_equal(_spread(truth.settled(a), a.size), a)
        np.testing.assert_array_equal(truth.pick(one, x, y), np.where(a, x, y))
        np.testing.assert_array_equal(_spread(truth.of(one, number), a.size), a[number])


def _spread(found, size):
    return np.broadcast_to(found, size)
