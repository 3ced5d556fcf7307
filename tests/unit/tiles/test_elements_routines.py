"""Accuracy of functions that the machine has no instruction for: all halves, a dense sample of floats, by simulation."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.unit.tiles.elements_running import (
    DATA,
    SCRATCH,
    STATE,
    compiled,
    simulate,
    simulate_rows,
    trace,
    ulps,
)
from tiles.elements import TileSimulator, compile_cell, compile_matrix_vector, contiguous, cost_of, named
from tiles.elements.amp import PRODUCTS, weights_cycles
from tiles.elements.verify import verify
from tiles.errors import NoTileCode

MK2 = named("mk2")
_NUMPY = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}
# Domain, and units in the last place of f32 that the docs state.
DOMAINS = {
    "expm1": (-20, 80, 2),
    "log1p": (-0.999, 1e6, 3),
    "erf": (-5, 5, 3),
    "atan": (-30, 30, 3),
    "cbrt": (-1e6, 1e6, 1.5),
    "sinh": (-40, 40, 4),
    "cosh": (-40, 40, 2),
    "asin": (-1, 1, 4),
    "acos": (-1, 1, 4),
    "atanh": (-0.999, 0.999, 4),
    "asinh": (-1e4, 1e4, 4),
    "acosh": (1, 1e4, 4),
}


def exact(name: str, x: np.ndarray) -> np.ndarray:
    """Return a function in float64."""
    wide = x.astype(np.float64)
    if name == "erf":
        return np.array([math.erf(v) for v in wide.ravel()]).reshape(wide.shape)
    with np.errstate(all="ignore"):
        return getattr(np, _NUMPY.get(name, name))(wide)


@pytest.mark.parametrize("name", DOMAINS)
def test_routines_of_f32(name) -> None:
    low, high, bound = DOMAINS[name]
    rng = np.random.default_rng(0)
    spread = rng.uniform(low, high, (48, 48))
    small = np.clip(rng.normal(size=(48, 48)) * np.exp(rng.uniform(-12, 0, (48, 48))), low, high)
    x = np.concatenate([spread, small], axis=1).astype(np.float32)
    (got,), _ = simulate(compiled(getattr(lax, name), ["float32"], MK2), [x], ["float32"], MK2)
    assert ulps(got, exact(name, x)) <= bound


SPECIAL = np.array([0.0, -0.0, 1, -1, 2, -2, 0.5, np.inf, -np.inf, np.nan, 3, -3], np.float32)


def test_powers() -> None:
    """Of any operands whose power is a normal number within 0.7 ulp; special ones as IEEE 754 says."""
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-60, 60, (16, 32))).astype(np.float32)
    y = (rng.normal(size=x.shape) * rng.choice([0.1, 1, 3, 30], x.shape)).astype(np.float32)
    code = compiled(lax.pow, ["float32"] * 2, MK2)
    (got,), _ = simulate(code, [x, y], ["float32"], MK2, spacing=256)
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float64) ** y.astype(np.float64)
        normal = (wanted > 1.2e-38) & (wanted < 3.4e38)
        assert ulps(got[normal], wanted[normal]) <= 0.7
        np.testing.assert_array_equal(got[~normal] > 1, wanted[~normal] > 1)
        a, b = np.meshgrid(SPECIAL, SPECIAL)
        (got,), _ = simulate(code, [a, b], ["float32"], MK2, spacing=256)
        np.testing.assert_allclose(got, a.astype(np.float64) ** b, rtol=1e-7)
        np.testing.assert_array_equal(np.signbit(got[got == got]), np.signbit((a**b)[got == got]))


def test_angles_of_points() -> None:
    """Within 3 ulp; zeros have signs, and infinite coordinates are alike."""
    rng = np.random.default_rng(0)
    spread = (rng.normal(size=(2, 16, 32)) * 10.0 ** rng.uniform(-9, 9, (2, 16, 32))).astype(np.float32)
    code = compiled(lax.atan2, ["float32"] * 2, MK2)
    for y, x in (spread, np.meshgrid(SPECIAL, SPECIAL)):
        (got,), _ = simulate(code, [y, x], ["float32"], MK2, spacing=256)
        wanted = np.arctan2(y.astype(np.float64), x)
        assert ulps(got, wanted) <= 3
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
        np.testing.assert_array_equal(np.signbit(got[got == got]), np.signbit(wanted[got == got]))


def test_remainders_of_floats() -> None:
    """Exact for quotients below 2**66."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(16, 32)) * 10.0 ** rng.uniform(-5, 12, (16, 32))).astype(np.float32)
    y = (rng.normal(size=(16, 32)) * 10.0 ** rng.uniform(-5, 5, (16, 32))).astype(np.float32)
    code = compiled(lax.rem, ["float32"] * 2, MK2)
    with np.errstate(all="ignore"):
        for a, b in ((x, y), np.meshgrid(SPECIAL, SPECIAL)):
            (got,), _ = simulate(code, [a, b], ["float32"], MK2, spacing=256)
            np.testing.assert_array_equal(got, np.fmod(a, b))
            np.testing.assert_array_equal(np.signbit(got[got == got]), np.signbit(np.fmod(a, b)[got == got]))


