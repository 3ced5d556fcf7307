"""One failing case per constraint tag, and the check that no tag and no operation goes without."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# (attributes of the wrong kind are this module's purpose)

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from hlo_passes import ops
from hlo_passes.errors import ConstraintViolation
from hlo_passes.ir import OPS, Builder, Location, TensorType

T = TensorType.parse
F, N, P = T("tensor<2x3xf32>"), T("tensor<2x3xi32>"), T("tensor<2x3xi1>")
S, SI, V = T("tensor<f32>"), T("tensor<i32>"), T("tensor<3xf32>")
B0 = T("tensor<i1>")
C = T("tensor<2x3xcomplex<f32>>")


def _dot(**fields):
    numbers = {
        "lhs_batching": (),
        "rhs_batching": (),
        "lhs_contracting": (1,),
        "rhs_contracting": (0,),
    }
    for name in tuple(fields):
        if name in numbers:
            numbers[name] = fields.pop(name)
    return ops.DotGeneral(ops.DotDimensionNumbers(**numbers), fields.pop("dtype", "f32"), **fields)


def _with_algorithm(**fields):
    return _dot(algorithm=ops.DotAlgorithm(**{**dict.fromkeys(_TYPES, "f32"), **fields}))


_TYPES = ("lhs_precision_type", "rhs_precision_type", "accumulation_type")
A, B = T("tensor<2x3xf32>"), T("tensor<3x4xf32>")
BATCH = T("tensor<5x2x3xf32>")


M = T("tensor<3x3xf32>")
_SOLVE = ops.TriangularSolve(True, True, False, "NO_TRANSPOSE")


def _batch_norm_cases(op, count, tags):
    """Return cases of a batch normalization; ``tags`` are those of its operands after the first in turn."""
    fine = [F, *[V] * (count - 1)]
    if op is ops.BatchNormGrad:
        fine[4] = F
    wrong = [[*fine[:n], T("tensor<2xf32>"), *fine[n + 1 :]] for n in range(1, len(tags) + 1)]
    return [
        (op(0.1, 1), fine[1:], "arity"),
        (op(0.1, 1), [T(str(t).replace("f32", "i32")) for t in fine], "I1"),
        (op(0.1, 2), fine, "C1"),
        (op(0.1, 1), [*fine[:-1], T(str(fine[-1]).replace("f32", "f64"))], "C2"),
        *((op(0.1, 1), operands, tag) for operands, tag in zip(wrong, tags, strict=True)),
    ]


def _region(*types, result=S):
    builder = Builder("body")
    parameters = [builder.parameter(type_) for type_ in types]
    return builder.build(*([p for p in parameters if p.type == result][:1]))


ADD = _region(S, S)
STATE = T("tensor<2xui64>")
SIZES = T("tensor<2xi64>")
LESS = _region(T("tensor<i1>"), T("tensor<i1>"), result=T("tensor<i1>"))
I2 = T("tensor<5x2xi32>")
BATCHED, BATCHED_INDICES = T("tensor<5x2x3xf32>"), T("tensor<5x4x1xi32>")


def _gather(slice_sizes=(1, 3), **fields):
    """Return a gather of rows of F at indices I1 (``tensor<5x1xi32>``), with some dimension numbers changed."""
    numbers = {
        "offset_dims": (1,),
        "collapsed_slice_dims": (0,),
        "operand_batching_dims": (),
        "start_indices_batching_dims": (),
        "start_index_map": (0,),
        "index_vector_dim": 1,
    }
    return ops.Gather(ops.GatherDimensionNumbers(**{**numbers, **fields}), slice_sizes)


def _row_scatter(**fields):
    """Return a scatter of rows ROWS into F at indices I1, with some dimension numbers changed."""
    numbers = {
        "update_window_dims": (1,),
        "inserted_window_dims": (0,),
        "input_batching_dims": (),
        "scatter_indices_batching_dims": (),
        "scatter_dims_to_operand_dims": (0,),
        "index_vector_dim": 1,
    }
    return ops.Scatter(ops.ScatterDimensionNumbers(**{**numbers, **fields}))


I1, ROWS = T("tensor<5x1xi32>"), T("tensor<5x3xf32>")
_GATHER_BATCH = {"operand_batching_dims": (0,), "start_indices_batching_dims": (0,), "index_vector_dim": 2}
_SCATTER_BATCH = {"input_batching_dims": (0,), "scatter_indices_batching_dims": (0,), "index_vector_dim": 2}
_GATHERED = {"offset_dims": (2,), "collapsed_slice_dims": (1,), "start_index_map": (1,)}
_SCATTERED = {
    "update_window_dims": (2,),
    "inserted_window_dims": (1,),
    "scatter_dims_to_operand_dims": (1,),
}


def _batched_gather(slice_sizes=(1, 1, 3), **fields):
    return _gather(slice_sizes, **{**_GATHER_BATCH, **_GATHERED, **fields})


def _batched_scatter(**fields):
    return _row_scatter(**{**_SCATTER_BATCH, **_SCATTERED, **fields})


BATCHED_ROWS = T("tensor<5x4x3xf32>")


def _choice():
    builder = Builder("select")
    x, y = builder.parameter(S), builder.parameter(S)
    return builder.build(builder.add(ops.Compare("GE"), x, y))


def _conv(**fields):
    numbers = {
        "input_batch": 0,
        "input_feature": 2,
        "input_spatial": (1,),
        "kernel_input_feature": 1,
        "kernel_output_feature": 2,
        "kernel_spatial": (0,),
        "output_batch": 0,
        "output_feature": 2,
        "output_spatial": (1,),
    }
    for name in tuple(fields):
        if name in numbers:
            numbers[name] = fields.pop(name)
    plain = {
        "window_strides": (1,),
        "low": (0,),
        "high": (0,),
        "lhs_dilation": (1,),
        "rhs_dilation": (1,),
        "window_reversal": (False,),
        "feature_group_count": 1,
        "batch_group_count": 1,
        "dtype": "f32",
    }
    return ops.Convolution(ops.ConvDimensionNumbers(**numbers), **{**plain, **fields})


def _windows(**fields):
    names = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    plain = {**dict.fromkeys(names, (1, 1)), "low": (0, 0), "high": (0, 0)}
    return ops.ReduceWindow(**{**plain, **fields})


def _scatter(**fields):
    plain = dict.fromkeys(("window_dimensions", "window_strides"), (1, 1))
    return ops.SelectAndScatter(**{**plain, "low": (0, 0), "high": (0, 0), **fields})


X, W = T("tensor<2x5x4xf32>"), T("tensor<3x4x6xf32>")

PAIRS = ops.DeviceGroups.of(np.array([[0, 1], [2, 3]]))
TWICE = ops.DeviceGroups(2, 2, listed=((0, 1), (1, 2)))


def _combining(kind):
    builder = Builder("combine")
    x, y = builder.parameter(kind), builder.parameter(kind)
    return builder.build(builder.add(ops.Add(), x, y))


_COLLECTIVES = [
    (ops.AllReduce(TWICE), [F], "C1", [_combining(S)]),
    (ops.AllReduce(PAIRS), [F], "C5", [_combining(V)]),
    (ops.ReduceScatter(PAIRS, 1), [F], "C1", [_combining(S)]),
    (ops.ReduceScatter(PAIRS, 2), [F], "C2", [_combining(S)]),
    (ops.ReduceScatter(TWICE, 0), [F], "C3", [_combining(S)]),
    (ops.ReduceScatter(PAIRS, 0), [F], "C7", [_combining(V)]),
    (ops.AllGather(PAIRS, 2), [F], "C1"),
    (ops.AllGather(TWICE, 0), [F], "C2"),
    (ops.AllToAll(PAIRS, 2, 0), [F], "C1"),
    (ops.AllToAll(PAIRS, 1, 0), [F], "C2"),
    (ops.AllToAll(PAIRS, 0, 2), [F], "C3"),
    (ops.AllToAll(TWICE, 0, 0), [F], "C5"),
    (ops.CollectivePermute(PAIRS, ops.Moves.of([(0, 0), (0, 1)])), [F], "C2"),
    (ops.CollectivePermute(PAIRS, ops.Moves.of([(0, 1), (1, 1)])), [F], "C3"),
    (ops.CollectivePermute(PAIRS, ops.Moves.of([(0, 2)])), [F], "C4"),
    (ops.CollectiveBroadcast(TWICE), [F], "C1"),
    (ops.PartitionId(4), [F], "arity"),
    (ops.ReplicaId(4), [F], "arity"),
]

CASES = [
    *_COLLECTIVES,
    # exchanges with the host
    (ops.Print("{}"), [T("tensor<2xcomplex<f32>>")], "C1"),
    (ops.Stop("stop"), [T("tensor<2xcomplex<f32>>")], "C1"),
    (ops.Stop("stop"), [F, F], "arity"),
    (ops.Infeed((F,)), [F], "arity"),
    (ops.Infeed(()), [], "C1"),
    (ops.Recv((F,), 1), [F], "arity"),
    (ops.Recv((F,), 1, "DEVICE_TO_DEVICE"), [], "C5"),
    (ops.Recv((), 1), [], "C6"),
    (ops.Send(1, "DEVICE_TO_DEVICE"), [F], "C5"),
    # elementwise
    (ops.Sine(), [N], "I1"),
    (ops.Sine(), [F, F], "arity"),
    (ops.Popcnt(), [F], "I1"),
    (ops.Abs(), [T("tensor<2xui8>")], "I1"),
    (ops.And(), [F, F], "I1"),
    (ops.Divide(), [P, P], "I1"),
    (ops.Add(), [F, N], "C1"),
    (ops.Add(), [F, V], "C1"),
    (ops.Add(), [F], "arity"),
    (ops.IsFinite(), [N], "I1"),
    (ops.IsFinite(), [], "arity"),
    (ops.Compare("LT"), [F, N], "C1"),
    (ops.Compare("LT"), [F, V], "C2"),
    (ops.Compare("LT", "SIGNED"), [F, F], "C3"),
    (ops.Compare("LT", "TOTALORDER"), [N, N], "C3"),
    (ops.Compare("LESS"), [F, F], "I3"),
    (ops.Compare("LT"), [F], "arity"),
    (ops.Select(), [F, F, F], "I1"),
    (ops.Select(), [T("tensor<3xi1>"), F, F], "C1"),
    (ops.Select(), [P, F, N], "C2"),
    (ops.Select(), [P, F], "arity"),
    (ops.Clamp(), [V, F, S], "C1"),
    (ops.Clamp(), [S, F, V], "C2"),
    (ops.Clamp(), [SI, F, S], "C3"),
    (ops.Clamp(), [F], "arity"),
    (ops.Convert("c64"), [F], "O1"),
    (ops.Convert("i32"), [], "arity"),
    (ops.BitcastConvert("c64"), [F], "O1"),
    (ops.BitcastConvert("f64"), [F], "C1"),
    (ops.BitcastConvert("i1"), [T("tensor<8xui8>")], "C1"),
    (ops.BitcastConvert("i32"), [], "arity"),
    (ops.ReducePrecision(5, 10), [N], "I1"),
    (ops.ReducePrecision(0, 10), [F], "C2"),
    (ops.ReducePrecision(5, -1), [F], "C3"),
    (ops.ReducePrecision(5, 10), [F, F], "arity"),
    # data movement
    (ops.BroadcastInDim((4, 2, 3), (1,)), [F], "C2"),
    (ops.BroadcastInDim((2, 3), (0, 2)), [F], "C3"),
    (ops.BroadcastInDim((3, 3), (0, 0)), [T("tensor<3x3xf32>")], "C4"),
    (ops.BroadcastInDim((4, 3), (0, 1)), [F], "C5"),
    (ops.BroadcastInDim((2, 3), (0, 1)), [], "arity"),
    (ops.Reshape((4,)), [F], "C2"),
    (ops.Reshape((6,)), [], "arity"),
    (ops.Transpose((0, 0)), [F], "C2"),
    (ops.Transpose((0, 1)), [], "arity"),
    (ops.Slice((0,), (1,), (1,)), [F], "C2"),
    (ops.Slice((0, 2), (2, 1), (1, 1)), [F], "C3"),
    (ops.Slice((0, 0), (2, 4), (1, 1)), [F], "C3"),
    (ops.Slice((0, 0), (2, 3), (1, 0)), [F], "C4"),
    (ops.Slice((0, 0), (2, 3), (1, 1)), [], "arity"),
    (ops.Pad((0, 0), (0, 0), (0, 0)), [F, V], "I2"),
    (ops.Pad((0, 0), (0, 0), (0, 0)), [F, SI], "C1"),
    (ops.Pad((0,), (0, 0), (0, 0)), [F, S], "C2"),
    (ops.Pad((0, 0), (0, 0), (0, -1)), [F, S], "C3"),
    (ops.Pad((-2, 0), (-1, 0), (0, 0)), [F, S], "C4"),
    (ops.Pad((0, 0), (0, 0), (0, 0)), [F], "arity"),
    (ops.Concatenate(0), [F, N], "C1"),
    (ops.Concatenate(0), [F, T("tensor<2x4xf32>")], "C2"),
    (ops.Concatenate(0), [], "C3"),
    (ops.Concatenate(2), [F, F], "C4"),
    (ops.Reverse((0, 0)), [F], "C2"),
    (ops.Reverse((2,)), [F], "C3"),
    (ops.Reverse((0,)), [], "arity"),
    (ops.Iota(P, 0), [], "O1"),
    (ops.Iota(F, 2), [], "C1"),
    (ops.Iota(F, 0), [F], "arity"),
    (ops.Constant.splat(1, F), [F], "arity"),
    # contraction
    (_dot(lhs_batching=(0,)), [BATCH, B], "C1"),
    (_dot(lhs_contracting=(0, 1)), [A, B], "C2"),
    (_dot(lhs_batching=(1,), rhs_batching=(1,)), [A, B], "C3"),
    (_dot(lhs_batching=(0,), rhs_batching=(0,)), [A, B], "C4"),
    (_dot(lhs_batching=(2,), rhs_batching=(1,)), [A, B], "C5"),
    (_dot(lhs_contracting=(2,)), [A, B], "C6"),
    (_dot(lhs_batching=(0,), rhs_batching=(2,)), [A, B], "C7"),
    (_dot(rhs_contracting=(-1,)), [A, B], "C8"),
    (_dot(lhs_batching=(0,), rhs_batching=(1,)), [A, B], "C9"),
    (_dot(lhs_contracting=(0,)), [A, B], "C10"),
    (_dot(precision=("HIGH",)), [A, B], "C11"),
    (_dot(precision=("HIGH", "LOW")), [A, B], "I7"),
    (_dot(), [A, T("tensor<3x4xf16>")], "C13"),
    (_dot(dtype="c64"), [A, B], "O1"),
    (_dot(algorithm=ops.DotAlgorithm("f32", "f32", "f32"), precision=("HIGH", "HIGH")), [A, B], "C21"),
    (_with_algorithm(lhs_component_count=0), [A, B], "C22"),
    (_with_algorithm(rhs_component_count=0), [A, B], "C23"),
    (_with_algorithm(num_primitive_operations=0), [A, B], "C24"),
    (_with_algorithm(lhs_precision_type="f8"), [A, B], "I8"),
    (_with_algorithm(rhs_precision_type="f8"), [A, B], "I9"),
    (_with_algorithm(accumulation_type="tf32"), [A, B], "I10"),
    (_dot(), [A], "arity"),
    # reduction
    (ops.Reduce((0,)), [F, V, S, S], "C1", [ADD]),
    (ops.Reduce((0,)), [F, SI], "C2", [ADD]),
    (ops.Reduce((0,)), [F, V], "I2", [ADD]),
    (ops.Reduce((0,)), [F, S, S], "C3", [ADD]),
    (ops.Reduce((0,)), [], "C3", [ADD]),
    (ops.Reduce((2,)), [F, S], "C4", [ADD]),
    (ops.Reduce((0, 0)), [F, S], "C5", [ADD]),
    (ops.Reduce((0,)), [F, S], "C6", []),
    (ops.Reduce((0,)), [F, S], "C6", [_region(S)]),
    (ops.Reduce((0,)), [F, S], "C6", [_region(V, V, result=V)]),
    (ops.Reduce((0,)), [N, SI], "C6", [ADD]),
    # convolution
    (_conv(), [X], "arity"),
    (_conv(), [X, B], "C1"),
    (_conv(window_strides=()), [X, W], "C2"),
    (_conv(window_strides=(0,)), [X, W], "C3"),
    (_conv(low=()), [X, W], "C4"),
    (_conv(lhs_dilation=()), [X, W], "C5"),
    (_conv(lhs_dilation=(0,)), [X, W], "C6"),
    (_conv(rhs_dilation=()), [X, W], "C7"),
    (_conv(rhs_dilation=(0,)), [X, W], "C8"),
    (_conv(window_reversal=()), [X, W], "C9"),
    (_conv(batch_group_count=3), [X, W], "C10"),
    (_conv(feature_group_count=3), [X, W], "C11"),
    (_conv(input_spatial=()), [X, W], "C12"),
    (_conv(input_feature=1), [X, W], "C13"),
    (_conv(), [X, T("tensor<3x2x6xf32>")], "C14"),
    (_conv(batch_group_count=2), [X, T("tensor<3x4x5xf32>")], "C15"),
    (_conv(feature_group_count=2), [X, T("tensor<3x2x5xf32>")], "C16"),
    (_conv(kernel_spatial=()), [X, W], "C17"),
    (_conv(kernel_spatial=(3,)), [X, W], "C18"),
    (_conv(output_spatial=()), [X, W], "C19"),
    (_conv(output_batch=1), [X, W], "C20"),
    (_conv(feature_group_count=0), [X, W], "C21"),
    (_conv(batch_group_count=0), [X, W], "C22"),
    (_conv(feature_group_count=2, batch_group_count=2), [X, W], "C23"),
    (_conv(precision=("HIGH",)), [X, W], "C24"),
    (_conv(precision=("HIGH", "LOW")), [X, W], "I18"),
    (_conv(), [X, T("tensor<3x4x6xf16>")], "C27"),
    (_conv(dtype="c64"), [X, W], "O1"),
    # windows
    (_windows(), [], "C1", [ADD]),
    (_windows(), [F, V, S, S], "C2", [ADD]),
    (_windows(), [F, V], "I2", [ADD]),
    (_windows(), [F, SI], "C3", [ADD]),
    (_windows(window_dimensions=(1,)), [F, S], "C4", [ADD]),
    (_windows(window_dimensions=(1, 0)), [F, S], "C5", [ADD]),
    (_windows(window_strides=(1,)), [F, S], "C6", [ADD]),
    (_windows(window_strides=(1, 0)), [F, S], "C7", [ADD]),
    (_windows(base_dilations=(1,)), [F, S], "C8", [ADD]),
    (_windows(base_dilations=(1, 0)), [F, S], "C9", [ADD]),
    (_windows(window_dilations=(1,)), [F, S], "C10", [ADD]),
    (_windows(window_dilations=(1, 0)), [F, S], "C11", [ADD]),
    (_windows(low=(0,)), [F, S], "C12", [ADD]),
    (_windows(), [F, S], "C13", []),
    (_windows(), [N, SI], "C13", [ADD]),
    (_scatter(), [F, F], "arity", [_choice(), ADD]),
    (_scatter(), [F, N, S], "C1", [_choice(), ADD]),
    (_scatter(), [F, V, S], "C2", [_choice(), ADD]),
    (_scatter(), [F, F, SI], "C3", [_choice(), ADD]),
    (_scatter(), [F, F, V], "I3", [_choice(), ADD]),
    (_scatter(window_dimensions=(1,)), [F, F, S], "C4", [_choice(), ADD]),
    (_scatter(window_dimensions=(1, 0)), [F, F, S], "C5", [_choice(), ADD]),
    (_scatter(window_strides=(1,)), [F, F, S], "C6", [_choice(), ADD]),
    (_scatter(window_strides=(1, 0)), [F, F, S], "C7", [_choice(), ADD]),
    (_scatter(low=(0,)), [F, F, S], "C8", [_choice(), ADD]),
    (_scatter(), [F, F, S], "C9", [ADD, ADD]),
    (_scatter(), [F, F, S], "C9", []),
    (_scatter(), [F, F, S], "C10", [_choice(), _choice()]),
    # runtime offsets
    (ops.DynamicSlice((2, 3)), [], "arity"),
    (ops.DynamicSlice((2,)), [F, SI, SI], "C2"),
    (ops.DynamicSlice((2, 3)), [F, SI], "C2"),
    (ops.DynamicSlice((2, 3)), [F, SI, T("tensor<i64>")], "C3"),
    (ops.DynamicSlice((2, 4)), [F, SI, SI], "C4"),
    (ops.DynamicSlice((2, 3)), [F, SI, S], "I3"),
    (ops.DynamicUpdateSlice(), [F], "arity"),
    (ops.DynamicUpdateSlice(), [F, N, SI, SI], "C2"),
    (ops.DynamicUpdateSlice(), [F, V, SI, SI], "C3"),
    (ops.DynamicUpdateSlice(), [F, F, SI], "C4"),
    (ops.DynamicUpdateSlice(), [F, F, SI, T("tensor<i64>")], "C5"),
    (ops.DynamicUpdateSlice(), [F, T("tensor<2x4xf32>"), SI, SI], "C6"),
    (ops.DynamicUpdateSlice(), [F, F, V, V], "I3"),
    (_gather(), [F], "arity"),
    (_gather(), [F, F], "I2"),
    (_gather(collapsed_slice_dims=()), [F, I1], "C1"),
    (_gather(index_vector_dim=3), [F, I1], "C2"),
    (_gather(), [F, I2], "C3"),
    (_gather((1, 1), collapsed_slice_dims=(), offset_dims=(2, 1)), [F, I1], "C4"),
    (_gather(offset_dims=(2,)), [F, I1], "C5"),
    (_gather(offset_dims=(), collapsed_slice_dims=(0, 0)), [F, I1], "C6"),
    (_gather((1, 1), offset_dims=(), collapsed_slice_dims=(1, 0)), [F, I1], "C7"),
    (_gather(collapsed_slice_dims=(2,)), [F, I1], "C8"),
    (_gather((2, 3)), [F, I1], "C9"),
    (
        _batched_gather(
            offset_dims=(), collapsed_slice_dims=(2,), operand_batching_dims=(1, 0), start_index_map=(2,)
        ),
        [BATCHED, BATCHED_INDICES],
        "C10",
    ),
    (_batched_gather(operand_batching_dims=(3,)), [BATCHED, BATCHED_INDICES], "C11"),
    (_batched_gather((2, 1, 3)), [BATCHED, BATCHED_INDICES], "C12"),
    (_batched_gather(start_indices_batching_dims=(0, 0)), [BATCHED, BATCHED_INDICES], "C13"),
    (_batched_gather(start_indices_batching_dims=(3,)), [BATCHED, BATCHED_INDICES], "C14"),
    (_batched_gather(start_indices_batching_dims=(2,)), [BATCHED, BATCHED_INDICES], "C15"),
    (_batched_gather(start_indices_batching_dims=(0, 1)), [BATCHED, BATCHED_INDICES], "C16"),
    (_batched_gather(start_indices_batching_dims=(1,)), [BATCHED, BATCHED_INDICES], "C17"),
    (_batched_gather(start_index_map=(0,)), [BATCHED, BATCHED_INDICES], "C18"),
    (_gather(start_index_map=(2,)), [F, I1], "C19"),
    (_gather((1, 3, 1)), [F, I1], "C20"),
    (_gather((1, 4)), [F, I1], "C21"),
    (_row_scatter(), [F, V, I1, ROWS, ROWS], "C1", [ADD]),
    (_row_scatter(), [F, F, ROWS], "I2", [ADD]),
    (_row_scatter(inserted_window_dims=()), [F, I1, ROWS], "C2", [ADD]),
    (_row_scatter(), [F, F, I1, ROWS, V], "C3", [ADD]),
    (_row_scatter(), [F, I1, T("tensor<4x3xf32>")], "C4", [ADD]),
    (_row_scatter(), [F, I1, T("tensor<5x4xf32>")], "C4", [ADD]),
    (_row_scatter(), [F, I1], "C5", [ADD]),
    (_row_scatter(), [F, I1, T("tensor<5x3xi32>")], "C6", [ADD]),
    (_row_scatter(update_window_dims=(1, 0), inserted_window_dims=()), [F, I1, ROWS], "C7", [ADD]),
    (_row_scatter(update_window_dims=(2,)), [F, I1, ROWS], "C8", [ADD]),
    (_row_scatter(update_window_dims=(), inserted_window_dims=(0, 0)), [F, I1, ROWS], "C9", [ADD]),
    (_row_scatter(update_window_dims=(), inserted_window_dims=(1, 0)), [F, I1, ROWS], "C10", [ADD]),
    (_row_scatter(inserted_window_dims=(2,)), [F, I1, ROWS], "C11", [ADD]),
    (
        _batched_scatter(
            update_window_dims=(),
            inserted_window_dims=(2,),
            input_batching_dims=(1, 0),
            scatter_dims_to_operand_dims=(2,),
        ),
        [BATCHED, BATCHED_INDICES, BATCHED_ROWS],
        "C12",
        [ADD],
    ),
    (_batched_scatter(input_batching_dims=(3,)), [BATCHED, BATCHED_INDICES, BATCHED_ROWS], "C13", [ADD]),
    (
        _batched_scatter(scatter_indices_batching_dims=(0, 0)),
        [BATCHED, BATCHED_INDICES, BATCHED_ROWS],
        "C14",
        [ADD],
    ),
    (
        _batched_scatter(scatter_indices_batching_dims=(3,)),
        [BATCHED, BATCHED_INDICES, BATCHED_ROWS],
        "C15",
        [ADD],
    ),
    (
        _batched_scatter(scatter_indices_batching_dims=(2,)),
        [BATCHED, BATCHED_INDICES, BATCHED_ROWS],
        "C16",
        [ADD],
    ),
    (
        _batched_scatter(scatter_indices_batching_dims=(0, 1)),
        [BATCHED, BATCHED_INDICES, BATCHED_ROWS],
        "C17",
        [ADD],
    ),
    (
        _batched_scatter(scatter_indices_batching_dims=(1,)),
        [BATCHED, BATCHED_INDICES, BATCHED_ROWS],
        "C18",
        [ADD],
    ),
    (_row_scatter(), [F, I2, ROWS], "C19", [ADD]),
    (
        _batched_scatter(scatter_dims_to_operand_dims=(0,)),
        [BATCHED, BATCHED_INDICES, BATCHED_ROWS],
        "C20",
        [ADD],
    ),
    (_row_scatter(scatter_dims_to_operand_dims=(2,)), [F, I1, ROWS], "C21", [ADD]),
    (_row_scatter(index_vector_dim=3), [F, I1, ROWS], "C22", [ADD]),
    (_row_scatter(), [F, I1, ROWS], "C23", []),
    (_row_scatter(), [F, I1, ROWS], "C23", [_region(S)]),
    # random bits
    (ops.RngBitGenerator("PHILOX", (STATE, N)), [], "arity"),
    (ops.RngBitGenerator("MIDDLE_SQUARE", (STATE, N)), [STATE], "I1"),
    (ops.RngBitGenerator("PHILOX", (STATE, N)), [N], "I2"),
    (ops.RngBitGenerator("PHILOX", (N, STATE)), [STATE], "C2"),
    (ops.RngBitGenerator("THREE_FRY", (T("tensor<3xui64>"), N)), [T("tensor<3xui64>")], "I2"),
    (ops.Rng("UNIFORM", F), [S, S], "arity"),
    (ops.Rng("UNIFORM", F), [V, S, SIZES], "I1"),
    (ops.Rng("UNIFORM", F), [S, V, SIZES], "I2"),
    (ops.Rng("UNIFORM", F), [S, S, SI], "I3"),
    (ops.Rng("UNIFORM", F), [S, S, T("tensor<2xf32>")], "I3"),
    (ops.Rng("EXPONENTIAL", F), [S, S, SIZES], "I4"),
    (ops.Rng("UNIFORM", F), [S, SI, SIZES], "C1"),
    (ops.Rng("NORMAL", N), [SI, SI, SIZES], "C2"),
    (ops.Rng("NORMAL", F), [S, S, T("tensor<3xi64>")], "C3"),
    (ops.RngBitGenerator("PHILOX", (STATE, P)), [STATE], "O2"),
    # complex numbers
    (ops.Abs(), [P], "I1"),
    (ops.Complex(), [F], "arity"),
    (ops.Complex(), [N, N], "I1"),
    (ops.Complex(), [F, V], "C1"),
    (ops.Compare("LT"), [C, C], "C3"),
    (ops.Clamp(), [C, C, C], "I1"),
    (ops.BitcastConvert("i64"), [C], "C1"),
    (ops.BitcastConvert("complex<f32>"), [T("tensor<2xi64>")], "C1"),
    (ops.Maximum(), [C, C], "I1"),
    # Fourier transforms
    (ops.Fft("FFT", (3,)), [], "arity"),
    (ops.Fft("DCT", (3,)), [C], "I2"),
    (ops.Fft("FFT", (2, 2, 3)), [C], "C1"),
    (ops.Fft("FFT", (3,)), [F], "C2"),
    (ops.Fft("RFFT", (3,)), [C], "C2"),
    (ops.Fft("FFT", ()), [C], "C3"),
    (ops.Fft("FFT", (4,)), [C], "C5"),
    (ops.Fft("IRFFT", (6,)), [C], "C5"),
    # sorting
    (ops.MapElements((0, 1)), [F, V], "C1", [ADD]),
    (ops.MapElements(()), [], "C2", [ADD]),
    (ops.MapElements((1, 0)), [F, F], "C3", [ADD]),
    (ops.MapElements((0, 1)), [F, F], "C4", []),
    (ops.MapElements((0, 1)), [F], "C4", [ADD]),
    (ops.Scan(0), [], "C1", [ADD]),
    (ops.Scan(0), [F, V], "C1", [ADD]),
    (ops.Scan(2), [F], "C2", [ADD]),
    (ops.Scan(0), [F], "C3", []),
    (ops.Scan(0), [N], "C3", [ADD]),
    (ops.Sort(0), [], "C1", [LESS]),
    (ops.Sort(0), [F, V], "C3", [LESS]),
    (ops.Sort(2), [F], "C4", [LESS]),
    (ops.Sort(-3), [F], "C4", [LESS]),
    (ops.Sort(0), [F], "C5", []),
    (ops.Sort(0), [F], "C5", [ADD]),
    (ops.TopK(1, 0), [], "arity"),
    (ops.TopK(1, 0), [C], "I1"),
    (ops.TopK(1, 2), [F], "C1"),
    (ops.TopK(4, 1), [F], "C2"),
    (ops.TopK(-1, 1), [F], "C2"),
    (ops.TopK(1, 0), [T("tensor<2147483648xi8>")], "C3"),
    # batch normalization
    *(
        case
        for op, count, tags in (
            (ops.BatchNormInference, 5, ("C3", "C4", "C5", "C6")),
            (ops.BatchNormTraining, 3, ("C3", "C4")),
            (ops.BatchNormGrad, 5, ("C4", "C4", "C4", "C3")),
        )
        for case in _batch_norm_cases(op, count, tags)
    ),
    # factorizations
    (ops.Cholesky(), [M, M], "arity"),
    (ops.Cholesky(), [T("tensor<3x3xi32>")], "I1"),
    (ops.Cholesky(), [V], "C2"),
    (ops.Cholesky(), [F], "C3"),
    (ops.Lu(), [M, M], "arity"),
    (ops.Lu(), [T("tensor<3x3xf64>")], "I1"),
    (ops.Lu(), [V], "C1"),
    (ops.Lu(), [F], "C2"),
    (ops.Qr(), [M, M], "arity"),
    (ops.Qr(), [T("tensor<3x3xf64>")], "I1"),
    (ops.Qr(), [V], "C1"),
    (ops.Qr(), [T("tensor<2x3xf32>")], "C2"),
    (_SOLVE, [M], "arity"),
    (_SOLVE, [T("tensor<3x3xi32>"), M], "I1"),
    (_SOLVE, [M, T("tensor<3x3xf64>")], "C1"),
    (_SOLVE, [M, V], "C2"),
    (_SOLVE, [F, F], "C3"),
    (_SOLVE, [M, F], "C3"),
    (ops.TriangularSolve(True, True, False, "CONJUGATE"), [M, M], "I6"),
    # control
    (ops.Fusion("loop"), [F], "C1", []),
    (ops.Fusion("loop"), [F], "C2", [ADD]),
    (ops.Nonlinearity("popnn.relu"), [SI], "I1", [ADD]),
    (ops.Nonlinearity("popnn.relu"), [V], "C1", []),
    (ops.Nonlinearity("popnn.relu"), [V], "C2", [ADD]),
    (ops.Nonlinearity("popnn.relu"), [V, S], "C3", [_region(V, S, result=V)]),
    (ops.CodeletCall("f", "x[i] -> y[j]"), [V], "C1", [_region(S)]),
    (ops.CodeletCall("f", "x[i, j] -> y[i, j]"), [V], "C1", [_region(S)]),
    (ops.CodeletCall("f", "x[i] -> y[i]"), [V], "C2", []),
    (ops.CodeletCall("f", "x[i] -> y[i]"), [V], "C2", [_region(V, result=V)]),
    (ops.CodeletCall("f", "x[i] -> y[i], z[i]"), [V], "C3", [_region(S)]),
    (ops.CodeletCall("f", "x[i] -> y[]"), [V], "C4", [_region(S)]),
    (ops.CodeletCall("f", "x[i] -> y[i]", "add"), [V], "C4", [_region(S)]),
    (ops.RowFunction("popnn.softmax", (0,)), [V], "C1", []),
    (ops.RowFunction("popnn.softmax", (0,)), [V], "C2", [ADD]),
    (ops.RowFunction("popnn.softmax", (0,)), [V, S], "C3", [_region(V, S, result=V)]),
    (ops.RowFunction("popnn.softmax", (1,)), [V], "C4", [_region(V, result=V)]),
    (ops.While(), [V], "arity", [_region(V, result=V)]),
    (ops.While(2), [V], "arity", [_region(V, result=V), _region(V, result=V)]),
    (ops.While(), [V], "C1", [_region(V, result=V), _region(V, result=V)]),
    (ops.While(), [B0], "C2", [_region(B0, result=B0), _region(V, result=V)]),
    (ops.While(1), [B0, B0], "C2", [_region(B0, B0, result=B0), _region(B0, result=B0)]),
    (ops.Repeat(1), [V], "arity", []),
    (ops.Repeat(-1), [V], "C1", [_region(V, result=V)]),
    (ops.Repeat(1), [V], "C2", [_region(V, result=S)]),
    (ops.Case(), [SI], "C1", []),
    (ops.Case(), [S], "I1", [ADD]),
    (ops.Case(), [SI, V], "C2", [_region(V, result=V), _region(S, result=S)]),
    (ops.Case(), [SI, V], "C3", [_region(V, result=V), _region(V)]),
    (ops.If(), [B0], "arity", [ADD]),
    (ops.If(), [SI], "I1", [_region(), _region()]),
    (ops.If(), [B0, V], "C1", [_region(V, result=V), _region(S, result=S)]),
    (ops.If(), [B0, V], "C2", [_region(V, result=V), _region(V)]),
]


def _name(case):
    return f"{case[0].name}-{case[2]}"


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_violation_is_named_by_its_tag(case):
    op, operands, tag, *regions = case
    with pytest.raises(ConstraintViolation) as caught:
        op.infer(*operands, regions=regions[0] if regions else ())
    assert (caught.value.op_name, caught.value.tag) == (op.name, tag)


def test_constant_of_another_type_breaks_c1():
    with pytest.raises(ConstraintViolation, match=r"stablehlo\.constant breaks C1"):
        ops.Constant(np.zeros((3, 2), np.float32), F)


def test_message_names_operation_tag_types_and_line():
    builder = Builder("main")
    x, y = builder.parameter(F), builder.parameter(V)
    with pytest.raises(ConstraintViolation) as caught:
        builder.add(ops.Add(), x, y, location=Location("model.py", 42))
    assert str(caught.value) == (
        "stablehlo.add breaks C1: operands have types tensor<2x3xf32> and tensor<3xf32>, expected one type\n"
        "  from: model.py:42"
    )


def _tags(cls):
    """Return the tags that a class's own source, or that of its base in the same family, requires."""
    generated = cls.__mro__[1] if cls.__mro__[1] in (ops.Unary, ops.Binary) else cls
    source = inspect.getsource(generated)
    tags = set(re.findall(r'"([CIO]\d+)"', source))
    tags |= {"I1"} if "require_accepted" in source and cls.accepts != ops.Add.accepts else set()
    return tags | ({"arity"} if "require_arity" in source else set())


def test_every_tag_has_a_failing_case():
    covered: dict[type, set[str]] = {}
    for op, _, tag, *_ in CASES:
        generated = type(op).__mro__[1]
        covered.setdefault(generated if generated in (ops.Unary, ops.Binary) else type(op), set()).add(tag)
    covered[ops.Constant].add("C1")
    for cls in OPS.values():
        if cls.__module__.startswith("hlo_passes.ops"):
            key = cls.__mro__[1] if cls.__mro__[1] in (ops.Unary, ops.Binary) else cls
            assert _tags(cls) <= covered.get(key, set()), cls.name


def test_every_operation_says_its_specification_and_has_a_conformance_case():
    sources = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    sources = sources.replace(Path(__file__).read_text(), "")
    for name, cls in OPS.items():
        if cls.__module__.startswith("hlo_passes.ops"):
            assert "Spec:" in (cls.__doc__ or ""), name
            short = name.rpartition(".")[2]
            assert re.search(rf"\b{short}\b", sources, re.IGNORECASE), f"{name} has no conformance case"
