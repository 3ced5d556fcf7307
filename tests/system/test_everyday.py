"""Everyday programs on a whole GC200: values and gradients against ``jax.jit``, every bit on engines that move words."""

from __future__ import annotations

import jax
import pytest

import ipuxla
from ipuxla.testing import check_engines
from tests.everyday import MAKERS, program
from tiles.numerics.tolerance import check_close


@pytest.mark.parametrize("name", MAKERS)
def test_every_engine(name, gc200):
    """Floats by the fast engine, the ring by all, against native JAX and the module op by op; certified."""
    small = program(name, "small")
    check_engines(small.function, gc200, *small.arguments, floats=("fast",))


def test_a_transformer_as_one_would_use_it(gc200):
    large = program("transformer block, causal attention", "large")
    mine = ipuxla.jit(large.function, target=gc200).lower(*large.arguments).compile()
    assert mine.memory_analysis()["fits"]
    check_close(mine(*large.arguments), jax.jit(large.function)(*large.arguments))
