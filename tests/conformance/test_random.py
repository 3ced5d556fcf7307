"""``rng_bit_generator`` against XLA, bit for bit, through the text that JAX writes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla

STATE = np.array([0xDEADBEEF12345678, 2**64 - 2], np.uint64)


@pytest.mark.parametrize("algorithm", ["DEFAULT", "THREE_FRY", "PHILOX"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_rng_bit_generator(algorithm, dtype, evaluates_to):
    kind = getattr(lax.RandomAlgorithm, f"RNG_{algorithm}")
    with jax.enable_x64(True):
        numbers: Any = np.dtype(dtype)
        draw = jax.jit(lambda key: lax.rng_bit_generator(key, (3, 5), numbers, kind))
        key = STATE.view(np.uint32)
        evaluates_to(draw.lower(key).as_text(), [key], draw(key))


@pytest.mark.parametrize("kind", ["i32", "f32"])
def test_bits_of_other_types_are_the_unsigned_ones(kind, evaluates_to):
    text = f"""func.func @main(%s: tensor<2xui64>) -> (tensor<2xui64>, tensor<4x{kind}>) {{
      %state, %bits = stablehlo.rng_bit_generator %s, algorithm = THREE_FRY
        : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4x{kind}>)
      return %state, %bits : tensor<2xui64>, tensor<4x{kind}>
    }}"""
    state = np.array([1, 2], np.uint64)
    key, bits = lax.rng_bit_generator(
        state.view(np.uint32), (4,), algorithm=lax.RandomAlgorithm.RNG_THREE_FRY
    )
    dtype = {"i32": np.int32, "f32": np.float32}[kind]
    evaluates_to(text, [state], [np.asarray(key).view(np.uint64), np.asarray(bits).view(dtype)])


WIDE = np.array([0xDEADBEEF12345678, 2**64 - 2, 5], np.uint64)


@pytest.mark.parametrize("algorithm", ["DEFAULT", "PHILOX"])
def test_philox_with_a_counter_of_two_words(algorithm, evaluates_to):
    """What XLA on CPU gives (jaxlib 0.10.2), which JAX has no function for: the counter carries after two blocks."""
    text = f"""func.func @main(%s: tensor<3xui64>) -> (tensor<3xui64>, tensor<10xui32>) {{
      %state, %bits = stablehlo.rng_bit_generator %s, algorithm = {algorithm}
        : (tensor<3xui64>) -> (tensor<3xui64>, tensor<10xui32>)
      return %state, %bits : tensor<3xui64>, tensor<10xui32>
    }}"""
    bits = [3178851004, 1977774164, 864426158, 3231293397, 1573721030]
    bits += [1438844480, 593429083, 1375290932, 1772177203, 1298111797]
    evaluates_to(text, [WIDE], [np.array([WIDE[0], 1, 6], np.uint64), np.array(bits, np.uint32)])


@pytest.mark.parametrize("kind", ["ui8", "i16", "ui64", "f64"])
def test_every_engine_carries_the_wide_counter(kind, small_target):
    text = f"""func.func @main(%s: tensor<3xui64>) -> (tensor<3xui64>, tensor<3x5x{kind}>) {{
      %state, %bits = stablehlo.rng_bit_generator %s, algorithm = PHILOX
        : (tensor<3xui64>) -> (tensor<3xui64>, tensor<3x5x{kind}>)
      return %state, %bits : tensor<3xui64>, tensor<3x5x{kind}>
    }}"""
    want = ipuxla.compile_stablehlo(text, small_target, engine="hlo")(WIDE)
    for engine in ("fast", "literal", "vertex"):
        for got, expected in zip(
            ipuxla.compile_stablehlo(text, small_target, engine=engine)(WIDE), want, strict=True
        ):
            assert np.asarray(got).tobytes() == np.asarray(expected).tobytes(), engine


RNG = """func.func @main(%a: tensor<{kind}>, %b: tensor<{kind}>) -> (tensor<6x70x{kind}>, tensor<6x70x{kind}>) {{
  %shape = stablehlo.constant dense<[6, 70]> : tensor<2xi64>
  %0 = stablehlo.rng %a, %b, %shape, distribution = {how} : (tensor<{kind}>, tensor<{kind}>, tensor<2xi64>) -> tensor<6x70x{kind}>
  %1 = stablehlo.rng %a, %b, %shape, distribution = {how} : (tensor<{kind}>, tensor<{kind}>, tensor<2xi64>) -> tensor<6x70x{kind}>
  return %0, %1 : tensor<6x70x{kind}>, tensor<6x70x{kind}>
}}"""


def _words(stream, kind, draws=1):
    """Return the words that the documentation says an ``rng`` draws, by XLA's own generator."""
    state = np.array([(stream + 1) * 0x9E3779B97F4A7C15 % 2**64, 0], np.uint64).view(np.uint32)
    words: Any = None
    for _ in range(draws):
        dtype: Any = np.dtype(kind)
        state, words = lax.rng_bit_generator(state, (6, 70), dtype, lax.RandomAlgorithm.RNG_THREE_FRY)
    return np.asarray(words)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f64"])
