"""Chains of large values in slices: they compute the same, keep what others read, and hold less."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import Builder, Module, TensorType, evaluate_module, verify
from hlo_passes.ops import (
    BroadcastInDim,
    DotDimensionNumbers,
    DotGeneral,
    DynamicUpdateSlice,
    Infeed,
    Multiply,
    Print,
    Repeat,
    TopK,
)
from hlo_passes.passes import Serialize, analyze, optimize
from hlo_passes.passes.chains import held_bytes
from hlo_passes.passes.serialize import MOST_HELD
from ipuxla.frontend.importer import import_stablehlo
from tests.budgets import PROGRAM, budget
from tests.flow import assert_same_words, ring_reference

RNG = np.random.default_rng(11)
FIRST = "inline,dce,join-transposes,recover-networks,fix(canonicalize,fold-constants,windows,cse,dce)"


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def serialized(
    function: Callable[..., object], arrays: Sequence[np.ndarray], memory: int
) -> tuple[Module, Module]:
    """Return the module without and with slices; both compute the same words in the ring, where any order adds alike."""
    module = import_stablehlo(jax.jit(function, keep_unused=True).lower(*arrays).compiler_ir("stablehlo"))
    before = optimize(module, FIRST)
    after = optimize(before, f"{Serialize(memory)},dce")
    verify(after)
    assert_same_words(ring_reference(after, arrays), ring_reference(before, arrays), "in slices")
    found = (map(np.asarray, evaluate_module(each, *map(jnp.asarray, arrays))) for each in (after, before))
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5 + 1e-3 * np.abs(want).max(initial=0))
    return before, after


def loops(module: Module) -> list[Repeat]:
    return [i.op for i in module.walk() if isinstance(i.op, Repeat)]


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v)


def causal(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def gradients(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, ...]:
    return jax.grad(lambda *xs: jnp.sum(causal(*xs) ** 2), (0, 1, 2))(q, k, v)


def distances(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sum(x**2, 1)[:, None] + jnp.sum(y**2, 1)[None] - 2 * x @ y.T


def smoothed(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.exp(-distances(x, y)).mean(1) @ x


def folded_twice(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, -1)).mean(1)


def read_twice(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two folds read the products, so that they are an array."""
    s = x[:, :1] * y[:, 0]
    return jnp.sum(jnp.tanh(s), 1), jnp.sum(s * jnp.abs(s), 1)


def two_stages(x: jax.Array, y: jax.Array) -> jax.Array:
    """A fold along the rows ends the first chain: the largest of all weighs the second."""
    d = distances(x, y)
    return jnp.sum(jnp.tanh(d / jnp.max(d)), 1)


