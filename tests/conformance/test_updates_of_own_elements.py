"""Updates that follow from elements of what they update, which XLA:CPU (jaxlib 0.10.2) writes over before it reads them."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla

X = np.array([[5.0], [1.0], [4.0], [2.0], [3.0]], np.float32)
RUNS = [("fast", "float"), ("fast", "ring"), ("hlo", "float"), ("hlo", "ring"), ("literal", "ring")]


def test_an_update_reads_what_was_there_before(small_target):
    def function(x, at):
        rows = jnp.sort(x, 0)
        updated = lax.dynamic_update_slice(rows.reshape(5), lax.rev(rows, (0,))[:2].reshape(2), (at,))
        return updated, jnp.max(updated)

    def run(engine, arithmetic):
        program = ipuxla.jit(function, target=small_target, engine=engine, arithmetic=arithmetic)
        return np.asarray(program(X, np.int32(3))[0])

    found = {run_: run(*run_) for run_ in RUNS}
    for engine in ("fast", "hlo"):
        np.testing.assert_array_equal(found[engine, "float"], [1, 2, 3, 5, 4])
        np.testing.assert_array_equal(found[engine, "ring"], found["literal", "ring"])


@pytest.mark.parametrize("operation", ["set", "add", "multiply", "max", "min", "apply"])
@pytest.mark.parametrize("at", [-3, 1, 2, 9])
def test_what_is_left_out_of_a_slice_changes_nothing(operation, at, small_target):
    """XLA:CPU takes a place outside of a slice as one of the array that was sliced."""

    def function(x, start, at):
        part = lax.dynamic_slice(x, (start, 0), (2, 3))
        where = part.at[jnp.stack([at])]
        options = {"mode": "drop", "wrap_negative_indices": False}
        if operation == "apply":
            return where.apply(jnp.sin, **options)
        return getattr(where, operation)(part[:1] * 2, **options)

    x = np.arange(1.0, 16.0, dtype=np.float32).reshape(5, 3)
    want = x[3:].copy()
    if 0 <= at < 2:
        new = {"set": 2 * x[3], "add": x[3 + at] + 2 * x[3], "multiply": x[3 + at] * 2 * x[3]}
        new |= {"max": np.maximum(x[3 + at], 2 * x[3]), "min": np.minimum(x[3 + at], 2 * x[3])}
        want[at] = np.sin(x[3 + at]) if operation == "apply" else new[operation]
    for engine in ("fast", "literal"):
        program = ipuxla.jit(function, target=small_target, engine=engine)
        np.testing.assert_allclose(program(x, np.int32(4), np.int32(at)), want, rtol=1e-6)
