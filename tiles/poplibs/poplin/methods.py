"""The ways a contraction's vertex may compute: the fastest for a cell, its cycles, and the order it reads and writes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiles.errors import InvalidGraph
from tiles.graph import Arrangement, Cycles, Extents, OpForm
from tiles.numerics.dtypes import is_exact_half, is_narrow_float
from tiles.poplibs.popops.inner_loops import loop_of
from tiles.target import Basis, Target

NEVER = 2**62
"""Cycles of a method that cannot compute a cell."""
AUTO = "auto"


@dataclass(frozen=True)
class Method:
    """A way to compute, with its figures for many cells.

    Args:
      name: of the method.
      cycles: of every cell, ``NEVER`` where it cannot.
    """

    name: str
    cycles: Cycles


def streamed_as(dtype: str, accumulate: str, target: Target) -> str:
    """Return the dtype in which operands pass through the product units.

    Halves and float32 pass as they are, and 8-bit floats of the machine's own formats where it has units for them with
    these partials: half ones, as PopLibs' vertices for quarters have (lib/poplin/PerformanceEstimation.hpp). What is a
    half without rounding is widened to one; all else to float32.
    """
    if dtype == "float16" or (is_narrow_float(dtype) and target.conv_units(dtype, accumulate)):
        return dtype
    if not is_narrow_float(dtype):
        return "float32"  # of which other types have no units either: partials of theirs are no floats of 32 bits
    return "float16" if is_exact_half(dtype) and target.conv_units("float16", accumulate) else "float32"


def widening_cycles(dtype: str, streamed: str, elements: Any, target: Target) -> Any:
    """Return the cycles of widening operands on all workers before they are streamed (ASSUMED: PopLibs' casts)."""
    if dtype == streamed:
        return 0
    share = -(-np.asarray(elements) // target.workers_per_tile)
    cast = loop_of("convert", {"dtype": streamed}, dtype)
    return 12 + target.worker_issue_interval_cycles * (18 + 19 + cast.total(share, streamed, target))


def costs_of(method: str, table: Mapping[str, Callable[..., Cycles]], *arguments: Any) -> list[Method]:
    """Return the figures of a method, or of all of a table if it is to be chosen (``auto``)."""
    names = tuple(table) if method == AUTO else (method,)
    return [Method(name, table[name](*arguments)) for name in names]


def fastest(methods: Sequence[Method]) -> np.ndarray:
    """Return the position of the fastest method for every cell, int64."""
    return np.argmin(np.stack(np.broadcast_arrays(*(m.cycles.value for m in methods))), axis=0)


def vertex_cycles(
    methods: Sequence[Method], verb: str, accumulate: str, out_dtype: str, extents: Extents, target: Target
) -> Cycles:
    """Return the duration of the fastest method on all workers, and of the cast of its sums.

    Args:
      methods: what there is to choose from.
      verb: what they do, for errors: multiply, convolve.
      accumulate: dtype of the sums.
      out_dtype: dtype of the result; a cast is added where it is narrower.
      extents: cell sizes.
      target: the machine.

    Raises:
      InvalidGraph: no method computes these cells.
    """
    value = np.minimum.reduce(np.broadcast_arrays(*(m.cycles.value for m in methods)))
    if value.size and value.min() >= NEVER:
        names = ", ".join(m.name for m in methods)
        raise InvalidGraph(
            f"method {names} cannot {verb} {extents.operand_dtypes[0]} into {accumulate} at these extents"
        )
    basis = Basis.weakest(
        [m.cycles.basis for m in methods if bool(np.any(np.asarray(m.cycles.value) == value))]
    )
    if out_dtype != accumulate:
        share = -(-np.asarray(extents.results) // target.workers_per_tile)
        cast = loop_of("convert", {"dtype": out_dtype}, accumulate)
        worker = 18 + 19 + cast.total(share, out_dtype, target) + 2
        value = value + 12 + target.worker_issue_interval_cycles * worker
        basis = Basis.weakest([basis, cast.basis])
    return Cycles(value, basis, methods[0].cycles.source)


def grouped(form: OpForm, dims: Sequence[int], size: int) -> int | None:
    """Return which of some domain dimensions is counted in groups of ``size``: the last that fills one, or the largest."""
    wide = [d for d in dims if form.dims[d].size >= size]
    return wide[-1] if wide else max(reversed(dims), key=lambda d: form.dims[d].size, default=None)


def order_of(
    form: OpForm, *blocks: Sequence[int], groups: Sequence[tuple[Sequence[int], int]] = ()
) -> Arrangement:
    """Return the order that goes through blocks of domain dimensions, the slowest first.

    Args:
      form: the operation.
      blocks: dimensions that are counted one after another.
      groups: dimensions of which one is counted in groups (see ``grouped``), and elements of a group; the slowest first.
    """
    counted = [(d, 0) for block in blocks for d in block]
    inner = [(grouped(form, dims, size), size) for dims, size in groups if size > 1]
    return Arrangement((*counted, *((d, n) for d, n in inner if d is not None and form.dims[d].size > 1)))
