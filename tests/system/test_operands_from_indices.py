"""Programs that compute from nothing but indices and constants (no operand says types), and unusual prologues."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import ipuxla
from ipuxla import testing

N = 1500  # more elements than are folded when the program is compiled
TARGET = ipuxla.Target.named("gc200").replace(num_tiles=8)


def ints():
    return jnp.arange(N)


def floats():
    return jnp.sin(jnp.arange(N) * 0.1)


def folds():
    return (
        jnp.sum(jnp.where(ints() < 30, floats(), 2.0)),
        jnp.max(ints() % 77),
        jnp.any(ints() == 77),
        jnp.all(floats() < 2.0),
        jnp.prod(1 + floats() * 1e-3),
        lax.reduce_xor(ints() % 5, (0,)),
        jnp.max(jnp.where(jnp.arange(1600).reshape(40, 40) % 3 == 0, 1.0, 0.0), 1),
        jnp.sum(floats().astype(jnp.bfloat16) * 2),
        jnp.sum(ints() % 2 == 0),
    )


def readers():
    return (
        jnp.argmin(ints() % 77),
        floats() @ jnp.cos(ints() * 0.2),
        jnp.cumsum(floats()),
        lax.top_k(floats(), 3),
        jax.ops.segment_sum(floats(), ints() % 13, 13),
        lax.cond(jnp.sum(ints()) > 3, floats, lambda: -floats()),
    )


@pytest.mark.parametrize("program", [folds, readers])
def test_on_every_engine(program):
    testing.check_engines(program, TARGET, engines=("fast", "literal"))


@pytest.mark.parametrize("axis", [0, 1])
def test_folds_of_what_takes_a_loop_for_every_element(axis):
    def f(x):
        return jnp.max(jnp.where(x % 3 == 0, 1.0, 0.5), axis)

    x = jnp.arange(-800, 800).reshape(40, 40)
    program = ipuxla.jit(f, target=TARGET).lower(x).compile()
    testing.check_close(program(x), f(x))
    program.certify()
