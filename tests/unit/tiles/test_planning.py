"""The planning stage: what is recorded stays as it is, and what decides where things lie and which way is taken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.tiles.executable_programs import rows, split
from tiles.compiler import certify, compile_graph, eased, shortage, step_costs
from tiles.compiler.oom import DATA, TEMPORARIES
from tiles.engine import make_engine
from tiles.errors import InvalidGraph, InvalidPlan
from tiles.graph import (
    Call,
    Choice,
    Copy,
    Execute,
    Graph,
    IndexMap,
    Layout,
    Operation,
    Plan,
    Repeat,
    Reshape,
    Sequence,
    Site,
    Tensor,
    along,
    identity_map,
    linear_layout,
    print_graph,
    whole,
)
from tiles.plan import exchange_code_bytes
from tiles.planning import Planner, Policy
from tiles.poplibs import poplin, popops, poputil
from tiles.poplibs.forms import map_form
from tiles.poplibs.popops import arg, call
from tiles.poplibs.popops.map import Map, rearranging
from tiles.poplibs.poputil.place import place
from tiles.target import Target

ENGINES = ("fast", "literal", "vertex")
APART = Plan((split(16, 4),), 1)


def recorded(target: Target) -> Graph:
    """A product, a reshape of it, and a sum that reads both."""
    graph = Graph(target, "recorded")
    x, w = graph.add_input((6, 8), "float32", "x"), graph.add_input((8, 4), "float32", "w")
    y = poplin.matmul(Site(graph, "dot", "model.py:3"), x, w)
    flat = poputil.reshape(Site(graph, location="model.py:4"), y, (24,))
    graph.outputs = [popops.add(Site(graph, "twice"), flat, flat).name]
    return graph


def snapshot(graph: Graph) -> tuple[object, ...]:
    return dict(graph.tensors), list(graph.program.steps), dict(graph.compute_sets), print_graph(graph)


def test_planning_leaves_the_recorded_graph_as_it_is_and_does_the_same_again(small_target: Target) -> None:
    graph = recorded(small_target)
    before = snapshot(graph)
    first, second = Planner().plan(graph), Planner().plan(graph)
    assert snapshot(graph) == before
    assert all(tensor.layout is None for tensor in graph.tensors.values())
    assert snapshot(first) == snapshot(second)
    assert first.is_planned and Planner().plan(first) is first
    assert all(tensor.layout is not None for tensor in first.tensors.values())
    assert not any(isinstance(step, Operation | Reshape | Choice) for step in first.program.steps)
    assert compile_graph(graph).to_bytes() == compile_graph(first).to_bytes()


def test_a_recorded_graph_prints_operations_with_their_domains(small_target: Target) -> None:
    assert print_graph(recorded(small_target)) == (
        f"graph recorded for {small_target.name} ({small_target.num_tiles} tiles)\n"
        "  input x: float32[6, 8]\n"
        "  input w: float32[8, 4]\n"
        "  output twice\n"
        "  program\n"
        "    dot: float32[6, 4] = poplin::MatMul<float,float>(x, w)"
        " over [m0:6 n0:4 k0!:8] (d0,d2) (d2,d1) -> (d0,d1)  at model.py:3\n"
        "    reshape: float32[24] = reshape(dot)  at model.py:4\n"
        "    twice: float32[24] = popops::BinaryOp<ADD,float>(reshape, reshape)"
        " over [d0:24] (d0) (d0) -> (d0)\n"
    )


# ---- where tensors lie


def two_readers(target: Target, first: Plan, second: Plan) -> tuple[Graph, Tensor]:
    graph = Graph(target)
    x = graph.add_input((16,), "float32", "x")
    outputs = [popops.neg(graph, x, plan=plan) for plan in (first, second)]
    graph.outputs = [t.name for t in outputs]
    return graph, x


def test_an_input_lies_where_its_first_reader_reads_it(small_target: Target) -> None:
    for plans in ((APART, Plan((whole(16),))), (Plan((whole(16),), 3), APART)):
        graph, x = two_readers(small_target, *plans)
        assert Planner().plan(graph).tensors[x.name].layout == plans[0].result_layout(
            map_form((16,), [identity_map(1)])
        )


def test_what_a_builder_lays_out_stays_there(small_target: Target) -> None:
    graph, x = two_readers(small_target, APART, APART)
    layout = rows((16,), 8)
    graph.set_layout(x.name, layout)
    assert Planner().plan(graph).tensors[x.name].layout == layout


def looping(target: Target, initial: Layout) -> Graph:
    """Three times: carried = -carried, the negation planned by its builder; then the result is read elsewhere."""
    graph, body = Graph(target), Sequence()
    x = graph.add_input((16,), "float32", "x")
    graph.set_layout(x.name, initial)
    carried = graph.add_variable((16,), "float32", "carried")
    made = popops.neg(Site(graph, "body", sequence=body), carried, plan=APART)
    body.add(Copy(carried.name, (made.name,)))
    graph.program.add(Copy(carried.name, (x.name,)))
    graph.program.add(Repeat(3, body))
    graph.outputs = [popops.neg(Site(graph, "after"), carried, plan=Plan((whole(16),))).name]
    return graph


def test_a_carried_value_lies_where_the_loops_body_reads_it_first(small_target: Target) -> None:
    graph = looping(small_target, rows((16,), 8))
    planned = Planner().plan(graph)
    assert planned.tensors["carried"].layout == planned.tensors["body"].layout == Layout(APART.splits, 1)
    assert [type(step) for step in planned.program.steps] == [
        Copy,
        Repeat,
        Execute,
    ]  # in place, no empty sequence
    values = np.arange(16, dtype=np.float32)
    for engine in ENGINES:
        (found,), _ = make_engine(compile_graph(graph), engine).run(values)
        np.testing.assert_array_equal(found, values)


def test_a_functions_parameter_lies_as_the_argument_of_its_first_call(small_target: Target) -> None:
    graph, body = Graph(small_target), Sequence()
    layouts = [rows((16,), 8), rows((16,), 4, 2)]
    arguments = [graph.add_input((16,), "float32", f"x{n}") for n in range(3)]
    for argument, layout in zip(arguments, layouts, strict=False):
        graph.set_layout(argument.name, layout)
    parameter = graph.add_variable((16,), "float32", "parameter")
    result = popops.neg(Site(graph, "negated", sequence=body), parameter)
    graph.functions["f"] = body
    for argument in arguments:
        graph.program.add(Copy(parameter.name, (argument.name,)))
        graph.program.add(Call("f"))
        graph.outputs.append(poputil.copy(graph, result).name)
    planned = Planner().plan(graph)
    assert planned.tensors["parameter"].layout == layouts[0]
    assert planned.tensors[arguments[2].name].layout == layouts[0], "a free argument lies as its parameter"
    certify(compile_graph(graph))


def test_a_functions_result_lies_where_its_caller_reads_something_beside_it(small_target: Target) -> None:
    def layout_of_result(reads_beside: bool) -> Layout | None:
        graph, body = Graph(small_target), Sequence()
        x, w = graph.add_variable((64, 8), "float32", "x"), graph.add_variable((8, 64), "float32", "w")
        product = poplin.matmul(Site(graph, "dot", sequence=body), x, w)
        graph.functions["f"] = body
        beside = graph.add_input((64, 64), "float32", "beside")
        graph.set_layout(beside.name, apart)
        for variable in (x, w):
            given = graph.add_input(variable.shape, "float32", f"given_{variable.name}")
            graph.program.add(Copy(variable.name, (given.name,)))
        graph.program.add(Call("f"))
        made = poputil.copy(graph, product)
        graph.outputs.append(popops.add(graph, made, beside if reads_beside else made).name)
        planned = Planner().plan(graph)
        certify(compile_graph(planned))
        return planned.tensors[product.name].layout

    apart = Layout((split(64, 16), split(64, 16, 4)))  # as the product would be cut, on other tiles
    assert layout_of_result(True) == apart != layout_of_result(False)


def test_what_is_sent_around_anyway_goes_where_its_reader_reads_something_beside_it(
    small_target: Target,
) -> None:
    """A row that is repeated: beside nothing in whole rows, as is cheapest, beside blocks in such blocks."""

    def layout_of_rows(with_beside: bool) -> Layout | None:
        graph = Graph(small_target)
        x, z = graph.add_input((64,), "float32", "x"), graph.add_input((128, 64), "float32", "z")
        graph.set_layout(z.name, blocks)
        form, codelet = rearranging((128, 64), "float32")
        repeated = replace(form, operands=(IndexMap((along(1),)),))
        (y,) = place(Site(graph, "repeated"), codelet, repeated, (x,), ("float32",))
        graph.outputs.append(popops.add(graph, y, z if with_beside else y).name)
        planned = Planner().plan(graph)
        certify(compile_graph(planned))
        return planned.tensors["repeated"].layout

    blocks = Layout((split(128, 32), split(64, 16, 4)))
    assert layout_of_rows(True) == blocks != layout_of_rows(False)


@pytest.mark.parametrize("engine", ENGINES)
def test_partials_that_cannot_be_cut_evenly_are_combined_where_they_lie(
    small_target: Target, engine: str
) -> None:
    """Three tiles hold partials of four columns each: shares of two, of which some lie across two parts."""
    graph = Graph(small_target)
    x, w = graph.add_input((7, 48), "float32", "x"), graph.add_input((48, 20), "float32", "w")
    plan = Plan((whole(7), split(20, 4), split(48, 16, 5)))
    graph.outputs = [poplin.matmul(Site(graph, "dot"), x, w, plan=plan).name]
    executable = compile_graph(graph)
    certify(executable)
    values = [
        np.arange(t.size, dtype=np.float32).reshape(t.shape) % 7 for t in map(np.empty, (x.shape, w.shape))
    ]
    (found,), _ = make_engine(executable, engine).run(*values)
    np.testing.assert_array_equal(found, values[0] @ values[1])


def test_a_variable_that_nobody_reads_lies_as_what_is_copied_into_it(small_target: Target) -> None:
    graph = Graph(small_target)
    x, y = (graph.add_input((16,), "float32", name) for name in "xy")
    layout = graph.set_layout(x.name, rows((16,), 4, 3)).layout
    kept, odd = (graph.add_variable((16,), "float32", name) for name in ("kept", "odd"))
    graph.program.add(Copy(kept.name, (x.name,)))
    graph.program.add(Copy(odd.name, (y.name,)))
    graph.outputs = [kept.name, odd.name]
    planned = Planner().plan(graph)
    assert planned.tensors["kept"].layout == layout
    evenly = linear_layout((16,), "float32", small_target.num_tiles)
    found = planned.tensors["odd"].layout
    assert found == planned.tensors["y"].layout
    assert found is not None and replace(found, base=0) == evenly


def test_what_is_computed_into_a_placed_tensor_is_computed_there_or_copied(small_target: Target) -> None:
    graph = Graph(small_target)
    x = graph.add_input((16,), "float32", "x")
    form, codelet = (
        map_form((16,), [identity_map(1)]),
        Map((("negate", (0,), ()),), (1,), ("float32",), ("float32",)),
    )
    for name, plan in (("there", None), ("elsewhere", Plan((whole(16),), 2))):
        result = graph.add_tensor((16,), "float32", name, rows((16,), 4, 1))
        graph.program.add(Operation(f"negate.{name}", codelet, form, (x.name,), (result.name,), "", plan))
        graph.outputs.append(result.name)
    planned = Planner().plan(graph)
    assert [type(step) for step in planned.program.steps] == [Execute, Execute, Copy]
    assert planned.tensors["there"].layout == planned.tensors["elsewhere"].layout == rows((16,), 4, 1)
    values = np.arange(16, dtype=np.float32)
    for engine in ENGINES:
        for found in make_engine(compile_graph(graph), engine).run(values)[0]:
            np.testing.assert_array_equal(found, -values)


def test_results_lie_where_a_builder_says_whatever_makes_them(small_target: Target) -> None:
    graph = Graph(small_target)
    x = graph.add_input((4, 16), "float32", "x")
    plan = Plan((whole(4), split(16, 4)))
    both = Map((("negate", (0,), ()), ("abs", (0,), ())), (1, 2), ("float32",), ("float32",) * 2)
    form = map_form((4, 16), [identity_map(2)], 2)
    results = poputil.place(Site(graph, "both"), both, form, [x], ("float32",) * 2, plan=plan)
    flat = poputil.reshape(graph, results[0], (64,))
    wanted = {results[1].name: Layout((split(4, 1), whole(16)), 3), flat.name: rows((64,), 16, 2)}
    wanted[results[0].name] = Layout((whole(4), split(16, 8)), 1)
    for name, layout in wanted.items():
        graph.set_layout(name, layout)
    graph.outputs = [*(t.name for t in results), flat.name]
    planned = Planner().plan(graph)
    assert {name: planned.tensors[name].layout for name in wanted} == wanted
    certify(compile_graph(graph))
    values = np.arange(64, dtype=np.float32).reshape(4, 16) - 9
    for engine in ENGINES:
        found = make_engine(compile_graph(graph), engine).run(values)[0]
        for got, want in zip(found, (-values, abs(values), -values.ravel()), strict=True):
            np.testing.assert_array_equal(got, want)


# ---- choices


def choosing(target: Target, first: Plan, second: Plan) -> Graph:
    """One negation in two ways that only their plans tell apart, and a sum behind it."""
    graph = Graph(target)
    x = graph.add_input((1600,), "float32", "x")
    (y,) = graph.add_choice(
        "negation",
        [
            lambda body, plan=plan: (popops.neg(Site(graph, sequence=body), x, plan=plan),)
            for plan in (first, second)
        ],
        graph.program,
        "model.py:7",
    )
    graph.outputs = [popops.add(graph, y, 1.0).name]
    return graph


SPREAD, PILED = Plan((split(1600, 200),)), Plan((whole(1600),))


def test_of_several_ways_the_cheapest_is_taken(small_target: Target) -> None:
    for ways in ((SPREAD, PILED), (PILED, SPREAD)):
        graph = choosing(small_target, *ways)
        planned = Planner().plan(graph)
        taken = planned.compute_sets["negate"].vertices[0]
        assert taken.plan.splits == SPREAD.splits
        values = np.linspace(-1, 1, 1600, dtype=np.float32)
        for engine in ENGINES:
            (found,), _ = make_engine(compile_graph(graph), engine).run(values)
            np.testing.assert_array_equal(found, 1 - values)


def test_steps_of_every_way_have_the_same_names_and_later_ones_new_names(small_target: Target) -> None:
    graph = choosing(small_target, SPREAD, PILED)
    (choice,) = (step for step in graph.program.steps if isinstance(step, Choice))
    names = [[s.name for s in a.body.steps if isinstance(s, Operation)] for a in choice.alternatives]
    assert names == [["negate"], ["negate"]]
    assert graph.unique("negate", "step") == "negate.1"


def test_a_way_with_a_pinned_step_is_taken(small_target: Target) -> None:
    graph = Graph(small_target)
    x = graph.add_input((1600,), "float32", "x")
    ways = [
        lambda body: (popops.neg(Site(graph, "quick", sequence=body), x, plan=SPREAD),),
        lambda body: (popops.mul(Site(graph, "slow", sequence=body), x, -1.0, plan=PILED),),
    ]
    graph.outputs = [graph.add_choice("negation", ways, graph.program)[0].name]
    pinned = Planner(pins={"slow": PILED}).plan(graph)
    assert list(pinned.compute_sets) == ["slow"] and list(Planner().plan(graph).compute_sets) == ["quick"]


def test_ways_that_give_different_things_are_refused(small_target: Target) -> None:
    graph = Graph(small_target)
    x = graph.add_input((4,), "float32", "x")
    ways = [lambda body: (popops.neg(Site(graph, sequence=body), x),), lambda _: ()]
    with pytest.raises(InvalidGraph, match="the ways to compute it give different results"):
        graph.add_choice("it", ways, graph.program)


# ---- what is refused


def test_what_cannot_be_recorded_is_named(small_target: Target) -> None:
    graph = Graph(small_target)
    x = graph.add_input((16,), "float32", "x")
    form, codelet = map_form((16,), [identity_map(1)]), Map((), (0,), ("float32",), ("float32",))
    with pytest.raises(InvalidGraph, match="other numbers of operands and results") as caught:
        poputil.place(Site(graph, "odd", "here.py:1"), codelet, form, [x, x], ("float32",))
    assert caught.value.location == "here.py:1"
    with pytest.raises(InvalidPlan, match="step odd"):
        poputil.place(Site(graph, "odd"), codelet, form, [x], ("float32",), plan=Plan((whole(5),)))
    other = Graph(small_target).add_input((16,), "float32", "of another graph")
    with pytest.raises(InvalidGraph, match="names tensor 'of another graph'"):
        poputil.place(Site(graph, "odd"), codelet, form, [other], ("float32",))
    with pytest.raises(InvalidGraph, match="has 16 elements"):
        poputil.reshape(graph, x, (5,))


def test_policies_change_plans_but_not_what_is_recorded(small_target: Target) -> None:
    graph = recorded(small_target)
    tight = Planner(Policy(memory_proportions={"dot": 1e-4})).plan(graph)
    assert any(".turn" in name for name in tight.compute_sets)
    assert not any(".turn" in name for name in Planner().plan(graph).compute_sets)
    x, w = np.ones((6, 8), np.float32), np.arange(32, dtype=np.float32).reshape(8, 4)
    for planned in (tight, Planner().plan(graph)):
        (found,), _ = make_engine(compile_graph(planned), "literal").run(x, w)
        np.testing.assert_array_equal(found, 2 * (x @ w).ravel())


def test_what_is_computed_side_by_side_goes_to_idle_tiles(gc200: Target) -> None:
    """Sines of one element are cheapest where it lies, each by itself; together they would be one tile's work."""
    graph = Graph(gc200, "sines")
    x = graph.add_input((), "float32", "x")
    y = popops.map(Site(graph, "first"), call("sine", arg(0)), [x])
    found = [popops.map(Site(graph, f"sine{i}"), call("sine", arg(0)), [y]) for i in range(8)]
    added = [popops.map(Site(graph, f"sum{i}"), call("add", arg(0), arg(1)), [y, y]) for i in range(8)]
    graph.outputs = [t.name for t in (*found, *added)]
    executable = compile_graph(graph)
    certify(executable)
    (first, *_, rest) = step_costs(executable)
    assert first.cycles and rest.cycles and rest.cycles < 1.2 * first.cycles
    groups = {group.name: group for _, group in executable.groups()}
    where = groups["first"].plan.base
    assert len({groups[t.name].plan.base for t in found}) == len(found)
    assert {groups[t.name].plan.base for t in added} == {
        where
    }  # sending an element takes longer than adding it


