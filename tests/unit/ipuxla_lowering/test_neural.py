"""Named functions on tiles: what their regions leave to compute."""

from __future__ import annotations

import numpy as np
import pytest

import ipuxla
from ipuxla.testing import check_engines
from tests.everyday import batch_norm

X = np.random.default_rng(0).normal(size=(3, 4, 4, 3)).astype(np.float32)
SCALES = np.full(3, 0.5, np.float32), np.ones(3, np.float32)


@pytest.fixture(scope="module")
def graph() -> list[str]:
    return ipuxla.jit(batch_norm).lower(X, *SCALES).as_text("graph").splitlines()


def test_nothing_is_computed_of_constants_alone(graph):
    """A variance divides by ``n - convert(0)``, where that is greater than zero."""
    assert any("popnn.batch_norm" in line for line in graph)
    made = [line for line in graph if " over [" in line]
    assert made and not [line for line in made if "() over [" in line]


def test_batch_norm_is_the_same_on_all_engines(small_target):
    check_engines(batch_norm, small_target, X, *SCALES, engines=("fast", "literal"), floats=("fast",))
