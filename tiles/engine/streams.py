"""Streams inside one traced run: how far each has been read, and what was sent so far.

Reading beyond the last item gives the last one again and ends every loop that reads; the run then counts as one
that ran out of items. What is sent beyond the room there is for it is counted only, and the run repeated with more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tiles.compiler import Executable
from tiles.compiler.tree import items_needed
from tiles.engine.interface import out_of_items

Room = tuple[int, ...]
"""Items for which there is room, for every device-to-host stream in order."""
FIRST_ROOM = 64
"""Items for which there is room at first where their number depends on data."""


class Streams:
    """All streams of one run.

    Attributes:
      state: JAX values that loops and branches carry: by name how many items were read, or a pair of what was
        sent and how many items that were.
    """

    def __init__(
        self, executable: Executable, items: Mapping[str, jax.Array], dtypes: Mapping[str, Any], room: Room
    ) -> None:
        """Start before the first items.

        Args:
          executable: the program.
          items: of host-to-device streams, ``[items, *shape]``.
          dtypes: in which the engine carries items, by stream.
          room: see ``Room``; none where nothing that is sent is wanted.
        """
        self.items = items
        self.state: dict[str, Any] = {}
        sending = [s for s in executable.streams.values() if s.to_host]
        rooms = dict(zip([s.name for s in sending], room or (0,) * len(sending), strict=True))
        for name, stream in executable.streams.items():
            count = jnp.zeros((), jnp.int64)
            if stream.to_host:
                self.state[name] = jnp.zeros((rooms[name], *stream.shape), dtypes[name]), count
            else:
                self.state[name] = count

    def take(self, name: str) -> jax.Array:
        """Return the next item of a stream."""
        items, at = self.items[name], self.state[name]
        self.state = self.state | {name: at + 1}
        if not items.shape[0]:
            return jnp.zeros(items.shape[1:], items.dtype)
        return lax.dynamic_index_in_dim(items, jnp.minimum(at, items.shape[0] - 1), keepdims=False)

    def send(self, name: str, value: jax.Array) -> None:
        """Append an item to a stream."""
        sent, count = self.state[name]
        kept = sent.at[count].set(value, mode="drop") if sent.shape[0] else sent
        self.state = self.state | {name: (kept, count + 1)}

    def unless_out_of_items(self, goes_on: jax.Array, names: Sequence[str]) -> jax.Array:
        """Return False where one of the streams that a loop reads was read beyond its end."""
        for name in names:
            if name in self.items:
                goes_on = goes_on & (self.state[name] <= self.items[name].shape[0])
        return goes_on


def initial_room(executable: Executable) -> Room:
    """Return room for all items where their number is known, else for a first run."""
    needed = items_needed(executable)
    known = (needed[name] for name, stream in executable.streams.items() if stream.to_host)
    return tuple(FIRST_ROOM if count is None else count for count in known)


def collect(
    executable: Executable, given: Mapping[str, Any], run: Callable[[Room], Any]
) -> tuple[Any, dict[str, np.ndarray]]:
    """Return a run's results, and what device-to-host streams received.

    Args:
      executable: the program.
      given: items of host-to-device streams.
      run: runs with room for items, and returns results and the last state of all streams.

    Raises:
      InvalidArguments: a stream ran out of items.
    """
    room = initial_room(executable)
    while True:
        results, state = run(room)
        for name, items in given.items():
            if int(state[name]) > len(items):
                raise out_of_items(executable, name, len(items))
        sent = {name: state[name] for name, stream in executable.streams.items() if stream.to_host}
        counts = [int(count) for _, count in sent.values()]
        if all(count <= have for count, have in zip(counts, room, strict=True)):
            return results, {name: np.asarray(x)[: int(count)] for name, (x, count) in sent.items()}
        room = tuple(max(have, 1 << count.bit_length()) for count, have in zip(counts, room, strict=True))
