"""Integers are divided by constants without a division, in every type, rounding and range, with the quotients of Python."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import Module, evaluate_module
from hlo_passes.ops import Divide, Remainder
from hlo_passes.passes import DEFAULT_PIPELINE, optimize
from ipuxla.frontend.importer import import_stablehlo

TARGET = ipuxla.Target.named("gc200").replace(num_tiles=8)
TYPES = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)


def optimized(function, *arguments) -> Module:
    module = import_stablehlo(jax.jit(function).lower(*arguments).compiler_ir("stablehlo"))
    return optimize(module, DEFAULT_PIPELINE.split(",take-apart")[0])  # before anything is fused


def divisions(module: Module) -> int:
    return sum(
        isinstance(i.op, Divide | Remainder) and i.results[0].type.is_integer
        for computation in module.computations
        for i in computation.instructions
    )


@st.composite
def quotients(draw) -> tuple[np.ndarray, int, tuple[int, int] | None]:
    """Draw numbers of a type, what they are divided by, and what they are clipped to, if anything."""
    limits = np.iinfo(draw(st.sampled_from(TYPES)))
    numbers = st.integers(limits.min, limits.max)
    c = draw(st.integers(2, limits.max) | st.integers(2, min(100, limits.max)))
    near = [k * c + d for k in (-2, -1, 0, 1, 2, limits.max // c, -(limits.max // c)) for d in (-1, 0, 1)]
    x = [*draw(st.lists(numbers, min_size=30, max_size=30)), *near, limits.min, limits.max]
    bounds = draw(st.none() | st.tuples(numbers, numbers).map(sorted).map(tuple))
    return np.clip(x, limits.min, limits.max).astype(limits.dtype), c, bounds


@given(quotients())
@example((np.arange(2**32 - 40, 2**32, dtype=np.uint32), 7, None))
@example((np.arange(2**32 - 40, 2**32, dtype=np.uint32), 2**31 + 1, None))
@example((np.arange(-(2**31), -(2**31) + 40, dtype=np.int32), 3, None))
@example((np.arange(0, 65536, 7, dtype=np.int32), 641, (0, 65535)))
def test_every_quotient_is_that_of_python(drawn) -> None:
    x, c, bounds = drawn
    number = x.dtype.type(c)

    def function(x):
        y = x if bounds is None else jnp.clip(x, *map(x.dtype.type, bounds))
        return lax.div(y, jnp.full_like(y, c)), lax.rem(y, jnp.full_like(y, c)), y // number, y % number

    module = optimized(function, x)
    assert divisions(module) == 0
    exact = [int(v) for v in (x if bounds is None else np.clip(x, *bounds))]
    toward_zero = [abs(v) // c * (-1 if v < 0 else 1) for v in exact]
    want = toward_zero, [v - q * c for v, q in zip(exact, toward_zero, strict=True)]
    want += [v // c for v in exact], [v % c for v in exact]
    for got, expected in zip(evaluate_module(module, x), want, strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.array(expected, x.dtype))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int8])
@pytest.mark.parametrize("c", [7, 64])
@pytest.mark.parametrize("engine", ["fast", "literal"])
def test_engines_divide_as_jax_does(dtype, c, engine) -> None:
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(limits.min, limits.max, 300, dtype, endpoint=True)

    def function(x):
        return *jnp.divmod(x, c), lax.div(x, jnp.full_like(x, c)), x.sum() % c

    for arithmetic in ("float", "ring"):
        found = ipuxla.jit(function, target=TARGET, engine=engine, arithmetic=arithmetic)(x)
        jax.tree.map(np.testing.assert_array_equal, found, jax.jit(function)(x))


CYCLES = {
    "quotient": (lambda x: x // 7, lambda x: (x ^ 1) + (x & 3) * 5 + (x >> 3) - (x | 9), 4),
    "what is left": (lambda x: x % 7, lambda x: (x ^ 1) + (x & 3) * 5 + (x >> 3) - (x | 9), 4),
    "quotient by a power": (lambda x: x // 8, lambda x: x >> 3, 1.05),
    "what is left of a power": (lambda x: x % 8, lambda x: x & 7, 1.05),
    "of few": (lambda x: (x & 1023) // 7, lambda x: ((x & 1023) * 9363) >> 16, 1.1),
}


@pytest.mark.parametrize("name", CYCLES)
def test_a_quotient_takes_as_long_as_a_few_operations(name) -> None:
    divided, plain, ratio = CYCLES[name]
    x = jax.ShapeDtypeStruct((400_000,), jnp.int32)
    cycles, least = (
        ipuxla.jit(f, target="gc200").lower(x).compile().cost_analysis()["cycles"] for f in (divided, plain)
    )
    assert cycles <= ratio * least


def test_lookups_know_what_is_left() -> None:
    """``table[i % n]`` asks no index whether it is there."""
    table, i = np.arange(40.0, dtype=np.float32), np.arange(-500, 500, 7, dtype=np.int32)
    plain = optimized(lambda t, i: t.at[i % 40].get(mode="promise_in_bounds"), table, i)
    asked = optimized(lambda t, i: t[i % 40], table, i)
    assert [type(i.op) for i in asked.entry_computation.instructions] == [
        type(i.op) for i in plain.entry_computation.instructions
    ]


def test_divisors_that_are_no_constants_and_longer_numbers_stay() -> None:
    x = np.arange(12, dtype=np.int32)
    assert divisions(optimized(lambda x, y: x // y, x, x + 1))
    with jax.enable_x64(True):
        wide = x.astype(np.int64)
        assert divisions(optimized(lambda x: x // 7, wide))
        module = optimized(lambda x: (x // 8, x % 8), wide)
        assert not divisions(module)
        for got, want in zip(
            evaluate_module(module, wide - 5), (((wide - 5) // 8), (wide - 5) % 8), strict=True
        ):
            np.testing.assert_array_equal(np.asarray(got), want)
