"""What each StableHLO operation's attributes say: one reader an operation, MLIR's to this project's.

An operation that is added to ``hlo_passes.ops`` gets its reader here; ``importer`` walks modules and regions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from hlo_passes import ops
from hlo_passes.ir import OPS, UNKNOWN, Location, Op, TensorType
from ipuxla.frontend._jax_compat import (
    conv_dimensions,
    dot_algorithm,
    dot_dimensions,
    gather_dimensions,
    mlir,
    scatter_dimensions,
)
from ipuxla.frontend.attributes import flag, integer, integers
from ipuxla.frontend.nested import Types, flat


class Context(Protocol):
    """What readers ask of the importer of a module."""

    streams: Iterator[int]
    """Numbers of the module's ``rng`` operations, in order."""

    def type(self, type_: mlir.Type, where: Location) -> Types:
        """Return a ``TensorType``, or a list of such for a tuple."""
        ...

    def constant(self, attribute: mlir.Attribute | str, type_: TensorType) -> ops.Constant:
        """Return the constant of a dense attribute."""
        ...

    def word(self, op: mlir.Operation, name: str) -> str:
        """Return the keyword of an enumeration; empty when it is absent."""
        ...

    def keyword(self, attribute: mlir.Attribute) -> str:
        """Return the keyword of an enumeration's attribute."""
        ...


def _constant(context: Context, op: mlir.Operation, results: list[TensorType]) -> Op:
    if results[0].is_complex:  # MLIR's Python attributes know no such elements
        text = str(op)
        return context.constant(text[text.index("dense<") :], results[0])
    return context.constant(op.attributes["value"], results[0])


def _compare(context: Context, op: mlir.Operation, results: list[TensorType]) -> Op:
    kind = context.word(op, "compare_type")
    implied = kind and ops.compare_types(flat(context.type(op.operands[0].type, UNKNOWN))[0].dtype)[0]
    return ops.Compare(context.word(op, "comparison_direction"), "" if kind == implied else kind)


def _dot_general(context: Context, op: mlir.Operation, results: list[TensorType]) -> Op:
    attributes = op.attributes
    numbers = ops.DotDimensionNumbers(*dot_dimensions(attributes["dot_dimension_numbers"]))
    precision = tuple(context.keyword(entry) for entry in attributes.get("precision_config") or ())
    algorithm = attributes.get("algorithm")
    return ops.DotGeneral(
        numbers,
        results[0].dtype,
        () if set(precision) <= {"DEFAULT"} else precision,
        None if algorithm is None else ops.DotAlgorithm(**dot_algorithm(algorithm)),
    )


def _convolution(context: Context, op: mlir.Operation, results: list[TensorType]) -> Op:
    attributes = op.attributes
    numbers = ops.ConvDimensionNumbers(**conv_dimensions(attributes["dimension_numbers"]))
    ones = (1,) * len(numbers.input_spatial)
    low, high = _padding(op, len(ones))
    precision = tuple(context.keyword(entry) for entry in attributes.get("precision_config") or ())
    return ops.Convolution(
        numbers,
        _window(op, "window_strides", ones),
        low,
        high,
        _window(op, "lhs_dilation", ones),
        _window(op, "rhs_dilation", ones),
        tuple(map(bool, _window(op, "window_reversal", (0,) * len(ones)))),
        integer(op, "feature_group_count"),
        integer(op, "batch_group_count"),
        results[0].dtype,
        () if set(precision) <= {"DEFAULT"} else precision,
    )


def _reduce_window(context: Context, op: mlir.Operation, results: list[TensorType]) -> Op:
    window = integers(op, "window_dimensions")
    ones = (1,) * len(window)
    names = ("window_strides", "base_dilations", "window_dilations")
    strides, base, dilations = (_window(op, name, ones) for name in names)
    low, high = _padding(op, len(ones))
    return ops.ReduceWindow(window, strides, base, dilations, low, high)


def _select_and_scatter(context: Context, op: mlir.Operation, results: list[TensorType]) -> Op:
    rank = results[0].rank
    ones = (1,) * rank
    strides = _window(op, "window_strides", ones)
    return ops.SelectAndScatter(_window(op, "window_dimensions", ones), strides, *_padding(op, rank))


