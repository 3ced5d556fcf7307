"""Every pass keeps what a program computes, to the bit, and leaves a valid module that prints and parses."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo_passes.ir import Module, parse_module, print_module, verify
from hlo_passes.ops import Fusion
from hlo_passes.passes import DEFAULT_PIPELINE, PASSES, analyze, multi_output, optimize, run_pipeline
from ipuxla.frontend.importer import import_stablehlo
from tests.budgets import PROGRAM, budget
from tests.comparison import assert_same_bits, results, special_array
from tests.expressions import evaluate_expression, evaluate_region
from tests.fusion_contract import check_fusions
from tests.programs import RandomProgram, random_programs

PROGRAMS = random_programs(floats=("float32", "bfloat16"))


def imported(program: RandomProgram) -> Module:
    lowered = jax.jit(program.function, keep_unused=True).lower(*program.arguments)
    return import_stablehlo(lowered.compiler_ir("stablehlo"))


def check(program: RandomProgram, pipeline: str) -> Module:
    module = imported(program)
    optimized = optimize(module, pipeline)
    verify(optimized)
    check_fusions(optimized)
    text = print_module(optimized)
    assert print_module(parse_module(text)) == text
    arrays = program.arrays()
    assert_same_bits(results(module, arrays), results(optimized, arrays))
    return optimized


@pytest.mark.parametrize("name", sorted(PASSES))
@given(program=PROGRAMS)
@budget(PROGRAM)
def test_each_pass_keeps_results(name, program):
    check(program, name)


@given(program=PROGRAMS)
def test_default_pipeline_keeps_results(program):
    """So do the expressions of its fusions, whose rows and maps are evaluated by indexing."""
    rng = np.random.default_rng(0)
    for instruction in check(program, DEFAULT_PIPELINE).walk():
        if isinstance(instruction.op, Fusion) and instruction.op.kind == "loop":
            (region,) = instruction.regions
            arrays = [special_array(type_, rng) for type_ in region.parameter_types]
            assert_same_bits(evaluate_expression(region, arrays), evaluate_region(region, arrays))


@given(program=PROGRAMS)
def test_folded_flat_and_small_fusions_keep_results(program):
    """Options far from their defaults: tiny fusions, everything folded, fusions opened again."""
    check(
        program, "fix(canonicalize,fold-constants{floats=true,max-elements=1000},cse,dce),fuse{max-ops=3},dce"
    )
    check(program, "fuse,flatten{fusions=true},fix(canonicalize,cse,dce),fuse,schedule")


@given(
    program=PROGRAMS, pipeline=st.lists(st.sampled_from(sorted(PASSES)), min_size=1, max_size=6).map(",".join)
)
def test_any_order_of_passes_keeps_results(program, pipeline):
    check(program, pipeline)


@given(program=PROGRAMS)
@budget(PROGRAM)
def test_pipeline_is_deterministic_and_comes_to_rest(program):
    module = imported(program)
    once = run_pipeline(module).module
    assert print_module(once) == print_module(run_pipeline(parse_module(print_module(module))).module)
    assert print_module(once) == print_module(optimize(once))


@given(program=PROGRAMS)
@budget(PROGRAM)
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


@given(program=PROGRAMS, fuses=st.booleans())
@budget(PROGRAM)
def test_joined_expressions_need_no_more_bytes_at_the_peak(program, fuses):
    module = optimize(imported(program), f"flatten,canonicalize,cse,dce,{'fuse,' * fuses}schedule")
    with mock.patch.object(multi_output, "FEW", 0):  # random programs are small: all of their bytes count
        joined = optimize(module, "multi-output-fusion").entry_computation
    assert analyze(joined).peak_bytes <= analyze(module.entry_computation).peak_bytes


def test_joined_expressions_write_nothing_over_a_constant():
    """A table that is read for the last time leaves no place for what is computed of it."""
    table = np.arange(9, dtype=np.float32).reshape(3, 3)

    def function(a, b, c):
        first, second = jnp.abs(b), c + table
        return a, jnp.abs(first), jnp.abs(second), first

    array = jax.ShapeDtypeStruct((3, 3), "float32")
    module = import_stablehlo(jax.jit(function).lower(array, array, array).compiler_ir("stablehlo"))
    module = optimize(module, "flatten,canonicalize,cse,dce,schedule")
    with mock.patch.object(multi_output, "FEW", 0):
        joined = optimize(module, "multi-output-fusion").entry_computation
    assert analyze(joined).peak_bytes <= analyze(module.entry_computation).peak_bytes
