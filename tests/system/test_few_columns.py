"""Reductions of few columns: computed by all workers, then folded, where one step of both would keep one of them busy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla.testing import check_engines
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=16)
FUSED = "popops::ReduceExpression<"


def _labels(compiled: ipuxla.Compiled) -> set[str]:
    return {group.codelet.label for _, group in compiled.executable.groups()}


CASES: dict[str, Any] = {
    "sum of squares of coordinates": (lambda x: (x * x).sum(1), ((40, 24, 3), "float32")),
    "largest of halves": (lambda x: jnp.abs(x).max(1), ((40, 24, 2), "float16")),
    "mean of an image's colours": (lambda x: (x / 255).mean((1, 2)), ((6, 12, 10, 3), "float32")),
    "counts": (lambda x: (x > 0).sum(1), ((40, 24, 4), "int32")),
}


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_jax(case: str) -> None:
    function, (shape, dtype) = CASES[case]
    x = (np.random.default_rng(1).standard_normal(shape) * 9).astype(dtype)
    check_engines(function, TARGET, x, engines=("fast", "literal", "vertex", "tile"))


@pytest.mark.parametrize(("columns", "is_fused"), [(2, False), (3, False), (64, True)])
def test_few_columns_are_folded_in_a_step_of_their_own(columns: int, is_fused: bool) -> None:
    x = jax.ShapeDtypeStruct((1472 * 8, 32, columns), jnp.float32)
    compiled = ipuxla.jit(lambda x: (x * x).sum(1), target="gc200").lower(x).compile()
    assert any(label.startswith(FUSED) for label in _labels(compiled)) == is_fused
    each = 8 * 32 * columns
    assert compiled.cost_analysis()["cycles"] < 4 * each
