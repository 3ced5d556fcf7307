"""Run an executable, or the HLO module it came from, on arrays: one way for each engine."""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

import jax

from ipuxla._jax_compat import Datum, Device, devices
from ipuxla.collection import collection_paused
from ipuxla.errors import HostEngineInsideJit, InvalidOption, Unsupported, WrongArguments
from ipuxla.options import ARITHMETICS, require_one_of
from ipuxla.options import ENGINES as OPTION_ENGINES
from ipuxla.sharding import Placement
from tiles.compiler import Executable
from tiles.compiler.control import decided_parts
from tiles.compiler.control_flow import count_steps
from tiles.engine import ENGINES, FLOAT, Engine, Trace, make_engine
from tiles.errors import ProgramAborted
from tiles.graph import Stream
from tiles.platforms import where_arrays_are


class EngineOf(NamedTuple):
    """An engine that is prepared when it is first needed.

    Args:
      kind: its class, which says what it can do.
      arithmetic: "float" or "ring".
      make: prepares it.
    """

    kind: type[Engine]
    arithmetic: str
    make: Callable[[], Engine]


def on_tiles(
    executable: Executable,
    engine: str,
    arithmetic: str,
    strict: bool,
    devices: Sequence[tuple[str, int]] = (),
) -> EngineOf:
    """Return an engine that runs an executable.

    Args:
      executable: the program.
      engine: "fast", "literal", "vertex" or "tile".
      arithmetic: "float" or "ring".
      strict: whether the fast engine keeps the plan's order of reductions.
      devices: platform and id of the JAX devices over which replicas are spread; none: the default one.

    Raises:
      InvalidOption: an unknown engine or arithmetic.
      Unsupported: engine "hlo", which runs no executable.
    """
    require_one_of("engine", engine, OPTION_ENGINES)
    require_one_of("arithmetic", arithmetic, ARITHMETICS)
    if engine not in ENGINES:
        raise Unsupported(
            f'engine "{engine}" evaluates the HLO module, which a saved program does not hold',
            expected=f"engine {', '.join(list(ENGINES)[:-1])} or {list(ENGINES)[-1]}",
            try_='ipuxla.load(path, engine="fast"), or compile the function again',
        )
    return EngineOf(
        ENGINES[engine],
        arithmetic,
        lambda: make_engine(
            executable, engine=engine, arithmetic=arithmetic, strict=strict, devices=_devices(devices)
        ),
    )


def _devices(named: Sequence[tuple[str, int]]) -> list[Device]:
    """Return the JAX devices of platforms and ids.

    Raises:
      InvalidOption: this process has none such.
    """
    found: list[Device] = []
    for platform, number in named:
        there = {device.id: device for device in devices(platform)}
        if number not in there:
            raise InvalidOption(
                f"this process has no device {platform}:{number}",
                expected=", ".join(f"{platform}:{id_}" for id_ in there),
            )
        found.append(there[number])
    return found


