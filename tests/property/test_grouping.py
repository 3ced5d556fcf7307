"""Random programs of elementwise leaves: grouped and as they stood they are the same, and grouping stays in bounds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.budgets import PLAN, budget
from tests.unit.tiles.executable_programs import ungrouped
from tiles.compiler import CopyStep, Executable, ExecuteStep, certify, compile_graph, step_costs
from tiles.compiler.grouping import SHARE
from tiles.engine import make_engine
from tiles.graph import AxisSplit, Copy, Graph, Layout, Plan, PrintTensor, Repeat, Sequence, Site, Tensor
from tiles.poplibs import popops
from tiles.report import memory_analysis
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=8)
SIZE = 24
CUTS = {parts: AxisSplit(SIZE, -(-SIZE // parts), ((parts, 1),)) for parts in (1, 2, 4, 8)}
INPUTS = 3
DATA = np.random.default_rng(7).standard_normal((INPUTS, SIZE)).astype(np.float32)

steps = st.lists(
    st.tuples(
        st.sampled_from(["exp", "neg", "add", "mul", "copy", "assign", "sum", "print", "loop"]),
        st.integers(0, 11),
        st.integers(0, 11),
        st.sampled_from(sorted(CUTS)),
    ),
    min_size=2,
    max_size=14,
)


def program(recipe: list[tuple[str, int, int, int]], donated: bool) -> Graph:
    """Return a graph whose steps read values before them, and write over some that copies made."""
    graph = Graph(TARGET, "leaves")
    values = [graph.add_input((SIZE,), "float32", f"x{i}") for i in range(INPUTS)]
    for x in values:
        graph.set_layout(x.name, Layout((CUTS[4],)))
    graph.donated = (0,) if donated else ()
    written: list[Tensor] = []

    def add(into: Sequence, kind: str, a: Tensor, b: Tensor, parts: int, number: int) -> None:
        plan = Plan((CUTS[parts],))
        match kind:
            case "exp" | "neg":
                values.append(getattr(popops, kind)(Site(graph, sequence=into), a, plan=plan))
            case "add" | "mul":
                values.append(getattr(popops, kind)(Site(graph, sequence=into), a, b, plan=plan))
            case "sum":
                total = popops.reduce(Site(graph, sequence=into), a, (0,), "add")
                values.append(popops.add(Site(graph, sequence=into), b, total, plan=plan))
            case "copy":
                made = graph.add_tensor((SIZE,), "float32", "made", Layout((CUTS[parts],)))
                into.add(Copy(made.name, (a.name,)))
                written.append(made)
                values.append(made)
            case "assign" if written:
                into.add(Copy(written[number % len(written)].name, (a.name,)))
            case "print":
                into.add(PrintTensor(a.name, f"at {number}"))
            case _:
                pass

    for number, (kind, left, right, parts) in enumerate(recipe):
        a, b = values[left % len(values)], values[right % len(values)]
        if kind != "loop":
            add(graph.program, kind, a, b, parts, number)
        elif written:
            body, before = Sequence(), len(values)
            for inner in ("mul", "exp", "copy", "assign"):
                add(body, inner, written[left % len(written)], b, parts, number)
            del values[before:], written[-1:]
            graph.program.add(Repeat(2, body))
    graph.outputs = list(dict.fromkeys(v.name for v in values[-3:] if v.name not in graph.inputs[:1]))
    return graph


Members = list[tuple[set[str], set[str], set[str]]]


def members(executable: Executable) -> list[Members]:
    """Return for every step what its members receive, read in place and write, as storages."""
    place = {name: v.storage for name, v in executable.variables.items()}
    found: list[Members] = []
    for step in executable.steps:
        named: list[tuple[list[str], list[str], tuple[str, ...]]] = [(list(step.reads), [], step.writes)]
        if isinstance(step, ExecuteStep):
            named = [
                (
                    [o.variable for o in g.operands if o.buffer],
                    [o.variable for o in g.operands if not o.buffer],
                    g.results,
                )
                for g in step.groups
            ]
        elif isinstance(step, CopyStep):
            named = [(list(copy.sources), [], (copy.destination,)) for copy in step.copies]
        found.append([tuple({place[name] for name in names} for names in each) for each in named])  # type: ignore[misc]
    return found


@budget(PLAN)
@given(steps, st.booleans())
def test_grouped_programs_are_those_they_were(recipe: list[tuple[str, int, int, int]], donated: bool) -> None:
    graph = program(recipe, donated)
    before, after = ungrouped(lambda: compile_graph(graph)), compile_graph(graph)
    assert after.to_bytes() == compile_graph(graph).to_bytes()
    certify(after)
    assert {v.name: v.storage for v in after.variables.values()} == {
        v.name: v.storage for v in before.variables.values()
    }
    for kind, step in zip(after.steps, members(after), strict=True):
        for k, (received, here, writes) in enumerate(step):
            for _, _, earlier in step[:k]:
                assert not received & earlier, "it is received before anything is computed"
                assert earlier & writes <= here
            if isinstance(kind, CopyStep):
                assert not any(writes & (r | w) for r, _, w in step[:k])
    assert sum(map(len, members(after))) == len(before.steps) >= len(after.steps)
    costs = [sum(cost.cycles or 0 for cost in step_costs(e)) for e in (before, after)]
    assert costs[1] <= costs[0]
    peaks = [memory_analysis(e)["peak_bytes"] for e in (before, after)]
    assert peaks[1] <= peaks[0] + SHARE * TARGET.bytes_per_tile
    wanted, trace = make_engine(before, "fast", "ring").run(*DATA)
    for engine in ("fast", "literal", "vertex"):
        outputs, printed = make_engine(after, engine, "ring").run(*DATA)
        for got, want in zip(outputs, wanted, strict=True):
            np.testing.assert_array_equal(got, want)
        assert [p.title for p in printed.prints] == [p.title for p in trace.prints]
        for got, want in zip(printed.prints, trace.prints, strict=True):
            np.testing.assert_array_equal(got.value, want.value)


@given(st.integers(2, 40), st.integers(1, 4), st.integers(0, 1 << 30))
def test_what_grouping_adds_keeps_to_its_share(count: int, levels: int, seed: int) -> None:
    """Leaves whose results are a large part of a tile's share: not all of one level can be one step."""
    target = Target.named("gc200").replace(num_tiles=2)
    words = int(target.bytes_per_tile * SHARE) // 4 // 3
    rng = np.random.default_rng(seed)
    graph = Graph(target, "large")
    x = graph.add_input((2 * words,), "float32", "x")
    split = AxisSplit(2 * words, words, ((2, 1),))
    graph.set_layout(x.name, Layout((split,)))
    total, sums = x, []
    for _ in range(count):
        value = x
        for _ in range(levels):
            value = popops.mul(graph, value, float(rng.uniform(0.5, 1)), plan=Plan((split,)))
        sums.append(popops.reduce(graph, value, (0,), "add"))
    for value in sums:
        total = popops.add(graph, total, value, plan=Plan((split,)))
    graph.outputs = [total.name]
    before, after = ungrouped(lambda: compile_graph(graph)), compile_graph(graph)
    certify(after)
    peaks = [memory_analysis(e)["peak_bytes"] for e in (before, after)]
    assert peaks[1] <= peaks[0] + SHARE * target.bytes_per_tile
    assert len(after.steps) <= len(before.steps)
