"""Eigenvalues of a symmetric matrix by parallel Jacobi rotations, two rows on a tile.

What is written by hand here is where things run: each pair of rows is rotated on a tile of its own (``ipuxla.tile_map``),
and between two rounds the rows move on by one place in the round-robin schedule. Run it: ``python docs/examples/jacobi.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np

import ipuxla


def schedule(n: int) -> np.ndarray:
    """Return the order of rows, from that of the round before, in which each meets each other one in n - 1 rounds."""
    top, bottom = np.arange(0, n, 2), np.arange(1, n, 2)
    moved_top = np.concatenate([top[:1], bottom[:1], top[1:-1]])
    moved_bottom = np.concatenate([bottom[1:], top[-1:]])
    return np.stack([moved_top, moved_bottom], 1).reshape(-1) if n > 2 else np.arange(n)


def rotation(block):
    """Return the rotation that makes a symmetric matrix of 2 x 2 diagonal."""
    a, b, d = block[0, 0], block[0, 1], block[1, 1]
    tau = (d - a) / jnp.where(b == 0, 1.0, 2 * b)
    t = jnp.where(tau < 0, -1.0, 1.0) / (jnp.abs(tau) + jnp.sqrt(1 + tau * tau))
    t = jnp.where(b == 0, 0.0, t)
    cosine = 1 / jnp.sqrt(1 + t * t)
    sine = t * cosine
    return jnp.stack([jnp.stack([cosine, -sine]), jnp.stack([sine, cosine])])


def rotated(rotation, rows):
    """Return two rows after a rotation."""
    return rotation @ rows


def eigh(a, sweeps=8):
    """Return eigenvalues and eigenvectors (rows) of a symmetric matrix [n, n], n even."""
    n = a.shape[0]
    pairs, order = n // 2, schedule(n)

    def turn(rows, rotations):
        return ipuxla.tile_map(rotated, rotations, rows.reshape(pairs, 2, n)).reshape(n, n)

    def step(_, state):
        a, v = state
        blocks = jnp.stack([jax.lax.dynamic_slice(a, (k, k), (2, 2)) for k in range(0, n, 2)])
        rotations = ipuxla.tile_map(rotation, blocks)
        a = turn(turn(a, rotations).T, rotations)
        return a[order][:, order], turn(v, rotations)[order]

    a, v = jax.lax.fori_loop(0, sweeps * (n - 1), step, (a, jnp.eye(n, dtype=a.dtype)))
    return jnp.diagonal(a), v


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    a = rng.normal(size=(16, 16)).astype(np.float32)
    a = a + a.T
    compiled = ipuxla.jit(eigh, target="gc200").lower(a).compile()
    values, vectors = compiled(a)
    order = np.argsort(values)
    np.testing.assert_allclose(values[order], np.linalg.eigvalsh(a), atol=1e-4)
    np.testing.assert_allclose(vectors @ a, np.diag(values) @ vectors, atol=1e-4)
    print(f"{compiled.cost_analysis()['cycles']:,} cycles, largest eigenvalue {values.max():.4f}")
