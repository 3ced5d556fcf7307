"""Runs of instructions that repeat become one function."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_passes.ir import Module, evaluate_module, verify
from hlo_passes.ops import Call
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from tests.comparison import assert_same_bits, results

PASSES = "inline,dce,outline-repeats{min-ops=4},dce"


def outlined(function, *args, passes: str = PASSES) -> tuple[Module, Module]:
    """Return a function's module before and after outlining."""
    module = import_stablehlo(jax.jit(function, keep_unused=True).lower(*args).compiler_ir("stablehlo"))
    after = optimize(module, passes)
    verify(after)
    return optimize(module, "inline,dce"), after


def calls(module: Module) -> list[int]:
    """Return how often each computation is called, most often first."""
    return sorted(
        Counter(i.op.callee for i in module.walk() if isinstance(i.op, Call)).values(), reverse=True
    )


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_layers_become_one_function() -> None:
    def f(x, weights):
        for w in weights:
            x = jnp.tanh(x @ w) + x * 2.0
        return x

    args = normal(3, 5), [normal(5, 5) * n for n in range(1, 7)]
    before, after = outlined(f, *args)
    assert calls(after) == [6]
    leaves = jax.tree.leaves(args)
    assert_same_bits(results(before, leaves), results(after, leaves))


def test_forward_and_backward_bodies_are_one_function_each() -> None:
    """The updates wait for none of each other, so that they stay as they are."""

    def f(x, weights):
        def loss(weights):
            y = x
            for w in weights:
                y = jnp.tanh(y @ w) + y
            return (y * y).sum()

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    args = normal(3, 5), [normal(5, 5) * n for n in range(1, 9)]
    before, after = outlined(f, *args)
    assert calls(after) == [8, 7]  # the first layer needs no gradient of its input
    leaves = jax.tree.leaves(args)
    assert_same_bits(results(before, leaves), results(after, leaves))


def heads(x, weights, mixed=lambda made, head: [*made, head], made=()):
    """Return what rounds that wait for none of each other make of ``x``."""
    for w in weights:
        made = mixed(made, jnp.tanh(jnp.exp(x @ w) @ w.T) * (x @ w).sum())
    return made


@pytest.mark.parametrize(
    ("mixed", "made", "count", "expected"),
    [
        (lambda made, head: [*made, head], (), 8, []),
        (lambda made, head: made + head, 0.0, 8, []),  # one sum in a round waits for the round before
        (lambda made, head: jnp.tanh(made @ head.T @ head) * head.sum(), 1.0, 8, [8]),
        (lambda made, head: made + head, 0.0, 640, [640]),  # too many to be planned one by one
    ],
)
def test_rounds_that_may_run_side_by_side_stay(mixed, made, count, expected) -> None:
    def f(x, weights):
        return heads(x, weights, mixed, made * jnp.ones((3, 5)) if isinstance(made, float) else made)

    args = normal(3, 5), [normal(5, 5) / n for n in range(1, count + 1)]
    before, after = outlined(f, *args)
    assert calls(after) == expected
    leaves = jax.tree.leaves(args)
    assert_same_bits(results(before, leaves), results(after, leaves))


def test_a_layer_with_another_constant_is_not_merged() -> None:
    def f(x, weights):
        for n, w in enumerate(weights):
            x = jnp.tanh(x @ w) + x * (3.0 if n == 2 else 2.0)
        return x

    _, after = outlined(f, normal(3, 5), [normal(5, 5)] * 3)
    assert calls(after) == [2]
    everything = outlined(f, normal(3, 5), [normal(5, 5)] * 8, passes=f"{PASSES},outline,dce")[1]
    assert calls(everything) == [7]  # two before it and five after it: outline sees that they are equal


def test_the_same_operations_wired_otherwise_are_not_merged() -> None:
    def f(x, y):
        for n in range(4):
            a, b = jnp.sin(x), jnp.cos(y)
            c, d = a + b, a * b
            x, y = (c, d) if n % 2 else (d, c)
        return x, y

    args = normal(3, 5), normal(3, 5) + 1
    before, after = outlined(f, *args)
    assert_same_bits(results(before, args), results(after, args))


def test_values_read_later_are_returned_once_and_broadcasts_are_made_again() -> None:
    def f(x):
        kept = []
        for _ in range(5):
            row = jnp.sin(x).sum(1, keepdims=True)
            kept.append(jnp.broadcast_to(row, x.shape))
            x = jnp.tanh(x - kept[-1])
        return x, sum(kept)

    before, after = outlined(f, normal(4, 6))
    assert calls(after) == [5]
    (body,) = (c for c in after.computations if c.name != after.entry)
    assert all(v.type.size <= 4 or v.type.shape == (4, 6) for v in body.results)
    assert sum(v.type.shape == (4, 6) for v in body.results) == 1
    args = (normal(4, 6),)
    assert_same_bits(results(before, args), results(after, args))


def test_layers_inside_a_loop_body_are_outlined() -> None:
    def f(x, weights):
        def body(_, x):
            for w in weights:
                x = jnp.tanh(x @ w) * x + x
            return x

        return lax.fori_loop(0, 3, body, x)

    args = normal(3, 5), [normal(5, 5) * n for n in range(1, 7)]
    _, after = outlined(f, *args)
    assert calls(after) == [6]
    got = evaluate_module(after, *jax.tree.leaves(args))
    np.testing.assert_allclose(np.asarray(got[0]), np.asarray(jax.jit(f)(*args)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2])
def test_short_runs_and_single_rounds_stay(count: int) -> None:
    def f(x, weights):
        for w in weights:
            x = jnp.tanh(x @ w)
        return x

    before, after = outlined(f, normal(3, 5), [normal(5, 5)] * count, passes="inline,dce,outline-repeats,dce")
    assert len(after.computations) == 1
    assert len(before.entry_computation.instructions) == len(after.entry_computation.instructions)
