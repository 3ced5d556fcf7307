"""The last elements of a sort, and their positions, are selected as the first are, with what a whole sort leaves there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module
from hlo_passes.ops import Sort, TopK
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo

SPECIAL = [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1.0, -1.0, 2.0]


def sorted_last(x, k):
    return jnp.sort(x, 1)[:, -k:]


FUNCTIONS = {
    "sorted": sorted_last,
    "one before the last": lambda x, k: jnp.sort(x, 1)[:, -k - 1 : -1],
    "the last": lambda x, k: jnp.sort(x, 1)[:, -1],
    "descending": lambda x, k: jnp.sort(x, 1, descending=True)[:, :k],
    "reversed": lambda x, k: jnp.sort(x, 1)[:, ::-1][:, :k],
    "positions": lambda x, k: jnp.argsort(x, 1)[:, -k:],
    "reversed positions": lambda x, k: jnp.argsort(x, 1)[:, ::-1][:, :k],
    "with positions": lambda x, k: tuple(
        y[:, -k:] for y in lax.sort((x, lax.broadcasted_iota(jnp.int32, x.shape, 1)), num_keys=1)
    ),
    "some of them": lambda x, k: (jnp.sort(x, 1)[:, -k::2], jnp.argsort(x, 1)[:, -k:]),
    "columns": lambda x, k: jnp.sort(x.T, 0)[-k:],
    "a median of few": lambda x, k: jnp.sort(x, 1)[:, x.shape[1] // 2 : x.shape[1] // 2 + 1],
}


def module_of(function, x):
    return optimize(
        import_stablehlo(jax.jit(function).lower(x).compiler_ir("stablehlo")), "inline,fix(canonicalize,dce)"
    )


@given(
    st.sampled_from(sorted(FUNCTIONS)),
    st.sampled_from([np.float32, np.float16, np.int32, np.int8, np.uint8]),
    st.integers(1, 6),
    st.data(),
)
def test_what_is_selected_is_what_a_sort_leaves(name, dtype, k, data) -> None:
    """Of equal elements, too, of both zeros and of NaNs."""
    numbers = st.sampled_from(SPECIAL) if np.dtype(dtype).kind == "f" else st.integers(0, 4)
    x = np.array(data.draw(st.lists(numbers, min_size=32, max_size=32)), dtype).reshape(2, 16)
    function = lambda x: FUNCTIONS[name](x, k)  # noqa: E731
    found = evaluate_module(module_of(function, x), x)
    for got, want in zip(found, jax.tree.leaves(jax.jit(function)(x)), strict=True):
        got, want = np.asarray(got), np.asarray(want)
        np.testing.assert_array_equal(got, want)
        if want.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "a median of few"])
def test_nothing_is_sorted_for_the_last_ones(name) -> None:
    module = module_of(lambda x: FUNCTIONS[name](x, 3), np.zeros((2, 16), np.float32))
    kinds = [type(i.op) for i in module.walk()]
    assert TopK in kinds and Sort not in kinds


def test_the_last_ones_cost_what_the_first_ones_do() -> None:
    x = jax.ShapeDtypeStruct((500, 2520), jnp.float32)
    first, last, positions = (
        ipuxla.jit(f, target="gc200").lower(x).compile().cost_analysis()["cycles"]
        for f in (
            lambda x: jnp.sort(x, 1)[:, :10],
            lambda x: sorted_last(x, 10),
            lambda x: jnp.argsort(x, 1)[:, ::-1][:, :10],
        )
    )
    assert last <= 1.1 * first
    assert positions <= 1.2 * first
