"""Expressions of bfloat16 have tile code: widened where they are read, rounded where they are written."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import ipuxla
from tiles.compiler import compile_graph
from tiles.engine import coverage_of, make_engine
from tiles.graph import PARALLEL, REDUCTION, Dim, Graph, IndexMap, OpForm, Site, along, identity_map
from tiles.poplibs.popops.reduce import combine_codelet
from tiles.poplibs.poputil import place

TARGET = ipuxla.Target.named("gc200").replace(num_tiles=2)
BITS = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
FINITE = BITS[np.isfinite(BITS.astype(np.float32))]
NORMAL = FINITE[np.abs(FINITE.astype(np.float32)) > 1e-30][::5]

CASES = {
    "exact": (lambda x: jnp.maximum(-x, 0), NORMAL),
    "chosen": (lambda x: jnp.where(x > 1, x, jnp.abs(x)), NORMAL),
    "a sum": (lambda x: x + x[::-1], NORMAL[np.abs(NORMAL.astype(np.float32)) < 1e30]),
    "a product": (lambda x: x * jnp.bfloat16(1.171875), NORMAL[np.abs(NORMAL.astype(np.float32)) < 1e30]),
    "to float32": (lambda x: x.astype(jnp.float32) * 3, NORMAL[np.abs(NORMAL.astype(np.float32)) < 1e30]),
    "of float32": (lambda x: (x.astype(jnp.float32) * 1.23).astype(jnp.bfloat16), NORMAL[:999]),
    "rows": (lambda x: x.reshape(3, -1) + x[:78], NORMAL[5000 : 5000 + 234]),
    "looked up": (lambda x: jnp.take(x, jnp.arange(10) * 3), NORMAL[:40]),
    "an odd number": (lambda x: x * x, NORMAL[6000:6033]),
    "infinite": (lambda x: x * 2, np.array([np.inf, -np.inf, 0, -0.0, 3e38, -3e38], ml_dtypes.bfloat16)),
}


@pytest.mark.parametrize("name", CASES)
def test_expressions_have_the_bits_that_xla_gives(name):
    function, x = CASES[name]
    compiled = ipuxla.jit(function, target=TARGET).lower(x).compile()
    assert "no tile code" not in str(compiled.tile_coverage())
    found = np.asarray(ipuxla.jit(function, target=TARGET, engine="tile")(x))
    expected = np.asarray(jax.jit(function)(x))
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


def test_every_float_next_to_a_tie_is_rounded_to_even():
    words = (np.arange(1 << 10, dtype=np.uint32) << 15) + np.uint32(0x3F800000)
    x = (words[:, None] + np.array([-1, 0, 1]).astype(np.uint32)).reshape(-1).view(np.float32)
    found = np.asarray(ipuxla.jit(lambda x: x.astype(jnp.bfloat16), target=TARGET, engine="tile")(x))
    assert found.tobytes() == x.astype(ml_dtypes.bfloat16).tobytes()


def test_nan_stays_nan():
    x = np.array([np.nan, -np.nan, 0x7FFFFFFF, 1], np.float32)
    x.view(np.uint32)[2] = 0x7FFFFFFF
    found = ipuxla.jit(lambda x: x.astype(jnp.bfloat16) + 1, target=TARGET, engine="tile")(x)
    assert np.isnan(np.asarray(found, np.float32)).tolist() == [True, True, True, False]


def test_normal_numbers_have_code():
    function = lambda key: jax.random.normal(key, (500,), jnp.bfloat16)  # noqa: E731
    key = jax.random.PRNGKey(3)
    compiled = ipuxla.jit(function, target=TARGET).lower(key).compile()
    assert "no tile code" not in str(compiled.tile_coverage())
    found = np.asarray(ipuxla.jit(function, target=TARGET, engine="tile")(key), np.float32)
    np.testing.assert_allclose(found, np.asarray(jax.jit(function)(key), np.float32), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("shape", [(5, 40), (1, 300), (64, 7)])
def test_places_of_greatest_elements_have_code(shape):
    """Few rows that workers share, and many; the first of equal elements, with NaN in some rows."""
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(ml_dtypes.bfloat16)
    x[0, -2] = np.nan

    def function(x):
        return (
            jnp.argmax(x, 1),
            jnp.argmin(x, 0),
            lax.reduce(
                (x, x * 2),
                (jnp.bfloat16(-99), jnp.bfloat16(0)),
                lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1]),
                (1,),
            ),
        )

    compiled = ipuxla.jit(function, target=TARGET).lower(x).compile()
    assert "several arrays" not in str(compiled.tile_coverage())
    expected = jax.tree.leaves(jax.jit(function)(x))
    for got, want in zip(
        jax.tree.leaves(ipuxla.jit(function, target=TARGET, engine="tile")(x)), expected, strict=True
    ):
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(want, np.float32))
    one, other = (
        jax.tree.leaves(ipuxla.jit(function, target=TARGET, engine=e, arithmetic="ring")(x))
        for e in ("fast", "tile")
    )
    for a, b in zip(one, other, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("engine", ["literal", "tile"])
def test_in_the_ring_engines_agree(engine):
    x = NORMAL[1000:1300]
    program = [
        ipuxla.jit(lambda x: jnp.tanh(x * 2) - x, target=TARGET, engine=e, arithmetic="ring")
        for e in ("fast", engine)
    ]
    one, other = (np.asarray(f(x)) for f in program)
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("reduced", [(0,), (1,), (0, 2)])
@pytest.mark.parametrize("operation", ["add", "mul"])
def test_partials_are_folded_in_float32_and_rounded_once(operation, reduced):
    """Whole numbers, so that the order of sums does not matter; of what a fold in bfloat16 gives some are others."""
    shape = 9, 8, 4
    x = (
        np.random.default_rng(0)
        .integers(1, 3 if operation == "mul" else 90, shape)
        .astype(ml_dtypes.bfloat16)
    )
    dims = tuple(Dim(f"d{d}", n, REDUCTION if d in reduced else PARALLEL) for d, n in enumerate(shape))
    kept = IndexMap(tuple(along(d) for d in range(3) if d not in reduced))
    graph = Graph(TARGET)
    codelet = combine_codelet(operation, "bfloat16", "bfloat16")
    form = OpForm(dims, (identity_map(3),), (kept,))
    found = place(Site(graph, "fold"), codelet, form, [graph.add_input(shape, "bfloat16")], ("bfloat16",))
    graph.outputs = [found[0].name]
    executable = compile_graph(graph)
    assert coverage_of(executable).vertices_share == 1
    (got,), _ = make_engine(executable, "tile").run(x)
    wide = (np.sum if operation == "add" else np.prod)(x.astype(np.float64), axis=reduced)
    assert np.asarray(got).tobytes() == wide.astype(ml_dtypes.bfloat16).tobytes()
    in_ring = [make_engine(executable, e, arithmetic="ring").run(x)[0][0] for e in ("tile", "literal")]
    np.testing.assert_array_equal(*in_ring)
