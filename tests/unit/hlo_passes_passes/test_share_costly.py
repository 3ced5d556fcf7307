"""Costly functions of the same are computed once, before the layers that read them become one function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from hlo_passes.ir import Module, evaluate_module, verify
from hlo_passes.ops import Cosine, Sine
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo

RNG = np.random.default_rng(3)
X, POSITIONS = (RNG.standard_normal(shape).astype(np.float32) for shape in ((6, 8), (6, 1)))
WEIGHTS = [RNG.standard_normal((8, 8)).astype(np.float32) for _ in range(5)]


def turned(x, positions, weights):
    for w in weights:
        a, b = jnp.split(x @ w, 2, -1)
        angle = positions * 100.0 ** (-jnp.arange(4) / 4)
        c, s = jnp.cos(angle), jnp.sin(angle)
        x = jnp.concatenate([a * c - b * s, b * c + a * s], -1)
    return x


def count(module: Module) -> int:
    return sum(isinstance(i.op, (Sine, Cosine)) for i in module.walk())


def modules(function, *args, passes: str) -> tuple[Module, Module]:
    module = import_stablehlo(jax.jit(function).lower(*args).compiler_ir("stablehlo"))
    before, after = optimize(module, "inline,dce"), optimize(module, f"inline,dce,{passes},dce")
    verify(after)
    leaves = [jnp.asarray(x) for x in jax.tree.leaves(args)]
    for a, b in zip(evaluate_module(before, *leaves), evaluate_module(after, *leaves), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    return before, after


def test_angles_of_all_layers_are_taken_once() -> None:
    before, after = modules(turned, X, POSITIONS, WEIGHTS, passes="share-costly")
    assert (count(before), count(after)) == (10, 2)
    outlined = optimize(after, "outline-repeats{min-ops=4},dce")
    assert count(outlined) == 2 and len(outlined.computations) == 2


def test_of_different_operands_each_is_computed() -> None:
    def function(x):
        return jnp.sin(x) + jnp.sin(x * 2) + jnp.cos(x)

    before, after = modules(function, X, passes="share-costly")
    assert before == after


def test_what_takes_much_memory_is_computed_again() -> None:
    _, after = modules(turned, X, POSITIONS, WEIGHTS, passes="share-costly{max-bytes=95}")
    assert count(after) == 10