@pytest.mark.parametrize(("name", "bound"), [("sin", 3), ("cos", 3), ("tan", 5)])
def test_functions_of_angles_of_any_size(name, bound) -> None:
    """Floats of every exponent, those next to multiples of pi/2, and that which lies nearest to one of all."""
    rng = np.random.default_rng(0)
    exponents = np.repeat(np.arange(64, 255, dtype=np.uint32), 32)
    spread = ((exponents << 23) | rng.integers(0, 1 << 23, exponents.size, np.uint32)).view(np.float32)
    multiples = np.concatenate([np.arange(1, 1000), 2.0 ** rng.uniform(10, 127, 999)]) // 1 * (np.pi / 2)
    edges = [16367173 * 2.0**72, np.finfo(np.float32).max, np.pi / 4, 0.99999994, 1]
    x = np.concatenate([spread, multiples, edges]).astype(np.float32)
    x = np.concatenate([x, -x, np.zeros(-2 * x.size % 64, np.float32)]).reshape(64, -1)
    code = compiled(getattr(lax, name), ["float32"], MK2)
    (got,), _ = simulate(code, [x], ["float32"], MK2, spacing=1024)
    assert ulps(got, exact(name, x)) <= bound
    special = np.array([[0.0, -0.0, np.inf, -np.inf, np.nan]], np.float32)
    (got,), _ = simulate(code, [special], ["float32"], MK2, spacing=256)
    np.testing.assert_array_equal(got, exact(name, special).astype(np.float32))
    np.testing.assert_array_equal(np.signbit(got[0, :2]), [False, name != "cos"])


def test_what_routines_have_in_common_is_computed_once() -> None:
    """Sine and cosine of one angle differ in their ends; those of two angles have nothing in common."""
    rng = np.random.default_rng(0)
    x, y = ((rng.normal(size=(4, 32)) * 1e3).astype(np.float32) for _ in range(2))
    both = compiled(lambda x, y: lax.sin(x) * lax.cos(x) + y, ["float32"] * 2, MK2)
    (got,), _ = simulate(both, [x, y], ["float32"], MK2, spacing=256)
    np.testing.assert_allclose(got, np.sin(x.astype("float64")) * np.cos(x.astype("float64")) + y, rtol=1e-6)
    apart = compiled(lambda x, y: lax.sin(x) * lax.cos(y), ["float32"] * 2, MK2)
    slots = [int(cost_of(code, {"n": 600}, MK2).slots.max()) for code in (both, apart)]
    assert slots[0] < 0.7 * slots[1]


@pytest.mark.parametrize("name", ["expm1", "log1p", "erf", "cbrt", "sin", "cos", "tan"])
def test_routines_of_every_half(name) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    (got,), _ = simulate(compiled(getattr(lax, name), ["float16"], MK2), [x], ["float16"], MK2)
    wanted = exact(name, x)
    with np.errstate(all="ignore"):
        rounded = wanted.astype(np.float16)
    assert ulps(got, wanted) <= 0.52
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
    np.testing.assert_array_equal(got[np.isinf(rounded)], rounded[np.isinf(rounded)])


