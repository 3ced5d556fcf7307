"""Tensor types in StableHLO's spelling, and their numpy counterparts."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from hlo_passes.errors import UnsupportedType

Kind = Literal["bool", "integer", "unsigned", "float", "complex"]


class DType(NamedTuple):
    """What one element type is: its numpy type, its kind and its width in bits."""

    np_dtype: np.dtype
    kind: Kind
    bits: int


SMALL_FLOATS = tuple(
    f"f8{form}"
    for form in ("E3M4", "E4M3", "E4M3B11FNUZ", "E4M3FN", "E4M3FNUZ", "E5M2", "E5M2FNUZ", "E8M0FNU")
)
"""Floats of 8 bits, named by the bits of exponent and fraction and by what is missing (F: infinities, ...)."""

DTYPES: dict[str, DType] = {
    "i1": DType(np.dtype(np.bool_), "bool", 1),
    "i8": DType(np.dtype(np.int8), "integer", 8),
    "i16": DType(np.dtype(np.int16), "integer", 16),
    "i32": DType(np.dtype(np.int32), "integer", 32),
    "i64": DType(np.dtype(np.int64), "integer", 64),
    "ui8": DType(np.dtype(np.uint8), "unsigned", 8),
    "ui16": DType(np.dtype(np.uint16), "unsigned", 16),
    "ui32": DType(np.dtype(np.uint32), "unsigned", 32),
    "ui64": DType(np.dtype(np.uint64), "unsigned", 64),
    **{
        name: DType(np.dtype(getattr(jnp, f"float8_{name[2:].lower()}")), "float", 8) for name in SMALL_FLOATS
    },
    "f16": DType(np.dtype(np.float16), "float", 16),
    "bf16": DType(np.dtype(jnp.bfloat16), "float", 16),
    "f32": DType(np.dtype(np.float32), "float", 32),
    "f64": DType(np.dtype(np.float64), "float", 64),
    "complex<f32>": DType(np.dtype(np.complex64), "complex", 64),
    "complex<f64>": DType(np.dtype(np.complex128), "complex", 128),
}
_NAME_OF = {entry.np_dtype: name for name, entry in DTYPES.items()}
_TEXT = re.compile(r"tensor<((?:\d+x)*)(complex<\w+>|\w+)>")


def dtype_name(np_dtype: object) -> str:
    """Return StableHLO's name of a numpy element type, such as ``bf16``.

    Raises:
      UnsupportedType: the element type is outside ``DTYPES``.
    """
    name = _NAME_OF.get(np.dtype(np_dtype))  # type: ignore[arg-type]
    if name is None:
        raise _unknown_dtype(str(np_dtype))
    return name


def _unknown_dtype(dtype: str) -> UnsupportedType:
    return UnsupportedType(
        f"element type {dtype} is not supported.\n  expected: one of {', '.join(DTYPES)}\n"
        "  try: cast to one of these before the computation"
    )


@dataclass(frozen=True)
class TensorType:
    """A static shape and an element type.

    Raises:
      UnsupportedType: the element type is outside ``DTYPES``, or a dimension is negative (dynamic).
    """

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        """Refuse what no tensor of the IR can be."""
        if self.dtype not in DTYPES:
            raise _unknown_dtype(self.dtype)
        if any(size < 0 for size in self.shape):
            raise UnsupportedType(
                f"shape {self.shape} has a dynamic dimension.\n  expected: sizes known at compile time\n"
                "  try: export the program with concrete shapes"
            )

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @functools.cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        """Width of one element in bits (1 for ``i1``)."""
        return DTYPES[self.dtype].bits

    @functools.cached_property
    def size_bytes(self) -> int:
        """Bytes of a dense array of this type; a boolean takes one byte."""
        return self.size * self.np_dtype.itemsize

    @property
    def np_dtype(self) -> np.dtype:
        """Element type for numpy and JAX."""
        return DTYPES[self.dtype].np_dtype

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers (complex ones are not)."""
        return DTYPES[self.dtype].kind == "float"

    @property
    def is_complex(self) -> bool:
        """Whether elements are complex numbers."""
        return DTYPES[self.dtype].kind == "complex"

    @property
    def is_inexact(self) -> bool:
        """Whether arithmetic on the elements rounds and may meet NaN: floats and complex numbers."""
        return self.is_float or self.is_complex

    @property
    def part(self) -> TensorType:
        """The type of the real parts of complex elements, which is that of the imaginary ones too."""
        return self.with_dtype(self.dtype.removeprefix("complex<").removesuffix(">"))

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers, signed or unsigned (booleans are not)."""
        return DTYPES[self.dtype].kind in ("integer", "unsigned")

    @property
    def is_unsigned(self) -> bool:
        """Whether elements are unsigned integers."""
        return DTYPES[self.dtype].kind == "unsigned"

    @property
    def is_bool(self) -> bool:
        """Whether elements are booleans (``i1``)."""
        return self.dtype == "i1"

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        """Return the same element type in another shape."""
        return TensorType(shape, self.dtype)

    def with_dtype(self, dtype: str) -> TensorType:
        """Return the same shape with another element type."""
        return TensorType(self.shape, dtype)

    def __str__(self) -> str:
        """Return MLIR's text, ``tensor<2x3xf32>``."""
        return f"tensor<{''.join(f'{size}x' for size in self.shape)}{self.dtype}>"

    @classmethod
    def parse(cls, text: str) -> TensorType:
        """Read ``tensor<2x3xf32>``.

        Raises:
          UnsupportedType: the text is no static ranked tensor type of a known element type.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise UnsupportedType(
                f"{text!r} is not a supported type.\n"
                "  expected: a static ranked tensor such as tensor<2x3xf32>\n"
                "  try: export the program with concrete shapes and dense tensors"
            )
        return cls(tuple(int(size) for size in match[1].split("x")[:-1]), match[2])

    @classmethod
    def of(cls, array: object) -> TensorType:
        """Return the type of anything with ``shape`` and ``dtype``: a numpy or JAX array, a struct."""
        return cls(tuple(array.shape), dtype_name(array.dtype))  # type: ignore[attr-defined]
