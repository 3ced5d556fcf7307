"""Everyday code over JAX's public API: every case of the sweep equals ``jax.jit``, or is the named error it expects."""

from __future__ import annotations

import pytest

from tests.sweep import CASES
from tests.sweep.public import LEFT_OUT, PUBLIC, public_functions
from tests.sweep.running import run

SAMPLE = (
    "jnp.nanmedian",
    "lax.nextafter: special",
    "lax.reduce: of two operands",
    "lax.while_loop: vmap",
    "around: vmap of grad",
    "inside: checkpoint: names",
    "call: empty arrays, more",
    "call: dataclass",
    "effects: debug.print in a loop",
    "mesh: shard_map, collectives",
    "export: a loop",
    "export: for another platform",
    "library: variational autoencoder",
    "library: state-space model, complex",
)
"""Cases that are always run; the others are extended tests."""


@pytest.mark.parametrize("name", SAMPLE)
def test_sample(name):
    outcome = run(CASES[name])
    assert outcome.as_expected, outcome.text


@pytest.mark.parametrize("name", [name for name in CASES if name not in SAMPLE])
def test_case(name):
    outcome = run(CASES[name])
    assert outcome.as_expected, outcome.text


@pytest.mark.parametrize("prefix", PUBLIC)
def test_every_public_function_has_a_case(prefix):
    named = {name.split(":")[0] for name in CASES}
    missing = [
        name
        for name in public_functions(PUBLIC[prefix])
        if f"{prefix}.{name}" not in named and name not in LEFT_OUT
    ]
    assert not missing
