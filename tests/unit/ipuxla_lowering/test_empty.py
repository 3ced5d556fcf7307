"""Arrays without elements through every family of operations: shapes and values of ``jax.jit``, a certified program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla


def _ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


Z, E, ONE = _ones(0, 3), _ones(3, 0), _ones(3, 3)
NO_ROWS, ROWS, KEY = np.zeros(0, np.int32), np.array([0, 1], np.int32), np.array([1, 2], np.uint32)
POOL = (1, 2), (1, 1)

CASES: dict[str, tuple[Any, ...]] = {
    "elementwise": (lambda x: jnp.where(jnp.exp(x) > 1, x, 2), Z),
    "broadcast": (lambda x: jnp.broadcast_to(x[:, None], (0, 2, 3)).reshape(0, 6), Z),
    "slice": (lambda x: x[1:1].T, ONE),
    "concatenate": (lambda x, y: jnp.concatenate([x, y, x]), Z, ONE),
    "pad of nothing": (lambda x: lax.pad(x, np.float32(2), ((1, 1, 2), (0, 0, 1))), Z),
    "pad to nothing": (lambda x: lax.pad(x, np.float32(0), ((-3, 0, 0), (0, 0, 0))), ONE),
    "contraction of nothing": (lambda x, y: x @ y, E, Z),
    "contraction to nothing": (lambda x, y: jnp.einsum("ij,jk->ik", x, y), Z, ONE),
    "vdot of integers": (jnp.vdot, Z.astype(np.int32), Z.astype(np.int32)),
    "sum": (lambda x: (jnp.sum(x), x.sum(0), x.sum(1), x.prod(0)), Z),
    "extremum": (lambda x: jnp.max(x, 0, initial=2.0), Z),
    "argmax": (lambda x: jnp.argmax(x, 1), Z),
    "any": (lambda x: jnp.any(x > 0, 0), Z),
    "softmax": (jax.nn.softmax, Z),
    "no batch convolved": (lambda x, w: lax.conv(x, w, (1, 1), "SAME"), _ones(0, 3, 5, 5), _ones(4, 3, 2, 2)),
    "no features convolved": (
        lambda x, w: lax.conv(x, w, (1, 1), "SAME"),
        _ones(2, 0, 5, 5),
        _ones(4, 0, 2, 2),
    ),
    "windows": (lambda x: lax.reduce_window(x, -np.inf, lax.max, *POOL, "VALID"), Z),
    "windows of padding": (lambda x: lax.reduce_window(x, 0.0, lax.add, *POOL, ((0, 0), (2, 2))), E),
    "gradient of windows": (
        jax.grad(lambda x: lax.reduce_window(x, -np.inf, lax.max, *POOL, "VALID").sum()),
        Z,
    ),
    "no lookups": (lambda x, i: (x[i], x.at[i].add(1.0)), ONE, NO_ROWS),
    "lookups in nothing": (lambda x, i: (x[:, i], x.at[:, i].set(1.0)), Z, ROWS),
    "runtime offsets": (lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 0)), E, np.int32(1)),
    "update by nothing": (lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 0)), ONE, Z, np.int32(1)),
    "sort": (lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1)), Z),
    "top_k": (lambda x: lax.top_k(x, 0), ONE),
    "cumulative": (lambda x: (jnp.cumsum(x, 0), lax.cummax(x, 1), lax.cumlogsumexp(x, 0)), Z),
    "loop": (lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x)), Z),
    "scan of nothing": (lambda x: lax.scan(lambda c, v: (c + v, c), jnp.zeros(3), x), Z),
    "scan of empty rows": (lambda x: lax.scan(lambda c, v: (c, v * 2), jnp.zeros(0), x), E),
    "branch": (lambda x, p: lax.cond(p > 0, lambda x: x + 1, lambda x: x - 1, x), Z, np.int32(1)),
    "bitcast": (lambda x: lax.bitcast_convert_type(x, jnp.int8), Z),
    "random": (lambda k: jax.random.normal(jax.random.wrap_key_data(k), (0, 3)), KEY),
    "segment sum": (lambda x: jax.ops.segment_sum(x, jnp.zeros(0, jnp.int32), 4), Z),
    "identity and constant": (lambda x: (x, jnp.zeros((0, 2))), Z),
    "gradient": (jax.grad(lambda x: (jnp.exp(x) @ ONE).sum()), Z),
    "batched": (jax.vmap(lambda row: row @ ONE), Z),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing(case, tiny_target):
    f, *arrays = CASES[case]
    compiled = ipuxla.jit(f, target=tiny_target).lower(*arrays).compile()
    got, want = jax.tree.leaves(compiled(*arrays)), jax.tree.leaves(jax.jit(f)(*arrays))
    for one, other in zip(got, want, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-4)
    assert compiled.cost_analysis()["cycles"] >= 0
    compiled.certify()
    compiled.profile(*arrays).text()
