"""Streams inside one traced run: how far each has been read, and what was sent so far.

A program halts when it reads beyond a stream's last item or when it stops itself. A traced run cannot end there: it
goes on, but ends every loop in which that may happen, and what halted it first is an error afterwards. What is sent
beyond the room there is for it is counted only, and the run repeated with more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tiles.compiler import AbortStep, Executable
from tiles.compiler.tree import items_needed, may_halt, streams_of
from tiles.engine.interface import aborted, out_of_items
from tiles.errors import IpuError
from tiles.graph import Stream

Room = tuple[int, ...]
"""Items for which there is room, for every device-to-host stream in order."""
HALTED = ""
"""No stream has this name."""
FIRST_ROOM = 64
"""Items for which there is room at first where their number depends on data."""


class Streams:
    """All streams of one run.

    Attributes:
      state: JAX values that loops and branches carry: by name how many items were read, or a pair of what was
        sent and how many items that were; by ``HALTED``, where a run may halt, what halted it: 0 for nothing, the
        number of a step plus 1 for one that aborted, ``-1 - k`` for stream k, which ran out of items.
    """

    def __init__(
        self,
        streams: Mapping[str, Stream],
        may_halt: bool,
        items: Mapping[str, jax.Array],
        dtypes: Mapping[str, Any],
        room: Room,
    ) -> None:
        """Start before the first items.

        Args:
          streams: the program's, in order.
          may_halt: whether the program may halt.
          items: of host-to-device streams, ``[items, *shape]``.
          dtypes: in which the engine carries items, by stream.
          room: see ``Room``; none where nothing that is sent is wanted.
        """
        self.items = items
        self.numbers = {name: k for k, name in enumerate(streams)}
        self.state: dict[str, Any] = {}
        if may_halt:
            self.state[HALTED] = jnp.zeros((), jnp.int32)
        sending = [s for s in streams.values() if s.to_host]
        rooms = dict(zip([s.name for s in sending], room or (0,) * len(sending), strict=True))
        for name, stream in streams.items():
            count = jnp.zeros((), jnp.int64)
            if stream.to_host:
                self.state[name] = jnp.zeros((rooms[name], *stream.shape), dtypes[name]), count
            else:
                self.state[name] = count

    def take(self, name: str) -> jax.Array:
        """Return the next item of a stream."""
        items, at = self.items[name], self.state[name]
        self.state = self.state | {name: at + 1}
        self.halt(at >= items.shape[0], -1 - self.numbers[name])
        if not items.shape[0]:
            return jnp.zeros(items.shape[1:], items.dtype)
        return lax.dynamic_index_in_dim(items, jnp.minimum(at, items.shape[0] - 1), keepdims=False)

    def send(self, name: str, value: jax.Array) -> None:
        """Append an item to a stream."""
        sent, count = self.state[name]
        kept = sent.at[count].set(value, mode="drop") if sent.shape[0] else sent
        self.state = self.state | {name: (kept, count + 1)}

    def halt(self, condition: jax.Array, why: int) -> None:
        """Note what halts the run if ``condition`` holds and nothing has before."""
        halted = self.state[HALTED]
        self.state = self.state | {HALTED: jnp.where((halted == 0) & condition, why, halted)}

    def unless_halted(self, goes_on: jax.Array) -> jax.Array:
        """Return whether a loop goes on that may halt the run."""
        return goes_on & (self.state[HALTED] == 0)


def carried_by(executable: Executable, tree: Any) -> list[str]:
    """Return of which streams, and whether of ``HALTED``, a loop or branch carries the state."""
    return [*streams_of(executable, tree), *([HALTED] if may_halt(executable, tree) else [])]


def initial_room(executable: Executable) -> Room:
    """Return room for all items where their number is known, else for a first run."""
    needed = items_needed(executable)
    known = (needed[name] for name, stream in executable.streams.items() if stream.to_host)
    return tuple(FIRST_ROOM if count is None else count for count in known)


def collect(
    streams: Mapping[str, Stream], room: Room, run: Callable[[Room], Any], error: Callable[[int], IpuError]
) -> tuple[Any, dict[str, np.ndarray]]:
    """Return a run's results, and what device-to-host streams received.

    Args:
      streams: the program's, in order.
      room: for a first run.
      run: runs with room for items, and returns results and the last state of all streams.
      error: returns the error of what halted a run; see ``Streams.state``.
    """
    while True:
        results, state = run(room)
        if halted := int(state.get(HALTED, 0)):
            raise error(halted)
        sent = {name: state[name] for name, stream in streams.items() if stream.to_host}
        counts = [int(count) for _, count in sent.values()]
        if all(count <= have for count, have in zip(counts, room, strict=True)):
            return results, {name: np.asarray(x)[: int(count)] for name, (x, count) in sent.items()}
        room = tuple(max(have, 1 << count.bit_length()) for count, have in zip(counts, room, strict=True))


def halting_error(executable: Executable, given: Mapping[str, Any], halted: int) -> IpuError:
    """Return the error of what halted a run of an executable that was given these items."""
    if halted > 0:
        step = executable.steps[halted - 1]
        assert isinstance(step, AbortStep)
        return aborted(step)
    name = list(executable.streams)[-1 - halted]
    return out_of_items(executable.streams[name], len(given[name]))
