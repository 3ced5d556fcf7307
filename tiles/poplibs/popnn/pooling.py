"""Primitives that place pooling and its gradient."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tiles.errors import InvalidGraph
from tiles.graph import (
    WINDOW,
    Affine,
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
from tiles.poplibs.popnn.pool import pool_codelet
from tiles.poplibs.popnn.select_scatter import select_scatter_codelet
from tiles.poplibs.popops.interleave import interleave, phase_numbers
from tiles.poplibs.popops.movement import slice as slice_tensor
from tiles.poplibs.popops.reduce import neutral_element
from tiles.poplibs.popops.reduction import reduce
from tiles.poplibs.poputil.copies import reshape
from tiles.poplibs.poputil.place import place
from tiles.poplibs.windows import Collection, Phase, Window


def pool(
    where: Graph | Site,
    x: Tensor,
    windows: Seq[Window],
    operation: str = "max",
    *,
    plan: Plan | None = None,
) -> Tensor:
    """Fold every window of a tensor; padding takes no part.

    Windows that each cover a whole axis are a reduction. A spread tensor (``Window.base``) is pooled phase by
    phase.

    Args:
      where: graph, or site in it, to add to.
      x: the tensor.
      windows: one per axis; of a single tap where nothing is folded.
      operation: add, mul, max, min, and, or, xor.
      plan: use this plan for every phase instead of searching.

    Raises:
      InvalidGraph: an unknown operation, or windows that do not fit.
    """
    _check(x, windows)
    site = site_of(where, f"pool_{operation}")
    outputs = [window.outputs for window in windows]
    wide = [d for d, window in enumerate(windows) if window != Window(window.size, 1)]
    if all(windows[d] == Window(windows[d].size, windows[d].size) for d in wide) and 0 not in x.shape:
        return reshape(site, reduce(site, x, wide, operation), outputs)
    codelet = pool_codelet(operation, x.dtype)
    fill = neutral_element(codelet.operation, x.dtype).item()
    parts: list[Tensor | None] = []
    for numbers in phase_numbers([window.num_phases for window in windows]):
        phases = [window.phase(number) for window, number in zip(windows, numbers, strict=True)]
        if not all(phase.taps for phase in phases):
            parts.append(None)
            continue
        form = _pool_form(windows, phases, fill)
        parts.append(place(site, codelet, form, [x], (x.dtype,), plan=plan)[0])
    if len(parts) == 1 and parts[0] is not None:
        return parts[0]
    shape = [window.phase_outputs for window in windows]
    counts = [window.num_phases for window in windows]
    return interleave(site.at("interleave"), parts, counts, outputs, dtype=x.dtype, shape=shape, fill=fill)


def _check(x: Tensor, windows: Seq[Window]) -> None:
    if tuple(window.size for window in windows) != tuple(x.shape):
        raise InvalidGraph(f"windows along {[window.size for window in windows]} elements of {x.shape}")


def _pool_form(windows: Seq[Window], phases: Seq[Phase], fill: float | int | bool) -> OpForm:
    """Return the form of one phase: dimensions of the result, then taps."""
    dims = [Dim(f"d{d}", window.phase_outputs) for d, window in enumerate(windows)]
    axes: list[Affine] = []
    for d, phase in enumerate(phases):
        tap = len(dims) if phase.taps > 1 else None
        if tap is not None:
            dims.append(Dim(f"k{d}", phase.taps, WINDOW))
        axes.append(phase.operand_axis(d, tap))
    return OpForm(tuple(dims), (IndexMap(tuple(axes), fill),), (identity_map(len(windows)),))


def select_and_scatter(
    where: Graph | Site,
    x: Tensor,
    source: Tensor,
    windows: Seq[Window],
    direction: str = "GE",
    *,
    plan: Plan | None = None,
) -> Tensor:
    """Add every element of ``source`` to the element of ``x`` that its window selects; zero elsewhere.

    An earlier element of a window stays while it compares with a later one as ``direction`` says (GE: the
    first of the greatest). Padding is never selected.

    Args:
      where: graph, or site in it, to add to.
      x: the tensor among whose elements windows select.
      source: one element per window, of the same dtype.
      windows: one per axis, neither spread nor dilated.
      direction: GE, GT, LE or LT.
      plan: use this plan instead of searching.

    Raises:
      InvalidGraph: windows, shapes or dtypes that do not fit.
    """
    site = site_of(where, "select_and_scatter")
    _check(x, windows)
    counts = tuple(window.outputs for window in windows)
    plain = all(window.base == window.dilation == 1 for window in windows)
    if not plain or counts != tuple(source.shape) or source.dtype != x.dtype:
        given = f"{source.dtype} {source.shape} as source"
        raise InvalidGraph(f"{counts} windows of {x.dtype} {x.shape}, {given}")
    collections = {
        d: Collection(window.size, window.taps, window.stride, window.low)
        for d, window in enumerate(windows)
        if window != Window(window.size, 1)
    }
    padded = not all(window.is_inside for window in windows)
    codelet = select_scatter_codelet(direction, x.dtype, collections, padded)
    form = _collecting_form(windows, collections)
    (blocks,) = place(site, codelet, form, [x, source], (x.dtype,), plan=plan)
    full = [
        collections[d].blocks * collections[d].stride if d in collections else window.size
        for d, window in enumerate(windows)
    ]
    result = reshape(site, blocks, full)
    if full == list(x.shape):
        return result
    return slice_tensor(site.at("cut"), result, [0] * len(full), list(x.shape))


def _collecting_form(windows: Seq[Window], collections: dict[int, Collection]) -> OpForm:
    """Return the form: blocks and their elements per axis, then windows within reach and their taps."""
    dims: list[Dim] = []
    block: list[int] = []
    for d, window in enumerate(windows):
        block.append(len(dims))
        if d not in collections:
            dims.append(Dim(f"d{d}", window.size))
            continue
        dims.append(Dim(f"d{d}", collections[d].blocks))
        if window.stride > 1:
            dims.append(Dim(f"e{d}", window.stride))
    kept = len(dims)
    read: list[Affine] = []
    taken: list[Affine] = []
    for d, where in enumerate(block):
        if d not in collections:
            read.append(along(where))
            taken.append(along(where))
            continue
        c = collections[d]
        reach, tap = ((where, 1),), ((where, c.stride),)
        if c.reach > 1:
            reach, tap = (*reach, (len(dims), 1)), (*tap, (len(dims), c.stride))
            dims.append(Dim(f"m{d}", c.reach, WINDOW))
        if c.taps > 1:
            tap = (*tap, (len(dims), 1))
            dims.append(Dim(f"k{d}", c.taps, WINDOW))
        read.append(Affine(tap, c.origin))
        taken.append(Affine(reach, c.first))
    maps = (IndexMap(tuple(read), 0), IndexMap(tuple(taken), 0))
    return OpForm(tuple(dims), maps, (identity_map(kept),))
