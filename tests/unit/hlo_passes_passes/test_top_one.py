"""``lax.top_k(x, 1)`` is a reduction with the same bits: of equal elements the first, in the total order of floats."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import Builder, Module, TensorType, evaluate_module, print_module
from hlo_passes.ops import TopK
from hlo_passes.passes import optimize
from ipuxla import testing
from ipuxla.frontend.importer import import_stablehlo
from tests.budgets import PLAN, budget
from tests.comparison import assert_same_bits

TARGET = ipuxla.Target.named("gc200").replace(num_tiles=8)
WORDS = {
    "f16": np.uint16,
    "bf16": np.uint16,
    "f32": np.uint32,
    "i8": np.uint8,
    "ui8": np.uint8,
    "i32": np.uint32,
}
COMMON = (
    *(0x0, 0x1, 0x80, 0x7F, 0xFF, 0x3C00, 0x7C00, 0xFC00, 0x7E00, 0xFE00, 0x8000),
    *(
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0xFFC00000,
        0x80000000,
        0x3F800000,
        0x7F800001,
        0x7FC1,
        0xFFC1,
        0x7FFFFFFF,
    ),
)
"""Words that are, of one type or another, zeros, ones, infinities, NaNs of both signs, or the greatest."""


@budget(PLAN)
@given(
    st.sampled_from(sorted(WORDS)),
    st.sampled_from([(3, 7, 2), (0, 3, 1)]),
    st.integers(0, 2),
    st.tuples(st.booleans(), st.booleans()),
    st.integers(0, 2**32 - 1),
)
def test_any_bits_give_what_a_sort_gives(
    dtype: str, shape: tuple[int, int, int], dimension: int, order: tuple[bool, bool], seed: int
) -> None:
    shape = tuple(max(n, 1) if axis == dimension else n for axis, n in enumerate(shape))
    rng = np.random.default_rng(seed)
    words = rng.choice(COMMON, shape).astype(np.uint64) if seed % 3 else rng.integers(0, 2**32, shape)
    type_ = TensorType(shape, dtype)
    x = words.astype(WORDS[dtype]).view(type_.np_dtype)
    builder = Builder("main")
    results = builder.emit(TopK(1, dimension, *order), builder.parameter(type_))
    module = Module("m", (builder.build(*results),), "main")
    after = optimize(module, "top-one")
    is_written = order[1] or not type_.is_float
    assert ("hlo.top_k" not in print_module(after)) == is_written
    assert_same_bits(
        [np.asarray(y) for y in evaluate_module(module, x)],
        [np.asarray(y) for y in evaluate_module(after, x)],
    )
    found = np.take_along_axis(x, np.asarray(evaluate_module(after, x)[1]), dimension)
    assert found.tobytes() == np.asarray(evaluate_module(after, x)[0]).tobytes()


@pytest.mark.parametrize(
    "function", [lambda x: lax.top_k(x, 2), lambda x: lax.top_k(x.astype(jnp.float64), 1), jnp.sort]
)
def test_other_selections_stay(function) -> None:
    with jax.enable_x64(True):
        lowered = jax.jit(function).lower(np.ones((4, 40), np.float32))
    module = optimize(import_stablehlo(lowered.compiler_ir("stablehlo")), "inline,canonicalize,dce")
    assert optimize(module, "top-one") is module


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.int32])
def test_on_every_engine(dtype) -> None:
    x = np.random.default_rng(4).choice([0.0, -0.0, 3.0, -2.0, np.inf, -np.inf, np.nan], (24, 40))
    x = jnp.nan_to_num(x).astype(dtype) if dtype == jnp.int32 else jnp.asarray(x, dtype)
    testing.check_engines(lambda x: lax.top_k(x, 1), TARGET, x)


def test_it_takes_less_than_half_of_what_merging_takes() -> None:
    """Beside the two greatest of each row, which a vertex selects."""
    one, two = (
        ipuxla.jit(lambda x, k=k: lax.top_k(x, k), target="gc200")
        .lower(jax.ShapeDtypeStruct((1024, 1000), jnp.float32))
        .compile()
        .cost_analysis()["cycles"]
        for k in (1, 2)
    )
    assert 2 * one < two
