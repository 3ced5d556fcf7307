"""Element types: names, widths, and packing of any array's last axis into 32-bit words and back.

A tile's memory is an array of 32-bit words. ``to_words`` and ``from_words`` are the only places that know how
elements lie inside words: little endian, as on the machine; a boolean takes one byte.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np

from tiles._jax_compat import DTypeLike, finfo
from tiles.errors import UnsupportedDtype

WORD_BYTES = 4
_PLAIN = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_SMALL_FLOATS = (
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e4m3b11fnuz"),
    *("float8_e4m3", "float8_e3m4", "float8_e8m0fnu"),
)
FLOATS: tuple[str, ...] = _FLOATS + _SMALL_FLOATS
"""Every floating-point type that an array in a tile's memory can have."""
NAMES: tuple[str, ...] = _PLAIN + FLOATS
"""Every element type that an array in a tile's memory can have."""


@functools.lru_cache(maxsize=256)
def to_jax(name: str) -> np.dtype:
    """Return the dtype of a name ("float32", "bfloat16", "bool", ...).

    Raises:
      UnsupportedDtype: no element type has that name.
    """
    if name not in NAMES:
        raise UnsupportedDtype(f"{name!r} is no element type", expected=", ".join(NAMES), got=name)
    return np.dtype(getattr(jnp, name if name != "bool" else "bool_"))


def name_of(dtype: DTypeLike) -> str:
    """Return the name of anything that stands for a dtype.

    Raises:
      UnsupportedDtype: arrays in a tile's memory cannot have it (complex, strings, objects, ...).
    """
    name = np.dtype(dtype).name
    if name not in NAMES:
        raise UnsupportedDtype(f"{name!r} is no element type of a tile", expected=", ".join(NAMES), got=name)
    return name


@functools.lru_cache(maxsize=256)
def itemsize(name: str) -> int:
    """Return the bytes of one element."""
    return to_jax(name).itemsize


def is_float(dtype: DTypeLike) -> bool:
    """Return whether a dtype (or its name) is a floating-point type, 8-bit and bfloat16 included."""
    return bool(jnp.issubdtype(np.dtype(dtype), jnp.floating))


def is_integer(dtype: DTypeLike) -> bool:
    """Return whether a dtype (or its name) is a signed or unsigned integer; booleans are not."""
    return bool(jnp.issubdtype(np.dtype(dtype), jnp.integer))


def may_hold(first: DTypeLike, second: DTypeLike) -> bool:
    """Return whether both dtypes are floats, or one is and has every number of the other, an integer."""
    is_one, is_other = is_float(first), is_float(second)
    if is_one == is_other:
        return is_one
    number, held = (first, second) if is_one else (second, first)
    return is_integer(held) and greatest_magnitude(np.dtype(held).name) <= 2 ** (finfo(number).nmant + 1)


def is_narrow_float(dtype: DTypeLike) -> bool:
    """Return whether a dtype (or its name) is a float of fewer than 32 bits, whose sums are formed in float32."""
    return (
        is_float(to_jax(dtype) if isinstance(dtype, str) else dtype) and np.dtype(dtype).itemsize < WORD_BYTES
    )


@functools.lru_cache(maxsize=256)
def float_limits(name: str) -> tuple[float, float]:
    """Return the least and the greatest number of a float type: the infinities where it has any."""
    dtype = to_jax(name)
    if np.isinf(np.array(np.inf).astype(dtype)):
        return -np.inf, np.inf
    return float(finfo(dtype).min), float(finfo(dtype).max)


@functools.lru_cache(maxsize=256)
def greatest_magnitude(name: str) -> int:
    """Return the greatest magnitude of an integer type's numbers: 128 of int8."""
    limits = jnp.iinfo(to_jax(name))
    return max(-int(limits.min), int(limits.max))


@functools.lru_cache(maxsize=256)
def unsigned_of(name: str) -> np.dtype:
    """Return the unsigned integer type as wide as the named type."""
    return np.dtype(f"uint{8 * itemsize(name)}")


def word_count(name: str, count: int) -> int:
    """Return the 32-bit words that ``count`` elements fill, the last one padded."""
    return -(-count * itemsize(name) // WORD_BYTES)


@functools.cache
def is_exact_half(name: str) -> bool:
    """Return whether every finite value of a float type is a half, too."""
    own, half = finfo(to_jax(name)), finfo(np.float16)
    lowest = half.minexp - half.nmant <= own.minexp - own.nmant
    return bool(own.nmant <= half.nmant and own.maxexp <= half.maxexp and lowest)


def to_words(x: np.ndarray) -> np.ndarray:
    """Return an array's bits as 32-bit words along its last axis; a view where elements are words.

    Args:
      x: ``[..., n]`` of any element type.

    Returns:
      uint32 ``[..., word_count(dtype, n)]``; the bytes after the last element are zero.

    Raises:
      UnsupportedDtype: the elements have no place in a tile's memory.
    """
    name = name_of(x.dtype)
    size = itemsize(name)
    if size == WORD_BYTES:
        return x.view(np.uint32)
    lead, size_bytes, words = x.shape[:-1], x.shape[-1] * size, word_count(name, x.shape[-1])
    if not x.size:
        return np.zeros((*lead, words), np.uint32)
    raw = np.ascontiguousarray(x).view(np.uint8)
    if size_bytes < words * WORD_BYTES:
        padded = np.zeros((*lead, words * WORD_BYTES), np.uint8)
        padded[..., :size_bytes] = raw
        raw = padded
    return raw.view(np.uint32)


def from_words(words: np.ndarray, name: str, count: int) -> np.ndarray:
    """Return the first ``count`` elements that words hold: the inverse of ``to_words``.

    Args:
      words: uint32 ``[..., w]`` with ``w >= word_count(name, count)``.
      name: the elements' type. A byte of a boolean is true unless it is zero.
      count: number of elements.

    Returns:
      ``[..., count]`` of that type; a view of the words where elements are as wide.
    """
    size = itemsize(name)
    if size == WORD_BYTES:
        return words[..., :count].view(to_jax(name))
    lead = words.shape[:-1]
    if not count or 0 in lead:
        return np.zeros((*lead, count), to_jax(name))
    raw = np.ascontiguousarray(words[..., : word_count(name, count)]).view(np.uint8)[..., : count * size]
    return raw != 0 if name == "bool" else raw.view(to_jax(name))
