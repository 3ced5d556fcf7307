"""Function to jaxpr to StableHLO: the user's lines, widths, donation, and named errors."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jaxlib.mlir import ir

from hlo_passes.ops import Constant
from ipuxla.errors import UnsupportedPrimitive
from ipuxla.frontend import _jax_compat as compat
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.frontend.lower import to_stablehlo, trace

X = jnp.arange(6.0).reshape(2, 3)


def traced(function, *args, **roles):
    leaves, tree = jax.tree.flatten((args, {}))
    return trace(jax.jit(function, **roles), leaves, lambda leaves: jax.tree.unflatten(tree, leaves))


def lines_of(function) -> range:
    lines, start = inspect.getsourcelines(function)
    return range(start, start + len(lines))


def model(params, x):
    hidden = jax.nn.gelu(x @ params["w"])
    return jax.nn.log_softmax(hidden), lax.stop_gradient(hidden)


PARAMS = {"w": jnp.ones((3, 4))}


def test_no_plugin_is_needed():
    noisy = lambda p, x: model(p, x)[0] + jax.random.normal(jax.random.key(0), (2, 4))  # noqa: E731
    text = compat.module_text(to_stablehlo(traced(noisy, PARAMS, X).jaxpr, "model"))
    assert "module @model" in text
    assert "stablehlo.dot_general" in text
    assert "custom_call" not in text


@pytest.mark.parametrize("function", [model, lambda p, x: jax.grad(lambda p: model(p, x)[0].sum())(p)])
def test_every_operation_has_a_line_of_the_user(function):
    module = import_stablehlo(to_stablehlo(traced(function, PARAMS, X).jaxpr, "f"))
    expected = {*lines_of(model), *lines_of(test_every_operation_has_a_line_of_the_user)}
    for instruction in module.walk():
        if instruction.op.name != "stablehlo.constant":
            assert instruction.location.file == __file__
            assert instruction.location.line in expected


def test_arguments_keep_their_names_and_unused_ones_their_place():
    found = traced(lambda params, unused, x: x @ params["w"], PARAMS, X, X)
    text = compat.module_text(to_stablehlo(found.jaxpr, "f"), debug_info=True)
    main = next(line for line in text.splitlines() if "@main" in line)
    assert main.count("tensor<2x3xf32>") == 2
    for name in ("params['w']", "unused", "x"):
        assert f'loc("{name}")' in text


def test_donated_arguments_are_marked():
    found = traced(lambda state, x: (x, state + x), X, X, donate_argnums=0)
    assert found.donated == (0,)
    assert import_stablehlo(to_stablehlo(found.jaxpr, "f", found.donated)).donated == (0,)


def test_donations_that_no_result_can_take_are_warned_of_as_jax_does():
    with pytest.warns(UserWarning, match=r"Some donated buffers were not usable: float32\[2,3\]"):
        found = traced(lambda a, b: a + b.sum(), X, X, donate_argnums=(0, 1))
    assert found.donated == (0,)


def outer_values(function, *args):
    return len(traced(function, *args).outer)


def test_outer_values_become_arguments():
    seen = []

    def outer(y):
        found = traced(lambda x: x * y, X)
        seen.append((len(found.outer), len(found.jaxpr.in_avals)))
        return y

    jax.grad(outer)(1.0)
    assert seen == [(1, 2)]
    assert outer_values(lambda x: x * X, X) == 0


@pytest.mark.parametrize(
    ("function", "argument", "dtypes"),
    [
        (lambda x: (x + 1, jnp.arange(3)), np.ones(3), ["float64", "int64"]),
        (lambda x: (jax.nn.logsumexp(x), jnp.argmax(x)), np.ones(3), ["float64", "int64"]),
        (lambda i: (jax.nn.one_hot(i, 3), i + 1), np.arange(3), ["float32", "int64"]),
        (lambda i: (i + 2**40, i), np.arange(3), ["int64", "int64"]),
        (lambda x: (x + 1, jnp.arange(3)), np.ones(3, np.float32), ["float32", "int32"]),
        (lambda x: (x + 1, jnp.arange(3)), 2.0, ["float32", "int32"]),
        (lambda x: (x + 1, x), np.float64(2), ["float64", "float64"]),
    ],
)
def test_64_bit_arguments_keep_their_width(function, argument, dtypes):
    assert not jax.config.read("jax_enable_x64")
    found = traced(function, argument)
    assert [str(aval.dtype) for aval in found.jaxpr.out_avals] == dtypes
    module = import_stablehlo(to_stablehlo(found.jaxpr, "f"))
    assert [str(type_.np_dtype) for type_ in module.entry_computation.result_types] == dtypes


def test_python_numbers_follow_the_users_setting():
    with jax.enable_x64(True):
        assert str(traced(lambda x: x * 2, 1.0).jaxpr.out_avals[0].dtype) == "float64"


def calls_a_debugger(x):
    jax.debug.callback(lambda v: None, x)
    return x


def calls_back(x):
    return jax.pure_callback(np.sin, x, x)


def uses_lapack(x):
    return jax.lax.linalg.schur(x @ x.T, sort_eig_vals=True)[0]


@pytest.mark.parametrize("function", [calls_a_debugger, calls_back, uses_lapack])
def test_what_an_ipu_cannot_do_is_named_with_the_users_line(function):
    with pytest.raises(UnsupportedPrimitive) as caught:
        to_stablehlo(traced(function, X).jaxpr, "f")
    file, _, line = str(caught.value.location).rpartition(":")
    assert file == __file__
    assert int(line) in lines_of(function)
    assert "try:" in str(caught.value)


def test_a_jaxpr_that_lowers_otherwise_is_untouched_by_the_checks():
    named = jax.vmap(lambda x: outer_values(lambda y: lax.psum(y, "i"), x) * x, axis_name="i")
    np.testing.assert_array_equal(named(X), 0 * X)


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_64_bit_shapes_keep_their_width(dtype):
    function = lambda x: (x + 1, jax.nn.one_hot(x.astype("int32"), 3))  # noqa: E731
    from_shape = traced(function, jax.ShapeDtypeStruct((3,), dtype)).jaxpr.out_avals
    assert from_shape[0].dtype == dtype
    assert from_shape == traced(function, np.zeros(3, dtype)).jaxpr.out_avals


def test_complex_constants_are_read_and_the_module_is_left_as_it_is():
    values = np.array([1 + 2j, -0.5j, np.inf - 1j], np.complex64)
    module = jax.jit(lambda x: (x * (1 - 3j) + values, x - values[0])).lower(values).compiler_ir("stablehlo")
    before = str(module)
    with module.context, ir.InsertionPoint(module.body):  # where what is made would be inserted
        imported = import_stablehlo(module)
    assert str(module) == before
    ops = [instruction.op for instruction in imported.entry_computation.instructions]
    found = {complex(x) for op in ops if isinstance(op, Constant) for x in np.ravel(op.value)}
    assert {1 - 3j, *map(complex, values)} <= found
