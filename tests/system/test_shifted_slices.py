"""Many shifted slices of one array: neighbourhoods, cost volumes, unfolded windows as they are written in Python loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla import testing


def _cycles(function, *args) -> int:
    return ipuxla.jit(function, target="gc200").lower(*args).compile().cost_analysis()["cycles"]


def _half(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float16)


def _stacked(z, count, rows):
    return jnp.stack([z[i : i + rows] for i in range(count)], 1)


def _unfolded(x, count, size=56):
    windows = [x[:, i : i + size, j : j + size] for i in range(7) for j in range(7)]
    return jnp.stack(windows[:count], 3)


def _cost_volume(f, g, reach=4):
    height, width, _ = f.shape
    padded = jnp.pad(g, ((reach, reach), (reach, reach), (0, 0)))
    shifts = range(2 * reach + 1)
    return jnp.stack(
        [(f * padded[i : i + height, j : j + width]).mean(-1) for i in shifts for j in shifts], -1
    )


def test_slices_of_an_argument_take_as_long_as_of_what_was_computed() -> None:
    """It lay on the tiles of one of the slices, which sent all of it to each of the others."""
    z = _half(1088, 768)
    argument = _cycles(lambda z: _stacked(z, 48, 1024), z)
    assert argument < 1.3 * _cycles(lambda z: _stacked(z * 2, 48, 1024), z)


def test_however_many_there_are_they_are_in_one_superstep() -> None:
    """From some 36 slices on each one was a superstep of its own, as long as the others together."""
    x = _half(4, 62, 62, 64)
    assert _cycles(lambda x: _unfolded(x * 2, 49), x) < 1.6 * _cycles(lambda x: _unfolded(x * 2, 35), x)


def test_a_cost_volume() -> None:
    """81 shifts of 64 x 112 x 32, for which they took 882,179 cycles: the sums alone are some 14,000 on all tiles."""
    assert _cycles(_cost_volume, _half(64, 112, 32), _half(64, 112, 32)) < 60_000


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda z: _stacked(z, 5, 12), [(16, 6)]),
        (lambda z: _unfolded(z, 9, 3), [(1, 9, 9, 2)]),
        (lambda f, g: _cost_volume(f, g, 1), [(5, 6, 4), (5, 6, 4)]),
        (lambda x, w: [x @ w[h] for h in range(4)], [(6, 8), (4, 8, 5)]),
    ],
)
def test_on_every_engine(function, shapes) -> None:
    rng = np.random.default_rng(8)
    args = [rng.standard_normal(shape, np.float32) for shape in shapes]
    testing.check_engines(function, ipuxla.Target.named("gc200").replace(num_tiles=24), *args)
