"""``legalize-complex``: pairs of real values compute what complex ones do, ``jax.jit`` being the witness."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_passes.ir import Module, evaluate_module, parse_module, print_module, verify
from hlo_passes.passes import has_complex, optimize
from ipuxla.frontend.importer import import_stablehlo
from tiles.numerics.tolerance import check_close

RNG = np.random.default_rng(0)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 30.0, -100.0, np.inf, -np.inf, np.nan]


def numbers(*shape: int, dtype: str = "complex64") -> np.ndarray:
    """Return random complex numbers of sizes around 1."""
    return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(dtype)


def legalized(function, *arguments) -> Module:
    """Return a function's module without complex numbers, once through its text."""
    lowered = jax.jit(function, keep_unused=True).lower(*arguments)
    module = optimize(import_stablehlo(lowered.compiler_ir("stablehlo")), "expand-fft,legalize-complex")
    verify(module)
    assert not has_complex(module)
    text = print_module(module)
    assert print_module(parse_module(text)) == text
    return module


def parts(leaves) -> list:
    """Return arrays with complex ones taken apart."""
    return [half for x in leaves for half in ((x.real, x.imag) if np.iscomplexobj(x) else (x,))]


def evaluated(module: Module, *arguments) -> list[np.ndarray]:
    flat = parts(map(np.asarray, arguments))
    return [np.asarray(x) for x in jax.jit(lambda *xs: evaluate_module(module, *xs))(*flat)]


def check(function, *arguments) -> Module:
    """Check the pairs' values and types against ``jax.jit``."""
    module = legalized(function, *arguments)
    want = parts(map(np.asarray, jax.tree.leaves(jax.jit(function)(*arguments))))
    check_close(evaluated(module, *arguments), want)
    return module


FUNCTIONS = {
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "negative": jnp.negative,
    "arcsinh": jnp.arcsinh,
}


def relative_error(got: list[np.ndarray], want: np.ndarray) -> np.ndarray:
    """Return, element by element, the error of both parts as a share of the wanted magnitude."""
    joined = got[0] + 1j * got[1] if len(got) == 2 else got[0]
    return np.abs(joined - want) / np.maximum(np.abs(want), np.finfo(want.dtype).tiny)


SPECIALS = np.array([complex(a, b) for a in SPECIAL for b in SPECIAL], np.complex64)
FINITE = numbers(300)
FINITE = np.concatenate([FINITE, FINITE * 1e-3, FINITE * 6, 1 + 1e-3 * FINITE]).astype(np.complex64)
EXPANDED_BY_JAX = {"arcsinh"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    """Accurate element by element, also near 0 and near 1, where naive formulas cancel; specials as XLA's."""
    z = np.concatenate([FINITE, SPECIALS])
    got = evaluated(legalized(FUNCTIONS[name], z), z)
    with jax.enable_x64(True):
        want = np.asarray(jax.jit(FUNCTIONS[name])(FINITE.astype(np.complex128)))
    allowed = 1e-3 if name in EXPANDED_BY_JAX else 3e-6
    assert relative_error([x[: len(FINITE)] for x in got], want).max() < allowed
    if name not in EXPANDED_BY_JAX | {"rsqrt"}:
        check_specials(name, [x[len(FINITE) :] for x in got])


def check_specials(name: str, got: list[np.ndarray]) -> None:
    """Check the places of NaN and infinities against ``jax.jit``."""
    want = parts([np.asarray(jax.jit(FUNCTIONS[name])(SPECIALS))])
    # below the cut XLA gives the root of minus infinity a positive imaginary part
    asked = ~((name == "sqrt") & np.isneginf(np.real(SPECIALS)) & (np.imag(SPECIALS) == 0))
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.isnan(mine), np.isnan(theirs))
        np.testing.assert_array_equal(np.isinf(mine), np.isinf(theirs))
        infinite = np.isinf(theirs) & asked
        np.testing.assert_array_equal(mine[infinite], theirs[infinite])


