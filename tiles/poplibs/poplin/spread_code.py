"""Tile code of convolutions over a spread array: as many sums a position as there are phases, each of the taps that it meets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product as pairs
from typing import Any

import numpy as np

from tiles.elements import instructions_for
from tiles.errors import NoTileCode
from tiles.graph import Extents, VertexCode
from tiles.graph.cycles import Field
from tiles.numerics.dtypes import itemsize
from tiles.poplibs.poplin.conv_code import Taps, Units
from tiles.poplibs.poplin.conv_cycles import ConvShape, spread_ways
from tiles.poplibs.poplin.methods import streamed_dtype
from tiles.poplibs.poplin.units_code import (
    CAST,
    INPUTS,
    RUNS,
    SUMS,
    WEIGHTS,
    extent_of,
    filled_up,
    in_floats,
    in_order,
    streamed_product,
    weights_bits,
)
from tiles.poplibs.poplin.widening_code import widened
from tiles.target import Target

Met = tuple[tuple[int, ...], tuple[int, ...]]
"""A tap that a phase meets: how far from a position its element lies, and its place in the kernel, along each window."""


@dataclass(frozen=True)
class Spread:
    """The windows of a ``SpreadConvolution``: see there."""

    phases: tuple[int, ...]
    taps: tuple[int, ...]
    origins: tuple[int, ...]

    def met(self, reach: Sequence[int]) -> list[list[Met]]:
        """Return the taps that every phase meets, in row-major order of phases; windows reach so far."""
        along: list[list[list[tuple[int, int]]]] = []
        for phases, taps, origin, n in zip(self.phases, self.taps, self.origins, reach, strict=True):
            places = [[(t, phases * t + origin - r) for t in range(n)] for r in range(phases)]
            along.append([[(t, k) for t, k in phase if 0 <= k < taps] for phase in places])
        found: list[list[Met]] = []
        for phase in pairs(*along):
            each = [tuple(zip(*taps, strict=True)) for taps in pairs(*phase)]
            found.append([(at, place) for at, place in each])
        return found


def spread_code(
    method: str,
    accumulate: str,
    out_dtype: str,
    windows: Spread,
    shape: ConvShape,
    extents: Extents,
    target: Target,
    name: str,
) -> tuple[VertexCode, ...]:
    """Return the code of vertices that convolve a spread array on the units; others run none.

    Raises:
      NoTileCode: no vertex does, or the units do not take these dtypes as they are.
    """
    isa, bits = instructions_for(target), weights_bits(target)
    methods, combined = spread_ways(method, accumulate, shape, extents, target)
    points = np.asarray(extents.points)
    does = (methods == "amp").reshape(points.shape) & (points > 0)
    if not does.any():
        raise NoTileCode(
            f"convolutions over an array that is spread out by method {', '.join(sorted(set(methods.tolist())))}"
        )
    dtype = streamed_dtype(extents.operand_dtypes)
    product = streamed_product(dtype, accumulate, target)
    units = Units(isa, bits, product, out_dtype, extents.form, shape, name)
    kind = partial(_SpreadTaps, windows=windows)
    parts = units.taps(does, combined.reshape(points.shape), 1, extents, kind)
    return tuple(in_floats(widened(parts, dtype, product.dtype, extents, isa, name), accumulate))


@dataclass(frozen=True)
class _SpreadTaps(Taps):
    """Panels of taps, phase by phase; a phase that meets none has one of zeros, behind all others.

    Attributes:
      windows: which taps a phase meets.
    """

    windows: Spread

    @property
    def results_each(self) -> int:
        """See ``Taps``."""
        return math.prod(self.windows.phases)

    def _met(self, sizes: Sequence[int]) -> list[list[Met]]:
        """Return the taps of all phases, for windows of two dimensions at least."""
        g, windows = self.geometry(sizes), self.windows
        one = len(g.taps) - len(windows.taps)
        whole = replace(
            windows,
            phases=(1,) * one + windows.phases,
            taps=(1,) * one + windows.taps,
            origins=(0,) * one + windows.origins,
        )
        return whole.met(g.taps)

    def panels_each(self, shape: ConvShape) -> tuple[Any, Any]:
        """See ``Taps``."""
        reach = [self.form.dims[d].size for d in self.roles.taps]
        counts = [len(taps) for taps in self.windows.met(reach)]
        inputs = -(-(self.combined * shape.inputs) // self.channels)
        return len(counts), inputs * sum(counts) - sum(n > 0 for n in counts)

    def panels(self, sizes: Sequence[int], kernel: np.ndarray) -> np.ndarray:
        """Return panels ``[cells, panels, outputs, inputs]``: of groups, output groups, input groups, taps; one of zeros last."""
        roles, p = self.roles, self.product
        along = tuple(t + 1 for t, n in zip(roles.taps, self.windows.taps, strict=True) if n > 1)
        w = in_order(kernel, self.form, 1, (*roles.groups, *roles.outputs, *roles.inputs, *along))
        outputs, inputs = (extent_of(sizes, d) for d in (roles.outputs, roles.inputs))
        w = self.apart(w.reshape(len(w), -1, outputs, inputs, math.prod(self.windows.taps)))
        w = filled_up(filled_up(w, 2, p.outputs), 3, self.channels)
        groups, output_groups, input_groups = self.groups_of(sizes)
        w = w.reshape(len(w), groups, output_groups, p.outputs, input_groups, self.channels, -1)
        w = w.transpose(0, 1, 2, 4, 6, 3, 5).reshape(len(w), -1, p.outputs, self.channels)
        return np.concatenate([w, np.zeros_like(w[:, :1])], axis=1)

    def turns(self, is_first: bool, sizes: tuple[int, ...]) -> list[dict[str, Field]]:
        """See ``Taps``: the first panel of every phase, or all later ones."""
        g, p, windows = self.geometry(sizes), self.product, self.windows
        groups, output_groups, input_groups = self.groups_of(sizes)
        block = g.batch * math.prod(g.reach) * self.position_bytes
        sums_bytes = g.batch * math.prod(g.field) * p.outputs * itemsize(p.partials)
        taps, met = math.prod(windows.taps), self._met(sizes)
        whole = (1,) * (len(g.taps) - len(windows.taps)) + windows.taps
        found: list[dict[str, Field]] = []
        for group, o, (number, phase) in pairs(range(groups), range(output_groups), enumerate(met)):
            place = (group * output_groups + o) * len(met) + number
            fields: dict[str, Field] = {"out0": (SUMS, place * sums_bytes), "runs": RUNS}
            if not phase and is_first:
                last = groups * output_groups * input_groups * taps
                found.append({"in0": (INPUTS, 0), "weights": (WEIGHTS, last * p.panel_bytes), **fields})
            steps = list(pairs(range(input_groups), phase))
            for i, (at, tap) in steps[:1] if is_first else steps[1:]:
                start = (group * input_groups + i) * block + g.place(at) * self.position_bytes
                panel = ((group * output_groups + o) * input_groups + i) * taps + int(
                    np.ravel_multi_index(tap, whole)
                )
                found.append({"in0": (INPUTS, start), "weights": (WEIGHTS, panel * p.panel_bytes), **fields})
        return found

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        roles, phases = self.roles, self.results_each
        found = memory[SUMS if self.out_dtype == self.sums_dtype else CAST]
        cells, groups, output_groups, _, channels = found.shape
        found = found.reshape(cells, groups, output_groups, phases, -1, channels)
        found = found.transpose(0, 1, 3, 4, 2, 5).reshape(cells, groups, phases, -1, output_groups * channels)
        outputs = extent_of(sizes, roles.outputs)
        found = found[..., : self.combined * outputs].reshape(*found.shape[:4], self.combined, outputs)
        found = found.transpose(0, 1, 4, 2, 3, 5).reshape(cells, -1, *found.shape[2:4], outputs)
        found = found[:, : extent_of(sizes, roles.groups)]
        counts = tuple(q + 1 for q, n in zip(roles.field, self.windows.phases, strict=True) if n > 1)
        dims = (*roles.groups, *counts, *roles.batch, *roles.field, *roles.outputs)
        found = found.reshape(cells, *(sizes[d] for d in dims))
        return [found.transpose([0, *(1 + dims.index(d) for d in self.form.results[0].dims)])]
