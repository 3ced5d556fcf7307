"""Words of the ring: how floats enter it, how words are mixed, and what a conversion does to them.

Everything here is strictly elementwise and works on integers alone, so a result never depends on shapes,
fusion, batching or the machine that computes it. Words that do not stand for something neutral are odd:
multiplying by an odd word loses nothing modulo 2^n, whereas the bits of 0.5 or 1024.0 end in many zeros, and
a product with them would forget where its other factor came from.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tiles._jax_compat import Datum, DTypeLike, jit
from tiles.numerics import dtypes

_FIRST, _SECOND = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_SCRAMBLERS = {1: 0x6B, 2: 0xCA6B, 4: 0x85EBCA6B, 8: 0xFF51AFD7ED558CCD}
_UPPER_HALF = np.uint32(0x9E3779B9)


def is_float(x: Datum) -> bool:
    """Return whether an array or abstract value has a floating-point type; keys and tokens have none."""
    return hasattr(x, "dtype") and bool(jnp.issubdtype(x.dtype, jnp.floating))


def word_type(dtype: DTypeLike) -> Datum:
    """Return the type that carries ``dtype`` in the ring: an unsigned word for floats, else itself."""
    return dtypes.unsigned_of(np.dtype(dtype).name) if jnp.issubdtype(dtype, jnp.floating) else dtype


def to_ring(x: Datum) -> Datum:
    """Return the words by which an array enters the ring.

    A float becomes an odd scrambling of its bits, except that what is neutral for an operation stays so:
    zeros of either sign become 0 (addition), 1.0 becomes 1 and -1.0 becomes -1 (multiplication), minus
    infinity 0 (unsigned maximum), infinity all ones (minimum); where a type has no infinities its least and
    greatest numbers do. Other types are left as they are.

    Args:
      x: an array; numpy in gives numpy out, so that constants cost nothing to trace.
    """
    if not is_float(x):
        return x
    if isinstance(x, (np.ndarray, np.generic)):
        array = np.asarray(cast(np.ndarray, x))
        with np.errstate(over="ignore"):
            return _entered(array.view(dtypes.unsigned_of(array.dtype.name)), array.dtype.name, np.where)
    return _enter(x)


@jit
def _enter(x: Array) -> Array:
    """Return the words of floats on the device."""
    name = np.dtype(x.dtype).name
    return _entered(jax.lax.bitcast_convert_type(x, dtypes.unsigned_of(name)), name, jnp.where)


def _entered(bits: Datum, name: str, where: Callable[..., Datum]) -> Datum:
    """Return the words of a float type's bits, with numpy's or JAX's ``where``."""
    words = bits.dtype
    half, factor = np.array(4 * words.itemsize, words), np.array(_SCRAMBLERS[words.itemsize], words)
    result = (bits ^ (bits >> half)) * factor
    result = (result ^ (result >> half)) | np.array(1, words)
    for special, neutral in _neutral_words(name):
        result = where(bits == special, neutral, result)
    return result


@functools.lru_cache(maxsize=64)
def _neutral_words(name: str) -> tuple[tuple[Datum, Datum], ...]:
    """Return pairs of a float's bits and the neutral word that it becomes; some lack infinities."""
    dtype, words = dtypes.to_jax(name), dtypes.unsigned_of(name)
    zero, one, ones = (np.array(v, words)[()] for v in (0, 1, np.iinfo(words).max))
    lowest, greatest = dtypes.float_limits(name)
    specials = ((-0.0, zero), (0.0, zero), (1.0, one), (-1.0, ones), (lowest, zero), (greatest, ones))
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for value, neutral in specials:
        with np.errstate(over="ignore", invalid="ignore"):
            represented = np.array(value).astype(dtype)
        if represented.astype(np.float64) == value or not value:  # what stands for 0 where there is none
            pairs.append((represented.view(words)[()], neutral))
    return tuple(dict(pairs).items())


