"""Engine ``hlo`` on programs that exchange items with the host or print: the module op by op, with cursors of streams."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hlo_passes.ir import Decisions, Module, TensorType, evaluate_module, one_by_one
from hlo_passes.ops import Print, Stop
from ipuxla._jax_compat import Datum, Function
from ipuxla.hlo_engine.replay import DECIDING, Asked
from ipuxla.lowering.registry import where
from tiles._jax_compat import jit
from tiles.compiler import ErrorStep, Executable, PrintStep
from tiles.engine import (
    FIRST_CAPACITY,
    Received,
    Streams,
    aborted,
    check_items,
    collect,
    in_order,
    lines_of,
    out_of_items,
    record_decisions,
    stopped_with,
)
from tiles.engine import Print as Printed
from tiles.errors import IpuError, ProgramAborted
from tiles.graph import Stream, read_message
from tiles.numerics import decisions
from tiles.numerics.dtypes import name_of, to_jax
from tiles.numerics.ring import ring

_Kind = tuple[str, tuple[tuple[tuple[int, ...], str], ...]]
"""A message, with shape and dtype of every value that it shows: what prints of one kind have in common."""


def _kind(message: str, values: Sequence[Datum]) -> _Kind:
    return message, tuple((tuple(x.shape), jnp.dtype(x.dtype).name) for x in values)


class Prints:
    """What a module prints: a number for every part of every kind of print, as steps of an executable have.

    Attributes:
      steps: the step that an engine with steps would run, by number.
      types: shape and dtype of what it prints.
    """

    def __init__(self, module: Module) -> None:
        """Find a module's prints."""
        self.steps: dict[int, PrintStep] = {}
        self.types: dict[int, tuple[tuple[int, ...], np.dtype]] = {}
        self._numbers: dict[_Kind, list[int]] = {}
        for instruction in module.walk():
            if isinstance(instruction.op, Print):
                types = [jax.ShapeDtypeStruct(v.type.shape, v.type.np_dtype) for v in instruction.operands]
                self._add(instruction.op.message, types or [_NOTHING])

    def _add(self, message: str, types: Sequence[jax.ShapeDtypeStruct]) -> None:
        numbers = self._numbers.setdefault(_kind(message, types), [])
        title = read_message(message).template
        for part, type_ in enumerate(types if not numbers else ()):
            numbers.append(len(self.steps))
            self.types[numbers[-1]] = tuple(type_.shape), type_.dtype
            self.steps[numbers[-1]] = PrintStep("print", "", title, "", message, part)

    def show(self, streams: Streams, message: str, values: Sequence[Datum]) -> None:
        """Print values as a message says."""
        values = values or [jnp.zeros(_NOTHING.shape, _NOTHING.dtype)]
        for number, value in zip(self._numbers[_kind(message, values)], values, strict=True):
            step = self.steps[number]
            if not streams.tell(Printed(step.title, value, message, step.part)):
                streams.show(number, value)


class Stops:
    """Where a module may stop: a number for every message with a type of value, as steps of an executable have.

    Attributes:
      steps: the step that an engine with steps would run, by number.
      types: shape and dtype of the value that it stops with.
    """

    def __init__(self, module: Module, first: int) -> None:
        """Find where a module may stop; numbers begin with ``first``."""
        self.steps: dict[int, ErrorStep] = {}
        self.types: dict[int, tuple[tuple[int, ...], np.dtype]] = {}
        self._numbers: dict[_Kind, int] = {}
        for instruction in module.walk():
            if isinstance(instruction.op, Stop):
                (type_,) = (v.type for v in instruction.operands)
                value = jax.ShapeDtypeStruct(type_.shape, type_.np_dtype)
                kind = _kind(instruction.op.message, [value])
                if kind not in self._numbers:
                    number = self._numbers[kind] = first + len(self.steps)
                    self.types[number] = tuple(value.shape), value.dtype
                    self.steps[number] = ErrorStep(
                        "stop", "value", instruction.op.message, where(instruction)
                    )

    def stop(self, streams: Streams, message: str, value: Datum) -> None:
        """Stop the run unless something has halted it."""
        streams.stop_with(self._numbers[_kind(message, [value])], value)


_NOTHING = jax.ShapeDtypeStruct((0,), bool)
"""What is printed where a message shows no values."""


