"""The ring meaning of JAX's primitives, for equations that touch a float: one rule per primitive.

Three kinds. Exact: arithmetic modulo 2^n, comparison and movement, done by the primitive itself or by its
public function on unsigned words. Mixed: elementwise functions the ring cannot compute, a fixed scrambling of
bits. Control: see ``ring_control``. A primitive with no rule is a named error, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles._jax_compat import (
    Datum,
    DTypeLike,
    Equation,
    Function,
    Jaxpr,
    Params,
    broadcasted_iota,
    dot_general,
    finfo,
    reduce_window,
)
from tiles.errors import Unsupported
from tiles.numerics import ring_words
from tiles.numerics.accumulate import accumulate_p
from tiles.numerics.convolution import convolve

Evaluate = Callable[[Jaxpr, Sequence[Datum], Sequence[Datum]], list[Datum]]
"""``evaluate(jaxpr, const_words, arg_words) -> result_words``."""
Rule = Callable[[Equation, list[Datum], Evaluate], Sequence[Datum]]
"""``rule(equation, operand_words, evaluate) -> result_words``."""

# Each primitive computes its own ring form when it is handed words: modulo arithmetic, unsigned comparison,
# movement.
_ITSELF = """
add add_any sub mul neg max min clamp select_n eq ne lt le gt ge eq_to le_to lt_to
reduce_sum reduce_prod reduce_max reduce_min argmax argmin cumsum cumprod cummax cummin
reduce_window_sum reduce_window_max reduce_window_min sort top_k
broadcast_in_dim reshape transpose squeeze expand_dims rev slice pad concatenate split tile stack unstack
dynamic_slice dynamic_update_slice copy copy_p optimization_barrier tie
""".split()

# Elementwise functions with no exact form modulo 2^n.
_MIXED = """
abs sign floor ceil round is_finite nextafter reduce_precision
exp exp2 expm1 log log1p logistic sqrt rsqrt cbrt pow rem atan2
sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh
erf erfc erf_inv lgamma digamma igamma igammac igamma_grad_a random_gamma_grad polygamma zeta
bessel_i0e bessel_i1e regularized_incomplete_beta
""".split()

_TAG_PARAMS = ("rounding_method", "exponent_bits", "mantissa_bits", "y")
_SCATTERS: dict[str, Callable[..., Array]] = {
    "scatter": lax.scatter,
    "scatter-add": lax.scatter_add,
    "scatter-sub": lax.scatter_sub,
    "scatter-mul": lax.scatter_mul,
    "scatter-min": lax.scatter_min,
    "scatter-max": lax.scatter_max,
}
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the ring meaning of the primitives of these names."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def bind(eqn: Equation, ins: Sequence[Datum]) -> Sequence[Datum]:
    """Return the results of an equation's own primitive on other operands."""
    results = eqn.primitive.bind(*ins, **eqn.params)
    return results if eqn.primitive.multiple_results else [results]


