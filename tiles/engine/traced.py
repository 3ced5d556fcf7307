"""A program as one traceable function: what loops and branches carry, whatever steps do.

Nothing is read on the host: how often loops and branches ran that depend on data are extra outputs.
"""

from __future__ import annotations

import abc
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from tiles._jax_compat import Datum, fori_loop, jit
from tiles._jax_compat import switch as lax_switch
from tiles.cached import cached_property
from tiles.compiler import Executable
from tiles.compiler.control import (
    Call,
    Composite,
    Decided,
    Part,
    Path,
    Repeat,
    Sequence,
    Switch,
    While,
    decided_parts,
    nodes_of,
    steps_of,
)
from tiles.compiler.control_flow import loop_carried, may_halt, read_first
from tiles.compiler.wellformed_steps import written_by
from tiles.engine.compilation import WORTH_KEEPING, kept_apart
from tiles.engine.interface import FLOAT, MachineEngine, expecting_equal, unequal_name
from tiles.engine.streams import Streams, loop_carried_streams
from tiles.numerics.decisions import Decisions

Env = dict[str, jax.Array]
Carry = tuple[Env, dict[Path, jax.Array], Datum, dict[str, Datum]]

CHAIN_RESULTS = 8
"""Results that a function's steps make, from which on it had better be computed once, on however little."""


@dataclass
class State:
    """What is true at one point of the program: values, trips by path, who decides, and where streams are."""

    env: Env
    trips: dict[Path, jax.Array]
    decisions: Decisions
    streams: Streams


