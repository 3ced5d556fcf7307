"""Engines agree: on every bit in the ring and within the tolerances with floats, for any program, plan and target.

``HYPOTHESIS_PROFILE=explore`` looks for new failures for as long as one likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jax import lax

from tests import flow
from tests.budgets import PROGRAM, budget
from tests.flow import run
from tests.programs import random_programs, without_jumps
from tiles.compiler import Executable, certify, compile_graph, load_executable
from tiles.engine import LiteralEngine, VertexEngine
from tiles.engine.memory import TileMemory
from tiles.engine.operands import StoredOperand
from tiles.errors import InvalidExecutable
from tiles.graph import AxisSplit, Graph, Plan, Site, whole
from tiles.numerics.tolerance import check_close, max_error, tolerance_of
from tiles.poplibs import popops
from tiles.target import Target

SIZES = (3, 4, 2, 1, 5, 7, 12, 17)
PROGRAMS = random_programs(8, ("float32", "bfloat16", "float16"), sizes=SIZES, max_elements=600)
TARGETS = st.builds(
    lambda name, num_tiles: Target.named(name).replace(num_tiles=num_tiles),
    st.sampled_from(["gc200", "gc2"]),
    st.integers(1, 64),
)
PLANS = st.one_of(st.none(), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
"""Seeds of random plans; None is the planner's own choice."""


@given(PROGRAMS, TARGETS, PLANS)
@budget(PROGRAM)
def test_engines_agree_on_every_bit(program, target, plan_seed):
    module = flow.optimized_module(program.function, program.arguments)
    executable = flow.executable_of(module, target, plan_seed)
    certify(executable)
    flow.assert_engines_agree(executable, module, program.arrays())


@given(PROGRAMS, TARGETS, PLANS)
@budget(PROGRAM)
def test_what_is_compiled_is_what_is_loaded(program, target, plan_seed):
    module = flow.optimized_module(program.function, program.arguments)
    executable = flow.executable_of(module, target, plan_seed)
    assert executable.to_bytes() == flow.executable_of(module, target, plan_seed).to_bytes()
    assert load_executable(executable.to_bytes()).to_bytes() == executable.to_bytes()


# ---- floats


def is_steady(program: Any, want: list[np.ndarray], given: Sequence[np.ndarray] = ()) -> list[bool]:
    """Return, for every result, whether the last bits of the arguments (or those given) hardly matter to it.

    Results that are all rounding error, as ``sum(softmax(x)) - 1`` is, cannot be compared with any other order of
    summation; changes of the arguments by an ULP or two bring them to light.
    """
    rng = np.random.default_rng(0)
    steady = [True] * len(want)
    for _ in range(3):
        arrays = [
            (x * (1 + np.finfo(np.float32).eps * rng.integers(-2, 3, x.shape))).astype(x.dtype)
            if x.dtype.kind == "f"
            else x
            for x in given or program.arrays()
        ]
        moved = jax.jit(program.function)(*arrays)
        for number, (a, b) in enumerate(zip(moved, want, strict=True)):
            steady[number] &= max_error(a, b) <= tolerance_of(b.dtype) / 20
    return steady


@given(random_programs(8, sizes=SIZES, max_elements=600).map(without_jumps), TARGETS, PLANS)
@budget(PROGRAM)
def test_engines_are_within_tolerance_of_jax(program, target, plan_seed):
    want = [np.asarray(x) for x in jax.jit(program.function)(*program.arrays())]
    steady = is_steady(program, want)
    assume(any(steady))
    module = flow.optimized_module(program.function, program.arguments)
    executable = flow.executable_of(module, target, plan_seed)
    for engine in flow.ENGINES:
        got = run(executable, engine, program.arrays())
        for number, comparable in enumerate(steady):
            if comparable:
                check_close(got[number], want[number], f"{engine}, result {number}")


# ---- what the comparison would catch


def _layer(x, w, b):
    hidden = lax.max(x @ w + b, np.float32(0))
    return hidden.sum(0), lax.rev(hidden.T, (0,))[1:, ::2]


ARRAYS = tuple(
    np.random.default_rng(5).standard_normal(shape).astype(np.float32) for shape in ((9, 7), (7, 11), (11,))
)


@pytest.fixture(scope="module")
def layer() -> tuple[Executable, list[np.ndarray]]:
    """A program under a plan that exchanges a lot, and its results in the ring."""
    module = flow.optimized_module(_layer, ARRAYS)
    target = Target.named("gc200").replace(num_tiles=12)
    candidates = (flow.executable_of(module, target, seed) for seed in range(100))
    return next(e for e in candidates if exchanges(e) >= 4), flow.ring_reference(module, ARRAYS)


def exchanges(executable: Executable) -> int:
    """Count the operands that an exchange brings."""
    return sum(bool(operand.buffer) for _, group in executable.groups() for operand in group.operands)


def misplace_one_word(held: StoredOperand, state: TileMemory) -> None:
    """Replace one word of one cell's slice by a different neighbour."""
    for tile in held.slices.tiles:
        row = state.words[tile, held.word : held.word + held.words]
        differ = np.flatnonzero(row[1:] != row[:-1])
        if differ.size:
            row[differ[0]] = row[differ[0] + 1]
            return


@pytest.mark.parametrize("engine", [LiteralEngine, VertexEngine])
def test_one_misplaced_word_in_any_exchange_is_caught(layer, engine, monkeypatch):
    executable, want = layer
    exchange = engine._exchange
    for wrong in range(exchanges(executable)):
        moved = iter(range(exchanges(executable)))

        def misplacing(self, number, state, wrong=wrong, moved=moved):
            exchange(self, number, state)
            for held in self._all_held(number):
                if held.is_received and next(moved) == wrong:
                    misplace_one_word(held, state)

        with monkeypatch.context() as patch:
            patch.setattr(engine, "_exchange", misplacing)
            try:
                got = run(executable, engine.name, ARRAYS, "ring")
            except InvalidExecutable as error:
                assert engine is LiteralEngine and "differ between tiles" in str(error)
                continue
        assert any((a != b).any() for a, b in zip(got, want, strict=True)), f"exchange {wrong}"
    flow.assert_same_words(run(executable, engine.name, ARRAYS, "ring"), want, engine.name)


@pytest.mark.parametrize("arithmetic", ["float", "ring"])
def test_copies_that_differ_are_refused(arithmetic, monkeypatch):
    """A vector that four tiles read; the exchange writes one word of the last copy wrong."""
    graph = Graph(Target.named("gc200").replace(num_tiles=4))
    x, v = graph.add_input((8, 6), "float32", "x"), graph.add_input((6,), "float32", "v")
    rows = Plan((AxisSplit(8, 2, ((4, 1),)), whole(6)))
    graph.outputs = [popops.mul(Site(graph, "scale"), x, v, plan=rows).name]
    executable = compile_graph(graph)
    ((_, group),) = executable.groups()
    assert group.operands[1].buffer
    exchange = LiteralEngine._exchange

    def writing(self, number, state):
        exchange(self, number, state)
        (received,) = (held for held in self._all_held(number) if held.is_received)
        state.words[3, received.word + 2] += 1

    arrays = [np.ones((8, 6), np.float32), np.ones(6, np.float32)]
    run(executable, "literal", arrays, arithmetic)
    monkeypatch.setattr(LiteralEngine, "_exchange", writing)
    with pytest.raises(InvalidExecutable, match="step scale: copies of v differ between tiles"):
        run(executable, "literal", arrays, arithmetic)
