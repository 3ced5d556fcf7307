"""Random programs: their ring form is the same op by op, fused and batched, and every input word matters."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from tests.budgets import PLAN, budget
from tiles.numerics.accumulate import accumulate
from tiles.numerics.ring import ring

UNARY = {
    "exp": jnp.exp,
    "tanh": jnp.tanh,
    "neg": jnp.negative,
    "square": jnp.square,
    "cube": lambda x: x**3,
    "half": lambda x: x * 0.5,
    "shift": lambda x: x + 0.125,
    "rotate": lambda x: jnp.roll(x, 1),
    "reverse": lambda x: x[::-1],
    "total": lambda x: x + x.sum(),
    "centre": lambda x: x - x.max(),
    "running": jnp.cumsum,
    "narrow": lambda x: x.astype(jnp.bfloat16).astype(x.dtype),
    "wide": lambda x: accumulate(accumulate(x, "float32") * 3, x.dtype),
    "nested": jax.jit(lambda x: jax.nn.sigmoid(x) * x),
    "loop": lambda x: lax.fori_loop(0, 3, lambda i, c: c * x + 0.5, x),
}
BINARY = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": jnp.divide,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "choose": lambda x, y: jnp.where(x < y, x, y * 0.25),
    "outer": lambda x, y: jnp.outer(x, y) @ y,
}

SUM = {b: jax.jit(ring(lambda v: lax.reduce_sum(v, (0,)), [f"float{b}"])) for b in (16, 32)}
SQUARE = {b: jax.jit(ring(lambda v: lax.dot(v, v), [f"float{b}"])) for b in (16, 32)}

steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(sorted(UNARY)), st.integers(0, 7), st.just(None)),
        st.tuples(st.sampled_from(sorted(BINARY)), st.integers(0, 7), st.integers(0, 7)),
    ),
    min_size=1,
    max_size=7,
)


def _program(recipe):
    """Return a function of a vector: each step appends a value computed from values before it."""

    def function(x):
        values = [x, x * 1.5]
        for name, left, right in recipe:
            a = values[left % len(values)]
            values.append(UNARY[name](a) if right is None else BINARY[name](a, values[right % len(values)]))
        return values

    return function


@given(steps, st.sampled_from(["float32", "float16", "bfloat16"]), st.integers(0, 2**32 - 1))
def test_evaluation_style_never_changes_a_bit(recipe, dtype, seed):
    x = jnp.asarray(np.random.default_rng(seed).standard_normal((2, 5)), dtype)
    function = ring(_program(recipe))
    by_row = [function(row) for row in x]
    fused = jax.jit(jax.vmap(function))(x)
    batched = ring(jax.vmap(_program(recipe)))(x)
    for index, (a, b) in enumerate(zip(fused, batched, strict=True)):
        want = np.stack([np.asarray(row[index]) for row in by_row])
        np.testing.assert_array_equal(np.asarray(a), want)
        np.testing.assert_array_equal(np.asarray(b), want)


@budget(PLAN)
@given(
    st.lists(st.integers(0, 3), min_size=24, max_size=24),
    st.integers(0, 2**32 - 1),
    st.sampled_from([16, 32]),
)
def test_no_order_of_summation_changes_a_sum_or_a_dot(owners, seed, bits):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**bits, 24).astype(f"uint{bits}")
    shuffled = words[rng.permutation(24)]
    for whole in (SUM[bits], SQUARE[bits]):
        parts = [int(whole(jnp.asarray(np.where(np.array(owners) == p, shuffled, 0)))) for p in range(4)]
        assert sum(parts) % 2**bits == int(whole(jnp.asarray(words)))


@budget(PLAN)
@given(st.integers(0, 11), st.integers(0, 2**32 - 1))
def test_any_changed_word_changes_a_normalised_layer(place, seed):
    rng = np.random.default_rng(seed)
    x, w = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((12,), (12, 6)))

    def layer(v):
        h = jax.nn.relu((v - v.mean()) * lax.rsqrt(v.var() + 1e-5) @ w * 0.5)
        return jax.nn.softmax(h * 0.25)

    changed = x.at[place].set(x[place] + 1)
    assert (np.asarray(ring(layer)(x)) != np.asarray(ring(layer)(changed))).all()
