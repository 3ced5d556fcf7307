"""The table of canonicalization patterns, and the small questions that patterns ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from hlo_passes.ir import Op, TensorType, Value
from hlo_passes.ops import Constant
from hlo_passes.passes.rewriter import Pattern, Rewriter

PATTERNS: dict[type[Op], list[Pattern]] = {}
"""Patterns by the op class they look at, in the order they are tried; those under ``Op`` look at every op."""

P = TypeVar("P", bound=Pattern)


def rewrites(*ops: type[Op]) -> Callable[[P], P]:
    """Register a pattern for op classes."""

    def keep(pattern: P) -> P:
        for op in ops:
            PATTERNS.setdefault(op, []).append(pattern)
        return pattern

    return keep


def splat_element(value: Value, rewriter: Rewriter) -> np.generic | None:
    """Return the element that a splat constant repeats, or None."""
    constant = rewriter.constant(value)
    return constant.value.flat[0] if constant is not None and constant.is_splat else None


def is_element(element: np.generic | None, expected: float) -> bool:
    """Whether an element has exactly the bits of ``expected`` in its own type (-0.0 is not 0.0).

    What the type has not (an infinity, a zero) becomes something else in it, NaN for one: no element is that.
    """
    if element is None:
        return False
    made = np.array(expected).astype(element.dtype)
    return element.tobytes() == made.tobytes() and bool(made.astype(np.asarray(expected).dtype) == expected)


def zeros(type_: TensorType, rewriter: Rewriter) -> Value:
    """Emit a constant of zeros (false for booleans)."""
    return rewriter.emit(Constant.splat(0, type_))


def ones_like(type_: TensorType) -> int:
    """Return the element of ``type_`` all of whose bits are set: true, or minus one modulo 2^n."""
    if type_.is_bool:
        return 1
    return int(np.iinfo(type_.np_dtype).max) if type_.is_unsigned else -1
