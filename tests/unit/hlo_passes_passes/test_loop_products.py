"""Products of slices leave loops that count their trips, with the values of JAX, and where trips depend on them they stay."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module
from hlo_passes.ops import DotGeneral, Repeat
from hlo_passes.passes import DEFAULT_PIPELINE, optimize
from ipuxla.frontend.importer import import_stablehlo
from tiles.numerics.tolerance import check_close

TARGET = ipuxla.Target.named("gc200").replace(num_tiles=8)
WITHOUT = DEFAULT_PIPELINE.replace("loop-products,", "")
EARLY = DEFAULT_PIPELINE.split(",quotients,")[0]  # before anything is fused
T, B, D, H = 7, 2, 5, 8


def lstm(x, w, u, b):
    zeros = jnp.zeros((x.shape[1], u.shape[0]), x.dtype)

    def step(carry, z):
        h, c = carry
        i, f, g, o = jnp.split(z @ w + h @ u + b, 4, -1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return jnp.sum(lax.scan(step, (zeros, zeros), x)[1].astype(jnp.float32) ** 2)


def gru(x, w, u, b):
    def step(h, z):
        r, s, n, _ = jnp.split(z @ w + b, 4, -1)
        r, s = jax.nn.sigmoid(r + h @ u[:, :H]), jax.nn.sigmoid(s + h @ u[:, H : 2 * H])
        h = (1 - s) * jnp.tanh(n + (r * h) @ u[:, 2 * H : 3 * H]) + s * h
        return h, h

    return jnp.sum(lax.scan(step, jnp.zeros((B, H), x.dtype), x, reverse=True)[1].astype(jnp.float32) ** 2)


def recurrent(x, w, u, b):
    """With outputs by a product of each state."""

    def step(h, z):
        h = jnp.tanh(z @ w[:, :H] + h @ u[:, :H] + b[:H])
        return h, (h @ u[:, H : 2 * H], h)

    return lax.scan(step, jnp.zeros((B, H), x.dtype), x)


def summed(x, w, u, b):
    """Sums of products of slices, and of what is made of these: from a matrix on, of floats of few digits, turned over."""
    y = jnp.sin(x)

    def step(carry, xy):
        a, b, c, d = carry
        x, y = xy
        made = jnp.tanh(x + y)
        return (
            a + x.T @ y,
            b + (made.T @ y + y.T @ x),
            c + jnp.einsum("bi,bj->ji", made, x, preferred_element_type=jnp.float32).astype(c.dtype),
            d + made.sum(0),
        ), None

    start = w[:, :D], u[:D, :D], jnp.zeros((D, D), jnp.float32), b[:D]
    return lax.scan(step, start, (x, y))[0]


def whole(x, w, u, b):
    """Integers: exact."""
    x = (x * 8).astype(jnp.int32)
    return lax.fori_loop(
        0, T, lambda i, s: s + x[i].T @ x[T - 1 - i], jnp.ones((D, D), jnp.int32)
    ), lax.fori_loop(0, T, lambda i, s: s + x[T - 1 - i].T @ x[T - 1 - i], jnp.ones((D, D), jnp.int32))


def batched(x, w, u, b):
    """Members of an ensemble, of which each has its own weights."""
    return jax.vmap(lstm, (None, 0, 0, 0))(x, *(jnp.stack([v, v * 0.5]) for v in (w, u, b))).sum()


FUNCTIONS = {
    "lstm": (jax.grad(lstm, (0, 1, 2, 3)), 2),
    "gru": (jax.grad(gru, (0, 1, 2, 3)), 6),
    "recurrent": (recurrent, 1),
    "its gradient": (jax.grad(lambda *a: sum(y.sum() for y in recurrent(*a)[1]), (0, 1, 2, 3)), 3),
    "sums": (summed, 0),
    "integers": (whole, 1),
    "members": (jax.grad(batched, (0, 1, 2, 3)), 2),
}
"""With how many products loops are left with."""


def arguments(dtype=np.float32):
    random = np.random.default_rng(0)
    shapes = (T, B, D), (D, 4 * H), (H, 4 * H), (4 * H,)
    return [(random.standard_normal(shape) * 0.5).astype(dtype) for shape in shapes]


def products_in_loops(function, passes=EARLY, args=None) -> int:
    """Return how many products there are in loops."""
    args = arguments() if args is None else args
    module = optimize(import_stablehlo(jax.jit(function).lower(*args).compiler_ir("stablehlo")), passes)

    return sum(
        isinstance(each.op, DotGeneral)
        for i in module.walk()
        if isinstance(i.op, Repeat)
        for region in i.regions
        for each in region.walk()
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_of_slices_leave_the_loop(name) -> None:
    function, left = FUNCTIONS[name]
    assert (
        products_in_loops(function) <= left < products_in_loops(function, EARLY.replace("loop-products,", ""))
    )


@pytest.mark.parametrize("engine", ["fast", "literal"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_jax(name, dtype, engine) -> None:
    function, args = FUNCTIONS[name][0], arguments(dtype)
    check_close(ipuxla.jit(function, target=TARGET, engine=engine)(*args), jax.jit(function)(*args), name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_in_the_ring_every_bit_is_as_without(name) -> None:
    function, args = FUNCTIONS[name][0], arguments()
    found, plain = (
        ipuxla.jit(function, target=TARGET, arithmetic="ring", passes=passes)(*args)
        for passes in (DEFAULT_PIPELINE, WITHOUT)
    )
    jax.tree.map(np.testing.assert_array_equal, found, plain)


def read_back(x, w, u, b):
    """The sum is read in the next trip."""
    return lax.fori_loop(0, T, lambda i, s: s + x[i].T @ (x[i] @ s), jnp.eye(D))


def scaled(x, w, u, b):
    return lax.fori_loop(0, T, lambda i, s: s * 0.5 + x[i].T @ x[i], jnp.eye(D))


def kept(x, w, u, b):
    """Every sum on the way is a result."""

    def step(s, z):
        s = s + z.T @ z
        return s, s

    return lax.scan(step, jnp.eye(D), x)


def some(x, w, u, b):
    """Not all slices, or one of them in every trip."""
    return lax.fori_loop(0, T - 2, lambda i, s: s + x[i].T @ x[i + 1], jnp.eye(D)), lax.fori_loop(
        0, T, lambda i, s: s + x[3].T @ x[i // 2], jnp.eye(D)
    )


STAY = {"read back": read_back, "scaled": scaled, "kept": kept, "some": some}


@pytest.mark.parametrize("name", STAY)
def test_products_that_trips_wait_for_stay(name) -> None:
    function, args = STAY[name], arguments()
    assert products_in_loops(function) > 0
    check_close(ipuxla.jit(function, target=TARGET)(*args), jax.jit(function)(*args), name)


def test_halves_are_summed_in_as_many_digits_as_before() -> None:
    """A sum in single precision of products in halves, each below 65,504, all of them above."""
    x = np.full((64, 4, 8), 60.0, np.float16)

    def function(x):
        def step(s, z):
            return s + (z.T @ z).astype(jnp.float32), None

        return lax.scan(step, jnp.zeros((8, 8), jnp.float32), x)[0]

    assert products_in_loops(function, args=[x]) == 0
    module = optimize(import_stablehlo(jax.jit(function).lower(x).compiler_ir("stablehlo")))
    np.testing.assert_allclose(np.asarray(evaluate_module(module, x)[0]), 64 * 4 * 3600.0)


def test_large_products_and_large_stacks_stay() -> None:
    """What a trip computes is kept where that takes little, or no more than what the loop has by trips anyway."""
    of = jax.ShapeDtypeStruct

    def blocks(x, w):
        return lax.map(lambda z: (z @ w).max(-1), x)

    def accumulated(x, w):
        """Gradients of micro-batches: activations of all would take more than the gradient."""

        def loss(w, z):
            return jnp.sum(jnp.tanh(jnp.tanh(z @ w) @ w) ** 2)

        def step(s, z):
            return s + jax.grad(loss)(w, z), None

        return lax.scan(step, jnp.zeros_like(w), x)[0]

    x, w = of((16, 2048, 256), jnp.float32), of((256, 256), jnp.float32)
    assert products_in_loops(blocks, args=[x, w]) == 1
    assert products_in_loops(accumulated, args=[x, w]) == products_in_loops(
        accumulated, EARLY.replace("loop-products,", ""), [x, w]
    )


def compiled(steps: int, batch: int, inputs: int, width: int, passes: str | None = None):
    """Return the gradient of an LSTM over so many steps for a GC200."""
    shapes = (steps, batch, inputs), (inputs, 4 * width), (width, 4 * width), (4 * width,)
    args = [jax.ShapeDtypeStruct(shape, jnp.float16) for shape in shapes]
    return ipuxla.jit(jax.grad(lstm, (0, 1, 2, 3)), target="gc200", passes=passes).lower(*args).compile()


def test_a_recurrent_gradient_takes_a_quarter_less() -> None:
    cycles, without = (
        compiled(40, 32, 256, 512, passes).cost_analysis()["cycles"] for passes in (None, WITHOUT)
    )
    assert cycles <= 0.75 * without


def test_a_program_that_only_fits_without_keeps_its_products_in_the_loop() -> None:
    """What 250 steps would keep takes as much again as what they keep anyway."""
    assert compiled(250, 64, 512, 1024).memory_analysis()["fits"]
