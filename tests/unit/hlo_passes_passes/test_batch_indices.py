"""Lookups and updates of which an index counts are those of a batch; the witness is ``jax.jit``, on every bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module
from hlo_passes.ops import Gather, Scatter
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.testing import check_engines
from tests.budgets import PLAN, budget

PIPELINE = "inline,fix(canonicalize,fold-constants,cse,dce),batch-indices,dce"
MODES = {"clip": lax.GatherScatterMode.CLIP, "fill": lax.GatherScatterMode.FILL_OR_DROP}
RNG = np.random.default_rng(3)


def batched(function, *arguments) -> tuple[list[int], list[np.ndarray]]:
    """Return how many dimensions of a batch each lookup and update has after the pass, and what the module gives."""
    module = import_stablehlo(jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir("stablehlo"))
    changed = optimize(module, PIPELINE)
    found: list[int] = []
    for instruction in (i for computation in changed.computations for i in computation.instructions):
        if isinstance(instruction.op, Gather):
            found.append(len(instruction.op.dimension_numbers.operand_batching_dims))
        if isinstance(instruction.op, Scatter):
            found.append(len(instruction.op.dimension_numbers.input_batching_dims))
    return found, [np.asarray(x) for x in evaluate_module(changed, *arguments)]


def check(function, *arguments, dimensions: list[int]) -> None:
    found, values = batched(function, *arguments)
    assert found == dimensions
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    for value, want in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, np.asarray(want))


X = RNG.standard_normal((6, 5, 4)).astype(np.float32)
AT = np.array([0, 4, -1, 2, 9, -7], np.int32)
U = RNG.standard_normal((6, 4)).astype(np.float32)
CASES = {
    "rows": (lambda x, i: x[jnp.arange(6), i], (X, AT), [1]),
    "the first rows": (lambda x, i: x[jnp.arange(3), i[:3]], (X, AT), [1]),
    "two that count": (lambda x, i: x[jnp.arange(6)[:, None], i[:, None], jnp.arange(4)], (X, AT), [2]),
    "the same count twice": (lambda x, i: x[jnp.arange(4), jnp.arange(4), i[:4]], (X, AT), [1]),
    "all that count": (lambda x: x[jnp.arange(4), jnp.arange(4)], (X,), [1]),
    "the last counts": (lambda x, i: x[i[:5, None], jnp.arange(5), i[:5, None]], (X, AT), [1]),
    "bytes that wrap round": (
        lambda y, i: (
            y[jnp.arange(200).astype(jnp.int8).astype(jnp.int32), i],
            y[lax.iota(jnp.uint8, 300), i[:1]],
        ),
        (np.arange(900.0, dtype=np.float32).reshape(300, 3), np.zeros(200, np.int32)),
        [0, 0],
    ),
    "behind": (lambda x, i: x[jnp.arange(-6, 0), i], (X, AT), [0]),
    "downwards": (lambda x, i: x[jnp.arange(6)[::-1], i], (X, AT), [0]),
    "from one on": (lambda x, i: x[jnp.arange(1, 6), i[:5]], (X, AT), [0]),
    "in twos": (lambda x, i: x[jnp.arange(0, 6, 2), i[:3]], (X, AT), [0]),
    "a number of bytes": (lambda x, i: x[jnp.arange(6, dtype=jnp.uint8), i], (X, AT), [1]),
    "as a list": (lambda x, i: x[np.arange(6), i], (X, AT), [1]),
    "set": (lambda x, i, u: x.at[jnp.arange(6), i].set(u), (X, AT, U), [1]),
    "add": (lambda x, i, u: x.at[jnp.arange(6), i].add(u), (X, AT, U), [1]),
    "set some": (lambda x, i, u: x.at[jnp.arange(3), i[:3]].set(u[:3]), (X, AT, U), [0]),
    "several each": (
        lambda x, i, u: x.at[jnp.arange(6)[:, None], jnp.stack([i, i[::-1]], 1)].max(jnp.stack([u, -u], 1)),
        (X, AT, U),
        [1],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_indices_that_count(name):
    function, arguments, dimensions = CASES[name]
    check(function, *arguments, dimensions=dimensions)


def test_gradients():
    def loss(x, i):
        return -jax.nn.log_softmax(x)[jnp.arange(6), i].mean()

    x, i = X[:, :, 0], np.abs(AT) % 5
    found, values = batched(jax.grad(loss), x, i)
    assert found and all(found)
    np.testing.assert_allclose(values[0], jax.jit(jax.grad(loss))(x, i), rtol=1e-6, atol=1e-7)


@given(
    st.lists(st.sampled_from(["counts", "given"]), min_size=2, max_size=3),
    st.sampled_from(list(MODES)),
    st.sampled_from(["get", "set", "add", "min"]),
    st.lists(st.integers(-9, 9), min_size=24, max_size=24),
    st.permutations(range(3)),
)
@budget(PLAN)
def test_any_components(kinds, mode, operation, numbers, order):
    """Indices ``[4, 3, 2]`` whose components count along one of the dimensions, or are given; some beyond the array."""
    rank = len(kinds)
    shape = (4, 3, 2)
    given_ = jnp.array(numbers, jnp.int32).reshape(shape)
    along = [order[k] for k in range(rank)]
    sizes = [shape[d] if kind == "counts" else 5 for kind, d in zip(kinds, along, strict=True)]
    x = RNG.standard_normal((*sizes, 2)).astype(np.float32)
    u = RNG.standard_normal((*shape, 2)).astype(np.float32)

    def index(given_):
        return tuple(
            lax.broadcasted_iota(jnp.int32, shape, d) if kind == "counts" else given_ + k
            for k, (kind, d) in enumerate(zip(kinds, along, strict=True))
        )

    def function(x, given_, u):
        if operation == "get":
            return x.at[index(given_)].get(mode=MODES[mode])
        return getattr(x.at[index(given_)], operation)(u, mode=MODES[mode])

    counted = min(kinds.count("counts"), rank - 1)
    found, values = batched(function, x, given_, u)
    assert found == [counted]
    expected = jax.jit(function)(x, given_, u)
    if operation == "set":  # of several updates of an element any may be the last
        numbers = np.stack(np.broadcast_arrays(*index(given_)), -1).reshape(-1, rank)
        if len(np.unique(np.clip(numbers, 0, np.array(sizes) - 1), axis=0)) < len(numbers):
            return
    np.testing.assert_allclose(values[0], expected, rtol=1e-6, atol=1e-6)


def test_on_a_machine_rows_stay_where_they_are():
    """As cheap as the lookup and the update under ``jax.vmap``, and the same on all engines."""
    target = ipuxla.Target.named("gc200").replace(num_tiles=4)
    check_engines(lambda x, i, u: x.at[jnp.arange(6), i].add(u * x[jnp.arange(6), i]), target, X, AT, U)
    x, i, u = (jax.ShapeDtypeStruct(s, d) for s, d in (((256, 64), "f4"), ((256,), "i4"), ((256,), "f4")))
    counted = ipuxla.jit(lambda x, i, u: x.at[jnp.arange(256), i].set(u), target="gc200")
    mapped = ipuxla.jit(jax.vmap(lambda x, i, u: x.at[i].set(u)), target="gc200")
    cycles = [f.lower(x, i, u).compile().cost_analysis()["cycles"] for f in (counted, mapped)]
    assert cycles[0] <= cycles[1]
