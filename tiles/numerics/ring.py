"""Ring arithmetic: a JAX function's exact twin, in which misplaced words show and rounding does not exist.

Every float is carried as an unsigned word of its width. Sums, products, dot products and convolutions are
exact modulo 2^n; comparisons and movement act on words; every other op is a fixed mixing of bits. No order of
summation, contraction or library can change a result, so two programs that move the same words agree on every
bit.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Sequence

import jax
import numpy as np
from jax.core import Tracer
from jax.extend import core

from tiles._jax_compat import (
    Atom,
    Datum,
    Equation,
    Function,
    Jaxpr,
    make_jaxpr,
    read_config,
    tree_flatten,
    tree_structure,
    tree_unflatten,
)
from tiles.errors import InvalidArguments
from tiles.numerics import dtypes as element_types
from tiles.numerics import ring_control
from tiles.numerics.ring_rules import RULES, bind, no_rule, rule
from tiles.numerics.ring_words import is_float, to_ring, word_type

__all__ = ["evaluate", "ring", "rule", "to_ring", "word_type"]

assert ring_control  # imported for the rules it registers


@dataclasses.dataclass(frozen=True)
class _Traced:
    """A function traced once: its jaxpr, its constants as words, and the structure of its results."""

    jaxpr: Jaxpr
    const_words: tuple[Datum, ...]
    out_tree: Hashable


def ring(fn: Function, dtypes: Sequence[Datum] | None = None) -> Function:
    """Return the ring form of a function, derived from its jaxpr.

    The result takes the same positional arguments and returns the same structure, with every float array
    carried as unsigned words of its width; other types stay as they are. It can be jitted and batched.

    Args:
      fn: any function that JAX can trace.
      dtypes: for each argument the type that ``fn`` takes ("float32", ...), or a pytree of types in the
      argument's
        structure. Where a float type is stated the words themselves may be given. Without it arguments are
        taken for what they are: floats enter through ``to_ring``.

    Raises:
      Unsupported: when called, on a primitive that has no ring meaning.
      InvalidArguments: when called, on arguments that do not fit ``dtypes``.
    """
    cache: dict[Hashable, _Traced] = {}

    @functools.wraps(fn)
    def in_ring(*args: Datum) -> Datum:
        leaves, tree = tree_flatten(args)
        names = _declared(dtypes, args)
        abstract = [_abstract(x, name) for x, name in zip(leaves, names, strict=True)]
        key = (tree, tuple((a.shape, a.dtype) for a in abstract), bool(read_config("jax_enable_x64")))
        traced = cache.get(key)
        if traced is None:
            traced, is_reusable = _trace(fn, tree_unflatten(tree, abstract))
            if is_reusable:
                cache[key] = traced
        results = evaluate(traced.jaxpr, traced.const_words, [to_ring(x) for x in leaves])
        return tree_unflatten(traced.out_tree, results)

    return in_ring


def evaluate(jaxpr: Jaxpr, const_words: Sequence[Datum], arg_words: Sequence[Datum]) -> list[Datum]:
    """Return the results of a jaxpr in the ring.

    Args:
      jaxpr: an open jaxpr.
      const_words: values of its constant variables, floats as words.
      arg_words: values of its inputs, floats as words.
    """
    env: dict[Atom, Datum] = dict(zip(jaxpr.constvars, const_words, strict=True))
    env.update(zip(jaxpr.invars, arg_words, strict=True))

    def read(v: Atom) -> Datum:
        return _literal(v) if isinstance(v, core.Literal) else env[v]

    for eqn in jaxpr.eqns:
        results = _apply(eqn, [read(v) for v in eqn.invars])
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _apply(eqn: Equation, ins: list[Datum]) -> Sequence[Datum]:
    """Return an equation's results: by its rule where a float may be inside, else by its primitive."""
    name = eqn.primitive.name
    if name in ring_control.NAMES or any(is_float(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        return RULES.get(name, no_rule)(eqn, ins, evaluate)
    return bind(eqn, ins)


def _literal(literal: Atom) -> Datum:
    """Return a literal's word."""
    return to_ring(np.asarray(literal.val, literal.aval.dtype))


def _trace(fn: Function, args: tuple[Datum, ...]) -> tuple[_Traced, bool]:
    """Return a traced function, and whether to keep it: not where it closes over another trace's values."""
    closed, shapes = make_jaxpr(fn, return_shape=True)(*args)
    is_reusable = not any(isinstance(c, Tracer) for c in closed.consts)
    words = tuple(to_ring(c) for c in closed.consts)
    return _Traced(closed.jaxpr, words, tree_structure(shapes)), is_reusable


def _declared(names: Sequence[Datum] | None, args: tuple[Datum, ...]) -> list[str | None]:
    """Return the stated type of each array among the arguments, or None."""
    if names is None:
        return [None] * len(jax.tree.leaves(args))
    if len(names) != len(args):
        raise InvalidArguments(
            "ring arithmetic needs a type for each argument",
            expected=f"{len(args)} types",
            got=f"{len(names)}",
        )
    declared: list[str | None] = []
    for stated, arg in zip(names, args, strict=True):
        leaves = jax.tree.leaves(arg)
        found = [stated] * len(leaves) if isinstance(stated, str) else jax.tree.leaves(stated)
        if len(found) != len(leaves):
            raise InvalidArguments(
                "types do not have the structure of their argument",
                expected=f"{len(leaves)} types",
                got=f"{len(found)}",
            )
        declared += found
    return declared


def _abstract(x: Datum, name: str | None) -> jax.ShapeDtypeStruct:
    """Return the shape and type that the function sees for an argument."""
    shape, dtype = np.shape(x), jax.dtypes.result_type(x) if not hasattr(x, "dtype") else x.dtype
    if name is None:
        return jax.ShapeDtypeStruct(shape, dtype)
    expected = element_types.to_jax(name)
    if dtype not in (expected, word_type(expected)):
        raise InvalidArguments(
            f"an argument stated to be {name} is something else",
            expected=f"{word_type(expected)} words or {name}",
            got=str(dtype),
        )
    return jax.ShapeDtypeStruct(shape, expected)
