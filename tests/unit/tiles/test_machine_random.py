"""The machine's own generator: what its numbers are like, that engines agree on them, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.budgets import PROGRAM, budget
from tests.unit.tiles.elements_running import DATA, SCRATCH, STATE
from tests.unit.tiles.poplibs_cells import extents_of
from tiles.compiler import compile_graph
from tiles.elements import TileSimulator, instructions_for
from tiles.engine import coverage_of, make_engine
from tiles.errors import InvalidGraph, NoTileCode
from tiles.graph import Graph
from tiles.poplibs import poprand
from tiles.poplibs.forms import map_form
from tiles.poplibs.poprand import MachineRandom
from tiles.poplibs.poprand.machine import DTYPES
from tiles.target import Target

TILES = Target.named("gc200").replace(num_tiles=7)
SEED = np.array([3, 5], np.uint64)


def _drawn(distribution, dtype, engine="fast", n=4000, seed=SEED):
    graph = Graph(TILES)
    operand = graph.add_input((2,), "uint64", "seed")
    graph.outputs.append(poprand.machine_random(graph, operand, (n,), dtype, distribution).name)
    (values,), _ = make_engine(compile_graph(graph), engine).run(seed)
    return np.asarray(values)


def _check_alike(one, other, distribution):
    """Expect every bit; of normal numbers, which are computed, all but the last."""
    rtol = 2e-3 if one.dtype == np.float16 else 1e-6
    np.testing.assert_allclose(one, other, rtol=rtol if distribution == "normal" else 0)


DRAWN = [(name, dtype) for name, dtypes in DTYPES.items() for dtype in dtypes]


@pytest.mark.parametrize(("distribution", "dtype"), DRAWN)
def test_engines_agree_and_another_seed_draws_others(distribution, dtype):
    drawn = _drawn(distribution, dtype, n=300)
    again, by_code = (_drawn(distribution, dtype, engine, n=300) for engine in ("literal", "tile"))
    for other in (again, by_code):
        _check_alike(drawn, other, distribution)
    assert (drawn != _drawn(distribution, dtype, n=300, seed=SEED + np.uint64(1))).mean() > 0.9


@given(
    st.sampled_from(DRAWN),
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    st.integers(1, 7),
    st.sampled_from(["gc2", "gc200"]),
)
@budget(PROGRAM)
def test_vectors_of_any_cell_are_drawn_and_stored_by_code(drawn, shape, tiles, name):
    distribution, dtype = drawn
    graph = Graph(Target.named(name).replace(num_tiles=tiles))
    seed = graph.add_input((2,), "uint64", "seed")
    graph.outputs.append(poprand.machine_random(graph, seed, shape, dtype, distribution).name)
    executable = compile_graph(graph)
    (by_code,), _ = make_engine(executable, "tile").run(SEED)
    (expected,), _ = make_engine(executable, "literal").run(SEED)
    _check_alike(expected, by_code, distribution)
    assert coverage_of(executable).vertices_share == 1
    in_ring = [
        make_engine(executable, engine, arithmetic="ring").run(SEED)[0][0] for engine in ("tile", "fast")
    ]
    np.testing.assert_array_equal(*in_ring)


@pytest.mark.parametrize(("distribution", "dtype"), DRAWN)
@pytest.mark.parametrize("n", [1, 3, 41, 240, 6001])
def test_the_formula_is_what_the_simulator_counts(distribution, dtype, n):
    extents = extents_of(map_form((n,), []), (), (dtype,))
    (part,) = MachineRandom(distribution, dtype).tile_code(extents, TILES)
    simulator = TileSimulator(instructions_for(TILES), 1 << 17)
    given_words = np.zeros((1, 6, 6001), np.uint32)
    arguments = {"n": n, "out0": DATA, "generator": given_words}
    run = simulator.run(part.variant.code, arguments, STATE, SCRATCH)
    assert int(run.cycles[0]) == int(np.max(part.cycles))


def test_the_simulator_draws_what_it_is_handed():
    extents = extents_of(map_form((8,), []), (), ("float32",))
    (part,) = MachineRandom("uniform", "float32").tile_code(extents, TILES)
    simulator = TileSimulator(instructions_for(TILES), 1 << 17)
    with pytest.raises(NoTileCode, match="knows no numbers of the machine's generator"):
        simulator.run(part.variant.code, {"n": 8, "out0": DATA}, STATE, SCRATCH)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_moments_are_those_of_the_distributions(dtype):
    uniform, normal = (_drawn(name, dtype).astype(np.float64) for name in ("uniform", "normal"))
    assert uniform.min() > 0 and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.03 and abs(uniform.var() - 1 / 12) < 0.01
    assert np.isfinite(normal).all() and abs(normal.mean()) < 0.1 and abs(normal.std() - 1) < 0.05


def test_a_worker_draws_a_vector_of_floats_in_four_slots():
    extents = extents_of(map_form((6 * 40,), []), (), ("float32",))
    found = MachineRandom("uniform", "float32").cycles(extents, TILES)
    assert int(np.max(found.value)) == 4 + 6 * (24 + 4 * 20)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InvalidGraph, match="no uniform numbers of int8"):
        MachineRandom("uniform", "int8")
    graph = Graph(TILES)
    with pytest.raises(InvalidGraph, match="a seed of"):
        poprand.machine_random(graph, graph.add_input((2,), "uint32", "seed"), (4,), "float32")
