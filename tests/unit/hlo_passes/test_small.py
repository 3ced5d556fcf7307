"""Evaluation by numpy says what JAX says, to the bit, or nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_passes.passes.small import evaluated_exactly

WORDS = [0, 1, 2, 5, 7, 127, 128, 255, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1]
DTYPES = ("int8", "uint32", "bool")
BINARY = [lax.add, lax.sub, lax.mul, lax.max, lax.min, lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor]
COMPARE = [lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge]


def pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of words, and of their negatives, as two arrays."""
    words = np.array([*WORDS, *(-np.array(WORDS))], np.int64).astype(dtype)
    return tuple(np.stack(np.meshgrid(words, words)).reshape(2, -1))  # pyright: ignore[reportReturnType]


def agree(function, *operands: np.ndarray) -> None:
    """Assert that numpy computes what JAX does, in the same type."""
    with jax.enable_x64(True):
        found = evaluated_exactly(lambda *arrays: (function(*arrays),), *operands)
        expected = np.asarray(function(*map(jnp.asarray, operands)))
    assert found is not None
    assert found[0].dtype == expected.dtype
    np.testing.assert_array_equal(found[0], expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_integers(dtype: str) -> None:
    lhs, rhs = pairs(dtype)
    for function in (*COMPARE, *(BINARY[3:] if dtype == "bool" else BINARY)):
        agree(function, lhs, rhs)
    agree(lax.bitwise_not, lhs)
    agree(lambda x, y: lax.select(lax.lt(x, y), x, y), lhs, rhs)
    for other in DTYPES:
        agree(lambda x, other=other: lax.convert_element_type(x, other), lhs)
    if dtype != "bool":
        agree(lax.rem, lhs, (rhs.astype(np.int8) % 60 + 1).astype(dtype))
        agree(jnp.where, lhs > rhs, lhs, rhs)
    if dtype.startswith("int"):
        agree(lax.neg, lhs)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16", "int32", "complex64"])
def test_movement(dtype: str) -> None:
    given = np.array([[0.0, -0.0, 1.5], [-2.5, 3, 1e4]]).astype(jnp.dtype(dtype))
    agree(lambda x: lax.reshape(x, (3, 2)), given)
    agree(lambda x: lax.broadcast_in_dim(x, (4, 2, 1, 3), (1, 3)), given)
    agree(lambda x: lax.transpose(x, (1, 0)), given)
    agree(lambda x: lax.squeeze(lax.reshape(x, (1, 6, 1)), (0, 2)), given)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8"])
def test_conversions_of_numbers_that_both_types_have(dtype: str) -> None:
    given = np.array([0, 1, 2, 5, 100, 127]).astype(dtype)
    for other in ("float16", "float32", "float64", "int8", "uint32", "int64"):
        agree(lambda x, other=other: lax.convert_element_type(x, other), given)
    agree(lambda x: lax.convert_element_type(x, dtype), np.array([True, False]))


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_conversions_to_the_8_bit_float_that_numpy_takes_for_a_float(dtype: str) -> None:
    agree(lambda x: lax.convert_element_type(x, "float8_e5m2"), np.array([-1, 0, 2, 5]).astype(dtype))
    agree(lambda x: lax.convert_element_type(x, dtype), np.array([-1, 0, 2, 5]).astype("float8_e5m2"))


def test_signs() -> None:
    given = np.array([0.0, -0.0, 1.5, -2.5, np.inf], np.float32)
    agree(lax.neg, given)
    found = evaluated_exactly(lambda x: (lax.neg(x),), given)
    assert found is not None
    assert np.signbit(found[0]).tolist() == [True, False, True, False, True]
    for dtype in ("int8", "int64", "uint32"):
        agree(lax.sign, np.array([0, 1, 100, -7]).astype(dtype))


def test_what_is_not_exact_is_left_to_jax() -> None:
    floats, ints = np.array([1.5, 2.0], np.float32), np.array([3, 0], np.int32)
    for function, *operands in (
        (lax.add, floats, floats),
        (lax.lt, floats, floats),
        (lax.rem, ints, ints),  # by zero
        (lax.div, ints, ints),
        (lambda x: lax.convert_element_type(x, "float16"), np.array([70_001, 2049], np.int32)),
        (lambda x: lax.convert_element_type(x, "float16"), np.array([1e-6, 1.0], np.float32)),  # a subnormal
        (lambda x: lax.convert_element_type(x, "float16"), np.array([np.nan, np.inf], np.float32)),
        (lambda x: lax.convert_element_type(x, "bfloat16"), floats),
        (lambda x: lax.convert_element_type(x, "int32"), floats),
        (lambda x: lax.reshape(x, (2,), dimensions=(1, 0)), ints.reshape(1, 2)),
    ):
        assert evaluated_exactly(lambda *arrays, f=function: (f(*arrays),), *operands) is None
