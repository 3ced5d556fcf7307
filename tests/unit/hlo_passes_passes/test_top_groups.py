"""The first few of many elements are found in groups with the bits and places that a sort gives, whatever the elements."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import Builder, Module, TensorType, evaluate_module
from hlo_passes.ops import TopK
from hlo_passes.passes import optimize
from hlo_passes.passes.pipeline import DEFAULT_PIPELINE
from hlo_passes.passes.top_groups import group_size
from ipuxla.frontend.importer import import_stablehlo
from tests.budgets import PLAN, budget
from tests.comparison import assert_same_bits

WORDS = {
    "f16": np.uint16,
    "bf16": np.uint16,
    "f32": np.uint32,
    "i8": np.uint8,
    "ui16": np.uint16,
    "i32": np.uint32,
}
COMMON = (
    *(0x0, 0x1, 0x7F, 0x80, 0xFF, 0x3C00, 0x7C00, 0xFC00, 0x7C01, 0xFE00, 0x8000, 0x7FC1, 0xFFC1),
    *(0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00000, 0xFFC00000, 0x80000000, 0x3F800000, 0x7FFFFFFF),
)
"""Words that are, of one type or another, zeros, ones, infinities, NaNs of both signs, or the greatest."""
QUIET = {"f16": (0x7C00, 0x200), "bf16": (0x7F80, 0x40)}
"""Bits of exponents, and that of numbers that are none and quiet."""
SMALL = "top-groups{many=1,many-single=1,many-rows=1,share=1}"
TARGET = ipuxla.Target.named("gc200").replace(num_tiles=8)


@budget(PLAN)
@given(
    st.sampled_from(sorted(WORDS)),
    st.integers(9, 70),
    st.integers(1, 9),
    st.integers(0, 2),
    st.tuples(st.booleans(), st.booleans()),
    st.integers(0, 2**32 - 1),
)
def test_any_bits_give_what_a_sort_gives(
    dtype: str, n: int, k: int, dimension: int, order: tuple[bool, bool], seed: int
) -> None:
    shape = tuple(n if axis == dimension else rows for axis, rows in enumerate((2, 3, 1)))
    rng = np.random.default_rng(seed)
    few = rng.choice(COMMON, 1 + seed % 5)  # the fewer there are, the more are equal
    words = rng.choice(few, shape).astype(np.uint64) if seed % 3 else rng.integers(0, 2**32, shape)
    type_ = TensorType(shape, dtype)
    words = words.astype(WORDS[dtype])
    if dtype in QUIET:  # XLA:CPU moves signalling NaNs of 16 bits as quiet ones
        exponent, quiet = QUIET[dtype]
        words |= np.where((words & exponent == exponent) & (words & (quiet * 2 - 1) != 0), quiet, 0).astype(
            words.dtype
        )
    x = words.view(type_.np_dtype)
    builder = Builder("main")
    results = builder.emit(TopK(k, dimension, *order), builder.parameter(type_))
    module = Module("m", (builder.build(*results),), "main")
    after = optimize(module, SMALL)
    size = group_size(n, k)
    assert (after is not module) == (n // size + k * size + n % size <= n)
    for want, got in zip(evaluate_module(module, x), evaluate_module(after, x), strict=True):
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


def _after(function, *shapes, passes="inline,canonicalize,dce"):
    lowered = jax.jit(function).lower(*(jax.ShapeDtypeStruct(*shape) for shape in shapes))
    module = optimize(import_stablehlo(lowered.compiler_ir("stablehlo")), passes)
    return module, optimize(module, "top-groups")


@pytest.mark.parametrize(
    ("shape", "k"),
    [((4096, 64), 8), ((64, 65536), 4), ((256, 1024), 4), ((4096, 256), 1), ((1, 1_000_000), 10)],
    ids=["many of a row", "few rows", "few elements", "the first of few", "one row"],
)
def test_other_selections_stay(shape, k) -> None:
    module, after = _after(lambda x: lax.top_k(x, k), (shape, jnp.float32))
    assert after is module


def test_elements_without_an_order_of_words_stay() -> None:
    with jax.enable_x64(True):
        module, after = _after(lambda x: lax.top_k(x, 8), ((1024, 4096), jnp.float64))
    assert after is module


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.top_k(x, 3),
        lambda x: lax.top_k(-x, 3)[1],
        lambda x: jnp.argsort(x)[:, :3],
        lambda x: jnp.sort(x)[:, :2],
        lambda x: lax.top_k(x.T, 2),
    ],
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
@pytest.mark.parametrize("engine", ["fast", "literal"])
def test_on_engines(function, dtype, engine) -> None:
    x = np.random.default_rng(4).choice([0.0, -0.0, 3.0, -2.0, np.inf, -np.inf, 1.5], (48, 48))
    x = jnp.asarray(x, dtype)
    passes = DEFAULT_PIPELINE.replace("top-groups", SMALL)
    lowered = ipuxla.jit(function, target=TARGET, passes=passes).lower(x)
    assert lowered.as_text("hlo-optimized").count("hlo.top_k") >= 2
    compiled = lowered.compile(engine=engine)
    compiled.certify()
    assert_same_bits(jax.tree.leaves(compiled(x)), jax.tree.leaves(jax.jit(function)(x)))


def test_it_takes_less_than_half_of_what_sorting_all_takes() -> None:
    function, x = lambda x: lax.top_k(x, 16), jax.ShapeDtypeStruct((4096, 4096), jnp.float16)
    new, old = (
        ipuxla.jit(function, target="gc200", passes=passes).lower(x).compile().cost_analysis()["cycles"]
        for passes in (DEFAULT_PIPELINE, DEFAULT_PIPELINE.replace("top-groups,", ""))
    )
    assert 2 * new < old
