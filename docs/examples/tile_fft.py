"""A Fourier transform placed by hand: columns on tiles, a transposition between them, then rows on tiles.

A transform of ``m * n`` points is ``n`` transforms of ``m`` points, factors, and ``m`` transforms of ``n`` points
(Cooley and Tukey). Each of them is a product with a small matrix on a tile of its own (``ipuxla.tile_map``). Real and
imaginary parts are two arrays. Run it: ``python docs/examples/tile_fft.py``.
"""

import jax.numpy as jnp
import numpy as np

import ipuxla


def dft(n):
    """Return cosines and sines of the matrix of a transform of n points."""
    angles = -2 * np.pi / n * (np.outer(np.arange(n), np.arange(n)) % n)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def transformed(cosines, sines, real, imaginary):
    """Return the transform of what one tile holds."""
    return cosines @ real - sines @ imaginary, cosines @ imaginary + sines @ real


def fft(real, imaginary, m):
    """Return real and imaginary parts of the transform of two arrays [m * n]."""
    n = real.shape[0] // m
    angles = (-2 * np.pi / (m * n) * np.outer(np.arange(n), np.arange(m))).astype(np.float32)
    on_tile = (None, None, 0, 0)
    columns = (x.reshape(m, n).T for x in (real, imaginary))  # [n, m]: a column for each of n tiles
    re, im = ipuxla.tile_map(transformed, *dft(m), *columns, in_axes=on_tile)
    cosines, sines = np.cos(angles), np.sin(angles)
    re, im = re * cosines - im * sines, re * sines + im * cosines
    re, im = ipuxla.tile_map(transformed, *dft(n), re.T, im.T, in_axes=on_tile, tiles=range(0, 2 * m, 2))
    return re.T.reshape(-1), im.T.reshape(-1)


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    real, imaginary = rng.normal(size=(2, 512)).astype(np.float32)
    compiled = ipuxla.jit(lambda re, im: fft(re, im, 16), target="gc200").lower(real, imaginary).compile()
    re, im = compiled(real, imaginary)
    want = np.fft.fft(real + 1j * imaginary)
    np.testing.assert_allclose(jnp.stack([re, im]), np.stack([want.real, want.imag]), atol=1e-3)
    print(f"{compiled.cost_analysis()['cycles']:,} cycles")
