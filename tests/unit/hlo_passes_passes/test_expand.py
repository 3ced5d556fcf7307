"""The pass ``expand``: what it leaves alone, what it shares, and that its size does not depend on the operand's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo

RNG = np.random.default_rng(0)


def _spd(n):
    a = RNG.standard_normal((n, n)).astype(np.float32)
    return a @ a.T + n * np.eye(n, dtype=np.float32)


def _module(function, *args):
    return import_stablehlo(ipuxla.jit(function).lower(*args).as_text("stablehlo", debug_info=True))


def _factor(a):
    return lax.linalg.cholesky(a, symmetrize_input=False)


def test_what_one_tile_computes_stays():
    module = _module(_factor, _spd(16))
    assert optimize(module, "expand") is module
    assert optimize(module, "expand{factor-block=8}") is not module


@pytest.mark.parametrize("options", ["", "{factor-block=5}", "{factor-block=4,solve-block=3}"])
def test_any_block_size_gives_the_factor(options):
    a = _spd(18)
    module = optimize(_module(_factor, a), f"expand{options}")
    (got,) = jax.jit(functools.partial(evaluate_module, module))(a)
    np.testing.assert_allclose(got, np.linalg.cholesky(a.astype(np.float64)), atol=1e-5)


def test_the_number_of_operations_does_not_depend_on_the_size():
    counts = {len(list(optimize(_module(_factor, _spd(n)), "expand").walk())) for n in (32, 48, 160)}
    assert len(counts) == 1


@pytest.mark.parametrize("side", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_solves_by_blocks(side, lower, transpose):
    a, b = _spd(10) / 10, RNG.standard_normal((10, 10)).astype(np.float32)

    def solve(a, b):
        return lax.linalg.triangular_solve(a, b, left_side=side, lower=lower, transpose_a=transpose)

    module = optimize(_module(solve, a, b), "expand{solve-block=4}")
    assert any(instruction.op.name == "hlo.repeat" for instruction in module.walk())
    (got,) = evaluate_module(module, a, b)
    matrix = (np.tril if lower else np.triu)(a.astype(np.float64))
    matrix = matrix.T if transpose else matrix
    expected = np.linalg.solve(matrix, b) if side else np.linalg.solve(matrix.T, b.T).T
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_one_line_shares_one_computation():
    a = jnp.stack([_spd(20)] * 2)

    def both(a):
        return [_factor(x) for x in a]

    module = optimize(_module(both, a), "expand")
    calls = [i for i in module.entry_computation.walk() if i.op.callees]
    assert len(calls) == 2
    (callee,) = {i.op.callees[0] for i in calls}
    body = module.computation(callee)
    assert {i.location for i in body.walk()} == {calls[0].location}