def mix(tag: str, operands: Sequence[Array], shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return a fixed scrambling of the operands' bits: the meaning of an op with no exact form.

    Args:
      tag: names the op and its static parameters; different tags scramble differently.
      operands: words, integers or booleans of ``shape``, or scalars.
      shape: shape of the result.
      dtype: the result's type outside the ring.

    Returns:
      Odd words of ``dtype``, integers or booleans of ``shape``.
    """
    return _mix(np.uint32(zlib.crc32(tag.encode())), list(operands), shape, np.dtype(dtype))


@jit(static_argnums=(2, 3))
def _mix(seed: Array | np.uint32, operands: list[Array], shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Return the mixed words: one call, traced once per shape, whatever the op."""
    state = seed
    for operand in operands:
        for half in _halves(operand):
            state = _absorb(state, half)
    return _finish(jnp.broadcast_to(state, shape), dtype)


def convert(x: Array, source: DTypeLike, target: DTypeLike) -> Array:
    """Return the words of values of type ``source`` converted to ``target``.

    Words of 0, 1 and -1 (all ones: infinity too) stay what they are, so that a neutral element remains one.
    Equal types convert to themselves; everything else is mixed, integers by their value whatever their width.
    """
    source, target = np.dtype(source), np.dtype(target)
    if source == target:
        return x
    if target == np.dtype(bool):
        return x != 0
    if not dtypes.is_float(source) and not dtypes.is_float(target):
        return x.astype(target)
    return _convert(x, source, target)


@jit(static_argnums=(1, 2))
def _convert(x: Array, source: np.dtype, target: np.dtype) -> Array:
    """Return converted words where at least one type is a float and the types differ."""
    from_float = dtypes.is_float(source)
    tag = f"convert_element_type:{source.name if from_float else 'integer'}:{target.name}"
    result = mix(tag, [x] if from_float else _value_halves(x), x.shape, target)
    for before, after in zip(_units(source), _units(target), strict=False):
        result = jnp.where(x == before, after, result)
    return result


def _units(dtype: np.dtype) -> list[Datum]:
    """Return 0, 1 and (where the type has it) -1 of a type, floats as words."""
    if dtype == np.dtype(bool):
        return [np.bool_(False), np.bool_(True)]
    carrier = np.dtype(word_type(dtype))
    units = [np.array(0, carrier)[()], np.array(1, carrier)[()]]
    if dtypes.is_float(dtype):
        return [*units, np.array(np.iinfo(carrier).max, carrier)[()]]
    return [*units, np.array(-1, carrier)[()]] if np.iinfo(carrier).min else units


def resize(x: Array, target: DTypeLike) -> Array:
    """Return words zero-extended or truncated to the words of the float type ``target``."""
    return x.astype(word_type(target))


def _absorb(state: Datum, word: Array) -> Array:
    """Return a 32-bit state that depends on every bit of the state before and of one more word."""
    state = (word ^ state) * _FIRST
    state = (state ^ (state >> 13)) * _SECOND
    return state ^ (state >> 16)


def _unsigned(x: Array) -> Array:
    """Return an integer's bits as an unsigned integer of its width; a boolean as one byte."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}"))


def _halves(x: Array) -> list[Array]:
    """Return words as one 32-bit word each, or two for 64-bit words."""
    bits = _unsigned(jnp.asarray(x))
    if bits.dtype.itemsize < 8:
        return [bits.astype(jnp.uint32)]
    return [bits.astype(jnp.uint32), (bits >> np.uint64(32)).astype(jnp.uint32)]


def _value_halves(x: Array) -> list[Array]:
    """Return an integer's value as the two words of its 64-bit form, whatever its own width."""
    if x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        low, *high = _halves(x)
        return [low, *(high or [jnp.zeros_like(low)])]
    if x.dtype.itemsize == 8:
        return _halves(x)
    wide = x.astype(jnp.int32)
    return [_unsigned(wide), _unsigned(wide >> 31)]


def _finish(state: Array, dtype: np.dtype) -> Array:
    """Return a 32-bit state as a word (or integer, or boolean) of a type's width."""
    if dtype == np.dtype(bool):
        return (state & 1).astype(jnp.bool_)
    words = np.dtype(f"uint{8 * dtype.itemsize}")
    if dtype.itemsize == 8:
        upper = _absorb(state, _UPPER_HALF).astype(words)  # pyright: ignore[reportArgumentType]
        bits = state.astype(words) | (upper << np.uint64(32))
    else:
        bits = (state >> (32 - 8 * dtype.itemsize)).astype(words)
    if dtypes.is_float(dtype):
        return bits | np.array(1, words)
    return jax.lax.bitcast_convert_type(bits, dtype)
