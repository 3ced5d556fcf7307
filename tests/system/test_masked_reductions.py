"""What is chosen by comparisons, or computed of many operands, and then reduced: computed before it is folded where that is quicker."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla import testing
from ipuxla.lowering import regular


def _masked(d, b, k):
    """Scores of tokens in buckets: those of one's own are left out, as are those of other buckets."""
    own, other = b[..., :, None] == k[..., None, :], b[..., :, None] < k[..., None, :]
    return jnp.where(own, -1e5, jnp.where(other, -1e9, d.astype(jnp.float32)))


def _corners(values, weights):
    return sum(x * w[..., None] for x, w in zip(values, weights, strict=True)).sum(1)


def _last(z):
    return jnp.where(z != 0, jnp.arange(z.shape[-1]), -1)


def _half(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float16)


def _int(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


LARGE = {
    "masks": (_masked, jnp.max, (_half(4, 128, 64, 128), _int(4, 128, 64), _int(4, 128, 128))),
    "places": (_last, jnp.max, (jax.ShapeDtypeStruct((18432, 64), jnp.float32),)),
}


@pytest.mark.parametrize("name", LARGE)
def test_it_takes_no_longer_than_written_apart(name) -> None:
    """Masks took twice as long in code that folds what it compares, one element at a time."""
    values, fold, shapes = LARGE[name]

    def cycles(function) -> int:
        return ipuxla.jit(function, target="gc200").lower(*shapes).compile().cost_analysis()["cycles"]

    together = cycles(lambda *args: fold(values(*args), -1))
    apart = cycles(lambda *args: fold(jax.lax.optimization_barrier(values(*args)), -1))
    assert together <= 1.05 * apart


def test_bilinear_corners_take_less_than_half() -> None:
    """Weighted sums of four corners, of 43,520 points of 32 channels each: 59,610 cycles, folded as they were computed."""
    values, weights = [_half(43520, 4, 32)] * 4, [_half(43520, 4)] * 4
    compiled = ipuxla.jit(_corners, target="gc200").lower(values, weights).compile()
    assert compiled.cost_analysis()["cycles"] < 30_000


@pytest.mark.parametrize(
    "function",
    [
        lambda d, b, k: _masked(d, b, k).max(-1),
        lambda d, b, k: jax.nn.logsumexp(_masked(d, b, k), -1),
        lambda d, b, k: _corners([d, d * 2, d + 1], [d[..., 0], d[..., 1], d[..., 2]]),
        lambda d, b, k: _last(d).max(-1),
    ],
)
def test_on_every_engine(function, monkeypatch) -> None:
    monkeypatch.setattr(regular, "MANY", 1)
    monkeypatch.setattr(regular, "SURELY_LESS", 1e9)  # whichever is quicker
    rng = np.random.default_rng(7)
    d = rng.standard_normal((2, 5, 6)).astype(np.float16)
    b, k = (rng.integers(0, 3, shape, np.int32) for shape in ((2, 5), (2, 6)))
    testing.check_engines(function, ipuxla.Target.named("gc200").replace(num_tiles=6), d, b, k)
