"""What must hold for any program: proved, the same in any form, equal on all engines, near to XLA."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ipuxla
from ipuxla.runtime import loaded
from tests import xla
from tests.flow import assert_same_words
from tests.random_plans import random_planner
from tiles.numerics.tolerance import check_close, max_error, tolerance_of
from tiles.target import Target

ENGINES = ("fast", "literal")
UNSTEADY = "f8E4M3B11FNUZ"
"""XLA:CPU (jaxlib 0.10.2) gives a softmax of this type other values at each run where its maximum is NaN: of a result
of 9 elements, 8 different ones in 25 compilations of plain ``jax.jit``. It is no witness there, nor the fast engine."""
MOVES = 3
"""How often arguments are moved by an ULP to see which results that changes."""


def check_program(
    text: str, arrays: Sequence[np.ndarray], target: Target, plan_seed: int | None, arithmetic: str
) -> None:
    """Check a program of StableHLO on arguments.

    Args:
      text: the module.
      arrays: the arguments.
      target: the machine.
      plan_seed: of plans and layouts drawn at random; None for the planner's own.
      arithmetic: "ring", where engines agree with the module on every bit; or "float", where they are as near to XLA as
        the project promises, results apart that the last bit of an argument changes.
    """
    with contextlib.nullcontext() if plan_seed is None else random_planner(plan_seed):
        compiled = ipuxla.compile_stablehlo(text, target, check_memory=False)
    compiled.certify()
    blob = compiled._to_bytes()
    programs = {engine: loaded(blob, "a saved program", engine, arithmetic) for engine in ENGINES}
    assert programs["fast"]._to_bytes() == loaded(blob, "", "fast", arithmetic)._to_bytes()
    if arithmetic == "ring":
        witness = ipuxla.compile_stablehlo(text, target, engine="hlo", arithmetic="ring", check_memory=False)
        want = _leaves(witness, arrays)
        for engine, program in programs.items():
            assert_same_words(_leaves(program, arrays), want, engine)
        return
    if UNSTEADY in text:
        return
    want = xla.evaluate(text, *arrays)
    steady = _steady(text, arrays, want)
    for engine, program in programs.items() if any(steady) else ():
        for number, (got, expected) in enumerate(zip(_leaves(program, arrays), want, strict=True)):
            if steady[number]:
                check_close(got, expected, f"{engine}, result {number}")


def _leaves(program: ipuxla.Compiled, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(program(*arrays))]


def _steady(text: str, arrays: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> list[bool]:
    """Return, for every result, whether the last bits of arguments hardly matter to it."""
    rng, steady = np.random.default_rng(0), [True] * len(want)
    for _ in range(MOVES):
        moved = xla.evaluate(text, *(_moved(rng, x) for x in arrays))
        for number, (one, other) in enumerate(zip(moved, want, strict=True)):
            steady[number] &= max_error(one, other) <= tolerance_of(other.dtype) / 20
    return steady


def _moved(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Return floats moved by an ULP of their type at most, down or up; other values as they are."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return array
    shape, array = array.shape, array.reshape(-1)
    parts = array.view(array.real.dtype) if array.dtype.kind == "c" else array
    words = np.ascontiguousarray(parts).view(f"u{parts.dtype.itemsize}")
    steps = rng.integers(-1, 2, words.shape)
    moved = (words.astype(np.int64) + steps).astype(words.dtype).view(parts.dtype)
    kept = np.where((parts == 0) | ~np.isfinite(moved.astype(np.float64)), parts, moved)
    return kept.view(array.dtype).reshape(shape)


def described(*parts: Any) -> str:
    """Return the check of a program as Python that runs from the root of the repository."""
    text, arrays, target, plan_seed, arithmetic = parts
    given = ",\n    ".join(
        f"np.frombuffer(bytes.fromhex({np.ascontiguousarray(x).tobytes().hex()!r}), jnp.dtype({x.dtype.name!r})).reshape({x.shape})"
        for x in arrays
    )
    return f"""import jax.numpy as jnp
import numpy as np

from tests.fuzz.checks import check_program
from tiles.target import Target

MODULE = r'''
{text}'''
ARGUMENTS = [
    {given},
]
TARGET = Target.named({target.name.rstrip("*")!r}).replace(num_tiles={target.num_tiles})

check_program(MODULE, ARGUMENTS, TARGET, plan_seed={plan_seed}, arithmetic={arithmetic!r})
"""