def reduction(f, dtype):
    """Compile a reduction of ``[rows, n]``; the extents of the trace do not matter."""
    jaxpr = trace(f, [dtype], (7, 5))
    result = jaxpr.out_avals[0]
    code = compile_cell(jaxpr, ((dtype,), (result.dtype.name,)), contiguous(1), MK2)
    verify(code, MK2)
    return code, result.dtype.name, result.shape == (5,)


REDUCTIONS = {
    "sum along": lambda np_, x: np_.sum(x.astype("float32"), 1),
    "sum over": lambda np_, x: np_.sum(x, 0),
    "max along": lambda np_, x: np_.max(x.astype("float32"), 1),
    "min over": lambda np_, x: np_.min(x, 0),
    "norm": lambda np_, x: np_.sqrt(np_.sum(x.astype("float32") ** 2, 1)),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, dtype) -> None:
    f = REDUCTIONS[name]
    code, result, over_rows = reduction(lambda x: f(jnp, x), dtype)
    rng = np.random.default_rng(0)
    for rows, n in ((1, 1), (5, 3), (7, 4), (13, 17), (6, 101), (0, 5)):
        x = rng.normal(size=(rows, n)).astype(dtype)
        got, _ = simulate_rows(code, x, result, MK2, over_rows)
        if rows:
            bound = 1e-5 if result == "float32" else 2e-2
            np.testing.assert_allclose(got, f(np, x.astype(np.float64)), rtol=bound, atol=bound)


def test_reductions_without_code_are_refused() -> None:
    with pytest.raises(NoTileCode, match="one float16 a row"):
        reduction(lambda x: jnp.max(x, 1), "float16")
    with pytest.raises(NoTileCode, match="one of two dimensions"):
        reduction(lambda x: jnp.sum(x), "float32")


@pytest.mark.parametrize("n", [0, 1, 6, 7, 40])
@pytest.mark.parametrize("kind", PRODUCTS)
def test_matrix_products_on_the_multiply_units(n, kind) -> None:
    product = PRODUCTS[kind]
    code = compile_matrix_vector(MK2, *kind)
    verify(code, MK2)
    simulator = TileSimulator(MK2, 1 << 18, tiles=2)
    rng = np.random.default_rng(n)
    inputs, outputs = product.inputs, product.outputs
    weights = rng.integers(-3, 4, (2, outputs, inputs)).astype("float32")
    x = rng.integers(-3, 4, (2, n, inputs)).astype(kind[0])
    partials = rng.integers(-3, 4, (2, n, outputs)).astype(kind[1])
    simulator.weights[:, :outputs, :inputs] = weights
    arguments = {"in0": DATA, "in1": DATA + (1 << 16), "out0": DATA + (1 << 17), "n": n}
    simulator.write(arguments["in0"], x)
    simulator.write(arguments["in1"], partials)
    run = simulator.run(code, arguments, STATE, SCRATCH)
    assert (run.slots == cost_of(code, {"n": n}, MK2).slots).all()
    got = simulator.read(arguments["out0"], outputs * n, kind[1]).reshape(2, n, outputs)
    np.testing.assert_array_equal(got, partials + np.einsum("tok,tpk->tpo", weights, x))


def test_products_take_as_many_slots_a_position_as_poplibs_and_the_generation_that_has_them() -> None:
    for kind, product in PRODUCTS.items():
        code = compile_matrix_vector(MK2, *kind)
        more, less = (cost_of(code, {"n": 6 * k}, MK2).slots[0] for k in (101, 100))
        assert int(more - less) == product.phases == (8 if kind[0] == "float32" else 4)  # conv_partial_1x1_*
    with pytest.raises(NoTileCode, match="f16v4hihov4amp"):
        compile_matrix_vector(named("mk1"))
    with pytest.raises(NoTileCode, match="bfloat16 into float32"):
        compile_matrix_vector(MK2, "bfloat16", "float32")


def test_weights_are_loaded_by_the_supervisor() -> None:
    assert weights_cycles(MK2) - weights_cycles(MK2, 128) == 32  # 64 or 32 instructions for 16 units
