"""The builders on a graph, without HLO: what their steps compute, run one cell at a time, equals numpy."""

import numpy as np
import pytest
from jax import lax

from tests.unit.tiles.poplibs_cells import run_graph, words
from tiles.compiler import compile_graph
from tiles.engine import make_engine
from tiles.errors import InvalidGraph
from tiles.graph import AxisSplit, Copy, Execute, Graph, Layout, Plan, Sequence, Site, whole
from tiles.planning import Planner
from tiles.poplibs import gcl, poplin, popops, poputil
from tiles.poplibs.popops import arg, call
from tiles.poplibs.windows import Window
from tiles.target import Target, find_system

TARGET = Target.named("gc200").replace(num_tiles=8)


def _normal(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Bench:
    """A graph with named inputs, and their values."""

    def __init__(self, **inputs):
        self.graph = Graph(TARGET)
        self.values = inputs
        self.tensors = {n: self.graph.add_input(x.shape, x.dtype.name, n) for n, x in inputs.items()}

    def run(self, tensor):
        """Return a tensor's value after the program."""
        found = run_graph(self.graph, self.values)[tensor.name]
        assert found.shape == tensor.shape
        assert found.dtype == tensor.dtype
        return found


def test_named_functions_broadcast_and_take_numbers():
    a, b = _normal((6, 8)), _normal((8,), 1)
    bench = Bench(a=a, b=b)
    t = bench.tensors
    total = popops.add(Site(bench.graph, "sum", "model.py:3"), t["a"], t["b"])
    halved = popops.mul(bench.graph, 0.5, total)
    greater = popops.gt(bench.graph, halved, 0.0)
    chosen = popops.select(bench.graph, greater, halved, -1.0)
    np.testing.assert_allclose(bench.run(chosen), np.where((a + b) * 0.5 > 0, (a + b) * 0.5, -1), rtol=1e-6)
    assert total.name == "sum"
    assert total.location == "model.py:3"


@pytest.mark.parametrize(
    ("builder", "numpy"),
    [
        (popops.sub, np.subtract),
        (popops.div, np.divide),
        (popops.max, np.maximum),
        (popops.min, np.minimum),
        (popops.lteq, np.less_equal),
        (popops.neq, np.not_equal),
    ],
)
def test_binary_builders(builder, numpy):
    a, b = _normal((4, 6)), _normal((4, 6), 1)
    bench = Bench(a=a, b=b)
    found = bench.run(builder(bench.graph, bench.tensors["a"], bench.tensors["b"]))
    np.testing.assert_allclose(found, numpy(a, b), rtol=1e-6)


@pytest.mark.parametrize(
    ("builder", "numpy"),
    [
        (popops.exp, np.exp),
        (popops.tanh, np.tanh),
        (popops.neg, np.negative),
        (popops.is_finite, np.isfinite),
    ],
)
def test_unary_builders(builder, numpy):
    a = _normal((4, 6))
    bench = Bench(a=a)
    np.testing.assert_allclose(bench.run(builder(bench.graph, bench.tensors["a"])), numpy(a), rtol=1e-6)


def test_casts_fills_and_iotas():
    a = _normal((4, 6))
    bench = Bench(a=a)
    g = bench.graph
    narrow = popops.cast(g, bench.tensors["a"], "float16")
    bits = popops.bitcast(g, bench.tensors["a"], "uint32")
    filled = popops.fill(g, (3, 4), "int32", 7)
    counted = popops.iota(g, (4, 6), "float32", 1)
    np.testing.assert_array_equal(bench.run(narrow), a.astype(np.float16))
    np.testing.assert_array_equal(bench.run(bits), a.view(np.uint32))
    np.testing.assert_array_equal(bench.run(filled), np.full((3, 4), 7))
    np.testing.assert_array_equal(bench.run(counted), np.broadcast_to(np.arange(6.0), (4, 6)))


def test_a_fused_expression_is_one_step():
    a, b = _normal((4, 6)), _normal((4, 6), 1)
    bench = Bench(a=a, b=b)
    t = bench.tensors
    fused = popops.map(bench.graph, call("exponential", arg(0) * arg(1) + 1.0), [t["a"], t["b"]])
    np.testing.assert_allclose(bench.run(fused), np.exp(a * b + 1), rtol=1e-5)
    assert len(bench.graph.program.steps) == 1
    low, high = popops.map_many(bench.graph, [arg(0) - arg(1), arg(0) + arg(1)], [t["a"], t["b"]])
    np.testing.assert_allclose(bench.run(low), a - b, rtol=1e-6)
    np.testing.assert_allclose(bench.run(high), a + b, rtol=1e-6)


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("operation", ["add", "max"])
def test_reductions(dims, operation):
    a = _normal((6, 4, 10))
    bench = Bench(a=a)
    found = bench.run(popops.reduce(bench.graph, bench.tensors["a"], dims, operation))
    expected = a.astype(np.float64).sum(dims) if operation == "add" else a.max(dims)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_given_plan_splits_a_reduction_into_partials_and_a_combine():
    a = _normal((6, 40))
    bench = Bench(a=a)
    plan = Plan((whole(6), AxisSplit(40, 5, ((8, 1),))))
    result = popops.reduce(Site(bench.graph, "total"), bench.tensors["a"], (1,), plan=plan)
    np.testing.assert_allclose(bench.run(result), a.sum(1), rtol=1e-5)
    planned = Planner().plan(bench.graph)
    assert planned.tensors["total.partials"].shape == (8, 6)
    assert [type(step) for step in planned.program.steps] == [Execute] * len(planned.compute_sets)


def test_a_reduction_of_an_expression():
    a, b = _normal((6, 10)), _normal((10,), 1)
    bench = Bench(a=a, b=b)
    node = arg(0) * arg(1)
    found = bench.run(popops.map_reduce(bench.graph, node, [bench.tensors["a"], bench.tensors["b"]], (1,)))
    np.testing.assert_allclose(found, a @ b, rtol=1e-5, atol=1e-6)


def test_contractions():
    a, b = _normal((4, 6, 10)), _normal((4, 10, 8), 1)
    bench = Bench(a=a, b=b)
    t = bench.tensors
    product = poplin.matmul(bench.graph, t["a"], t["b"])
    np.testing.assert_allclose(bench.run(product), a @ b, rtol=1e-5, atol=1e-5)
    numbers = (((2,), (1,)), ((0,), (0,)))
    halves = [popops.cast(bench.graph, t[n], "float16") for n in ("a", "b")]
    wide = poplin.dot_general(bench.graph, *halves, numbers, out_dtype="float32")
    np.testing.assert_allclose(bench.run(wide), a @ b, rtol=1e-2, atol=1e-2)


def test_a_contraction_split_over_the_contracted_dimension_is_combined():
    a, b = _normal((4, 24)), _normal((24, 6), 1)
    bench = Bench(a=a, b=b)
    plan = Plan((whole(4), whole(6), AxisSplit(24, 4, ((6, 1),))))
    found = poplin.matmul(bench.graph, bench.tensors["a"], bench.tensors["b"], plan=plan)
    np.testing.assert_allclose(bench.run(found), a @ b, rtol=1e-5, atol=1e-5)
    values = {n: words(x) for n, x in bench.values.items()}
    exact = (words(a).astype(np.uint64) @ words(b).astype(np.uint64)).astype(np.uint32)
    np.testing.assert_array_equal(run_graph(bench.graph, values, "ring")[found.name], exact)


def test_slices_reversals_broadcasts_and_transpositions():
    a = _normal((6, 10))
    bench = Bench(a=a)
    g, x = bench.graph, bench.tensors["a"]
    np.testing.assert_array_equal(bench.run(popops.slice(g, x, (1, 0), (6, 9), (2, 3))), a[1:6:2, 0:9:3])
    np.testing.assert_array_equal(bench.run(popops.reverse(g, x, (0,))), a[::-1])
    np.testing.assert_array_equal(bench.run(popops.transpose(g, x, (1, 0))), a.T)
    repeated = popops.broadcast_in_dim(g, x, (6, 3, 10), (0, 2))
    np.testing.assert_array_equal(bench.run(repeated), np.repeat(a[:, None], 3, 1))


PADDINGS = [
    ((1, 0), (0, 2), None),
    ((-1, 2), (1, -3), None),
    ((0, 1), (2, -1), (1, 2)),
    ((0, 0), (0, 0), (0, 1)),
]


@pytest.mark.parametrize(("low", "high", "interior"), PADDINGS)
@pytest.mark.parametrize("value", ["number", "tensor"])
def test_padding_equals_lax_pad(low, high, interior, value):
    a, v = _normal((4, 6)), np.array(2.5, np.float32)
    bench = Bench(a=a, v=v)
    given = 2.5 if value == "number" else bench.tensors["v"]
    found = popops.pad(bench.graph, bench.tensors["a"], low, high, interior, given)
    between = interior or (0, 0)
    expected = lax.pad(a, v, list(zip(low, high, between, strict=True)))
    np.testing.assert_array_equal(bench.run(found), expected)


def test_reshapes_are_views_where_parts_stay_and_copies_elsewhere():
    a = _normal((40, 9))
    bench = Bench(a=a)
    g = bench.graph
    x = poputil.map_linearly(g, bench.tensors["a"])
    view = poputil.reshape(g, x, (40, 3, 3))
    planned = Planner().plan(g)
    assert planned.tensors[view.name].view_of == x.name
    assert planned.program.steps == []
    np.testing.assert_array_equal(bench.run(view), a.reshape(40, 3, 3))
    rows = poputil.copy(g, x, _columns(x.shape, 4))
    moved = poputil.reshape(g, rows, (9, 40))
    np.testing.assert_array_equal(bench.run(moved), a.reshape(9, 40))
    copied = [step.destination for step in Planner().plan(g).program.steps if isinstance(step, Copy)]
    assert moved.name in copied
    assert poputil.reshape(g, x, x.shape) == x


def test_what_no_reshape_leaves_in_place_is_spread_in_its_own_shape_where_the_reshape_lies_so_too():
    a = _normal((24, 64))
    bench = Bench(a=a)
    g = bench.graph
    x = poputil.copy(g, poputil.map_linearly(g, bench.tensors["a"]), _columns(a.shape, 10))
    heads = poputil.reshape(g, x, (24, 4, 16))
    planned = Planner().plan(g)
    lies = planned.tensors[heads.name]
    (spread,) = (s for s in planned.program.steps if isinstance(s, Copy) and s.sources == (x.name,))
    assert lies.view_of == spread.destination
    assert planned.tensors[spread.destination].shape == x.shape
    np.testing.assert_array_equal(bench.run(heads), a.reshape(24, 4, 16))


def _columns(shape, grain):
    rows, columns = shape
    return Layout((whole(rows), AxisSplit(columns, grain, ((-(-columns // grain), 1),))))


def test_concatenation_and_copies():
    a, b = _normal((4, 6)), _normal((4, 3), 1)
    bench = Bench(a=a, b=b)
    joined = poputil.concatenate(bench.graph, list(bench.tensors.values()), 1)
    np.testing.assert_array_equal(bench.run(joined), np.concatenate([a, b], 1))
    copied = poputil.copy(bench.graph, joined)
    assert copied.layout == joined.layout
    np.testing.assert_array_equal(bench.run(copied), bench.run(joined))


def test_steps_go_into_the_given_sequence():
    bench = Bench(a=_normal((4,)))
    body = Sequence()
    popops.neg(Site(bench.graph, sequence=body), bench.tensors["a"])
    assert len(body.steps) == 1
    assert bench.graph.program.steps == []


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float32", "a"), ("float32", None), ("float32", np.ones(3)), ("int32", 1.5), ("int32", float("inf"))],
)
def test_an_operand_is_a_tensor_or_a_number_of_its_type(dtype, value):
    graph = Graph(Target.named("gc200"))
    x = graph.add_input((4,), dtype, "x")
    with pytest.raises(InvalidGraph, match=f"neither a tensor nor a number of {dtype}"):
        popops.mul(graph, x, value)
    assert popops.mul(graph, x, np.int64(2)).shape == (4,)


def test_mistakes_are_named():
    bench = Bench(a=_normal((4, 6)), b=_normal((5,)), c=_normal((4, 6)).astype(np.float16))
    g, t = bench.graph, bench.tensors
    with pytest.raises(InvalidGraph, match="do not broadcast"):
        popops.add(g, t["a"], t["b"])
    with pytest.raises(InvalidGraph, match="one dtype"):
        popops.add(g, t["a"], t["c"])
    with pytest.raises(InvalidGraph, match="takes 2 operands"):
        popops.add(g, t["a"])
    with pytest.raises(InvalidGraph, match="cannot slice"):
        popops.slice(g, t["a"], (0, 0), (5, 6))
    with pytest.raises(InvalidGraph, match="no permutation"):
        popops.transpose(g, t["a"], (0, 0))
    with pytest.raises(InvalidGraph, match="elements"):
        poputil.reshape(g, t["a"], (5, 5))
    with pytest.raises(InvalidGraph, match="cannot be joined"):
        poputil.concatenate(g, [t["a"], t["c"]], 0)
    with pytest.raises(InvalidGraph, match="cannot reduce"):
        popops.reduce(g, t["a"], (2,))
    with pytest.raises(InvalidGraph, match="no reduction"):
        popops.reduce(g, t["a"], (1,), "median")
    with pytest.raises(InvalidGraph, match="cannot multiply"):
        poplin.matmul(g, t["a"], t["c"])
    with pytest.raises(InvalidGraph, match="negative shape"):
        popops.pad(g, t["a"], (-9, 0), (0, 0))


def test_arguments_in_another_order_are_named():
    graph = Graph(find_system("c2_card"))
    graph.replicate("data", 2)
    x = graph.add_input((4, 2), "float32", "x")
    wrong = [
        (lambda: popops.reduce(x, graph, [0]), "reduce_add: the first argument says where to add it"),
        (lambda: popops.reduce(graph, [0], x), "reduce_add: an operand is no tensor"),
        (lambda: popops.reduce(graph, x, 0), "reduce_add: dimensions are numbers"),
        (lambda: popops.transpose(graph, [1, 0], x), "transpose: an operand is no tensor"),
        (lambda: gcl.all_reduce(graph, "data", x), "all_reduce: an operand is no tensor"),
        (lambda: gcl.all_gather(graph, x, 0, "data"), "axes of replicas are names"),
    ]
    for build, said in wrong:
        with pytest.raises(InvalidGraph, match=said):
            build()


def test_products_of_doubles_stay_doubles():
    """The units take no type for them: nothing passes in another one."""
    x, w = (np.random.default_rng(k).normal(size=shape) for k, shape in enumerate(((1, 9, 2), (3, 2, 4))))
    bench = Bench(x=x, w=w)
    field, kernel = bench.tensors["x"], bench.tensors["w"]
    axes = poplin.ConvAxes((0, 2, 1), (2, 1, 0), (0, 2, 1))
    convolved = poplin.convolution(bench.graph, field, kernel, axes, [Window(9, 3)])
    rows, columns = poputil.reshape(bench.graph, field, (9, 2)), poputil.reshape(bench.graph, kernel, (2, 12))
    bench.graph.outputs = [convolved.name, poplin.matmul(bench.graph, rows, columns).name]
    found, _ = make_engine(compile_graph(bench.graph), "fast").run(x, w)
    expected = sum(x[0, t : t + 7] @ w[t] for t in range(3))
    np.testing.assert_allclose(found[0][0], expected, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(found[1], x[0] @ w.reshape(2, 12), rtol=1e-14, atol=1e-14)
