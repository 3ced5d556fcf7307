"""What one traced run exchanges with the host: how far streams have been read, what was sent, printed and kept remotely.

A program halts when it reads beyond a stream's last item or when it stops itself. A traced run cannot end there: it
goes on, but ends every loop in which that may happen, and what halted it first is an error afterwards. What is sent
or printed beyond the capacity for it is counted only, and the run repeated with more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from tiles._jax_compat import Datum, dynamic_index_in_dim, dynamic_update_index_in_dim, fori_loop
from tiles.compiler import AbortStep, ErrorStep, Executable, PrintStep, RemoteStep, StreamStep
from tiles.compiler.control import Part
from tiles.compiler.control_flow import items_needed, may_halt, records_of, runs_of_steps
from tiles.engine.interface import aborted, out_of_items
from tiles.engine.trace import Print
from tiles.errors import IpuError
from tiles.graph import Stream, read_message

Capacity = tuple[int, ...]
"""How many items fit: for every device-to-host stream in order, then for every step that prints."""
Carried = tuple[tuple[int, ...], Any]
"""Shape and dtype of a value as an engine carries it."""
HALTED, PRINTED = "halted", "printed"
WIDE_BYTES = 8
"""Of an element that JAX narrows unless ``jax_enable_x64`` is set."""
FIRST_CAPACITY = 64
"""How many items fit at first where their number depends on data."""


class Streams:
    """All exchanges of one run.

    Attributes:
      state: JAX values that loops and branches carry. For every stream how many items were read, or a pair of what
        was sent and how many items that were; for every step that prints what it printed, in which place among all
        that was printed, and how often, and in ``PRINTED`` how often all of them did; for every step that may stop
        the run with a value that value; the rows of every remote buffer; in ``HALTED``, where a run may halt, what
        halted it: 0 for nothing, the number of a step plus 1 for one that stopped it, ``-1 - k`` for stream k, which
        ran out of items.
    """

    def __init__(
        self,
        streams: Mapping[str, Stream],
        may_halt: bool,
        items: Mapping[str, jax.Array],
        dtypes: Mapping[str, Any],
        capacity: Capacity,
    ) -> None:
        """Start before the first items.

        Args:
          streams: the program's, in order.
          may_halt: whether the program may halt.
          items: of host-to-device streams, ``[items, *shape]``.
          dtypes: in which the engine carries items, by stream.
          capacity: see ``Capacity``; none where nothing that is sent is wanted.
        """
        self.items = items
        self._shows: Callable[[list[Print]], None] | None = None
        self._parts: list[Any] = []
        self.numbers = {name: k for k, name in enumerate(streams)}
        self.state: dict[str, Any] = {}
        if may_halt:
            self.state[HALTED] = jnp.zeros((), jnp.int32)
        sending = [s for s in streams.values() if s.to_host]
        capacities = dict(zip([s.name for s in sending], capacity or (0,) * len(sending), strict=False))
        for name, stream in streams.items():
            count = jnp.zeros((), jnp.int64)
            if stream.to_host:
                count = jnp.zeros((capacities[name], *stream.shape), dtypes[name]), count
            self.state[_of_stream(name)] = count
        self.capacities = capacity[len(sending) :]

    def add_steps(self, prints: Mapping[int, Carried], errors: Mapping[int, Carried]) -> None:
        """Reserve capacity for what steps print, and for what steps may stop the run with, by their numbers."""
        capacities = self.capacities or (0,) * len(prints)
        for (number, (shape, dtype)), capacity in zip(prints.items(), capacities, strict=True):
            places = jnp.zeros((capacity,), jnp.int64)
            printed = jnp.zeros((capacity, *shape), dtype), places, jnp.zeros((), jnp.int64)
            self.state |= {_of_print(number): printed, PRINTED: jnp.zeros((), jnp.int64)}
        for number, (shape, dtype) in errors.items():
            self.state[_of_error(number)] = jnp.zeros(shape, dtype)

    def add_remote(self, remote: Mapping[str, jax.Array]) -> None:
        """Start with the rows of remote buffers, ``[repeats, *shape]`` by name."""
        self.state |= {_of_remote(name): rows for name, rows in remote.items()}

    def take(self, name: str) -> jax.Array:
        """Return the next item of a stream."""
        items, at = self.items[name], self.state[_of_stream(name)]
        self.state = self.state | {_of_stream(name): at + 1}
        self.halt(at >= items.shape[0], -1 - self.numbers[name])
        if not items.shape[0]:
            return jnp.zeros(items.shape[1:], items.dtype)
        return dynamic_index_in_dim(items, jnp.minimum(at, items.shape[0] - 1), keepdims=False)

    def send(self, name: str, value: jax.Array) -> None:
        """Append an item to a stream."""
        sent, count = self.state[_of_stream(name)]
        kept = sent.at[count].set(value, mode="drop") if sent.shape[0] else sent
        self.state = self.state | {_of_stream(name): (kept, count + 1)}

    def show_at_once(self, show: Callable[[list[Print]], None]) -> None:
        """From now on hand what is printed to the host as it happens: of a run that is part of another trace.

        Prints keep their order, since each waits for what the one before returned.
        """
        self._shows = show
        self.state = self.state | {PRINTED: jnp.zeros((), jnp.int32)}

    def tell(self, print_: Print) -> bool:
        """Hand a print to the host, and return whether prints are shown so; a message goes with its last part."""
        if self._shows is None:
            return False
        show, title, message = self._shows, print_.title, print_.message
        self._parts.append(print_.value)
        if message and print_.part + 1 < read_message(message).count:
            return True

        parts, self._parts = self._parts, []
        dtypes = [part.dtype for part in parts]

        def shown(*words: Any) -> None:
            values = [_wide(np.asarray(x), dtype) for x, dtype in zip(words, dtypes, strict=True)]
            show([Print(title, value, message, k) for k, value in enumerate(values)])

        def shown_next(count: Any, *words: Any) -> np.ndarray:
            shown(*words)
            return np.asarray(count)

        if message and read_message(message).ordered:  # JAX keeps the order among programs, too
            jax.debug.callback(shown, *map(_narrow, parts), ordered=True)
            return True
        result = jax.ShapeDtypeStruct((), jnp.int32)
        printed = io_callback(shown_next, result, self.state[PRINTED], *map(_narrow, parts))
        self.state = self.state | {PRINTED: printed}
        return True

    def show(self, number: int, value: jax.Array) -> None:
        """Note what a step prints, unless something has halted the run."""
        (kept, places, count), printed = self.state[_of_print(number)], self.state[PRINTED]
        goes_on = (self.state[HALTED] == 0) if HALTED in self.state else jnp.bool_(True)
        if kept.shape[0]:
            at = jnp.where(goes_on, count, kept.shape[0])
            kept = kept.at[at].set(value, mode="drop")
            places = places.at[at].set(printed, mode="drop")
        more = (kept, places, count + goes_on)
        self.state = self.state | {_of_print(number): more, PRINTED: printed + goes_on}

    def read_rows(self, name: str, rows: jax.Array) -> jax.Array:
        """Return rows of a remote buffer, by a scalar or ``[n]`` numbers."""
        buffer = self.state[_of_remote(name)]
        return jnp.take(buffer, clamped(rows, buffer.shape[0]), axis=0, mode="clip")

    def write_rows(self, name: str, rows: jax.Array, value: jax.Array) -> None:
        """Write rows of a remote buffer one after another."""
        buffer = self.state[_of_remote(name)]
        places = clamped(rows, buffer.shape[0]).reshape((-1,))
        value = value.reshape((places.size, *buffer.shape[1:]))

        def write(k: Any, buffer: jax.Array) -> jax.Array:
            return dynamic_update_index_in_dim(buffer, value[k], places[k], 0)

        if places.size:
            buffer = fori_loop(0, places.size, write, buffer)
        self.state = self.state | {_of_remote(name): buffer}

    def halt(self, condition: jax.Array, why: int) -> None:
        """Note what halts the run if ``condition`` holds and nothing has before."""
        halted = self.state[HALTED]
        self.state = self.state | {HALTED: jnp.where((halted == 0) & condition, why, halted)}

    def stop_with(self, number: int, value: jax.Array) -> None:
        """Note the value with which a step stops the run if nothing has halted it before."""
        key = _of_error(number)
        self.state = self.state | {key: jnp.where(self.state[HALTED] == 0, value, self.state[key])}
        self.halt(jnp.bool_(True), number + 1)

    def unless_halted(self, goes_on: jax.Array) -> jax.Array:
        """Return whether a loop goes on that may halt the run."""
        return goes_on & (self.state[HALTED] == 0)


def _narrow(value: jax.Array) -> jax.Array:
    """Return a value of 64 bits an element as words: JAX's callbacks know no others where it has no such types."""
    return lax.bitcast_convert_type(value, jnp.uint32) if value.dtype.itemsize == WIDE_BYTES else value


