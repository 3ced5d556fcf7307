"""Sequences of ten random programs: what one returns, the next one takes, often as a donated buffer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import ipuxla
from tests.budgets import SEQUENCE, budget
from tests.control_programs import control_programs
from tests.programs import RandomProgram
from tests.property.test_engines import is_steady
from tiles.numerics.tolerance import check_close
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=16)
STATE = tuple(
    jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
    for shape, dtype in (
        ((5, 3), "float32"),
        ((3,), "float32"),
        ((4,), "int32"),
        ((2, 2), "bool"),
        ((), "int32"),
    )
)
ENGINES = ("hlo", "fast")
"""Engines that run every program of a sequence; the slower ones run one program each."""
LENGTH = 10
UNCHECKED = (HealthCheck.too_slow, HealthCheck.data_too_large)

programs = st.tuples(
    control_programs(arguments=STATE, returns=STATE, depth=1), st.sets(st.integers(0, len(STATE) - 1))
)
sequences = st.lists(programs, min_size=LENGTH, max_size=LENGTH)


def start() -> list[jax.Array]:
    """Return the first state, in arrays of its own."""
    return [jnp.array(x) for x in RandomProgram(STATE, (), ()).arrays()]


def follow(compiled: ipuxla.Compiled, state: list[jax.Array], donated: set[int]) -> list[jax.Array]:
    """Run a program on a state, check that donated arrays are gone and the others are not; return the results."""
    results = list(compiled(*state))
    for number, array in enumerate(state):
        is_result = any(array is result for result in results)
        assert array.is_deleted() == (number in donated and not is_result)
    return results


@given(sequences)
@budget(SEQUENCE, suppress_health_check=UNCHECKED)
def test_sequences_in_the_ring(sequence):
    """Words of floats are the bits of the next program's floats."""
    state = start()
    for place, (program, donated) in enumerate(sequence):
        jitted = ipuxla.jit(program.function, target=TARGET, donate_argnums=tuple(donated))
        lowered = jitted.lower(*STATE)
        want = None
        for engine in (*ENGINES, *{2: ("literal",), 6: ("vertex",)}.get(place, ())):
            compiled = lowered.compile(engine=engine, arithmetic="ring")
            results = follow(compiled, [jnp.array(x) for x in state], donated)
            words = [np.asarray(x) for x in results]
            want = want or words
            for number, (mine, theirs) in enumerate(zip(words, want, strict=True)):
                np.testing.assert_array_equal(mine, theirs, err_msg=f"{engine}, result {number}")
        state = [jnp.array(w.view(t.dtype)) for w, t in zip(want or (), STATE, strict=False)]


@given(sequences)
@budget(SEQUENCE, suppress_health_check=UNCHECKED)
def test_sequences_with_floats(sequence):
    """``jax.jit`` is given the same arguments; one program runs on the literal engine."""
    state = start()
    for place, (program, donated) in enumerate(sequence):
        engine = "literal" if place == 4 else "fast"
        arrays = [np.asarray(x) for x in state]
        want = [np.asarray(x) for x in jax.jit(program.function)(*arrays)]
        steady = is_steady(program, want, arrays)
        jitted = ipuxla.jit(program.function, target=TARGET, donate_argnums=tuple(donated), engine=engine)
        results = follow(jitted.lower(*STATE).compile(), state, donated)
        for number, comparable in enumerate(steady):
            if comparable:
                check_close(results[number], want[number], f"{engine}, result {number}")
        state = [tamed(x) for x in results[: len(STATE)]]


def tamed(x: jax.Array) -> jax.Array:
    """Return floats that further programs do not make infinite."""
    return jnp.nan_to_num(jnp.clip(x, -3, 3)) if jnp.issubdtype(x.dtype, jnp.floating) else x
