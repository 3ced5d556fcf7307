"""Expressions over neighbours: shifted readings of one tensor become one operand with its halo, on every engine."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla import testing
from tiles.graph import Affine, Dim, IndexMap, OpForm, along, identity_map
from tiles.poplibs.popops.map import Map
from tiles.poplibs.popops.stencil import REACH, merged, single_form
from tiles.target import Target

SUM = Map((("add", (0, 1), ()),), (2,), ("float32", "float32"), ("float32",))


def _shifted(offsets: tuple[int, ...], size: int = 10) -> OpForm:
    maps = tuple(IndexMap((along(0, 1, offset),)) for offset in offsets)
    return OpForm((Dim("x", size),), maps, (identity_map(1),))


def _laplace(x: jax.Array) -> jax.Array:
    p = jnp.pad(x, ((1, 1), (1, 1)))
    return p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * x


def _differences(x: jax.Array) -> jax.Array:
    return (x[2:] - x[:-2]) * x[1:-1]


@pytest.mark.parametrize("function", [_laplace, _differences])
@pytest.mark.parametrize("tiles", [1, 7])
def test_engines_agree_on_neighbours(function, tiles):
    x = np.linspace(-2, 3, 9 * 11, dtype=np.float32).reshape(9, 11)
    compiled = testing.check_engines(function, Target.named("gc2").replace(num_tiles=tiles), x)
    assert "w0!:" in compiled.as_text("graph")


def test_a_halo_is_received_once():
    """A block's neighbours lie in its rim: bytes are those of rims, not of every shift."""
    x = jax.ShapeDtypeStruct((120, 120), "float32")
    cost = (
        ipuxla.jit(_laplace, target=Target.named("gc2").replace(num_tiles=36))
        .lower(x)
        .compile()
        .cost_analysis()
    )
    assert cost["exchange_bytes"] < 6 * 120 * 120 * 4 / 2


def test_readings_far_apart_strided_or_of_other_tensors_stay_operands_of_their_own():
    assert merged(_shifted((0, REACH)), ["a", "a"], SUM) is None
    assert merged(_shifted((0, 1)), ["a", "b"], SUM) is None
    strided = OpForm(
        (Dim("x", 5),), tuple(IndexMap((along(0, 2, offset),)) for offset in (0, 1)), (identity_map(1),)
    )
    assert merged(strided, ["a", "a"], SUM) is None


def test_the_single_form_is_what_was_merged():
    form = _shifted((3, 1))
    found = merged(form, ["a", "a"], SUM)
    assert found is not None
    joined, kept, codelet = found
    assert kept == [0] and joined.operands == (IndexMap((Affine(((0, 1), (1, 1)), 1),)),)
    assert codelet.taps == ((0, (2,)), (0, (0,))) and joined.dims[1].size == 3
    assert single_form(joined, codelet.taps) == form


def test_code_for_vectors_that_a_machine_lacks_prices_nothing():
    """A machine of single floats takes longer for a fused expression than one of pairs, whose code it cannot run."""
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    pairs = Target.named("gc2").replace(num_tiles=1)
    costs = [
        ipuxla.jit(_laplace, target=target).lower(x).compile().cost_analysis()["compute_cycles"]
        for target in (pairs, pairs.replace(float_vector_width=1))
    ]
    assert costs[1] > 1.2 * costs[0]