def test_nothing_overflows_on_the_way():
    huge = np.array([3e38 + 1e38j, 2e-37 + 1e-37j, -1e30 + 3e38j], np.complex64)
    wide = huge.astype(np.complex128)
    for function in (np.abs, np.sqrt, np.log):
        got = evaluated(legalized(getattr(jnp, function.__name__), huge), huge)
        assert relative_error(got, function(wide)).max() < 1e-6
    other = huge[::-1]
    got = evaluated(legalized(jnp.divide, huge, huge), huge, huge)
    assert relative_error(got, np.ones(3, np.complex128)).max() < 1e-6
    got = evaluated(legalized(jnp.divide, huge[:1], other[:1]), huge[:1], other[:1])
    assert relative_error(got, wide[:1] / wide[2:]).max() < 1e-6


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "power"])
def test_functions_of_two(name):
    x, y = numbers(400), np.concatenate([numbers(200), numbers(200) * 1e-2]).astype(np.complex64)
    got = evaluated(legalized(getattr(jnp, name), x, y), x, y)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x.astype(np.complex128), y.astype(np.complex128))
    assert relative_error(got, want).max() < 2e-5


def test_division_of_special_numbers_follows_c():
    """By 0, of and by infinities: all but what XLA's own vector code has otherwise."""
    line = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan]
    z = np.array([complex(a, b) for a in line for b in line], np.complex64)
    x, y = (a.reshape(-1) for a in np.meshgrid(z, z))
    got = evaluated(legalized(jnp.divide, x, y), x, y)
    want = parts([np.asarray(jax.jit(jnp.divide)(x, y))])
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.isnan(mine), np.isnan(theirs))
        np.testing.assert_array_equal(np.isinf(mine), np.isinf(theirs))


Z, W = numbers(4, 6), numbers(6, 5)
PREDICATE = RNG.integers(0, 2, (4, 6)).astype(bool)


def _loop(z):
    return lax.fori_loop(0, 5, lambda i, c: (c[0] * c[1], c[1] + 1j * i), (z, jnp.conj(z)))


def _while(z, limit):
    return lax.while_loop(
        lambda c: jnp.abs(c[0]).sum() < limit, lambda c: (c[0] * (1 + 1j), c[1] + 1), (z, 0)
    )


def _branch(flag, z):
    return lax.cond(flag, lambda z: (z * 2j, z.real), lambda z: (jnp.conj(z), z.imag), z)


STRUCTURES = {
    "movement": (lambda z: (z.T[1:, ::2], jnp.pad(z, 1, constant_values=2j), z[:, ::-1].reshape(3, 8)), Z),
    "joined": (lambda z, x: jnp.concatenate([z, x * 1j]), Z, np.real(Z)),
    "selected": (lambda p, z: jnp.where(p, z, 1j), PREDICATE, Z),
    "equality": (lambda z, w: (z == w, z != w), Z, np.where(PREDICATE, Z, np.conj(Z))),
    "sums and products": (lambda z: (z.sum(0), z.prod(1), z.mean(), jnp.cumsum(z, 0)), Z),
    "matrix product": (lambda z, w: z @ w, Z, W),
    "batched product": (lambda z, w: jnp.einsum("bij,bjk->kbi", z, w), numbers(3, 2, 4), numbers(3, 4, 5)),
    "convolution": (lambda z, w: jnp.convolve(z, w, mode="same"), numbers(9), numbers(3)),
    "conversions": (lambda z, n: (z.astype("complex64"), n + 1j, (z != 0).astype(int), z.real + n), Z, np.arange(6)),
    "lookups": (lambda z, i: (z[i], z.at[i].add(2j), z.at[i].set(z[:3] * 1j)), Z, np.array([2, 0, 2])),
    "slices": (lambda z, i: lax.dynamic_update_slice(z, lax.dynamic_slice(z, (i, i), (2, 3)) * 1j, (0, i)), Z, 1),
    "sort": (lambda z: jnp.sort(jnp.round(z.real) + 1j * jnp.round(z.imag), axis=0), Z),
    "loop": (_loop, Z),
    "while": (_while, Z, 200.0),
    "branch": (_branch, True, Z),
    "scan": (lambda z: lax.scan(lambda c, x: (c * x, c + x), z[0] * 0 + 1, z), Z),
    "call": (lambda z: jax.jit(lambda z, n: (z * n, n))(z, 3)[0] + jax.jit(jnp.conj)(z), Z),
    "counting": (lambda z: z + lax.iota(jnp.complex64, 6), Z),
    "angles": (lambda z: (jnp.angle(z), jnp.conj(z), jnp.real(z), jnp.imag(z)), Z),
    "inside only": (lambda x: lax.fori_loop(0, 3, lambda i, x: jnp.abs(lax.complex(x, x * i)), x), np.real(Z)),
    "gradient": (lambda z: jax.grad(lambda z: jnp.abs(jnp.sin(z) @ jnp.conj(z.T)).sum())(z), Z),
}  # fmt: skip


