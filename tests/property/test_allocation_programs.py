"""Generated programs with loops, branches, calls and reuse of memory: whatever compiles is certified.

The certifier shares no code with the compiler, so each example tests lifetimes, sharing of storage, addresses, receive
buffers and layouts of the compiler against it; some are run as well, and the engines must agree on every bit.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_exchange import layouts, splits
from tests.unit.tiles.executable_programs import ENGINES, run, same
from tiles.compiler import certify, check, compile_graph, load_executable
from tiles.graph import (
    Call,
    Copy,
    Execute,
    Graph,
    Layout,
    Plan,
    Repeat,
    RepeatWhileTrue,
    Sequence,
    Switch,
    Tensor,
    Vertices,
)
from tiles.poplibs import popops, poputil
from tiles.poplibs.forms import map_form, transpose_map
from tiles.poplibs.popops.elementwise import rows_of
from tiles.poplibs.popops.expr import arg
from tiles.poplibs.popops.map import Map
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=48)
SHAPES = ((6,), (4, 4), (2, 3, 4), ())


class Builder:
    """Draws one program; every tensor it reads is written before on all paths."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.graph = Graph(TARGET, "generated")
        self.steps_left = draw(st.integers(2, 9))
        self.functions = 0

    def build(self) -> Graph:
        graph, draw = self.graph, self.draw
        inputs = [graph.add_input(draw(st.sampled_from(SHAPES)), "float32", f"x{i}") for i in range(draw(st.integers(1, 3)))]
        inputs = [graph.set_layout(t.name, draw(layouts(t.shape))) for t in inputs]
        graph.donated = tuple(i for i in range(len(inputs)) if draw(st.booleans()))
        index = graph.add_input((), "int32", "index")
        self.index = graph.set_layout(index.name, Layout(()))
        value = np.arange(4, dtype=np.float32).reshape(2, 2)
        known = [*inputs, graph.add_constant(value, "float32", "constant")]
        self.block(graph.program, known, 3)
        graph.outputs = [t.name for t in known if draw(st.integers(0, 2)) == 0] or [known[-1].name]
        return graph

    def block(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        """Append steps to a sequence and what they surely write to ``known``."""
        for _ in range(self.draw(st.integers(1, 4))):
            if self.steps_left <= 0:
                return
            self.steps_left -= 1
            kinds = ["map", "map", "over", "over", "copy", "move", "reduce", "reshape"]
            kind = self.draw(st.sampled_from(kinds + (["repeat", "while", "switch", "call"] if depth else [])))
            getattr(self, kind)(program, known, depth)

    def one_of(self, known: list[Tensor], shape: tuple[int, ...] | None = None) -> Tensor:
        """Draw a tensor that holds something, late ones more often."""
        found = [t for t in known if shape is None or t.shape == shape]
        return found[-1 - self.draw(st.integers(0, len(found) - 1))]

    def plan(self, shape: tuple[int, ...], near: Tensor) -> Plan:
        """Draw a plan, often the layout of a tensor."""
        layout = self.graph.tensors[near.name].layout
        if layout is not None and layout.shape == shape and self.draw(st.booleans()):
            return Plan(layout.axes, layout.base)
        return Plan(*self.draw(splits(shape)))

    def map(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        x = self.one_of(known)
        y = self.one_of(known, x.shape)
        expression = arg(0) + arg(1) if self.draw(st.booleans()) else arg(0) * 3.0
        operands = [x, y] if self.draw(st.booleans()) else [x, x]
        if "mul" in str(expression):
            operands = [x]
        try:
            known.append(popops.map(self.graph, expression, operands, program=program, plan=self.plan(x.shape, x)))
        except Exception:
            known.append(popops.neg(self.graph, x, program=program, plan=self.plan(x.shape, x)))

    def over(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        """Write an existing tensor anew, from operands it may lie in place with."""
        own = [t for t in known if self.graph.tensors[t.name].kind == "temporary" and not self.graph.tensors[t.name].view_of]
        if not own:
            return
        result = self.graph.tensors[self.one_of(own).name]
        assert result.layout is not None
        x, y = self.one_of(known, result.shape), self.one_of(known, result.shape)
        body, (output,) = rows_of([arg(0) - arg(1)], ("float32", "float32"))
        codelet = Map(body, (output,), ("float32", "float32"), ("float32",))
        plan = Plan(result.layout.axes, result.layout.base)
        names = tuple(poputil.copies.placed(self.graph, t).name for t in (x, y))
        vertices = Vertices("over", codelet, map_form(result.shape, [_identity(result), _identity(result)]), plan, names, (result.name,))
        vertices = Vertices(self.graph.unique("over", "step"), *list(vars(vertices).values())[1:])
        program.add(Execute(self.graph.add_compute_set("over", vertices).name))

    def copy(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        x = self.one_of(known)
        if self.draw(st.booleans()):
            known.append(poputil.copy(self.graph, x, self.draw(layouts(x.shape)), program=program))
            return
        own = [t for t in known if self.graph.tensors[t.name].kind == "temporary" and not self.graph.tensors[t.name].view_of and t.shape == x.shape]
        if own:
            program.add(Copy(self.one_of(own).name, (poputil.copies.placed(self.graph, x).name,)))

    def move(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        x = self.one_of(known)
        order = self.draw(st.permutations(range(len(x.shape))))
        shape = tuple(x.shape[d] for d in order)
        known.append(popops.transpose(self.graph, x, order, program=program, plan=self.plan(shape, x)))

    def reduce(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        x = self.one_of(known)
        dims = [d for d in range(len(x.shape)) if self.draw(st.booleans())]
        known.append(popops.reduce(self.graph, x, dims, program=program))

    def reshape(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        x = self.one_of(known)
        shape = self.draw(st.sampled_from([s for s in ((6,), (2, 3), (16,), (4, 4), (8, 2), (2, 3, 4), (6, 4), (24,), (), (1, 1), (2, 2), (4,), (3, 1, 2)) if np.prod(s) == np.prod(x.shape)] or [x.shape]))
        known.append(poputil.reshape(self.graph, x, shape, program=program))

    def repeat(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        body = Sequence()
        self.block(body, known, depth - 1)
        program.add(Repeat(self.draw(st.integers(1, 3)), body))

    def switch(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        branches = []
        for _ in range(self.draw(st.integers(1, 2))):
            branches.append(Sequence())
            self.block(branches[-1], list(known), depth - 1)
        program.add(Switch(self.index.name, tuple(branches)))

    def __while(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        condition, body, graph = Sequence(), Sequence(), self.graph
        count = graph.add_tensor((), "int32", "count", Layout((), self.draw(st.integers(0, 3))))
        point = Plan(())
        program.add(Copy(count.name, (self.index.name,)))
        if self.draw(st.booleans()):
            self.block(condition, known, depth - 1)
        flag = popops.lt(graph, count, 2, program=condition, plan=point)
        if self.draw(st.booleans()):
            self.block(condition, known, depth - 1)
        self.block(body, list(known), depth - 1)
        more = popops.add(graph, count, 1, program=body, plan=point)
        body.add(Copy(count.name, (more.name,)))
        program.add(RepeatWhileTrue(condition, flag.name, body))

    def call(self, program: Sequence, known: list[Tensor], depth: int) -> None:
        """Make a function and call it two times."""
        name = f"f{self.functions}"
        self.functions += 1
        x = self.one_of(known)
        given = self.graph.add_tensor(x.shape, "float32", "given", self.draw(layouts(x.shape)))
        body, local = Sequence(), [given]
        self.block(body, local, depth - 1)
        self.graph.functions[name] = body
        answer = local[-1]
        for _ in range(2):
            source = self.one_of(known, x.shape)
            program.add(Copy(given.name, (poputil.copies.placed(self.graph, source).name,)))
            program.add(Call(name))
            if self.draw(st.booleans()):
                self.block(program, known, 0)
            known.append(poputil.copy(self.graph, answer, self.draw(layouts(answer.shape)), program=program))


setattr(Builder, "while", Builder._Builder__while)


def _identity(t: Tensor):
    return transpose_map(range(len(t.shape)))


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


@settings(max_examples=2)
@given(graphs())
def test_engines_agree_on_certified_programs(graph: Graph) -> None:
    executable = compile_graph(graph)
    certify(executable)
    first, *others = (run(executable, engine) for engine in ENGINES)
    assert all(same(first, other) for other in others)
