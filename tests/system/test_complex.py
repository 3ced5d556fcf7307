"""Complex numbers and Fourier transforms from end to end: engines, transformations, files, and a whole GC200."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.errors import Unsupported, WrongArguments
from ipuxla.testing import check_engines
from tiles.numerics.tolerance import check_close

RNG = np.random.default_rng(0)


def numbers(*shape: int, dtype: str = "complex64") -> np.ndarray:
    return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(dtype)


Z, W = numbers(4, 6), numbers(6, 5)


def _filtered(x, h):
    """Return the energy of signals that went through a filter."""
    return (jnp.abs(jnp.fft.rfft(x) * h) ** 2).sum()


PROGRAMS = {
    "arithmetic": (lambda z, w: (jnp.exp(z) / (1 + jnp.abs(z)), z @ w, jnp.sqrt(z).prod(0)), Z, W),
    "loop": (lambda z: lax.fori_loop(0, 3, lambda i, c: c * z / (i + 1), z), Z),
    "fft": (jnp.fft.fft, numbers(3, 12)),
    "ifft in two stages": (jnp.fft.ifft, numbers(8, 512)),
    "rfft and irfft": (
        lambda x: (jnp.fft.rfft(x), jnp.fft.irfft(jnp.fft.rfft(x) ** 2, 9)),
        numbers(3, 9).real,
    ),
    "large prime": (jnp.fft.fft, numbers(2, 257)),
    "fft2": (jnp.fft.fft2, numbers(2, 6, 10)),
    "gradient": (jax.grad(_filtered), np.float32(RNG.standard_normal((2, 16))), numbers(9)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_engines(name, small_target):
    function, *arguments = PROGRAMS[name]
    floats = ("fast", "literal", "vertex") if name in ("arithmetic", "fft") else ("literal",)
    engines = ("fast", "literal") if name == "large prime" else ("fast", "literal", "vertex")
    check_engines(function, small_target, *arguments, engines=engines, floats=floats)


def test_filter_and_its_gradient_on_all_tiles():
    """64 signals of 4,096 elements, there and back, on a whole GC200."""

    def energy(x, h):
        back = jnp.fft.irfft(jnp.fft.rfft(x) * h)
        return (back**2).sum(), back

    program = jax.value_and_grad(energy, has_aux=True)
    x, h = jnp.asarray(RNG.standard_normal((64, 4096)), jnp.float32), jnp.asarray(numbers(2049))
    compiled = check_engines(program, ipuxla.Target.named("gc200"), x, h, engines=("fast",))
    assert compiled.executable.target.num_tiles == 1472
    assert compiled.cost_analysis()["supersteps"] < 100


def test_transformations_act_on_decorated_functions(small_target):
    def function(z):
        return jnp.abs(jnp.fft.fft(z * jnp.exp(1j * z.real))).sum()

    decorated = ipuxla.jit(function, target=small_target)
    z = jnp.asarray(Z)
    check_close(jax.grad(decorated)(z), jax.grad(function)(z))
    check_close(jax.vmap(decorated)(z), jax.vmap(function)(z))
    check_close(jax.jit(lambda z: decorated(z * 2) + 1)(z), function(z * 2) + 1)
    tangent = jnp.conj(z)
    check_close(jax.jvp(decorated, (z,), (tangent,)), jax.jvp(function, (z,), (tangent,)))


@pytest.mark.parametrize("engine", ["fast", "literal", "hlo"])
def test_wide_numbers_stay_wide(engine, small_target):
    z = numbers(5, 8, dtype="complex128")
    got = ipuxla.jit(jnp.fft.fft, target=small_target, engine=engine)(z)
    assert got.dtype == np.complex128
    np.testing.assert_allclose(got, np.fft.fft(z), atol=1e-13)


def test_arguments_and_results_keep_their_type(small_target):
    def function(z, scale, x):
        return {"z": z * scale, "x": x + z.real}

    compiled = ipuxla.jit(function, target=small_target).lower(Z, 2j, Z.real).compile()
    check_close(compiled(Z, 0.5j, Z.real), jax.jit(function)(Z, 0.5j, Z.real))
    assert compiled.executable.inputs == ("arg0.real", "arg0.imag", "arg1.real", "arg1.imag", "arg2")
    assert "complex64[4,6]" in str(compiled)
    with pytest.raises(WrongArguments, match="complex64"):
        compiled(Z.real, 0.5j, Z.real)


def test_words_of_the_ring_lie_along_a_last_axis(small_target):
    words = ipuxla.jit(lambda z: (z * 2, z.real), target=small_target, arithmetic="ring")(Z)
    assert [(w.dtype, w.shape) for w in words] == [(np.uint32, (4, 6, 2)), (np.uint32, (4, 6))]
    np.testing.assert_array_equal(
        ipuxla.jit(lambda z: z, target=small_target, arithmetic="ring")(Z)[..., 0],
        ipuxla.jit(lambda x: x, target=small_target, arithmetic="ring")(Z.real),
    )


def test_saved_and_loaded(tmp_path, small_target):
    compiled = ipuxla.jit(lambda z, x: (jnp.fft.ifft(z), x), target=small_target).lower(Z, Z.real).compile()
    compiled.save(tmp_path / "program")
    loaded = ipuxla.load(tmp_path / "program", engine="literal")
    check_close(loaded(Z, Z.real), (np.fft.ifft(Z).astype(np.complex64), Z.real))


def test_donated_arguments_are_consumed(small_target):
    decorated = ipuxla.jit(lambda x, z: (z * 2, x), target=small_target, donate_argnums=1)
    z = jnp.asarray(Z)
    compiled = decorated.lower(Z.real, z).compile()
    assert len(compiled.executable.donated) == 2
    check_close(decorated(Z.real, z)[0], Z * 2)
    assert z.is_deleted()


def test_modules_from_elsewhere(small_target):
    text = jax.jit(lambda z, x: (jnp.fft.fft(z), x * 1j)).lower(Z, Z.real).as_text()
    compiled = ipuxla.compile_stablehlo(text, small_target)
    check_close(compiled(Z, Z.real), (np.fft.fft(Z).astype(np.complex64), (Z.real * 1j).astype(np.complex64)))


def test_passes_that_leave_complex_numbers_are_named(small_target):
    with pytest.raises(Unsupported, match=r"leave complex numbers(.|\n)*legalize-complex"):
        ipuxla.jit(lambda z: z * 2, target=small_target, passes="cse")(Z)
    check_close(ipuxla.jit(lambda z: z * 2, target=small_target, passes="legalize-complex")(Z), Z * 2)
