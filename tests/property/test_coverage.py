"""What slices read of a long axis, by stretches between their ends, is what a table of all its indices says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tiles.plan import truth
from tiles.plan.coverage import Counted, Stretches

SLICES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=8)


@given(SLICES, st.integers(0, 40))
def test_stretches_say_what_a_table_says(slices: list[tuple[int, int]], size: int) -> None:
    ends = [(low, min(low + count, size)) for low, count in slices if low < size]
    low, high = (np.array([end[k] for end in ends], np.int64) for k in range(2))
    counts = np.zeros(size, np.int64)
    for a, b in ends:
        counts[a:b] += 1
    table, stretches, every = Counted(counts), Stretches.of(low, high, size), np.arange(size + 1)
    for name in ("any_before", "one_before", "next_read"):
        assert (getattr(stretches, name)(every) == getattr(table, name)(every)).all(), name
    for least in (1, 2):
        wide = np.arange(-1, size + 1)
        assert (stretches.is_read(wide, least) == table.is_read(wide, least)).all()
        assert (stretches.begun(every, least) == table.begun(every, least)).all()
        brute = [((counts[: n + 1] >= least) & (np.append(0, counts[:n]) < least)).sum() for n in range(size)]
        assert (stretches.begun(np.arange(size), least) == brute).all()


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
