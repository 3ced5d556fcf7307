"""The pass ``windows``: what it leaves of windows, and that the rewritten module means the same."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_passes.ir import evaluate_module
from hlo_passes.ops import Reduce, ReduceWindow, Scan, SelectAndScatter
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from tests.conformance.conftest import reference
from tests.flow import optimized_module

NO_POSITION = (np.float32(-np.inf), np.int32(-1))


def argmax(a, b):
    """Return the greater of two (value, position), the earlier one of equals."""
    keep = a[0] >= b[0]
    return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])


def brute_force(fold, arrays, starts, window, strides, padding, base, dilations):
    """Fold every window tap by tap, in row-major order from the initial values; padding takes no part."""
    shape = arrays[0].shape
    spread = [0 if n == 0 else (n - 1) * b + 1 for n, b in zip(shape, base, strict=True)]
    spans = [(w - 1) * d + 1 for w, d in zip(window, dilations, strict=True)]
    extents = [n + low + high for n, (low, high) in zip(spread, padding, strict=True)]
    counts = [max(0, (e - s) // k + 1) for e, s, k in zip(extents, spans, strides, strict=True)]
    results = [np.empty(counts, x.dtype) for x in arrays]
    for place in np.ndindex(*counts):
        total = starts
        for tap in np.ndindex(*window):
            at = [
                p * k + t * d - low
                for p, k, t, d, (low, _) in zip(place, strides, tap, dilations, padding, strict=True)
            ]
            if all(0 <= i < n and i % b == 0 for i, n, b in zip(at, spread, base, strict=True)):
                index = tuple(i // b for i, b in zip(at, base, strict=True))
                total = fold(total, [x[index] for x in arrays])
        for result, value in zip(results, total, strict=True):
            result[place] = value
    return results


def _ops(module, op) -> list[Any]:
    return [i for i in module.walk() if isinstance(i.op, op)]


CASES: dict[str, tuple[Any, ...]] = {
    "strided": ((9, 11), (3, 2), (2, 2), ((0, 0), (0, 0)), (1, 1), (1, 1)),
    "padded": ((5, 7), (3, 3), (1, 2), ((1, 1), (3, 1)), (1, 1), (1, 1)),
    "all dilations": ((4, 5), (3, 4), (1, 2), ((1, 2), (2, 3)), (2, 3), (2, 1)),
    "padding alone": ((4, 3), (2, 1), (1, 1), ((5, 0), (0, 4)), (1, 1), (1, 1)),
    "cut off": ((6, 7), (2, 3), (1, 1), ((-1, -2), (-2, 1)), (1, 1), (1, 1)),
    "rows": ((3, 40), (1, 8), (1, 9), ((0, 0), (0, 0)), (1, 1), (1, 1)),
    "rows dilated": ((2, 33), (2, 5), (2, 11), ((0, 0), (0, 0)), (1, 1), (1, 2)),
    "whole": ((7, 6), (7, 6), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)),
    "cumulative": ((7, 6), (7, 6), (1, 1), ((6, 0), (0, 5)), (1, 1), (1, 1)),
    "nothing in": ((0, 3), (2, 1), (1, 1), ((1, 2), (0, 0)), (1, 1), (1, 1)),
}


@pytest.mark.parametrize("case", CASES)
def test_windows_of_pairs_by_brute_force(case):
    shape, *windows = CASES[case]
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)
    position = np.arange(x.size, dtype=np.int32).reshape(shape)
    module = optimized_module(lambda *a: lax.reduce_window(a, NO_POSITION, argmax, *windows), (x, position))
    assert not _ops(module, ReduceWindow)
    want = brute_force(lambda a, b: a if a[0] >= b[0] else b, (x, position), NO_POSITION, *windows)
    for got, expected in zip(evaluate_module(module, x, position), want, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("case", ["padded", "rows", "whole", "cumulative"])
def test_order_is_kept_where_a_region_depends_on_it(case):
    shape, *windows = CASES[case]
    x = np.random.default_rng(0).integers(-9, 10, shape).astype(np.int32)

    def last(a, b):  # the last element of a window that is not zero: associative, not commutative
        return jnp.where(b == 0, a, b)

    module = optimized_module(lambda a: lax.reduce_window(a, np.int32(0), last, *windows), (x,))
    (want,) = brute_force(lambda a, b: b if b[0] else a, (x,), [np.int32(0)], *windows)
    np.testing.assert_array_equal(evaluate_module(module, x)[0], want)


WIDE: dict[str, tuple[Any, ...]] = {
    "overlapping": ((70,), (33,), (1,), ((0, 0),), (1,), (1,)),
    "strided": ((3, 90), (2, 40), (1, 3), ((1, 0), (7, 8)), (1, 1), (1, 2)),
    "spread": ((60,), (50,), (1,), ((20, 30),), (2,), (1,)),
}


@pytest.mark.parametrize(
    "case,dtype,name",
    [*itertools.product(WIDE, ["int32"], ["add"]), *itertools.product(WIDE, ["uint8"], ["min", "mul"])],
)
def test_wide_windows_of_one_operation(case, dtype, name):
    shape, *windows = WIDE[case]
    x = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    fold = {"add": lax.add, "min": lax.min, "mul": lax.mul}[name]
    start = {"add": 3, "min": 250, "mul": 1}[name]  # only the product's is neutral
    module = optimized_module(lambda a: lax.reduce_window(a, np.array(start, dtype), fold, *windows), (x,))
    assert all(max(i.op.window_dimensions) <= 32 for i in _ops(module, ReduceWindow))
    numpy = {"add": np.add, "min": np.minimum, "mul": np.multiply}[name]
    with np.errstate(over="ignore"):
        (want,) = brute_force(lambda a, b: [numpy(a[0], b[0])], (x,), [np.array(start, dtype)], *windows)
    np.testing.assert_array_equal(evaluate_module(module, x)[0], want)


def test_pooling_is_left_alone():
    module = optimized_module(
        lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 2), (2, 2), "VALID"),
        (np.ones((6, 6), np.float32),),
    )
    assert len(_ops(module, ReduceWindow)) == 1 and not _ops(module, Scan)


def test_operations_grow_with_the_logarithm_of_a_row_only():
    def count(f, n):
        return sum(1 for _ in optimized_module(f, (jax.ShapeDtypeStruct((n,), np.float32),)).walk())

    assert count(jnp.cumsum, 160_000) == count(jnp.cumsum, 16_000)
    assert count(lax.cumlogsumexp, 3_000_000) < 4 * count(lax.cumlogsumexp, 6_000)
    assert count(jnp.cumsum, 100) < 5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_folds_are_formed_in_thirty_two(dtype):
    x = jnp.asarray(np.random.default_rng(0).random(3000), dtype)
    wide = np.asarray(x, np.float64)
    for f, want in (
        (jnp.cumsum, np.cumsum(wide)),
        (lax.cumlogsumexp, np.log(np.cumsum(np.exp(wide)))),
        (
            lambda x: lax.reduce(x, np.array(-np.inf, x.dtype), jnp.logaddexp, (0,)),
            np.log(np.exp(wide).sum()),
        ),
    ):
        (got,) = evaluate_module(optimized_module(f, (x,)), x)
        np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=2.0**-8)


def test_a_region_calls_nothing_after_inlining():
    @jax.jit
    def better(a, b):
        return jnp.maximum(a, b) + 0 * a

    def f(x):
        return lax.reduce_window(x, -np.inf, lambda a, b: better(a, b), (2,), (1,), "VALID")

    module = optimized_module(f, (np.ones(5, np.float32),))
    assert not any(i.op.callees for i in module.walk())


SCATTERS = {  # shape, windows, window, strides, padding
    "apart": ((4, 6), (2, 3), "2, 2", "2, 2", "0"),
    "overlapping": ((5, 6), (3, 3), "3, 2", "1, 2", "0"),
    "padded": ((4, 4), (3, 3), "2, 2", "2, 2", "1"),
    "cut off": ((6, 5), (2, 5), "3, 1", "1, 1", "[[-1, -1], [0, 0]]"),
    "many windows over an element": ((13, 12), (7, 6), "7, 7", "1, 1", "0"),
    "few large windows": ((9, 4), (2, 1), "7, 4", "2, 1", "0"),
}


def scatter_text(case, direction, combine):
    """Return a select_and_scatter by ``direction`` of squares, which no vertex does by itself."""
    shape, windows, window, strides, padding = case
    x, s = (f"tensor<{'x'.join(map(str, each))}xf32>" for each in (shape, windows))
    return f"""func.func @main(%a: {x}, %s: {s}, %i: tensor<f32>) -> {x} {{
      %0 = "stablehlo.select_and_scatter"(%a, %s, %i) <{{window_dimensions = array<i64: {window}>,
          window_strides = array<i64: {strides}>, padding = dense<{padding}> : tensor<2x2xi64>}}> ({{
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %xx = stablehlo.multiply %x, %x : tensor<f32>
          %yy = stablehlo.multiply %y, %y : tensor<f32>
          %p = stablehlo.compare {direction}, %xx, %yy : (tensor<f32>, tensor<f32>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
      }}, {{
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %r = stablehlo.{combine} %x, %y : tensor<f32>
          stablehlo.return %r : tensor<f32>
      }}) : ({x}, {s}, tensor<f32>) -> {x}
      return %0 : {x}
    }}"""


ORDERS = {"GE": ("add", 0), "LT": ("multiply", 1), "GT": ("maximum", -99)}


@pytest.mark.parametrize(
    "case,direction", [*((case, "GE") for case in SCATTERS), ("overlapping", "LT"), ("padded", "GT")]
)
def test_select_and_scatter_of_any_regions(case, direction):
    combine, start = ORDERS[direction]
    shape, windows, *_ = SCATTERS[case]
    text = scatter_text(SCATTERS[case], direction, combine)
    module = optimize(import_stablehlo(text))
    assert not _ops(module, SelectAndScatter)
    rng = np.random.default_rng(1)
    arrays = rng.integers(-2, 3, shape), rng.integers(1, 5, windows), np.array(start)
    arrays = [x.astype(np.float32) for x in arrays]
    np.testing.assert_array_equal(evaluate_module(module, *arrays)[0], reference(text, *arrays)[0])


def test_the_gradient_of_pooling_is_left_alone():
    pool = jax.grad(lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 2), (2, 2), "VALID").sum())
    module = optimized_module(pool, (np.ones((6, 6), np.float32),))
    assert len(_ops(module, SelectAndScatter)) == 1


def test_operands_that_do_not_meet_are_reduced_apart():
    def f(x, y):
        start = np.float32(0), np.float32(1)
        return lax.reduce((x, y), start, lambda a, b: (a[0] + b[0], a[1] * b[1]), (0,))

    x, y = np.arange(1, 7, dtype=np.float32), np.arange(6, 0, -1, dtype=np.float32)
    module = optimized_module(f, (x, y))
    assert [len(i.results) for i in _ops(module, Reduce)] == [1, 1]
    assert [float(each) for each in evaluate_module(module, x, y)] == [21, 720]
