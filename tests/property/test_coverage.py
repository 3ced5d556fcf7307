"""What slices read of a long axis, by stretches between their ends, is what a table of all its indices says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

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
