"""Lookups, updates, sorting, arg-reductions, cumulative operations and random numbers, on every engine.

Floats are compared with ``jax.jit``, ring words with the optimized module's, and every program is certified.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.testing import check_engines

TABLE = jnp.linspace(-1.0, 1.0, 180).reshape(30, 6)
IDS = jnp.array([3, 29, 0, 3, 17])
NORMAL = jax.random.normal(jax.random.key(0), (6, 20))
WORDS = jnp.arange(4, dtype=jnp.uint32)


def _embedding_gradient(table, ids):
    return jax.grad(lambda t: (t[ids] ** 2).sum())(table)


PROGRAMS = {
    "dynamic slice": (lambda x, i: lax.dynamic_slice(x, (i, 2), (3, 4)) * 2, TABLE, 28),
    "row": (lambda x, i: lax.dynamic_index_in_dim(x, i, 0, keepdims=False) + 1, TABLE, 11),
    "dynamic update": (lambda x, u, i: lax.dynamic_update_slice(x * 2, u, (i, 2)), TABLE, TABLE[:3, :4], 7),
    "batched slices": (jax.vmap(lambda x, i: lax.dynamic_slice(x, (i,), (3,))), TABLE[:5], IDS),
    "batched updates": (
        jax.vmap(lambda x, u, i: lax.dynamic_update_slice(x, u, (i,))),
        TABLE[:5],
        TABLE[5:10, :2],
        IDS,
    ),
    "embedding": (lambda t, i: t[i] * 2, TABLE, IDS),
    "embedding gradient": (_embedding_gradient, TABLE, IDS),
    "take": (lambda t, i: jnp.take(t, i, axis=1), TABLE, jnp.array([[1, -1], [9, 2]])),
    "take along axis": (
        lambda t, i: jnp.take_along_axis(t, i, axis=0),
        TABLE,
        jnp.tile(IDS[:, None], (1, 6)),
    ),
    "set": (lambda t, i: t.at[i].set(5.0), TABLE, IDS),
    "add elements": (lambda t, i, u: t.at[i, i % 6].add(u), TABLE, IDS, jnp.arange(5.0)),
    "multiply": (lambda t, i, u: (t * 2).at[i].multiply(u), TABLE, IDS, TABLE[:5]),
    "subtract": (lambda t, i, u: t.at[i].subtract(u), TABLE, IDS, TABLE[:5]),
    "apply": (lambda t, i: t.at[i].apply(lambda x: x * x + 1), TABLE, IDS),
    "apply in batches": (
        jax.vmap(lambda t, i: t.at[i].apply(jnp.sin)),
        TABLE[:5],
        jnp.array([[1, 1], [2, 3], [0, 5], [4, 4], [3, 9]]),
    ),
    "set many": (
        lambda t, i: t.at[i].set(jnp.arange(2000.0)),
        jnp.ones(300),
        jnp.arange(2000) * 7 % 303,
    ),
    "greatest": (lambda t, i, u: t.at[:, i].max(u), TABLE, jnp.array([1, 5, 1]), TABLE[:, :3] + 0.5),
    "booleans": (lambda t, i: t.at[i].max(True), TABLE > 0.5, IDS),
    "embedding step": (lambda t, i: t - 0.1 * _embedding_gradient(t, i), TABLE, IDS),
    "embedding that is a projection, too": (
        jax.grad(lambda t, i: (jnp.tanh(t[i]) @ t.T).sum() - t.sum()),
        TABLE,
        IDS,
    ),
    "segment sum": (
        lambda x, i: jax.ops.segment_sum(x, i, num_segments=7),
        jnp.arange(100.0),
        jnp.arange(100) * 13 % 9,
    ),
    "sort": (lambda x: jnp.sort(x, axis=-1), NORMAL.at[1, 3].set(jnp.nan).at[2, 4:6].set(-0.0)),
    "sort descending": (lambda x: jnp.sort(x, axis=0, descending=True), NORMAL),
    "argsort": (lambda x: jnp.argsort(x, axis=1), NORMAL),
    "sort by two keys": (
        lambda x, y: lax.sort((x, y, x + y), num_keys=2),
        (NORMAL * 2).astype(jnp.int32),
        NORMAL,
    ),
    "top k": (lambda x: lax.top_k(x * 2, 3), NORMAL),
    "top k, approximately": (lambda x: lax.approx_max_k(x, 3, aggregate_to_topk=False), NORMAL),
    "argmax": (lambda x: jnp.argmax(x, axis=1), NORMAL),
    "argmin of all": (lambda x: jnp.argmin(x), NORMAL),
    "argmax, long": (lambda x: jnp.argmax(x, axis=1), jnp.sin(jnp.arange(6000.0)).reshape(2, 3000)),
    "cumulative sum": (lambda x: jnp.cumsum(x, axis=1), NORMAL),
    "cumulative maximum": (lambda x: lax.cummax(x, axis=0), NORMAL),
    "searchsorted": (lambda a, v: jnp.searchsorted(jnp.sort(a), v), NORMAL[0], NORMAL[1, :5]),
    "unique": (lambda x: jnp.unique(x, size=6, fill_value=-1), IDS),
    "threefry bits": (
        lambda k: lax.rng_bit_generator(k, (5, 7), algorithm=lax.RandomAlgorithm.RNG_THREE_FRY),
        WORDS,
    ),
    "philox bits": (lambda k: lax.rng_bit_generator(k, (5, 7), dtype=np.uint8), WORDS),
    "uniform": (lambda k: jax.random.uniform(k, (40,)), jax.random.key(3)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_engine(name, small_target):
    function, *args = PROGRAMS[name]
    check_engines(function, small_target, *args, floats=("fast",))


RANDOM = {
    "normal": lambda k: jax.random.normal(k, (30,)),
    "permutation": lambda k: jax.random.permutation(k, 37),
    "categorical": lambda k: jax.random.categorical(k, NORMAL),
    "dropout": lambda k: jnp.where(jax.random.bernoulli(k, 0.8, NORMAL.shape), NORMAL / 0.8, 0),
    "split": lambda k: jax.random.uniform(jax.random.split(k)[1], (5, 5)),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers(name, small_target):
    check_engines(RANDOM[name], small_target, jax.random.key(7), engines=("fast",))


def test_a_donated_table_is_updated_in_place(small_target):
    update = ipuxla.jit(
        lambda t, row, i: lax.dynamic_update_slice(t, row, (i, 0)), donate_argnums=0, target=small_target
    )
    compiled = update.lower(TABLE, TABLE[:1], 4).compile()
    names = compiled.executable.inputs[0], compiled.executable.outputs[0]
    first, last = (compiled.executable.address(name) for name in names)
    assert first == last


TWO_INPUTS = """func.func @main(%x: tensor<9xf32>, %y: tensor<9xi32>, %i: tensor<6xi32>, %u: tensor<6xf32>, %v: tensor<6xi32>)
    -> (tensor<9xf32>, tensor<9xi32>) {
  %0:2 = "stablehlo.scatter"(%x, %y, %i, %u, %v) ({
    ^bb0(%a: tensor<f32>, %b: tensor<i32>, %c: tensor<f32>, %d: tensor<i32>):
      %p = stablehlo.compare GT, %c, %a : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %q = stablehlo.select %p, %c, %a : tensor<i1>, tensor<f32>
      %r = stablehlo.select %p, %d, %b : tensor<i1>, tensor<i32>
      stablehlo.return %q, %r : tensor<f32>, tensor<i32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0],
      scatter_dims_to_operand_dims = [0], index_vector_dim = 1>,
      indices_are_sorted = false, unique_indices = false}
    : (tensor<9xf32>, tensor<9xi32>, tensor<6xi32>, tensor<6xf32>, tensor<6xi32>) -> (tensor<9xf32>, tensor<9xi32>)
  return %0#0, %0#1 : tensor<9xf32>, tensor<9xi32>
}"""


@pytest.mark.parametrize("engine", ["fast", "literal", "hlo"])
def test_two_inputs_are_scattered_into_together(engine, small_target):
    x, places = np.zeros(9, np.float32), np.array([3, 0, 3, 8, 3, 9], np.int32)
    values, names = np.array([2, -1, 5, 4, 3, 7], np.float32), np.arange(10, 16, dtype=np.int32)
    found = ipuxla.compile_stablehlo(TWO_INPUTS, small_target, engine=engine)(
        x, np.arange(9, dtype=np.int32), places, values, names
    )
    np.testing.assert_array_equal(found[0], [0, 0, 0, 5, 0, 0, 0, 0, 4])
    np.testing.assert_array_equal(found[1], [0, 1, 2, 12, 4, 5, 6, 7, 13])


@pytest.mark.parametrize("operation", ["set", "add"])
def test_many_updates_of_a_long_row_are_split_over_tiles(operation, gc200):
    def update(x, i, u):
        return getattr(x.at[i], operation)(u)

    x, i = jnp.zeros(1_000_000), jnp.arange(100_000) * 7919 % 1_000_003
    u = jnp.arange(100_000.0)
    check_engines(update, gc200, x, i, u, engines=("fast",))


def test_maxima_of_many_updates_formed_in_parts_certify():
    """XLA folds parts of some shapes without their NaN: no proof of what a composite computes may rest on it."""
    updates, places = np.arange(3000, dtype=np.float32), np.arange(3000, dtype=np.int32) % 500
    largest = ipuxla.jit(lambda x, i: jax.ops.segment_max(x, i, 500)).lower(updates, places).compile()
    assert largest.executable.composites
    assert largest.certify().composites_run == len(largest.executable.composites)
    np.testing.assert_array_equal(largest(updates, places), np.arange(2500, 3000, dtype=np.float32))


def test_a_slice_of_a_view_of_a_view_certifies(small_target):
    """A grouped convolution's result is a view, and so is what drops its batch: the proof needs all that it reads by."""

    def cut(x, i):
        signals = jax.vmap(lambda row: jnp.convolve(row, row[:2], mode="same"))(x)
        return jax.lax.dynamic_slice(signals, (i, i), (8, 100))

    x, i = jnp.cos(jnp.arange(60_000.0)).reshape(200, 300), jnp.int32(7)
    compiled = ipuxla.jit(cut, target=small_target).lower(x, i).compile()
    assert compiled.certify().composites_run == len(compiled.executable.composites) == 1
    np.testing.assert_allclose(compiled(x, i), jax.jit(cut)(x, i), rtol=1e-5, atol=1e-5)


def test_what_a_loop_updates_lies_on_many_tiles(gc200):
    """An element a trip is updated as quickly on 22 tiles as on hundreds, but written there 32 times more slowly."""

    def counted(x, places):
        return jax.lax.scan(lambda x, place: (x.at[place].add(1.0), None), x, places)[0]

    arguments = [jax.ShapeDtypeStruct((1 << 20,), np.float32), jax.ShapeDtypeStruct((100,), np.int32)]
    compiled = ipuxla.jit(counted, target=gc200).lower(*arguments).compile()
    assert compiled.memory_analysis()["peak_bytes"] < 20_000  # 385,000 on 22 tiles
    assert compiled.cost_analysis()["cycles"] < 145_000  # 165,064
