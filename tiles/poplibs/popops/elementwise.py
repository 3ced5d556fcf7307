"""Elementwise primitives: each adds one planned compute set to a graph.

``map`` takes any expression; the named functions are rows of the function table. Operands broadcast as
numpy's do, and plain numbers take the dtype of the tensors beside them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, Protocol

from tiles._jax_compat import broadcast_shapes
from tiles.errors import InvalidGraph
from tiles.graph import Graph, IndexMap, Plan, Site, Tensor, site_of
from tiles.poplibs.forms import broadcast_map, map_form
from tiles.poplibs.popops.expr import Expr, arg, call, constant_row, rows_of
from tiles.poplibs.popops.expression import FUNCTIONS, Body, body_dtypes
from tiles.poplibs.popops.map import Map
from tiles.poplibs.poputil.place import place


def map(
    where: Graph | Site,
    expression: Expr | Seq[Any],
    operands: Seq[Tensor],
    *,
    shape: Seq[int] | None = None,
    operand_maps: Seq[IndexMap] | None = None,
    plan: Plan | None = None,
) -> Tensor:
    """Evaluate an expression of tensors at every element.

    Args:
      where: graph, or site in it, to add to.
      expression: an ``Expr``, or rows whose last one is the result.
      operands: tensors, numbered from 0 in the expression.
      shape: of the result; by default that to which the operands broadcast.
      operand_maps: how each operand is indexed; by default broadcast as numpy does.
      plan: use this plan instead of searching.

    Raises:
      InvalidGraph: a malformed expression, or shapes that do not broadcast.
    """
    site = site_of(where, "map")
    dtypes = tuple(t.dtype for t in operands)
    if isinstance(expression, Expr):
        body, (output,) = rows_of([expression], dtypes)
    else:
        body = tuple(expression)
        output = len(operands) + len(body) - 1
    results = _emit(site, body, (output,), operands, shape, operand_maps, plan)
    return results[0]


def map_many(
    where: Graph | Site,
    expressions: Seq[Expr],
    operands: Seq[Tensor],
    *,
    shape: Seq[int] | None = None,
    plan: Plan | None = None,
) -> tuple[Tensor, ...]:
    """Evaluate several expressions of the same tensors in one step; arguments as in ``map``."""
    site = site_of(where, "map")
    body, outputs = rows_of(expressions, tuple(t.dtype for t in operands))
    return _emit(site, body, outputs, operands, shape, None, plan)


def _emit(
    site: Site,
    body: Body,
    outputs: tuple[int, ...],
    operands: Seq[Tensor],
    shape: Seq[int] | None,
    operand_maps: Seq[IndexMap] | None,
    plan: Plan | None,
) -> tuple[Tensor, ...]:
    domain = tuple(shape) if shape is not None else broadcast_shape([t.shape for t in operands])
    maps = (
        tuple(operand_maps)
        if operand_maps is not None
        else tuple(broadcast_map(t.shape, domain) for t in operands)
    )
    dtypes = tuple(t.dtype for t in operands)
    result_dtypes = tuple(body_dtypes(body, dtypes)[i] for i in outputs)
    codelet = Map(body, outputs, dtypes, result_dtypes)
    form = map_form(domain, maps, len(outputs))
    return place(site, codelet, form, operands, result_dtypes, plan=plan)


def broadcast_shape(shapes: Seq[Seq[int]]) -> tuple[int, ...]:
    """Return the shape to which all broadcast.

    Raises:
      InvalidGraph: they do not.
    """
    try:
        return tuple(broadcast_shapes(*(tuple(s) for s in shapes)))
    except ValueError as error:
        raise InvalidGraph(f"shapes {[tuple(s) for s in shapes]} do not broadcast") from error


class Primitive(Protocol):
    """A named elementwise function as a builder."""

    def __call__(
        self,
        where: Graph | Site,
        *operands: Any,
        plan: Plan | None = None,
    ) -> Tensor:
        """Apply the function to tensors and numbers; see ``map`` for the other arguments."""
        ...


def primitive(function: str, **attrs: Any) -> Primitive:
    """Return the builder of a row of the function table."""
    row = FUNCTIONS[function]

    def build(
        where: Graph | Site,
        *operands: Any,
        plan: Plan | None = None,
    ) -> Tensor:
        tensors = [x for x in operands if isinstance(x, Tensor)]
        if len(operands) != row.arity or not tensors:
            raise InvalidGraph(
                f"{function} takes {row.arity} operands, at least one a tensor, got {len(operands)}"
            )
        counter = iter(range(len(tensors)))
        node = call(
            function, *(arg(next(counter)) if isinstance(x, Tensor) else x for x in operands), **attrs
        )
        return map(site_of(where, function), node, tensors, plan=plan)

    build.__doc__ = (
        f"Add {function!r} of {row.arity} broadcast operands; see ``map`` for the other arguments."
    )
    build.__name__ = build.__qualname__ = attrs.get("direction", function).lower()
    return build


abs = primitive("abs")
add = primitive("add")
atan2 = primitive("atan2")
bitwise_and = primitive("and")
bitwise_not = primitive("not")
bitwise_or = primitive("or")
bitwise_xor = primitive("xor")
cbrt = primitive("cbrt")
ceil = primitive("ceil")
clamp = primitive("clamp")
cos = primitive("cosine")
count_leading_zeros = primitive("count_leading_zeros")
div = primitive("divide")
eq = primitive("compare", direction="EQ")
exp = primitive("exponential")
expm1 = primitive("exponential_minus_one")
floor = primitive("floor")
gt = primitive("compare", direction="GT")
gteq = primitive("compare", direction="GE")
is_finite = primitive("is_finite")
log = primitive("log")
log1p = primitive("log_plus_one")
lt = primitive("compare", direction="LT")
lteq = primitive("compare", direction="LE")
max = primitive("maximum")
min = primitive("minimum")
mul = primitive("multiply")
nearby_int = primitive("round_nearest_even")
neg = primitive("negate")
neq = primitive("compare", direction="NE")
popcount = primitive("popcnt")
pow = primitive("power")
rem = primitive("remainder")
round = primitive("round_nearest_afz")
rsqrt = primitive("rsqrt")
select = primitive("select")
shift_left = primitive("shift_left")
shift_right = primitive("shift_right_logical")
shift_right_sign_extend = primitive("shift_right_arithmetic")
sigmoid = primitive("logistic")
signum = primitive("sign")
sin = primitive("sine")
sqrt = primitive("sqrt")
sub = primitive("subtract")
tan = primitive("tan")
tanh = primitive("tanh")


def cast(where: Graph | Site, x: Tensor, dtype: str, *, plan: Plan | None = None) -> Tensor:
    """Convert a tensor to ``dtype``."""
    site = site_of(where, "cast")
    return map(site, call("convert", arg(0), dtype=dtype), [x], plan=plan)


def bitcast(where: Graph | Site, x: Tensor, dtype: str, *, plan: Plan | None = None) -> Tensor:
    """Read a tensor's bits as a dtype of the same width."""
    site = site_of(where, "bitcast")
    return map(site, call("bitcast_convert", arg(0), dtype=dtype), [x], plan=plan)


def fill(where: Graph | Site, shape: Seq[int], dtype: str, value: Any, *, plan: Plan | None = None) -> Tensor:
    """Return a new tensor holding ``value`` everywhere."""
    site = site_of(where, "fill")
    return map(site, [constant_row(value, dtype)], [], shape=shape, plan=plan)


def iota(
    where: Graph | Site, shape: Seq[int], dtype: str, dimension: int = 0, *, plan: Plan | None = None
) -> Tensor:
    """Return a new tensor that counts 0, 1, 2, ... along ``dimension``.

    Raises:
      InvalidGraph: no such dimension.
    """
    site = site_of(where, "iota")
    if not 0 <= dimension < len(shape):
        raise InvalidGraph(f"dimension {dimension} is not one of shape {tuple(shape)}")
    return map(site, call("iota", dim=dimension, dtype=dtype), [], shape=shape, plan=plan)
