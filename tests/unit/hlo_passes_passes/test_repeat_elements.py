"""Windows that have one element each repeat it: gradients of averages over windows that do not overlap, and over all."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module
from hlo_passes.ops import ReduceWindow
from hlo_passes.passes import DEFAULT_PIPELINE, optimize
from ipuxla.frontend.importer import import_stablehlo


def averaged(x, window, strides, padding="VALID"):
    zero = np.zeros((), x.dtype)[()]
    total = lax.reduce_window(x, zero, lax.add, (1, *window, 1), (1, *strides, 1), padding)
    return total / np.prod(window).astype(x.dtype)


def gradient(window, strides, padding="VALID"):
    return lambda x, c: jax.vjp(lambda x: averaged(x, window, strides, padding), x)[1](c)[0]


def arguments(shape, window, strides, padding="VALID"):
    random = np.random.default_rng(0)
    x = random.standard_normal((2, *shape, 3)).astype(np.float32)
    result = jax.eval_shape(lambda x: averaged(x, window, strides, padding), x)
    return x, random.standard_normal(result.shape).astype(np.float32)


def module_of(function, *args):
    return optimize(
        import_stablehlo(jax.jit(function, keep_unused=True).lower(*args).compiler_ir("stablehlo"))
    )


@given(st.data())
def test_gradients_are_those_of_jax(data) -> None:
    window = data.draw(st.tuples(*[st.integers(1, 4)] * 2))
    strides = data.draw(st.just(window) | st.tuples(*[st.integers(1, 4)] * 2))
    shape = tuple(w + data.draw(st.integers(0, 7)) for w in window)
    padding = data.draw(st.sampled_from(["VALID", "SAME"]))
    function, args = gradient(window, strides, padding), arguments(shape, window, strides, padding)
    (found,) = evaluate_module(module_of(function, *args), *args)
    np.testing.assert_allclose(np.asarray(found), jax.jit(function)(*args), rtol=1e-5, atol=1e-6)


EACH = pytest.mark.parametrize(
    ("shape", "window"), [((7, 7), (7, 7)), ((8, 8), (2, 2)), ((9, 11), (2, 3)), ((6, 5), (6, 1))], ids=str
)


@EACH
def test_no_windows_are_left(shape, window) -> None:
    module = module_of(gradient(window, window), *arguments(shape, window, window))
    assert not any(isinstance(i.op, ReduceWindow) for i in module.walk())


@EACH
def test_in_the_ring_every_bit_is_as_without(shape, window) -> None:
    function, args = gradient(window, window), arguments(shape, window, window)
    target = ipuxla.Target.named("gc200").replace(num_tiles=8)
    found, plain = (
        ipuxla.jit(function, target=target, arithmetic="ring", passes=passes)(*args)
        for passes in (DEFAULT_PIPELINE, DEFAULT_PIPELINE.replace("repeat-elements,", ""))
    )
    np.testing.assert_array_equal(found, plain)


def test_windows_that_overlap_stay() -> None:
    module = module_of(gradient((3, 3), (2, 2)), *arguments((9, 9), (3, 3), (2, 2)))
    assert any(isinstance(i.op, ReduceWindow) for i in module.walk())


@pytest.mark.parametrize(
    ("shape", "window"), [((16, 7, 7, 512), (7, 7)), ((32, 56, 56, 64), (2, 2))], ids=str
)
def test_a_gradient_costs_less_than_the_average(shape, window) -> None:
    """As sums of windows of zeros it cost four to thirty times as much."""
    x = jax.ShapeDtypeStruct(shape, jnp.float16)
    result = jax.eval_shape(lambda x: averaged(x, window, window), x)
    there, back = (
        ipuxla.jit(function, target="gc200").lower(*args).compile().cost_analysis()["cycles"]
        for function, args in (
            (lambda x: averaged(x, window, window), (x,)),
            (gradient(window, window), (x, result)),
        )
    )
    assert back <= there
