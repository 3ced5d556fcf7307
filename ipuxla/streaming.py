"""Engine ``hlo`` on programs that exchange items with the host: the module op by op, with cursors of streams."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from hlo_passes.ir import Decisions, Module, evaluate_module, one_by_one
from ipuxla.replay import DECIDING, Asked
from tiles.compiler import Executable
from tiles.engine import FIRST_ROOM, Streams, check_items, collect, out_of_items, record_decisions
from tiles.errors import IpuError
from tiles.graph import Stream
from tiles.numerics import decisions
from tiles.numerics.dtypes import name_of, to_jax
from tiles.numerics.ring import ring


class _Host(Decisions):
    """What the interpreter asks: decisions of others, items of streams."""

    def __init__(self, streams: Streams, asked: Decisions, may_halt: bool) -> None:
        self.streams = streams
        self.asked = asked
        self.may_halt = may_halt

    @property
    def state(self) -> Any:
        return self.streams.state, self.asked.state

    @state.setter
    def state(self, value: Any) -> None:
        self.streams.state, self.asked.state = value

    def take(self, decision: Any) -> Any:
        return self.asked.take(decision)

    def goes_on(self, predicate: Any) -> Any:
        decided = self.take(predicate)
        return self.streams.unless_halted(decided) if self.may_halt else decided

    def receive(self, stream: str, type_: Any) -> Any:
        return self.streams.take(stream)

    def send(self, stream: str, value: Any) -> None:
        self.streams.send(stream, value)


def streaming(
    module: Module,
    streams: Mapping[str, Stream],
    executable: Callable[[], Executable],
    arithmetic: str,
    compiler_options: dict[str, Any] | None = None,
) -> Callable[..., tuple[list[Any], dict[str, Any]]]:
    """Return a function of arrays and ``streams`` to results and what device-to-host streams received.

    It runs on the host; no JAX transformation may trace it.

    Args:
      module: what to run.
      streams: its streams.
      executable: returns what the module was compiled to, whose float run decides in the ring.
      arithmetic: "float" or "ring".
      compiler_options: how XLA compiles it.
    """
    types = tuple(name_of(type_.np_dtype) for type_ in module.entry_computation.parameter_types)
    given = {name: stream.dtype for name, stream in streams.items() if not stream.to_host}
    dtypes = {name: to_jax(stream.dtype) for name, stream in streams.items()}
    replays = arithmetic == "ring" and any(isinstance(i.op, DECIDING) for i in module.walk())

    def evaluate(room: tuple[int, ...], recorded: Any, items: Any, arrays: Any) -> Any:
        flow = Streams(streams, bool(given), items, dtypes, room)
        answers = decisions.Replay(recorded) if replays else decisions.Decisions()
        host = _Host(flow, Asked(answers), bool(given))
        return evaluate_module(module, *arrays, apply=one_by_one, decisions=host), flow.state

    @functools.cache
    def compiled(room: tuple[int, ...]) -> Callable[..., Any]:
        function = functools.partial(evaluate, room)
        if arithmetic == "ring":
            function = ring(function, ["int32", given, types])
        return jax.jit(function, compiler_options=compiler_options)

    def run(*arrays: Any, streams: Mapping[str, Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
        items = check_items(module.name, declared, {}, streams)
        recorded = record_decisions(executable(), *arrays, streams=items) if replays else ()

        def error(halted: int, *_: Any) -> IpuError:
            stream = declared[list(declared)[-1 - halted]]
            return out_of_items(stream, len(items[stream.name]))

        room = (FIRST_ROOM,) * (len(declared) - len(given))
        results, received = collect(
            declared, room, lambda room: compiled(room)(recorded, items, tuple(arrays)), error
        )
        return list(results), received.streams

    declared = dict(streams)
    return run
