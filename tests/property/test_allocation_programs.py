"""Generated programs with loops, branches, calls and reuse of memory: whatever compiles is certified.

The certifier shares no code with the compiler, so each example tests the compiler's lifetimes, shared storage,
addresses, receive buffers and layouts; a few are run as well, and the engines must agree on every bit.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.budgets import SEQUENCE, budget
from tests.property.test_exchange import layouts, splits
from tests.unit.tiles.executable_programs import ENGINES, run, same
from tiles.compiler import certify, check, compile_graph, load_executable
from tiles.graph import (
    TEMPORARY,
    Call,
    Copy,
    Execute,
    Graph,
    Layout,
    Plan,
    Repeat,
    RepeatWhileTrue,
    Sequence,
    Site,
    Switch,
    Tensor,
    Vertices,
    identity_map,
)
from tiles.poplibs import popops, poputil
from tiles.poplibs.forms import map_form
from tiles.poplibs.popops.expression import Body
from tiles.poplibs.popops.map import Map
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=48)
SHAPES = ((6,), (4, 4), (2, 3, 4), ())
RESHAPES = {
    math.prod(shape): [
        s for s in (*SHAPES, (2, 3), (16,), (8, 2), (6, 4), (24,), (1, 1)) if math.prod(s) == math.prod(shape)
    ]
    for shape in SHAPES
}
BODIES: dict[int, Body] = {1: (("negate", (0,), ()),), 2: (("subtract", (0, 1), ()),)}
STRAIGHT = ("map", "map", "map", "over", "over", "copy", "assign", "move", "reduce", "reshape")
CONTROL = ("repeat", "while", "switch", "call")


class Builder:
    """Draws one program; every tensor it reads is written before on all paths."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.graph = Graph(TARGET, "generated")
        self.steps_left = draw(st.integers(2, 9))

    def build(self) -> Graph:
        graph = self.graph
        known = []
        for i in range(self.draw(st.integers(1, 3))):
            shape = self.draw(st.sampled_from(SHAPES))
            x = graph.add_input(shape, "float32", f"x{i}")
            known.append(graph.set_layout(x.name, self.draw(layouts(shape))))
        graph.donated = tuple(i for i in range(len(known)) if self.draw(st.booleans()))
        self.index = graph.set_layout(graph.add_input((), "int32", "index").name, Layout(()))
        known.append(
            poputil.map_linearly(graph, graph.add_constant(np.arange(6, dtype=np.float32), "float32"))
        )
        self.block(graph.program, known, 3)
        outputs = [t.name for t in known if self.draw(st.integers(0, 3)) == 0]
        graph.outputs = outputs or [known[-1].name]
        return graph

    def block(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        """Append steps to a sequence, and what they surely write to ``known``."""
        for _ in range(self.draw(st.integers(1, 4))):
            if self.steps_left > 0:
                self.steps_left -= 1
                kind = self.draw(st.sampled_from(STRAIGHT + (CONTROL if depth else ())))
                getattr(self, f"add_{kind}")(program, known, depth - 1)

    def one_of(self, known: list[Tensor], shape: tuple[int, ...] | None = None) -> Tensor:
        """Draw a tensor that holds something, late ones sooner."""
        found = [t for t in known if shape is None or t.shape == shape]
        return found[-1 - self.draw(st.integers(0, len(found) - 1))]

    def own(self, known: list[Tensor], shape: tuple[int, ...] | None = None) -> Tensor | None:
        """Draw a tensor that a step may write again, if there is one."""
        found = [t for t in known if t.kind == TEMPORARY and not t.view_of and shape in (None, t.shape)]
        return self.one_of(found) if found else None

    def plan(self, near: Tensor) -> Plan:
        """Draw a plan for a tensor's shape, mostly the one that leaves it in place if it lies somewhere already."""
        if near.layout is not None and self.draw(st.integers(0, 3)):
            return Plan(near.layout.axes, near.layout.base)
        return Plan(*self.draw(splits(near.shape)))

    def execute(self, known: list[Tensor], x: Tensor, result: Tensor, plan: Plan, program: Sequence) -> None:
        """Negate a tensor, or subtract another one from it."""
        operands = [x] if self.draw(st.booleans()) else [x, self.one_of(known, x.shape)]
        count = len(operands)
        form = map_form(result.shape, [identity_map(len(result.shape))] * count)
        codelet = Map(BODIES[count], (count,), ("float32",) * count, ("float32",))
        name = self.graph.unique("compute", "step")
        vertices = Vertices(name, codelet, form, plan, tuple(t.name for t in operands), (result.name,))
        program.add(Execute(self.graph.add_compute_set(name, vertices).name))

    def add_map(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        x = self.one_of(known)
        plan = self.plan(x)
        result = self.graph.add_tensor(x.shape, "float32", "map", Layout(plan.splits, plan.base))
        self.execute(known, x, result, plan, program)
        known.append(result)

    def add_over(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        """Write an existing tensor anew, where it lies."""
        result = self.own(known)
        if result is not None and result.layout is not None:
            plan = Plan(result.layout.axes, result.layout.base)
            self.execute(known, self.one_of(known, result.shape), result, plan, program)

    def add_copy(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        x = self.one_of(known)
        known.append(poputil.copy(Site(self.graph, sequence=program), x, self.draw(layouts(x.shape))))

    def add_assign(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        x = self.one_of(known)
        target = self.own(known, x.shape)
        if target is not None:
            program.add(Copy(target.name, (x.name,)))

    def add_move(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        x = self.one_of(known)
        order = self.draw(st.permutations(range(len(x.shape))))
        near = self.plan(x)
        plan = Plan(tuple(near.splits[d] for d in order), near.base)
        known.append(popops.transpose(Site(self.graph, sequence=program), x, order, plan=plan))

    def add_reduce(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        x = self.one_of(known)
        dimensions = [d for d in range(len(x.shape)) if self.draw(st.booleans())]
        known.append(popops.reduce(Site(self.graph, sequence=program), x, dimensions))

    def add_reshape(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        x = self.one_of(known)
        shape = self.draw(st.sampled_from(RESHAPES.get(math.prod(x.shape), [x.shape])))
        known.append(poputil.reshape(Site(self.graph, sequence=program), x, shape))

    def add_repeat(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        body = Sequence()
        self.block(body, known, depth)
        program.add(Repeat(self.draw(st.integers(1, 3)), body))

    def add_switch(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        branches = tuple(Sequence() for _ in range(self.draw(st.integers(1, 2))))
        for branch in branches:
            self.block(branch, list(known), depth)
        program.add(Switch(self.index.name, branches))

    def add_while(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        """Count down from the index in a loop whose condition has steps of its own."""
        condition, body, graph = Sequence(), Sequence(), self.graph
        count = graph.add_tensor((), "int32", "count", Layout((), self.draw(st.integers(0, 3))))
        program.add(Copy(count.name, (self.index.name,)))
        flag = popops.gt(Site(graph, sequence=condition), count, 0, plan=Plan(()))
        if self.draw(st.booleans()):
            self.block(condition, known, depth)
        self.block(body, list(known), depth)
        less = popops.sub(Site(graph, sequence=body), count, 1, plan=Plan(()))
        body.add(Copy(count.name, (less.name,)))
        program.add(RepeatWhileTrue(condition, flag.name, body))

    def add_call(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        """Make a function and call it twice."""
        x = self.one_of(known)
        given = self.graph.add_tensor(x.shape, "float32", "given", self.draw(layouts(x.shape)))
        body, local = Sequence(), [given]
        self.block(body, local, depth)
        name = self.graph.unique("function", "function")
        self.graph.functions[name] = body
        for _ in range(2):
            program.add(Copy(given.name, (self.one_of(known, x.shape).name,)))
            program.add(Call(name))
            known.append(
                poputil.copy(
                    Site(self.graph, sequence=program), local[-1], self.draw(layouts(local[-1].shape))
                )
            )


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    return Builder(draw).build()


@given(graphs())
def test_compiled_programs_are_certified(graph: Graph) -> None:
    executable = compile_graph(graph)
    certify(executable)
    check(executable)
    again = load_executable(executable.to_bytes())
    assert again.to_bytes() == executable.to_bytes()


@budget(SEQUENCE)
@given(graphs())
def test_engines_agree_on_certified_programs(graph: Graph) -> None:
    executable = compile_graph(graph)
    certify(executable)
    first, *others = (run(executable, engine) for engine in ENGINES)
    assert all(same(first, other) for other in others)
