"""Builder programs compiled and run by every engine in the ring, against cells run one by one by numpy."""

import numpy as np
import pytest

from tests.unit.tiles.poplibs_cells import run_graph, words
from tiles.compiler import compile_graph
from tiles.engine import fast, make_engine
from tiles.engine.fast import FastEngine
from tiles.graph import AxisSplit, Graph, Plan, whole
from tiles.poplibs import poplin, popops, poputil
from tiles.poplibs.popops import arg, call
from tiles.target import Target

RNG = np.random.default_rng(0)
INPUTS = {
    "a": RNG.standard_normal((6, 10)).astype(np.float32),
    "b": RNG.standard_normal((10, 8)).astype(np.float32),
    "v": np.array(2.5, np.float32),
    "h": RNG.standard_normal((6, 10)).astype(np.float16),
}


def _program(num_tiles):
    graph = Graph(Target.named("gc200").replace(num_tiles=num_tiles))
    a, b, v, h = (graph.add_input(x.shape, x.dtype.name, n) for n, x in INPUTS.items())
    product = poplin.matmul(graph, a, b)
    scaled = call("exponential", arg(0)) * call("iota", dim=1, dtype="float32")
    results = [
        product,
        popops.pad(graph, product, (1, 0), (0, -1), (0, 2), v),
        popops.reverse(graph, a, (1,)),
        popops.transpose(graph, product, (1, 0)),
        popops.reduce(graph, h, (0, 1)),
        popops.reduce(graph, a, (0,), "max"),
        poputil.reshape(graph, product, (16, 3)),
        poputil.concatenate(graph, [a, a], 1),
        popops.map(graph, scaled, [a]),
        poplin.dot_general(graph, h, h, (((1,), (1,)), ((), ())), out_dtype="float32"),
        popops.slice(graph, a, (1, 0), (6, 9), (2, 3)),
    ]
    graph.outputs = [t.name for t in results]
    return graph


def test_every_engine_gives_the_words_of_the_cells():
    graph = _program(num_tiles=7)
    expected = run_graph(graph, {name: words(x) for name, x in INPUTS.items()}, "ring")
    executable = compile_graph(graph)
    for engine in ("fast", "literal", "vertex"):
        results, _ = make_engine(executable, engine, "ring").run(*INPUTS.values())
        for name, found in zip(graph.outputs, results, strict=True):
            np.testing.assert_array_equal(np.asarray(found), expected[name], err_msg=f"{engine} {name}")


def test_an_empty_tensor_padded_is_all_padding():
    graph = Graph(Target.named("gc200").replace(num_tiles=4))
    x = graph.add_input((0, 3), "float32", "x")
    padded = popops.pad(graph, x, (1, 0), (1, 0), None, 4.0)
    total = popops.reduce(graph, x, (0,))
    graph.outputs = [padded.name, total.name]
    executable = compile_graph(graph)
    (fours, zeros), _ = make_engine(executable, "fast").run(np.zeros((0, 3), np.float32))
    np.testing.assert_array_equal(fours, np.full((2, 3), 4.0))
    np.testing.assert_array_equal(zeros, np.zeros(3))


@pytest.mark.parametrize("size", [96, 101])
def test_partials_are_added_as_they_are_computed(monkeypatch, size):
    """In the plan's order, the bits of partials that are all held; or as one product, where the order is free.

    Eight or nine parts, the last one shorter where they do not divide: held ones are filled up with zeros there.
    """
    graph = Graph(Target.named("gc200").replace(num_tiles=16))
    x, w = (graph.add_input(shape, "float32", name) for shape, name in (((6, size), "x"), ((size, 4), "w")))
    plan = Plan((whole(6), whole(4), AxisSplit(size, 12, ((9, 1),))))
    graph.outputs.append(poplin.matmul(graph, x, w, plan=plan).name)
    executable = compile_graph(graph)
    rng = np.random.default_rng(size)
    values = [rng.standard_normal(shape).astype(np.float32) for shape in ((6, size), (size, 4))]
    (held,), _ = make_engine(executable, "fast").run(*values)
    monkeypatch.setattr(fast, "WORTH_ADDING", 0)
    engine = make_engine(executable, "fast")
    assert len(engine._added_at_once) == 1
    (added,), _ = engine.run(*values)
    starts = range(0, size, 12)
    in_order = sum(values[0][:, k : k + 12] @ values[1][k : k + 12] for k in starts)
    assert size % 12 or np.asarray(added).tobytes() == np.asarray(held).tobytes()
    np.testing.assert_allclose(added, in_order, rtol=1e-5, atol=1e-5)
    (free,), _ = FastEngine(executable, strict=False).run(*values)
    np.testing.assert_allclose(free, values[0] @ values[1], rtol=1e-5, atol=1e-5)
    assert not make_engine(executable, "fast", "ring")._added_at_once
