"""What ``lax.associative_scan`` writes is one scan, where the function is known to be associative; all else stays."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module, print_module
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.testing import check_engines

X = np.random.default_rng(0).uniform(0.5, 1.5, (21, 6)).astype(np.float32)
Y = np.random.default_rng(1).uniform(-1, 1, (21, 6)).astype(np.float32)
FLAGS = np.random.default_rng(2).uniform(size=(21, 6)) < 0.2
FEW_PASSES = "expand,inline,dce,legalize-complex,associative-scans,dce"


def linear(p, q):
    """Join two steps of a linear recurrence."""
    return p[0] * q[0], q[0] * p[1] + q[1]


def with_resets(p, q):
    """Join two steps of a recurrence that begins anew where a flag is set."""
    return p[0] * q[0], jnp.where(q[2], q[1], q[0] * p[1] + q[1]), p[2] | q[2]


def weighted_resets(p, q):
    """Join as ``with_resets`` does, with flags of floats."""
    return p[0] * q[0], (1 - q[2]) * q[0] * p[1] + q[1], p[2] + q[2] - p[2] * q[2]


def twice(x):
    """Scan what a scan gives."""
    return lax.associative_scan(jnp.maximum, lax.associative_scan(jnp.add, x))


def recurrence(x, y):
    """Return the states of a recurrence, its decays being read by nothing."""
    return lax.associative_scan(linear, (x, y))[1]


SCANS = {
    "minimum": (partial(lax.associative_scan, jnp.minimum), (X,), 1),
    "of integers": (partial(lax.associative_scan, jnp.add), ((100 * X).astype(np.int32),), 1),
    "or": (partial(lax.associative_scan, jnp.logical_or), (FLAGS,), 1),
    "and": (partial(lax.associative_scan, jnp.logical_and), (~FLAGS,), 1),
    "other axis": (partial(lax.associative_scan, jnp.multiply, axis=1), (X,), 1),
    "from the end": (partial(lax.associative_scan, jnp.multiply, reverse=True), (X,), 1),
    "two at once": (lambda x, y: lax.associative_scan(linear, (x, y)), (X, Y), 1),
    "two from the end": (lambda x, y: lax.associative_scan(linear, (x, y), reverse=True), (X, Y), 1),
    "states only": (recurrence, (X, Y), 1),
    "batched": (jax.vmap(recurrence), (X[:, :, None] * X[:, None], Y[:, :, None] * X[:, None]), 1),
    "resets": (lambda x, y, f: lax.associative_scan(with_resets, (x, y, f))[1], (X, Y, FLAGS), 1),
    "resets by floats": (
        lambda x, y, f: lax.associative_scan(weighted_resets, (x, y, f))[1],
        (X, Y, FLAGS.astype(np.float32)),
        1,
    ),
    "complex": (lambda x, y: recurrence(x + 1j * y, y + 1j * x), (X, Y), 1),
    "halves": (lambda x: lax.associative_scan(jnp.add, x.astype(jnp.bfloat16)), (X,), 1),
    "of a scan": (twice, (X,), 2),
    "in a loop": (lambda x: lax.fori_loop(0, 3, lambda _, x: 0.1 * twice(x), x), (X,), 2),
    "with what is on the way": (lambda x: (twice(x), x[:-1:2] + x[1::2]), (X,), 2),
}


def imported(function, *arguments):
    return import_stablehlo(jax.jit(function).lower(*arguments).compiler_ir("stablehlo"))


def scans(module) -> int:
    return print_module(module).count("hlo.scan")


@pytest.mark.parametrize("name", SCANS)
def test_one_scan_each(name: str) -> None:
    function, arguments, number = SCANS[name]
    done = optimize(imported(function, *arguments), FEW_PASSES)
    assert scans(done) == number
    assert ("stablehlo.pad" in print_module(done)) == (name == "with what is on the way")
    wanted = jax.tree.leaves(jax.jit(function)(*arguments))
    tolerance = 0.02 if wanted[0].dtype == jnp.bfloat16 else 1e-5
    results = evaluate_module(optimize(imported(function, *arguments)), *arguments)
    if name == "complex":
        results = [results[0] + 1j * results[1]] if len(results) == 2 else results
    for got, want in zip(results, wanted, strict=True):
        np.testing.assert_allclose(
            *(np.asarray(x).astype(want.dtype) for x in (got, want)), rtol=tolerance, atol=1e-5
        )


def pairs_and_sums(p, q):
    """Join as nothing associative does."""
    return p[0] + q[0] * q[0], p[1] + q[0] * q[1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.associative_scan(lambda p, q: jnp.exp(p) * q, x),
        lambda x: lax.associative_scan(lambda p, q: p - q, x),
        lambda x: lax.associative_scan(pairs_and_sums, (x, x + 1)),
        lambda x: lax.associative_scan(lambda p, q: p + q + x[0, 0], x),
        lambda x: lax.associative_scan(lambda p, q: p + q + p * q * p, x),
        lambda x: lax.associative_scan(lambda p, q: jnp.maximum(p, q) + 0.5, x),
        lambda x: lax.associative_scan(jnp.minimum, x[:3]),
        lambda x: jax.vjp(recurrence, x, x)[1](x),
    ],
    ids=[
        "exp",
        "difference",
        "squares",
        "of outside",
        "product",
        "shifted",
        "few",
        "gradient",
    ],
)
def test_others_stay(function) -> None:
    done = optimize(imported(function, X), FEW_PASSES)
    assert scans(done) == 0
    for got, want in zip(evaluate_module(done, X), jax.tree.leaves(jax.jit(function)(X)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4)


@given(st.integers(1, 70), st.sampled_from([(linear, 2), (with_resets, 3), (jnp.add, 1)]), st.booleans())
def test_any_length(size: int, function, is_reverse: bool) -> None:
    combine, count = function
    arrays = [np.resize(x, (size, 2)) for x in (X, Y, FLAGS)][:count]

    def scanned(*arrays):
        return lax.associative_scan(combine, arrays if count > 1 else arrays[0], reverse=is_reverse)

    done = optimize(imported(scanned, *arrays), FEW_PASSES)
    assert scans(done) == (size >= 4)
    for got, want in zip(
        evaluate_module(done, *arrays), jax.tree.leaves(jax.jit(scanned)(*arrays)), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["minimum", "two from the end", "resets"])
def test_engines(name: str) -> None:
    function, arguments, _ = SCANS[name]
    target = ipuxla.Target.named("gc200").replace(num_tiles=8)
    long = [np.concatenate([x] * 8) for x in arguments]
    check_engines(function, target, *long, engines=("fast", "literal"))


def test_cycles() -> None:
    def cycles(function, *shapes) -> float:
        arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        return ipuxla.jit(function, target="gc200").lower(*arguments).compile().cost_analysis()["cycles"]

    assert (
        cycles(partial(lax.associative_scan, jnp.minimum), (256,)) < 3_500
    )  # 17,573 by JAX's slices and pads
    assert cycles(recurrence, (1024, 16, 64), (1024, 16, 64)) < 25_000  # 95,345
