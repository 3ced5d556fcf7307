"""Static costs and clocks: sums checked by hand and by brute force, loops, and what depends on data."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.tiles.report_programs import looping, pipeline, repeated, row_layout, scale, switching
from tiles.compiler import compile_graph, control, step_costs
from tiles.engine import make_engine
from tiles.engine.trace import Trace
from tiles.errors import InvalidArguments, Unsupported
from tiles.graph import Call, Execute, Graph, Repeat, Sequence
from tiles.plan.superstep import entry_parts
from tiles.report import cost_analysis, profile
from tiles.report.band import COMPUTE, EXCHANGE, SYNC
from tiles.report.clocks import Clocks, Superstep
from tiles.target import Basis, Target

PHASES = ("compute_cycles", "exchange_cycles", "sync_cycles")


def test_a_sequence_costs_what_its_steps_add_up_to(small_target):
    """Every figure from the codelets' formulas and the rows that change tiles, added up by hand."""
    target = small_target
    cost = cost_analysis(pipeline(target))
    copied = {"second": 2 * 64 * 4, "out": 4 * 4}  # bytes the busiest tile moves inside itself
    local = {
        name: target.local_copy_call_cycles + -(-size // target.memcpy_bytes_per_cycle)
        for name, size in copied.items()
    }
    compute = {
        "first": 10 + 3 * 2 * 64,
        "second": 10 + 3 * 4 * 64 + local["second"],
        "sums": 5 + 2 * 4 * 64,
        "out": local["out"],
    }
    # Rows 0-7 lie two to a tile on tiles 0-3; tile 0 needs rows 0-3 and has 0-1, tile 1 needs rows 4-7.
    # Then the sums of rows 4-7 go from tile 1 to tile 0.
    entry = target.exchange_phase_overhead_cycles
    exchange = (4 * 64 * 4 // target.exchange_bytes_per_cycle + entry) + (
        4 * 4 // target.exchange_bytes_per_cycle + entry
    )
    assert cost["compute_cycles"] == sum(compute.values())
    assert cost["exchange_cycles"] == exchange
    assert cost["sync_cycles"] == 2 * target.internal_sync_cycles
    assert cost["cycles"] == sum(cost[phase] for phase in PHASES)
    assert cost["seconds"] == pytest.approx(cost["cycles"] / target.clock_hz)
    assert cost["exchange_bytes"] == (2 + 4) * 64 * 4 + 4 * 4
    assert cost["flops"] == 2 * 8 * 64 + 8 * 63
    assert cost["supersteps"] == 4
    assert (cost["host_bytes_in"], cost["host_bytes_out"]) == (8 * 64 * 4, 8 * 4 + 8 * 64 * 4)
    assert cost["host_cycles"] is None
    assert cost["unresolved"] == []


def test_shares_say_what_the_cycles_rest_on(small_target):
    executable = pipeline(small_target)
    cost = cost_analysis(executable)
    assert cost["basis_cycles"]["MEASURED"] == 5 + 2 * 4 * 64
    assert sum(cost["basis_cycles"].values()) == cost["cycles"]
    assert cost["basis_cycles"][small_target.basis("internal_sync_cycles")[0]] >= cost["sync_cycles"]
    assert sum(cost["basis_shares"].values()) == pytest.approx(1, abs=1e-5)
    assert cost["basis_shares"]["MEASURED"] == pytest.approx(517 / cost["cycles"], abs=1e-6)


def test_the_range_adds_up_each_kind_of_cycles(small_target):
    """By hand: the bases of the four steps' figures are MEASURED (sums), FITTED (second) and DOCUMENTED."""
    executable = pipeline(small_target)
    low, high = cost_analysis(executable)["cycles_range"]
    steps = step_costs(executable)
    kinds = [(cycles, COMPUTE[basis]) for cost in steps for basis, cycles in cost.compute_parts]
    kinds += [(cost.exchange_cycles, EXCHANGE) for cost in steps] + [
        (cost.sync_cycles, SYNC) for cost in steps
    ]
    found = {basis.value for cost in steps for basis, cycles in cost.compute_parts if cycles}
    assert found == {"MEASURED", "FITTED", "DOCUMENTED"}
    assert low == pytest.approx(sum(c * band.low for c, band in kinds), abs=1)
    assert high == pytest.approx(sum(c * band.high for c, band in kinds), abs=1)
    assert low < cost_analysis(executable)["cycles"] < high


def test_each_part_of_a_superstep_rests_on_its_own_basis(small_target):
    """Only entering the phase is a guess, but for its instructions: words that move and copies are documented.

    Three instructions of one cycle and seven that wait six, as PopLibs counts supervisors'.
    """
    target = small_target
    entry, sync = (target.basis(f"{name}_cycles")[0] for name in ("exchange_phase_overhead", "internal_sync"))
    instructions = 3 + 7 * 6
    assert entry is Basis.ASSUMED
    second = step_costs(pipeline(target))[1]
    words = 4 * 64 * 4 // target.exchange_bytes_per_cycle
    assert second.exchange_parts == (
        (Basis.DOCUMENTED, words),
        (entry, target.exchange_phase_overhead_cycles - instructions),
        (Basis.DERIVED, instructions),
    )
    assert second.exchange_basis is entry
    assert second.vertex_parts == ((Basis.FITTED, 10 + 3 * 4 * 64),)
    copied = target.local_copy_call_cycles + 2 * 64 * 4 // target.memcpy_bytes_per_cycle
    assert dict(second.copy_parts)[Basis.DOCUMENTED] == copied
    shares = cost_analysis(pipeline(target))["basis_cycles"]
    unknown = target.exchange_phase_overhead_cycles - instructions
    assert shares["ASSUMED"] == 2 * (unknown + (target.internal_sync_cycles if sync is Basis.ASSUMED else 0))
    (measured,) = entry_parts(Target.named("c600"))
    assert measured == (Basis.MEASURED, Target.named("c600").exchange_phase_overhead_cycles)


@pytest.mark.parametrize("count", [0, 1, 5, 10**15])
def test_repeat_multiplies(small_target, count):
    executable = repeated(small_target, count)
    once, again = step_costs(executable)
    cost = cost_analysis(executable)
    for phase in PHASES:
        assert cost[phase] == count * getattr(once, phase) + 3 * count * getattr(again, phase)
    assert cost["cycles"] == count * (once.cycles + 3 * again.cycles)
    low, high = cost["cycles_range"]
    assert low <= cost["cycles"] <= high <= 3 * cost["cycles"]
    assert cost["supersteps"] == 4 * count
    assert cost["flops"] == 4 * count * 16


def test_an_empty_program_costs_nothing(small_target):
    cost = cost_analysis(compile_graph(Graph(small_target, "empty")))
    assert (cost["cycles"], cost["supersteps"], cost["flops"]) == (0, 0, 0)
    assert set(cost["basis_shares"].values()) == {0.0}


# ---- what depends on data


def test_a_while_leaves_cycles_unknown_and_is_listed(small_target):
    executable = looping(small_target)
    into, go, doubled, back = (c.cycles for c in step_costs(executable))
    cost = cost_analysis(executable)
    for name in ("cycles", "seconds", "compute_cycles", "flops", "supersteps"):
        assert cost[name] is None, name
    assert (cost["exchange_cycles"], cost["exchange_bytes"]) == (0, 0)
    assert cost["basis_shares"]["ASSUMED"] is None
    assert cost["unresolved"] == [
        {
            "kind": "while",
            "decided_by": "go",
            "location": "while.py:3",
            "scope": "",
            "transforms": [],
            "entered": 1,
            "steps": ["go", "doubled", "copy.state"],
            "condition_cycles": go,
            "cycles_per_trip": go + doubled + back,
        }
    ]
    _, trace = make_engine(executable).run(jnp.int32(1))
    assert profile(executable, trace).cycles == into + 8 * go + 7 * (doubled + back)


@pytest.mark.parametrize("sizes", [(1, 2), (2, 2), (1, 1, 3)])
def test_a_switch_is_resolved_only_when_its_branches_cost_the_same(small_target, sizes):
    executable = switching(small_target, sizes)
    costs = [c.cycles for c in step_costs(executable)]
    branches = [size * costs[2 * b] + costs[2 * b + 1] for b, size in enumerate(sizes)]
    cost = cost_analysis(executable)
    if len(set(sizes)) == 1:
        assert (cost["cycles"], cost["unresolved"]) == (branches[0], [])
    else:
        assert cost["cycles"] is None and cost["cycles_range"] is None and cost["supersteps"] is None
        (entry,) = cost["unresolved"]
        assert (entry["kind"], entry["decided_by"], entry["location"]) == ("switch", "index", "switch.py:2")
        assert [branch["cycles_per_trip"] for branch in entry["branches"]] == branches
        assert entry["branches"][0]["steps"] == ["branch0", "copy.out"]
    for index in range(len(sizes)):
        _, trace = make_engine(executable).run(jnp.zeros(16, jnp.float32), jnp.int32(index))
        assert profile(executable, trace).cycles == branches[index]


def test_a_loop_that_never_starts_leaves_nothing_unknown(small_target):
    executable = looping(small_target)
    start, loop = executable.program.parts
    tree = control.Sequence((start, control.Repeat(0, control.Sequence((loop,)))))
    object.__setattr__(executable, "program", tree)
    cost = cost_analysis(executable)
    assert cost["cycles"] == step_costs(executable)[0].cycles
    assert cost["unresolved"] == []


def test_a_loop_inside_a_loop_is_entered_as_often_as_known(small_target):
    executable = looping(small_target)
    start, loop = executable.program.parts
    tree = control.Sequence((start, control.Repeat(4, control.Sequence((loop,))), loop))
    object.__setattr__(executable, "program", tree)
    (entry,) = cost_analysis(executable)["unresolved"]
    assert entry["entered"] == 5
    outer = control.While(control.Sequence((1,)), "go", control.Sequence((loop,)))
    object.__setattr__(executable, "program", control.Sequence((start, outer)))
    first, second = cost_analysis(executable)["unresolved"]
    assert (first["entered"], second["entered"]) == (1, None)
    assert (first["cycles_per_trip"], second["cycles_per_trip"]) == (None, 309)


def test_a_function_counts_at_every_call(small_target):
    graph = Graph(small_target, "calls")
    x = graph.add_input((16,), "float32", "x")
    graph.set_layout(x.name, row_layout((16,), 4))
    y = scale(graph, graph.tensors[x.name], 4, "y")
    graph.functions["f"] = Sequence([Execute("y")])
    graph.outputs = [y.name]
    graph.program.add(Call("f"))
    graph.program.add(Repeat(3, Sequence([Call("f"), Call("f")])))
    cost = cost_analysis(compile_graph(graph))
    assert (cost["supersteps"], cost["cycles"]) == (7, 7 * (10 + 3 * 4))


def test_a_trace_of_another_executable_is_refused(small_target):
    with pytest.raises(InvalidArguments, match="not of executable 'pipeline'") as caught:
        profile(pipeline(small_target), Trace((1, 2), "fast", "float"))
    assert caught.value.got == "2 counts"


# ---- clocks


def _random_steps(generator, num_ipus, length):
    for _ in range(length):
        members = generator.random(num_ipus) < 0.5
        step = Superstep(members, int(generator.integers(50)), generator.integers(0, 100, num_ipus))
        yield step, int(generator.integers(0, 6))


@pytest.mark.parametrize("num_ipus", [1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_clocks_equal_one_run_at_a_time(num_ipus, seed):
    clocks, slow = Clocks(num_ipus), [0] * num_ipus
    for step, times in _random_steps(np.random.default_rng(seed), num_ipus, 20):
        clocks.run(step, times)
        for _ in range(times):
            members = [i for i in range(num_ipus) if step.members[i]]
            latest = max((slow[i] for i in members), default=0)
            for i in range(num_ipus):
                if i in members:
                    slow[i] = latest + step.exchange_cycles
                slow[i] += int(step.compute_cycles[i])
        assert list(clocks.cycles) == slow


def test_one_clock_is_a_sum():
    clocks = Clocks(1)
    for step, times in _random_steps(np.random.default_rng(7), 1, 30):
        before = clocks.cycles[0]
        clocks.run(step, times)
        each = int(step.compute_cycles[0]) + (step.exchange_cycles if step.members[0] else 0)
        assert clocks.cycles[0] == before + times * each


def test_several_ipus_without_links_are_a_named_error(small_target):
    with pytest.raises(Unsupported, match="2 IPUs without links"):
        Graph(small_target.replace(num_ipus=2, num_tiles=16), "two")
