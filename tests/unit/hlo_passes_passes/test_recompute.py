"""Values are computed again where contractions read them: less is kept, layers are treated alike, no bit changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ipuxla
from hlo_passes import ops
from hlo_passes.ir import Module, evaluate_module, print_module, verify
from hlo_passes.passes import Serialize, default_pipeline, optimize, recompute
from hlo_passes.passes.rematerialize import Kept
from ipuxla.fitting import planned_to_fit
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.ways import Ways
from tests.budgets import PLAN, budget
from tests.comparison import assert_same_bits, results

BEFORE = "inline,cse,dce,recover-networks,rematerialize,dce"
ROWS, WIDTH = 64, 16
LAYERS = 4
RNG = np.random.default_rng(5)


def both(function: Callable[..., Any], *arguments: Any) -> tuple[Module, Module]:
    """Return a function's module before and after the pass, nothing in it that nobody reads."""
    module = import_stablehlo(jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir("stablehlo"))
    before = optimize(module, BEFORE)
    after = optimize(before, "recompute,dce")
    verify(after)
    return before, after


def kept_bytes(module: Module) -> int:
    return Kept(module.entry_computation, module.donated).size_bytes


def count(module: Module, kind: type[ops.Op]) -> int:
    return sum(isinstance(i.op, kind) for i in module.entry_computation.instructions)


def assert_computes_the_same(before: Module, after: Module, *arguments: np.ndarray) -> None:
    assert_same_bits(results(before, arguments), results(after, arguments))


def activated(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
    """Layers whose gradients read the operand of each activation, and what it gives."""
    for w in weights:
        x = jnp.tanh(jnp.exp(x * 0.1)) @ w
    return (x**2).sum()


def added(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
    """Layers that add to what comes in, of which the next one's gradient reads the sum, and the function's what it is of."""
    for w in weights:
        x = x + jax.nn.gelu(x @ w)
    return (x**2).sum()


def arguments(rows: int = ROWS) -> tuple[np.ndarray, ...]:
    weights = [RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4 for _ in range(LAYERS)]
    return RNG.standard_normal((rows, WIDTH)).astype(np.float32), *weights


def gradients(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    return lambda x, *weights: jax.grad(function, argnums=(0, 1))(x, list(weights))


def test_what_activations_give_is_not_kept() -> None:
    """Of each layer two arrays are kept before, the operand's exponential and the result; one of them after."""
    before, after = both(gradients(activated), *arguments())
    assert kept_bytes(after) <= 0.7 * kept_bytes(before)
    assert count(after, ops.DotGeneral) == count(before, ops.DotGeneral)
    assert_computes_the_same(before, after, *arguments())


def test_what_a_short_contraction_gives_is_not_kept() -> None:
    """Rather than the sums of what all layers add, which would be computed from all layers before."""
    before, after = both(gradients(added), *arguments())
    assert kept_bytes(after) < kept_bytes(before)
    assert count(after, ops.DotGeneral) > count(before, ops.DotGeneral)
    assert_computes_the_same(before, after, *arguments())


def test_long_contractions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "MOST_PRODUCTS", 3)
    before, after = both(gradients(added), *arguments())
    assert count(after, ops.DotGeneral) == count(before, ops.DotGeneral)
    assert_computes_the_same(before, after, *arguments())


def test_layers_that_are_alike_are_treated_alike() -> None:
    """Each layer's gradient computes as much again as any other's, but for the last one's, which is read at once."""
    _, after = both(gradients(activated), *arguments())
    makers = Counter(
        i.location.line for i in after.entry_computation.instructions if isinstance(i.op, ops.Nonlinearity)
    )
    assert makers, "activations are recovered"
    assert max(makers.values()) >= 2 * LAYERS - 1


def test_results_and_what_is_read_at_once_are_not_computed_again() -> None:
    def function(x: jax.Array) -> Any:
        y = jnp.exp(x)
        return y, jnp.sort(y @ y.T)

    module = import_stablehlo(jax.jit(function).lower(arguments()[0]).compiler_ir("stablehlo"))
    before = optimize(module, BEFORE)
    assert optimize(before, "recompute") is before


STEPS = st.lists(
    st.tuples(st.sampled_from("+*@estbc"), st.integers(0, 40), st.integers(0, 40)), min_size=3, max_size=16
)


@budget(PLAN)
@given(STEPS, st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 80), st.integers(1, 6))
def test_any_program_computes_the_same_bits_and_keeps_no_more(
    steps: list[tuple[str, int, int]], shown: list[int], near: int, most: int
) -> None:
    """Sums, products, matrix products, functions, sorts, types and barriers of values drawn, and the gradient of all of it."""

    def value(*found: jax.Array) -> jax.Array:
        made = list(found)
        for kind, a, b in steps:
            x, y = made[a % len(made)], made[b % len(made)]
            made.append(
                {
                    "+": lambda x=x, y=y: x + y,
                    "*": lambda x=x, y=y: x * y,
                    "@": lambda x=x, y=y: x @ y * 0.25,
                    "e": lambda x=x: jnp.exp(-jnp.abs(x)),
                    "s": lambda x=x: jnp.sort(x, 0),
                    "t": lambda x=x: jnp.tanh(x),
                    "b": lambda x=x: jax.lax.optimization_barrier(x),
                    "c": lambda x=x: x.astype(jnp.float16).astype(jnp.float32),
                }[kind]()
            )
        return sum(jnp.sin(made[-1 - n % len(made)]).sum() for n in shown)

    arrays = [RNG.standard_normal((16, 16)).astype(np.float32) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recompute, "NEAR", near)
        patch.setattr(recompute, "MOST_OPS", most)
        before, after = both(jax.grad(value, argnums=(0, 1)), *arrays)
    assert kept_bytes(after) <= kept_bytes(before)
    assert_computes_the_same(before, after, *arrays)


def test_it_is_another_way_where_much_is_held() -> None:
    """With donated weights updated early, where that is a way of its own, too; not where what is held is little."""
    given_ = arguments()
    lowered = jax.jit(gradients(activated)).lower(*given_)
    module = import_stablehlo(lowered.compiler_ir("stablehlo"))
    one = Ways(module, default_pipeline(Serialize(10**6)))
    assert len(one) == 1
    several = Ways(module, default_pipeline(Serialize(20 * given_[0].nbytes)))
    assert len(several) >= 2
    last = several[len(several) - 1]
    assert print_module(last) != print_module(several[0])
    for one, other in zip(evaluate_module(last, *given_), evaluate_module(several[0], *given_), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_training_step_fits_with_values_computed_again() -> None:
    """What lies on 16 tiles: activations of layers on many rows. Without, planning again does not help."""
    target = ipuxla.Target.named("gc200").replace(num_tiles=16)
    rows, width, layers = 1152, 128, 8

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = x + jax.nn.gelu(x @ w)
        return (x**2).mean()

    def step(weights: list[jax.Array], x: jax.Array) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, x)
        return [w - 0.1 * g for w, g in zip(weights, slopes, strict=True)], value

    weights = [RNG.standard_normal((width, width)).astype(np.float32) / 16 for _ in range(layers)]
    x = RNG.standard_normal((rows, width)).astype(np.float32)
    lowered = ipuxla.jit(step, donate_argnums=0, target=target).lower(weights, x)
    first, *_, last = lowered._pipeline._ways(lowered.options)
    assert not planned_to_fit(first, target, {}).fits
    compiled = lowered.compile()
    assert compiled.as_text("hlo-optimized") == print_module(last)
    compiled.certify()
    got, want = compiled(weights, x), jax.jit(step)(weights, x)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
