"""Primitives that place convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from tiles.errors import InvalidGraph
from tiles.graph import (
    REDUCTION,
    WINDOW,
    Affine,
    Codelet,
    Dim,
    Graph,
    IndexMap,
    OpForm,
    Plan,
    Site,
    Tensor,
    along,
    identity_map,
    site_of,
)
from tiles.poplibs.poplin.conv import WHOLE_TAPS, conv_codelet
from tiles.poplibs.poplin.conv_cycles import SPREAD_METHODS
from tiles.poplibs.poplin.matmul import matmul_codelet
from tiles.poplibs.poplin.spread import spread_codelet
from tiles.poplibs.poplin.widening import choose_widening, place_contraction
from tiles.poplibs.popops.interleave import interleave, phase_numbers
from tiles.poplibs.popops.movement import slice as slice_tensor
from tiles.poplibs.poputil.copies import reshape
from tiles.poplibs.poputil.place import place
from tiles.poplibs.windows import Phase, Window


@dataclass(frozen=True)
class ConvAxes:
    """Which axis of each tensor plays which part, as in ``jax.lax.ConvDimensionNumbers``.

    Args:
      lhs: batch, feature and spatial axes of the array.
      rhs: output feature, input feature and spatial axes of the kernel.
      out: batch, feature and spatial axes of the result.
    """

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    out: tuple[int, ...]


def convolution(
    where: Graph | Site,
    lhs: Tensor,
    rhs: Tensor,
    axes: ConvAxes,
    windows: Seq[Window],
    *,
    feature_groups: int = 1,
    batch_groups: int = 1,
    out_dtype: str | None = None,
    method: str = "auto",
    plan: Plan | None = None,
) -> Tensor:
    """Slide a kernel over an array and sum products over windows and input features.

    A spread array (``Window.base``) is convolved by vertices that know which taps meet its elements
    (``SpreadConvolution``), or as one product of matrices where every output meets one element and one tap, as of a kernel
    as long as the stride of a transposed convolution; with strides or spread kernels besides, or channels side by side,
    phase by phase.

    Args:
      where: graph, or site in it, to add to.
      lhs: the array.
      rhs: the kernel, of the same dtype.
      axes: the parts that axes play.
      windows: one per spatial axis.
      feature_groups: groups that the array's features and the kernel's output features fall into.
      batch_groups: groups that the array's batches and the kernel's output features fall into.
      out_dtype: dtype of the result, that of the operands by default; 16-bit floats are added in float32.
      method: "auto", or one of ``poplin.CONV_METHODS``.
      plan: use this plan for every phase instead of searching.

    Raises:
      InvalidGraph: axes, groups, windows or dtypes that do not fit.
    """
    site = site_of(where, "conv")
    if lhs.dtype != rhs.dtype:
        raise InvalidGraph(f"cannot convolve {lhs.dtype} with {rhs.dtype}; cast one operand first")
    _check(lhs, rhs, axes, windows, feature_groups, batch_groups)
    groups, out = feature_groups * batch_groups, out_dtype or lhs.dtype

    def convolve(site: Site, lhs: Tensor, rhs: Tensor) -> Tensor:
        return _convolution(site, lhs, rhs, axes, windows, groups, batch_groups > 1, out, method, plan)

    if method != "auto" or plan is not None:
        return convolve(site, lhs, rhs)
    products = math.prod(rhs.shape) // max(1, rhs.shape[axes.rhs[0]])
    is_plain = all(window.base == 1 for window in windows)
    return choose_widening(site, lhs, rhs, out, convolve, products if is_plain else None)


def _convolution(
    site: Site,
    lhs: Tensor,
    rhs: Tensor,
    axes: ConvAxes,
    windows: Seq[Window],
    groups: int,
    in_batches: bool,
    out: str,
    method: str,
    plan: Plan | None,
) -> Tensor:
    """Return a convolution; arguments as of ``convolution``, with groups of features or ``in_batches``."""
    split = _Split(axes, groups, axes.lhs[0] if in_batches else axes.lhs[1])
    if groups > 1:
        lhs = reshape(site, lhs, split.cut(lhs.shape, split.lhs_axis))
        rhs = reshape(site, rhs, split.cut(rhs.shape, axes.rhs[0]))
    of_spread = _product if _is_product(windows, lhs, rhs, split, plan) else _spread
    if of_spread is _product or _is_spread(windows, lhs, rhs, split, method):
        codelet, form = of_spread(lhs, rhs, split, windows, out, method)
        result = place(site, codelet, form, [lhs, rhs], (out,), plan=plan)[0]
        result = _in_turn(site, result, lhs, rhs, split, windows)
        return reshape(site, result, split.joined(result.shape)) if groups > 1 else result
    phases = [window.num_phases for window in windows]
    order = sorted(range(len(windows)), key=lambda number: axes.out[2 + number])
    parts: list[Tensor | None] = []
    for numbers in phase_numbers([phases[number] for number in order]):
        of_window = dict(zip(order, numbers, strict=True))
        chosen = [window.phase(of_window[number]) for number, window in enumerate(windows)]
        parts.append(_phase(site, lhs, rhs, split, windows, chosen, out, method, plan))
    shape = split.result_shape(lhs.shape, rhs.shape, [window.phase_outputs for window in windows])
    first = parts[0]
    if len(parts) == 1 and first is not None:
        result = first
    else:
        sizes = split.result_shape(lhs.shape, rhs.shape, [window.outputs for window in windows])
        along_axes = split.result_shape_of(1, 1, 1, phases)
        result = interleave(site.at("interleave"), parts, along_axes, sizes, dtype=out, shape=shape)
    return reshape(site, result, split.joined(result.shape)) if groups > 1 else result


def _check(
    lhs: Tensor, rhs: Tensor, axes: ConvAxes, windows: Seq[Window], feature_groups: int, batch_groups: int
) -> None:
    rank = len(lhs.shape)
    for used in (axes.lhs, axes.rhs, axes.out):
        if sorted(used) != list(range(rank)) or len(rhs.shape) != rank or len(windows) != rank - 2:
            raise InvalidGraph(f"{axes} with {len(windows)} windows does not fit {lhs.shape} and {rhs.shape}")
    if 1 not in (feature_groups, batch_groups) or min(feature_groups, batch_groups) < 1:
        raise InvalidGraph(f"{feature_groups} feature groups and {batch_groups} batch groups: one must be 1")
    for size, groups in (
        (lhs.shape[axes.lhs[1]], feature_groups),
        (lhs.shape[axes.lhs[0]], batch_groups),
        (rhs.shape[axes.rhs[0]], feature_groups * batch_groups),
    ):
        if size % groups:
            raise InvalidGraph(f"{size} is no multiple of {groups} groups")
    if lhs.shape[axes.lhs[1]] != rhs.shape[axes.rhs[1]] * feature_groups:
        raise InvalidGraph(f"features of {lhs.shape} and {rhs.shape} differ, in {feature_groups} groups")
    for number, window in enumerate(windows):
        sizes = lhs.shape[axes.lhs[2 + number]], rhs.shape[axes.rhs[2 + number]]
        if sizes != (window.size, window.taps):
            raise InvalidGraph(f"{window} lies along {sizes[0]} elements and {sizes[1]} taps")


@dataclass(frozen=True)
class _Split:
    """Axes of operands whose groups, if there are several, have an axis of their own before what they cut.

    Args:
      axes: the parts that the given tensors' axes play.
      groups: number of groups.
      lhs_axis: the array's axis that holds them.
    """

    axes: ConvAxes
    groups: int
    lhs_axis: int

    def cut(self, shape: Seq[int], axis: int) -> tuple[int, ...]:
        """Return a shape with an axis cut into groups and the rest."""
        return (*shape[:axis], self.groups, shape[axis] // self.groups, *shape[axis + 1 :])

    def place(self, axis: int, cut: int) -> int:
        """Return where an axis lies after the axis ``cut`` was cut."""
        return axis + (self.groups > 1 and axis >= cut)

    def result_shape_of(self, batch: int, groups: int, outputs: int, field: Seq[int]) -> tuple[int, ...]:
        """Return extents in the order of the result's axes, groups in front of output features."""
        by_axis = dict(zip(self.axes.out, (batch, outputs, *field), strict=True))
        shape: list[int] = []
        for axis in range(len(by_axis)):
            if self.groups > 1 and axis == self.axes.out[1]:
                shape.append(groups)
            shape.append(by_axis[axis])
        return tuple(shape)

    def result_shape(self, lhs: Seq[int], rhs: Seq[int], field: Seq[int]) -> tuple[int, ...]:
        """Return the shape of a result of the cut operands."""
        batch = lhs[self.place(self.axes.lhs[0], self.lhs_axis)]
        outputs = rhs[self.place(self.axes.rhs[0], self.axes.rhs[0])]
        return self.result_shape_of(batch, self.groups, outputs, field)

    def joined(self, shape: Seq[int]) -> tuple[int, ...]:
        """Return a result's shape with groups and output features as one axis."""
        axis = self.axes.out[1]
        return (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def _phase(
    site: Site,
    lhs: Tensor,
    rhs: Tensor,
    split: _Split,
    windows: Seq[Window],
    phases: Seq[Phase],
    out: str,
    method: str,
    plan: Plan | None,
) -> Tensor | None:
    """Place the convolution of one phase; None where no tap meets an element."""
    inputs = rhs.shape[split.place(split.axes.rhs[1], split.axes.rhs[0])]
    if not all(phase.taps for phase in phases) or not inputs:
        return None
    form = _conv_form(lhs.shape, rhs.shape, split, windows, phases)
    has_windows = any(
        phase.taps > 1 and not is_contracted(window, phase)
        for window, phase in zip(windows, phases, strict=True)
    )
    outputs = rhs.shape[split.place(split.axes.rhs[0], split.axes.rhs[0])]
    is_depthwise = (
        split.groups > 1 and inputs == outputs == 1 and lhs.dtype == "float16"
    )  # channels side by side
    if has_windows or is_depthwise:
        codelet = conv_codelet(lhs.dtype, rhs.dtype, out, method)
    else:
        is_image = any(window.phase_outputs > 1 for window in windows)
        codelet = matmul_codelet(lhs.dtype, rhs.dtype, out, method, may_swap=not is_image)
    result = place_contraction(site, codelet, form, [lhs, rhs], out, plan)
    shape = split.result_shape(lhs.shape, rhs.shape, [window.phase_outputs for window in windows])
    return result if result.shape == shape else reshape(site, result, shape)


def _is_spread(windows: Seq[Window], lhs: Tensor, rhs: Tensor, split: _Split, method: str) -> bool:
    """Return whether one vertex computes all phases: the array is spread, and nothing else is strided.

    Where every output meets one element at most, products of matrices are faster. So they are where it meets many, as in
    the gradient of a transposed convolution's kernel: phases cut these between tiles, a vertex of all phases keeps them
    whole.
    """
    return (
        1 < max((_reach(window)[1] for window in windows), default=1) <= WHOLE_TAPS
        and _is_spread_alone(windows, lhs, rhs, split)
        and method in ("auto", *SPREAD_METHODS)
        and all(_reach(window)[1] > 0 for window in windows)
    )


def _is_product(windows: Seq[Window], lhs: Tensor, rhs: Tensor, split: _Split, plan: Plan | None) -> bool:
    """Return whether all phases are one product of matrices: each element meets every tap once, each output one of them.

    A plan that a builder gives is for a phase.
    """
    return (
        plan is None
        and all(_reach(window)[1] == 1 and window.taps == window.base for window in windows)
        and _is_spread_alone(windows, lhs, rhs, split)
    )


def _is_spread_alone(windows: Seq[Window], lhs: Tensor, rhs: Tensor, split: _Split) -> bool:
    """Return whether an array is spread and nothing else is strided, nor its channels side by side."""
    inputs = rhs.shape[split.place(split.axes.rhs[1], split.axes.rhs[0])]
    outputs = rhs.shape[split.place(split.axes.rhs[0], split.axes.rhs[0])]
    is_depthwise = split.groups > 1 and inputs == outputs == 1
    return (
        any(window.num_phases > 1 for window in windows)
        and all(window.stride == window.dilation == 1 for window in windows)
        and not is_depthwise
        and all(n > 0 for n in (*lhs.shape, *rhs.shape, *(window.outputs for window in windows)))
    )


def _reach(window: Window) -> tuple[int, int]:
    """Return the first element that output 0 may meet, and how many a block of outputs ``base * q + r`` meets at most."""
    first = -(window.low // window.base)
    last = (window.taps - 2 - window.low + window.base) // window.base
    return first, last - first + 1


def _spread(
    lhs: Tensor, rhs: Tensor, split: _Split, windows: Seq[Window], out: str, method: str
) -> tuple[Codelet, OpForm]:
    """Return the codelet and the form of the convolution of a spread array."""
    by_axis = [number for _, number in sorted((axis, n) for n, axis in enumerate(split.axes.lhs[2:]))]
    bases, taps = [window.base for window in windows], [window.taps for window in windows]
    origins = [window.low + window.base * _reach(window)[0] for window in windows]
    in_turn = (tuple(given[number] for number in by_axis) for given in (bases, taps, origins))
    codelet = spread_codelet(lhs.dtype, rhs.dtype, out, method, *in_turn)
    return codelet, _spread_form(lhs.shape, rhs.shape, split, windows)


def _product(
    lhs: Tensor, rhs: Tensor, split: _Split, windows: Seq[Window], out: str, method: str
) -> tuple[Codelet, OpForm]:
    """Return the codelet and the form of the product of a spread array each of whose elements meets every tap once."""
    is_image = any(window.phase_outputs > 1 for window in windows)
    codelet = matmul_codelet(lhs.dtype, rhs.dtype, out, method, may_swap=not is_image)
    return codelet, _product_form(lhs.shape, rhs.shape, split, windows)


def _in_turn(
    site: Site, result: Tensor, lhs: Tensor, rhs: Tensor, split: _Split, windows: Seq[Window]
) -> Tensor:
    """Return a result whose phases have dimensions of their own in its shape; outputs past the last one are dropped."""
    whole = split.result_shape(lhs.shape, rhs.shape, [window.base * _blocks(window) for window in windows])
    sizes = split.result_shape(lhs.shape, rhs.shape, [window.outputs for window in windows])
    result = result if result.shape == whole else reshape(site, result, whole)
    if whole == sizes:
        return result
    return slice_tensor(site.at("cut"), result, [0] * len(whole), list(sizes))


def _blocks(window: Window) -> int:
    """Return how many outputs each phase of a spread array has, those past the last output included."""
    return -(-window.outputs // window.base)


def _result_dims(
    lhs: Seq[int], rhs: Seq[int], split: _Split, windows: Seq[Window]
) -> tuple[list[Dim], dict[int, int], dict[int, int]]:
    """Return the dimensions of a spread array's result, blocks before phases; the number of each part's, and of each phase's."""
    shape = split.result_shape(lhs, rhs, [_blocks(window) for window in windows])
    names = split.result_shape_of(0, 1, 2, range(3, 3 + len(windows)))
    dims: list[Dim] = []
    of: dict[int, int] = {}
    phases: dict[int, int] = {}
    for part, n in zip(names, shape, strict=True):
        of[part] = len(dims)
        dims.append(Dim(_name(part), int(n)))
        if part >= 3 and windows[part - 3].base > 1:
            phases[part - 3] = len(dims)
            dims.append(Dim(f"r{part - 3}", windows[part - 3].base))
    return dims, of, phases


def _product_form(lhs: Seq[int], rhs: Seq[int], split: _Split, windows: Seq[Window]) -> OpForm:
    """Return the form of ``_product``: the result's dimensions, blocks before phases; inputs. A phase is a tap."""
    dims, of, phases = _result_dims(lhs, rhs, split, windows)
    kept = len(dims)
    inputs = rhs[split.place(split.axes.rhs[1], split.axes.rhs[0])]
    dims.append(Dim("i", int(inputs), REDUCTION))
    left, right = _channel_axes(split, of, kept)
    for number, window in enumerate(windows):
        left[split.place(split.axes.lhs[2 + number], split.lhs_axis)] = along(
            of[3 + number], 1, _reach(window)[0]
        )
        step, first = (1, 0) if window.reverse else (-1, window.taps - 1)
        tap = along(phases[number], step, first) if number in phases else Affine((), 0)
        right[split.place(split.axes.rhs[2 + number], split.axes.rhs[0])] = tap
    return _form_of(dims, left, right, kept)


def _spread_form(lhs: Seq[int], rhs: Seq[int], split: _Split, windows: Seq[Window]) -> OpForm:
    """Return the form of ``SpreadConvolution``: the result's dimensions, blocks before phases; elements and taps; inputs."""
    dims, of, _ = _result_dims(lhs, rhs, split, windows)
    kept, elements = len(dims), [len(dims)] * len(windows)
    kernel: list[Affine] = []
    for number, window in enumerate(windows):
        elements[number] = len(dims)
        dims.append(Dim(f"t{number}", _reach(window)[1], WINDOW))
        if window.taps > 1:
            step, first = (-1, window.taps - 1) if window.reverse else (1, 0)
            kernel.append(along(len(dims), step, first))
            dims.append(Dim(f"k{number}", window.taps, WINDOW))
        else:
            kernel.append(Affine((), 0))
    features = len(dims)
    inputs = rhs[split.place(split.axes.rhs[1], split.axes.rhs[0])]
    dims.append(Dim("i", int(inputs), REDUCTION))
    left, right = _channel_axes(split, of, features)
    for number, window in enumerate(windows):
        axis = split.place(split.axes.lhs[2 + number], split.lhs_axis)
        left[axis] = Affine(((of[3 + number], 1), (elements[number], 1)), _reach(window)[0])
        right[split.place(split.axes.rhs[2 + number], split.axes.rhs[0])] = kernel[number]
    return _form_of(dims, left, right, kept)


def is_contracted(window: Window, phase: Phase) -> bool:
    """Return whether a phase has several taps but a single output: no window slides, all taps are summed over."""
    return phase.taps > 1 and window.phase_outputs == 1


def _conv_form(
    lhs: Seq[int], rhs: Seq[int], split: _Split, windows: Seq[Window], phases: Seq[Phase]
) -> OpForm:
    """Return the form of one phase: dimensions of the result in its order, then taps, then input features.

    Taps of a single output are summed over as features are, and the result has no dimension for it.
    """
    field = [window.phase_outputs for window in windows]
    contracted = [is_contracted(*each) for each in zip(windows, phases, strict=True)]
    shape = split.result_shape(lhs, rhs, field)
    names = split.result_shape_of(0, 1, 2, range(3, 3 + len(field)))
    kept = [each for each in zip(names, shape, strict=True) if each[0] < 3 or not contracted[each[0] - 3]]
    of = {part: number for number, (part, _) in enumerate(kept)}
    dims = [Dim(_name(part), int(n)) for part, n in kept]
    tap_dims: list[int | None] = []
    for number, phase in enumerate(phases):
        tap_dims.append(len(dims) if phase.taps > 1 else None)
        if phase.taps > 1:
            dims.append(Dim(f"k{number}", phase.taps, REDUCTION if contracted[number] else WINDOW))
    features = len(dims)
    inputs = rhs[split.place(split.axes.rhs[1], split.axes.rhs[0])]
    dims.append(Dim("i", int(inputs), REDUCTION))
    left, right = _channel_axes(split, of, features)
    for number, (phase, tap) in enumerate(zip(phases, tap_dims, strict=True)):
        axis = split.place(split.axes.lhs[2 + number], split.lhs_axis)
        left[axis] = phase.operand_axis(of.get(3 + number), tap)
        right[split.place(split.axes.rhs[2 + number], split.axes.rhs[0])] = phase.kernel_axis(tap)
    return _form_of(dims, left, right, len(kept))


def _channel_axes(
    split: _Split, of: dict[int, int], features: int
) -> tuple[dict[int, Affine], dict[int, Affine]]:
    """Return how axes other than windows are indexed, of both operands, given the dimensions of the result's parts."""
    left = {
        split.place(split.axes.lhs[0], split.lhs_axis): along(of[0]),
        split.place(split.axes.lhs[1], split.lhs_axis): along(features),
    }
    right = {
        split.place(split.axes.rhs[0], split.axes.rhs[0]): along(of[2]),
        split.place(split.axes.rhs[1], split.axes.rhs[0]): along(features),
    }
    if split.groups > 1:
        left[split.lhs_axis] = right[split.axes.rhs[0]] = along(of[1])
    return left, right


def _form_of(dims: Seq[Dim], left: dict[int, Affine], right: dict[int, Affine], kept: int) -> OpForm:
    """Return the form of operands with the given axes, whose first dimensions are the result's."""
    maps = (
        IndexMap(tuple(left[a] for a in range(len(left))), 0),
        IndexMap(tuple(right[a] for a in range(len(right)))),
    )
    return OpForm(tuple(dims), maps, (identity_map(kept),))


def _name(part: int) -> str:
    return {0: "b", 1: "g", 2: "o"}.get(part, f"y{part - 3}")
