"""Matrix products: on a tile, on a whole IPU, sparse ones."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np

from ipuxla.calibration.figures import COMPUTE, EXCHANGE, Figure, figure
from ipuxla.calibration.parameters import MissingParameter, NotModelled
from ipuxla.calibration.records import Record
from ipuxla.calibration.work import Work, compiled_graph, machine
from tiles.compiler import Executable, step_costs
from tiles.graph import Graph, Site
from tiles.numerics.dtypes import itemsize
from tiles.poplibs import poplin, popsparse
from tiles.poplibs.forms import dot_form
from tiles.poplibs.poplin.matmul import partials_of
from tiles.poplibs.poputil.place import place
from tiles.report import memory_analysis
from tiles.target import Target

SWEEP = (512, 1024, 1536, 2048, 2560)
"""Square products of a sweep whose best is published without its size."""


def product(
    target: Target,
    m: int,
    k: int,
    n: int,
    dtype: str,
    *,
    partials: str | None = None,
    batch: int = 1,
    may_swap: bool = True,
) -> Executable:
    """Return a matmul ``[batch, m, k] x [batch, k, n]``, as a builder of poplin records it.

    Args:
      target: the machine.
      m: rows.
      k: contracted.
      n: columns.
      dtype: of the operands.
      partials: dtype of partials; that of an ordinary product by default.
      batch: products side by side.
      may_swap: whether the left operand may be the weights that the units hold.
    """
    lead = [batch] if batch > 1 else []
    out = dtype if itemsize(dtype) > 1 else "float16"
    partials = partials or partials_of(dtype, out)
    graph, b = Graph(target), len(lead)
    lhs, rhs = graph.add_input((*lead, m, k), dtype, "lhs"), graph.add_input((*lead, k, n), dtype, "rhs")
    form = dot_form(lhs.shape, rhs.shape, range(b), range(b), (b + 1,), (b,))
    codelet = poplin.MatMul((dtype, dtype), partials, out, may_swap=may_swap)
    graph.outputs.append(place(Site(graph, "matmul"), codelet, form, [lhs, rhs], (out,))[0].name)
    return compiled_graph(graph)


def by_poplibs(
    target: Target, m: int, k: int, n: int, dtype: str, *, partials: str | None = None, batch: int = 1
) -> Executable:
    """Return a matmul as ``poplin::matMul`` computes it, with the operand as weights that PopLibs' planner takes.

    It is a convolution whose weights are the left operand, whose field are the columns of the right one
    (lib/poplin/MatMul.cpp). The planner exchanges them only where that saves more than bringing both operands and the
    result into another order, for which it counts 4 bytes a cycle of exchange and copies element by element
    (lib/poplin/ConvModel.cpp), though operands that are created for the plan lie right from the start.
    """
    build = functools.partial(product, target, dtype=dtype, partials=partials, batch=batch, may_swap=False)
    left, right = build(n, k, m), build(m, k, n)
    size = itemsize(dtype)
    tile_bytes = batch * (m * k + k * n + m * n) * size / target.num_tiles
    moved = tile_bytes / target.exchange_bytes_per_cycle + tile_bytes * 5 / (4 * size)
    cycles = [figure(each, (COMPUTE, EXCHANGE)).cycles for each in (left, right)]
    return right if cycles[1] + moved < cycles[0] else left


def _sizes(record: Record) -> tuple[int, int, int, int, str, str | None]:
    p = record.params
    dtype = p.dtype()
    partials = p.dtype("partials") if p.has("partials") else None
    if partials is not None and itemsize(partials) > 4:
        partials = None
    return p.integer("batch", 1), p.integer("m"), p.integer("k"), p.integer("n"), dtype, partials


def on_a_tile(record: Record) -> Work:
    """Return a product that one tile computes alone, its operands in place."""
    batch, m, k, n, dtype, partials = _sizes(record)
    executable = product(machine(record, num_tiles=1), m, k, n, dtype, partials=partials, batch=batch)
    tiles = record.params.integer("tiles", 1)
    found = figure(executable, (COMPUTE,))
    flops = 2.0 * batch * m * k * n * tiles
    return Work(found, executable.target.clock_hz, "matmul on one tile", flops=flops, items=tiles)


def on_a_device(record: Record) -> Work:
    """Return a product on a whole IPU; of a "compute set", only the vertices that multiply."""
    target = machine(record)
    if not record.params.has("m", "k", "n") and record.params.has("size"):
        return _best_of_sweep(record, target)
    batch, m, k, n, dtype, partials = _sizes(record)
    flops = 2.0 * batch * m * k * n
    executable = by_poplibs(target, m, k, n, dtype, partials=partials, batch=batch)
    if "compute set" in record.what:
        first = step_costs(executable)
        products = [cost for cost in first if cost.flops == max(c.flops for c in first)]
        found = figure(executable, (COMPUTE,), only=lambda cost: cost is products[0])
        return Work(found, target.clock_hz, "compute set of a matmul", flops=flops)
    parts = (COMPUTE, EXCHANGE) if "sparsity-benchmarks" in record.source else ("all",)
    return Work(figure(executable, parts), target.clock_hz, "matmul", flops=flops)


def _best_of_sweep(record: Record, target: Target) -> Work:
    """Return the square product with the highest rate among those that fit."""
    dtype = record.params.dtype()
    best: Work | None = None
    for size in SWEEP:
        if 3 * size * size * itemsize(dtype) > target.memory_bytes // 2:
            continue
        executable = by_poplibs(target, size, size, size, dtype)
        work = Work(figure(executable), target.clock_hz, f"matmul {size}", flops=2.0 * size**3)
        if best is None or _rate(work) > _rate(best):
            best = work
    if best is None:
        raise NotModelled("no product of the sweep fits")
    return best


def _rate(work: Work) -> float:
    return (work.flops or 0) / work.figure.cycles


BATCHES = (256, 1024, 2048, 4096)
"""Columns of the dense operand among which the best is taken, where a publication says that it did so."""


def sparse(record: Record) -> Work:
    """Return a block-sparse product: its rate, or how many times as fast as the dense one it is.

    Both have the columns that suit them best if the record states none. Blocks lie at random, as in the benchmark; what
    does not fit the machine is no candidate.
    """
    p, target = record.params, machine(record)
    m, k, block, dtype, density = (
        p.integer("m"),
        p.integer("k"),
        p.integer("block", 1),
        p.dtype(),
        _density(record),
    )
    if block not in popsparse.BLOCKS or m % block or k % block or dtype not in ("float16", "float32"):
        raise NotModelled(f"PopLibs has no sparse product of {m} x {k} {dtype} in blocks of {block}")
    is_dynamic = bool(re.search(r"\bdyn", f"{record.what} {record.id.replace('_', ' ')}".lower()))
    batches = (p.integer("n"),) if p.has("n") else BATCHES
    ours = [sparse_product(target, m, k, n, block, density, dtype, is_dynamic) for n in batches]
    quick = _best(ours, batches)
    if quick is None:
        raise NotModelled("the product does not fit the machine")
    built = f"{'dynamic' if is_dynamic else 'static'} {block} x {block} blocks"
    if record.unit != "x dense":
        return Work(quick, target.clock_hz, built, flops=2.0 * m * k * density)  # of a column
    dense = _best([by_poplibs(target, m, k, n, dtype) for n in batches], batches)
    if dense is None:
        raise NotModelled("the dense product does not fit the machine")
    ratio = dense.cycles / quick.cycles
    low, high = (ratio * factor for factor in SPEEDUP_BAND)
    return Work(
        Figure(ratio, low, high, quick.basis_cycles), target.clock_hz, f"{built}, over dense", is_plain=True
    )


def _density(record: Record) -> float:
    """Return the share of blocks that are there.

    Raises:
      MissingParameter: it is not stated, or is no share.
    """
    p = record.params
    found = 1 - p.real("sparsity") if p.has("sparsity") and not p.has("density") else p.real("density")
    if not 0 < found <= 1:
        raise MissingParameter(f"density {found:g} is no share of the blocks")
    return found


SPEEDUP_BAND = (0.62, 1.18)
"""Least and most of a speed-up over its estimate: both products are of vertices whose figures are DOCUMENTED."""


def _best(executables: Sequence[Executable], batches: Sequence[int]) -> Figure | None:
    """Return the cycles per column of the program with the fewest among those that fit."""
    found = [
        figure(each, (COMPUTE, EXCHANGE)).times(1 / n)
        for each, n in zip(executables, batches, strict=True)
        if memory_analysis(each)["fits"]
    ]
    return min(found, key=lambda each: each.cycles, default=None)


def sparse_product(
    target: Target, m: int, k: int, n: int, block: int, density: float, dtype: str, is_dynamic: bool
) -> Executable:
    """Return a product ``[m, k] x [k, n]`` whose left operand has blocks at random places."""
    shape = m // block, k // block
    count = max(1, round(density * shape[0] * shape[1]))
    places = np.sort(np.random.default_rng(0).choice(shape[0] * shape[1], count, replace=False))
    bands, parts = popsparse.split_of(shape, count, block, n, dtype, target, is_dynamic=is_dynamic)
    pattern = popsparse.cut(places // shape[1], places % shape[1], shape, bands, parts)
    graph = Graph(target)
    each = pattern.order.shape
    values = graph.add_input((*each, block, block), dtype, "values")
    rows, columns = (graph.add_input(each, "uint16", name) for name in ("rows", "columns"))
    dense = graph.add_input((k, n), dtype, "dense")
    site = Site(graph, "matmul")
    result = popsparse.sparse_dense_matmul(
        site, values, rows, columns, dense, pattern.rows, is_dynamic=is_dynamic
    )
    graph.outputs.append(result.name)
    return compiled_graph(graph)