@pytest.mark.parametrize("name", STRUCTURES)
def test_values_in_every_place(name):
    function, *arguments = STRUCTURES[name]
    check(function, *arguments)


def test_wide_numbers_stay_wide():
    with jax.enable_x64(True):
        z = numbers(5, dtype="complex128")
        got = evaluated(legalized(lambda z: jnp.exp(z) / (z + 1), z), z)
        want = np.exp(z) / (z + 1)
        assert got[0].dtype == np.float64
        assert relative_error(got, want).max() < 1e-14


def test_a_division_by_real_numbers_stays_short():
    """A mean divides by a count: two quotients, none of what a complex divisor takes."""
    short = sum(i.op.name == "stablehlo.divide" for i in legalized(lambda z: z / 3, Z).walk())
    assert short == 2
    check(lambda z, x: z / x, Z, np.real(Z))


def test_parameters_split_in_place_and_stay_donated():
    def function(x, z, y, w):
        return z + w, x + y

    shape = jax.ShapeDtypeStruct((3,), np.float32)
    whole = jax.ShapeDtypeStruct((3,), np.complex64)
    lowered = jax.jit(function, donate_argnums=(1, 2)).lower(shape, whole, shape, whole)
    module = optimize(import_stablehlo(lowered.compiler_ir("stablehlo")), "legalize-complex")
    names = [parameter.name for parameter in module.entry_computation.parameters]
    assert names == ["%arg0", "%arg1.real", "%arg1.imag", "%arg2", "%arg3.real", "%arg3.imag"]
    assert module.donated == (1, 2, 3)


def test_source_lines_are_kept():
    module = legalized(lambda z: jnp.fft.fft(jnp.tanh(z) / (1 + jnp.abs(z)))[0].sum(), Z)
    # JAX gives some constants the line of whoever lowers
    lines = {i.location.line for i in module.walk() if i.op.name != "stablehlo.constant"}
    assert lines == {test_source_lines_are_kept.__code__.co_firstlineno + 1}


def test_a_module_without_complex_numbers_is_left_alone():
    lowered = jax.jit(lambda x: x * 2).lower(1.0)
    module = import_stablehlo(lowered.compiler_ir("stablehlo"))
    assert optimize(module, "legalize-complex") is module


def test_pooling_by_any_selection_is_written_out():
    select = "stablehlo.compare EQ, %a, %b : (tensor<complex<f32>>, tensor<complex<f32>>) -> tensor<i1>"
    text = f"""func.func @main(%x: tensor<4xcomplex<f32>>, %s: tensor<2xcomplex<f32>>) -> tensor<4xcomplex<f32>> {{
      %i = stablehlo.constant dense<(0.0, 0.0)> : tensor<complex<f32>>
      %0 = "stablehlo.select_and_scatter"(%x, %s, %i) ({{
        ^bb0(%a: tensor<complex<f32>>, %b: tensor<complex<f32>>):
          %r = {select}
          stablehlo.return %r : tensor<i1>
      }}, {{
        ^bb0(%a: tensor<complex<f32>>, %b: tensor<complex<f32>>):
          %r = stablehlo.add %a, %b : tensor<complex<f32>>
          stablehlo.return %r : tensor<complex<f32>>
      }}) {{window_dimensions = array<i64: 2>, window_strides = array<i64: 2>}}
        : (tensor<4xcomplex<f32>>, tensor<2xcomplex<f32>>, tensor<complex<f32>>) -> tensor<4xcomplex<f32>>
      return %0 : tensor<4xcomplex<f32>>
    }}"""
    x = np.array([1, 1, 2 + 1j, 3], np.complex64)
    sources = np.array([5 - 1j, 7j], np.complex64)
    module = optimize(import_stablehlo(text))
    real, imag = evaluate_module(
        module, *(part for array in (x, sources) for part in (array.real, array.imag))
    )
    np.testing.assert_array_equal(real + 1j * imag, [5 - 1j, 0, 0, 7j])
