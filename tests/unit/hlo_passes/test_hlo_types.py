"""Tensor types and locations."""

import jax.numpy as jnp
import numpy as np
import pytest

from hlo_passes.errors import HloError, UnsupportedType
from hlo_passes.ir import DTYPES, UNKNOWN, Location, TensorType, dtype_name


def test_text_is_mlirs():
    assert str(TensorType((2, 3), "f32")) == "tensor<2x3xf32>"
    assert str(TensorType((), "i1")) == "tensor<i1>"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 1, 30)])
def test_parse_reads_what_str_writes(shape, dtype):
    type_ = TensorType(shape, dtype)
    assert TensorType.parse(str(type_)) == type_


@pytest.mark.parametrize(
    "text",
    [
        "tensor<?xf32>",
        "tensor<2xcomplex<f16>>",
        "tensor<2xcomplex>",
        "tensor<*xf32>",
        "tensor<2xf8E4M3XYZ>",
        "memref<2xf32>",
        "f32",
    ],
)
def test_other_types_are_unsupported(text):
    with pytest.raises(UnsupportedType, match="try:"):
        TensorType.parse(text)


def test_negative_size_is_unsupported():
    with pytest.raises(UnsupportedType, match="dynamic"):
        TensorType((-1,), "f32")


def test_sizes():
    assert (TensorType((2, 3), "bf16").size, TensorType((2, 3), "bf16").size_bytes) == (6, 12)
    assert (TensorType((), "f64").rank, TensorType((), "f64").size_bytes) == (0, 8)
    assert (TensorType((5,), "i1").bits, TensorType((5,), "i1").size_bytes) == (1, 5)


@pytest.mark.parametrize(
    ("dtype", "kinds"),
    [
        ("f16", "float"),
        ("bf16", "float"),
        ("i8", "integer"),
        ("ui64", "integer unsigned"),
        ("i1", "bool"),
        ("complex<f32>", "complex"),
    ],
)
def test_kinds_exclude_each_other(dtype, kinds):
    type_ = TensorType((), dtype)
    flags = {
        name: getattr(type_, f"is_{name}") for name in ("float", "integer", "unsigned", "bool", "complex")
    }
    assert {name for name, is_set in flags.items() if is_set} == set(kinds.split())


def test_numpy_counterparts():
    assert dtype_name(jnp.bfloat16) == "bf16" and dtype_name(np.uint8) == "ui8" and dtype_name(bool) == "i1"
    assert TensorType.of(np.zeros((2, 0), np.float16)) == TensorType((2, 0), "f16")
    assert all(dtype_name(entry.np_dtype) == name for name, entry in DTYPES.items())
    with pytest.raises(UnsupportedType, match="datetime64"):
        dtype_name("datetime64[s]")


def test_complex_numbers_have_parts():
    type_ = TensorType((2,), "complex<f64>")
    assert (type_.part, type_.bits, type_.size_bytes) == (TensorType((2,), "f64"), 128, 32)
    assert TensorType((2,), "f16").part == TensorType((2,), "f16")
    assert type_.is_inexact and TensorType((), "f32").is_inexact and not TensorType((), "i8").is_inexact


def test_changes_make_new_types():
    type_ = TensorType((2,), "f32")
    assert type_.with_shape((3, 4)).with_dtype("i8") == TensorType((3, 4), "i8")
    assert type_ == TensorType((2,), "f32")


def test_location_text():
    assert str(Location("model.py", 12, 3, "f")) == "model.py:12"
    assert str(Location("model.py", 12, 3, "f", "A/b", ("jvp", "vmap"))) == "model.py:12 in A/b [jvp, vmap]"
    assert str(UNKNOWN) == "unknown" and not UNKNOWN.is_known


def test_all_errors_share_a_base():
    assert issubclass(UnsupportedType, HloError)
