"""Programs of large arrays on whole machines: planned and proved, and engine fast computes what the module says.

In floats ``make fuzz`` compares them with XLA, too.
"""

from __future__ import annotations

import warnings

import jax
from hypothesis import given
from hypothesis import strategies as st

from tests.budgets import SEQUENCE, budget
from tests.fuzz.checks import check_program
from tests.fuzz.kinds import LARGE, WHOLE


@given(st.data(), st.integers(0, 2**16))
@budget(SEQUENCE)
def test_engine_fast_computes_what_the_module_says(data, seed):
    """In the ring every bit."""
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # steps are tried on types that they do not take
        program, target = data.draw(LARGE), data.draw(WHOLE)
        lowered = jax.jit(program.function, keep_unused=True).lower(*program.arguments)
        check_program(
            lowered.as_text(), program.arrays(seed), target, None, (), apart=False, engines=("fast",)
        )
