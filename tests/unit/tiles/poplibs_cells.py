"""A slow, obvious runner for the tests of codelets: one cell at a time, operands gathered by numpy.

It shares nothing with the engines but the codelet and the plan's slices, so it is a witness for builders.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from tiles.graph import Cell, Codelet, Copy, Execute, Extents, Graph, OpForm, Plan
from tiles.numerics.dtypes import is_float, to_jax, unsigned_of
from tiles.numerics.ring import ring, to_ring
from tiles.plan import OUTSIDE, UNUSED, operand_slices
from tiles.planning import Planner


def whole_cell(form: OpForm) -> Cell:
    return Cell(form, form.shape, (0,) * len(form.dims), (None,) * len(form.dims))


def run_whole(codelet: Codelet, form: OpForm, *operands) -> tuple[np.ndarray, ...]:
    results = codelet.compute(whole_cell(form), *(jnp.asarray(x) for x in operands))
    return tuple(np.asarray(r) for r in results)


def extents_of(form: OpForm, operands: Sequence[str], results: Sequence[str], sizes=None) -> Extents:
    chosen = [np.atleast_1d(np.asarray(n)) for n in (sizes or form.shape)]
    return Extents(form, tuple(chosen), tuple(operands), tuple(results))


def words(x: np.ndarray) -> np.ndarray:
    """Return an array as the ring carries it."""
    return np.asarray(to_ring(np.asarray(x)))


@functools.cache
def _compiled(codelet: Codelet, form: OpForm, sizes, limited, dtypes, arithmetic: str):
    """Return one cell's computation, compiled once for all cells of its extents."""

    def compute(origin, limits, *operands):
        known = [limits[i] if i in limited else None for i in range(len(sizes))]
        cell = Cell(form, sizes, tuple(origin), tuple(known))
        if arithmetic == "float":
            return codelet.compute(cell, *operands)
        return ring(lambda *xs: codelet.compute(cell, *xs), list(dtypes))(*operands)

    return jax.jit(compute)


def compute_cell(codelet: Codelet, form: OpForm, lo, sizes, limits, operands, dtypes, arithmetic: str):
    """Return the results of one cell under an arithmetic."""
    limited = frozenset(d for d, limit in enumerate(limits) if limit is not None)
    run = _compiled(codelet, form, tuple(sizes), limited, tuple(dtypes), arithmetic)
    given = np.array([0 if limit is None else limit for limit in limits], np.int32)
    return run(np.array(lo, np.int32), given, *operands)


def stored_dtype(dtype: str, arithmetic: str) -> np.dtype:
    """Return the numpy dtype in which values of a dtype are held under an arithmetic."""
    return unsigned_of(dtype) if arithmetic == "ring" and is_float(dtype) else to_jax(dtype)


def run_cells(
    codelet: Codelet,
    form: OpForm,
    plan: Plan,
    operands: Sequence[np.ndarray],
    operand_dtypes: Sequence[str],
    result_dtypes: Sequence[str],
    arithmetic: str = "float",
    padded: bool = False,
) -> list[np.ndarray]:
    """Run every cell of a plan on its own and put the results together; partials stay apart in front.

    ``padded`` hands every cell slices of the full grain, filled with zeros, windows with rubbish, and tells it the limits.
    """
    split = plan.split_reductions(form)
    lead = (plan.num_partials(form),) if split else ()
    shapes = [lead + tuple(form.dims[d].size for d in r.dims) for r in form.results]
    dtypes = [stored_dtype(d, arithmetic) for d in result_dtypes]
    results = [np.zeros(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    for number, at in enumerate(itertools.product(*(range(s.parts) for s in plan.splits))):
        lo = [int(s.lo[i]) for s, i in zip(plan.splits, at, strict=True)]
        hi = [int(s.hi[i]) for s, i in zip(plan.splits, at, strict=True)]
        sizes, limits = [h - a for a, h in zip(lo, hi, strict=True)], [None] * len(lo)
        if padded:
            for d in form.reduced:
                full = min(plan.splits[d].grain, plan.splits[d].size)
                limits[d], sizes[d] = sizes[d], full
        slices = [
            _slice(form, plan, k, x, number, operand_dtypes[k], arithmetic, padded)
            for k, x in enumerate(operands)
        ]
        parts = compute_cell(codelet, form, lo, sizes, limits, slices, operand_dtypes, arithmetic)
        row = 0
        for d in split:
            row = row * plan.splits[d].parts + at[d]
        for k, part in enumerate(parts):
            place = tuple(slice(lo[d], hi[d]) for d in form.results[k].dims)
            results[k][((row, *place) if split else place)] = np.asarray(part)
    return results


def _slice(form, plan, k, x, number, dtype, arithmetic, padded) -> np.ndarray:
    """Gather what cell ``number`` reads of operand k."""
    slices = operand_slices(form, plan, k, x.shape)
    fill = form.operands[k].fill
    outside = np.array(0 if fill is None else fill).astype(to_jax(dtype))
    outside = words(outside) if arithmetic == "ring" else outside
    keep, index = [], []
    for axis, where in zip(slices.axes, slices.coordinates, strict=True):
        row = axis.index[where[number]]
        reduced = padded and any(form.dims[d].is_reduced for d in axis.dims)
        row = row if reduced else row[row != UNUSED]
        index.append(np.maximum(row, 0))
        keep.append(row)
    taken = x[np.ix_(*index)] if index else x
    for axis, row in enumerate(keep):
        shape = [-1 if a == axis else 1 for a in range(len(keep))]
        taken = np.where((row == OUTSIDE).reshape(shape), outside, taken)
        if len(slices.axes[axis].dims) == 1:
            taken = np.where((row == UNUSED).reshape(shape), np.zeros((), x.dtype), taken)
    return taken


def run_graph(
    graph: Graph, inputs: dict[str, np.ndarray], arithmetic: str = "float"
) -> dict[str, np.ndarray]:
    """Plan a graph, run its main program step by step and return every tensor's value."""
    graph = Planner().plan(graph)
    values = dict(inputs)

    def value(name: str) -> np.ndarray:
        tensor = graph.tensors[name]
        if name not in values and tensor.value is not None:
            return words(tensor.value) if arithmetic == "ring" else tensor.value
        return values[name] if name in values else value(tensor.view_of).reshape(tensor.shape)

    for step in graph.program.steps:
        if isinstance(step, Copy):
            shape = graph.tensors[step.destination].shape
            parts = [value(name) for name in step.sources]
            values[step.destination] = (
                np.concatenate(parts, step.axis) if step.axis is not None else parts[0].reshape(shape)
            )
            continue
        assert isinstance(step, Execute)
        for group in graph.compute_sets[step.compute_set].vertices:
            results = run_cells(
                group.codelet,
                group.form,
                group.plan,
                [value(name) for name in group.operands],
                [graph.tensors[name].dtype for name in group.operands],
                [graph.tensors[name].dtype for name in group.results],
                arithmetic,
            )
            values.update(zip(group.results, results, strict=True))
    return {name: value(name) for name in graph.tensors if name in values or graph.tensors[name].view_of}