class Runner:
    """A program with the engine that runs it, shared by all that call it."""

    def __init__(
        self,
        executable: Executable | Callable[[], Executable],
        engine: EngineOf | Engine,
        *,
        strict: bool = True,
        donated: tuple[int, ...] = (),
        streams: Mapping[str, Stream] | None = None,
        placement: Placement | None = None,
        checks: Mapping[str, Callable[[ProgramAborted], None]] | None = None,
    ) -> None:
        """Put together what is needed to run; nothing is compiled yet.

        Args:
          executable: the program, or a function that compiles it when it is first needed.
          engine: what runs it.
          strict: whether the fast engine keeps the plan's order of reductions.
          donated: arguments that a run consumes.
          streams: those by which it exchanges items with the host; None: the executable's.
          placement: how the arrays that it takes and returns are sharded over the replicas that run it; None for one, and
            for an engine that shards them itself.
          checks: by the message that the program stops with, what the host then calls and what raises the caller's
            error. A saved program has none, and in the ring none is called: the error is ``ProgramAborted``.
        """
        self._kind = type(engine) if isinstance(engine, Engine) else engine.kind
        self.arithmetic = engine.arithmetic
        self.strict = strict
        self.donated = donated
        self._executable = executable
        self._prepared = engine
        self._streams = streams
        self._placement = placement
        self._checks = dict(checks or {}) if self.arithmetic == FLOAT else {}

    @property
    def engine(self) -> str:
        """The engine that runs it."""
        return self._kind.name

    @functools.cached_property
    def executable(self) -> Executable:
        """The program as plain data."""
        return self._executable() if callable(self._executable) else self._executable

    @functools.cached_property
    def streams(self) -> Mapping[str, Stream]:
        """The streams by which the program exchanges items with the host."""
        return self.executable.streams if self._streams is None else self._streams

    def run(self, *arrays: Datum) -> list[Datum]:
        """Run on arrays, keys as their words. Callers hold ``jax.enable_x64(True)``.

        Raises:
          Unsupported: the program exchanges items with the host.
        """
        self._require_no_streams()
        with self._checking(), where_arrays_are(arrays):
            return list(self._run(*arrays))

    @contextlib.contextmanager
    def _checking(self) -> Generator[None]:
        """Where the program stopped at a run-time check, raise what the host's function raises."""
        try:
            yield
        except ProgramAborted as stopped:
            if (check := self._checks.get(stopped.what)) is not None:
                check(stopped)
            raise

    def run_streams(
        self, arrays: Sequence[Datum], streams: Mapping[str, Datum] | None
    ) -> tuple[list[Datum], dict[str, Datum]]:
        """Run on arrays and items; return results, and what streams to the host received.

        Raises:
          InvalidArguments: other streams than the program's, or too few items.
        """
        with self._checking(), where_arrays_are(arrays):
            outputs, trace = self._machine.run(*self._on_devices(arrays), streams=streams)
        return self._whole(outputs), dict(trace.streams)

    def _on_devices(self, arrays: Sequence[Datum]) -> Sequence[Datum]:
        """Return what an engine takes of whole arrays: what each replica holds."""
        return arrays if self._placement is None else self._placement.to_devices(arrays)

    def _whole(self, outputs: Sequence[Datum]) -> list[Datum]:
        """Return the arrays whose parts an engine returns."""
        return list(outputs) if self._placement is None else self._placement.from_devices(outputs)

    def _require_no_streams(self) -> None:
        if self.streams:
            raise Unsupported(
                f"the program exchanges items with the host: {', '.join(self.streams)}",
                expected="a call of the compiled program, outside JAX's transformations",
                try_="compiled(*arguments, streams={name: items}) with an array [items, *shape] for each",
            )

    def run_traced(
        self, *arrays: Datum, streams: Mapping[str, Datum] | None = None
    ) -> tuple[list[Datum], Trace]:
        """Run and record what ran; donated arguments are kept.

        Raises:
          Unsupported: engine ``hlo``, which has no supersteps to count.
        """
        self._require_supersteps()
        with self._checking(), where_arrays_are(arrays):
            outputs, trace = self._machine.run(*self._on_devices(arrays), streams=streams)
        return self._whole(outputs), trace

    def static_trace(self) -> Trace:
        """Return what a run would record, where that does not depend on data.

        Raises:
          Unsupported: engine ``hlo``, which has no supersteps to count.
          WrongArguments: loops, branches or streams depend on data.
        """
        self._require_supersteps()
        executable = self.executable
        if self.streams or any(True for _ in decided_parts(executable.program)):
            raise WrongArguments(
                "what runs depends on the arguments: the program has loops, branches or streams that follow data",
                expected="the arguments of a call",
                got="none",
            )
        return Trace(count_steps(executable, {}), self.engine, self.arithmetic, {}, {}, ())

    def _require_supersteps(self) -> None:
        if not self._kind.counts_steps:
            raise Unsupported(
                f'engine "{self.engine}" evaluates the module op by op and has no supersteps to count',
                try_='compile(engine="fast") and profile that',
            )

    def trace(self, *tracers: Datum) -> list[Datum]:
        """Run as part of an outer JAX transformation.

        Raises:
          HostEngineInsideJit: the engine steps on the host.
        """
        if not self._kind.is_traceable:
            able = (name for name in OPTION_ENGINES if name not in ENGINES or ENGINES[name].is_traceable)
            raise HostEngineInsideJit(
                f"engine {self.engine!r} steps on the host and cannot be part of an outer jax.jit or loop",
                expected=" or ".join(f'engine="{name}"' for name in able),
                got=f'engine="{self.engine}"',
                try_="call the decorated function outside jax.jit, where jax.grad and jax.vmap work with it",
            )
        self._require_no_streams()
        return self._traced(*tracers)

    def _traced(self, *arrays: Datum) -> list[Datum]:
        """Run as a pure JAX function."""
        with collection_paused():
            return self._whole(self._machine.trace(*self._on_devices(arrays)))

    @functools.cached_property
    def _run(self) -> Callable[..., Sequence[Datum]]:
        """The program as a function of arrays, without a record of its steps."""
        if self._kind.is_traceable and not self._machine.needs_host:
            return jax.jit(
                self._traced,
                donate_argnums=self.donated if self.arithmetic == FLOAT and not self._placement else (),
                compiler_options=self._machine.compiler_options,
            )
        return lambda *arrays: self._whole(self._machine.run(*self._on_devices(arrays))[0])

    @functools.cached_property
    def _machine(self) -> Engine:
        """The engine, prepared."""
        return self._prepared if isinstance(self._prepared, Engine) else self._prepared.make()
