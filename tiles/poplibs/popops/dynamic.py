"""Primitives at runtime offsets: dynamic slices and updates, row lookups and row updates.

The names are PopLibs'. Indices are integer tensors, one per axis that they move along.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tiles.errors import InvalidGraph
from tiles.graph import (
    REDUCTION,
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
from tiles.poplibs.popops.slicing import MultiSlice
from tiles.poplibs.popops.updating import MultiUpdate
from tiles.poplibs.poputil.place import place

SCALAR = IndexMap(())


def dynamic_slice(
    where: Graph | Site, x: Tensor, starts: Seq[Tensor | None], sizes: Seq[int], plan: Plan | None = None
) -> Tensor:
    """Take ``sizes`` elements from scalar offsets, moved to the nearest place where the slice lies inside.

    Args:
      where: graph, or site in it, to add to.
      x: the tensor.
      starts: one scalar integer tensor per axis; not read, so None will do, where an axis is taken whole.
      sizes: elements taken along each axis.
      plan: use this plan instead of searching.

    Raises:
      InvalidGraph: not one start and size per axis, or a slice larger than the tensor.
    """
    site = site_of(where, "dynamic_slice")
    _require_fits(x, starts, sizes)
    cut = [axis for axis, (n, size) in enumerate(zip(sizes, x.shape, strict=True)) if n != size]
    if not cut:
        return x
    rank = len(x.shape)
    dims = [Dim(f"d{i}", int(n)) for i, n in enumerate(sizes)]
    dims += [Dim(f"r{axis}", x.shape[axis], REDUCTION) for axis in cut]
    table = IndexMap(tuple(along(rank + cut.index(i) if i in cut else i) for i in range(rank)))
    form = OpForm(tuple(dims), (table, *(SCALAR for _ in cut)), (identity_map(rank),))
    codelet = MultiSlice(tuple(cut), tuple(cut), x.dtype)
    operands = [x, *_given(starts, cut)]
    return place(site, codelet, form, operands, (x.dtype,), plan=plan)[0]


def dynamic_update_slice(
    where: Graph | Site, x: Tensor, update: Tensor, starts: Seq[Tensor | None], plan: Plan | None = None
) -> Tensor:
    """Replace a slice of a tensor, at scalar offsets moved to the nearest place where the slice lies inside.

    The tensor's own memory takes the result where nothing reads it afterwards.

    Args:
      where: graph, or site in it, to add to.
      x: the tensor.
      update: what the slice becomes.
      starts: one scalar integer tensor per axis; not read, so None will do, where an axis is replaced whole.
      plan: use this plan instead of searching.

    Raises:
      InvalidGraph: not one start per axis, another dtype, or an update larger than the tensor.
    """
    site = site_of(where, "dynamic_update_slice")
    _require_fits(x, starts, update.shape)
    if update.dtype != x.dtype:
        raise InvalidGraph(f"{x.name} of {x.dtype} cannot be updated with {update.dtype}")
    cut = [axis for axis, (n, size) in enumerate(zip(update.shape, x.shape, strict=True)) if n != size]
    if not cut:
        return update
    if 0 in update.shape:
        return x
    rank = len(x.shape)
    dims = [Dim(f"d{i}", n) for i, n in enumerate(x.shape)]
    dims += [Dim(f"u{axis}", update.shape[axis], REDUCTION) for axis in cut]
    windows = [rank + cut.index(i) if i in cut else i for i in range(rank)]
    form = OpForm(
        tuple(dims),
        (identity_map(rank), IndexMap(tuple(along(d) for d in windows)), *(SCALAR for _ in cut)),
        (identity_map(rank),),
    )
    codelet = MultiUpdate(tuple(cut), tuple(windows[axis] for axis in cut), "set", x.dtype, is_clamped=True)
    operands = [x, update, *_given(starts, cut)]
    return place(site, codelet, form, operands, (x.dtype,), plan=plan)[0]


def _given(starts: Seq[Tensor | None], cut: Seq[int]) -> list[Tensor]:
    found = [start for axis in cut if (start := starts[axis]) is not None]
    if len(found) != len(cut):
        raise InvalidGraph(f"axes {tuple(cut)} are cut, and not all of them have a start")
    return found


def _require_fits(x: Tensor, starts: Seq[Tensor | None], sizes: Seq[int]) -> None:
    complete = len(starts) == len(sizes) == len(x.shape)
    if not complete or any(not 0 <= n <= size for n, size in zip(sizes, x.shape, strict=True)):
        raise InvalidGraph(
            f"a slice of {tuple(sizes)} at {len(starts)} offsets does not fit in {x.name} of {x.shape}"
        )
