"""Rare operations with all their parameters, on odd shapes and extreme values: the same on every engine."""

from __future__ import annotations

import jax
from hypothesis import given
from hypothesis import strategies as st

from tests.budgets import PROGRAM, budget
from tests.fuzz.checks import check_program
from tests.unusual_programs import unusual_programs
from tiles.target import Target


@given(unusual_programs(), st.integers(1, 16), st.integers(0, 2**16))
@budget(PROGRAM)
def test_engines_agree_and_are_near_to_xla(program, num_tiles, seed):
    """In the ring every bit; with floats XLA's results that the last bit of an argument does not change."""
    with jax.enable_x64(True):
        lowered = jax.jit(program.function, keep_unused=True).lower(*program.arguments)
        results = range(len(jax.tree.leaves(lowered.out_info)))
        target = Target.named("gc200").replace(num_tiles=num_tiles)
        check_program(lowered.as_text(), program.arrays(seed), target, None, tuple(results), apart=False)
