"""Decisions of loops and branches: recorded in one run and repeated in another.

Under ring arithmetic a comparison of floats means nothing, so a program whose control depends on floats takes
the decisions of a float run: predicates and branch numbers, in the order they are asked for.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tiles._jax_compat import Datum


class Decisions:
    """Lets every loop and branch do what it computed.

    Attributes:
      state: JAX values that loops and branches carry through their bodies.
    """

    state: Datum = ()

    def take(self, decision: Datum) -> Datum:
        """Return what to do in the place of ``decision``, a predicate or the number of a branch."""
        return decision


class Recording(Decisions):
    """Keeps every decision; ``state`` is ``(int32[capacity], how many there were)``."""

    def __init__(self, capacity: int) -> None:
        """Start with none."""
        self.state = jnp.zeros((capacity,), jnp.int32), jnp.zeros((), jnp.int32)

    def take(self, decision: Datum) -> Datum:
        """Note the decision; what does not fit is counted only."""
        kept, count = self.state
        self.state = kept.at[count].set(jnp.asarray(decision).astype(jnp.int32), mode="drop"), count + 1
        return decision


class Replay(Decisions):
    """Takes recorded decisions one after another; ``state`` is the number of the next."""

    def __init__(self, recorded: jax.Array) -> None:
        """Start at the first decision of ``int32[any]``."""
        self.recorded = recorded
        self.state = jnp.zeros((), jnp.int32)

    def take(self, decision: Datum) -> Datum:
        """Return the recorded decision in the type of the one that was computed."""
        recorded = self.recorded[self.state]
        self.state = self.state + 1
        return recorded.astype(jnp.asarray(decision).dtype)


FIRST_CAPACITY = 1024
"""Decisions for which a recording has room at first; a run that makes more is repeated with more room."""


def record(run: Any) -> jax.Array:
    """Return the decisions of a run, ``int32[at least as many]``.

    Args:
      run: ``run(capacity)`` runs with a ``Recording`` of that capacity and returns its last state.
    """
    capacity = FIRST_CAPACITY
    while True:
        kept, count = run(capacity)
        if int(count) <= capacity:
            return kept
        capacity = 1 << int(count).bit_length()
