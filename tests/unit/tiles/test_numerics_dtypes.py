"""Element types and their words: numpy's own byte view is the witness."""

import jax.numpy as jnp
import numpy as np
import pytest

from tiles.errors import UnsupportedDtype
from tiles.numerics import dtypes


def _random(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return random bits of a type (booleans: 0 or 1)."""
    rng = np.random.default_rng(0)
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    raw = rng.integers(0, 256, (*shape[:-1], shape[-1] * dtypes.itemsize(name)), dtype=np.uint8)
    return raw.view(dtypes.to_jax(name))


def _bits(x) -> bytes:
    return np.asarray(x).tobytes()


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("name", dtypes.NAMES)
def test_words_are_the_bytes_in_memory_order(name, count):
    x = _random(name, (3, count))
    words = dtypes.to_words(x)
    assert words.shape == (3, dtypes.word_count(name, count)) and words.dtype == np.uint32
    bytes_in_row = count * dtypes.itemsize(name)
    for row in range(3):
        stored = words[row].tobytes()
        assert stored[:bytes_in_row] == _bits(x[row])
        assert not any(stored[bytes_in_row:])
    back = dtypes.from_words(words, name, count)
    assert back.dtype == dtypes.to_jax(name) and _bits(back) == _bits(x)


def test_all_halves_survive_their_words():
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    words = dtypes.to_words(halves)
    assert words.shape == (32768,)
    assert _bits(dtypes.from_words(words, "float16", 65536)) == halves.tobytes()


@pytest.mark.parametrize("name", ["bool", "bfloat16", "float32", "float64"])
def test_any_strides_are_packed(name):
    x = _random(name, (4, 6, 8))
    for view in (x.transpose(2, 0, 1), x[::2, :, ::-1], np.broadcast_to(x[0, :1], (5, 8))):
        words = dtypes.to_words(view)
        np.testing.assert_array_equal(words, dtypes.to_words(view.copy()))
        wider = np.repeat(words[..., None], 2, axis=-1)[..., 0]
        assert _bits(dtypes.from_words(wider, name, view.shape[-1])) == _bits(view)


def test_words_beyond_the_elements_are_ignored():
    words = np.array([[0x00010001, 0xFFFFFFFF, 7]], np.uint32)
    assert dtypes.from_words(words, "uint16", 3).tolist() == [[1, 1, 0xFFFF]]
    assert dtypes.from_words(words, "bool", 2).tolist() == [[True, False]]


def test_names_and_widths():
    assert dtypes.name_of(jnp.bfloat16) == "bfloat16" and dtypes.name_of(np.dtype("?")) == "bool"
    assert [dtypes.itemsize(n) for n in ("bool", "float16", "float32", "int64", "float8_e5m2")] == [
        1,
        2,
        4,
        8,
        1,
    ]
    assert dtypes.unsigned_of("bfloat16") == np.uint16
    assert dtypes.is_float("bfloat16") and dtypes.is_float("float8_e4m3fnuz") and not dtypes.is_float("int8")
    assert dtypes.is_integer("uint8") and not dtypes.is_integer("bool") and not dtypes.is_integer("float16")
    for odd in (np.complex64, "U3", object):
        with pytest.raises(UnsupportedDtype):
            dtypes.name_of(odd)
    with pytest.raises(UnsupportedDtype, match="'float7'"):
        dtypes.to_jax("float7")


@pytest.mark.parametrize("name", ["int8", "float32", "int64"])
def test_no_elements_are_no_words(name):
    words = dtypes.to_words(np.zeros((2, 0), name))
    assert words.shape == (2, 0)
    assert dtypes.from_words(words, name, 0).shape == (2, 0)
