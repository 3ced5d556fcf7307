"""``ipu_call_p`` with a backend that only interprets jaxprs: which programs each transformation makes."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ipuxla.frontend import _jax_compat as compat
from ipuxla.frontend import primitive


@dataclasses.dataclass(frozen=True)
class Options:
    arithmetic: str = "float"


@dataclasses.dataclass
class Interpreted:
    """A program that JAX itself evaluates, and how often it ran."""

    name: str
    jaxpr: object
    runs: int = 0

    def run(self, *leaves):
        self.runs += 1
        return compat.jaxpr_as_fun(self.jaxpr)(*leaves)

    def trace(self, *leaves):
        return compat.jaxpr_as_fun(self.jaxpr)(*leaves)


@pytest.fixture
def programs(monkeypatch) -> Iterator[list[Interpreted]]:
    """The programs compiled so far, in order."""
    made: list[Interpreted] = []

    def backend(jaxpr, options, name, donated, shardings):
        made.append(Interpreted(name, jaxpr))
        return made[-1]

    before = primitive._backend
    primitive.set_backend(backend)
    yield made
    if before is not None:
        primitive.set_backend(before)


X = jnp.linspace(0.1, 1.0, 6).reshape(2, 3)
W = jnp.linspace(-1.0, 1.0, 6).reshape(3, 2)


def layer(w, x):
    return jnp.tanh(x @ w).sum()


def on_ipu(function: Callable, *args) -> Callable:
    """The function as one call of the primitive, traced once."""
    jaxpr = jax.make_jaxpr(function)(*args)
    return lambda *leaves: primitive.ipu_call(jaxpr, Options(), "f", (), *leaves)[0]


def names(programs) -> list[str]:
    return [program.name for program in programs]


def test_a_call_is_one_program_compiled_once(programs):
    f = on_ipu(layer, W, X)
    for _ in range(3):
        np.testing.assert_allclose(f(W, X), layer(W, X), rtol=1e-6)
    assert names(programs) == ["f"]
    assert programs[0].runs == 3


def test_grad_runs_a_forward_and_a_backward_program(programs):
    f = on_ipu(layer, W, X)
    for _ in range(3):
        np.testing.assert_allclose(jax.grad(f)(W, X), jax.grad(layer)(W, X), rtol=1e-6)
    assert names(programs) == ["known(jvp(f))", "transpose(jvp(f))"]
    assert [program.runs for program in programs] == [3, 3]


def test_residuals_that_are_arguments_or_results_are_not_returned_twice(programs):
    f = on_ipu(layer, W, X)
    jax.grad(f, argnums=(0, 1))(W, X)
    forward = programs[0].jaxpr
    assert len({id(v) for v in forward.jaxpr.outvars}) == len(forward.jaxpr.outvars)
    assert not {id(v) for v in forward.jaxpr.outvars} & {id(v) for v in forward.jaxpr.invars}
    g = on_ipu(jnp.exp, X)  # the residual of exp is its result
    jax.vjp(g, X)
    assert [len(program.jaxpr.out_avals) for program in programs[-1:]] == [1]


def test_jvp_is_one_program(programs):
    f = on_ipu(layer, W, X)
    got = jax.jvp(f, (W, X), (W, X))
    np.testing.assert_allclose(got, jax.jvp(layer, (W, X), (W, X)), rtol=1e-6)
    assert names(programs) == ["jvp(f)"]


def test_vmap_is_one_program(programs):
    f = on_ipu(layer, W, X[0])
    got = jax.vmap(f, (None, 0))(W, X)
    np.testing.assert_allclose(got, jax.vmap(layer, (None, 0))(W, X), rtol=1e-6)
    assert names(programs) == ["vmap(f)"]


def test_results_without_a_batch_have_none(programs):
    jaxpr = jax.make_jaxpr(lambda w, x: (w * 2, x * 2))(W, X[0])
    f = lambda w, x: primitive.ipu_call(jaxpr, Options(), "f", (), w, x)  # noqa: E731
    jax.vmap(f, (None, 0), out_axes=[None, 0])(W, X)
    assert [aval.shape for aval in programs[0].jaxpr.out_avals] == [W.shape, X.shape]


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: jax.grad(jax.grad(lambda x: f(W, x * X))),
        lambda f: jax.jacfwd(jax.grad(lambda x: f(W, x * X))),
        lambda f: jax.vmap(jax.grad(lambda x: f(W, x * X))),
        lambda f: jax.jit(jax.grad(lambda x: f(W, x * X))),
        lambda f: jax.grad(jax.checkpoint(lambda x: f(W, x * X))),
        lambda f: jax.grad(
            jax.checkpoint(lambda x: f(W, x * X), policy=jax.checkpoint_policies.dots_saveable)
        ),
        lambda f: jax.jit(jax.grad(jax.checkpoint(lambda x: f(W, x * X) * 2))),
        lambda f: lambda x: jax.vjp(lambda x: f(W, x * X), x)[1](1.0),
        lambda f: lambda x: jax.linearize(lambda x: f(W, x * X), x)[1](2.0),
        lambda f: lambda x: jax.lax.scan(lambda c, y: (c * f(W, y), c), x, jnp.stack([X, X]))[0],
        lambda f: jax.grad(lambda x: jax.lax.scan(lambda c, y: (c * f(W, y), c), x, X[None])[0]),
        lambda f: lambda x: jax.lax.cond(x > 0, lambda: f(W, X), lambda: 0.0),
        lambda f: lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c * f(W, X), x),
    ],
)
def test_nested_transformations_agree_with_jax(programs, transform):
    argument = jnp.full((2,), 0.7) if "vmap" in str(transform.__code__.co_names) else 0.7
    got = transform(on_ipu(layer, W, X))(argument)
    want = transform(layer)(argument)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)
    assert programs


def test_nothing_is_called_for_what_needs_no_work(programs):
    f = on_ipu(lambda x, y: x, X, X)
    np.testing.assert_array_equal(jax.grad(lambda x: f(X, x).sum())(X), 0 * X)
    jax.jit(lambda x: (on_ipu(jnp.sin, X)(x), x)[1])(X)
    assert names(programs) == []


def test_unused_results_are_dropped(programs):
    jaxpr = jax.make_jaxpr(lambda x, y: (jnp.sin(x), jnp.cos(y)))(X, X)
    f = lambda x, y: primitive.ipu_call(jaxpr, Options(), "f", (), x, y)[0]  # noqa: E731
    outer = jax.make_jaxpr(f)(X, X)
    smaller, used = compat.dce_jaxpr(outer, (True,))
    assert used == [True, False]
    assert len(smaller.eqns[0].invars) == len(smaller.eqns[0].outvars) == 1


def test_weak_types_are_kept(programs):
    jaxpr = jax.make_jaxpr(lambda x: x * 2)(1.0)
    (result,) = primitive.ipu_call(jaxpr, Options(), "f", (), 1.0)
    assert result.weak_type


def test_ring_results_are_words_without_a_derivative(programs):
    jaxpr = jax.make_jaxpr(lambda x: (x.sum(), jnp.argmax(x)))(X)
    f = lambda x: primitive.ipu_call(jaxpr, Options("ring"), "f", (), x)  # noqa: E731
    assert [out.dtype for out in jax.eval_shape(f, X)] == [np.uint32, np.int32]
    with pytest.raises(TypeError, match="real-valued outputs"):
        jax.eval_shape(jax.grad(lambda x: f(x)[0]), X)


def test_jaxprs_and_their_programs_are_freed(programs):
    other = jax.make_jaxpr(lambda x: x.sum())(X)
    primitive.set_backend(lambda *_: Interpreted("sum", other))
    on_ipu(jnp.sum, X)(X)
    assert len(primitive._programs) == 1
    jax.clear_caches()
    gc.collect()
    assert len(primitive._programs) == 0
