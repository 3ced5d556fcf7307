"""Results lie where an operand lay that is read for the last time, whatever axes of one element either has."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.flow import ENGINES, assert_engines_agree, executable_of, optimized_module, run
from tiles.compiler import certify
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=16)


@pytest.mark.parametrize("shape", [(1, 64, 2, 16), (2, 64, 1, 16)])
def test_axes_of_one_element_do_not_keep_a_result_from_its_place(shape: tuple[int, ...]) -> None:
    """The scaled scores of attention have such an axis elsewhere than the product that they are made of."""

    def function(q, k, v):
        return jax.nn.dot_product_attention(q, k, v)

    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for _ in range(3)]
    module = optimized_module(function, arrays)
    executable = executable_of(module, TARGET)
    certify(executable)
    product, scaled = (executable.variables[name] for name in ("dot", "multiply"))
    assert scaled.storage == product.storage
    assert scaled.shape != product.shape
    assert_engines_agree(executable, module, arrays)
    want = jax.jit(function)(*arrays)
    for engine in ENGINES:
        np.testing.assert_allclose(run(executable, engine, arrays)[0], want, rtol=1e-5, atol=1e-5)
