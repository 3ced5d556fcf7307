"""``hlo.scan`` against a walk over the rows by hand, and against jaxlib's interpreter of the window it stands for."""

import itertools

import numpy as np
import pytest

from hlo_passes.ir import Builder, Module, TensorType, evaluate_module, verify
from hlo_passes.ops import Add, Multiply, Scan
from tests.conformance.conftest import parsed_again, reference

X = np.random.default_rng(0).integers(-9, 10, (3, 5, 2)).astype(np.float32)


def _scan(dimension, reverse, *arrays):
    """Return ``(a, b), (c, d) -> (a c, b c + d)`` (one array: a sum) scanned: not commutative, exact on integers."""
    main, body = Builder("main"), Builder("body")
    types = [TensorType.of(x) for x in arrays]
    given = [body.parameter(t.with_shape(())) for t in types * 2]
    if len(arrays) == 1:
        region = body.build(body.add(Add(), *given))
    else:
        a, b, c, d = given
        region = body.build(body.add(Multiply(), a, c), body.add(Add(), body.add(Multiply(), b, c), d))
    results = main.emit(Scan(dimension, reverse), *map(main.parameter, types), regions=[region])
    module = parsed_again(Module("m", (main.build(*results),), "main"))
    verify(module)
    return [np.asarray(x) for x in evaluate_module(module, *arrays)]


@pytest.mark.parametrize("dimension,reverse", list(itertools.product(range(3), (False, True))))
def test_sums(dimension, reverse):
    flipped = np.flip(X, dimension) if reverse else X
    want = np.cumsum(flipped, dimension)
    (got,) = _scan(dimension, reverse, X)
    np.testing.assert_array_equal(got, np.flip(want, dimension) if reverse else want)


@pytest.mark.parametrize("reverse", [False, True])
def test_several_arrays_keep_the_order_of_elements(reverse):
    a, b = (np.random.default_rng(k).integers(-3, 4, (6, 2)).astype(np.int32) for k in range(2))
    want_a, want_b = a.copy(), b.copy()
    for i in range(4, -1, -1) if reverse else range(1, 6):
        if reverse:
            want_a[i], want_b[i] = a[i] * want_a[i + 1], b[i] * want_a[i + 1] + want_b[i + 1]
        else:
            want_a[i], want_b[i] = want_a[i - 1] * a[i], want_b[i - 1] * a[i] + b[i]
    got = _scan(0, reverse, a, b)
    np.testing.assert_array_equal(got[0], want_a)
    np.testing.assert_array_equal(got[1], want_b)


def test_rows_of_nothing_and_of_one_element():
    for shape in ((0, 2), (2, 0), (1, 3)):
        x = np.ones(shape, np.float32)
        np.testing.assert_array_equal(_scan(0, False, x)[0], x)


def test_the_window_it_stands_for():
    text = """func.func @main(%a: tensor<6xf32>, %i: tensor<f32>) -> tensor<6xf32> {
      %0 = "stablehlo.reduce_window"(%a, %i) <{window_dimensions = array<i64: 6>,
          padding = dense<[[5, 0]]> : tensor<1x2xi64>}> ({
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %r = stablehlo.add %x, %y : tensor<f32>
          stablehlo.return %r : tensor<f32>
      }) : (tensor<6xf32>, tensor<f32>) -> tensor<6xf32>
      return %0 : tensor<6xf32>
    }"""
    x = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(_scan(0, False, x)[0], reference(text, x, np.zeros((), np.float32))[0])