def _wide(words: np.ndarray, dtype: Any) -> np.ndarray:
    """Return the value whose words those are."""
    if jnp.dtype(dtype).itemsize != WIDE_BYTES:
        return words
    return np.ascontiguousarray(words).view(dtype).reshape(words.shape[:-1])


def clamped(rows: Any, count: int) -> Any:
    """Return numbers of rows, those outside as the first or the last row."""
    return jnp.clip(rows.astype(jnp.int64), 0, count - 1)


def _of_stream(name: str) -> str:
    return f"stream {name}"


def _of_print(number: int) -> str:
    return f"print {number}"


def _of_error(number: int) -> str:
    return f"error {number}"


def _of_remote(name: str) -> str:
    return f"remote {name}"


def remote_rows(state: Mapping[str, Datum]) -> dict[str, jax.Array]:
    """Return the rows of remote buffers by name."""
    prefix = _of_remote("")
    return {key.removeprefix(prefix): rows for key, rows in state.items() if key.startswith(prefix)}


def prints_of(executable: Executable) -> dict[int, PrintStep]:
    """Return the steps that print, by number."""
    return {n: step for n, step in enumerate(executable.steps) if isinstance(step, PrintStep)}


def loop_carried_streams(executable: Executable, part: Part) -> list[str]:
    """Return the keys of the state that a loop or branch changes."""
    numbers = {id(step): number for number, step in enumerate(executable.steps)}
    keys: dict[str, None] = {}
    for step in records_of(executable, part):
        match step:
            case StreamStep():
                keys[_of_stream(step.stream)] = None
            case RemoteStep(to_remote=True):
                keys[_of_remote(step.buffer)] = None
            case PrintStep():
                keys |= {_of_print(numbers[id(step)]): None, PRINTED: None}
            case ErrorStep():
                keys[_of_error(numbers[id(step)])] = None
            case _:
                pass
    return [*keys, *([HALTED] if may_halt(executable, part) else [])]


