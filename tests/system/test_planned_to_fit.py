"""Programs that fit only when they are planned again with less room for temporaries."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla import fitting
from ipuxla.errors import OutOfTileMemory

SMALL = ipuxla.Target.named("gc200").replace(num_tiles=16)
WEIGHTS = [jax.ShapeDtypeStruct((512, 512), jnp.float32)] * 5


def network(x, *weights):
    for w in weights:
        x = jnp.tanh(x @ w)
    return x


def test_a_program_that_does_not_fit_is_planned_again() -> None:
    lowered = ipuxla.jit(network, target=SMALL).lower(jax.ShapeDtypeStruct((256, 512), jnp.float32), *WEIGHTS)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OutOfTileMemory):
        patch.setattr(fitting, "REPLANS", 0)
        lowered.compile()

    compiled = lowered.compile()
    assert compiled.memory_analysis()["peak_bytes"] <= SMALL.bytes_per_tile
    compiled.certify()
    rng = np.random.default_rng(0)
    args = [rng.normal(size=(256, 512)).astype(np.float32)]
    args += [(rng.normal(size=(512, 512)) / 20).astype(np.float32) for _ in WEIGHTS]
    np.testing.assert_allclose(compiled(*args), jax.jit(network)(*args), atol=1e-4)
