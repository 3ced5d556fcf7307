"""The usual functions of networks and their gradients, defined once: for numbers, and for expressions of an algebra."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np

from hlo_passes.passes.samples import GRADIENT, POINTS

TOLERANCES = {"f64": 2e-5, "f32": 2e-5, "f16": 1e-3, "bf16": 6e-3}
"""How far tables of values of a type, and constants in it, may differ, of the largest."""

MAX_EPSILON = 0.1
"""The most that a norm adds to the variance."""

MAX_OPERATIONS: dict[str, tuple[int, int]] = {
    "relu": (2, 8),
    "tanh": (2, 5),
    "sigmoid": (17, 11),
    "silu": (6, 13),
    "gelu": (10, 26),
    "gelu_erf": (7, 16),
    "softmax": (8, 24),
    "log_softmax": (12, 20),
    "norm": (18, 44),
}
"""Operations that a function, and its gradient, may take: one more than the longest way of writing it that is known.

What only moves or converts is not counted; what XLA computes an error function by counts as one.
"""


Term: TypeAlias = Any
"""A number, an array of rows, or an expression of an algebra: what has arithmetic."""


class Functions(Protocol):
    """What the definitions are made of: functions of numbers, of arrays of rows, or of expressions."""

    def exp(self, x: Term, /) -> Term: ...  # noqa: D102
    def log(self, x: Term, /) -> Term: ...  # noqa: D102
    def tanh(self, x: Term, /) -> Term: ...  # noqa: D102
    def sigmoid(self, x: Term, /) -> Term: ...  # noqa: D102
    def erf(self, x: Term, /) -> Term: ...  # noqa: D102
    def positive(self, x: Term, /) -> Term: ...  # noqa: D102
    def maximum(self, x: Term, y: Term, /) -> Term: ...  # noqa: D102
    def sum(self, x: Term, /) -> Term: ...  # noqa: D102
    def mean(self, x: Term, /) -> Term: ...  # noqa: D102


@dataclass(frozen=True)
class Numbers:
    """The functions for tables ``[rows, columns]``, whose columns are a sample of ``row_size`` elements."""

    row_size: int = 0

    exp = staticmethod(np.exp)
    log = staticmethod(np.log)
    tanh = staticmethod(np.tanh)
    erf = staticmethod(np.vectorize(math.erf, otypes=[float]))
    maximum = staticmethod(np.maximum)

    def sigmoid(self, x: np.ndarray) -> np.ndarray:
        """Return the logistic function."""
        return 1 / (1 + np.exp(-x))

    def positive(self, x: np.ndarray) -> np.ndarray:
        """Return 1 where a number is more than zero, else 0."""
        return (x > 0) * 1.0

    def sum(self, x: np.ndarray) -> np.ndarray:
        """Return the sum along a row."""
        return self.row_size * self.mean(x)

    def mean(self, x: np.ndarray) -> np.ndarray:
        """Return the mean along a row."""
        return x.mean(1, keepdims=True)


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

    @property
    def variants(self) -> tuple[str, ...]:
        """The functions that it may be, going by a table."""
        return _ALIKE if self.kind in _ALIKE else (self.kind,)


_ALIKE = ("gelu", "gelu_erf")
"""Functions that differ by less than halves can tell."""

Elementwise = Callable[[Functions, Term], Term]
"""A function of ``Functions`` and its operand."""

Definition = Callable[..., Term]
"""A function of ``Functions``, its operand or source and gradient; of a norm's epsilon, too."""

_Gradient = Callable[[Functions, Term, Term], Term] | Callable[[Functions, Term, Term, float], Term]


# ---- functions, of ``m: Functions`` and their operand


def _gelu_inner(x: Term) -> Term:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def _gelu(m: Functions, x: Term) -> Term:
    return 0.5 * x * (1 + m.tanh(_gelu_inner(x)))


def _gelu_slope(m: Functions, x: Term) -> Term:
    t = m.tanh(_gelu_inner(x))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)


def _normal_below(m: Functions, x: Term) -> Term:
    return 0.5 * (1 + m.erf(x / math.sqrt(2)))


def _gelu_erf_slope(m: Functions, x: Term) -> Term:
    return _normal_below(m, x) + x * m.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)


def _silu_slope(m: Functions, x: Term) -> Term:
    return m.sigmoid(x) * (1 + x * (1 - m.sigmoid(x)))


