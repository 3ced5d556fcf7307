"""Long slices of vectors at offsets known at run time are slices of rows, then of columns; short ones stay."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module, print_module
from hlo_passes.passes import DEFAULT_PIPELINE, optimize
from ipuxla.frontend.importer import import_stablehlo

LOW = "long-slices{least=4,least-work=0,least-replaced=0}"


def passed(function, pipeline, *arguments):
    module = import_stablehlo(jax.jit(function).lower(*arguments).compiler_ir("stablehlo"))
    return optimize(module, pipeline)


CASES = {
    "rows that fill both": ((96,), 0, 24, "int32", True),
    "a last row that is not full": ((96,), 0, 21, "int32", True),
    "all but one element": ((100,), 0, 99, "int32", False),
    "rows of a prime": ((3 * 31,), 0, 30, "uint32", True),
    "a prime": ((97,), 0, 20, "int32", False),
    "dimensions before and behind": ((2, 60, 3), 1, 14, "int8", True),
    "offsets below those of a long vector": ((300,), 0, 20, "uint8", False),
    "bytes up to the last offset": ((120,), 0, 25, "uint8", True),
}


@pytest.mark.parametrize("name", CASES)
def test_slices_in_two_steps_are_the_slice(name):
    """At every offset, those outside too: beside NumPy."""
    shape, d, taken, dtype, is_split = CASES[name]
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)

    def function(x, offset):
        starts = [jnp.zeros((), dtype)] * x.ndim
        starts[d] = offset
        sizes = (*shape[:d], taken, *shape[d + 1 :])
        return lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)

    module = passed(function, LOW, x, np.zeros((), dtype))
    assert ("divide" in print_module(module)) == is_split
    limits = np.iinfo(dtype)
    offsets = np.arange(max(limits.min, -9), min(limits.max, shape[d] + 9) + 1).astype(dtype)
    (found,) = jax.jit(jax.vmap(lambda offset: evaluate_module(module, x, offset)))(offsets)
    for offset, one in zip(offsets.tolist(), np.asarray(found), strict=True):
        first = min(max(offset, 0), shape[d] - taken)
        np.testing.assert_array_equal(one, x.take(range(first, first + taken), axis=d))


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][-1]])
def test_slices_are_replaced_in_two_steps(name):
    shape, d, taken, dtype, _ = CASES[name]
    sizes = (*shape[:d], taken, *shape[d + 1 :])
    x, update = (
        sign * np.arange(1, math.prod(of) + 1, dtype=np.float32).reshape(of)
        for sign, of in ((1, shape), (-1, sizes))
    )

    def function(x, update, offset):
        starts = [jnp.zeros((), dtype)] * x.ndim
        starts[d] = offset
        return lax.dynamic_update_slice(x, update, starts, allow_negative_indices=False)

    module = passed(function, LOW, x, update, np.zeros((), dtype))
    assert "divide" in print_module(module)
    limits = np.iinfo(dtype)
    offsets = np.arange(max(limits.min, -9), min(limits.max, shape[d] + 9) + 1).astype(dtype)
    (found,) = jax.jit(jax.vmap(lambda offset: evaluate_module(module, x, update, offset)))(offsets)
    for offset, one in zip(offsets.tolist(), np.asarray(found), strict=True):
        first = min(max(offset, 0), shape[d] - taken)
        want = np.moveaxis(x.copy(), d, 0)
        want[first : first + taken] = np.moveaxis(update, d, 0)
        np.testing.assert_array_equal(one, np.moveaxis(want, 0, d))


def test_a_loop_replaces_long_slices_of_a_vector():
    """A buffer of what was seen: beside ``jax.jit``, on engines with tile memory, in float and in the ring."""

    def filled(buffer, parts, places):
        def step(buffer, part):
            return lax.dynamic_update_slice(buffer, jnp.sin(part[0]), (part[1],)), buffer[5]

        return lax.scan(step, buffer, (parts, places))

    buffer, parts = np.arange(1 << 18, dtype=np.float32), np.ones((3, 1024), np.float32) * [[1], [2], [3]]
    arguments = buffer, parts.astype(np.float32), np.array([-7, 1000, 262_000], np.int32)
    before = ipuxla.jit(filled, target="gc200", passes=DEFAULT_PIPELINE.split(",integer-quotients")[0])
    assert "divide" in before.lower(*arguments).as_text("hlo-optimized")  # by the length of a row
    lowered = ipuxla.jit(filled, target="gc200").lower(*arguments)
    for value, want in zip(
        lowered.compile(engine="literal")(*arguments), jax.jit(filled)(*arguments), strict=True
    ):
        np.testing.assert_allclose(value, want, rtol=1e-5)
    rings = [lowered.compile(engine=engine, arithmetic="ring")(*arguments) for engine in ("hlo", "literal")]
    for one, other in zip(*rings, strict=True):
        np.testing.assert_array_equal(np.asarray(one).view(np.uint32), np.asarray(other).view(np.uint32))


@pytest.mark.parametrize("offset", [-5, 0, 777, 14_336, 40_000])
def test_a_flat_vector_s_part_costs_no_partial_results(offset):
    """What a replica updates of parameters that lie one behind the other: 8,753 cycles and 21,444 bytes of a tile before."""

    def part(x, start):
        return lax.dynamic_slice_in_dim(x, start, 2048)

    x = np.arange(1 << 16, dtype=np.float32)
    jitted = ipuxla.jit(part, target="gc200")
    compiled = jitted.lower(x, np.int32(offset)).compile(engine="literal")
    np.testing.assert_array_equal(compiled(x, np.int32(offset)), jax.jit(part)(x, offset))
    alone = ipuxla.jit(part, target="gc200", passes="").lower(x, np.int32(offset)).compile()
    assert compiled.memory_analysis()["peak_bytes"] < alone.memory_analysis()["peak_bytes"] / 2


@pytest.mark.parametrize(
    ("shape", "taken"),
    [((1 << 16,), 512), ((1 << 14,), 2048), ((1 << 12, 128), 1024), ((1 << 16,), 1 << 16), ((65_537,), 2048)],
    ids=["short", "little", "wide", "whole", "prime"],
)
def test_other_slices_stay(shape, taken):
    def part(x, start):
        return lax.dynamic_slice_in_dim(x, start, taken)

    module = passed(part, "long-slices", jax.ShapeDtypeStruct(shape, "float32"), np.int32(0))
    assert "divide" not in print_module(module)


@pytest.mark.parametrize(("axis", "most"), [(0, 23_000), (1, 20_000)])  # 30,551 and 26,742 in one step
def test_a_matrix_is_rolled_in_two_steps(axis, most, gc200):
    def rolled(x, shift):
        return jnp.roll(x, shift, axis)

    x = np.arange(1024 * 1024, dtype=np.int32).reshape(1024, 1024)
    lowered = ipuxla.jit(rolled, target=gc200).lower(x, np.int32(0))
    compiled = lowered.compile()
    assert compiled.cost_analysis()["cycles"] < most
    assert compiled.memory_analysis()["peak_bytes"] < 40_000  # 116,000 and 125,000 in one step
    compiled.certify()
    for shift in (0, 1, -33, 700, 3000):
        np.testing.assert_array_equal(compiled(x, np.int32(shift)), np.roll(x, shift, axis))
    literal = lowered.compile(engine="literal")
    np.testing.assert_array_equal(literal(x, np.int32(77)), np.roll(x, 77, axis))


def test_much_of_a_large_array_is_not_looked_up_where_it_lies(gc200):
    """300,031 cycles in one step and 156,028 in two, when arrays of more than 16 tiles' memory stayed where they lay."""

    def rolled(x, shift):
        return jnp.roll(x, shift, 1)

    def part(x, start):
        return lax.dynamic_slice_in_dim(x, start, 1024, 0)

    arguments = jax.ShapeDtypeStruct((2048, 2048), "float32"), np.int32(0)
    narrow = "inline,canonicalize,fold-constants,dce,fuse,dce"
    alone = ipuxla.jit(rolled, target=gc200, passes=narrow).lower(*arguments).compile()
    assert alone.cost_analysis()["cycles"] < 90_000
    for function, most in ((rolled, 45_000), (part, 33_000)):
        compiled = ipuxla.jit(function, target=gc200).lower(*arguments).compile()
        assert compiled.cost_analysis()["cycles"] < most
