"""Windows of many rows at an offset known at run time, batches of a data set for instance, cost what looking the rows up does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla

TARGET = ipuxla.Target.named("gc200").replace(num_tiles=8)
CASES = {
    "batch of images": ((10_000, 784), 0, 128, jnp.float16),
    "batch of floats": ((4096, 1024), 0, 512, jnp.float32),
    "bytes": ((20_000, 784), 0, 128, jnp.uint8),
    "crop": ((256, 256, 64), 0, 224, jnp.float16),
    "middle axis": ((64, 4096, 32), 1, 128, jnp.float32),
}


def sliced(x, i, axis, count):
    return lax.dynamic_slice_in_dim(x, i, count, axis)


def looked_up(x, i, axis, count):
    rows = jnp.clip(i, 0, x.shape[axis] - count) + jnp.arange(count)
    return jnp.take(x, rows, axis=axis)


@pytest.mark.parametrize("name", CASES)
def test_a_window_costs_what_its_rows_cost(name) -> None:
    shape, axis, count, dtype = CASES[name]
    of = jax.ShapeDtypeStruct
    window, rows = (
        ipuxla.jit(lambda x, i, f=f: f(x, i, axis, count), target="gc200")
        .lower(of(shape, dtype), of((), jnp.int32))
        .compile()
        .cost_analysis()["cycles"]
        for f in (sliced, looked_up)
    )
    assert window <= 1.1 * rows


@pytest.mark.parametrize("engine", ["fast", "literal"])
@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.int16])
@pytest.mark.parametrize(("shape", "axis"), [((300, 80), 0), ((4, 200, 70), 1)], ids=str)
def test_windows_are_those_of_jax(shape, axis, kind, engine) -> None:
    """Also at offsets from which a window would not lie inside."""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    jitted = ipuxla.jit(lambda x, i: sliced(x, i, axis, 60), target=TARGET, engine=engine)
    limits = np.iinfo(kind)
    for i in (-5, 0, 7, shape[axis] - 60, shape[axis] - 1):
        if limits.min <= i <= limits.max:
            want = jax.jit(lambda x, i: sliced(x, i, axis, 60))(x, kind(i))
            np.testing.assert_array_equal(jitted(x, kind(i)), want)
