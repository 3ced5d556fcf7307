"""What must hold for any program: proved, the same in any form, equal on all engines, near to XLA."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JaxRuntimeError

import ipuxla
from ipuxla.options import make_options
from ipuxla.runner import Runner, on_tiles
from ipuxla.runtime import loaded
from ipuxla.stages import Pipeline, module_signature
from tests import xla
from tests.flow import assert_same_words
from tests.fuzz.together import QUICKLY, run_traced, share_modules
from tests.random_plans import random_planner
from tiles.numerics.tolerance import NotClose, check_close, max_error, tolerance_of
from tiles.target import Target

ENGINES = ("fast", "literal")
UNSTEADY = re.compile(r"f8E4M3B11FNUZ|dense<0xFF> : tensor<f8E4M3FN>")
"""What XLA:CPU (jaxlib 0.10.2) computes otherwise from run to run: softmax of 8-bit floats in which minus infinity is NaN.
Of 9 elements 8 different results in 25 compilations of plain ``jax.jit``; of 14, 6 in 60 calls of one."""
MISCOUNTED = re.compile(r"stablehlo\.popcnt .*[<x]i4>")
"""Of what XLA:CPU is no witness: it extends the sign of ``i4`` before it counts bits, so that -1 has -8 ones."""
UPDATES = re.compile(r"stablehlo\.(dynamic_slice|dynamic_update_slice|scatter)")
"""Where XLA:CPU may compute an update from elements that it has written over (``tiles.engine.compilation``), or clamp once
where two slices each are to be clamped: what differs from it there is compared with engine ``hlo``, which keeps them apart."""
MOVES = 3
"""How often arguments are moved by an ULP to see which results that changes."""


def check_program(
    text: str,
    arrays: Sequence[np.ndarray],
    target: Target,
    plan_seed: int | None,
    smooth: Sequence[int],
    apart: bool = True,
) -> int:
    """Check a program of StableHLO on arguments: in the ring every bit, with floats what is smooth.

    Args:
      text: the module.
      arrays: the arguments.
      target: the machine.
      plan_seed: of plans and layouts drawn at random; None for the planner's own.
      smooth: numbers of the results that are compared with XLA's; those apart that the last bit of an argument changes.
        The others follow from a decision or a rounding that another order of sums may turn.
      apart: whether XLA compiles everything for itself and as users have it; it takes several times as long.

    Returns:
      How many results were compared with XLA's.
    """
    pipeline = Pipeline(text)
    with contextlib.nullcontext() if plan_seed is None else random_planner(plan_seed):
        compiled = _compiled(pipeline, target, "fast", "float")
        compiled.certify()
    blob = compiled._to_bytes()
    again = loaded(blob, "", "fast", "float")
    assert compiled._to_bytes() == blob == again._to_bytes()
    is_unsteady = bool(UNSTEADY.search(text))
    wanted = () if is_unsteady or MISCOUNTED.search(text) else smooth
    reference = _compiled(pipeline, target, "hlo", "ring")
    if is_unsteady and reference._runner._machine.needs_host:
        return 0  # each engine's own run with floats decides in the ring
    try:
        want, found = (_each_apart if apart else _together)(reference, again, arrays, bool(wanted))
    except JaxRuntimeError:  # XLA's own, for instance LLVM's code that it then finds invalid
        apart = True
        want, found = _each_apart(reference, again, arrays, bool(wanted))
    for engine in ENGINES:
        assert_same_words(found[engine, "ring"], want, engine)
    if not wanted:
        return 0
    witness = xla.compiled(text, None if apart else QUICKLY)
    try:
        want = witness(*arrays)
    except JaxRuntimeError:  # for instance a transform of an array whose layout XLA chose itself
        return 0
    steady = _steady(witness, arrays, want, smooth)
    try:
        _require_close(found, want, steady)
    except NotClose:
        if not UPDATES.search(text):
            raise
        _require_close(found, _leaves(_compiled(pipeline, target, "hlo", "float"), arrays), steady)
    return len(steady)


def _require_close(
    found: Mapping[tuple[str, str], Sequence[np.ndarray]], want: Sequence[np.ndarray], numbers: Sequence[int]
) -> None:
    for engine, number in itertools.product(ENGINES, numbers):
        check_close(found[engine, "float"][number], want[number], f"{engine}, result {number}")


Results = list[np.ndarray]
Found = tuple[Results, dict[tuple[str, str], Results]]


def _each_apart(
    reference: ipuxla.Compiled, program: ipuxla.Compiled, arrays: Sequence[np.ndarray], in_floats: bool
) -> Found:
    """Return results of the module in the ring, and of every engine in every arithmetic, each as users run it."""
    return _leaves(reference, arrays), {
        (engine, arithmetic): _leaves(_on(program, engine, arithmetic), arrays)
        for engine, arithmetic in itertools.product(ENGINES, ("ring", "float")[: 1 + in_floats])
    }


def _together(
    reference: ipuxla.Compiled, program: ipuxla.Compiled, arrays: Sequence[np.ndarray], in_floats: bool
) -> Found:
    """Return the same, where XLA compiles many of them at once."""
    arithmetics = ("ring", "float")[: 1 + in_floats]
    fast = [_on(program, "fast", arithmetic) for arithmetic in arithmetics]
    literal = [_on(program, "literal", arithmetic) for arithmetic in arithmetics]
    share_modules([x._runner._machine for x in literal])
    traced = [x for x in (*fast, reference) if not x._runner._machine.needs_host]
    known = dict(zip(map(id, traced), run_traced(traced, arrays), strict=True))
    results = [known[id(x)] if id(x) in known else _leaves(x, arrays) for x in (*fast, reference)]
    found = {("fast", x.arithmetic): leaves for x, leaves in zip(fast, results, strict=False)}
    return results[-1], found | {("literal", x.arithmetic): _leaves(x, arrays) for x in literal}


def _on(program: ipuxla.Compiled, engine: str, arithmetic: str) -> ipuxla.Compiled:
    """Return a program on another engine."""
    executable = program.executable
    return ipuxla.Compiled(
        program.signature, Runner(executable, on_tiles(executable, engine, arithmetic, strict=True))
    )


def _compiled(pipeline: Pipeline, target: Target, engine: str, arithmetic: str) -> ipuxla.Compiled:
    options = make_options(target, engine=engine, arithmetic=arithmetic, check_memory=False)
    return pipeline.compile(module_signature(pipeline.module, None), options)


def _leaves(program: ipuxla.Compiled, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(program(*arrays))]


def _steady(
    witness: Callable[..., list[np.ndarray]],
    arrays: Sequence[np.ndarray],
    want: Sequence[np.ndarray],
    smooth: Sequence[int],
) -> list[int]:
    """Return which of some results hardly change with the last bits of arguments."""
    rng, steady = np.random.default_rng(0), list(smooth)
    for _ in range(MOVES):
        moved = witness(*(_moved(rng, x) for x in arrays))
        steady = [n for n in steady if max_error(moved[n], want[n]) <= tolerance_of(want[n].dtype) / 20]
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
    text, arrays, target, plan_seed, smooth, apart = parts
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

check_program(MODULE, ARGUMENTS, TARGET, plan_seed={plan_seed}, smooth={tuple(smooth)}, apart={apart})
"""
