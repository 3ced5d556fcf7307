"""Comparisons of integers that are known by ranges: of every element of whatever is drawn they say what is so."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ipuxla
from hlo_passes.ir import Builder, Module, TensorType, Value, evaluate_module, print_module
from hlo_passes.ops import (
    Add,
    And,
    Clamp,
    Compare,
    Constant,
    Convert,
    Divide,
    Iota,
    Maximum,
    Minimum,
    Multiply,
    Remainder,
    Select,
    Subtract,
)
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from tests.budgets import PLAN, budget

BINARY = (Add, Subtract, Multiply, Divide, Remainder, And, Minimum, Maximum)
PASSES = "inline,fix(canonicalize,fold-constants,cse,dce)"


def _grown(draw, builder: Builder, leaves: list[Value], dtype: str) -> Value:
    """Return a value of some operations on leaves."""
    type_ = TensorType((7,), dtype)
    values = list(leaves)
    for _ in range(draw(st.integers(1, 6))):
        one, other, third = (draw(st.sampled_from(values)) for _ in range(3))
        kind = draw(st.sampled_from((*BINARY, Clamp, Select, Convert)))
        if kind is Select:
            test = builder.add(Compare("LT"), one, other)
            values.append(builder.add(Select(), test, other, third))
        elif kind is Clamp:
            values.append(builder.add(Clamp(), one, other, third))
        elif kind is Convert:
            values.append(
                builder.add(
                    Convert(dtype), builder.add(Convert(draw(st.sampled_from(["i8", "ui16", "i32"]))), one)
                )
            )
        else:
            if kind in (Divide, Remainder):  # by what is never zero
                other = builder.add(Maximum(), other, builder.add(Constant.splat(1, type_)))
            values.append(builder.add(kind(), one, other))
    return values[-1]


@budget(PLAN)
@given(st.data(), st.sampled_from(["i8", "ui8", "i32"]), st.integers(0, 2**32 - 1))
def test_what_is_known_is_so(data, dtype: str, seed: int) -> None:
    rng, type_ = np.random.default_rng(seed), TensorType((7,), dtype)
    builder = Builder("main")
    leaves = [builder.parameter(type_), builder.add(Iota(type_, 0))]
    leaves += [builder.add(Constant.splat(data.draw(st.integers(0, 9)), type_)) for _ in range(2)]
    one, other = (_grown(data.draw, builder, leaves, dtype) for _ in range(2))
    directions = ("LT", "LE", "GT", "GE", "EQ", "NE")
    module = Module("m", (builder.build(*(builder.add(Compare(d), one, other) for d in directions)),), "main")
    range_ = np.iinfo(type_.np_dtype)
    x = rng.integers(range_.min, range_.max, 7, type_.np_dtype, endpoint=True)
    for want, got in zip(
        evaluate_module(module, x), evaluate_module(optimize(module, PASSES), x), strict=True
    ):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "indices",
    [
        lambda i: jnp.clip(i, 0, 15),
        lambda i: i & 7,
        lambda i: jnp.minimum(jnp.abs(i) * 0 + jnp.arange(8), 15),
    ],
    ids=["clipped", "bits", "counted"],
)
def test_lookups_inside_ask_no_index(indices) -> None:
    def function(x, i):
        return jnp.take_along_axis(x, indices(i), 1)

    lowered = jax.jit(function).lower(np.ones((4, 16), np.float32), np.ones((4, 8), np.int32))
    text = print_module(optimize(import_stablehlo(lowered.compiler_ir("stablehlo")), PASSES))
    assert "dense<nan" not in text  # the fill value


def test_a_lookup_of_clipped_indices_takes_as_long_as_one_that_promises() -> None:
    x, i = jax.ShapeDtypeStruct((48, 256, 512), jnp.float16), jax.ShapeDtypeStruct((48, 256, 256), jnp.int32)
    asked, promised = (
        ipuxla.jit(
            lambda x, i, mode=mode: jnp.take_along_axis(x, jnp.clip(i, 0, 511), 2, mode=mode), target="gc200"
        )
        .lower(x, i)
        .compile()
        .cost_analysis()["cycles"]
        for mode in (None, "promise_in_bounds")
    )
    assert asked == promised
