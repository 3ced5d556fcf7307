"""Every pass keeps what a program computes, to the bit, and hands over a valid module that prints and parses."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlo_passes.ir import Module, evaluate_module, parse_module, print_module, verify
from hlo_passes.ops import DotGeneral
from hlo_passes.passes import DEFAULT_PIPELINE, PASSES, analyze, optimize, run_pipeline
from ipuxla.frontend.importer import import_stablehlo
from tests.programs import RandomProgram, random_programs

PROGRAMS = random_programs(floats=("float32", "bfloat16"))


def imported(program: RandomProgram) -> Module:
    lowered = jax.jit(program.function, keep_unused=True).lower(*program.arguments)
    return import_stablehlo(lowered.compiler_ir("stablehlo"))


def sorted_products(function, *operands):
    """Evaluate an operation; a contraction by adding its products in order of size.

    Passes may exchange a contraction's operands or read them transposed, upon which XLA adds in another order; in this
    order the sum does not depend on theirs.
    """
    op = function.func.__self__
    if not isinstance(op, DotGeneral):
        return function(*operands)
    lhs, rhs = (np.asarray(x) for x in operands)
    n = op.dimension_numbers
    left, right = n.lhs_free(lhs.ndim), n.rhs_free(rhs.ndim)
    batch = [lhs.shape[d] for d in n.lhs_batching]
    a = lhs.transpose(n.lhs_batching + left + n.lhs_contracting).reshape(
        [*batch, int(np.prod([lhs.shape[d] for d in left], dtype=int)), 1, -1]
    )
    b = rhs.transpose(n.rhs_batching + right + n.rhs_contracting).reshape(
        [*batch, 1, int(np.prod([rhs.shape[d] for d in right], dtype=int)), -1]
    )
    wide = np.float64 if a.dtype.kind not in "iub" else a.dtype
    total = np.sort(a.astype(wide) * b.astype(wide), axis=-1).sum(-1)
    shape = [*batch, *(lhs.shape[d] for d in left), *(rhs.shape[d] for d in right)]
    (like,) = function(*operands)
    return (jax.numpy.asarray(total.astype(like.dtype).reshape(shape)),)


def results(module: Module, arrays) -> list[np.ndarray]:
    return [np.asarray(x) for x in evaluate_module(module, *arrays, apply=sorted_products)]


def assert_same_bits(before, after) -> None:
    for one, other in zip(before, after, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        nan = one != one
        np.testing.assert_array_equal(nan, other != other)
        bits = f"u{one.dtype.itemsize}"
        np.testing.assert_array_equal(
            np.where(nan, 0, one.view(bits) if one.ndim else one.reshape(1).view(bits)),
            np.where(nan, 0, other.view(bits) if other.ndim else other.reshape(1).view(bits)),
        )


def check(program: RandomProgram, pipeline: str) -> None:
    module = imported(program)
    optimized = optimize(module, pipeline)
    verify(optimized)
    text = print_module(optimized)
    assert print_module(parse_module(text)) == text
    arrays = program.arrays()
    assert_same_bits(results(module, arrays), results(optimized, arrays))


@pytest.mark.parametrize("name", sorted(PASSES))
@given(program=PROGRAMS)
@settings(max_examples=6)
def test_each_pass_keeps_results(name, program):
    check(program, name)


@given(program=PROGRAMS)
def test_default_pipeline_keeps_results(program):
    check(program, DEFAULT_PIPELINE)


@given(program=PROGRAMS)
def test_folded_flat_and_small_fusions_keep_results(program):
    """Options far from their defaults: nothing inlined first, tiny fusions, everything folded, fusions opened again."""
    check(program, "fix(canonicalize,fold-constants{floats=true,max-elements=1000},cse,dce),fuse{max-ops=3},dce")
    check(program, "fuse,flatten{fusions=true},fix(canonicalize,cse,dce),fuse,schedule")


@given(program=PROGRAMS, pipeline=st.lists(st.sampled_from(sorted(PASSES)), min_size=1, max_size=6).map(",".join))
def test_any_order_of_passes_keeps_results(program, pipeline):
    check(program, pipeline)


@given(program=PROGRAMS)
@settings(max_examples=15)
def test_pipeline_is_deterministic_and_comes_to_rest(program):
    module = imported(program)
    once = run_pipeline(module).module
    assert print_module(once) == print_module(run_pipeline(parse_module(print_module(module))).module)
    assert print_module(once) == print_module(optimize(once))


@given(program=PROGRAMS)
@settings(max_examples=15)
def test_schedule_lowers_the_peak_and_live_bytes_are_a_recount(program):
    module = optimize(imported(program), "flatten,canonicalize,cse,dce")
    entry, scheduled = module.entry_computation, optimize(module, "schedule").entry_computation
    assert analyze(scheduled).peak_bytes <= analyze(entry).peak_bytes
    found = analyze(entry)
    for position, instruction in enumerate(entry.instructions):
        later = {v for i in entry.instructions[position:] for v in i.operands} | set(entry.results)
        before = {*entry.parameters, *(v for i in entry.instructions[:position] for v in i.results)}
        live = (before & (later | set(entry.parameters))) | set(instruction.results)
        in_place = [v for v in instruction.results if v in found.reuses]
        assert set(found.live_at(position)) == live
        assert found.live_bytes[position] == sum(v.type.size_bytes for v in live) - sum(
            v.type.size_bytes for v in in_place
        )
