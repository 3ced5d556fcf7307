"""What must hold for any program: proved, the same in any form, equal on all engines, near to XLA."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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
from tests.fuzz.together import QUICKLY, quickly_compiled, run_traced, share_modules
from tests.random_plans import random_planner
from tiles.engine import coverage_of
from tiles.numerics.tolerance import NotClose, check_close, max_error, tolerance_of
from tiles.target import Target

ENGINES = ("fast", "literal", "vertex", "tile")
"""Those that run an executable. Engine ``hlo``, which evaluates the module, is their witness in the ring."""
SHARING = ("vertex", "tile")
"""Those whose codelets XLA always compiles many at once: cells of every extent are another computation."""
UNSTEADY = re.compile(r"f8E4M3B11FNUZ|dense<0xFF> : tensor<f8E4M3FN>")
"""What XLA:CPU (jaxlib 0.10.2) computes otherwise from run to run: softmax of 8-bit floats in which minus infinity is NaN.
Of 9 elements 8 different results in 25 compilations of plain ``jax.jit``; of 14, 6 in 60 calls of one."""
MISCOUNTED = re.compile(r"stablehlo\.popcnt .*[<x]i4>")
"""Of what XLA:CPU is no witness: it extends the sign of ``i4`` before it counts bits, so that -1 has -8 ones."""
UPDATES = re.compile(r"stablehlo\.(dynamic_slice|dynamic_update_slice|scatter)")
"""Where XLA:CPU may compute an update from elements that it has written over (``tiles.engine.compilation``), or clamp once
where two slices each are to be clamped: what differs from it there is compared with engine ``hlo``, which keeps them apart."""
MASKED = re.compile(r"stablehlo\.convolution.*feature_group_count = (?!1 ).*xf64>")
"""Where XLA:CPU multiplies features by zeros of a mask, so that a NaN leaves its group: compared where XLA's numbers are finite."""
PADDED = re.compile(r"stablehlo\.convolution")
"""Where XLA:CPU may leave padding and holes out, which StableHLO multiplies by infinities and NaN (docs/numerics.md): compared where
our numbers are finite."""
MOVES = 3
"""How often arguments are moved by an ULP to see which results that changes."""


class Checked(NamedTuple):
    """What a check compared.

    Args:
      on_all: whether all engines ran it; none where each one's own run with floats decides and XLA's differ from run to run.
      with_xla: how many results of each were compared with XLA's.
      vertices: of the program.
      by_code: those of them that engine ``tile`` ran by their tile code, the others by their meaning.
    """

    on_all: bool
    with_xla: int
    vertices: int
    by_code: int


