"""Programs drawn at random that read and send streams in loops, branches and functions, against plain Python."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.unit.tiles.executable_programs import rows, split
from tiles.compiler import certify, compile_graph, load_executable
from tiles.engine import make_engine
from tiles.graph import Call, Copy, CopyFromStream, CopyToStream, Graph, If, Plan, Repeat, Sequence
from tiles.poplibs import popops
from tiles.target import Target

NAMES = "abc"
Run = list[tuple[Any, ...]]


class _Drawn:
    """A graph that adds items of three streams to a total and sends totals, and the same as plain data."""

    def __init__(self, target: Target, seed: int) -> None:
        self.random = random.Random(seed)
        self.graph = graph = Graph(target, "drawn")
        start = graph.set_layout(graph.add_input((8,), "int32", "start").name, rows((8,), 2))
        self.bit = graph.add_input((), "bool", "bit")
        for name in NAMES:
            graph.add_host_to_device_stream(name, "int32", (8,))
        graph.add_device_to_host_stream("out", "int32", (8,))
        self.total = graph.add_tensor((8,), "int32", "total", rows((8,), 2))
        self.item = graph.add_tensor((8,), "int32", "item", rows((8,), 4, 3))
        self.functions: list[tuple[str, Run]] = []
        graph.program.add(Copy(self.total.name, (start.name,)))
        body, self.run = self.sequence(3)
        graph.program.add(body)
        self.send(graph.program, self.run)
        graph.outputs = [self.total.name]

    def send(self, program: Sequence, run: Run) -> None:
        program.add(CopyToStream(self.total.name, "out"))
        run.append(("send",))

    def read(self, program: Sequence, run: Run) -> None:
        name = self.random.choice(NAMES)
        program.add(CopyFromStream(name, self.item.name))
        new = popops.add(self.graph, self.total, self.item, program=program, plan=Plan((split(8, 2),)))
        program.add(Copy(self.total.name, (new.name,)))
        run.append(("read", name))

    def call(self, program: Sequence, run: Run) -> None:
        if not self.functions or self.random.random() < 0.5:
            body, inner = self.sequence(0)
            name = f"f{len(self.functions)}"
            self.graph.functions[name] = body
            self.functions.append((name, inner))
        name, inner = self.random.choice(self.functions)
        program.add(Call(name))
        run.append(("repeat", 1, inner))

    def sequence(self, depth: int) -> tuple[Sequence, Run]:
        program, run = Sequence(), []
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.choice(["read", "send", "repeat", "if", "call"] if depth else ["read", "send"])
            if kind == "repeat":
                count = self.random.randint(0, 3)
                body, inner = self.sequence(depth - 1)
                program.add(Repeat(count, body))
                run.append(("repeat", count, inner))
            elif kind == "if":
                (then, yes), (otherwise, no) = self.sequence(depth - 1), self.sequence(depth - 1)
                program.add(If(self.bit.name, then, otherwise))
                run.append(("if", yes, no))
            else:
                getattr(self, kind)(program, run)
        return program, run


def witness(run: Run, total: Any, items: dict[str, Iterator[Any]], bit: bool, sent: list[Any]) -> Any:
    """Return the total after a run, and append what is sent."""
    for kind, *rest in run:
        if kind == "read":
            total = total + next(items[rest[0]])
        elif kind == "send":
            sent.append(total)
        elif kind == "if":
            total = witness(rest[0] if bit else rest[1], total, items, bit, sent)
        else:
            for _ in range(rest[0]):
                total = witness(rest[1], total, items, bit, sent)
    return total


@pytest.mark.parametrize("seed", range(12))
def test_nested_programs_take_items_in_order(seed: int, small_target: Target) -> None:
    drawn = _Drawn(small_target, seed)
    executable = load_executable(compile_graph(drawn.graph).to_bytes())
    certify(executable)
    start = np.arange(8, dtype=np.int32)
    streams = {n: np.random.default_rng(seed).integers(-99, 99, (60, 8)).astype(np.int32) for n in NAMES}
    for bit in (False, True):
        sent: list[np.ndarray] = []
        items = {name: iter(x) for name, x in streams.items()}
        want = witness(drawn.run, start, items, bit, sent)
        given = {"start": start, "bit": np.bool_(bit)}
        for engine in ("fast", "literal", "vertex"):
            run = make_engine(executable, engine).run
            (total,), trace = run(*(given[name] for name in executable.inputs), streams=streams)
            np.testing.assert_array_equal(total, want)
            np.testing.assert_array_equal(trace.streams["out"], np.stack(sent))
