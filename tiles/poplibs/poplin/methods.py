"""The ways a contraction's vertex may compute: the fastest for a cell, its cycles, and the order it reads and writes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tiles.errors import InvalidGraph
from tiles.graph import Arrangement, Cycles, Extents, OpForm
from tiles.numerics.dtypes import (
    WORD_BYTES,
    greatest_magnitude,
    is_exact_half,
    is_integer,
    is_narrow_float,
    itemsize,
    to_jax,
)
from tiles.numerics.shared import Amount
from tiles.poplibs.poplin.casts import NO_CAST, cast_cycles, casts_by_code
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


EXACT_SUM = 2**24
"""Up to which magnitude float32 counts integers one by one."""
HELD = "int8"
"""The integers that operands of halves hold where products are added up to integers."""


@dataclass(frozen=True)
class Stream:
    """How the operands of a contraction pass through the product units.

    Args:
      dtype: in which operands pass.
      sums: dtype in which the units add.
      units: how many there are for these, 0 for none.
      channels: weights that one of them holds.
      most_inputs: products that sums hold to the bit, where they have to.
    """

    dtype: str
    sums: str
    units: int
    channels: int
    most_inputs: int = NEVER


def holds_integers(dtype: str, accumulate: str) -> bool:
    """Return whether operands of a dtype hold integers that are added up as such."""
    return dtype == "float16" and is_integer(to_jax(accumulate))


@lru_cache(maxsize=1024)
def stream_of(dtype: str, accumulate: str, target: Target) -> Stream:
    """Return how operands of a dtype pass through the product units, to be added in ``accumulate``.

    Halves and float32 pass as they are, and 8-bit floats of the machine's own formats where it has units for them with
    these partials: half ones, as PopLibs' vertices for quarters have (lib/poplin/PerformanceEstimation.hpp). What is a
    half without rounding is widened to one; all other floats to float32. Integers of at most 8 bits are halves as well,
    and so few of their products that none passes 2^24 add up in float32 to the bit, in any order. Halves that are added up to
    integers hold such ones, ``HELD``.
    """
    sums, most_inputs = accumulate, NEVER
    if holds_integers(dtype, accumulate):
        streamed, sums, most_inputs = dtype, "float32", EXACT_SUM // greatest_magnitude(HELD) ** 2
    elif dtype == "float16" or (is_narrow_float(dtype) and target.conv_units(dtype, accumulate)):
        streamed = dtype
    elif is_integer(to_jax(dtype)) and itemsize(dtype) == 1 and itemsize(accumulate) <= WORD_BYTES:
        streamed, sums, most_inputs = "float16", "float32", EXACT_SUM // greatest_magnitude(dtype) ** 2
    elif not is_narrow_float(dtype):
        streamed = "float32"  # of which other types have no units either: partials of theirs are no floats of 32 bits
    else:
        is_half = is_exact_half(dtype) and target.conv_units("float16", accumulate)
        streamed = "float16" if is_half else "float32"
    units, channels = target.conv_units(streamed, sums), target.weights_per_conv_unit(streamed)
    return Stream(streamed, sums, units, channels, most_inputs)


def streamed_dtype(dtypes: Sequence[str]) -> str:
    """Return the dtype of a contraction's operands that says how both pass: of integers the one of greater numbers."""
    first = dtypes[0]
    return max(dtypes, key=greatest_magnitude) if is_integer(to_jax(first)) else first


def widening_cycles(dtype: str, streamed: str, elements: Amount, target: Target) -> Cycles:
    """Return the cycles of widening operands on all workers before they are streamed, one operand after the other.

    PopLibs' vertices widen none: they are DERIVED where all of the vertex has code, else ASSUMED.
    """
    if dtype == streamed:
        return NO_CAST
    cast, start = (cast_cycles(dtype, streamed, n, target) for n in (elements, 0))
    has_code = casts_by_code(dtype, streamed, target)
    own = Basis.DERIVED if has_code else Basis.ASSUMED
    return Cycles(cast.value + start.value, Basis.weakest([cast.basis, own]), cast.source)


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
        cast = cast_cycles(accumulate, out_dtype, extents.results, target)
        value = value + cast.value + target.worker_issue_interval_cycles * 2
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
