"""Reductions to several results: counters are never in memory, partials are combined in stages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from tests.engines import check_engines

VALUES = jax.random.normal(jax.random.key(0), (6, 300))


def _steps(compiled):
    return [step.name for step in compiled.executable.steps]


@pytest.mark.parametrize("axis", [0, 1, None])
def test_argmax_counts_where_it_folds(axis, small_target):
    values = VALUES.at[2, 7].set(jnp.nan).at[3, 5:9].set(9.0)
    compiled = check_engines(lambda x: jnp.argmax(x, axis=axis), small_target, values)
    assert not any("iota" in name for name in _steps(compiled))


def test_a_counter_that_others_read_is_in_memory_for_them(small_target):
    def function(x):
        count = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
        return jnp.argmax(x, axis=1), jax.lax.cumsum(count, axis=1)

    check_engines(function, small_target, VALUES[:2, :20], engines=("fast", "literal"))


def test_argmax_of_a_million_takes_few_cycles_an_element(gc200):
    x = jax.ShapeDtypeStruct((1_000_000,), np.float32)
    compiled = ipuxla.jit(jnp.argmax, target=gc200).lower(x).compile()
    assert compiled.cost_analysis()["cycles"] < 60 * 1_000_000 / gc200.num_tiles
    assert sum("combine" in name for name in _steps(compiled)) >= 2
