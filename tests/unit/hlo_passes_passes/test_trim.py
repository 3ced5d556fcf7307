"""What nobody reads of a value is not computed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from hlo_passes.ir import Module, evaluate_module, verify
from hlo_passes.ops import DotGeneral, Iota, Reduce
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from tests.comparison import assert_same_bits, results

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.integers(-4, 5, shape).astype(np.float32)  # sums in any order have the same bits


def trimmed(function, *args) -> tuple[Module, Module]:
    module = import_stablehlo(jax.jit(function, keep_unused=True).lower(*args).compiler_ir("stablehlo"))
    before = optimize(module, "inline,dce")
    after = optimize(module, "inline,dce,trim,dce")
    verify(after)
    arrays = [jnp.asarray(x) for x in args]
    assert_same_bits(results(before, arrays), results(after, arrays))
    return before, after


def shapes(module: Module, op: type) -> list[tuple[int, ...]]:
    return [i.result.type.shape for i in module.walk() if isinstance(i.op, op)]


X, W, V = normal(4, 8, 6), normal(6, 10), normal(10, 12)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, w, v: (x @ w)[:, -1], [(4, 1, 10)]),
        (lambda x, w, v: (x @ w @ v)[:, :2, 3:6], [(4, 2, 10), (4, 2, 3)]),
        (lambda x, w, v: (x @ w)[1:3, ::3], [(2, 8, 10)]),  # more than half of what is in between
        (lambda x, w, v: (x @ w + 1)[:, 0] + (x @ w)[:, 1], [(4, 1, 10)] * 2),
        (lambda x, w, v: (lambda y: (y[:, 0], y[:, 2]))(x @ w), [(4, 3, 10)]),
        (lambda x, w, v: (lambda y: (y[:, 0], y[:, 7]))(x @ w), [(4, 8, 10)]),
        (lambda x, w, v: (x @ w)[:, :-1], [(4, 8, 10)]),  # 7 of 8
        (lambda x, w, v: (x @ w).transpose(2, 0, 1)[:2], [(4, 8, 2)]),
        (lambda x, w, v: (x @ w).reshape(4, 4, 2, 10)[:1], [(1, 8, 10)]),
        (lambda x, w, v: (x @ w).reshape(32, 10)[:4], [(4, 8, 10)]),  # rows of two dimensions
        (lambda x, w, v: jnp.concatenate([x @ w, x @ w], 1)[:1], [(1, 8, 10)] * 2),
        (lambda x, w, v: lax.pad(x @ w, 0.0, [(0, 0, 0), (1, 0, 0), (0, 0, 0)])[:1, 1:3], [(1, 8, 10)]),
        (
            lambda x, w, v: jnp.einsum("bij,bkj->bik", x @ w, x @ w)[:1, :2],
            [(1, 2, 10), (1, 8, 10), (1, 2, 8)],
        ),
        (lambda x, w, v: (x @ w, (x @ w)[:, 0]), [(4, 8, 10), (4, 1, 10)]),
    ],
)
def test_products_of_what_is_read(function, expected) -> None:
    _, after = trimmed(function, X, W, V)
    assert shapes(after, DotGeneral) == expected


def test_what_a_norm_folds_of_rows_that_are_read() -> None:
    def function(x):
        y = (x - x.max(-1, keepdims=True)) * jnp.exp2(x).sum(-1, keepdims=True)
        return (y + lax.broadcasted_iota(jnp.float32, y.shape, 2))[:, 3:4]

    _, after = trimmed(function, X)
    assert shapes(after, Reduce) == [(4, 1)] * 2
    assert shapes(after, Iota) == [(4, 1, 6)]


def test_bodies_of_loops_are_trimmed_too() -> None:
    def function(x, w):
        return lax.fori_loop(0, 3, lambda i, c: c + (x @ w)[:, 0], jnp.zeros((4, 10)))

    module = import_stablehlo(jax.jit(function).lower(X, W).compiler_ir("stablehlo"))
    after = optimize(module, "inline,dce,trim,dce")
    assert set(shapes(after, DotGeneral)) == {(4, 1, 10)}
    (found,) = evaluate_module(after, jnp.asarray(X), jnp.asarray(W))
    np.testing.assert_array_equal(found, function(X, W))


@given(st.data())
def test_any_chain_of_operations_keeps_every_bit(data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=7))
    cuts = [data.draw(st.tuples(st.integers(0, 7), st.integers(1, 8), st.integers(1, 3))) for _ in range(6)]

    def function(x, w):
        values, count = [x], iter(cuts * 4)
        for step in steps:
            y = values[-1]
            first, size, stride = next(count)
            if step == 0 and y.ndim == 3 and y.shape[-1] == 6:
                y = y @ w[:, :6]
            elif step == 1:
                y = y + values[len(values) // 2].sum() * 2
            elif step == 2 and y.ndim > 1:
                y = y - y.max(-1, keepdims=True)
            elif step == 3 and y.ndim > 1:
                y = jnp.swapaxes(y, 0, 1)
            elif step == 4:
                axis = first % y.ndim
                start = min(first, max(0, y.shape[axis] - 1))
                y = lax.slice_in_dim(y, start, min(y.shape[axis], start + size), stride, axis)
            elif step == 5:
                y = jnp.concatenate([y, y * 2], first % y.ndim)
            elif step == 6:
                y = y.reshape(-1, y.shape[-1]) if size % 2 else y.reshape(y.shape[0], -1)
            elif step == 7:
                y = jnp.pad(y, [(size % 2, first % 2)] + [(0, 0)] * (y.ndim - 1))
            else:
                y = jnp.where(y > 0, y, -y)
            values.append(y)
        return values[-1], values[len(values) // 2]

    trimmed(function, X, W)
