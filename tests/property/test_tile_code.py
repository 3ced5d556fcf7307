"""Random expressions compiled to tile code: the simulator computes what JAX does, in the slots that the cost states."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tiles.elements_running import compiled, simulate
from tiles.elements import Access, Arrangement, named
from tiles.elements.cell import CELL, ELEMENT

MK2 = named("mk2")
MOST = 70
BINARY = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "pick": lambda a, b: jnp.where(a > b, b, a * 2),
    "mask": lambda a, b: (a <= b).astype(a.dtype),
}
UNARY = {
    "neg": jnp.negative,
    "abs": jnp.abs,
    "half": lambda a: a.astype("float16"),
    "float": lambda a: a.astype("float32"),
    "int": lambda a: jnp.clip(a, -99, 99).astype("int32"),
    "positive": lambda a: jnp.where(a > 0, a, 1),
}


def evaluate(tree, operands):
    """Return an expression's value; operands of two types meet as JAX promotes them."""
    if isinstance(tree, int):
        return operands[tree % len(operands)]
    name, *arguments = tree
    return {**BINARY, **UNARY}[name](*(evaluate(a, operands) for a in arguments))


def grown(trees):
    """Return larger expressions of smaller ones."""
    one = st.tuples(st.sampled_from(sorted(UNARY)), trees)
    return st.one_of(one, st.tuples(st.sampled_from(sorted(BINARY)), trees, trees))


TREES = grown(st.recursive(st.integers(0, 2), grown, max_leaves=5))


@given(data=st.data(), tree=TREES, n=st.integers(1, MOST))
def test_expressions(data, tree, n) -> None:
    dtypes = data.draw(st.lists(st.sampled_from(["float32", "float16", "int32"]), min_size=1, max_size=3))
    levels = data.draw(
        st.lists(st.sampled_from([ELEMENT, ELEMENT, CELL]), min_size=len(dtypes), max_size=len(dtypes))
    )
    levels[0] = ELEMENT
    alignment = data.draw(st.sampled_from([8, 4]))
    is_separate = data.draw(st.booleans())

    def f(*operands):
        value = evaluate(tree, operands)
        return value + operands[0].astype(value.dtype)  # a result for every element

    result = jax.eval_shape(f, *(jax.ShapeDtypeStruct((), d) for d in dtypes))
    how = Arrangement(
        tuple(Access(level, alignment) for level in levels), (Access(ELEMENT, alignment),), is_separate
    )
    code = compiled(f, dtypes, MK2, how)
    rng = np.random.default_rng(n)
    whole = [
        rng.integers(-9, 9, (1, MOST if level else 1)).astype(d) * np.asarray(1 if d == "int32" else 0.37, d)
        for d, level in zip(dtypes, levels, strict=True)
    ]
    with jax.disable_jit():
        wanted = np.asarray(f(*(jnp.asarray(x) for x in whole)))[:, :n]
    operands = [x[:, :n] if level else x for x, level in zip(whole, levels, strict=True)]
    (got,), _ = simulate(code, operands, [result.dtype.name], MK2, how, alignment, 1 << 14)
    np.testing.assert_array_equal(got, wanted)


INTEGER = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "and": jnp.bitwise_and,
    "rem": lambda a, b: jax.lax.rem(a, jnp.asarray(5, a.dtype)),
    "div": lambda a, b: jax.lax.div(a, jnp.asarray(3, a.dtype)),
    "pick": lambda a, b: jnp.where(a > b, b, a),
    "wrap": lambda a, b: jnp.where(a < 0, a + jnp.asarray(7, a.dtype), a),
    "int32": lambda a, b: a.astype("int32"),
    "uint32": lambda a, b: a.astype("uint32"),
}
STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(INTEGER)), st.integers(0, 20), st.integers(0, 20)),
    min_size=1,
    max_size=8,
)


@given(data=st.data(), steps=STEPS, n=st.integers(1, MOST))
def test_several_results(data, steps, n) -> None:
    """Results that others are made of, in another type, once for all elements or for each."""
    dtypes = data.draw(st.lists(st.sampled_from(["int32", "uint32"]), min_size=1, max_size=2))
    levels = data.draw(st.tuples(*[st.sampled_from([ELEMENT, CELL, CELL])] * len(dtypes)))
    kept = data.draw(st.lists(st.integers(0, len(steps) - 1), min_size=1, max_size=4, unique=True))

    def f(*operands):
        values = list(operands)
        for name, first, second in steps:
            a = values[first % len(values)]
            values.append(INTEGER[name](a, values[second % len(values)].astype(a.dtype)))
        return [values[len(operands) + k] for k in kept]

    results = [x.dtype.name for x in jax.eval_shape(f, *(jax.ShapeDtypeStruct((), d) for d in dtypes))]
    how = Arrangement(
        tuple(Access(level, 4) for level in levels), tuple(Access(ELEMENT, 8) for _ in results), is_short=True
    )
    code = compiled(f, dtypes, MK2, how)
    rng = np.random.default_rng(n)
    operands = [
        rng.integers(-99 if d == "int32" else 0, 99, (1, n if level else 1)).astype(d)
        for d, level in zip(dtypes, levels, strict=True)
    ]
    with jax.disable_jit():
        wanted = [np.broadcast_to(x, (1, n)) for x in f(*map(jnp.asarray, operands))]
    got, _ = simulate(code, operands, results, MK2, how, 0, 1 << 14, n)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