def no_rule(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    """Refuse a primitive whose ring meaning nobody has stated."""
    del ins, evaluate
    raise Unsupported(
        f"primitive {eqn.primitive.name!r} has no meaning in ring arithmetic",
        got=f"{[str(v.aval) for v in eqn.invars]} -> {[str(v.aval) for v in eqn.outvars]}",
        try_="write it with ops that have one, or run it with float arithmetic",
    )


@rule(*_ITSELF)
def _itself(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    return bind(eqn, ins)


@rule(*_MIXED)
def _mixed(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    out = eqn.outvars[0].aval
    operand = eqn.invars[0].aval
    if eqn.primitive.name == "reduce_precision" and _keeps_precision(eqn.params, operand.dtype):
        return ins
    statics = [f"{k}={getattr(v, 'name', v)}" for k, v in sorted(eqn.params.items()) if k in _TAG_PARAMS]
    tag = ":".join([eqn.primitive.name, np.dtype(operand.dtype).name, *statics])
    return [ring_words.mix(tag, ins, out.shape, out.dtype)]


def _keeps_precision(params: Params, dtype: DTypeLike) -> bool:
    """Return whether reduce_precision asks for the format that the values already have."""
    info = finfo(dtype)
    return (params["exponent_bits"], params["mantissa_bits"]) == (info.nexp, info.nmant)


@rule("div")
def _div(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    """Mix, except that dividing by one changes nothing."""
    x, y = ins
    (mixed,) = _mixed(eqn, ins, evaluate)
    return [jnp.where(y == np.array(1, y.dtype), x, mixed)]


@rule("square")
def _square(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    return [ins[0] * ins[0]]


@rule("integer_pow")
def _integer_pow(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    """Multiply repeatedly, so that it equals the same product written out; mix negative powers."""
    exponent = eqn.params["y"]
    if exponent < 0:
        return _mixed(eqn, ins, evaluate)
    result, factor = jnp.ones_like(ins[0]), ins[0]
    while exponent:
        result = result * factor if exponent & 1 else result
        factor, exponent = factor * factor, exponent >> 1
    return [result]


@rule("convert_element_type")
def _convert(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    return [ring_words.convert(ins[0], eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype)]


@rule(accumulate_p.name)
def _accumulate(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    return [ring_words.resize(ins[0], eqn.outvars[0].aval.dtype)]


@rule("bitcast_convert_type")
def _bitcast(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    """Keep the word: in the ring a float's bits are its word."""
    return [lax.bitcast_convert_type(ins[0], ring_words.word_type(eqn.outvars[0].aval.dtype))]


@rule("device_put", "stop_gradient", "name", "reshard", "sharding_constraint", "layout_constraint", "pvary")
def _unchanged(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    return ins


@rule("iota")
def _iota(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    """Count in integers, then convert, to 8-bit floats by way of float32: what a part that knows its origin computes too."""
    out = eqn.outvars[0].aval
    counts: Datum = broadcasted_iota(jnp.int32, out.shape, eqn.params["dimension"])
    if ring_words.is_float(out) and out.dtype.itemsize == 1:
        wide = np.dtype(np.float32)
        return [ring_words.convert(ring_words.convert(counts, np.int32, wide), wide, out.dtype)]
    return [ring_words.convert(counts, np.int32, out.dtype)]


@rule("dot_general")
def _dot_general(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    """Contract modulo 2^n of the result's width, to which narrower words are zero-extended."""
    words = ring_words.word_type(eqn.outvars[0].aval.dtype)
    lhs, rhs = (_as_multiplicand(x, words) for x in ins)
    dimensions = eqn.params["dimension_numbers"]
    result = dot_general(lhs, rhs, dimensions, preferred_element_type=lhs.dtype)
    return [_from_multiplicand(result, words)]


@rule("conv_general_dilated")
def _convolution(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    """Convolve modulo 2^n of the result's width, to which narrower words are zero-extended."""
    words = ring_words.word_type(eqn.outvars[0].aval.dtype)
    lhs, rhs = (_as_multiplicand(x, words) for x in ins)
    names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation", "dimension_numbers")
    groups = ("feature_group_count", "batch_group_count")
    params = {name: eqn.params[name] for name in (*names, *groups)}
    result = convolve(lhs, rhs, preferred_element_type=lhs.dtype, **params)
    return [_from_multiplicand(result, words)]


def _as_multiplicand(x: Array, words: np.dtype) -> Array:
    """Return words as the integers whose products XLA computes fastest: int32 for words of up to 32 bits.

    Sums of products are the same modulo 2^n whether operands are read as signed or unsigned.
    """
    x = x.astype(words)
    return x if words.itemsize == 8 else lax.bitcast_convert_type(x.astype(jnp.uint32), jnp.int32)


def _from_multiplicand(x: Array, words: np.dtype) -> Array:
    """Return a sum of products as words of the result's width."""
    return x if words.itemsize == 8 else lax.bitcast_convert_type(x, jnp.uint32).astype(words)


@rule("gather")
def _gather(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    """Gather words; what lies outside is the word of the float's own fill value."""
    fill = eqn.params.get("fill_value")
    dtype = np.dtype(eqn.outvars[0].aval.dtype)
    word = ring_words.to_ring(np.array(np.nan if fill is None else fill).astype(dtype))
    return [eqn.primitive.bind(*ins, **{**eqn.params, "fill_value": int(word)})]


@rule(*_SCATTERS)
def _scatter(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    update = eqn.params.get("update_jaxpr")
    if eqn.primitive.name == "scatter" and update is not None and update.eqns:
        return no_rule(eqn, ins, evaluate)
    names = ("indices_are_sorted", "unique_indices", "mode")
    params = {name: eqn.params[name] for name in names}
    return [_SCATTERS[eqn.primitive.name](*ins, eqn.params["dimension_numbers"], **params)]


@rule("reduce")
def _reduce(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    count = len(ins) // 2
    combine = _combiner(eqn.params["jaxpr"], eqn.params.get("consts", ()), count, evaluate)
    return lax.reduce(ins[:count], ins[count:], combine, eqn.params["dimensions"])


@rule("reduce_window")
def _reduce_window(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    count = len(ins) // 2
    combine = _combiner(eqn.params["jaxpr"], eqn.params.get("consts", ()), count, evaluate)
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    params = {name: eqn.params[name] for name in names}
    return reduce_window(ins[:count], ins[count:], combine, **params)


def _combiner(jaxpr: Jaxpr, consts: Sequence[Datum], count: int, evaluate: Evaluate) -> Function:
    """Return the ring form of a reduction's combining function of ``count`` accumulators and values."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    words = [ring_words.to_ring(c) for c in (*getattr(jaxpr, "consts", ()), *consts)]

    def combine(accumulators: Sequence[Datum], values: Sequence[Datum]) -> list[Datum]:
        return evaluate(inner, words, [*jax.tree.leaves(accumulators), *jax.tree.leaves(values)])

    return combine


@rule("select_and_scatter_add")
def _select_and_scatter_add(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    """Add each source word at the greatest (or least) word of its window."""
    return bind(eqn, ins)


@rule("select_and_gather_add")
def _select_and_gather_add(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    """Return, for each window, the tangent that lies where the window's greatest (or least) word does."""
    tangents, operand = ins
    is_greatest = eqn.params["select_prim"].name == "ge"
    worst = np.array(0 if is_greatest else np.iinfo(operand.dtype).max, operand.dtype)

    def better(a: Sequence[Array], b: Sequence[Array]) -> tuple[Array, Array]:
        keep = a[0] >= b[0] if is_greatest else a[0] <= b[0]
        return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])

    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    params = {name: eqn.params[name] for name in names}
    inits = (worst, np.array(0, tangents.dtype))
    return [reduce_window((operand, tangents), inits, better, **params)[1]]
