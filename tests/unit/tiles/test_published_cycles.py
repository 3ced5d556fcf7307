"""Estimates against measurements on silicon that others published; the whole table is ``python -m benchmarks.silicon``."""

from __future__ import annotations

import numpy as np
import pytest

from tiles.compiler import compile_graph, step_costs
from tiles.graph import Extents, Graph
from tiles.poplibs import poplin
from tiles.poplibs.forms import dot_form
from tiles.report import cost_analysis
from tiles.target import Target

BOW = Target.named("bow")

# github.com/graphcore-research/tessellate-ipu, notebooks/IPU Peak Flops.ipynb: [rows, 16] x [16, 16] in float16 on
# every tile of a Bow, TFLOP/s worked back to cycles.
ON_A_TILE = {64: 584, 128: 845.3, 256: 1352, 512: 2381.3, 1024: 4424, 2048: 8525.3}

# github.com/graphcore-research/sparsity-benchmarks, analysis/Analysis.ipynb (arXiv:2303.16999), read off the plot of
# dense matmuls to 3 %: columns of a [1024, 1024] x [1024, columns] product in float32, TFLOP/s. Of small products we
# miss a part (benchmarks/results/silicon.md), so the bound is wider there.
ON_A_DEVICE = {64: (21.35, 0.25), 1024: (43.6, 0.1), 4096: (55.49, 0.1)}


@pytest.mark.parametrize(("rows", "measured"), ON_A_TILE.items())
def test_a_matmul_on_the_amp_units_of_one_tile(rows, measured) -> None:
    form = dot_form((rows, 16), (16, 16), (), (), (1,), (0,))
    codelet = poplin.matmul_codelet("float16", "float16", "float32", "amp")
    sizes = tuple(np.array([dim.size]) for dim in form.dims)
    extents = Extents(form, sizes, ("float16", "float16"), ("float32",))
    assert codelet.cycles(extents, BOW).value[0] == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("columns", ON_A_DEVICE)
def test_a_dense_matmul_on_a_whole_ipu(columns) -> None:
    tflops, bound = ON_A_DEVICE[columns]
    graph = Graph(BOW)
    lhs, rhs = (
        graph.add_input((1024, 1024), "float32", "lhs"),
        graph.add_input((1024, columns), "float32", "rhs"),
    )
    graph.outputs.append(poplin.matmul(graph, lhs, rhs).name)
    executable = compile_graph(graph, check_memory=False)
    cycles = sum(cost.cycles for cost in step_costs(executable))
    flops = 2 * 1024 * 1024 * columns
    low, high = cost_analysis(executable)["cycles_range"]
    assert low < flops / (tflops * 1e12) * BOW.clock_hz < high
    assert flops / (cycles / BOW.clock_hz) / 1e12 == pytest.approx(tflops, rel=bound)
