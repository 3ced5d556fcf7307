"""Builder programs compiled and run by every engine in the ring, against cells run one by one by numpy."""

import functools

import jax
import numpy as np
import pytest

from tests.replicas import replicated
from tests.unit.tiles.poplibs_cells import run_graph, words
from tiles.compiler import compile_graph
from tiles.engine import fast, make_engine
from tiles.engine import whole as whole_arrays
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


@pytest.mark.parametrize(
    ("replicas", "size", "block_bytes", "most_added"),
    [
        (1, 96, 1 << 20, 32),
        (1, 101, 500, 32),
        (1, 101, 1, 32),
        (4, 101, 1 << 20, 32),
        (4, 96, 2100, 32),
        (4, 101, 500, 32),
        (1, 96, 1 << 20, 4),
        (1, 101, 500, 4),
        (4, 101, 1 << 20, 4),
    ],
)
def test_partials_are_added_block_by_block(monkeypatch, replicas, size, block_bytes, most_added):
    """In the plan's order, the bits of partials that are all held; or as one product, where the order is free.

    Eight or nine parts, the last one shorter where they do not divide, of all seven rows of 144 bytes, of three at a time
    or one by one; of all replicas, of two at a time or one by one; added in one expression, or three in a trip of a loop.
    """
    graph = replicated(("data", replicas), num_tiles=16)
    x, w = (
        graph.add_input(shape, "float32", name, same_on_all=name == "w")
        for shape, name in (((7, size), "x"), ((size, 4), "w"))
    )
    plan = Plan((whole(7), whole(4), AxisSplit(size, 12, ((9, 1),))))
    graph.outputs.append(poplin.matmul(graph, x, w, plan=plan).name)
    executable = compile_graph(graph)
    rng = np.random.default_rng(size)
    # A part's own sum is exact in any order; one of parts of other sizes is not.
    sizes = 2.0 ** rng.integers(0, 12, 9).repeat(12)[:size]
    x, w = (rng.integers(-1000, 1000, shape) for shape in ((replicas, 7, size), (size, 4)))
    values = [(x * sizes).astype(np.float32), w.astype(np.float32)]
    starts = range(0, size, 12)
    in_order, backwards = (
        functools.reduce(np.add, [values[0][..., k : k + 12] @ values[1][k : k + 12] for k in order])
        for order in (starts, reversed(starts))
    )
    assert (in_order != backwards).any()
    monkeypatch.setattr(fast, "WORTH_ADDING", 0)
    monkeypatch.setattr(fast, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(whole_arrays, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(whole_arrays, "MOST_ADDED", most_added)
    monkeypatch.setattr(whole_arrays, "ADDED_A_TRIP", 3)
    engine = make_engine(executable, "fast")
    assert len(engine._added_at_once) == 1
    (added,), _ = engine.run(*values)
    np.testing.assert_array_equal(np.reshape(added, in_order.shape), in_order)
    if replicas == 1:  # all blocks are one code, also where they do not divide the rows
        assert str(jax.make_jaxpr(engine.trace)(*values)).count("dot_general[") == 1
    (free,), _ = FastEngine(executable, strict=False).run(*values)
    np.testing.assert_allclose(
        np.reshape(free, in_order.shape), in_order, rtol=1e-5, atol=1e-6 * np.abs(in_order).max()
    )
    assert not make_engine(executable, "fast", "ring")._added_at_once
