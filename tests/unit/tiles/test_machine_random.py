"""The machine's own generator: what its numbers are like, that engines agree on them, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.tiles.poplibs_cells import extents_of
from tiles.compiler import compile_graph
from tiles.engine import make_engine
from tiles.errors import InvalidGraph
from tiles.graph import Graph
from tiles.poplibs import poprand
from tiles.poplibs.forms import map_form
from tiles.poplibs.poprand import MachineRandom
from tiles.target import Target

TILES = Target.named("gc200").replace(num_tiles=7)
SEED = np.array([3, 5], np.uint64)


def _drawn(distribution, dtype, engine="fast", n=4000, seed=SEED):
    graph = Graph(TILES)
    operand = graph.add_input((2,), "uint64", "seed")
    graph.outputs.append(poprand.machine_random(graph, operand, (n,), dtype, distribution).name)
    (values,), _ = make_engine(compile_graph(graph), engine).run(seed)
    return np.asarray(values)


@pytest.mark.parametrize(
    ("distribution", "dtype"), [("bits", "uint32"), ("uniform", "float16"), ("normal", "float32")]
)
def test_engines_agree_and_another_seed_draws_others(distribution, dtype):
    drawn = _drawn(distribution, dtype, n=300)
    again = _drawn(distribution, dtype, "literal", n=300)
    np.testing.assert_allclose(drawn, again, rtol=1e-6 if distribution == "normal" else 0)
    assert (drawn != _drawn(distribution, dtype, n=300, seed=SEED + np.uint64(1))).mean() > 0.9


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_moments_are_those_of_the_distributions(dtype):
    uniform, normal = (_drawn(name, dtype).astype(np.float64) for name in ("uniform", "normal"))
    assert uniform.min() >= 0 and uniform.max() < 1
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
