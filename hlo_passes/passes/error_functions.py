"""The error function as StableHLO has it: JAX's ``erf`` and ``erfc`` arrive as the polynomials that XLA computes them by.

An expansion is found by its structure, operation by operation and constant by constant, so what is found is exactly
it. Source of the coefficients: the expansions of ``chlo.erf`` and ``chlo.erfc``, which are those of Cephes (S. L.
Moshier) and, for ``erf`` of float32, of Eigen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from hlo_passes import ops
from hlo_passes.ir import Instruction, Op, Value

Node: TypeAlias = tuple[Any, ...]
"""An operation's key and its operands, each a node; a number; or ``HOLE``."""

HOLE: Node = ("hole",)

_ERF_F32 = (
    (-2.7261424e-10, 2.7706815e-8, -2.101024e-6, -5.6925062e-5, -0.00073499064, -0.0029546, -0.016096033),
    (-1.45660715e-5, -0.00021337405, -0.001682827, -0.0073733293, -0.014264739),
)
_ERFC_F32 = (
    (7.8538615e-5, -0.00080101937, 0.0051883277, -0.026853813, 0.112835854, -0.37612626, 1.1283791),
    (
        *(0.0232682, -0.13870394, 0.36874247, -0.5824733, 0.62100047),
        *(-0.49445152, 0.340488, -0.2741127, 0.56382596),
    ),
    (-10.477664, 12.9772, -7.4955187, 2.921019, -1.0152652, 0.42184633, -0.28207675, 0.5641895),
)
_ERF_F64 = (
    (9.604973739870516, 90.02601972038427, 2232.005345946843, 7003.325141128051, 55592.30130103949),
    (
        *(1.0, 33.56171416475031, 521.3579497801527, 4594.323829709801),
        *(22629.000061389095, 49267.39426086359),
    ),
)
_ERFC_F64 = (
    (
        *(2.461969814735305e-10, 0.5641895648310689, 7.463210564422699, 48.63719709856814, 196.5208329560771),
        *(526.4451949954773, 934.5285271719576, 1027.5518868951572, 557.5353353693994),
    ),
    (
        *(1.0, 13.228195115474499, 86.70721408859897, 354.9377788878199, 975.7085017432055),
        *(1823.9091668790973, 2246.3376081871097, 1656.6630919416134, 557.5353408177277),
    ),
    (
        *(0.5641895835477551, 1.275366707599781, 5.019050422511805, 6.160210979930536),
        *(7.4097426995044895, 2.9788666537210022),
    ),
    (
        *(1.0, 2.2605286322011726, 9.396035249380015, 12.048953980809666, 17.08144507475659),
        *(9.608968090632859, 3.369076451000815),
    ),
)


def op_key(op: Op) -> Any:
    """Return what tells an elementwise operation apart, types left out."""
    return (ops.Compare, op.direction) if isinstance(op, ops.Compare) else type(op)


def _polynomial(x: Node, coefficients: Sequence[float]) -> Node:
    total: Any = coefficients[0]
    for coefficient in coefficients[1:]:
        total = (ops.Add, (ops.Multiply, total, x), coefficient)
    return total


def _select_less(x: Any, y: Any, yes: Any, no: Any) -> Node:
    return (ops.Select, ((ops.Compare, "LT"), x, y), yes, no)


def _erf_f32(x: Node) -> Node:
    inside = (ops.Clamp, -4.0, x, 4.0)
    square = (ops.Multiply, inside, inside)
    above, below = (_polynomial(square, c) for c in _ERF_F32)
    return (ops.Clamp, -1.0, (ops.Divide, (ops.Multiply, inside, above), below), 1.0)


def _erfc_f32(x: Node) -> Node:
    square, size = (ops.Multiply, x, x), (ops.Abs, x)
    negative = (ops.Negate, square)
    near, middle, far = _ERFC_F32
    inverse = (ops.Divide, 1.0, square)
    outer = _select_less(size, 2.0, _polynomial(inverse, middle), _polynomial(inverse, far))
    scale = (ops.Multiply, (ops.Exponential, negative), (ops.Divide, 1.0, size))
    tail = _reflected(x, _select_less(negative, -88.72284, 0.0, (ops.Multiply, scale, outer)))
    inner = (ops.Subtract, 1.0, (ops.Multiply, x, _polynomial(square, near)))
    return _select_less(size, 1.0, inner, tail)


def _reflected(x: Node, y: Node) -> Node:
    return _select_less(x, 0.0, (ops.Subtract, 2.0, y), y)


def _inner_f64(x: Node) -> Node:
    square = (ops.Multiply, x, x)
    above, below = (_polynomial(square, c) for c in _ERF_F64)
    return (ops.Divide, (ops.Multiply, x, above), below)


def _outer_f64(x: Node) -> Node:
    negative, size = (ops.Negate, (ops.Multiply, x, x)), (ops.Abs, x)
    exponential = (ops.Exponential, negative)
    p, q, r, s = (_polynomial(size, c) for c in _ERFC_F64)
    near = (ops.Divide, (ops.Multiply, exponential, p), q)
    far = (ops.Divide, (ops.Multiply, exponential, r), s)
    return _reflected(x, _select_less(negative, -709.782712893384, 0.0, _select_less(size, 8.0, near, far)))


def _erf_f64(x: Node) -> Node:
    return _select_less((ops.Abs, x), 1.0, _inner_f64(x), (ops.Subtract, 1.0, _outer_f64(x)))


def _erfc_f64(x: Node) -> Node:
    return _select_less((ops.Abs, x), 1.0, (ops.Subtract, 1.0, _inner_f64(x)), _outer_f64(x))


_EXPANSIONS: dict[str, tuple[tuple[bool, Node], ...]] = {
    "f32": ((False, _erf_f32(HOLE)), (True, _erfc_f32(HOLE))),
    "f64": ((False, _erf_f64(HOLE)), (True, _erfc_f64(HOLE))),
}
"""By element type expansions, and whether each is of the complement."""


def error_function(
    root: Instruction, producers: Mapping[Value, Instruction], number: Callable[[Value], float | None]
) -> tuple[bool, Value] | None:
    """Return what an instruction is the error function, or its complement, of; None where it is neither.

    Args:
      root: the instruction whose result it may be.
      producers: by value the instruction that computes it, of whatever may belong to it.
      number: what tells the number that a value is everywhere, None for others.

    Returns:
      Whether it is the complement, and the argument.
    """
    for is_complement, expansion in _EXPANSIONS.get(root.result.type.dtype, ()):
        match = _Match(producers, number)
        if match.is_same(root.result, expansion) and match.hole is not None:
            return is_complement, match.hole
    return None


class _Match:
    """One comparison of a value with an expansion; what is compared twice is compared once."""

    def __init__(
        self, producers: Mapping[Value, Instruction], number: Callable[[Value], float | None]
    ) -> None:
        self.producers, self.number = producers, number
        self.hole: Value | None = None
        self.same: set[tuple[Value, int]] = set()

    def is_same(self, value: Value, node: Any) -> bool:
        """Whether a value is computed as a node says."""
        if node is HOLE:
            self.hole = self.hole or value
            return value == self.hole
        if isinstance(node, float):
            return self.number(value) == float(np.asarray(node, value.type.np_dtype))
        if (value, id(node)) in self.same:
            return True
        producer = self.producers.get(value)
        if producer is None or op_key(producer.op) != node[0]:
            return False
        pairs = zip(producer.operands, node[1:], strict=True)
        if not all(self.is_same(operand, inner) for operand, inner in pairs):
            return False
        self.same.add((value, id(node)))
        return True
