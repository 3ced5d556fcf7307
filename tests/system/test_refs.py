"""Mutable arrays from outside (``jax.new_ref``): decorated functions read and write them as ``jax.jit`` does."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla.errors import Unsupported, WrongArguments

X = np.arange(3, dtype=np.float32)


def _argument(jit):
    def step(ref, x):
        ref[0] = 5.0
        ref[...] += x
        return x * 2

    jitted, ref = jit(step), jax.new_ref(jnp.ones(3))
    return jitted(ref, X), jitted(ref, X + 1), ref[...]


def _closed_over(jit):
    ref, scale = jax.new_ref(jnp.ones(3)), jax.new_ref(jnp.float32(2))
    jitted = jit(lambda x: ref.__setitem__((), ref[...] + x * scale[...]))
    return jitted(X), jitted(X), ref[...], scale[...]


def _several_in_a_tree(jit):
    def step(state, x):
        state["count"][...] += 1
        state["weights"][...] = state["weights"][...] @ x
        return {"steps": state["count"][...]}

    state = {"count": jax.new_ref(jnp.int32(0)), "weights": jax.new_ref(jnp.ones((2, 2)))}
    jitted = jit(step)
    results = jitted(state, jnp.full((2, 2), 2.0)), jitted(state, jnp.eye(2))
    return results, state["count"][...], state["weights"][...]


def _of_other_shapes(jit):
    jitted = jit(lambda ref: ref.addupdate(1.0, 1))
    short, long = jax.new_ref(jnp.ones(2)), jax.new_ref(jnp.ones(5))
    for ref in (short, long, short):
        jitted(ref)
    return short[...], long[...]


def _read_only(jit):
    ref = jax.new_ref(jnp.arange(4.0))
    return jit(lambda ref: (ref[1:], ref[...].sum()))(ref), ref[...]


def _in_a_loop(jit):
    def f(ref):
        def step(total, factor):
            ref[...] *= factor
            return total + ref[...].sum(), ref[0]

        return jax.lax.scan(step, 0.0, jnp.arange(1.0, 4.0))

    ref = jax.new_ref(jnp.ones(3))
    return jit(f)(ref), ref[...]


def _in_another_decorated_function(jit):
    inner = jit(lambda ref: ref.addupdate(2.0, 0))
    ref = jax.new_ref(jnp.ones(3))
    jit(lambda ref: (inner(ref), inner(ref)))(ref)
    return ref[...]


def _under_a_gradient(jit):
    def multiply(ref, x):
        ref[...] *= x
        return ref[...].sum()

    jitted = jit(multiply)

    def loss(x):
        ref = jax.new_ref(jnp.ones(3))
        jitted(ref, x)
        return jitted(ref, x)

    return jax.grad(loss)(X + 1)


def _under_vmap(jit):
    ref = jax.new_ref(jnp.ones((2, 3)))
    jax.vmap(jit(lambda ref, x: ref.__setitem__((), ref[...] + x)))(ref, np.ones((2, 3), np.float32))
    return ref[...]


def _of_keys(jit):
    def draw(ref):
        ref[...], key = jax.random.split(ref[...])
        return jax.random.uniform(key)

    jitted, ref = jit(draw), jax.new_ref(jax.random.key(0))
    return jitted(ref), jitted(ref), jax.random.key_data(ref[...])


def _of_64_bits(jit):
    ref = jax.new_ref(np.ones(3))
    jit(lambda ref: ref.__setitem__((), ref[...] / 3))(ref)
    return ref[...]


PROGRAMS = [
    _argument,
    _closed_over,
    _several_in_a_tree,
    _of_other_shapes,
    _read_only,
    _in_a_loop,
    _in_another_decorated_function,
    _under_a_gradient,
    _under_vmap,
    _of_keys,
    _of_64_bits,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("engine", ["fast", "literal"])
def test_refs_from_outside_are_read_and_written(program, engine, small_target):
    width = jax.enable_x64(True) if program is _of_64_bits else contextlib.nullcontext()
    with width:
        want = program(jax.jit)
        got = program(ipuxla.jit(target=small_target, engine=engine))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_refs_are_written_inside_an_outer_jit(small_target):
    jitted = ipuxla.jit(lambda ref: ref.__setitem__(0, ref[1] * 2), target=small_target)
    ref = jax.new_ref(jnp.ones(3))
    jax.jit(lambda ref: jax.lax.fori_loop(0, 3, lambda i, _: jitted(ref), None))(ref)
    np.testing.assert_array_equal(ref[...], [2, 1, 1])


def test_a_ref_of_integers_keeps_its_type_in_the_ring(small_target):
    ref = jax.new_ref(jnp.zeros(3, jnp.int32))
    jitted = ipuxla.jit(lambda ref: ref.__setitem__(1, ref[0] + 7), target=small_target, arithmetic="ring")
    jitted(ref)
    np.testing.assert_array_equal(ref[...], [0, 7, 0])
    with pytest.raises(Unsupported, match="a Ref of floats"):
        jitted(jax.new_ref(jnp.zeros(3)))


def test_a_compiled_program_takes_values_and_returns_last_values(small_target):
    def step(ref, x):
        ref[0] = x.sum()
        return x + 1

    lowered = ipuxla.jit(step, target=small_target).lower(jax.new_ref(jnp.ones(3)), X)
    compiled = lowered.compile()
    result, (last,) = compiled(jnp.ones(3), X)
    np.testing.assert_array_equal(result, X + 1)
    np.testing.assert_array_equal(last, [3, 1, 1])
    with pytest.raises(WrongArguments, match="is a Ref"):
        compiled(jax.new_ref(jnp.ones(3)), X)


def test_one_ref_in_two_places_is_a_named_error(small_target):
    ref, other = jax.new_ref(X), jax.new_ref(X)
    jitted = ipuxla.jit(lambda given: given.__setitem__((), ref[...] + 1), target=small_target)
    jitted(other)
    np.testing.assert_array_equal(other[...], X + 1)
    with pytest.raises(WrongArguments, match="closes over a Ref that it is given"):
        jitted(ref)
    with pytest.raises(WrongArguments, match="closes over 1 Refs"):
        jitted.lower(other)
    both = ipuxla.jit(lambda a, b: a[...] + b[...], target=small_target)
    both(ref, other)
    with pytest.raises(WrongArguments, match="one Ref twice"):
        both(ref, ref)
