"""One function on every engine: floats against ``jax.jit``, ring words against the optimized module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import ipuxla
from tiles.compiler import certify
from tiles.numerics.tolerance import check_close
from tiles.target import Target

ENGINES = ("fast", "literal", "vertex")


def check_engines(
    function: Callable[..., Any],
    target: Target,
    *args: Any,
    engines: Sequence[str] = ENGINES,
    floats: Sequence[str] = ENGINES,
) -> ipuxla.Compiled:
    """Check a function in the ring on ``engines`` and with floats on those also in ``floats``.

    The executable is certified, and the compiled program returned.
    """
    want = jax.jit(function)(*args)
    lowered = ipuxla.jit(function, target=target).lower(*args)
    compiled = lowered.compile()
    certify(compiled.executable)
    witness = jax.tree.leaves(lowered.compile(engine="hlo", arithmetic="ring")(*args))
    for engine in engines:
        if engine in floats:
            check_close(lowered.compile(engine=engine)(*args), want, engine)
        words = jax.tree.leaves(lowered.compile(engine=engine, arithmetic="ring")(*args))
        for got, expected in zip(words, witness, strict=True):
            np.testing.assert_array_equal(np.asarray(got), np.asarray(expected), err_msg=engine)
    return compiled
