"""NumPy's functions with one type where its overloads leave none, and in less time where its own take much."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

where: Callable[[Any, Any, Any], np.ndarray] = np.where
"""``np.where`` of a condition and two alternatives."""


def distinct(numbers: np.ndarray) -> np.ndarray:
    """Return what ``np.unique`` does of a vector, sorted; NumPy's own (2.3 and later) hashes, which takes 15 times as long."""
    ordered = np.sort(numbers)
    is_first = np.ones(ordered.size, bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


def order_of(*columns: np.ndarray) -> np.ndarray:
    """Return the places of distinct rows in order, the first column counting most, as ``np.lexsort`` of its own order does.

    Rows of numbers from 0 on that fit into one number are sorted as such, in a third of the time.
    """
    spans = [1 + int(column.max(initial=0)) for column in columns]
    if math.prod(spans) >= 1 << 62:
        return np.lexsort(columns[::-1])
    key = columns[0].astype(np.int64)
    for column, span in zip(columns[1:], spans[1:], strict=True):
        key *= span
        key += column
    return np.argsort(key)
