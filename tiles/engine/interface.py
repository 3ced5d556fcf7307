"""What every engine offers, and the words between callers' arrays and engines' arrays."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from tiles.compiler import Executable, VertexGroup
from tiles.compiler.tree import decided_by_floats
from tiles.engine.trace import Trace
from tiles.errors import InvalidExecutable
from tiles.numerics.dtypes import is_float, itemsize, to_jax, unsigned_of
from tiles.numerics.ring import ring, to_ring

FLOAT, RING = "float", "ring"


class Engine(abc.ABC):
    """Runs one executable.

    Args:
      executable: what to run.
      arithmetic: "float", or "ring" for exact modular arithmetic on words.

    Attributes:
      replays: whether loops and branches repeat the decisions of a float run, since they depend on floats.
    """

    name = ""

    def __init__(self, executable: Executable, arithmetic: str = FLOAT) -> None:
        """Keep the executable; subclasses prepare what they run."""
        self.executable = executable
        self.arithmetic = arithmetic
        self.replays = arithmetic == RING and decided_by_floats(executable)

    @cached_property
    def value_bytes(self) -> int:
        """Bytes of all variables, each counted once however many tiles hold copies."""
        own = [v for v in self.executable.variables.values() if not v.view_of]
        return sum(math.prod(v.shape) * itemsize(v.dtype) for v in own)

    @abc.abstractmethod
    def run(self, *inputs: Any) -> tuple[list[jax.Array], Trace]:
        """Run once: flat inputs in the executable's order to flat outputs and the trace."""

    def carried(self, dtype: str) -> Any:
        """Return the dtype in which this engine carries elements of ``dtype``."""
        return unsigned_of(dtype) if self.arithmetic == RING and is_float(dtype) else to_jax(dtype)

    def carried_name(self, dtype: str) -> str:
        """Return the name of the dtype in which this engine carries elements of ``dtype``."""
        return jnp.dtype(self.carried(dtype)).name

    def enter(self, name: str, value: Any) -> jax.Array:
        """Return an input (or constant) as the engine carries it, after checking shape and dtype.

        Raises:
          InvalidExecutable: another shape or dtype than the variable's.
        """
        variable = self.executable.variables[name]
        array = jnp.asarray(value)
        if array.shape != variable.shape or array.dtype != to_jax(variable.dtype):
            raise InvalidExecutable(
                f"input {name} is {variable.dtype}{list(variable.shape)}, got {array.dtype}{list(array.shape)}"
            )
        return to_ring(array) if self.arithmetic == RING else array

    def arithmetic_of(self, function: Callable[..., Any], dtypes: Sequence[str]) -> Callable[..., Any]:
        """Return ``function``, whose arguments have ``dtypes``, in the engine's arithmetic."""
        return ring(function, tuple(dtypes)) if self.arithmetic == RING else function

    def operand_dtypes(self, group: VertexGroup) -> list[str]:
        """Return the dtype names of a group's operands."""
        return [self.executable.variables[operand.variable].dtype for operand in group.operands]


def check_inputs(executable: Executable, inputs: Sequence[Any]) -> None:
    """Raise InvalidExecutable unless there are as many inputs as the executable takes."""
    if len(inputs) != len(executable.inputs):
        raise InvalidExecutable(f"{executable.name} takes {len(executable.inputs)} inputs, got {len(inputs)}")
