"""The vertex that adds up the partials of a split contraction or convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tiles.graph import Cycles, Extents, OpForm, register
from tiles.numerics.dtypes import is_float, itemsize
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.elementwise_cycles import cpp_name
from tiles.poplibs.popops.reduce import Reduce, combine_codelet, folding_cycles
from tiles.target import Basis, Target

SOURCE = "graphcore/poplibs lib/poplin/PerformanceEstimation.hpp, getReduceCycleEstimate"
_OUTER_SLOTS = {("float32", "float32"): 8, ("float32", "float16"): 7, ("float16", "float32"): 10}
_OUTER_SLOTS_SAME_HALF = 9


@register
@dataclass(frozen=True)
class ConvPartialReduce(Reduce):
    """Add partials over their leading axis.

    It computes what ``popops.Reduce`` computes; PopLibs gives contractions and convolutions a vertex of their
    own, which keeps a whole accumulator of results per worker.
    """

    name: ClassVar[str] = "poplin.ConvPartialReduce"

    @property
    def label(self) -> str:
        """Vertex type, e.g. ``poplin::ReduceAdd<half,float>`` (result, partials)."""
        return f"poplin::ReduceAdd<{cpp_name(self.out_dtype)},{cpp_name(self.value_dtype)}>"

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the PopLibs estimate: the single-input form for whole accumulators, else the general one.

        The single-input form adds all partials but the first to the first in a loop of a vector per load; the
        general one spends a slot more per partial and vector, on its pointer.
        """
        dtypes = (self.value_dtype, self.out_dtype)
        if self.operation != "add" or not set(dtypes) <= {"float16", "float32"}:
            return super().cycles(extents, target)
        partials, outputs = np.asarray(extents.reduced), np.asarray(extents.results)
        workers = target.worker_issue_interval_cycles
        lanes = accumulator_lanes(self.value_dtype)
        per_vector = lanes // min(lanes, target.data_path_bytes // itemsize(self.value_dtype))
        share = -(-(outputs // lanes) // target.workers_per_tile)
        outer = _OUTER_SLOTS.get(dtypes, _OUTER_SLOTS_SAME_HALF)
        single = 33 + workers * (20 + (per_vector * (partials - 1) + outer) * share)
        rest = np.where(outputs % lanes, 2 * partials + (13 if lanes == 4 else 11), 0)
        general = workers * (32 + rest + ((per_vector + 1) * partials + outer - 1) * share)
        value = np.where(outputs % lanes == 0, np.minimum(single, general), general)
        return Cycles(np.where(outputs == 0, 0, value), Basis.DOCUMENTED, SOURCE)

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer whole accumulators along the innermost dimension, so that the single-input form applies."""
        grains = list(super().grains(form, target))
        lanes = accumulator_lanes(self.value_dtype)
        innermost = [d for d in form.results[0].dims if form.dims[d].size > 1][-1:]
        for d in innermost:
            if form.dims[d].size >= 2 * lanes:
                grains[d] = max(grains[d], lanes)
        return tuple(grains)


def accumulator_lanes(partials_dtype: str) -> int:
    """Return the results a worker accumulates at once."""
    return 4 if partials_dtype == "float32" else 8


def add_partials(partials_dtype: str, out_dtype: str) -> ConvPartialReduce:
    """Return the vertex that adds partials of ``partials_dtype`` into ``out_dtype``."""
    return ConvPartialReduce((), "add", (partials_dtype,), partials_dtype, out_dtype)


def partials_cycles(
    partials_dtype: str, out_dtype: str, results: Amount, partials: Amount, target: Target
) -> Amount:
    """Return the cycles of a tile that joins ``partials`` of each of ``results`` sums, or truth values; see ``folding_cycles``."""
    if is_float(partials_dtype):
        folding: Reduce = add_partials(partials_dtype, out_dtype)
    else:
        folding = combine_codelet("or" if partials_dtype == "bool" else "add", partials_dtype, out_dtype)
    return folding_cycles(folding, results, partials, target)
