"""Run an executable, or the HLO module it came from, on arrays: one way for each engine."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from ipuxla.errors import HostEngineInsideJit, Unsupported, WrongArguments
from ipuxla.options import ARITHMETICS, ENGINES, require_one_of
from ipuxla.sharding import Placement
from tiles.compiler import Executable
from tiles.compiler.control import decided_parts
from tiles.compiler.control_flow import count_steps
from tiles.engine import Engine, Trace, make_engine
from tiles.errors import ProgramAborted
from tiles.graph import Stream

TRACEABLE = ("fast", "hlo")
"""Engines that are pure JAX functions; the others step through the program on the host."""


class Runner:
    """A program with the engine and arithmetic that run it, shared by all that call it."""

    def __init__(
        self,
        executable: Executable | Callable[[], Executable],
        *,
        engine: str = "fast",
        arithmetic: str = "float",
        strict: bool = True,
        donated: tuple[int, ...] = (),
        evaluate: Callable[..., Sequence[Any]] | None = None,
        replay: Callable[..., Sequence[Any]] | None = None,
        compiler_options: dict[str, Any] | None = None,
        streaming: Callable[..., tuple[list[Any], dict[str, Any]]] | None = None,
        streams: Mapping[str, Stream] | None = None,
        placement: Placement | None = None,
        checks: Mapping[str, Callable[[ProgramAborted], None]] | None = None,
    ) -> None:
        """Put together what is needed to run; nothing is compiled yet.

        Args:
          executable: the program, or a function that compiles it when it is first needed.
          engine: one of ``ipuxla.options.ENGINES``.
          arithmetic: ``float`` or ``ring``.
          strict: whether the fast engine keeps the plan's order of reductions.
          donated: arguments that a run consumes.
          evaluate: what engine ``hlo`` runs: a traceable function of the arguments.
          replay: what it runs instead outside of traces: a function of arrays that runs with floats first,
            and repeats the decisions of its loops and branches.
          compiler_options: how XLA compiles ``evaluate``.
          streaming: what engine ``hlo`` runs where the program exchanges items with the host, or prints.
          streams: those that it exchanges; None: the executable's.
          placement: how the arrays that it takes and returns are cut over the replicas that run it; None for one, and
            for engine ``hlo``, which cuts them itself.
          checks: by the message that the program stops with, what the host then calls and what raises the caller's
            error. A saved program has none, and in the ring none is called: the error is ``ProgramAborted``.

        Raises:
          InvalidOption: an unknown engine or arithmetic.
          Unsupported: engine ``hlo`` without the module it evaluates.
        """
        require_one_of("engine", engine, ENGINES)
        require_one_of("arithmetic", arithmetic, ARITHMETICS)
        if engine == "hlo" and evaluate is None:
            raise Unsupported(
                'engine "hlo" evaluates the HLO module, which a saved program does not hold',
                expected="engine fast, literal, vertex or tile",
                try_='ipuxla.load(path, engine="fast"), or compile the function again',
            )
        self.engine = engine
        self.arithmetic = arithmetic
        self.strict = strict
        self.donated = donated
        self._executable = executable
        self._evaluate = evaluate
        self._replay = replay
        self._compiler_options = compiler_options
        self._streaming = streaming
        self._streams = streams
        self._placement = placement
        self._checks = dict(checks or {}) if arithmetic == "float" else {}

    @functools.cached_property
    def executable(self) -> Executable:
        """The program as plain data."""
        return self._executable() if callable(self._executable) else self._executable

    @functools.cached_property
    def streams(self) -> Mapping[str, Stream]:
        """The streams by which the program exchanges items with the host."""
        return self.executable.streams if self._streams is None else self._streams

    def run(self, *arrays: Any) -> list[Any]:
        """Run on arrays, keys as their words. Callers hold ``jax.enable_x64(True)``.

        Raises:
          Unsupported: the program exchanges items with the host.
        """
        self._require_no_streams()
        with self._checking():
            return list(self._run(*arrays))

    @contextlib.contextmanager
    def _checking(self) -> Iterator[None]:
        """Where the program stopped at a run-time check, raise what the host's function raises."""
        try:
            yield
        except ProgramAborted as stopped:
            if (check := self._checks.get(stopped.what)) is not None:
                check(stopped)
            raise

    def run_streams(
        self, arrays: Sequence[Any], streams: Mapping[str, Any] | None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Run on arrays and items; return results, and what streams to the host received.

        Raises:
          InvalidArguments: other streams than the program's, or too few items.
        """
        with self._checking():
            if self._streaming is not None:
                return self._streaming(*arrays, streams=streams)
            outputs, trace = self._machine.run(*self._held(arrays), streams=streams)
        return self._whole(outputs), dict(trace.streams)

    def _held(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Return what an engine takes of whole arrays: what each replica holds."""
        return arrays if self._placement is None else self._placement.to_devices(arrays)

    def _whole(self, outputs: Sequence[Any]) -> list[Any]:
        """Return the arrays whose parts an engine returns."""
        return list(outputs) if self._placement is None else self._placement.from_devices(outputs)

    def _require_no_streams(self) -> None:
        if self.streams:
            raise Unsupported(
                f"the program exchanges items with the host: {', '.join(self.streams)}",
                expected="a call of the compiled program, outside JAX's transformations",
                try_="compiled(*arguments, streams={name: items}) with an array [items, *shape] for each",
            )

    def run_traced(self, *arrays: Any, streams: Mapping[str, Any] | None = None) -> tuple[list[Any], Trace]:
        """Run and record what ran; donated arguments are kept.

        Raises:
          Unsupported: engine ``hlo``, which has no supersteps to count.
        """
        self._require_supersteps()
        with self._checking():
            outputs, trace = self._machine.run(*self._held(arrays), streams=streams)
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
        if self.engine == "hlo":
            raise Unsupported(
                'engine "hlo" evaluates the module op by op and has no supersteps to count',
                try_='compile(engine="fast") and profile that',
            )

    def trace(self, *tracers: Any) -> list[Any]:
        """Run as part of an outer JAX transformation.

        Raises:
          HostEngineInsideJit: the engine steps on the host.
        """
        if self.engine not in TRACEABLE:
            raise HostEngineInsideJit(
                f"engine {self.engine!r} steps on the host and cannot be part of an outer jax.jit or loop",
                expected=" or ".join(f'engine="{name}"' for name in TRACEABLE),
                got=f'engine="{self.engine}"',
                try_="call the decorated function outside jax.jit, where jax.grad and jax.vmap work with it",
            )
        self._require_no_streams()
        return list(self._traceable(*tracers))

    @functools.cached_property
    def _traceable(self) -> Callable[..., Sequence[Any]]:
        """The program as a pure JAX function."""
        if self._evaluate is not None:
            return self._evaluate
        trace: Callable[..., Sequence[Any]] = self._machine.trace  # pyright: ignore[reportAttributeAccessIssue]
        return trace if self._placement is None else lambda *arrays: self._whole(trace(*self._held(arrays)))

    @functools.cached_property
    def _run(self) -> Callable[..., Sequence[Any]]:
        """The program as a function of arrays, without a record of its steps."""
        if (streaming := self._streaming) is not None:
            return lambda *arrays: streaming(*arrays)[0]
        if self.engine == "hlo" and self._replay is not None:
            return self._replay
        if self.engine in TRACEABLE and not (self.engine == "fast" and self._machine.needs_host):
            return jax.jit(
                self._traceable,
                donate_argnums=self.donated if self.arithmetic == "float" and not self._placement else (),
                compiler_options=self._options,
            )
        return lambda *arrays: self._whole(self._machine.run(*self._held(arrays))[0])

    @property
    def _options(self) -> dict[str, Any] | None:
        """XLA's options for the traceable function."""
        return self._compiler_options if self._evaluate else self._machine.compiler_options  # pyright: ignore[reportAttributeAccessIssue]

    @functools.cached_property
    def _machine(self) -> Engine:
        """The engine, holding the executable."""
        return make_engine(
            self.executable, engine=self.engine, arithmetic=self.arithmetic, strict=self.strict
        )