FUNCTIONS: dict[str, tuple[Elementwise, Elementwise]] = {
    "relu": (lambda m, x: m.maximum(x, 0), lambda m, x: m.positive(x)),
    "tanh": (lambda m, x: m.tanh(x), lambda m, x: 1 - m.tanh(x) ** 2),
    "sigmoid": (lambda m, x: m.sigmoid(x), lambda m, x: m.sigmoid(x) * (1 - m.sigmoid(x))),
    "silu": (lambda m, x: x * m.sigmoid(x), _silu_slope),
    "gelu": (_gelu, _gelu_slope),
    "gelu_erf": (lambda m, x: x * _normal_below(m, x), _gelu_erf_slope),
}
"""Functions of single elements and their derivatives."""

SLOPES_BY_RESULT: dict[str, Elementwise] = {
    "relu": lambda m, y: m.positive(y),
    "tanh": lambda m, y: 1 - y * y,
    "sigmoid": lambda m, y: y * (1 - y),
}
"""Derivatives as functions of the result."""


def _softmax(m: Functions, x: Term) -> Term:
    e = m.exp(x)
    return e / m.sum(e)


def _log_softmax(m: Functions, x: Term) -> Term:
    return x - m.log(m.sum(m.exp(x)))


def _whitened(m: Functions, x: Term, epsilon: float) -> tuple[Term, Term]:
    deviation = x - m.mean(x)
    inverse = (m.mean(deviation**2) + epsilon) ** -0.5
    return deviation * inverse, inverse


def _norm(m: Functions, x: Term, epsilon: float) -> Term:
    return _whitened(m, x, epsilon)[0]


ROW_FUNCTIONS: dict[str, Definition] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "norm": _norm,
}
"""Functions of rows; a norm's last argument is what is added to the variance."""


def _softmax_gradient(m: Functions, y: Term, g: Term) -> Term:
    return y * (g - m.sum(g * y))


def _log_softmax_gradient(m: Functions, y: Term, g: Term) -> Term:
    return g - y * m.sum(g)


def _norm_gradient(m: Functions, x: Term, g: Term, epsilon: float) -> Term:
    white, inverse = _whitened(m, x, epsilon)
    return inverse * (g - m.mean(g) - white * m.mean(g * white))


_ROW_GRADIENTS: dict[tuple[str, bool], _Gradient] = {
    ("softmax", True): _softmax_gradient,
    ("softmax", False): lambda m, x, g: _softmax_gradient(m, _softmax(m, x), g),
    ("log_softmax", True): lambda m, y, g: _log_softmax_gradient(m, m.exp(y), g),
    ("log_softmax", False): lambda m, x, g: _log_softmax_gradient(m, _softmax(m, x), g),
    ("norm", False): _norm_gradient,
}
"""Gradients of functions of rows, by function and whether they are told of its result or its operand."""


def definition(kind: str) -> Definition:
    """Return a function of ``Functions`` and its operand (and a norm's epsilon)."""
    return FUNCTIONS[kind][0] if kind in FUNCTIONS else ROW_FUNCTIONS[kind]


def gradient_definition(kind: str, of_result: bool) -> Definition | None:
    """Return a function's gradient as a function of ``Functions``, source and gradient (and epsilon); None if there is none.

    Args:
      kind: the function.
      of_result: whether the source is the function's result, else its operand.
    """
    if kind not in FUNCTIONS:
        return _ROW_GRADIENTS.get((kind, of_result))
    slope = SLOPES_BY_RESULT.get(kind) if of_result else FUNCTIONS[kind][1]
    if slope is None:
        return None

    def chained(m: Functions, x: Term, g: Term) -> Term:
        return g * slope(m, x)

    return chained


# ---- tables


@lru_cache(maxsize=1)
def _tables() -> Mapping[str, np.ndarray]:
    tables = {kind: np.array(function(Numbers(), POINTS)) for kind, (function, _) in FUNCTIONS.items()}
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
    numbers = Numbers(size)
    for kind in ("softmax", "log_softmax"):
        if _close(values, ROW_FUNCTIONS[kind](numbers, POINTS), tolerance):
            return Known(kind, size)
    deviation = POINTS - numbers.mean(POINTS)
    inverse = values[:, :1] / deviation[:, :1]
    if _close(values, deviation * inverse, tolerance) and (inverse > 0).all():
        epsilon = 1 / inverse**2 - numbers.mean(deviation**2)
        if -tolerance < epsilon.min() and epsilon.max() < MAX_EPSILON and np.ptp(epsilon) < 10 * tolerance:
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
    found = gradient_definition(known.kind, of_result)
    if found is not None:
        more = (known.epsilon,) if known.kind == "norm" else ()
        yield found(Numbers(known.size), POINTS, GRADIENT, *more)


def _close(values: np.ndarray, want: np.ndarray, tolerance: float) -> bool:
    return values.shape == want.shape and bool(
        np.abs(values - want).max() <= tolerance * max(1.0, np.abs(want).max())
    )
