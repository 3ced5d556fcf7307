"""Sorting, searching, segments and random numbers on all tiles of a GC200, with gradients; keys of every kind.

The same programs run on tile memory with fewer tiles in ``test_runtime_offsets``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.testing import check_engines
from tiles.engine import coverage_of
from tiles.numerics.tolerance import check_close

NORMAL = jax.random.normal(jax.random.key(0), (20_000,))
WEIGHTS = jnp.linspace(-1.0, 1.0, 5000)
NAMES = jnp.arange(5000) * 7919 % 97
LOGITS = NORMAL.reshape(20, 1000)
KEY = jax.random.key(7)


def _dropout(key, x):
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)


PROGRAMS = {
    "sort": (jnp.sort, NORMAL),
    "sort, gradient": (jax.grad(lambda x: (jnp.sort(x) * WEIGHTS).sum()), NORMAL[:5000]),
    "sort by two keys": (lambda n, x: lax.sort((n, x, -x), num_keys=2), NAMES, NORMAL[:5000]),
    "top k": (lambda x: lax.top_k(x, 5), LOGITS),
    "top k, gradient": (jax.grad(lambda x: (lax.top_k(x, 5)[0] ** 2).sum()), LOGITS),
    "median": (lambda x: jnp.median(x, axis=1), LOGITS),
    "searchsorted": (lambda x, v: jnp.searchsorted(jnp.sort(x), v), NORMAL, WEIGHTS[::5]),
    "segment sum": (lambda x, n: jax.ops.segment_sum(x, n, 97), NORMAL[:5000], NAMES),
    "segment sum, gradient": (
        jax.grad(lambda x, n: (jax.ops.segment_sum(x, n, 97) ** 2).sum()),
        NORMAL[:5000],
        NAMES,
    ),
    "unique": (lambda n: jnp.unique(n, size=120, fill_value=-1), NAMES),
    "argmax": (lambda x: (jnp.argmax(x, axis=1), jnp.argmin(x)), LOGITS),
    "dropout": (_dropout, KEY, LOGITS),
    "dropout, gradient": (jax.grad(lambda k, x: (_dropout(k, x) ** 2).sum(), argnums=1), KEY, LOGITS),
    "normal": (lambda k: jax.random.normal(k, (5000,)), KEY),
    "permutation": (lambda k: jax.random.permutation(k, 5000), KEY),
    "categorical": (lambda k, x: jax.random.categorical(k, x), KEY, LOGITS),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_all_tiles(name, gc200):
    function, *args = PROGRAMS[name]
    check_engines(function, gc200, *args, engines=("fast",))


def test_a_row_is_sorted_on_the_memory_of_all_tiles(gc200):
    check_engines(jnp.sort, gc200, NORMAL[:500], engines=("literal",), floats=())


def _draws(key):
    first, second = jax.random.split(key)
    return jax.random.fold_in(second, 3), jax.random.uniform(first, (5,)), jax.random.permutation(first, 9)


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg", "unsafe_rbg", "raw"])
def test_keys_of_every_kind_are_arguments_and_results(kind, small_target):
    key = jax.random.PRNGKey(5) if kind == "raw" else jax.random.key(5, impl=kind)
    got, want = ipuxla.jit(_draws, target=small_target)(key), jax.jit(_draws)(key)
    assert got[0].dtype == want[0].dtype
    for a, b in zip(got[1:], want[1:], strict=True):
        check_close(a, b, kind)
    words = [x if kind == "raw" else jax.random.key_data(x) for x in (got[0], want[0])]
    np.testing.assert_array_equal(*words)


SAMPLES = {
    "bits": lambda k: jax.random.bits(k, (100,), jnp.uint8),
    "randint": lambda k: jax.random.randint(k, (100,), -5, 77),
    "gumbel": lambda k: jax.random.gumbel(k, (100,)),
    "truncated normal": lambda k: jax.random.truncated_normal(k, -1.0, 2.0, (100,)),
    "choice": lambda k: jax.random.choice(k, 100, (10,), replace=False),
    "weighted choice": lambda k: jax.random.choice(k, 20, (10,), p=jnp.arange(20) / 190),
    "gamma": lambda k: jax.random.gamma(k, 2.5, (20,)),
    "poisson": lambda k: jax.random.poisson(k, 3.0, (20,)),
    "batch of keys": lambda k: jax.vmap(lambda k: jax.random.normal(k, (3,)))(jax.random.split(k, 5)),
    "scan over keys": lambda k: lax.scan(
        lambda k, _: (jax.random.split(k)[0], jax.random.normal(k, (2,))), k, None, length=4
    )[1],
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name, small_target):
    got = ipuxla.jit(SAMPLES[name], target=small_target)(KEY)
    check_close(got, jax.jit(SAMPLES[name])(KEY), name)


def test_random_bits_of_an_array_are_made_in_one_pass(gc200):
    """Twenty rounds of two words each are one expression: none of them is stored between."""
    keep = ipuxla.jit(lambda key: jax.random.bits(key, (512, 512)), target=gc200).lower(KEY).compile()
    passes = [op for op in keep.profile(KEY).data["operations"] if op["numVertices"] >= gc200.num_tiles // 2]
    assert len(passes) == 1, [op["name"] for op in passes]


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_dropout_runs_by_its_code(implementation, small_target):
    def dropped(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0.0)

    key, x = jax.random.key(3, impl=implementation), jnp.arange(1.0, 241.0).reshape(12, 20)
    compiled = ipuxla.jit(dropped, target=small_target, engine="tile").lower(key, x).compile()
    np.testing.assert_array_equal(compiled(key, x), jax.jit(dropped)(key, x))
    missing = {name for name, c in compiled.tile_coverage().codelets.items() if c.by_code < c.vertices}
    assert all("uint64" in name for name in missing), missing  # a counter of 64 bits that goes on


@pytest.mark.parametrize("shape", [(6, 5, 24), (2, 3, 4, 20), (3, 1, 7, 10)])
def test_a_mask_of_many_rows_is_drawn_by_code(shape, small_target):
    """Elements are numbered along all dimensions; those of a tile's rows follow each other along one of them alone."""

    def dropout(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0)

    x = np.random.default_rng(0).random(shape, np.float32)
    compiled = check_engines(
        dropout, small_target, jax.random.PRNGKey(1), x, engines=("fast", "literal", "tile")
    )
    covered = coverage_of(compiled.executable, "float").codelets
    assert all(codelet.by_code == codelet.vertices for codelet in covered.values()), covered