def initial_capacity(executable: Executable) -> Capacity:
    """Return capacity for all items where their number is known, else for a first run."""
    needed, runs = items_needed(executable), runs_of_steps(executable)
    known = [needed[name] for name, stream in executable.streams.items() if stream.to_host]
    known += [runs[number] for number in prints_of(executable)]
    return tuple(FIRST_CAPACITY if count is None else count for count in known)


class Received(NamedTuple):
    """What a run gave the host.

    Args:
      streams: by device-to-host stream its items, ``[items, *shape]``.
      remote: by remote buffer its rows afterwards.
      prints: by the number of a step what it printed, each with its place among all.
    """

    streams: dict[str, np.ndarray]
    remote: dict[str, jax.Array]
    prints: dict[int, tuple[np.ndarray, np.ndarray]]


def collect(
    streams: Mapping[str, Stream],
    capacity: Capacity,
    run: Callable[[Capacity], Any],
    error: Callable[[int, dict[str, Any], Received], IpuError],
    prints: tuple[int, ...] = (),
) -> tuple[Any, Received]:
    """Return a run's results, and what the host received.

    Args:
      streams: the program's, in order.
      capacity: for a first run.
      run: runs with capacity for items, and returns results and the last state.
      error: returns the error of what halted a run, of its last state, and of what was received until then.
      prints: numbers of steps that print.
    """
    names = [name for name, stream in streams.items() if stream.to_host]
    while True:
        results, state = run(capacity)
        sent = {name: state[_of_stream(name)] for name in names}
        printed = {number: state[_of_print(number)] for number in prints}
        counts = [int(count) for *_, count in (*sent.values(), *printed.values())]
        if all(count <= have for count, have in zip(counts, capacity, strict=True)):
            break
        capacity = tuple(
            max(have, 1 << count.bit_length()) for count, have in zip(counts, capacity, strict=True)
        )
    received = Received(
        {name: np.asarray(x)[: int(count)] for name, (x, count) in sent.items()},
        remote_rows(state),
        {n: (np.asarray(x)[: int(k)], np.asarray(at)[: int(k)]) for n, (x, at, k) in printed.items()},
    )
    if halted := int(state.get(HALTED, 0)):
        raise error(halted, state, received)
    return results, received


def sent_by(executable: Executable, state: Mapping[str, Datum]) -> dict[str, jax.Array]:
    """Return what device-to-host streams received in a run that was traced."""
    return {name: state[_of_stream(name)][0] for name, stream in executable.streams.items() if stream.to_host}


def in_order(steps: Mapping[int, PrintStep], received: Received) -> tuple[Print, ...]:
    """Return what was printed, in the order it was.

    Args:
      steps: those that print, by number.
      received: what the host received.
    """
    found: list[tuple[int, Print]] = []
    for number, (values, places) in received.prints.items():
        step = steps[number]
        found += [
            (int(at), Print(step.title, x, step.message, step.part))
            for x, at in zip(values, places, strict=True)
        ]
    return tuple(print_ for _, print_ in sorted(found, key=lambda pair: pair[0]))


def stopped_with(state: Mapping[str, Datum], number: int) -> np.ndarray:
    """Return the value with which a step stopped a run, of its last state."""
    return np.asarray(state[_of_error(number)])


def halting_error(
    executable: Executable,
    given: Mapping[str, Datum],
    halted: int,
    state: Mapping[str, Datum],
    received: Received,
) -> IpuError:
    """Return the error of what halted a run of an executable that was given these items."""
    if halted < 0:
        name = list(executable.streams)[-1 - halted]
        return out_of_items(executable.streams[name], len(given[name]))
    step = executable.steps[halted - 1]
    assert isinstance(step, (AbortStep, ErrorStep))
    value = stopped_with(state, halted - 1) if isinstance(step, ErrorStep) else None
    return aborted(step, value, in_order(prints_of(executable), received))
