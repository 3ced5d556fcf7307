"""Values of MLIR's dense attributes as arrays, to the bit, in every element type."""

from __future__ import annotations

import re

import numpy as np

from hlo_passes.ir import SMALL_FLOATS, TensorType
from ipuxla.frontend import narrow
from ipuxla.frontend._jax_compat import mlir

_WITHOUT_BUFFERS = frozenset({"bf16", *SMALL_FLOATS})
"""Element types of constants that MLIR gives as text only."""
_ELEMENT = re.compile(r"0x[0-9A-Fa-f]+|[-+0-9.eE]+")


def array_of(attribute: mlir.Attribute | str, type_: TensorType) -> np.ndarray:
    """Return the value of a constant, to the bit; one element for a splat."""
    if isinstance(attribute, str) or type_.dtype in _WITHOUT_BUFFERS or type_.is_complex:
        return _from_text(str(attribute), type_)
    element = narrow.narrow_element(str(attribute.type))
    if element is not None:
        return narrow.elements(str(attribute), type_, element)
    try:
        array = np.asarray(attribute)
    except TypeError:
        raise ValueError(f"constants must be dense, got {str(attribute)[:60]}") from None
    if array.dtype == type_.np_dtype:  # 64-bit buffers are "long long", whose scalars JAX does not know
        array = array.view(type_.np_dtype)
    return array.reshape(-1)[0] if attribute.is_splat and type_.size else array.reshape(type_.shape)


def _from_text(text: str, type_: TensorType) -> np.ndarray:
    """Read ``dense<[1.0, 0x7FC0]> : ...``, parts of complex elements in turn, or ``dense<"0x...">``.

    MLIR writes floats such that they read back exactly.
    """
    part = type_.part
    words = np.dtype(f"u{part.np_dtype.itemsize}")
    content = text[text.index("<") + 1 : text.rindex(">", 0, text.rindex(": tensor"))]
    if content.startswith('"'):
        array = np.frombuffer(bytes.fromhex(content.strip('"')[2:]), words)
    else:
        array = np.array([_float_bits(element, part) for element in _ELEMENT.findall(content)], words)
    array = array.view(type_.np_dtype)
    return array[0] if array.size == 1 else array.reshape(type_.shape)


def _float_bits(text: str, type_: TensorType) -> int:
    if text.startswith("0x"):
        return int(text, 16)
    number = np.array(float(text)).astype(type_.np_dtype)
    return int(number.view(f"u{number.dtype.itemsize}"))
