"""Expressions with several results: one vertex computes them, and each may lie where an operand was."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

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


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_bits_as_elements_of_another_width_are_no_part_of_an_expression(shape, small_target):
    """A bit cast to narrower or wider elements has another shape than what it reads: nothing of one shape joins it."""

    def function(x):
        parts = lax.bitcast_convert_type(x, jnp.uint8)
        whole = lax.bitcast_convert_type(parts ^ jnp.uint8(1), jnp.float32)
        return jnp.abs(x), parts + parts, parts - jnp.uint8(3), whole + whole, whole * x

    check_engines(function, small_target, np.asarray(arrays(np.float32, *shape)[0], np.float32))
