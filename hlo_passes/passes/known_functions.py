"""What a network's usual functions and their gradients give at the sample points of ``passes.samples``."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hlo_passes.passes.samples import GRADIENT, POINTS

TOLERANCES = {"f64": 2e-5, "f32": 2e-5, "f16": 1e-3, "bf16": 6e-3}
"""How far tables of values of a type may differ, of the largest: constants are rounded to the type."""

_MAX_EPSILON = 0.1
_ERF = np.vectorize(math.erf)


@dataclass(frozen=True)
class Known:
    """A recognized function of a value.

    Args:
      kind: its name without ``popnn.``: ``gelu``, ``softmax``, ``norm``, ...
      size: elements of a row; 0 for a function of single elements.
      epsilon: what a norm adds to the variance.
    """

    kind: str
    size: int = 0
    epsilon: float = 0.0


Pointwise = tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(_inner(x)))


def _inner(x: np.ndarray) -> np.ndarray:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def _gelu_slope(x: np.ndarray) -> np.ndarray:
    t = np.tanh(_inner(x))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)


def _normal_below(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + _ERF(x / math.sqrt(2)))


FUNCTIONS: dict[str, Pointwise] = {
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * (1 - _sigmoid(x))),
    "silu": (lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x)))),
    "gelu": (_gelu, _gelu_slope),
    "gelu_erf": (
        lambda x: x * _normal_below(x),
        lambda x: _normal_below(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    ),
}
"""Functions of single elements and their derivatives."""

SLOPES_BY_RESULT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda y: (y > 0) * 1.0,
    "tanh": lambda y: 1 - y * y,
    "sigmoid": lambda y: y * (1 - y),
}
"""Derivatives as functions of the result."""


def _mean(x: np.ndarray) -> np.ndarray:
    return x.mean(1, keepdims=True)


def _softmax(x: np.ndarray, size: int) -> np.ndarray:
    e = np.exp(x)
    return e / (size * _mean(e))


def _whitened(x: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    deviation = x - _mean(x)
    inverse = 1 / np.sqrt(_mean(deviation**2) + epsilon)
    return deviation * inverse, inverse


@lru_cache(maxsize=256)
def _tables() -> Mapping[str, np.ndarray]:
    tables = {kind: function(POINTS) for kind, (function, _) in FUNCTIONS.items()}
    for table in tables.values():
        table.flags.writeable = False  # shared by all who ask
    return types.MappingProxyType(tables)


def recognize(values: np.ndarray, size: int, tolerance: float) -> Known | None:
    """Return the function whose table is ``values``.

    Args:
      values: ``[rows, columns]``.
      size: elements of a row, 0 if every element was computed from itself.
      tolerance: see ``TOLERANCES``.
    """
    if not size:
        return next((Known(k) for k, v in _tables().items() if _close(values, v, tolerance)), None)
    softmax = _softmax(POINTS, size)
    if _close(values, softmax, tolerance):
        return Known("softmax", size)
    if _close(values, np.log(softmax), tolerance):
        return Known("log_softmax", size)
    deviation = POINTS - _mean(POINTS)
    inverse = values[:, :1] / deviation[:, :1]
    if _close(values, deviation * inverse, tolerance) and (inverse > 0).all():
        epsilon = 1 / inverse**2 - _mean(deviation**2)
        if -tolerance < epsilon.min() and epsilon.max() < _MAX_EPSILON and np.ptp(epsilon) < 10 * tolerance:
            return Known("norm", size, max(0.0, float(epsilon.mean())))
    return None


def is_gradient(values: np.ndarray, known: Known, of_result: bool, tolerance: float) -> bool:
    """Return whether a table that is linear in ``GRADIENT`` is a recognized function's gradient.

    Args:
      values: ``[rows, columns]``.
      known: the function.
      of_result: whether the table's source is the function's result, else its operand.
      tolerance: see ``TOLERANCES``.
    """
    return any(_close(values, each, tolerance) for each in _gradients(known, of_result))


def _gradients(known: Known, of_result: bool) -> Iterator[np.ndarray]:
    g = GRADIENT
    if not known.size:
        if of_result and known.kind in SLOPES_BY_RESULT:
            yield g * SLOPES_BY_RESULT[known.kind](POINTS)
        elif not of_result:
            yield g * FUNCTIONS[known.kind][1](POINTS)
        return
    total = known.size
    if known.kind == "softmax":
        y = POINTS if of_result else _softmax(POINTS, total)
        yield y * (g - total * _mean(g * y))
    elif known.kind == "log_softmax":
        y = np.exp(POINTS) if of_result else _softmax(POINTS, total)
        yield g - y * total * _mean(g)
    elif not of_result:
        white, inverse = _whitened(POINTS, known.epsilon)
        yield inverse * (g - _mean(g) - white * _mean(g * white))


def _close(values: np.ndarray, want: np.ndarray, tolerance: float) -> bool:
    return values.shape == want.shape and bool(
        np.abs(values - want).max() <= tolerance * max(1.0, np.abs(want).max())
    )
