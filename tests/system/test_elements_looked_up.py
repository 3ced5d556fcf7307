"""An array of which single elements are looked up lies on many tiles, as everything else that reads it wants it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.testing import check_engines

WHOLE = ipuxla.Target.named("gc200")


def compiled(function, *shapes, dtype=jnp.float32):
    """Return a program of floats and one index."""
    arguments = [jax.ShapeDtypeStruct(shape, dtype if shape else jnp.int32) for shape in shapes]
    return ipuxla.jit(function, target=WHOLE).lower(*arguments).compile()


def cycles(function, *shapes) -> int:
    return compiled(function, *shapes).cost_analysis()["cycles"]


LOOPS = {
    "an element": (lambda x: lax.fori_loop(0, 100, lambda k, x: x.at[k, k].set(x[k, k] * 2), x), (512, 512)),
    "of a vector": (
        lambda x: lax.fori_loop(1, 100, lambda k, x: x.at[k].set(x[k - 1] + x[k]), x),
        (1_000_000,),
    ),
    "as slices": (
        lambda x: lax.fori_loop(
            0,
            100,
            lambda k, x: lax.dynamic_update_slice(x, lax.dynamic_slice(x, (k, k), (1, 1)) * 2, (k, k)),
            x,
        ),
        (1024, 1024),
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_over_elements_of_large_arrays_fit(name):
    """Arrays of one to four megabytes, of which the chip has 900, and loops hold two or three."""
    function, shape = LOOPS[name]
    assert compiled(function, shape).memory_analysis()["peak_bytes"] < 200_000


def test_loops_over_elements_are_right():
    target = ipuxla.Target.named("gc200").replace(num_tiles=4)
    x = np.random.default_rng(0).standard_normal((12, 12)).astype(np.float32)
    check_engines(lambda x: lax.fori_loop(0, 12, lambda k, x: x.at[k, k].set(x[k, k - 1] * 2), x), target, x)
    check_engines(lambda v, i: (v - v[i], v.sum()), target, x[0], np.int32(5))


@pytest.mark.parametrize(
    ("function", "shape", "alone"),
    [
        (lambda v, i: v - v[i], (1_000_000,), lambda v, i: v - v[0]),
        (lambda v, i: (v[i], v.sum()), (1_000_000,), lambda v, i: v.sum()),
        (lambda v, i: (v[i, i], v.max(1)), (1024, 1024), lambda v, i: v.max(1)),
        (lambda v, i: v * 2 + v[i, i], (4096, 4096), lambda v, i: v * 2 + v[0, 0]),
    ],
)
def test_what_else_reads_an_array_decides_where_it_lies(function, shape, alone):
    """The element costs a few thousand cycles beside; on as few tiles as the lookup alone wants it ten times as much."""
    assert cycles(function, shape, ()) < cycles(alone, shape, ()) + 5_000