def _window(op: mlir.Operation, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return an optional attribute that has an entry per window dimension."""
    return integers(op, name) if name in op.attributes else default


def _padding(op: mlir.Operation, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the padding in front and behind; none when it is absent."""
    if "padding" not in op.attributes or not rank:
        return (0,) * rank, (0,) * rank
    pairs = np.asarray(op.attributes["padding"]).reshape(-1, 2)
    pairs = np.broadcast_to(pairs, (rank, 2))
    return tuple(map(int, pairs[:, 0])), tuple(map(int, pairs[:, 1]))


def _gather(context: Context, op: mlir.Operation, results: list[TensorType]) -> Op:
    numbers = ops.GatherDimensionNumbers(**gather_dimensions(op.attributes["dimension_numbers"]))
    return ops.Gather(numbers, integers(op, "slice_sizes"), flag(op, "indices_are_sorted"))


def _scatter(context: Context, op: mlir.Operation, results: list[TensorType]) -> Op:
    numbers = ops.ScatterDimensionNumbers(**scatter_dimensions(op.attributes["scatter_dimension_numbers"]))
    return ops.Scatter(numbers, flag(op, "indices_are_sorted"), flag(op, "unique_indices"))


PLAIN: dict[str, Op] = {name: cls() for name, cls in OPS.items() if issubclass(cls, (ops.Unary, ops.Binary))}
"""Operations without attributes, made once."""
for _cls in (ops.IsFinite, ops.Complex, ops.Select, ops.Clamp, ops.OptimizationBarrier):
    PLAIN[_cls.name] = _cls()

READERS: dict[str, Callable[[Context, mlir.Operation, list[TensorType]], Op]] = {
    "func.call": lambda i, op, results: ops.Call(op.attributes["callee"].value, tuple(results)),
    "stablehlo.compare": _compare,
    "stablehlo.convert": lambda i, op, results: ops.Convert(results[0].dtype),
    "stablehlo.bitcast_convert": lambda i, op, results: ops.BitcastConvert(results[0].dtype),
    "stablehlo.reduce_precision": lambda i, op, results: ops.ReducePrecision(
        integer(op, "exponent_bits"), integer(op, "mantissa_bits")
    ),
    "stablehlo.broadcast_in_dim": lambda i, op, results: ops.BroadcastInDim(
        results[0].shape, integers(op, "broadcast_dimensions")
    ),
    "stablehlo.reshape": lambda i, op, results: ops.Reshape(results[0].shape),
    "stablehlo.transpose": lambda i, op, results: ops.Transpose(integers(op, "permutation")),
    "stablehlo.slice": lambda i, op, results: ops.Slice(
        integers(op, "start_indices"), integers(op, "limit_indices"), integers(op, "strides")
    ),
    "stablehlo.pad": lambda i, op, results: ops.Pad(
        integers(op, "edge_padding_low"), integers(op, "edge_padding_high"), integers(op, "interior_padding")
    ),
    "stablehlo.concatenate": lambda i, op, results: ops.Concatenate(integer(op, "dimension")),
    "stablehlo.reverse": lambda i, op, results: ops.Reverse(integers(op, "dimensions")),
    "stablehlo.fft": lambda i, op, results: ops.Fft(i.word(op, "fft_type"), integers(op, "fft_length")),
    "stablehlo.iota": lambda i, op, results: ops.Iota(results[0], integer(op, "iota_dimension")),
    "stablehlo.constant": _constant,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
    "stablehlo.sort": lambda i, op, results: ops.Sort(
        integer(op, "dimension") if "dimension" in op.attributes else -1, flag(op, "is_stable")
    ),
    "stablehlo.rng_bit_generator": lambda i, op, results: ops.RngBitGenerator(
        i.word(op, "rng_algorithm"), tuple(results)
    ),
    "stablehlo.rng": lambda i, op, results: ops.Rng(
        i.word(op, "rng_distribution"), results[0], next(i.streams)
    ),
    "stablehlo.dynamic_slice": lambda i, op, results: ops.DynamicSlice(integers(op, "slice_sizes")),
    "stablehlo.dynamic_update_slice": lambda i, op, results: ops.DynamicUpdateSlice(),
    "stablehlo.cholesky": lambda i, op, results: ops.Cholesky(flag(op, "lower")),
    "stablehlo.triangular_solve": lambda i, op, results: ops.TriangularSolve(
        flag(op, "left_side"), flag(op, "lower"), flag(op, "unit_diagonal"), i.word(op, "transpose_a")
    ),
    "stablehlo.map": lambda i, op, results: ops.MapElements(integers(op, "dimensions")),
    "stablehlo.reduce": lambda i, op, results: ops.Reduce(integers(op, "dimensions")),
    "stablehlo.convolution": _convolution,
    **{
        cls.name: lambda i, op, results, cls=cls: cls(
            op.attributes["epsilon"].value, integer(op, "feature_index")
        )
        for cls in (ops.BatchNormInference, ops.BatchNormTraining, ops.BatchNormGrad)
    },
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
}
