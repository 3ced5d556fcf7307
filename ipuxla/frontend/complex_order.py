"""Operations that order complex numbers: by their real parts, equal ones by their imaginary parts.

The StableHLO specification has it so for "compare", "maximum", "minimum" and "clamp", and says that it means to drop
it; JAX writes the comparisons of parts itself. The machine has no complex type, so here they are written out, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import Array, lax

from hlo_passes.ir import Location, Value
from ipuxla.frontend._jax_compat import mlir
from ipuxla.frontend.legalization import Reader, Scope
from ipuxla.frontend.nested import Operand, plain

COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "LT": lax.lt,
    "LE": lax.le,
    "GT": lax.gt,
    "GE": lax.ge,
}


def ordered_reader(
    op: mlir.Operation, operands: Sequence[Operand], word: Callable[[mlir.Operation, str], str]
) -> Reader | None:
    """Return what reads an operation as comparisons of parts; None where no complex numbers are ordered.

    Args:
      op: the MLIR operation.
      operands: as its readers get them.
      word: reads an attribute of an operation that is a keyword.
    """
    if op.name not in ("stablehlo.compare", *_FUNCTIONS):
        return None
    if not isinstance(operands[0], Value) or not operands[0].type.is_complex:
        return None
    if op.name != "stablehlo.compare":
        return _reader(_FUNCTIONS[op.name])
    comparison = COMPARISONS.get(word(op, "comparison_direction"))
    return None if comparison is None else _reader(functools.partial(_compared, comparison))


def _reader(function: Callable[..., Array]) -> Reader:
    def read(
        scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
    ) -> Sequence[Operand]:
        types = scope.result_types(op, location)
        return list(scope.traced(lambda *arrays: (function(*arrays),), plain(operands), types, location))

    return read


def _compared(comparison: Callable[[Array, Array], Array], x: Array, y: Array) -> Array:
    """Return the comparison of pairs, the first parts of which decide unless they are equal."""
    (a, b), (c, d) = ((lax.real(z), lax.imag(z)) for z in (x, y))
    return jnp.where(a == c, comparison(b, d), comparison(a, c))


def _maximum(x: Array, y: Array) -> Array:
    return jnp.where(_compared(lax.gt, x, y), x, y)


def _minimum(x: Array, y: Array) -> Array:
    return jnp.where(_compared(lax.lt, x, y), x, y)


def _clamp(low: Array, x: Array, high: Array) -> Array:
    return _minimum(_maximum(x, low), high)


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "stablehlo.maximum": _maximum,
    "stablehlo.minimum": _minimum,
    "stablehlo.clamp": _clamp,
}
