"""Programs drawn at random that exchange with the host in loops, branches and functions, against plain Python."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.unit.tiles.executable_programs import rows, split
from tiles.compiler import certify, compile_graph, load_executable
from tiles.engine import make_engine
from tiles.graph import (
    Call,
    Copy,
    CopyFromRemote,
    CopyFromStream,
    CopyToRemote,
    CopyToStream,
    Graph,
    If,
    Layout,
    Plan,
    PrintTensor,
    Repeat,
    Sequence,
    Site,
    WriteUndef,
)
from tiles.poplibs import popops
from tiles.target import Target

NAMES = "abc"
ROWS = 3
Run = list[tuple[Any, ...]]


class _Drawn:
    """A graph that adds items of streams and rows to a total and sends, prints and keeps totals; the same as plain data."""

    def __init__(self, target: Target, seed: int) -> None:
        self.random = random.Random(seed)
        self.graph = graph = Graph(target, "drawn")
        start = graph.set_layout(graph.add_input((8,), "int32", "start").name, rows((8,), 2))
        self.bit = graph.add_input((), "bool", "bit")
        for name in NAMES:
            graph.add_host_to_device_stream(name, "int32", (8,))
        graph.add_device_to_host_stream("out", "int32", (8,))
        graph.add_remote_buffer("table", "int32", (8,), ROWS)
        self.rows = []
        for k in range(ROWS):
            number = graph.add_constant(np.int32(k), "int32", f"row{k}")
            self.rows.append(graph.set_layout(number.name, Layout(())).name)
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
        self.add_item(program)
        run.append(("read", name))

    def add_item(self, program: Sequence) -> None:
        new = popops.add(Site(self.graph, sequence=program), self.total, self.item, plan=Plan((split(8, 2),)))
        program.add(Copy(self.total.name, (new.name,)))
        if self.random.random() < 0.5:
            program.add(WriteUndef(self.item.name))

    def load(self, program: Sequence, run: Run) -> None:
        k = self.random.randrange(ROWS)
        program.add(CopyFromRemote("table", self.item.name, self.rows[k]))
        self.add_item(program)
        run.append(("load", k))

    def save(self, program: Sequence, run: Run) -> None:
        k = self.random.randrange(ROWS)
        program.add(CopyToRemote(self.total.name, "table", self.rows[k]))
        run.append(("save", k))

    def show(self, program: Sequence, run: Run) -> None:
        title = self.random.choice("pq")
        program.add(PrintTensor(self.total.name, title))
        run.append(("show", title))

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
            simple = ["read", "send", "load", "save", "show"]
            kind = self.random.choice([*simple, *(["repeat", "if", "call"] * 2 if depth else [])])
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


class _Host:
    """The host of a run in plain Python."""

    def __init__(self, streams: dict[str, np.ndarray], bit: bool) -> None:
        self.items = {name: iter(x) for name, x in streams.items()}
        self.bit = bit
        self.table: list[Any] = [0] * ROWS
        self.sent: list[Any] = []
        self.shown: list[tuple[str, Any]] = []

    def total(self, run: Run, total: Any) -> Any:
        """Return the total after a run."""
        for kind, *rest in run:
            match kind:
                case "read":
                    total = total + next(self.items[rest[0]])
                case "load":
                    total = total + self.table[rest[0]]
                case "save":
                    self.table[rest[0]] = total
                case "send":
                    self.sent.append(total)
                case "show":
                    self.shown.append((rest[0], total))
                case "if":
                    total = self.total(rest[0] if self.bit else rest[1], total)
                case _:
                    for _ in range(rest[0]):
                        total = self.total(rest[1], total)
        return total


@pytest.mark.parametrize("seed", range(12))
def test_nested_programs_exchange_in_order(seed: int, small_target: Target) -> None:
    drawn = _Drawn(small_target, seed)
    executable = load_executable(compile_graph(drawn.graph).to_bytes())
    certify(executable)
    start = np.arange(8, dtype=np.int32)
    streams = {n: np.random.default_rng(seed).integers(-99, 99, (60, 8)).astype(np.int32) for n in NAMES}
    for bit in (False, True):
        host = _Host(streams, bit)
        want = host.total(drawn.run, start)
        given = {"start": start, "bit": np.bool_(bit)}
        for engine in ("fast", "literal", "vertex"):
            machine = make_engine(executable, engine)
            (total,), trace = machine.run(*(given[name] for name in executable.inputs), streams=streams)
            np.testing.assert_array_equal(total, want)
            np.testing.assert_array_equal(trace.streams["out"], np.stack(host.sent))
            assert [p.title for p in trace.prints] == [title for title, _ in host.shown]
            for print_, (_, value) in zip(trace.prints, host.shown, strict=True):
                np.testing.assert_array_equal(print_.value, value)
            table = [np.broadcast_to(row, (8,)) for row in host.table]
            np.testing.assert_array_equal(machine.copy_from_remote_buffer("table"), table)