def kept(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    e = jnp.exp(-distances(x, y))
    return e, jnp.sum(e * e, 1)


HEADS = normal(1, 48, 4, 8), normal(1, 48, 4, 8), normal(1, 48, 4, 8)
POINTS = normal(40, 3), normal(120, 3)
CASES = [
    pytest.param(attention, HEADS, 96_000, [4], id="attention, by heads"),
    pytest.param(causal, HEADS, 96_000, [4], id="with a mask"),
    pytest.param(gradients, HEADS, 210_000, [4], id="forward and backward in one loop"),
    pytest.param(
        attention, (normal(1, 61, 1, 8),) * 3, 28_000, [21], id="one head, by queries that 21 do not divide"
    ),
    pytest.param(lambda x, y: lax.top_k(-distances(x, y), 3), POINTS, 20_000, [14], id="neighbours"),
    pytest.param(lambda x, y: jnp.argmin(distances(x, y), 1), POINTS, 16_000, [20], id="the nearest"),
    pytest.param(lambda x, y: jnp.sort(distances(x, y), 1)[:, 5], POINTS, 24_000, [8], id="sorted rows"),
    pytest.param(smoothed, POINTS, 16_000, [8], id="a fold of rows"),
    pytest.param(folded_twice, (normal(40, 6), normal(120, 6)), 20_000, [8], id="folds of folds"),
    pytest.param(read_twice, POINTS, 20_000, [5], id="folds of one product"),
    pytest.param(
        lambda x, y: jnp.argmax(x[:, :1] * y[:, 0], 1), POINTS, 20_000, [10], id="the largest product"
    ),
]


@pytest.mark.parametrize(("function", "arrays", "memory", "expected"), CASES)
def test_chains_become_loops(function, arrays, memory, expected) -> None:
    before, after = serialized(function, arrays, memory)
    assert [loop.count for loop in loops(after)] == expected
    assert analyze(after.entry_computation).peak_bytes < analyze(before.entry_computation).peak_bytes / 2


def test_values_that_leave_room_stay_whole() -> None:
    before, after = serialized(attention, HEADS, 1 << 20)
    assert after is before
    assert optimize(before, "serialize") is before


def test_where_arguments_alone_leave_no_room_all_stays_whole() -> None:
    given = sum(x.nbytes for x in HEADS)
    assert loops(serialized(attention, HEADS, given + 4)[1])
    before, after = serialized(attention, HEADS, given - 4)
    assert after is before


def test_what_is_read_outside_is_put_together() -> None:
    _, after = serialized(kept, POINTS, 24_000)
    for loop in (i for i in after.walk() if isinstance(i.op, Repeat)):
        assert any(isinstance(i.op, DynamicUpdateSlice) for i in loop.regions[0].instructions)


def test_what_a_fold_of_all_of_it_weighs_is_computed_again() -> None:
    """The largest of all is known after one round over the scores, and weighs them in another."""

    def sorted_rows(x: jax.Array, y: jax.Array) -> jax.Array:
        d = distances(x, y)
        return jnp.sort(d / jnp.max(d), 1)[:, 3]

    before, after = serialized(sorted_rows, POINTS, 40_000)
    assert len(loops(after)) >= 1
    assert sum(isinstance(i.op, DotGeneral) for i in before.walk()) == 1
    assert held_bytes(after.entry_computation).most < held_bytes(before.entry_computation).most


def test_what_a_fold_of_all_of_it_needs_stays_whole() -> None:
    _, after = serialized(two_stages, POINTS, 16_000)
    assert not loops(after)


def test_layers_in_functions_and_loops_are_sliced_where_they_are() -> None:
    def network(x, weights):
        def layer(x, w):
            h = (x @ w).reshape(1, 48, 4, 8)
            return x + attention(h, h, h).reshape(48, 32), None

        return lax.scan(layer, x, weights)[0]

    _, after = serialized(network, (normal(48, 32), normal(3, 32, 32) / 6), 50_000)
    inner = [i for i in after.walk() if isinstance(i.op, Repeat) and i.op.count == 4]
    assert len(inner) == 1


def test_scores_are_computed_again_for_the_backward_pass_where_keeping_them_takes_too_much() -> None:
    def loss(x, a, b):
        for w, u in ((a, b), (b, a)):
            h = (x @ w).reshape(1, 48, 4, 8)
            x = x + jnp.tanh(attention(h, h, h).reshape(48, 32) @ u)
        return jnp.sum(x**2)

    arrays = normal(48, 32), normal(32, 32) / 6, normal(32, 32) / 6
    before, after = serialized(jax.grad(loss, (0, 1, 2)), arrays, 330_000)
    # some layer's backward pass, and its forward pass since nobody keeps its scores
    assert len(loops(after)) in (1, 2)
    products = [sum(isinstance(i.op, DotGeneral) for i in module.walk()) for module in (before, after)]
    assert products[0] < products[1] <= products[0] + 2
    assert (
        held_bytes(after.entry_computation).most
        <= 330_000 * MOST_HELD
        < held_bytes(before.entry_computation).most
    )
    _, smaller = serialized(jax.grad(loss, (0, 1, 2)), arrays, 120_000)
    assert len(loops(smaller)) > len(loops(after))


def test_prints_stay_in_order() -> None:
    """The first one waits for a slice of every row; the second waits for the first."""

    def function(x, y):
        weights = jnp.exp(-distances(x, y))
        total = jnp.sum(weights, 1)
        jax.debug.print("first {}", total[0])
        jax.debug.print("second {}", x[0, 0])
        return total, jnp.max(jnp.tanh(weights), 1)

    module = optimize(ipuxla.jit(function).lower(*POINTS)._pipeline.module, FIRST)
    after = optimize(module, f"{Serialize(24_000)},dce")
    assert loops(after)
    for each in (module, after):
        shown = [i.op.message for i in each.entry_computation.instructions if isinstance(i.op, Print)]
        assert ["first" in one for one in shown] == [True, False]


def test_what_waits_for_an_effect_is_read_by_no_slice() -> None:
    """What is received after what a slice sends cannot be there while slices are computed."""
    builder = Builder("main")
    x, y = (builder.parameter(TensorType(shape, "f32")) for shape in ((40, 3), (120, 3)))
    numbers = DotDimensionNumbers(lhs_contracting=(1,), rhs_contracting=(1,))
    scores = builder.add(DotGeneral(numbers, "f32"), x, y)
    first, _ = builder.add(TopK(1, 1), scores)
    builder.emit(Print("first"), first)
    weights = builder.add(Infeed((TensorType((120,), "f32"),)))
    wide = builder.add(BroadcastInDim((40, 120), (1,)), weights)
    second, _ = builder.add(TopK(2, 1), builder.add(Multiply(), scores, wide))
    module = Module("jit_main", (builder.build(first, second),), "main")
    verify(module)
    after = optimize(module, f"{Serialize(24_000)},dce")
    verify(after)
    assert loops(after)
    assert [type(i.op) for i in after.entry_computation.instructions if i.has_effect] == [Print, Infeed]


STEPS: list[Callable[..., jax.Array]] = [
    lambda s, a, b: jax.nn.softmax(s, -1),
    lambda s, a, b: s - jnp.max(s, -1, keepdims=True),
    lambda s, a, b: jnp.where(s > 0, s, 0.5 * s),
    lambda s, a, b: s * jnp.sum(a, -1)[:, :, None],
    lambda s, a, b: s + jnp.sum(b, -1)[:, None, :],
    lambda s, a, b: jax.nn.gelu(s),
    lambda s, a, b: s + s.transpose(0, 2, 1) if s.shape[1] == s.shape[2] else s,
    lambda s, a, b: s - jnp.mean(s, -2, keepdims=True),
    lambda s, a, b: jnp.sort(s, -1),
    lambda s, a, b: s.reshape(s.shape[0] * s.shape[1], s.shape[2]).reshape(s.shape),
    lambda s, a, b: jnp.cumsum(s, -1),
    lambda s, a, b: s + jnp.arange(s.shape[1], dtype=s.dtype)[:, None],
    lambda s, a, b: s * (jnp.sum(s) > 0),
    lambda s, a, b: jnp.where(jnp.arange(s.shape[1])[:, None] >= jnp.arange(s.shape[2]), s, 0.0),
]
ENDS: list[Callable[..., object]] = [
    lambda s, a, b: jnp.einsum("bts,bsc->btc", s, b),
    lambda s, a, b: jnp.einsum("bts,btc->bsc", s, a),
    lambda s, a, b: (jnp.sum(s, -1), jnp.sum(s, -2)),
    lambda s, a, b: jnp.argmax(s, -1),
    lambda s, a, b: lax.top_k(s, 2),
    lambda s, a, b: (s[:, 0], jnp.sum(s)),
    lambda s, a, b: s,
]


@budget(PROGRAM)
@example((1, 2, 2), [STEPS[0], STEPS[0]], [ENDS[2]], 0.2, True)  # a broadcast that only the loop before reads
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(2, 13), st.integers(2, 13)),
    steps=st.lists(st.sampled_from(STEPS), max_size=4),
    ends=st.lists(st.sampled_from(ENDS), min_size=1, max_size=2),
    share=st.sampled_from((0.2, 0.5, 1.0, 2.0, 4.0)),
    backward=st.booleans(),
)
def test_any_chain_computes_the_same(sizes, steps, ends, share, backward) -> None:
    batch, rows, columns = sizes

    def function(a, b):
        s = jnp.einsum("btc,bsc->bts", a, b)
        for step in steps:
            s = step(s, a, b)
        return jax.tree.leaves([end(s, a, b) for end in ends])

    def gradient(a, b):
        def total(a, b):
            return sum(jnp.sum(jnp.sin(x)) for x in function(a, b) if jnp.issubdtype(x.dtype, jnp.floating))

        return jax.grad(lambda a, b: total(a, b) + jnp.sum(a), (0, 1))(a, b)

    arrays = normal(batch, rows, 3), normal(batch, columns, 3)
    serialized(gradient if backward else function, arrays, max(64, int(share * batch * rows * columns * 4)))
