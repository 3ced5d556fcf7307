"""``fft`` of all kinds against numpy (the reference interpreter has none)."""

import numpy as np
import pytest

from hlo_passes.ir import evaluate_module, verify
from ipuxla.frontend.importer import import_stablehlo

FORMS = {
    "FFT": (np.fft.fftn, "complex64", lambda n: n, lambda n: n),
    "IFFT": (np.fft.ifftn, "complex64", lambda n: n, lambda n: n),
    "RFFT": (np.fft.rfftn, "float32", lambda n: n, lambda n: n // 2 + 1),
    "IRFFT": (np.fft.irfftn, "complex64", lambda n: n // 2 + 1, lambda n: n),
}
TYPES = {"complex64": "complex<f32>", "float32": "f32"}


@pytest.mark.parametrize("lengths", [(8,), (5, 6), (3, 4, 7)])
@pytest.mark.parametrize("kind", FORMS)
def test_kinds(kind, lengths):
    witness, dtype, taken, given = FORMS[kind]
    sizes = [(2, *lengths[:-1], change(lengths[-1])) for change in (taken, given)]
    result = {"RFFT": "complex64", "IRFFT": "float32"}.get(kind, dtype)
    types = [
        f"tensor<{'x'.join(map(str, size))}x{TYPES[t]}>"
        for size, t in zip(sizes, (dtype, result), strict=True)
    ]
    module = import_stablehlo(
        f"""func.func @main(%x: {types[0]}) -> {types[1]} {{
          %0 = stablehlo.fft %x, type = {kind}, length = {list(lengths)} : ({types[0]}) -> {types[1]}
          return %0 : {types[1]}
        }}"""
    )
    verify(module)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(sizes[0])
    x = (x if kind == "RFFT" else x + 1j * rng.standard_normal(sizes[0])).astype(dtype)
    axes = tuple(range(1, len(lengths) + 1))
    (got,) = evaluate_module(module, x)
    want = witness(x, lengths, axes)
    assert got.shape == want.shape and got.dtype == result
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())
