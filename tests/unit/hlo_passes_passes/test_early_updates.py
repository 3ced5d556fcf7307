"""Updates of donated parameters go right after what they wait for; nothing else moves, and values stay."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hlo_passes.ir import Module, evaluate_module, print_module, verify
from hlo_passes.passes import EarlyUpdates, Serialize, analyze, default_pipeline, optimize
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.ways import Ways

SOME = "inline,cse,dce,fuse"
LAYERS = 6
RNG = np.random.default_rng(3)
WEIGHTS = [RNG.standard_normal((8, 8)).astype(np.float32) for _ in range(LAYERS)]
X = RNG.standard_normal((8, 8)).astype(np.float32)
MANY = RNG.standard_normal(2000).astype(np.float32)


def step(x: jax.Array, *weights: jax.Array) -> list[jax.Array]:
    """What stands for gradients is sorted, so that it is no part of the updates; these come after all of them."""
    gradients = []
    for w in weights:
        x = jnp.sort(x * w, 1)
        gradients.append(jnp.sort(x, 0))
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


def after_more(many: jax.Array, x: jax.Array, *weights: jax.Array) -> list[jax.Array]:
    """Most is held before the first gradient, whenever weights are updated."""
    return step(x + jnp.sort(jnp.sort(many) * many)[:64].reshape(8, 8), *weights)


def imported(
    function: Callable[..., object], arrays: Sequence[np.ndarray], donated: tuple[int, ...]
) -> Module:
    module = import_stablehlo(jax.jit(function, keep_unused=True).lower(*arrays).compiler_ir("stablehlo"))
    return dataclasses.replace(module, donated=donated)


def kept_bytes(module: Module) -> int:
    """Return the bytes that are live, over all instructions together."""
    return sum(analyze(module.entry_computation, module.donated).live_bytes)


def test_each_weight_is_updated_before_the_next_gradient_is_computed() -> None:
    module = optimize(imported(step, (X, *WEIGHTS), tuple(range(1, LAYERS + 1))), SOME)
    early = optimize(module, "early-updates")
    verify(early)
    assert kept_bytes(early) < kept_bytes(module)
    entry = early.entry_computation
    made = {v: n for n, i in enumerate(entry.instructions) for v in i.results}
    updates = sorted(made[v] for v in entry.results)
    (apart,) = {b - a for a, b in itertools.pairwise(updates)}
    assert apart >= 3, "what is sorted and sorted again lies between two updates"
    assert optimize(early, "early-updates") is early
    for got, want in zip(evaluate_module(early, X, *WEIGHTS), step(X, *WEIGHTS), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_what_is_not_donated_stays_where_it_is() -> None:
    module = optimize(imported(step, (X, *WEIGHTS), ()), SOME)
    assert optimize(module, "early-updates") is module


@given(st.data())
def test_any_program_computes_the_same_and_holds_no_more(data: st.DataObject) -> None:
    """Sums, products, matrix products and folds of values drawn, some parameters donated, some values returned twice."""
    count = data.draw(st.integers(2, 4))
    arrays = [RNG.integers(-3, 4, (4, 4)).astype(np.float32) for _ in range(count)]
    rows = data.draw(
        st.lists(
            st.tuples(st.sampled_from("+*@s"), st.integers(0, 30), st.integers(0, 30)),
            min_size=2,
            max_size=14,
        )
    )
    shown = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=5))
    donated = data.draw(st.sets(st.integers(0, count - 1)))

    def function(*values: jax.Array) -> list[jax.Array]:
        found = list(values)
        for kind, a, b in rows:
            x, y = found[a % len(found)], found[b % len(found)]
            made = {"+": x + y, "*": x * y, "@": x @ y, "s": x - y.sum(0)}[kind]
            found.append(jnp.clip(made, -8, 8))
        return [found[-1 - n % len(found)] for n in shown]

    module = optimize(imported(function, arrays, tuple(sorted(donated))), SOME)
    early = optimize(module, EarlyUpdates.name)
    verify(early)
    peaks = [analyze(m.entry_computation, m.donated).peak_bytes for m in (early, module)]
    assert peaks[0] <= peaks[1]
    assert sorted(map(str, early.entry_computation.instructions)) == sorted(
        map(str, module.entry_computation.instructions)
    )
    for got, want in zip(evaluate_module(early, *arrays), evaluate_module(module, *arrays), strict=True):
        assert np.array_equal(got, want)


def test_they_are_a_second_way_where_much_is_held() -> None:
    module = imported(after_more, (MANY, X, *WEIGHTS), tuple(range(2, LAYERS + 2)))
    peak = 2 * MANY.nbytes + X.nbytes * (LAYERS + 1)
    one, two = (Ways(module, default_pipeline(Serialize(memory))) for memory in (4 * peak, 2 * peak))
    assert len(one) == 1
    assert len(two) == 2
    assert print_module(two[1]) == print_module(optimize(two[0], "early-updates")) != print_module(two[0])
