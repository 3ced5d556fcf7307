"""``gather`` and ``scatter``: rows, elements, windows, batches, places outside, and regions of any kind."""

import numpy as np
import pytest

X = np.arange(24, dtype=np.float32).reshape(4, 6)
I = np.array([[1], [3], [0], [3], [9], [-2]], np.int32)  # noqa: E741
ROWS = 100 + np.arange(36, dtype=np.float32).reshape(6, 6)

GATHER = """func.func @main(%x: tensor<{x}>, %i: tensor<{i}>) -> tensor<{out}> {{
  %0 = "stablehlo.gather"(%x, %i) {{
    dimension_numbers = #stablehlo.gather<{numbers}>,
    slice_sizes = array<i64: {sizes}>, indices_are_sorted = false
  }} : (tensor<{x}>, tensor<{i}>) -> tensor<{out}>
  return %0 : tensor<{out}>
}}"""

SCATTER = """func.func @main(%x: tensor<{x}>, %i: tensor<{i}>, %u: tensor<{u}>) -> tensor<{x}> {{
  %0 = "stablehlo.scatter"(%x, %i, %u) ({{
    ^bb0(%a: tensor<{kind}>, %b: tensor<{kind}>):
      {region}
      stablehlo.return %r : tensor<{kind}>
  }}) {{
    scatter_dimension_numbers = #stablehlo.scatter<{numbers}>,
    indices_are_sorted = false, unique_indices = false
  }} : (tensor<{x}>, tensor<{i}>, tensor<{u}>) -> tensor<{x}>
  return %0 : tensor<{x}>
}}"""
ROW_GATHER = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
ROW_SCATTER = (
    "update_window_dims = [1], inserted_window_dims = [0], "
    "scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
)


def _gather(x, i, out, numbers, sizes):
    return GATHER.format(x=x, i=i, out=out, numbers=numbers, sizes=sizes)


def _scatter(x, i, u, numbers, region, kind="f32"):
    if region == "set":
        text = SCATTER.format(x=x, i=i, u=u, numbers=numbers, region="", kind=kind)
        return text.replace("return %r", "return %b", 1)
    body = region if "\n" in region else f"%r = stablehlo.{region} %a, %b : tensor<{kind}>"
    return SCATTER.format(x=x, i=i, u=u, numbers=numbers, region=body, kind=kind)


def test_rows(conforms):
    conforms(_gather("4x6xf32", "6x1xi32", "6x6xf32", ROW_GATHER, "1, 6"), X, I)


def test_elements_at_index_vectors_along_the_first_dimension(conforms):
    numbers = "collapsed_slice_dims = [0, 1], start_index_map = [1, 0], index_vector_dim = 0"
    conforms(_gather("4x6xf32", "2x3xi32", "3xf32", numbers, "1, 1"), X, np.int32([[5, 0, 7], [3, 1, -1]]))


def test_indices_that_are_no_vectors(conforms):
    numbers = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
    conforms(_gather("4x6xf32", "3xi32", "3x6xf32", numbers, "1, 6"), X, np.int32([2, 0, 3]))


def test_windows_before_the_lookups(conforms):
    numbers = "offset_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1"
    conforms(
        _gather("4x6xf32", "3x2xi32", "2x4x3xf32", numbers, "2, 4"), X, np.int32([[0, 0], [2, 1], [9, 9]])
    )


def test_a_batch_of_lookups(conforms):
    numbers = (
        "collapsed_slice_dims = [1], operand_batching_dims = [0], "
        "start_indices_batching_dims = [1], start_index_map = [1], index_vector_dim = 2"
    )
    indices = np.int32([[0, 5, 2, 9], [1, 1, -4, 3], [2, 0, 1, 4]])[..., None]
    conforms(_gather("4x6xf32", "3x4x1xi32", "3x4xf32", numbers, "1, 1"), X, indices)


@pytest.mark.parametrize("op", ["set", "add", "multiply", "maximum", "minimum", "subtract"])
def test_row_updates_in_order(op, conforms):
    conforms(_scatter("4x6xf32", "6x1xi32", "6x6xf32", ROW_SCATTER, op), X, I, ROWS)


@pytest.mark.parametrize("op", ["set", "add", "or", "and", "xor"])
@pytest.mark.parametrize("kind", ["i32", "i1"])
def test_updates_of_integers_and_booleans(op, kind, conforms):
    dtype = {"i32": np.int32, "i1": np.bool_}[kind]
    arrays = [(x % 3 - (kind == "i1")).astype(dtype) for x in (X, ROWS)]
    conforms(
        _scatter(f"4x6x{kind}", "6x1xi32", f"6x6x{kind}", ROW_SCATTER, op, kind), arrays[0], I, arrays[1]
    )


def test_a_region_of_several_operations(conforms):
    region = "%s = stablehlo.abs %b : tensor<f32>\n %r = stablehlo.subtract %a, %s : tensor<f32>"
    conforms(_scatter("4x6xf32", "6x1xi32", "6x6xf32", ROW_SCATTER, region), X, I, ROWS)


WINDOWS = "update_window_dims = [0, 1], scatter_dims_to_operand_dims = [1, 0], index_vector_dim = 1"


@pytest.mark.parametrize("op", ["set", "add", "subtract"])
def test_windows(op, conforms):
    text = _scatter("4x6xf32", "2x2xi32", "3x2x2xf32", WINDOWS, op)
    conforms(text, X, np.int32([[4, 0], [1, 1]]), ROWS[:2].reshape(3, 2, 2))


def test_a_window_that_does_not_lie_inside_is_left_out_whole(evaluates_to):
    text = _scatter("4x6xf32", "2x2xi32", "3x2x2xf32", WINDOWS, "set")
    update = np.full((3, 2, 2), -1, np.float32)
    evaluates_to(text, [X, np.int32([[5, 0], [1, 2]]), update], [X])


@pytest.mark.parametrize("op", ["set", "add", "subtract"])
def test_a_batch_of_updates(op, conforms):
    numbers = (
        "inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [1], "
        "scatter_dims_to_operand_dims = [1], index_vector_dim = 2"
    )
    indices = np.int32([[0, 5, 2, 9], [0, 1, -4, 3], [2, 0, 1, 4]])[..., None]
    conforms(_scatter("4x6xf32", "3x4x1xi32", "3x4xf32", numbers, op), X, indices, ROWS[:3, :4])
