"""Expressions with several results: one vertex computes them, and each may lie where an operand was."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla.testing import check_engines
from tiles.compiler import certify
from tiles.poplibs.popops.map import Map

RNG = np.random.default_rng(0)


def arrays(dtype, *shape):
    return [(4 * RNG.standard_normal(shape)).astype(dtype) for _ in range(3)]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
@pytest.mark.parametrize("shape", [(9, 35), (70,)])
def test_an_update_is_one_vertex_in_place(dtype, shape, small_target):
    def update(p, m, g):
        m = m * dtype(3) + g
        return p - m, m

    given = arrays(dtype, *shape)
    check_engines(update, small_target, *given)
    donating = ipuxla.jit(update, target=small_target, donate_argnums=(0, 1))
    executable = donating.lower(*given).compile().executable
    certify(executable)
    (group,) = [group for _, group in executable.groups() if isinstance(group.codelet, Map)]
    storages = {executable.variables[name].storage for name in group.results}
    assert len(storages) == 2
    assert storages <= {executable.variables[o.variable].storage for o in group.operands}


def test_results_of_several_types(small_target):
    def function(x, y):
        is_greater = x > y
        return is_greater, jnp.where(is_greater, x, y).astype(jnp.float16), x + y

    compiled = check_engines(function, small_target, *arrays(np.float32, 8, 33)[:2])
    ((_, group),) = compiled.executable.groups()
    assert len(group.results) == 3


def test_what_a_loop_carries(small_target):
    def rolled(p, m, g):
        def body(_, state):
            p, m = state
            m = 0.5 * m + g
            return p - 0.25 * m, m

        return jax.lax.fori_loop(0, 5, body, (p, m))

    check_engines(rolled, small_target, *arrays(np.float32, 16, 24))


def test_a_result_that_nobody_reads_lies_apart_from_those_that_are(small_target):
    """What argmax compares is dead once it is found, as is the operand in whose place the index lies."""
    check_engines(jnp.argmax, small_target, np.array([1, 5, np.nan, 2], np.float32))
