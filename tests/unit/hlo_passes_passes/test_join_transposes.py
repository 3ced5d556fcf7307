"""Folds that are moved where the whole is moved too: they come after the move, and all of it may be one function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo_passes.ir import Module, verify
from hlo_passes.ops import Reduce, RowFunction, Transpose
from hlo_passes.passes import DEFAULT_PIPELINE, optimize
from ipuxla.frontend.importer import import_stablehlo
from tests.budgets import PROGRAM, budget
from tests.comparison import assert_same_bits, results

RNG = np.random.default_rng(3)


def module_of(function, *arrays) -> Module:
    return import_stablehlo(jax.jit(function, keep_unused=True).lower(*arrays).compiler_ir("stablehlo"))


def joined(function, *arrays) -> tuple[Module, Module]:
    before = optimize(module_of(function, *arrays), "inline,cse,dce")
    after = optimize(before, "join-transposes,cse,dce")
    verify(after)
    assert_same_bits(results(before, arrays), results(after, arrays))
    return before, after


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("gradient", [False, True])
def test_attention_of_jax_is_one_softmax(is_causal, gradient) -> None:
    def function(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=is_causal)

    asked = jax.grad(lambda *xs: jnp.sum(function(*xs) ** 2), (0, 1, 2)) if gradient else function
    found = optimize(module_of(asked, *[jnp.zeros((2, 12, 4, 8))] * 3), DEFAULT_PIPELINE)
    kinds = {i.op.kind for i in found.walk() if isinstance(i.op, RowFunction)}
    assert kinds == {"popnn.softmax"} | ({"popnn.softmax_gradient"} if gradient else set())


def test_maxima_with_constants_and_logarithms_move_along() -> None:
    def function(x):
        most = jnp.maximum(-5.0, jnp.log1p(jnp.max(x, -1)))
        return x.transpose(1, 0, 2, 3) - most.transpose(1, 0, 2)[..., None]

    _, after = joined(function, jnp.asarray(RNG.random((4, 1, 3, 5), np.float32)))
    (fold,) = (i for i in after.walk() if isinstance(i.op, Reduce))
    assert fold.result.type.shape == (1, 4, 3)
    assert sum(isinstance(i.op, Transpose) for i in after.walk()) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.transpose(1, 0, 2, 3) - jnp.max(x, -1).transpose(1, 2, 0)[..., None],  # otherwise ordered
        lambda x: jnp.max(x, -1).transpose(1, 0, 2),  # nobody moves the whole
        lambda x: x.transpose(2, 1, 0, 3) - jnp.max(x, -1).transpose(2, 1, 0)[..., None],  # data move
    ],
)
def test_others_stay(function) -> None:
    module = optimize(module_of(function, jnp.zeros((4, 1, 4, 5))), "inline,cse,dce")
    assert optimize(module, "join-transposes") is module


@given(
    shape=st.lists(st.sampled_from((1, 1, 2, 3)), min_size=3, max_size=4),
    data=st.data(),
)
@budget(PROGRAM)
def test_any_move_keeps_every_bit(shape, data) -> None:
    rank = len(shape)
    whole = data.draw(st.permutations(range(rank)))
    axes = data.draw(st.lists(st.sampled_from(range(rank)), unique=True, min_size=1, max_size=rank - 1))
    kept = [d for d in range(rank) if d not in axes]
    moved = data.draw(st.one_of(st.just([d for d in whole if d in kept]), st.permutations(kept)))

    def function(x):
        most = jnp.minimum(jnp.max(x, tuple(axes)), 2.5)
        return x.transpose(*whole), most.transpose(*(kept.index(d) for d in moved))

    joined(function, jnp.asarray(RNG.standard_normal(shape).astype(np.float32)))
