"""What several owners share, because a cache or an immutable value holds it: arrays, and how such values pickle."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

Amount: TypeAlias = float | np.ndarray
"""A number, or an array with one for each of several cells or candidates."""


def read_only(array: np.ndarray) -> np.ndarray:
    """Return an array after forbidding to write into it; who wants another one copies it."""
    array.flags.writeable = False
    return array


def all_read_only(arrays: Iterable[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return arrays after forbidding to write into them."""
    return tuple(map(read_only, arrays))


def hold(*values: Any) -> None:
    """Forbid to write into arrays, also those in tuples; what else is given is left as it is."""
    for value in values:
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        elif isinstance(value, tuple):
            hold(*value)


def fields_of(value: Any) -> dict[str, Any]:
    """Return a dataclass' fields, as which it pickles: what else it keeps was derived from them in this process."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
