"""Every element of a well-conditioned program is as close as the project promises, relative to itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given

import ipuxla
from tiles.numerics.tolerance import ELEMENTWISE, check_elements, elementwise_of
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=4)
DTYPES = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
ROOT = "docs/numerics.md"

STEPS: dict[str, Any] = {
    "half of it": lambda x: x / (1 + x),
    "root": jnp.sqrt,
    "sum with its rows": lambda x: x + x.mean(0, keepdims=True),
    "exp": lambda x: jnp.exp(-x) + 1,
    "log1p": jnp.log1p,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "harmonic": lambda x: x * x[::-1] / (x + x[::-1]),
    "mean of columns": lambda x: x * x.mean(1, keepdims=True),
    "product": lambda x: (x / x.sum(1, keepdims=True)) @ x,
    "largest": lambda x: jnp.maximum(x, x[:, ::-1]),
    "softmax": lambda x: jax.nn.softmax(x) + x,
}
"""Functions of positive numbers, none of which cancels or leaves the range of 8-bit floats in three steps."""


def runs(steps: Sequence[str], dtype: str, of: str | None = None) -> Callable[[Any], Any]:
    """Return the steps one after another, each computed in type ``of`` and rounded."""
    return lambda x: functools.reduce(
        lambda y, name: STEPS[name](y.astype(of or dtype)).astype(dtype), steps, x
    )


def expected(x: Any, steps: Sequence[str], dtype: str) -> Any:
    """Return what JAX computes; from float32 for 8-bit floats, which XLA adds in their own type and so loses terms."""
    return jax.jit(runs(steps, dtype, "float32" if dtype.startswith("float8") else None))(x)


def uses_infinity_without_one(dtype: str, steps: Sequence[str]) -> bool:
    """Return whether a softmax begins its maxima with minus infinity in a type where that is NaN."""
    return dtype == "float8_e4m3fn" and "softmax" in steps


@given(
    st.sampled_from(DTYPES),
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3),
    st.sampled_from(["fast", "literal"]),
)
def test_elements_are_close_relative_to_themselves(dtype: str, names: list[str], engine: str) -> None:
    assume(not uses_infinity_without_one(dtype, names))
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(np.random.default_rng(1).uniform(0.25, 2, (6, 6))).astype(dtype)
        got = ipuxla.jit(runs(names, dtype), target=TARGET, engine=engine)(x)
        check_elements(got, expected(x, names, dtype), f"{dtype}: {', '.join(names)}")


@pytest.mark.parametrize("engine", ["fast", "literal"])
def test_sums_of_8_bit_floats_are_rounded_once(engine: str) -> None:
    """Unlike XLA's, which stop growing where a term is less than half the spacing of the sum."""
    x = jnp.asarray(np.random.default_rng(1).uniform(0.25, 2, (6, 6)), "float8_e5m2")
    got = ipuxla.jit(jnp.sum, target=TARGET, engine=engine)(x)
    assert float(got) == float(jnp.sum(x.astype("float32")).astype("float8_e5m2")) == 40
    assert float(jax.jit(jnp.sum)(x)) < 30


def test_the_bounds_are_those_of_the_documentation(pytestconfig: pytest.Config) -> None:
    text = (pytestconfig.rootpath / ROOT).read_text()
    rows = {
        "float64": "f64",
        "float32": "f32",
        "float16": "f16",
        "bfloat16": "bf16",
        "floats of 8 bits": "f8",
    }
    for name, key in rows.items():
        (row,) = (
            line for line in text.splitlines() if line.startswith(f"| {name} |") and line.count("|") == 4
        )
        assert float(row.split("|")[3]) == ELEMENTWISE[key]
    assert (
        elementwise_of("float8_e5m2") == ELEMENTWISE["f8"]
        and elementwise_of("bfloat16") == ELEMENTWISE["bf16"]
    )
    assert elementwise_of(np.int32) == 0


@pytest.mark.parametrize("engine", ["literal", "hlo"])
def test_gradients_of_max_are_undefined_where_operations_say_so(engine: str) -> None:
    """The documented exception: op by op a row with a NaN has inf * 0; XLA makes 0 of it where it compiles both together."""
    x, gradient = np.float32([1, np.nan, 3, 2]), jax.grad(jnp.max)
    got = np.asarray(ipuxla.jit(gradient, target=TARGET, engine=engine)(x))
    want = [np.asarray(gradient(x))] + [np.asarray(jax.jit(gradient)(x))] * (engine == "literal")
    assert np.isnan(want[0]).all()
    assert any(np.array_equal(got, one, equal_nan=True) for one in want), got
