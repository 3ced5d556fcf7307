"""How XLA compiles what engines hand it: thoroughly what runs often or is large, quickly what is small and runs once or twice."""

from __future__ import annotations

from typing import Any

import jax

from tiles._jax_compat import OLDER_EMITTERS, Function, jit, set_xla_metadata
from tiles.platforms import default_platform

SMALL_BYTES = 4 << 20
"""Programs whose values take up to this many bytes run in milliseconds however they are compiled."""


def quickly(size_bytes: int, *, rounds: bool) -> dict[str, bool | int] | None:
    """Return compiler options for a program on ``size_bytes`` of values; None, the defaults, where it pays to optimize.

    Measured on XLA:CPU with 16 steps of a small program in emulated memory, both options: 0.27 s instead of
    1.37 s. Other backends keep their defaults.

    Args:
      size_bytes: of all values.
      rounds: whether floats are computed. XLA's older emitters then stay off: they round float16 functions
        otherwise than the ones that large programs use, by up to 2 ulp.
    """
    if size_bytes > SMALL_BYTES or default_platform() != "cpu":
        return None
    options: dict[str, bool | int] = {"xla_backend_optimization_level": 0}
    return options if rounds else {**options, **OLDER_EMITTERS}


def emitted_quickly() -> dict[str, bool | int] | None:
    """Return compiler options for a program that is large or runs often, of floats of 32 bits and more.

    XLA:CPU's newer emitters of loops take half of all that compiling a program takes: everyday programs take 0.5 to 0.9
    of the time with the older ones, and run as fast. Not so where a loop pads or joins what it computes with, which the
    older ones test for each element: 200 steps of a heat equation take 1.7 times as long. Functions of float16 they round
    otherwise, by up to 2 ulp; in float32 ``tan``, ``cbrt`` and a product that is added may differ in the last bit, as
    between programs that XLA fuses otherwise (3 of the 21 everyday programs). Other backends keep their defaults, and so
    does an XLA:CPU without older emitters (jaxlib 0.11.1).
    """
    return OLDER_EMITTERS or None if default_platform() == "cpu" else None


WORTH_KEEPING = 1 << 14
"""Elements from which on a result is worth a computation of its own."""


def apart(function: Function, size: int) -> Function:
    """Return a function as a computation that XLA:CPU does not merge into those that read its results.

    A sum of partials consists of additions, which XLA takes for cheap and repeats in every reader: a transformer's
    residual stream is then added up anew, from all partials before it, by everything that reads it (3.2 times the
    time of ``jax.jit`` instead of 1.8). So are random bits, a hundred cheap operations. What is small had better be merged.

    Args:
      function: what to compute.
      size: elements that it takes or gives, whichever are more.
    """
    return function if size < WORTH_KEEPING else kept_apart(function)


def kept_apart(function: Function) -> Function:
    """Return a function as a computation that XLA:CPU does not merge into those that read its results, of any size."""
    if default_platform() != "cpu":
        return function

    def kept(*arrays: jax.Array) -> Any:
        with set_xla_metadata(inlineable="false"):
            return jit(function)(*arrays)

    return kept


def computed_first(x: jax.Array) -> jax.Array:
    """Return an array such that XLA:CPU has computed all of it before anything that reads it runs.

    XLA:CPU (jaxlib 0.10.2) computes the update of a ``dynamic_update_slice`` while it writes it, also where the update
    follows from elements of the array that it writes over: of ``y[3:5] = y[::-1][:2]`` the second element is that of the
    new ``y[3]`` where ``y`` was reshaped in between. Plain ``jax.jit`` has that fault. A computation of its own, which XLA
    is told to leave alone, keeps the two apart; an optimization barrier does not.
    """
    if default_platform() != "cpu":
        return x
    with set_xla_metadata(inlineable="false"):
        return jit(_same)(x)


def _same(x: jax.Array) -> jax.Array:
    return x