class _Host(Decisions):
    """What the interpreter asks: decisions of others, items of streams, that something is shown, and to stop."""

    def __init__(
        self, streams: Streams, asked: Decisions, may_halt: bool, prints: Prints, stops: Stops | None = None
    ) -> None:
        self.prints = prints
        self.stops = stops
        self.streams = streams
        self.asked = asked
        self.may_halt = may_halt

    @property
    def state(self) -> Datum:
        return self.streams.state, self.asked.state

    @state.setter
    def state(self, value: Datum) -> None:
        self.streams.state, self.asked.state = value

    def take(self, decision: Datum) -> Datum:
        return self.asked.take(decision)

    def goes_on(self, predicate: Datum) -> Datum:
        decided = self.take(predicate)
        return self.streams.unless_halted(decided) if self.may_halt else decided

    def receive(self, stream: str, type_: TensorType) -> Datum:
        return self.streams.take(stream)

    def send(self, stream: str, value: Datum) -> None:
        self.streams.send(stream, value)

    def show(self, message: str, values: Sequence[Datum]) -> None:
        self.prints.show(self.streams, message, values)

    def stop(self, message: str, value: Datum) -> None:
        if self.stops is None:
            super().stop(message, value)
        else:
            self.stops.stop(self.streams, message, value)


def _show(found: Sequence[Printed], arithmetic: str) -> None:
    for line, _ in lines_of(found, arithmetic):
        print(line)


def showing(module: Module) -> Callable[..., Sequence[Datum]]:
    """Return a module without streams as a traceable function that prints as it runs."""
    prints = Prints(module)

    def evaluate(*arrays: Datum) -> Sequence[Datum]:
        flow = Streams({}, False, {}, {}, ())
        flow.show_at_once(functools.partial(_show, arithmetic="float"))
        host = _Host(flow, Asked(decisions.Decisions()), False, prints)
        return evaluate_module(module, *arrays, apply=one_by_one, decisions=host)

    return evaluate


def streaming(
    module: Module,
    streams: Mapping[str, Stream],
    executable: Callable[[], Executable],
    arithmetic: str,
    compiler_options: dict[str, bool | int] | None = None,
) -> Callable[..., tuple[list[Datum], dict[str, Datum]]]:
    """Return a function of arrays and ``streams`` to results and what device-to-host streams received.

    It raises ``ProgramAborted`` where the module stops.

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

    def evaluate(
        capacity: tuple[int, ...], recorded: Datum, items: Mapping[str, Datum], arrays: Sequence[Datum]
    ) -> Datum:
        flow = Streams(streams, may_halt, items, dtypes, capacity)
        answers = decisions.Replay(recorded) if replays else decisions.Decisions()
        flow.add_steps(prints.types, stops.types)
        host = _Host(flow, Asked(answers), may_halt, prints, stops)
        return evaluate_module(module, *arrays, apply=one_by_one, decisions=host), flow.state

    @functools.cache
    def compiled(capacity: tuple[int, ...]) -> Function:
        function = functools.partial(evaluate, capacity)
        if arithmetic == "ring":
            function = ring(function, ["int32", given, types])
        return jit(function, compiler_options=compiler_options)

    def run(
        *arrays: Datum, streams: Mapping[str, Datum] | None = None
    ) -> tuple[list[Datum], dict[str, Datum]]:
        items = check_items(module.name, declared, {}, streams)
        recorded = record_decisions(executable(), *arrays, streams=items) if replays else ()

        def error(halted: int, state: dict[str, Datum], received: Received) -> IpuError:
            if halted > 0:
                return aborted(
                    stops.steps[halted - 1],
                    stopped_with(state, halted - 1),
                    in_order(prints.steps, received),
                )
            stream = declared[list(declared)[-1 - halted]]
            return out_of_items(stream, len(items[stream.name]))

        numbers = tuple(prints.steps)
        capacity = (FIRST_CAPACITY,) * (len(declared) - len(given) + len(numbers))
        try:
            results, received = collect(
                declared,
                capacity,
                lambda capacity: compiled(capacity)(recorded, items, tuple(arrays)),
                error,
                numbers,
            )
        except ProgramAborted as stopped:
            _show(stopped.prints, arithmetic)
            raise
        _show(in_order(prints.steps, received), arithmetic)
        return list(results), received.streams

    declared, prints = dict(streams), Prints(module)
    stops = Stops(module, len(prints.steps))
    may_halt = bool(given) or bool(stops.steps)
    return run