@pytest.mark.parametrize("kind", [DATA, TEMPORARIES])
def test_variables_that_crowd_some_tiles_are_spread_over_all(gc200: Target, kind: str) -> None:
    """Arrays of 917 and 852 KB are updated most quickly where an update lies, on 32 tiles that have other things to hold.

    So they are where what is missing is less than what operations need there for themselves: serial splits cost more.
    """
    room = {DATA: 128 * 1024, TEMPORARIES: 151_264}[kind]
    graph = Graph(gc200.replace(bytes_per_tile=room), "saved")
    row, at = graph.add_input((1, 64, 256), "float32", "row"), graph.add_input((), "int32", "at")
    held = [graph.add_input((32, 1_100), "float32", f"held{i}") for i in range(10)]
    update = popops.map(
        Site(graph, "update"), call("negate", arg(0)), [row], plan=Plan((whole(1), split(64, 2), whole(256)))
    )
    negated = [
        popops.map(Site(graph, "other"), call("negate", arg(0)), [x], plan=Plan((split(32, 1), whole(1_100))))
        for x in held
    ]
    saved = [graph.add_input((14 - i, 64, 256), "float32", f"saved{i}") for i in range(2)]
    graph.donated = (12, 13)
    updated = [popops.dynamic_update_slice(Site(graph, "save"), x, update, [at, None, None]) for x in saved]
    graph.outputs = [t.name for t in (*negated, *updated)]
    short = compile_graph(Planner().plan(graph), check_memory=False)
    lack = shortage(short)
    assert lack.kind == kind and 0 < lack.excess_bytes <= lack.uneven_bytes, lack
    policy = eased(short, Policy())
    assert policy is not None and policy.held_share < Policy().held_share
    assert not policy.memory_proportions
    executable = compile_graph(Planner(policy).plan(graph))
    certify(executable)
    shapes = [graph.tensors[name].shape for name in graph.inputs]
    x = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in shapes]
    found, _ = make_engine(executable, "fast").run(x[0], np.int32(3), *x[2:])
    for got, want in zip(found[-2:], x[-2:], strict=True):
        want[3] = -x[0][0]
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("policy", "what"),
    [
        ({"memory_proportions": {"dot": 1.5}}, r"memory_proportions\['dot'\] is no share"),
        ({"memory_proportions": {"dot": -0.1}}, r"memory_proportions\['dot'\] is no share"),
        ({"held_share": float("nan")}, "held_share is no share"),
        ({"code_price": -1.0}, "code_price is no price"),
        ({"code_price": float("inf")}, "code_price is no price"),
    ],
)
def test_a_policy_of_no_shares_or_prices_is_an_error(policy, what):
    with pytest.raises(InvalidPlan, match=what):
        Policy(**policy)


