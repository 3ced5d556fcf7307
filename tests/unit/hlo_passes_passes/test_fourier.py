"""``expand-fft``: transforms of any length and kind as contractions, numpy's being the witness."""

from __future__ import annotations

import cmath
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo_passes.ir import Module, evaluate_module, verify
from hlo_passes.ops import Constant, Convert, DotGeneral
from hlo_passes.passes import optimize
from hlo_passes.passes.fourier import factors
from hlo_passes.passes.fourier.factors import Chirp, Dense, Split
from ipuxla.frontend.importer import import_stablehlo
from tests.budgets import PROGRAM, budget

RNG = np.random.default_rng(0)


def expanded(function, x) -> Module:
    """Return a function's module without transforms."""
    lowered = jax.jit(function).lower(x)
    module = optimize(
        import_stablehlo(lowered.compiler_ir("stablehlo")), "flatten,expand-fft,canonicalize,cse,dce"
    )
    verify(module)
    assert all(instruction.op.name != "stablehlo.fft" for instruction in module.walk())
    return module


def signal(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    x = RNG.standard_normal(shape)
    return (x + 1j * RNG.standard_normal(shape)).astype(dtype) if dtype[0] == "c" else x.astype(dtype)


def check(function, witness, x: np.ndarray, allowed: float = 2e-6) -> Module:
    """Check shape, type, and every element to a share of the largest."""
    with jax.enable_x64(x.dtype in (np.float64, np.complex128)):
        module = expanded(function, x)
        (got,) = jax.jit(lambda x: evaluate_module(module, x))(x)
        assert got.dtype == jax.eval_shape(function, x).dtype
        got = np.asarray(got)
    want = witness(x)
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= allowed * np.abs(want).max()
    return module


LENGTHS = [1, 2, 3, 8, 13, 256, 257, 1000, 1042, 4096, 4099]


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(length):
    """Small and large primes, powers, and what has a large prime among its factors, forth and back."""

    def both(numpy, x):
        return numpy.stack([numpy.fft.fft(x), numpy.fft.ifft(x) * length])

    check(lambda x: both(jnp, x), lambda x: both(np, x), signal((2, length), "complex64"))


@pytest.mark.parametrize("length", [1, 2, 7, 150, 263, 1536])
def test_real_signals(length):
    check(jnp.fft.rfft, np.fft.rfft, signal((3, length), "float32"))
    half = signal((3, length // 2 + 1), "complex64")
    check(lambda x: jnp.fft.irfft(x, length), lambda x: np.fft.irfft(x, length), half)


@given(
    length=st.integers(1, 3000),
    kind=st.sampled_from(["fft", "ifft", "rfft", "irfft"]),
    batch=st.integers(1, 3),
)
@budget(PROGRAM)
def test_any_length_in_double_precision(length, kind, batch):
    taken = length // 2 + 1 if kind == "irfft" else length
    x = signal((batch, taken), "float64" if kind == "rfft" else "complex128")
    jax_function, witness = getattr(jnp.fft, kind), getattr(np.fft, kind)
    check(lambda x: jax_function(x, length), lambda x: witness(x, length), x, 1e-13)


SEVERAL = {
    "fft2": (3, 6, 150),
    "ifft2": (2, 263, 5),
    "fftn": (4, 7, 10),
    "rfftn": (4, 15, 150),
    "irfftn": (4, 5, 76),
    "rfft2": (2, 3, 8, 9),
    "irfft2": (2, 2, 9, 6),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_dimensions(name):
    x = signal(SEVERAL[name], "float32" if name.startswith("r") else "complex64")
    check(getattr(jnp.fft, name), getattr(np.fft, name), x)


def test_signals_without_batch_and_with_several_batch_dimensions():
    check(jnp.fft.fft, np.fft.fft, signal((48,), "complex64"))
    check(jnp.fft.fft, np.fft.fft, signal((2, 3, 2, 30), "complex64"))
    check(lambda x: jnp.fft.fft(x, axis=1), lambda x: np.fft.fft(x, axis=1), signal((2, 30, 3), "complex64"))


def test_a_real_operand_is_contracted_once():
    module = check(jnp.fft.fft, np.fft.fft, signal((3, 31), "float32"))
    kinds = [instruction.op for instruction in module.walk()]
    assert sum(isinstance(op, DotGeneral) for op in kinds) == 1
    assert not any(isinstance(op, Convert) for op in kinds)


def test_what_a_half_cannot_hold_is_ignored():
    """The imaginary parts of the first element and of the middle one of an even length."""
    half = signal((2, 257), "complex64")
    plain = half.copy()
    plain[:, [0, -1]] = np.real(plain[:, [0, -1]])
    (got,) = evaluate_module(expanded(jnp.fft.irfft, half), half)
    np.testing.assert_allclose(got, np.fft.irfft(plain), atol=1e-6)


def test_signals_of_nothing():
    module = expanded(jnp.fft.fft, signal((0, 8), "complex64"))
    (got,) = evaluate_module(module, np.zeros((0, 8), np.complex64))
    assert got.shape == (0, 8) and got.dtype == np.complex64


def test_operations_grow_with_the_stages_alone():
    def count(shape):
        return sum(1 for _ in expanded(jnp.fft.fft, jax.ShapeDtypeStruct(shape, np.complex64)).walk())

    assert count((64, 1024)) == count((64, 4096)) == count((256, 2048))
    assert count((1, 2**20)) < 4 * count((64, 1024))


def test_large_factors_are_computed_where_they_are_used():
    """A signal of a million elements comes with factors of a few thousand."""
    module = expanded(jnp.fft.fft, jax.ShapeDtypeStruct((1, 2**20), np.complex64))
    constants = [i.op.type.size for i in module.walk() if isinstance(i.op, Constant) and not i.op.is_splat]
    assert sum(constants) < 300_000
    x = signal((1, 2**18), "complex64")
    check(jnp.fft.fft, np.fft.fft, x)


def test_turns_are_exact_where_they_can_be():
    for n in (1, 2, 3, 4, 8, 12, 97):
        for sign in (-1, 1):
            got = factors.roots_of_unity(np.arange(-2 * n, 3 * n), n, sign)
            want = [cmath.exp(sign * 2j * math.pi * (k % n) / n) for k in range(-2 * n, 3 * n)]
            np.testing.assert_allclose(got, want, atol=1e-15)
    quarters = factors.roots_of_unity(np.arange(8), 8, 1)[::2]
    assert quarters.tolist() == [1, 1j, -1, -1j]


def test_plans_weigh_stages_against_columns():
    assert factors.plan_of(128, 64) == Dense()
    assert factors.plan_of(4096, 64) == Split(64, 64)
    assert factors.plan_of(1009, 8) == Chirp(factors.convolution_size(1009))
    assert isinstance(factors.plan_of(2 * 1009, 8), Split)
    for length in (263, 1009, 40_009):
        size = factors.convolution_size(length)
        assert 2 * length - 1 <= size <= 4 * length and not isinstance(factors.plan_of(size, 1), Chirp)
