"""How XLA compiles what engines hand it: thoroughly what runs often or is large, quickly what is small and runs once or twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata

SMALL_BYTES = 4 << 20
"""Programs whose values take up to this many bytes run in milliseconds however they are compiled."""
_QUICKLY: dict[str, bool | int] = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def quickly(size_bytes: int) -> dict[str, bool | int] | None:
    """Return compiler options for what moves ``size_bytes``; None, the defaults, where it pays to optimize.

    Measured on XLA:CPU with 16 steps of a small program in emulated memory: 0.27 s instead of 1.37 s. Other
    backends keep their defaults.
    """
    return dict(_QUICKLY) if size_bytes <= SMALL_BYTES and jax.default_backend() == "cpu" else None


WORTH_KEEPING = 1 << 14
"""Elements from which on a reduction's result is worth a computation of its own."""


def apart(function: Callable[..., Any], operands: Sequence[jax.Array]) -> Callable[..., Any]:
    """Return a reduction as a computation that XLA:CPU does not merge into those that read its result.

    A sum of partials consists of additions, which XLA takes for cheap and repeats in every reader: a transformer's
    residual stream is then added up anew, from all partials before it, by everything that reads it (3.2 times the
    time of ``jax.jit`` instead of 1.8). What is small had better be merged.
    """
    if sum(x.size for x in operands) < WORTH_KEEPING or jax.default_backend() != "cpu":
        return function

    def kept(*arrays: jax.Array) -> Any:
        with set_xla_metadata(inlineable="false"):
            return jax.jit(function)(*arrays)

    return kept
