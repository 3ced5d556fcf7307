"""JAX's transformations of a decorated function give new programs for the emulated IPU."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.errors import HostEngineInsideJit, Unsupported
from ipuxla.frontend import primitive
from tiles.numerics.tolerance import check_close

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
PARAMS = {"w": jnp.linspace(-0.5, 1.0, 20).reshape(4, 5), "b": jnp.ones(5)}


@pytest.fixture
def jit(small_target) -> Callable:
    """The decorator for the small target."""
    return functools.partial(ipuxla.jit, target=small_target)


def loss(params, x):
    hidden = jax.nn.softmax(jnp.tanh(x @ params["w"] + params["b"]))
    return -jnp.log(hidden[..., 0]).mean()


def score(params, x):
    return (jnp.tanh(x @ params["w"] + params["b"]) ** 2).mean()


FIRST_ORDER = {
    "grad": lambda f: jax.grad(f),
    "value_and_grad": lambda f: jax.value_and_grad(f, argnums=(0, 1)),
    "jvp": lambda f: lambda p, x: jax.jvp(f, (p, x), (p, x)),
    "vmap": lambda f: jax.vmap(f, (None, 0)),
}
NESTED = {
    "grad of vmap": lambda f: jax.grad(lambda p, x: jax.vmap(f, (None, 0))(p, x).sum()),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f), (None, 0)),
    "grad of grad": lambda f: jax.grad(lambda p, x: jax.grad(f, argnums=1)(p, x).sum()),
    "hessian": lambda f: jax.hessian(f, argnums=1),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "checkpoint with a policy": lambda f: jax.grad(
        jax.checkpoint(f, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    ),
    "linearize": lambda f: lambda p, x: jax.linearize(f, p, x)[1](p, x),
    "vjp": lambda f: lambda p, x: jax.vjp(f, p, x)[1](jnp.float32(2.0)),
    "jit": jax.jit,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
}


@pytest.mark.parametrize("name", FIRST_ORDER)
@pytest.mark.parametrize("engine", ["fast", "literal", "hlo"])
def test_first_order(jit, engine, name):
    transform = FIRST_ORDER[name]
    check_close(transform(jit(loss, engine=engine))(PARAMS, X), transform(loss)(PARAMS, X))


@pytest.mark.parametrize("name", NESTED)
def test_nested(jit, name):
    transform = NESTED[name]
    check_close(transform(jit(score, engine="hlo"))(PARAMS, X), transform(score)(PARAMS, X))


def test_programs_are_compiled_once(jit, monkeypatch):
    compiled = []
    backend = primitive._backend
    monkeypatch.setattr(primitive, "_backend", lambda *args: compiled.append(args[2]) or backend(*args))
    cube = lambda w: (w**3).sum()  # noqa: E731
    cube.__name__ = "cube"
    f = jit(cube, engine="hlo")
    for n in range(3):
        jax.value_and_grad(lambda w, n=n: f(w + n))(X)
        f(X + n)
    assert compiled == ["known(jvp(cube))", "transpose(jvp(cube))", "cube"]


def test_inside_loops_and_branches(jit):
    cell = lambda carry, x: (jnp.tanh(carry * x), carry + x)  # noqa: E731
    f = jit(cell)
    carry = jnp.ones(4)
    check_close(lax.scan(f, carry, X), lax.scan(cell, carry, X))
    total = lambda f: lambda c, xs: lax.scan(f, c, xs)[0].sum()  # noqa: E731
    check_close(jax.grad(total(f), (0, 1))(carry, X), jax.grad(total(cell), (0, 1))(carry, X))
    check_close(lax.map(jit(jnp.sin), X), jnp.sin(X))
    check_close(lax.cond(X[0, 0] > 0, jit(jnp.sin), jit(jnp.cos), X), jnp.cos(X))


def test_inside_another_decorated_function(jit):
    inner = jit(lambda x: jnp.sin(x) * x)
    outer = jit(lambda x: inner(x).sum() * inner(x))
    plain = lambda x: (jnp.sin(x) * x).sum() * jnp.sin(x) * x  # noqa: E731
    check_close(outer(X), plain(X))
    check_close(jax.jacfwd(outer)(X), jax.jacfwd(plain)(X))
    check_close(jit(jax.grad(lambda x: inner(x).sum()))(X), jax.grad(lambda x: (jnp.sin(x) * x).sum())(X))
    assert outer.lower(X).as_text("program").count("copy") == 0


def test_custom_rules_are_used(jit):
    @jax.custom_vjp
    def clipped(x):
        return jnp.sin(x)

    clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (2 * g * jnp.cos(x),))
    f = lambda x: clipped(x).sum() + jax.nn.relu(x - 0.5).sum() + jax.nn.logsumexp(x)  # noqa: E731
    check_close(jax.grad(jit(f))(X), jax.grad(f)(X))
    check_close(jit(jax.grad(f))(X), jax.grad(f)(X))


def test_named_axes(jit):
    f = lambda x: x / lax.psum(x.sum(), "batch")  # noqa: E731
    total = lambda f: lambda x: jax.vmap(f, axis_name="batch")(x + 2)[0].sum()  # noqa: E731
    check_close(jax.vmap(jit(f), axis_name="batch")(X + 2), jax.vmap(f, axis_name="batch")(X + 2))
    check_close(jax.grad(total(jit(f)))(X), jax.grad(total(f))(X))


def test_abstract_uses(jit):
    f = jit(loss)
    assert jax.eval_shape(f, PARAMS, X) == jax.eval_shape(loss, PARAMS, X)
    text = str(jax.make_jaxpr(f)(PARAMS, X))
    assert "ipu_call" in text
    assert "options=CompileOptions('gc200*', 'fast', 'float')" in text


@pytest.mark.parametrize("engine", ["literal", "vertex"])
def test_engines_that_step_on_the_host_are_refused_inside_jit(jit, engine):
    f = jit(loss, engine=engine)
    for call in (jax.jit(f), lambda p, x: lax.map(lambda x: f(p, x), x[None])):
        with pytest.raises(HostEngineInsideJit) as caught:
            call(PARAMS, X)
        assert f'engine="{engine}"' in str(caught.value)
        assert "try:" in str(caught.value)


def test_ring_results_are_words_of_the_same_width(jit):
    f = lambda x: (x @ x.T, x.astype(jnp.bfloat16), jnp.argmax(x), x > 0)  # noqa: E731
    g = jit(f, arithmetic="ring", engine="hlo")
    got = g(X)
    assert [leaf.dtype for leaf in got] == [np.uint32, np.uint16, np.int32, bool]
    assert [leaf.dtype for leaf in jax.eval_shape(g, X)] == [leaf.dtype for leaf in got]
    check_close(jax.jit(g)(X), got)
    check_close(jax.tree.map(lambda leaf: leaf[0], jax.vmap(g)(X[None])), got)
    with pytest.raises(TypeError, match="real-valued outputs"):
        jax.grad(lambda x: g(x)[0][0, 0])(X)
    with pytest.raises(Unsupported, match="ring arithmetic"):
        jit(lambda x: g(x)[2])(X)


def test_words_of_the_ring_enter_the_next_program_of_a_transformation(jit):
    """The transpose of ``x @ w`` takes the ``w`` that a first program gave, as words."""
    w = PARAMS["w"]
    found = []
    for engine in ("hlo", "fast", "literal"):
        f = jit(lambda x: x @ w, arithmetic="ring", engine=engine)
        found.append(jax.linear_transpose(f, X)(jnp.ones((3, 5)))[0])
    hlo, *others = map(np.asarray, found)
    assert hlo.dtype == np.uint32
    for words in others:
        np.testing.assert_array_equal(words, hlo)


def test_operations_that_jax_replaces_by_others_before_it_lowers_them(jit):
    """From JAX 0.11 on ``jnp.nonzero`` of a stated size is one: a traced function may hold it, a lowered one may not."""
    f = lambda x: jnp.nonzero(jnp.cumsum(x) == 0, size=3, fill_value=-1)[0]  # noqa: E731
    x = jnp.array([1, -1, 2, -1, -1, 3], jnp.int32)
    np.testing.assert_array_equal(jit(f)(x), [1, 4, -1])
    np.testing.assert_array_equal(jax.vmap(jit(f))(x[None]), [[1, 4, -1]])
    np.testing.assert_array_equal(jax.jit(lambda x: jit(f)(x) + 1)(x), [2, 5, 0])