class TracedEngine(MachineEngine):
    """Runs control over logical arrays; subclasses run steps.

    Attributes:
      most_trips: how often a loop's body that data decides runs in all before it is left, None: as often as it wants.
    """

    most_trips: int | None = None

    def __init__(self, executable: Executable, arithmetic: str = FLOAT) -> None:
        """Remember nothing yet of what control carries."""
        super().__init__(executable, arithmetic)
        self._carried: dict[int, list[str]] = {}
        self._functions: dict[int, tuple[frozenset[str], Callable[[Env], Env]]] = {}

    @abc.abstractmethod
    def _step(self, number: int, state: State) -> None:
        """Run one step."""

    @abc.abstractmethod
    def _composite(self, number: int, state: State) -> None:
        """Run a composite, in one piece."""

    @abc.abstractmethod
    def _computes_only(self, part: Part) -> bool:
        """Return whether steps of a part do nothing but compute values from values."""

    @abc.abstractmethod
    def _before(self, loop: Repeat | While, env: Env) -> Env:
        """Return values that a loop's body wants computed once for all trips, under names no variable has."""

    def _read(self, env: Env, name: str) -> jax.Array:
        variable = self.executable.variables[name]
        if variable.view_of:
            return self._read(env, variable.view_of).reshape(variable.shape)
        if name not in env:  # a tensor without elements is never written
            return jnp.zeros(variable.shape, self.stored_dtype(variable.dtype))
        return env[name]

    def _run(self, part: Part, path: Path, state: State) -> None:
        match part:
            case int():
                self._step(part, state)
            case Call():
                self._call_function(part, path, state)
            case Sequence():
                for position, inner in enumerate(part.parts):
                    self._run(inner, (*path, position), state)
            case Composite():
                self._composite(part.number, state)
            case Repeat():
                self._repeat(part, path, state)
            case While():
                self._while(part, path, state)
            case Switch():
                self._switch(part, path, state)

    @cached_property
    def _calls(self) -> Counter[int]:
        """How many calls hold each function's body, by the body's identity."""
        return Counter(id(n.body) for n in nodes_of(self.executable.program) if isinstance(n, Call))

    def _call_function(self, call: Call, path: Path, state: State) -> None:
        """Run a function's body: traced once for all calls where there are several and it only computes.

        XLA gets one function and its calls, and inlines them: the program it compiles is the same, but for long chains.
        """
        if self._calls[id(call.body)] < 2 or not self._computes_only(call.body):
            self._run(call.body, (*path, 0), state)
            return
        if id(call.body) not in self._functions:
            self._functions[id(call.body)] = self._traced_once(call.body)
        reads, function = self._functions[id(call.body)]
        variables = self.executable.variables
        given = {n: x for n, x in state.env.items() if n in reads or n not in variables}
        state.env.update(function(given))

    def _traced_once(self, body: Part) -> tuple[frozenset[str], Callable[[Env], Env]]:
        """Return what a function's body takes, and the body as a function of values that returns what it leaves."""
        exe = self.executable
        leaves = loop_carried(exe, body)

        def run(env: Env) -> Env:
            inner = State(dict(env), {}, Decisions(), Streams({}, False, {}, {}, ()))
            self._run(body, (), inner)
            return {name: inner.env[name] for name in leaves if name in inner.env}

        # a chain of many results of little, as a generator's of random numbers, would be computed anew in each reader
        sizes = [math.prod(exe.variables[name].shape) for name in leaves]
        made = sum(len(written_by(exe.steps[number])) for number in steps_of(body))
        is_chain = max(sizes, default=0) < WORTH_KEEPING and made >= CHAIN_RESULTS
        return frozenset(read_first(exe, body)), kept_apart(run) if is_chain else jit(run)

    def _carry(self, node: Repeat | Decided, path: Path, state: State) -> Carry:
        """Return what a piece of control changes, with zeros for what has no value yet."""
        if id(node) not in self._carried:
            self._carried[id(node)] = loop_carried(self.executable, node)
        env, variables = state.env, self.executable.variables
        values = {
            n: env[n] if n in env else jnp.zeros(variables[n].shape, self.stored_dtype(variables[n].dtype))
            for n in self._carried[id(node)]
        }
        for whole in expecting_equal(self.executable, node):
            name = unequal_name(whole.results[0])
            values[name] = env[name]
        trips = {place: state.trips.get(place, _no_trips(part)) for place, part in decided_parts(node, path)}
        streams = {name: state.streams.state[name] for name in loop_carried_streams(self.executable, node)}
        return values, trips, state.decisions.state, streams

    @staticmethod
    def _enter(carry: Carry, state: State) -> State:
        """Return the state inside a body that is traced with ``carry``."""
        state.decisions.state = carry[2]
        state.streams.state = state.streams.state | carry[3]
        return State(state.env | carry[0], dict(carry[1]), state.decisions, state.streams)

    @staticmethod
    def _leave(inner: State, carry: Carry) -> Carry:
        streams = {name: inner.streams.state[name] for name in carry[3]}
        return {name: inner.env[name] for name in carry[0]}, inner.trips, inner.decisions.state, streams

    @staticmethod
    def _take_over(carry: Carry, state: State) -> None:
        state.env.update(carry[0])
        state.trips.update(carry[1])
        state.decisions.state = carry[2]
        state.streams.state = state.streams.state | carry[3]

    def _repeat(self, loop: Repeat, path: Path, state: State) -> None:
        laid_out = self._before(loop, state.env)

        def body(_: Datum, carry: Carry) -> Carry:
            inner = self._enter(carry, state)
            inner.env.update(laid_out)
            self._run(loop.body, (*path, 0), inner)
            return self._leave(inner, carry)

        self._take_over(fori_loop(0, loop.count, body, self._carry(loop, path, state)), state)

    def _while(self, loop: While, path: Path, state: State) -> None:
        """Run the condition once, then body and condition while, or until, the predicate it leaves is true."""

        def decide(inner: State) -> jax.Array:
            self._run(loop.condition, (*path, 0), inner)
            holds = inner.decisions.take(self._read(inner.env, loop.predicate).reshape(()))
            goes_on = holds if loop.goes_on else ~holds
            if self.most_trips is not None:
                goes_on = goes_on & (inner.trips.get(path, 0) < self.most_trips)
            return inner.streams.unless_halted(goes_on) if may_halt(self.executable, loop) else goes_on

        def body(looping: tuple[jax.Array, Carry]) -> tuple[jax.Array, Carry]:
            carry = looping[1]
            inner = self._enter(carry, state)
            inner.env.update(laid_out)
            self._run(loop.body, (*path, 1), inner)
            inner.trips[path] = inner.trips[path] + 1
            return decide(inner), self._leave(inner, carry)

        goes_on = decide(state)
        laid_out = self._before(loop, state.env)
        carry = self._carry(loop, path, state)
        self._take_over(lax.while_loop(lambda c: c[0], body, (goes_on, carry))[1], state)

    def _switch(self, switch: Switch, path: Path, state: State) -> None:
        branches = switch.branches
        which = state.decisions.take(self._read(state.env, switch.index).reshape(())).astype(jnp.int32)
        which = jnp.where((which < 0) | (which >= len(branches)), len(branches) - 1, which)

        def branch(number: int, part: Part) -> Datum:
            def run(carry: Carry) -> Carry:
                inner = self._enter(carry, state)
                self._run(part, (*path, number), inner)
                inner.trips[path] = inner.trips[path].at[number].add(1)
                return self._leave(inner, carry)

            return run

        runs = [branch(number, part) for number, part in enumerate(branches)]
        self._take_over(lax_switch(which, runs, self._carry(switch, path, state)), state)


def _no_trips(node: Decided) -> jax.Array:
    shape = () if isinstance(node, While) else (len(node.branches),)
    return jnp.zeros(shape, jnp.int64)
