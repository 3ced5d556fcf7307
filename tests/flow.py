"""The whole flow in a few calls, as tests need it: a function to a module, an executable, and results by every engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hlo_passes.ir import Module, evaluate_module
from hlo_passes.passes import DEFAULT_PIPELINE, optimize
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.hlo_engine import DECIDING, replaying
from ipuxla.lowering import lower_module
from tests.random_plans import random_planner
from tiles.compiler import Executable, compile_graph
from tiles.engine import make_engine
from tiles.numerics.ring import ring
from tiles.target import Target

ENGINES = ("fast", "literal", "vertex")


def optimized_module(
    function: Callable[..., Any], arguments: Sequence[Any], keeps_calls: bool = False
) -> Module:
    """Return the optimized HLO module of a function of flat arguments (arrays or their types).

    With ``keeps_calls`` even small functions that are called twice stay functions, and small runs of operations
    that repeat become functions.
    """
    lowered = jax.jit(function, keep_unused=True).lower(*arguments)
    pipeline = DEFAULT_PIPELINE
    if keeps_calls:
        for late in (
            "inline{max-ops=0,pointwise=true,apart=0},",
            "inline{max-ops=0,pointwise=true,most-added=64,apart=0},",
        ):
            pipeline = pipeline.replace(late, "")
        pipeline = pipeline.replace("inline", "inline{max-ops=1}", 1)
        pipeline = pipeline.replace("outline-repeats", "outline-repeats{min-ops=3}")
    return optimize(import_stablehlo(lowered.compiler_ir("stablehlo")), pipeline)


def executable_of(module: Module, target: Target, plan_seed: int | None = None) -> Executable:
    """Compile a module for a target; with a seed, under plans and layouts chosen at random."""
    planner = contextlib.nullcontext() if plan_seed is None else random_planner(plan_seed)
    with planner:
        return compile_graph(lower_module(module, target))


def run(
    executable: Executable, engine: str, arrays: Sequence[Any], arithmetic: str = "float"
) -> list[np.ndarray]:
    """Return the results of one engine."""
    outputs, _ = make_engine(executable, engine, arithmetic).run(*arrays)
    return [np.asarray(x) for x in outputs]


def ring_reference(
    module: Module, arrays: Sequence[Any], executable: Executable | None = None
) -> list[np.ndarray]:
    """Return what every engine must give under ring arithmetic: the module evaluated op by op.

    The executable is needed where decisions depend on floats.
    """
    decides = any(isinstance(instruction.op, DECIDING) for instruction in module.walk())
    if decides and executable is not None:
        run_in_ring = replaying(module, lambda: executable)
    else:
        run_in_ring = jax.jit(ring(lambda *xs: evaluate_module(module, *xs)))
    with jax.enable_x64(True):
        words = run_in_ring(*arrays)
    return [np.asarray(x) for x in words]


def assert_same_words(got: Sequence[np.ndarray], want: Sequence[np.ndarray], where: str) -> None:
    """Check types, shapes and every bit."""
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), f"{where}, result {number}"
        wrong = int((one != other).sum())
        assert not wrong, f"{where}, result {number}: {wrong} of {one.size} words differ"


def assert_engines_agree(
    executable: Executable, module: Module, arrays: Sequence[Any], engines: Sequence[str] = ENGINES
) -> None:
    """Check that engines agree with the module on every bit under ring arithmetic."""
    want = ring_reference(module, arrays, executable)
    for engine in engines:
        assert_same_words(run(executable, engine, arrays, "ring"), want, engine)
