"""Sorting as NumPy's own functions do."""

from __future__ import annotations

import numpy as np
import pytest

from tiles.numerics.arrays import distinct, order_of

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
def test_distinct_numbers_are_numpys(size: int) -> None:
    numbers = RNG.integers(-50, 50, size)
    np.testing.assert_array_equal(distinct(numbers), np.unique(numbers))


@pytest.mark.parametrize("greatest", [5, 2**40])
def test_the_order_of_rows_is_numpys(greatest: int) -> None:
    rows = np.unique(RNG.integers(0, greatest, (400, 3)), axis=0)
    columns = RNG.permutation(rows).T
    np.testing.assert_array_equal(order_of(*columns), np.lexsort(columns[::-1]))
    assert not order_of(*columns[:, :0]).size
