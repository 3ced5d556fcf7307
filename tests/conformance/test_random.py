"""``rng_bit_generator`` against XLA, bit for bit, through the text that JAX writes."""

import jax
import numpy as np
import pytest
from jax import lax

STATE = np.array([0xDEADBEEF12345678, 2**64 - 2], np.uint64)


@pytest.mark.parametrize("algorithm", ["DEFAULT", "THREE_FRY", "PHILOX"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_rng_bit_generator(algorithm, dtype, evaluates_to):
    kind = getattr(lax.RandomAlgorithm, f"RNG_{algorithm}")
    with jax.enable_x64(True):
        draw = jax.jit(lambda key: lax.rng_bit_generator(key, (3, 5), np.dtype(dtype), kind))
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
