"""``accumulate``: the cast into or out of a codelet's wider accumulator, which is no conversion of values.

With floats it is a conversion. In ring arithmetic it is zero-extension or truncation of words, so that a dot
product whose partials are wider than its operands still equals the dot product of the operands' words modulo
their width, however it is split. Integers that floats hold to the bit, on their way to the multiply units, are
such words as well: sign-extended, and truncated on the way back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import Array, core, lax
from jax.interpreters import ad

from tiles._jax_compat import (
    Atom,
    Datum,
    batchers,
    define_linear,
    lower_fun,
    new_primitive,
    register_lowering,
)
from tiles.errors import UnsupportedDtype
from tiles.numerics import dtypes

accumulate_p = new_primitive("tiles_accumulate")


def accumulate(x: Array, dtype: object) -> Array:
    """Cast floats into or out of an accumulator's type, or integers into or out of floats that hold all of them.

    Args:
      x: floats of any shape.
      dtype: name or dtype of the accumulator, or of the values on the way back.

    Raises:
      UnsupportedDtype: either type is neither a float nor an integer that the other holds.
    """
    new = dtypes.to_jax(dtypes.name_of(dtype))
    if not dtypes.may_hold(x.dtype, new):
        raise UnsupportedDtype("accumulate casts floats to floats", got=f"{x.dtype.name} to {new.name}")
    return x if x.dtype == new else accumulate_p.bind(x, new_dtype=new)


def _convert(x: Array, *, new_dtype: np.dtype) -> Array:
    return lax.convert_element_type(x, new_dtype)


def _abstract(x: Atom, *, new_dtype: np.dtype) -> core.ShapedArray:
    return x.update(dtype=new_dtype, weak_type=False)


def _batch(args: Sequence[Array], dims: Sequence[int], *, new_dtype: np.dtype) -> tuple[Array, int]:
    return accumulate_p.bind(args[0], new_dtype=new_dtype), dims[0]


def _transpose(cotangent: Datum, x: Atom, *, new_dtype: np.dtype) -> list[Datum]:
    del new_dtype
    is_zero = type(cotangent) is ad.Zero
    return [ad.Zero(x.aval) if is_zero else accumulate(cotangent, x.aval.dtype)]


accumulate_p.def_impl(_convert)
accumulate_p.def_abstract_eval(_abstract)
batchers[accumulate_p] = _batch
define_linear(accumulate_p, _transpose)
register_lowering(accumulate_p, lower_fun(_convert, multiple_results=False))
