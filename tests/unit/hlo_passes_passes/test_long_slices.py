"""Long slices of vectors at offsets known at run time are slices of rows, then of columns; short ones stay."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module, print_module
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo

LOW = "long-slices{least=4,least-work=0}"


def passed(function, pipeline, *arguments):
    module = import_stablehlo(jax.jit(function).lower(*arguments).compiler_ir("stablehlo"))
    return optimize(module, pipeline)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_slices_in_two_steps_are_the_slice(data):
    """Lengths that rows divide or not, offsets outside, dimensions before and behind, every type of offsets."""
    whole, taken = data.draw(st.integers(8, 120)), data.draw(st.integers(4, 60))
    taken = min(taken, whole - 1)
    before, behind = data.draw(st.sampled_from([(), (2,), (1, 3)])), data.draw(st.sampled_from([(), (3,)]))
    dtype = data.draw(st.sampled_from(["int32", "uint32", "int8", "uint8", "int16"]))
    x = np.arange(np.prod([*before, whole, *behind]), dtype=np.float32).reshape(*before, whole, *behind)
    offset = data.draw(st.sampled_from([0, 1, whole - taken - 1, whole - taken, whole - taken + 1, 127]))
    offset = np.asarray(max(0, data.draw(st.sampled_from([offset, data.draw(st.integers(0, 127))]))), dtype)

    def function(x, offset):
        starts = [jnp.zeros((), dtype)] * x.ndim
        starts[len(before)] = offset
        return lax.dynamic_slice(x, starts, (*before, taken, *behind), allow_negative_indices=False)

    module = passed(function, LOW, x, offset)
    assert ("divide" in print_module(module)) == any(
        whole % w == 0 and whole // w > -(-taken // w)
        for w in range(1, whole + 1)
        if taken**0.5 / 4 <= w <= taken**0.5 * 4
    )
    np.testing.assert_array_equal(evaluate_module(module, x, offset)[0], function(x, offset))


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
