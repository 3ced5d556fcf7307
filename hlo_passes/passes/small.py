"""Evaluate operations on a few words with numpy where that is exact: JAX would compile each of them first.

What moves elements is exact whatever they are; so is arithmetic on integers and booleans, which wraps around alike, a
float's negation, and a conversion of numbers that both types have. All else is left to JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from hlo_passes._jax_compat import Atom, Jaxpr, finfo, make_jaxpr


def evaluated_exactly(function: Callable[..., Any], *operands: np.ndarray) -> tuple[np.ndarray, ...] | None:
    """Return what a function of JAX arrays returns, or None where numpy does not surely say the same.

    Args:
      function: returns a tuple of arrays; the caller holds ``jax.enable_x64(True)``.
      operands: its arguments.
    """
    traced = make_jaxpr(function)(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands))
    with np.errstate(all="ignore"):
        found = _evaluated(traced.jaxpr, traced.consts, operands)
    return None if found is None else tuple(found)


def _evaluated(
    jaxpr: Jaxpr, constants: Sequence[Any], operands: Sequence[np.ndarray]
) -> list[np.ndarray] | None:
    """Return the results of a jaxpr, None where a primitive has no rule for what it is given."""
    known = dict(
        zip((*jaxpr.constvars, *jaxpr.invars), map(np.asarray, (*constants, *operands)), strict=True)
    )

    def value(atom: Atom) -> np.ndarray:
        return np.asarray(atom.val, atom.aval.dtype) if hasattr(atom, "val") else known[atom]

    for equation in jaxpr.eqns:
        given = [value(atom) for atom in equation.invars]
        inner = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit") else None
        if inner is not None:
            made = _evaluated(inner.jaxpr, inner.consts, given)
        else:
            rule = _RULES.get(equation.primitive.name)
            made = None if rule is None else rule(equation.params, *given)
            made = None if made is None else [made]
        if made is None:
            return None
        for variable, result in zip(equation.outvars, made, strict=True):
            known[variable] = np.asarray(result, variable.aval.dtype)
    return [value(atom) for atom in jaxpr.outvars]


_Rule = Callable[..., np.ndarray | None]
Params = Mapping[str, Any]
"""Parameters of a primitive of JAX, of any kinds, by name."""


def _is_exact(*arrays: np.ndarray) -> bool:
    return all(x.dtype.kind in "iub" for x in arrays)


def _on_integers(function: Callable[..., np.ndarray]) -> _Rule:
    """Return the rule of a primitive that does to integers and booleans what a numpy function does."""

    def rule(params: Params, *given: np.ndarray) -> np.ndarray | None:
        return function(*given) if _is_exact(*given) else None

    return rule


def _remainder(params: Params, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray | None:
    """Return what is left, with the sign of the dividend; a division by zero is JAX's to define."""
    return np.fmod(lhs, rhs) if _is_exact(lhs, rhs) and np.all(rhs > 0) else None


def _converted(params: Params, given: np.ndarray) -> np.ndarray | None:
    dtype = np.dtype(params["new_dtype"])
    if _is_exact(given) and dtype.kind in "iub":
        return given.astype(dtype)
    if given.dtype.kind not in "iubf" or dtype.kind not in "iuf":
        return None
    with np.errstate(all="ignore"):
        found = given.astype(dtype)
        is_same = np.isfinite(found) & (found.astype(given.dtype) == given)
    return found if np.all(is_same & _is_normal(given) & _is_normal(found)) else None


def _is_normal(x: np.ndarray) -> np.ndarray:
    """Return where numbers are none that a machine may take for zero."""
    # Of the 8-bit floats one, float8_e5m2, has numpy's kind of a float, too.
    return (x == 0) | (np.abs(x) >= finfo(x.dtype).tiny) if x.dtype.kind == "f" else np.ones(x.shape, bool)


def _negated(params: Params, given: np.ndarray) -> np.ndarray | None:
    return np.negative(given) if given.dtype.kind in "iuf" else None


def _selected(params: Params, which: np.ndarray, *cases: np.ndarray) -> np.ndarray | None:
    return np.where(which, cases[1], cases[0]) if which.dtype.kind == "b" and len(cases) == 2 else None


def _reshaped(params: Params, given: np.ndarray, *sizes: np.ndarray) -> np.ndarray | None:
    return given.reshape(params["new_sizes"]) if params["dimensions"] is None and not sizes else None


def _broadcast(params: Params, given: np.ndarray, *sizes: np.ndarray) -> np.ndarray | None:
    if sizes:
        return None
    shape = [1] * len(params["shape"])
    for axis, dimension in enumerate(params["broadcast_dimensions"]):
        shape[dimension] = given.shape[axis]
    return np.broadcast_to(given.reshape(shape), params["shape"])


def _squeezed(params: Params, given: np.ndarray) -> np.ndarray:
    return given.reshape([n for d, n in enumerate(given.shape) if d not in params["dimensions"]])


def _concatenated(params: Params, *given: np.ndarray) -> np.ndarray:
    return np.concatenate(given, params["dimension"])


def _counted(params: Params) -> np.ndarray | None:
    """Return indices along a dimension."""
    shape: tuple[int, ...] = params["shape"]
    dtype: np.dtype[Any] = np.dtype(params["dtype"])
    if dtype.kind not in "iu":
        return None
    dimension: int = params["dimension"]
    places = [1] * len(shape)
    places[dimension] = shape[dimension]
    along = np.arange(shape[dimension], dtype=np.int64).astype(dtype)
    return np.broadcast_to(along.reshape(places), shape)


def _transposed(params: Params, given: np.ndarray) -> np.ndarray:
    return given.transpose(params["permutation"])


_RULES: dict[str, _Rule] = {
    "add": _on_integers(np.add),
    "and": _on_integers(np.bitwise_and),
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenated,
    "convert_element_type": _converted,
    "eq": _on_integers(np.equal),
    "ge": _on_integers(np.greater_equal),
    "gt": _on_integers(np.greater),
    "iota": _counted,
    "le": _on_integers(np.less_equal),
    "lt": _on_integers(np.less),
    "max": _on_integers(np.maximum),
    "min": _on_integers(np.minimum),
    "mul": _on_integers(np.multiply),
    "ne": _on_integers(np.not_equal),
    "neg": _negated,
    "not": _on_integers(np.invert),
    "or": _on_integers(np.bitwise_or),
    "rem": _remainder,
    "reshape": _reshaped,
    "select_n": _selected,
    "sign": _on_integers(np.sign),
    "squeeze": _squeezed,
    "sub": _on_integers(np.subtract),
    "transpose": _transposed,
    "xor": _on_integers(np.bitwise_xor),
}
"""By the name of a primitive of JAX, what it does to arrays of numpy; None where that is not surely the same."""