def test_uniform_rng_spreads_words_over_the_interval(kind, small_target):
    dtype, bits = {
        "f32": ("float32", 32),
        "f16": ("float16", 32),
        "bf16": ("bfloat16", 32),
        "f64": ("float64", 64),
    }[kind]
    a, b = (np.asarray(x, jnp.dtype(dtype)) for x in (-2, 3))
    found = ipuxla.compile_stablehlo(RNG.format(kind=kind, how="UNIFORM"), small_target)(a, b)
    with jax.enable_x64(True):
        words = [_words(stream, f"uint{bits}") for stream in (0, 1)]
    for got, drawn in zip(map(np.asarray, found), words, strict=True):
        kept = int(jnp.finfo(dtype).nmant)
        exact = (drawn >> (bits - kept)).astype(np.float64) / 2.0**kept * 5 - 2
        assert got.dtype == a.dtype and (got >= a).all() and (got < b).all()
        np.testing.assert_allclose(np.asarray(got, np.float64), exact, atol=5 * float(jnp.finfo(dtype).eps))


def test_normal_rng_is_box_and_mullers(small_target):
    found = ipuxla.compile_stablehlo(RNG.format(kind="f32", how="NORMAL"), small_target)(
        np.float32(1), np.float32(3)
    )
    for stream, got in enumerate(found):
        units = [(_words(stream, "uint32", draws) >> 9) / 2.0**23 for draws in (1, 2)]
        expected = np.sqrt(-2 * np.log1p(-units[0])) * np.cos(2 * np.pi * units[1]) * 3 + 1
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "dtype"), [("i32", np.int32), ("ui8", np.uint8), ("i16", np.int16)])
def test_uniform_rng_of_integers_takes_remainders(kind, dtype, small_target):
    a, b = dtype(7 if kind == "ui8" else -5), dtype(30)
    found = ipuxla.compile_stablehlo(RNG.format(kind=kind, how="UNIFORM"), small_target)(a, b)
    for stream, got in enumerate(found):
        words = _words(stream, f"uint{8 * np.dtype(dtype).itemsize}").astype(np.int64)
        np.testing.assert_array_equal(got, words % (int(b) - int(a)) + int(a))


def test_rng_of_booleans_takes_one_or_the_other(small_target):
    text = RNG.format(kind="i1", how="UNIFORM")
    found = ipuxla.compile_stablehlo(text, small_target)(np.bool_(False), np.bool_(True))
    np.testing.assert_array_equal(found[0], _words(0, "uint8") & 1)
    np.testing.assert_array_equal(found[1], _words(1, "uint8") & 1)


def test_rng_is_the_same_on_every_engine(small_target):
    arguments = np.float32(0), np.float32(1)
    for arithmetic in ("float", "ring"):
        want, *rest = (
            ipuxla.compile_stablehlo(
                RNG.format(kind="f32", how="NORMAL"), small_target, engine=engine, arithmetic=arithmetic
            )(*arguments)
            for engine in ("hlo", "fast", "literal", "vertex")
        )
        for got in rest:
            for one, other in zip(got, want, strict=True):
                if arithmetic == "ring":
                    np.testing.assert_array_equal(one, other)
                else:
                    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
