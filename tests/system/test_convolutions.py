"""Convolutions, pooling, their gradients: engines against ``jax.jit``, every bit under ring arithmetic."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.experiments.models import MODELS
from ipuxla.testing import check_engines
from tiles.numerics.tolerance import check_close
from tiles.target import Target

NHWC = ("NHWC", "HWIO", "NHWC")


def _normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _with_gradients(f, *args):
    """Return values and the gradients of a weighted sum of them."""

    def both(*args):
        weights = jnp.asarray(_normal(*jax.eval_shape(f, *args).shape, seed=9))
        return f(*args), jax.grad(lambda a: jnp.vdot(f(*a), weights))(args)

    return both


def _check(f, *args, target, engines, exact_only=()):
    """Compare engines with ``jax.jit``, and in the ring (some only there) with the module on every bit."""
    lowered = ipuxla.jit(f, target=target).lower(*args)
    expected = jax.jit(f)(*args)
    words = lowered.compile(engine="hlo", arithmetic="ring")(*args)
    for engine in (*engines, *exact_only):
        if engine in engines:
            check_close(lowered.compile(engine=engine)(*args), expected)
        found = lowered.compile(engine=engine, arithmetic="ring")(*args)
        jax.tree.map(np.testing.assert_array_equal, found, words)


def _conv(x, w, stride=(1, 1), pad: Any = "SAME", **options):
    return lax.conv_general_dilated(x, w, stride, pad, dimension_numbers=NHWC, **options)


CONVOLUTIONS = {
    "strided": ((2, 7, 6, 3), (3, 2, 3, 4), {"stride": (2, 2)}),
    "single tap, strided": ((2, 6, 6, 3), (1, 1, 3, 4), {"stride": (2, 2)}),
    "spread kernel": ((1, 8, 7, 2), (3, 2, 2, 3), {"rhs_dilation": (2, 1), "pad": "VALID"}),
    "grouped": ((2, 5, 5, 4), (3, 3, 2, 6), {"feature_group_count": 2}),
    "depthwise, strided": ((1, 6, 6, 4), (3, 3, 1, 4), {"feature_group_count": 4, "stride": (2, 1)}),
}


def test_depthwise_halves_with_strides_and_their_gradients():
    """Thirty-two channels, in blocks that vertices take at once; a phase of the gradient has a single tap."""

    def both(x, w, ct):
        y, pull = jax.vjp(functools.partial(_conv, stride=(2, 2), feature_group_count=32), x, w)
        return y, pull(ct)

    x, w, ct = _normal(1, 8, 8, 32), _normal(3, 3, 1, 32, seed=1), _normal(1, 4, 4, 32, seed=2)
    check_engines(
        both, Target.named("gc200").replace(num_tiles=24), *(a.astype(np.float16) for a in (x, w, ct))
    )


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_and_their_gradients(case, small_target):
    x_shape, w_shape, options = CONVOLUTIONS[case]
    f = _with_gradients(functools.partial(_conv, **options))
    _check(f, _normal(*x_shape), _normal(*w_shape, seed=1), target=small_target, engines=("fast", "literal"))


@pytest.mark.parametrize("groups", [(1, 1), (2, 1), (1, 2)])
def test_without_spatial_dimensions(groups, small_target):
    """A product of matrices written as a convolution, as some libraries write dense layers."""
    feature_groups, batch_groups = groups
    numbers = lax.ConvDimensionNumbers((0, 1), (1, 0), (1, 0))

    def f(x, w):
        return lax.conv_general_dilated(x, w, (), (), (), (), numbers, feature_groups, batch_groups)

    x, w = _normal(4, 3 * feature_groups), _normal(3, 2 * feature_groups * batch_groups, seed=1)
    _check(_with_gradients(f), x, w, target=small_target, engines=("fast", "literal"))


def test_a_spread_array_is_convolved_phase_by_phase(small_target):
    f = functools.partial(_conv, pad=((1, 2), (1, 0)), lhs_dilation=(2, 2), stride=(1, 2))
    _check(f, _normal(1, 4, 5, 2), _normal(3, 3, 2, 3), target=small_target, engines=("fast", "vertex"))


def test_the_gradient_of_a_transposed_kernel_goes_to_as_many_tiles_as_the_convolution(gc200):
    """Its windows are as long as the image: phases cut them between tiles, one vertex of all phases would keep them."""

    def widened(x, w):
        return lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=NHWC)

    x, w = _normal(4, 32, 32, 32), _normal(2, 2, 32, 32)
    gradient = jax.grad(lambda w, x: (widened(x, w) ** 2).sum())
    forward, backward = (
        ipuxla.jit(f, target=gc200).lower(*args).compile().cost_analysis()["cycles"]
        for f, args in ((widened, (x, w)), (gradient, (w, x)))
    )
    assert backward < 10 * forward  # three passes over as much data, and their sums


FILTERS = {
    "signal": ((2, 1, 700), (1, 1, 31), 1),
    "images": ((3, 1, 41, 33), (1, 1, 5, 5), 1),
    "of each color": ((2, 3, 24, 40), (3, 1, 5, 5), 3),
}


def _filtered(groups, x, kernel):
    spatial = "HW"[2 - (x.ndim - 2) :]
    numbers = (f"NC{spatial}", f"OI{spatial}", f"NC{spatial}")
    return lax.conv_general_dilated(
        x, kernel, (1,) * len(spatial), "SAME", dimension_numbers=numbers, feature_group_count=groups
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", FILTERS)
def test_filters_of_one_channel(name, dtype, small_target):
    """Long kernels of one channel, which the product units take for several outputs at once."""
    *shapes, groups = FILTERS[name]
    x, kernel = (_normal(*shape, seed=n).astype(dtype) for n, shape in enumerate(shapes))
    check_engines(functools.partial(_filtered, groups), small_target, x, kernel, engines=("fast", "literal"))


def test_what_is_not_finite_stays_in_its_windows(small_target):
    x, kernel = _normal(1, 1, 700), _normal(1, 1, 31, seed=1)
    x[0, 0, 300], x[0, 0, 500] = np.inf, np.nan
    filtered = functools.partial(_filtered, 1)
    want = np.asarray(jax.jit(filtered)(x, kernel))
    assert (~np.isfinite(want)).sum() == 62
    check_close(ipuxla.jit(filtered, target=small_target)(x, kernel), want, "engine fast")


@pytest.mark.parametrize(
    ("shapes", "most"),
    [
        (((1, 1, 1 << 20), (1, 1, 31)), 11_500),  # 120,333 by dot products
        (((8, 1, 256, 256), (1, 1, 5, 5)), 15_000),  # 29,846
        (((8, 1, 256, 256), (1, 1, 11, 11)), 28_000),  # 101,818
    ],
    ids=["signal", "images", "images, 11 x 11"],
)
def test_filters_of_one_channel_take_few_cycles(shapes, most, gc200):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    filtered = functools.partial(_filtered, shapes[0][1])
    lowered = ipuxla.jit(filtered, target=gc200).lower(*arguments)
    assert lowered.compile().cost_analysis()["cycles"] < most


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
def test_other_element_types(dtype, small_target):
    x, w = (jnp.asarray(_normal(*s) * 4).astype(dtype) for s in ((1, 5, 5, 3), (3, 3, 3, 2)))
    _check(_conv, x, w, target=small_target, engines=("fast", "literal"))


def _pool(x, start, fold, window, stride, pad):
    return lax.reduce_window(x, start, fold, (1, *window, 1), (1, *stride, 1), pad)


POOLS = {
    "maximum": (-np.inf, lax.max, (2, 2), (2, 2), "VALID"),
    "overlapping maximum": (-np.inf, lax.max, (3, 3), (2, 2), "SAME"),
    "minimum": (np.inf, lax.min, (2, 1), (1, 2), "SAME"),
    "average": (0.0, lax.add, (3, 2), (2, 2), "SAME"),
}


@pytest.mark.parametrize("case", POOLS)
def test_pooling_and_its_gradient_with_ties(case, small_target):
    f = _with_gradients(lambda x: _pool(x, *POOLS[case]))
    x = np.round(_normal(2, 7, 6, 3) * 2)
    _check(f, x, target=small_target, engines=("fast", "literal"))


def test_an_initial_value_that_is_not_neutral(small_target):
    f = functools.partial(_pool, start=0.5, fold=lax.max, window=(2, 2), stride=(1, 1), pad="SAME")
    _check(f, _normal(1, 4, 4, 2), target=small_target, engines=("fast",))


@functools.cache
def _network():
    """Return the loss and gradients of a small convolutional network, and its arguments."""
    model = MODELS["cnn"]
    params = model.init(jax.random.key(0), (64, 8, 10))
    rng = np.random.default_rng(0)
    return (
        jax.value_and_grad(model.loss),
        params,
        rng.random((4, 64), np.float32),
        np.arange(4, dtype=np.int32),
    )


def test_a_convolutional_network_trains_alike_on_every_engine(small_target):
    step, *args = _network()
    _check(step, *args, target=small_target, engines=("fast", "literal"), exact_only=("vertex",))


def test_a_convolutional_network_on_all_tiles(gc200):
    step, *args = _network()
    _check(step, *args, target=gc200, engines=("fast",))


def test_a_layer_moves_every_word_on_all_tiles(gc200):
    def layer(x, w):
        return _pool(_conv(x, w), *POOLS["maximum"])

    f = _with_gradients(layer)
    _check(f, _normal(4, 8, 8, 3), _normal(3, 3, 3, 16), target=gc200, engines=(), exact_only=("literal",))


def test_a_window_s_region_may_loop(small_target):
    """XLA:CPU aborts on a loop in a region, so the witness is the maximum that this one amounts to."""

    def largest(x):
        def later(a, b):
            return lax.fori_loop(0, 3, lambda _, c: lax.max(c, b), a)

        return lax.reduce_window(x, np.float32(0), later, (2,), (1,), "VALID")

    x = _normal(9)
    want = np.maximum(np.maximum(x[:-1], x[1:]), 0)
    np.testing.assert_array_equal(ipuxla.jit(largest, target=small_target)(x), want)
