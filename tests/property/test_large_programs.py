"""Programs of large arrays on whole machines: planned and proved, and engine fast computes what the module says.

In floats ``make fuzz`` compares them with XLA, too.
"""

from __future__ import annotations

import jax
from hypothesis import given
from hypothesis import strategies as st

from tests.budgets import SEQUENCE, budget
from tests.fuzz.checks import check_program
from tests.fuzz.kinds import LARGE, WHOLE


@given(LARGE, WHOLE, st.integers(0, 2**16))
@budget(SEQUENCE)
def test_engine_fast_computes_what_the_module_says(program, target, seed):
    """In the ring every bit."""
    with jax.enable_x64(True):
        lowered = jax.jit(program.function, keep_unused=True).lower(*program.arguments)
        check_program(
            lowered.as_text(), program.arrays(seed), target, None, (), apart=False, engines=("fast",)
        )
