"""Powers by constants become products, quotients and roots, with the results of ``pow`` in every corner."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import ipuxla
from hlo_passes.ir import evaluate_module, parse_module, print_module
from hlo_passes.passes import optimize, run_pipeline
from ipuxla.frontend.importer import import_stablehlo

EXPONENTS = [number / 2 for number in range(-8, 9)]
CORNERS = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.37, -2.25, 3.0, 9e-3, 40.0, 1234.5, -1234.5]
TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def module_of(function, *arguments):
    return import_stablehlo(jax.jit(function).lower(*arguments).compiler_ir("stablehlo"))


def power(base, exponent):
    """IEEE's pow; numpy takes its square root of an infinity below zero."""
    try:
        return math.pow(base, exponent)
    except ValueError:  # a pole, or no number
        sign = math.copysign(1.0, base) if exponent % 2 == 1 else 1.0
        return sign * math.inf if base == 0 else math.nan


def wanted(x, exponent, dtype):
    with np.errstate(over="ignore"):
        return np.asarray([power(float(each), exponent) for each in x]).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_results_are_those_of_pow(dtype: str) -> None:
    with jax.enable_x64(dtype == "f64"):
        x = np.asarray(CORNERS, TYPES[dtype])
        wide = x.astype(np.float64)
        for exponent in EXPONENTS:
            done = run_pipeline(
                module_of(lambda x, p=exponent: jnp.power(x, p), x), "inline,powers,dce"
            ).module
            assert "stablehlo.power" not in print_module(done), exponent
            (got,) = evaluate_module(done, x)
            want = wanted(wide, exponent, x.dtype)
            got = np.asarray(got)
            assert got.dtype == x.dtype
            unit = np.finfo(np.float64).eps if dtype == "f64" else float(ml_dtypes.finfo(x.dtype).eps)
            np.testing.assert_allclose(
                got.astype(np.float64), want.astype(np.float64), rtol=5 * unit, err_msg=str(exponent)
            )
            zeros = want == 0
            assert np.array_equal(np.signbit(got[zeros]), np.signbit(want[zeros])), exponent


def test_half_results_near_the_ends_of_the_range() -> None:
    x = np.asarray([6e-8, 2e-4, 300.0, 2000.0, 65504.0], np.float16)
    for exponent in EXPONENTS:
        done = optimize(module_of(lambda x, p=exponent: jnp.power(x, p), x))
        (got,) = evaluate_module(done, x)
        want = wanted(x, exponent, np.float16)
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=6e-8, err_msg=str(exponent))


@pytest.mark.parametrize("exponent", ["x", "0.3333", "4.5", "0.25", "nan", "inf"])
def test_other_powers_stay(exponent: str) -> None:
    constant = (
        ""
        if exponent == "x"
        else f"%e = stablehlo.constant() {{value = dense<{exponent} : tensor<f32>>}} : tensor<f32>\n"
    )
    name = "x" if exponent == "x" else "e"
    text = f"module @m entry @main {{\n@main(%x: tensor<f32>) {{\n{constant}%r = stablehlo.power(%x, %{name}) : tensor<f32>\nreturn %r\n}}\n}}"
    assert "stablehlo.power" in print_module(run_pipeline(parse_module(text), "powers").module)


def test_what_cannot_be_negative_needs_no_selection() -> None:
    def distance(x):
        return jnp.sum((x**2.0), -1) ** 0.5, (jnp.maximum(x[:, 0], 1e-6) + jnp.exp(x[:, 1])) ** -1.5

    def any_sign(x):
        return (x * 3) ** 0.5

    x = np.ones((4, 3), np.float32)
    assert "stablehlo.select" not in print_module(optimize(module_of(distance, x)))
    assert "stablehlo.select" in print_module(optimize(module_of(any_sign, x)))


def test_integers_that_wrap_are_no_proof() -> None:
    x = np.asarray([65536 + 1, 46341], np.int32)

    def root(x):
        return ((x * x).astype(jnp.float32)) ** 0.5

    np.testing.assert_array_equal(
        np.isnan(evaluate_module(optimize(module_of(root, x)), x)[0]), np.isnan(jax.jit(root)(x))
    )


def test_in_loops_and_gradients_on_engines() -> None:
    def energy(x):
        d = x[None] - x[:, None]
        return jnp.sum(((d**2.0).sum(-1) + 0.1) ** -0.5)

    def forces(x):
        return jax.lax.fori_loop(0, 3, lambda _, x: x - 0.01 * jax.grad(energy)(x), x)

    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    target = ipuxla.Target.named("gc200").replace(num_tiles=8)
    want = jax.jit(forces)(x)
    for engine in ("fast", "literal"):
        compiled = ipuxla.jit(forces, target=target, engine=engine).lower(x).compile()
        np.testing.assert_allclose(compiled(x), want, rtol=1e-5, atol=1e-6)
    assert "stablehlo.power" not in ipuxla.jit(forces, target=target).lower(x).as_text("hlo-optimized")
    ring = [
        ipuxla.jit(forces, target=target, engine=engine, arithmetic="ring").lower(x).compile()(x)
        for engine in ("fast", "literal")
    ]
    np.testing.assert_array_equal(*ring)


def test_cycles_of_a_root() -> None:
    x = np.ones(1472 * 60, np.float32)
    cycles = {
        name: ipuxla.jit(function, target="gc200").lower(x).compile().cost_analysis()["cycles"]
        for name, function in (("power", lambda x: x**0.5), ("root", jnp.sqrt), ("other", lambda x: x**0.3))
    }
    assert cycles["power"] < 3 * cycles["root"] < cycles["other"] / 3
