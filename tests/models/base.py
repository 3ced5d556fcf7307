"""What the models share: their description, and values for their arguments that are real or only shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SIZES = ("small", "published")


@dataclass(frozen=True)
class Goals:
    """What a model's compilation is to reach on its target.

    Attributes:
      must_fit: one IPU has to hold the program.
      exchange_code_bytes: most exchange code on any tile.
      compile_seconds: most processor seconds of our own compilation.
    """

    must_fit: bool = True
    exchange_code_bytes: int | None = None
    compile_seconds: float = 10.0


@dataclass(frozen=True)
class Model:
    """A function of a network as people write it, with arguments.

    Attributes:
      function: what is compiled.
      arguments: arrays, or ``jax.ShapeDtypeStruct`` at published size.
      items: how many ``unit`` a call handles, for throughput.
      unit: what is counted.
      donated: arguments whose memory the results may take.
      target: name of the machine that the published size is for.
      goals: what compilation is to reach there.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    items: int
    unit: str
    donated: tuple[int, ...] = ()
    target: str = "gc200"
    goals: Goals = field(default_factory=Goals)


MAKERS: dict[str, Callable[[bool], Model]] = {}
"""By name, what makes a model; told whether to make it at its published size."""


def register(name: str) -> Callable[[Callable[[bool], Model]], Callable[[bool], Model]]:
    """Make a model known by its name."""

    def note(maker: Callable[[bool], Model]) -> Callable[[bool], Model]:
        MAKERS[name] = maker
        return maker

    return note


def model(name: str, size: str) -> Model:
    """Return the model ``name`` in one of ``SIZES``."""
    return MAKERS[name](size == "published")


class Values:
    """Makes arguments: numbers from a seeded generator, or, where ``abstract``, shapes alone."""

    def __init__(self, abstract: bool, dtype: Any = np.float32, seed: int = 0) -> None:
        self.abstract = abstract
        self.dtype = np.dtype(dtype)
        self._rng = np.random.default_rng(seed)

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0, dtype: Any = None) -> Any:
        """Return normally distributed numbers."""
        dtype = self.dtype if dtype is None else np.dtype(dtype)
        if self.abstract:
            return jax.ShapeDtypeStruct(shape, dtype)
        return (mean + scale * self._rng.standard_normal(shape)).astype(dtype)

    def weights(self, *shape: int, inputs: int | None = None) -> Any:
        """Return weights whose sums over ``inputs`` (all dimensions but the last) have variance 1."""
        return self.normal(*shape, scale=(inputs or int(np.prod(shape[:-1]))) ** -0.5)

    def positive(self, *shape: int, dtype: Any = None) -> Any:
        """Return numbers about 1, such as variances."""
        if self.abstract:
            return self.normal(*shape, dtype=dtype)
        return abs(self.normal(*shape, scale=0.1, mean=1.0, dtype=dtype))

    def integers(self, high: int, *shape: int) -> Any:
        """Return integers below ``high``."""
        if self.abstract:
            return jax.ShapeDtypeStruct(shape, jnp.int32)
        return self._rng.integers(0, high, shape).astype(np.int32)

    def like(self, shapes: Any) -> Any:
        """Return a pytree of the given shapes and types, as an optimizer has it after some steps.

        All numbers are positive, since among them are sums of squares; integers are 3.
        """

        def value(leaf: Any) -> Any:
            if self.abstract:
                return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            if np.issubdtype(leaf.dtype, np.integer):
                return np.full(leaf.shape, 3, leaf.dtype)
            return (np.abs(self._rng.standard_normal(leaf.shape)) * 0.1 + 0.01).astype(leaf.dtype)

        return jax.tree.map(value, shapes)
