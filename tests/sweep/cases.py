"""Cases of the sweep: small programs over JAX's public API, each a function and arguments for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiles.engine import ENGINES

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]


@dataclass(frozen=True)
class Case:
    """A program that a decorated function must run as ``jax.jit`` does.

    Attributes:
      name: the public function it calls, such as "jnp.sort"; after ": " what is special about the call.
      group: the module of the sweep that lists it.
      make: from a decorator (``jax.jit`` or ours) to what is called.
      arguments: what it is called with.
      refused: name of the error that is expected instead of a result; empty where there is one.
      x64: whether ``jax_enable_x64`` is set.
      outer_jit: whether an outer ``jax.jit`` calls the decorated function: engines that step on the host refuse that.
    """

    name: str
    group: str
    make: Callable[[Decorator], Function]
    arguments: tuple[Any, ...]
    refused: str = ""
    x64: bool = False
    outer_jit: bool = False

    def refused_on(self, engine: str) -> str:
        """Return the name of the error that an engine answers with; empty where it gives a result."""
        return "HostEngineInsideJit" if self.outer_jit and not ENGINES[engine].is_traceable else self.refused


CASES: dict[str, Case] = {}
"""All cases by name."""


class Group:
    """Registers the cases of one module."""

    def __init__(self, name: str) -> None:
        self.name = name

    def add(
        self, name: str, function: Function, *arguments: Any, refused: str = "", x64: bool = False
    ) -> None:
        """Add a function to decorate and call."""
        self.around(name, lambda decorator: decorator(function), *arguments, refused=refused, x64=x64)

    def around(
        self,
        name: str,
        make: Callable[[Decorator], Function],
        *arguments: Any,
        refused: str = "",
        x64: bool = False,
        outer_jit: bool = False,
    ) -> None:
        """Add a program that decorates functions itself, to transform or combine what comes of it."""
        assert name not in CASES, f"two cases are named {name!r}"
        CASES[name] = Case(name, self.name, make, arguments, refused, x64, outer_jit)


# ---- arguments


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Return normally distributed float32."""
    rng = np.random.default_rng((seed, *shape))
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def uniform(*shape: int, low: float = 0.0, high: float = 1.0, seed: int = 0) -> np.ndarray:
    """Return uniformly distributed float32."""
    return np.random.default_rng((seed, *shape)).uniform(low, high, shape).astype(np.float32)


def integers(high: int, *shape: int, low: int = 0, seed: int = 0) -> np.ndarray:
    """Return int32 in ``[low, high)``."""
    return np.random.default_rng((seed, high, *shape)).integers(low, high, shape).astype(np.int32)


def booleans(*shape: int, seed: int = 0) -> np.ndarray:
    """Return truth values."""
    return np.random.default_rng((seed, *shape)).integers(0, 2, shape).astype(bool)


def definite(*shape: int, seed: int = 0) -> np.ndarray:
    """Return well-conditioned symmetric positive definite matrices."""
    a = normal(*shape, seed=seed)
    return a @ a.swapaxes(-1, -2) / shape[-1] + np.eye(shape[-1], dtype=np.float32)


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, np.inf, -np.inf, np.nan], np.float32)
"""Numbers at which functions have edges."""
