"""Products of widened operands are products of what they are widened from, where that gives the same; others stay."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module
from hlo_passes.ops import Convolution, DotGeneral
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from tests.budgets import PLAN, budget

PIPELINE = "inline,narrow-products,dce"
X = np.random.default_rng(0)


def narrowed(function, *arguments):
    """Return the module of a function after the pass."""
    module = import_stablehlo(jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir("stablehlo"))
    return optimize(module, PIPELINE)


def multiplied(module) -> list[str]:
    """Return the element types of products' operands."""
    found: list[str] = []
    for instruction in (i for computation in module.computations for i in computation.instructions):
        if isinstance(instruction.op, (DotGeneral, Convolution)):
            found += [x.type.dtype for x in instruction.operands]
    return found


def values(dtype, *shape):
    dtype = jnp.dtype(dtype)
    if dtype.kind == "b":
        return X.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return X.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return X.standard_normal(shape).astype(dtype)


MOVED = {
    "as it is": (lambda x: x, (8, 12)),
    "transposed": (lambda x: x.T, (12, 8)),
    "reshaped": (lambda x: x.reshape(8, 12), (4, 24)),
    "a part": (lambda x: x[1:9, ::2], (10, 24)),
    "reversed": (lambda x: x[:, ::-1], (8, 12)),
    "repeated": (lambda x: jnp.broadcast_to(x, (8, 12)), (12,)),
    "several": (lambda x: x[:8].reshape(12, 8).T, (9, 12)),
}
TYPES = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int16", "bool")
BYTES, HALVES = {"int8", "uint8", "bool"}, {"float16", "float8_e4m3fn", "float8_e5m2"}


def is_narrowed(lhs: str, rhs: str, wide: str) -> bool:
    """Whether both operands have a common type that is narrower and multiplies to the same, as the specification of types says."""
    if wide == "float32":
        return {lhs, rhs} <= BYTES | HALVES or lhs == rhs == "bfloat16"
    return {lhs, rhs} <= BYTES and not {"int8", "uint8"} <= {lhs, rhs}


@given(
    st.sampled_from(TYPES),
    st.sampled_from(TYPES),
    st.sampled_from(["float32", "int32", "uint32", "int16"]),
    st.data(),
)
@budget(PLAN)
def test_products(lhs, rhs, wide, data):
    """Bits of integers, and of floats but for the order of a sum."""
    if wide != "float32" and (lhs.startswith(("float", "bf")) or rhs.startswith(("float", "bf"))):
        return
    move, shape = MOVED[data.draw(st.sampled_from(list(MOVED)), "movement")]
    x, w = values(lhs, *shape), values(rhs, 12, 5)

    def function(x, w):
        return move(x.astype(wide)) @ w.astype(wide)

    module = narrowed(function, x, w)
    name = {"float32": "f32", "int32": "i32", "uint32": "ui32", "int16": "i16"}[wide]
    is_wide = multiplied(module) == [name, name]
    assert is_wide != is_narrowed(lhs, rhs, wide)
    (found,) = evaluate_module(module, x, w)
    expected = jax.jit(function)(x, w)
    assert found.dtype == expected.dtype
    if wide == "float32":
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("dtype", "wide"), [("int8", "int32"), ("float16", "float32"), ("uint8", "float32")])
def test_convolutions(dtype, wide):
    x, w = values(dtype, 2, 9, 9, 4), values(dtype, 3, 3, 4, 5)

    def function(x, w):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x.astype(wide), w.astype(wide), (2, 1), "SAME", dimension_numbers=numbers
        )

    module = narrowed(function, x, w)
    assert multiplied(module) == 2 * [{"int8": "i8", "float16": "f16", "uint8": "f16"}[dtype]]
    (found,) = evaluate_module(module, x, w)
    np.testing.assert_allclose(found, jax.jit(function)(x, w), rtol=1e-5, atol=1e-5)


def test_what_is_read_elsewhere_stays():
    """A widened half that something else reads, too, is multiplied as a half; a bfloat16, which the units widen, is not."""
    for dtype, operands in (("float16", ["f16", "f16"]), ("bfloat16", ["f32", "f32"])):
        x, w = values(dtype, 8, 12), values(dtype, 12, 5)

        def function(x, w):
            wide = x.astype(jnp.float32)
            return wide @ w.astype(jnp.float32), jnp.sin(wide)

        assert multiplied(narrowed(function, x, w)) == operands


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: jnp.sin(x.astype(jnp.float32)) @ w.astype(jnp.float32),
        lambda x, w: (x.astype(jnp.float32) + 1) @ w.astype(jnp.float32),
        lambda x, w: x.astype(jnp.float32) @ jnp.ones((12, 5)),
        lambda x, w: x.astype(jnp.float32) @ (w.astype(jnp.float32) * 2),
    ],
)
def test_what_is_computed_with_in_between_stays(function):
    x, w = values("float16", 8, 12), values("float16", 12, 5)
    assert multiplied(narrowed(function, x, w)) == ["f32", "f32"]


@pytest.mark.parametrize(
    ("function", "x", "w"),
    [
        (lambda x, w: lax.conv(x, w, (2,), "SAME"), (2, 1, 8), (4, 1, 3)),
        (
            lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME", feature_group_count=6),
            (2, 6, 8),
            (6, 1, 3),
        ),
        (lambda x, w: jnp.einsum("i,j->ij", x, w, optimize=False) @ jnp.ones((5, 1)), (8,), (5,)),
        (lambda x, w: lax.dot_general(x, w, (((1,), (1,)), ((0,), (0,)))), (8, 12), (8, 12)),
    ],
)
def test_halves_that_vertices_would_round_stay(function, x, w):
    """PopLibs' vertices for one channel, and for vectors side by side, form products of halves in halves."""
    x, w = values("float16", *x), values("float16", *w)
    module = narrowed(lambda x, w: function(x.astype(jnp.float32), w.astype(jnp.float32)), x, w)
    assert "f16" not in multiplied(module)


@pytest.mark.parametrize(
    ("lhs", "wide"), [("int8", "uint32"), ("int8", "uint16"), ("bool", "uint32"), ("uint8", "int32")]
)
def test_convolutions_into_other_signs(lhs, wide):
    x, w = values(lhs, 1, 2, 5), values(lhs, 1, 2, 2)

    def function(x, w):
        return lax.conv(x.astype(wide), w.astype(wide), (1,), "VALID")

    for engine in ("fast", "literal"):
        found = ipuxla.jit(function, target=ipuxla.Target.named("gc200").replace(num_tiles=4), engine=engine)(
            x, w
        )
        np.testing.assert_array_equal(found, jax.jit(function)(x, w))