def check_program(
    text: str,
    arrays: Sequence[np.ndarray],
    target: Target,
    plan_seed: int | None,
    smooth: Sequence[int],
    apart: bool = True,
    engines: Sequence[str] = ENGINES,
) -> Checked:
    """Check a program of StableHLO on arguments and engines: in the ring every bit, with floats what is smooth.

    Args:
      text: the module.
      arrays: the arguments.
      target: the machine.
      plan_seed: of plans and layouts drawn at random; None for the planner's own.
      smooth: numbers of the results that are compared with XLA's; those apart that the last bit of an argument changes.
        The others follow from a decision or a rounding that another order of sums may turn.
      apart: whether XLA compiles everything for itself and as users have it; it takes several times as long.
      engines: those that run it.
    """
    pipeline = Pipeline(text)
    with contextlib.nullcontext() if plan_seed is None else random_planner(plan_seed):
        compiled = _compiled(pipeline, target, "fast", "float")
        if not compiled.executable.fits and set(engines) == {
            "fast"
        }:  # nor is there room here for what it makes
            return Checked(False, 0, 0, 0)
        compiled.certify()
    blob = compiled._to_bytes()
    again = loaded(blob, "", "fast", "float")
    assert compiled._to_bytes() == blob == again._to_bytes()
    covered = coverage_of(again.executable, "ring").codelets.values()
    checked = Checked(True, 0, sum(c.vertices for c in covered), sum(c.by_code for c in covered))
    is_unsteady = bool(UNSTEADY.search(text))
    wanted = () if is_unsteady or MISCOUNTED.search(text) else smooth
    arithmetics = ("ring", "float") if wanted else ("ring",)
    witnesses = [_compiled(pipeline, target, "hlo", arithmetic) for arithmetic in arithmetics]
    if is_unsteady and witnesses[0]._runner._machine.needs_host:
        return Checked(False, 0, 0, 0)  # each engine's own run with floats decides in the ring

    def results(apart: bool) -> Results:
        with contextlib.nullcontext() if apart else quickly_compiled():
            programs = [
                *witnesses,
                *(_on(again, *which) for which in itertools.product(engines, arithmetics)),
            ]
            return _results(programs, arrays, apart)

    try:
        found = results(apart)
    except JaxRuntimeError:  # XLA's own, for instance LLVM's code that it then finds invalid
        apart = True
        found = results(apart)
    for engine in engines:
        assert_same_words(found[engine, "ring"], found["hlo", "ring"], engine)
    if not wanted:
        return checked
    try:
        witness = xla.compiled(text, None if apart else QUICKLY)
        want = witness(*arrays)
    except (
        JaxRuntimeError
    ):  # a count in floats of 8 bits, or a transform of an array whose layout XLA chose itself
        return checked
    steady = _steady(witness, arrays, want, smooth)
    if MASKED.search(text):
        steady = [n for n in steady if _is_finite(want[n])]
    if PADDED.search(text):
        steady = [n for n in steady if _is_finite(found[engines[0], "float"][n])]
    try:
        _require_close(found, engines, want, steady)
    except NotClose:
        if not UPDATES.search(text):
            raise
        _require_close(found, engines, found["hlo", "float"], steady)
    else:
        _require_close(found, ("hlo",), want, [n for n in steady if _is_finite(want[n])])
    return checked._replace(with_xla=len(steady))


def _is_finite(x: np.ndarray) -> bool:
    """Whether engine ``hlo`` has to agree: XLA drops its barriers and contracts products and the sums behind them.

    A product that overflows is then not infinite, and less another one, that is, no NaN.
    """
    return bool(np.isfinite(x.astype(np.complex128)).all())


Results = Mapping[tuple[str, str], list[np.ndarray]]
"""By engine and arithmetic."""


def _require_close(
    found: Results, engines: Sequence[str], want: Sequence[np.ndarray], numbers: Sequence[int]
) -> None:
    for engine, number in itertools.product(engines, numbers):
        check_close(found[engine, "float"][number], want[number], f"{engine}, result {number}")


def _results(programs: Sequence[ipuxla.Compiled], arrays: Sequence[np.ndarray], apart: bool) -> Results:
    """Return the results of one program on all engines: where not ``apart``, XLA compiles many computations at once."""
    shared = [x for x in programs if x.engine in SHARING or (x.engine == "literal" and not apart)]
    share_modules([x._runner._machine for x in shared])
    traced = [
        x
        for x in programs
        if not apart and x._runner._kind.is_traceable and not x._runner._machine.needs_host
    ]
    known = dict(zip(map(id, traced), run_traced(traced, arrays), strict=True)) if traced else {}
    return {
        (x.engine, x.arithmetic): known[id(x)] if id(x) in known else _leaves(x, arrays) for x in programs
    }


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
    with np.errstate(invalid="ignore"):  # the pattern after infinity is a NaN that signals
        is_finite = np.isfinite(moved.astype(np.float64))
    kept = np.where((parts == 0) | ~is_finite, parts, moved)
    return kept.view(array.dtype).reshape(shape)


def described(*parts: Any) -> str:
    """Return the check of a program as Python that runs from the root of the repository."""
    text, arrays, target, plan_seed, smooth, apart, engines = parts
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

check_program(MODULE, ARGUMENTS, TARGET, plan_seed={plan_seed}, smooth={tuple(smooth)}, apart={apart}, engines={tuple(engines)})
"""
