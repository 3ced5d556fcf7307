"""StableHLO modules from any framework: arguments in order, a tuple of arrays back."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from hlo_passes.errors import HloError, MalformedStableHLO, UnsupportedOp
from ipuxla.errors import InvalidOption, WrongArguments
from tiles.numerics.tolerance import check_close

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
WIDE = """
func.func @main(%x: tensor<4xf64>, %i: tensor<4xi64>) -> (tensor<4xf64>, tensor<4xi64>) {
  %0 = stablehlo.multiply %x, %x : tensor<4xf64>
  %1 = stablehlo.add %i, %i : tensor<4xi64>
  return %0, %1 : tensor<4xf64>, tensor<4xi64>
}
"""


def layer(x, w):
    hidden = jax.nn.gelu(x @ w)
    return hidden, hidden.sum()


ARGUMENTS = (X, X.T)


@pytest.mark.parametrize("engine", ["fast", "literal", "vertex", "hlo"])
def test_text(small_target, engine):
    text = jax.jit(layer).lower(*ARGUMENTS).as_text()
    program = ipuxla.compile_stablehlo(text, small_target, engine=engine)
    result = program(*ARGUMENTS)
    assert isinstance(result, tuple)
    check_close(result, layer(*ARGUMENTS))


def test_bytes_of_an_exported_function(small_target):
    exported = jax.export.export(jax.jit(layer))(*ARGUMENTS)
    program = ipuxla.compile_stablehlo(exported.mlir_module_serialized, small_target)
    check_close(program(*ARGUMENTS), layer(*ARGUMENTS))
    assert "stablehlo.dot_general" in program.as_text("stablehlo")


def test_64_bit_types_keep_their_width_with_x64_off(small_target):
    x, i = np.linspace(0.1, 1.0, 4), np.arange(4) + 2**40
    squares, doubles = ipuxla.compile_stablehlo(WIDE, small_target)(x, i)
    assert (squares.dtype, doubles.dtype) == (np.float64, np.int64)
    np.testing.assert_allclose(squares, x * x, rtol=1e-15)
    np.testing.assert_array_equal(doubles, i + i)


def test_arguments_are_arrays_in_order(small_target):
    program = ipuxla.compile_stablehlo(jax.jit(layer).lower(*ARGUMENTS).as_text(), small_target)
    with pytest.raises(WrongArguments, match="2 arrays"):
        program(X)
    with pytest.raises(WrongArguments, match=r"argument 1 .*\n.*expected: float32\[4,3\]"):
        program(X, X)


def test_marks_of_donation_do_not_consume_the_callers_arrays(small_target):
    text = jax.jit(lambda s, x: (s + x, x), donate_argnums=0).lower(X, X).as_text()
    assert "tf.aliasing_output" in text
    state = X + 1
    check_close(ipuxla.compile_stablehlo(text, small_target)(state, X), (X + 1 + X, X))
    assert not state.is_deleted()


def test_programs_of_modules_are_saved_too(small_target, tmp_path):
    program = ipuxla.compile_stablehlo(WIDE, small_target)
    program.save(tmp_path / "program")
    x, i = np.linspace(0.1, 1.0, 4), np.arange(4)
    loaded = ipuxla.load(tmp_path / "program")
    jax.tree.map(np.testing.assert_array_equal, loaded(x, i), program(x, i))


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("not a module", MalformedStableHLO),
        (b"\x00\x01", MalformedStableHLO),
        (WIDE.replace("stablehlo.add", "stablehlo.cholesky"), HloError),
        (
            WIDE.replace("stablehlo.add %i, %i :", "stablehlo.custom_call @f(%i) : (tensor<4xi64>) ->"),
            UnsupportedOp,
        ),
        (WIDE.replace("f64", "tf32"), MalformedStableHLO),
    ],
)
def test_bad_modules_are_named(small_target, source, error):
    with pytest.raises(error):
        ipuxla.compile_stablehlo(source, small_target)


def test_bad_options_are_named():
    with pytest.raises(InvalidOption, match="fast, literal, vertex, tile, hlo"):
        ipuxla.compile_stablehlo(WIDE, engine="slow")