@pytest.mark.parametrize("is_function", [False, True])
@pytest.mark.parametrize("sizes", [(128, 768, 3072), (100, 1000, 1000)])
def test_a_body_that_runs_often_takes_more_code_and_fewer_cycles(sizes, is_function, gc200: Target) -> None:
    """Its code is there once, whatever it saves is saved on each trip or in each call."""

    def figures(runs: int) -> tuple[int, int]:
        """Return cycles of a run and the bytes of exchange code."""
        graph, body = Graph(gc200), Sequence()
        rows, inner, columns = sizes
        x, w = (
            graph.add_input(shape, "float16", name)
            for name, shape in (("x", (rows, inner)), ("w", (inner, columns)))
        )
        graph.outputs.append(poplin.matmul(Site(graph, "dot", sequence=body), x, w).name)
        if is_function:
            graph.functions["f"] = body
            for _ in range(runs):
                graph.program.add(Call("f"))
        else:
            graph.program.add(Repeat(runs, body))
        costs = step_costs(compile_graph(Planner().plan(graph)))
        code = np.sum([exchange_code_bytes(cost.traffic, gc200) for cost in costs], axis=0)
        return sum(c.compute_cycles + c.exchange_cycles + c.sync_cycles for c in costs), int(code.max())

    once, often = figures(1), figures(4)
    assert often[0] < once[0] and often[1] > once[1]
