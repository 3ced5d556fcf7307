"""Updates that follow from elements of what they update, which XLA:CPU (jaxlib 0.10.2) writes over before it reads them."""

import jax.numpy as jnp
import numpy as np
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
