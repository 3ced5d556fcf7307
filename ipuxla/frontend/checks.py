"""Run-time checks: calls of the host that only raise, which end the program where control reaches them.

``jax.pure_callback`` of a function that never returns takes nothing back, so the program need not go on: it stops with the
function's arguments, and the host calls the function with them, which raises. That is how equinox's ``error_if`` fails.
Whether a function never returns is read from its code: CPython's compiler leaves no instruction that returns behind a
statement that raises. A call that reads what such a call returns is never reached, whatever it does.
"""

from __future__ import annotations

import dis
import functools
import inspect
import math
import types
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ipuxla.frontend._jax_compat import ShapedArray
from tiles.errors import ProgramAborted

TARGET = "ipuxla.stop"
"""Name of the custom call that ends the program with its operand; its configuration is what the error says."""

_NOT_CALLS = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
)


class Check(NamedTuple):
    """A function of the host that a program ends with.

    Args:
      message: what the program says when it stops there; no other check of the program says the same.
      function: takes arrays, never returns.
      types: abstract values of the arrays.
    """

    message: str
    function: Callable[..., object]
    types: tuple[ShapedArray, ...]

    def fail(self, stopped: ProgramAborted) -> None:
        """Call the function with what the program stopped with, so that it raises; a note says where."""
        with jax.enable_x64(True):
            arrays = _unpacked(np.asarray(stopped.value), self.types)
        try:
            self.function(*arrays)
        except Exception as error:
            if stopped.location:
                error.add_note(f"raised by a program for an IPU, {stopped.location}")
            raise


def never_returns(function: object) -> bool:
    """Whether a Python function is known to return nothing, not even None: each call raises or goes on for ever.

    False where that is not plain from its own code: it is no Python function, or calls another to raise.
    """
    while isinstance(function, functools.partial | types.MethodType):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    if not isinstance(function, types.FunctionType) or function.__code__.co_flags & _NOT_CALLS:
        return False
    return not any("RETURN" in step.opname for step in dis.get_instructions(function.__code__))


def check_of(
    number: int,
    callback: Callable[..., object],
    function: Callable[..., object],
    operands: Sequence[ShapedArray],
) -> Check:
    """Return a program's check.

    Args:
      number: how many the program has before it.
      callback: takes the operands as arrays, and calls the function.
      function: the user's.
      operands: their abstract values.
    """
    while isinstance(function, functools.partial):
        function = function.func
    name = f"{function.__module__}.{function.__qualname__}"
    return Check(f"run-time check {number} failed: {name} raises", callback, tuple(operands))


def packed(*arrays: jax.Array) -> jax.Array:
    """Return the one array that a program stops with: the only operand, or the bytes of all, complex ones as two."""
    if len(arrays) == 1 and not jnp.iscomplexobj(arrays[0]):
        return arrays[0]
    parts = [jnp.zeros(0, jnp.uint8)]
    for array in arrays:
        found = (array.real, array.imag) if jnp.iscomplexobj(array) else (array,)
        parts += [_bytes(part).reshape(-1) for part in found]
    return jnp.concatenate(parts)


def _bytes(array: jax.Array) -> jax.Array:
    return array.astype(jnp.uint8) if array.dtype == bool else lax.bitcast_convert_type(array, jnp.uint8)


def _unpacked(value: np.ndarray, operands: Sequence[ShapedArray]) -> list[jax.Array]:
    """Return the arrays of ``packed``."""
    if len(operands) == 1 and not jnp.issubdtype(operands[0].dtype, np.complexfloating):
        return [jnp.asarray(value)]
    arrays, at = list[jax.Array](), 0
    for type_ in operands:
        count, is_complex = math.prod(type_.shape), jnp.issubdtype(type_.dtype, np.complexfloating)
        size = count * type_.dtype.itemsize
        own, at = value[at : at + size].copy(), at + size
        if is_complex:
            real, imag = own.view(np.finfo(type_.dtype).dtype).reshape(2, count)
            array = (real + 1j * imag).astype(type_.dtype)
        else:
            array = own.view(type_.dtype)
        arrays.append(jnp.asarray(array.reshape(type_.shape)))
    return arrays
