"""A decorated function equals ``jax.jit``: structures, static and donated arguments, methods, widths."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from tiles.numerics.tolerance import check_close

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
PARAMS = {"w": jnp.linspace(0.0, 1.0, 20).reshape(4, 5), "b": [jnp.ones(5)]}


@pytest.fixture
def jit(small_target) -> Callable:
    """The decorator for the small target."""
    return functools.partial(ipuxla.jit, target=small_target)


def check_same(got, want) -> None:
    """Values within tolerance; structure, shapes, dtypes and weak types equal."""
    check_close(got, want)
    kinds = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)  # noqa: E731
    assert kinds(got) == kinds(want)


def layer(params, x, scale=1.0):
    hidden = jnp.tanh(x @ params["w"] + params["b"][0])
    return {"hidden": hidden, "loss": (hidden * scale).sum(), "shape": (x.shape[0], None)}


@pytest.mark.parametrize("engine", ["fast", "literal", "vertex", "hlo"])
def test_pytrees_in_and_out(jit, engine):
    f = jit(layer, engine=engine)
    check_same(f(PARAMS, X), jax.jit(layer)(PARAMS, X))


def test_bare_decorator_and_decorator_with_arguments(small_target):
    @ipuxla.jit
    def double(x):
        """Double."""
        return x * 2

    @ipuxla.jit(target=small_target)
    def triple(x):
        return x * 3

    check_same(double(X), X * 2)
    check_same(triple(X), X * 3)
    assert (double.__name__, double.__doc__) == ("double", "Double.")
    assert double.options.target.num_tiles == 1472


def test_keyword_arguments(jit):
    f = jit(layer)
    for kwargs in ({"scale": 2.0}, {"scale": jnp.float32(2.0)}, {}):
        check_same(f(PARAMS, x=X, **kwargs), jax.jit(layer)(PARAMS, x=X, **kwargs))


def test_odd_results(jit):
    for function in (lambda x: x, lambda x: (), lambda x: (x, x, 2.0, 3), lambda x: x.shape[0]):
        check_same(jit(function)(X), jax.jit(function)(X))
    check_same(jit(lambda: jnp.ones(3))(), jnp.ones(3))


@pytest.mark.parametrize("scalar", [2, 2.0, True, np.float32(2), jnp.asarray(2.0), jnp.float32(2)])
def test_scalars_are_promoted_as_in_jax(jit, scalar):
    function = lambda x, n: (x * n, n * 2)  # noqa: E731
    for x in (X, X.astype(jnp.bfloat16)):
        check_same(jit(function, engine="hlo")(x, scalar), jax.jit(function)(x, scalar))


def test_static_arguments(jit):
    traces = []

    def power(x, n, *, sign="plus"):
        traces.append((n, sign))
        return x**n if sign == "plus" else -(x**n)

    f = jit(power, static_argnums=1, static_argnames=("sign",))
    for _ in range(2):
        check_same(f(X, 2), X**2)
        check_same(f(X, 3, sign="minus"), -(X**3))
    assert traces == [(2, "plus"), (3, "minus")]
    check_same(jax.grad(lambda x: f(x, 2).sum())(X), 2 * X)
    by_name = jit(power, static_argnames=("n", "sign"))
    check_same(by_name(X, 2), X**2)
    check_same(by_name(x=X, n=2), X**2)
    with pytest.raises(ValueError, match="Non-hashable static arguments"):
        f(X, [2])


def test_static_arguments_reach_the_function_untouched(jit):
    seen = []
    f = jit(lambda n, x, names: seen.append((n, names)) or x * n, static_argnums=(0, -1), engine="hlo")
    check_same(f(np.float64(2), X, ("a", ("b",))), X * np.float32(2))
    ((n, names),) = seen
    assert type(n) is np.float64
    assert names == ("a", ("b",))


def test_donated_arguments_are_consumed(jit):
    f = jit(lambda state, x: (state + x, x.sum()), donate_argnums=0)
    state = X + 1
    check_same(f(state, X), (X + 1 + X, X.sum()))
    assert state.is_deleted()
    assert not X.is_deleted()
    np_state = np.ones((3, 4), np.float32)
    check_same(f(np_state, X)[0], 1 + X)


@pytest.mark.parametrize("engine", ["fast", "literal", "hlo"])
def test_a_donated_argument_that_is_a_result_survives_as_the_result(jit, engine):
    state = X + 1
    result, _ = jit(lambda state, x: (state, x), donate_argnames="state", engine=engine)(state, X)
    check_same(result, X + 1)


def test_donation_is_not_for_derived_programs(jit):
    f = jit(lambda state: (state * state).sum() + state * 0, donate_argnums=0)
    state = X + 1
    check_same(
        jax.grad(lambda s: f(s).sum())(state), jax.grad(lambda s: ((s * s).sum() + s * 0).sum())(state)
    )
    assert not state.is_deleted()


def test_methods(jit):
    class Model:
        scale = 3.0

        @functools.partial(ipuxla.jit, static_argnums=0, engine="hlo")
        def apply(self, x):
            """Apply."""
            return x * self.scale

    model = Model()
    check_same(model.apply(X), X * 3.0)
    assert "multiply" in model.apply.lower(model, X).as_text("hlo")


def _gradients(parameters):
    return jax.grad(lambda p: jnp.sum(p["w"] ** 2), allow_int=True)(parameters)


def _same_float0(got, n):
    np.testing.assert_array_equal(got["w"], np.arange(float(n)) * 2)
    assert got["i"].dtype == jax.dtypes.float0 and got["i"].shape == (n, 2)


@pytest.mark.parametrize("engine", ["fast", "literal", "hlo"])
def test_derivatives_of_integers_are_float0(small_target, engine):
    parameters = {"w": jnp.arange(3.0), "i": jnp.ones((3, 2), jnp.int32)}
    jitted = ipuxla.jit(_gradients, target=small_target, engine=engine)
    _same_float0(jitted(parameters), 3)
    _same_float0(jitted.lower(parameters).compile()(parameters), 3)


def test_float0_goes_in_and_through_transformations_and_files(jit, small_target, tmp_path):
    parameters = {"w": jnp.arange(3.0), "i": jnp.ones((3, 2), jnp.int32)}
    jitted = ipuxla.jit(_gradients, target=small_target)
    given = jax.jit(_gradients)(parameters)
    passed = jit(lambda p: (p["w"], p))(given)[1]
    _same_float0(passed, 3)
    _same_float0(jax.jit(jitted)(parameters), 3)
    rows = {"w": parameters["w"][:, None], "i": parameters["i"][:, None]}
    assert jax.vmap(jitted)(rows)["i"].dtype == jax.dtypes.float0
    path = tmp_path / "program.ipuxla"
    jitted.lower(parameters).compile().save(path)
    _same_float0(ipuxla.load(path)(parameters), 3)


def test_random_keys_are_exact(jit):
    def draw(key, x):
        key, sub = jax.random.split(key)
        return key, jax.random.randint(sub, x.shape, 0, 100)

    f = jit(draw, engine="hlo")
    for key in (jax.random.key(3), jax.random.PRNGKey(3)):
        got, want = f(key, X), jax.jit(draw)(key, X)
        assert got[0].dtype == want[0].dtype
        check_close(got, want)


def test_closures_over_arrays_and_over_values_of_an_outer_transformation(jit):
    constant = np.arange(12, dtype=np.float32).reshape(3, 4)
    check_same(jit(lambda x: x + constant)(X), X + constant)

    def outer(y, decorate):
        f = decorate(lambda x: (x * y).sum())
        return f(X) + f(X)

    plain = lambda f: f  # noqa: E731
    check_same(jax.grad(outer)(2.0, jit), jax.grad(outer)(2.0, plain))
    check_same(
        jax.vmap(lambda y: outer(y, jit))(jnp.arange(3.0)),
        jax.vmap(lambda y: outer(y, plain))(jnp.arange(3.0)),
    )


def test_a_call_is_traced_once_per_types(jit):
    traces = []
    f = jit(lambda x: traces.append(x.shape) or x * 2, engine="hlo")
    for x in (X, X + 1, np.asarray(X), X[:2], X[:2] + 1, 1.0, 2.0):
        f(x)
    assert traces == [(3, 4), (2, 4), ()]


# ---- widths


WIDE = np.linspace(-1.0, 1.0, 6)
FUNCTIONS = {
    "scale": lambda x: x * 0.1 + 1,
    "logsumexp": jax.nn.logsumexp,
    "mean": lambda x: (x.mean(), x.astype("float32")),
    "norm": lambda x: x / jnp.sqrt((x**2).sum()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("make", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_64_bit_floats_keep_their_width_with_x64_off(jit, name, make):
    function = FUNCTIONS[name]
    with jax.enable_x64(True):
        argument = make(WIDE)
        want = jax.jit(function)(argument)
    got = jit(function, engine="hlo")(argument)
    assert jax.tree.map(lambda x: x.dtype, got) == jax.tree.map(lambda x: x.dtype, want)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6 if a.dtype == "float32" else 1e-13), got, want
    )


@pytest.mark.parametrize("engine", ["fast", "literal", "vertex"])
def test_64_bit_arithmetic_is_not_narrowed_on_tiles(jit, engine):
    function = lambda x, i: (x * 3 + 1, i * 3 + 1)  # noqa: E731
    x, i = WIDE, np.arange(6) + 2**40
    got = jit(function, engine=engine)(x, i)
    assert [leaf.dtype for leaf in got] == [np.float64, np.int64]
    np.testing.assert_allclose(got[0], x * 3 + 1, rtol=1e-15)
    np.testing.assert_array_equal(got[1], i * 3 + 1)


def test_64_bit_integers_leave_what_the_function_makes_at_32_bits(jit):
    f = jit(lambda i: (jax.nn.one_hot(i, 3), i * i), engine="hlo")
    hot, squares = f(np.asarray([0, 2, 2**31]))
    assert (hot.dtype, squares.dtype) == (np.float32, np.int64)
    np.testing.assert_array_equal(squares, [0, 4, 2**62])


def test_transformations_keep_64_bits_with_x64_off(jit):
    function = lambda x: (jnp.sin(x) ** 2).sum()  # noqa: E731
    with jax.enable_x64(True):
        x = jnp.asarray(WIDE)
        want = jax.grad(function)(x)
    f = jit(function, engine="hlo")
    for got in (jax.grad(f)(x), jax.jit(jax.grad(f))(x), jax.vmap(jax.grad(f))(x)):
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, want, rtol=1e-13)
    assert [leaf.dtype for leaf in jax.jvp(f, (x,), (x,))] == [np.float64, np.float64]


def test_32_bit_arguments_stay_32_bit_inside(jit):
    text = jit(lambda x: (x * 2 + jnp.arange(4), x.sum())).lower(X).as_text("hlo")
    assert "64" not in text
