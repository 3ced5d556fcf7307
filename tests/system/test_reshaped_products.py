"""What comes out of a product is reshaped as models write it: rows divided into batches and tokens, columns into heads, or joined."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ipuxla
from ipuxla import testing
from tests.budgets import PLAN, budget
from tiles.graph import AxisSplit, Layout, aligned_layout, reshape_layout, whole
from tiles.graph.layout import MOST_UNEVEN
from tiles.planning import programs


def _loss(x, w, y):
    logits = (x @ w).reshape(-1, w.shape[1]).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y.reshape(-1, 1), 1).mean()


def _half(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float16)


LARGE = {
    "logits": (
        lambda x, w: (x.reshape(-1, 128) @ w).reshape(4, 1024, 8192),
        (_half(4, 1024, 128), _half(128, 8192)),
    ),
    "heads": (lambda x, w: (x @ w).reshape(4, 1024, 3, 32, 128), (_half(4096, 128), _half(128, 12288))),
    "loss": (_loss, (_half(4, 1024, 128), _half(128, 8192), jax.ShapeDtypeStruct((4, 1024), jnp.int32))),
    "rows that no tile's share divides": (
        lambda x, w: (x.reshape(-1, 256) @ w).reshape(3, 1000, 10000),
        (_half(3, 1000, 256), _half(256, 10000)),
    ),
    "overlapping parts": (
        lambda x, w: (x @ w).reshape(4, 32, 32, 2, 8, 1024)[:, :, :, 0],
        (_half(4096, 128), _half(128, 16384)),
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_ones_take_little_longer_than_products_that_stay_as_they_are(name) -> None:
    """They were refused: their copies were listed stretch by stretch, of which there were more than 2^25."""
    function, shapes = LARGE[name]
    compiled = ipuxla.jit(function, target="gc200").lower(*shapes).compile()
    compiled.certify()
    x, w = shapes[:2]
    plain = ipuxla.jit(lambda x, w: x @ w, target="gc200").lower(_half(x.size // w.shape[0], w.shape[0]), w)
    if name != "loss":
        assert compiled.cost_analysis()["cycles"] < 2 * plain.compile().cost_analysis()["cycles"]


def test_what_a_loop_carries_in_the_shape_of_the_result() -> None:
    """It lies where the loop has it, and more is reshaped than is listed stretch by stretch."""

    def run(x, w, logits):
        return jax.lax.fori_loop(0, 3, lambda t, y: (x @ w).reshape(4, 1024, 8192) + y * 0.5, logits)

    shapes = _half(4096, 128), _half(128, 8192), _half(4, 1024, 8192)
    ipuxla.jit(run, target="gc200").lower(*shapes).compile().certify()


def test_what_a_loop_carries_on_every_engine(monkeypatch) -> None:
    monkeypatch.setattr(programs, "MOST_STRETCHES", 1)
    rng = np.random.default_rng(6)
    x, w, logits = (rng.standard_normal(shape, np.float32) for shape in ((30, 6), (6, 14), (3, 10, 14)))

    def run(x, w, logits):
        return jax.lax.fori_loop(0, 3, lambda t, y: (x @ w).reshape(3, 10, 14) + jnp.flip(y, 1) * 0.5, logits)

    target = ipuxla.Target.named("gc200").replace(num_tiles=7)
    compiled = testing.check_engines(run, target, x, w, logits)
    assert "reshaped" in compiled.as_text("program")


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x.reshape(-1, 6) @ w).reshape(3, 10, 14),
        lambda x, w: (x @ w).reshape(3, 10, 2, 7).sum(2),
        lambda x, w: jax.nn.softmax((x @ w).reshape(-1, 14)),
        lambda x, w: (x.reshape(-1, 6) @ w).reshape(5, 3, 2, 14)[:, 1],
    ],
)
@pytest.mark.parametrize("num_tiles", [7, 16])
def test_on_every_engine(function, num_tiles) -> None:
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((3, 10, 6), np.float32), rng.standard_normal((6, 14), np.float32)
    testing.check_engines(function, ipuxla.Target.named("gc200").replace(num_tiles=num_tiles), x, w)


@st.composite
def _cases(draw) -> tuple[Layout, tuple[int, ...]]:
    """Layouts of one number of elements, and another shape of as many."""
    factors = draw(st.lists(st.integers(1, 7), min_size=1, max_size=6))

    def grouped() -> tuple[int, ...]:
        cuts = sorted(draw(st.sets(st.integers(1, len(factors)), max_size=3)) | {0, len(factors)})
        return tuple(int(np.prod(factors[a:b])) for a, b in itertools.pairwise(cuts))

    axes, stride = list[AxisSplit](), 1
    for size in grouped():
        grain = draw(st.integers(1, size))
        parts = -(-size // grain)
        axes.append(AxisSplit(size, grain, ((parts, stride),)) if parts > 1 else whole(size))
        stride *= parts
    return Layout(tuple(axes)), grouped()


@budget(PLAN)
@given(_cases(), st.integers(1, 300))
def test_a_layout_near_another_is_one_that_the_reshape_keeps(case, more) -> None:
    layout, shape = case
    num_tiles = int(np.prod([axis.parts for axis in layout.axes])) + more
    found = aligned_layout(layout, shape, num_tiles)
    if found is None:
        return
    assert found.shape == layout.shape
    assert reshape_layout(found, shape) is not None
    assert found.tiles.max() < num_tiles
    assert np.prod(found.part_shape) <= MOST_UNEVEN * np.prod(layout.part_shape)


def test_rows_that_a_batch_divides_are_cut_within_it() -> None:
    layout = Layout((AxisSplit(4096, 46, ((90, 16),)), AxisSplit(8192, 512, ((16, 1),))))
    found = aligned_layout(layout, (4, 1024, 8192), 1472)
    assert found is not None and found.part_shape == (64, 512)
    joined = Layout((AxisSplit(4, 1, ((4, 23),)), AxisSplit(1024, 46, ((23, 1),)), whole(8192)))
    found = aligned_layout(joined, (4096, 8192), 100)
    assert found is not None and found.part_shape == (1, 64, 8192)
