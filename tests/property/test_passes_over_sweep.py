"""Every pass, alone and in any order, over the programs of the sweep: it decides or leaves the code alone."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable
from typing import Any

import jax
import pytest

import ipuxla
from hlo_passes.errors import UnsupportedOp
from hlo_passes.ir import Module
from hlo_passes.passes import PASSES, optimize
from tests.sweep import CASES
from tests.sweep.running import SMALL

SAMPLE = (
    "around: vmap of grad",
    "jnp.sign",
    "library: Adafactor",
    "lax.while_loop: vmap",
    "linalg.cholesky: complex",
    "lax.dynamic_update_slice",
    "nn.logsumexp",
)
"""Cases that are always run; the others are extended tests."""
ORDERS = 2
"""Random pipelines of eight passes that a module goes through."""


class Lowering:
    """A decorator that runs ``jax.jit`` and keeps the modules that ours would begin with."""

    def __init__(self) -> None:
        self.modules: list[Module] = []

    def __call__(self, function: Any = None, **options: Any) -> Any:
        if function is None:
            return lambda function: self(function, **options)
        ours, native = ipuxla.jit(function, target=SMALL, **options), jax.jit(function, **options)

        def call(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # refused, or traced: then there is no module of its own
                self.modules.append(ours.lower(*args, **kwargs)._pipeline.module)
            return native(*args, **kwargs)

        return call


def modules_of(name: str) -> list[Module]:
    """Return the modules of a case's programs."""
    case, lowering = CASES[name], Lowering()
    make: Callable[..., Any] = case.make
    with jax.enable_x64(True) if case.x64 else contextlib.nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(Exception):
            make(lowering)(*case.arguments)
    return lowering.modules


def check(name: str) -> None:
    """Run passes over a case's modules; whatever they do, it verifies, or is a type that one pass legalizes."""
    order = random.Random(name)
    for module in modules_of(name):
        pipelines = [*sorted(PASSES), *(",".join(order.choices(sorted(PASSES), k=8)) for _ in range(ORDERS))]
        for pipeline in pipelines:
            with contextlib.suppress(UnsupportedOp):  # complex operations that ``expand`` was not there for
                optimize(module, pipeline)


@pytest.mark.parametrize("name", SAMPLE)
def test_passes_over_sample(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", [name for name in CASES if name not in SAMPLE])
def test_passes_over_case(name: str) -> None:
    check(name)
