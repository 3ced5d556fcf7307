"""Tensors that are moved by one exchange program: which are, what it costs, and that nobody can pretend."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.test_exchange import layouts
from tiles.compiler import Executable, certify, check, compile_graph, step_costs
from tiles.compiler.costs import exchange_code_by_step, exchange_code_sizes, own_exchange_code
from tiles.compiler.executable import MAGIC
from tiles.compiler.proof_exchange_code import is_alike
from tiles.compiler.proof_tables import layout_table
from tiles.compiler.sharing import LEAST_BYTES
from tiles.errors import InvalidExecutable
from tiles.files import sealed
from tiles.graph import AxisSplit, Copy, Graph, Layout, whole
from tiles.report import profile
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=16)
ROWS = Layout((AxisSplit(64, 4, ((16, 1),)), whole(64)))
COLUMNS = Layout((whole(64), AxisSplit(64, 4, ((16, 1),))))
TURNED = Layout((whole(64), AxisSplit(64, 4, ((4, 1), (4, 4)))))


def chain(held: Sequence[Layout], dtype: str = "float32") -> Executable:
    """Return a program that copies an input from each layout to the next, one exchange after the other."""
    graph = Graph(TARGET)
    last = graph.set_layout(graph.add_input(held[0].shape, dtype, "x").name, held[0])
    for number, layout in enumerate(held[1:]):
        x, last = last, graph.add_tensor(layout.shape, dtype, f"y{number}", layout)
        graph.program.add(Copy(last.name, (x.name,)))
        graph.outputs.append(last.name)
    return compile_graph(graph)


def with_shared(executable: Executable, shared: list[list[int]]) -> Executable:
    data = executable.to_data() | {"shared_exchange": shared}
    return Executable.from_bytes(sealed(MAGIC, json.dumps(data).encode()))


def test_a_program_that_steps_share_is_there_once():
    executable = chain([ROWS, COLUMNS, ROWS, COLUMNS])
    assert executable.shared_exchange == {(2, 0): (0, 0)}
    own, counted = own_exchange_code(executable)[0], list(exchange_code_by_step(executable))
    bases = 4 * TARGET.instruction_bytes  # two addresses loaded, two registers written
    np.testing.assert_array_equal(counted[0], own[0] + bases)
    np.testing.assert_array_equal(counted[1], own[1])
    np.testing.assert_array_equal(counted[2], np.full(16, bases))
    held = np.zeros(16, np.int64)
    for b in executable.buffers.values():
        if b.category == "internalExchangeCode":
            held[b.tile_numbers] += b.size_bytes
    assert np.all(held >= exchange_code_sizes(executable))
    certify(executable)


def test_calls_of_a_shared_program_take_the_time_to_set_its_bases():
    shared = chain([ROWS, COLUMNS, ROWS, COLUMNS])
    apart = with_shared(shared, [])
    with_bases, without = ([c.exchange_cycles for c in step_costs(e)] for e in (shared, apart))
    assert [a - b for a, b in zip(with_bases, without, strict=True)] == [28, 0, 28]


@pytest.mark.parametrize(
    "held",
    [
        [ROWS, COLUMNS, ROWS, TURNED],  # other tiles
        [ROWS, COLUMNS, COLUMNS, ROWS],  # the other way
        [Layout((AxisSplit(16, 1, ((16, 1),)), whole(16))), Layout((whole(16), AxisSplit(16, 1, ((16, 1),))))]
        * 2,
    ],
)
def test_other_or_small_programs_are_not_shared(held):
    executable = chain(held)
    assert not executable.shared_exchange
    alike = all(layout == other for layout, other in zip(held[:2], held[2:], strict=True))
    assert not alike or max(int(code.max()) for code in own_exchange_code(executable)[0]) < LEAST_BYTES


def test_files_and_reports_say_which_steps_share():
    executable = chain([ROWS, COLUMNS, ROWS, COLUMNS])
    again = Executable.from_bytes(executable.to_bytes())
    assert again.shared_exchange == {(2, 0): (0, 0)} and again.to_bytes() == executable.to_bytes()
    assert "step 2 moves tensor 0 by the exchange program of tensor 0 of step 0" in executable.text()
    steps = profile(executable).data["execution"]["steps"]
    assert [step["exchangeProgramsOf"] for step in steps] == [[], [], [0]]


@pytest.mark.parametrize(
    "shared",
    [
        [[0, 0, 2, 0]],
        [[2, 0, 2, 0]],
        [[9, 0, 0, 0]],
        [[2, 1, 0, 0]],
        [[2, 0, 0, 1]],
        [[1, 0, 0, 0], [2, 0, 1, 0]],
        [[2, 0, -1, 0]],
        [[2, 0, 0.0, 0]],
    ],
)
def test_a_movement_can_only_run_the_own_program_of_an_earlier_one(shared):
    executable = chain([ROWS, COLUMNS, ROWS, COLUMNS])
    with pytest.raises(InvalidExecutable, match="exchange program"):
        check(with_shared(executable, shared))


def test_certify_refuses_a_step_that_runs_another_program():
    executable = chain([ROWS, COLUMNS, ROWS, TURNED])
    forged = with_shared(executable, [[2, 0, 0, 0]])
    check(forged)
    with pytest.raises(
        InvalidExecutable,
        match="tensor 0 of step 2 runs the exchange program of tensor 0 of step 0, which moves other",
    ):
        certify(forged)


def leaves(held: Sequence[tuple[Layout, Layout]]) -> Executable:
    """Return a program that copies inputs from one layout to another, all of them in one exchange."""
    graph = Graph(TARGET)
    for number, (source, destination) in enumerate(held):
        x = graph.set_layout(graph.add_input(source.shape, "float32", f"x{number}").name, source)
        y = graph.add_tensor(destination.shape, "float32", f"y{number}", destination)
        graph.program.add(Copy(y.name, (x.name,)))
        graph.outputs.append(y.name)
    return compile_graph(graph)


def test_tensors_of_one_step_share_programs_of_their_own():
    """Leaves of an update, grouped into one step: the program of each kind is there once, beside what others take."""
    small = Layout((AxisSplit(16, 1, ((16, 1),)),)), Layout((AxisSplit(16, 1, ((4, 1), (4, 4))),))
    executable = leaves([(ROWS, COLUMNS), small, (ROWS, COLUMNS), (ROWS, TURNED), (ROWS, COLUMNS)])
    assert len(executable.steps) == 1
    assert executable.shared_exchange == {(0, 2): (0, 0), (0, 4): (0, 0)}
    kinds = [leaves([pair]) for pair in ((ROWS, COLUMNS), small, (ROWS, TURNED))]
    apart = [own_exchange_code(kind)[0][0] for kind in kinds]
    bases = 3 * np.where(apart[0] > 0, 4 * TARGET.instruction_bytes, 0)
    (counted,) = exchange_code_by_step(executable)
    np.testing.assert_array_equal(counted, sum(apart) + bases)
    certify(executable)


def test_programs_that_a_step_calls_run_one_after_the_other():
    """Each takes as long as alone, without entering a phase again, and sets its bases; the others share what is left."""
    executable = leaves([(ROWS, COLUMNS), (COLUMNS, ROWS), (ROWS, COLUMNS)])
    assert executable.shared_exchange == {(0, 2): (0, 0)}
    once, other = (
        step_costs(leaves([pair]))[0].exchange_cycles for pair in ((ROWS, COLUMNS), (COLUMNS, ROWS))
    )
    entry = TARGET.exchange_phase_overhead_cycles
    (cost,) = step_costs(executable)
    assert cost.exchange_cycles == 2 * (once - entry + 28) + other
    assert cost.sync_cycles == TARGET.internal_sync_cycles


@given(
    st.tuples(st.integers(1, 6), st.integers(1, 6)).flatmap(lambda shape: st.tuples(*[layouts(shape)] * 4))
)
def test_exchanges_are_alike_where_every_word_goes_the_same_way(held):
    """Witness: every element of both, one by one, from tile and place to tile and place."""

    def moves(source: Layout, destination: Layout) -> set[tuple[int, ...]]:
        ends = []
        for layout in (source, destination):
            table = layout_table(layout)
            flat = table.flat(np.arange(table.tiles.size))
            part, place = np.nonzero(flat >= 0)
            order = np.argsort(flat[part, place])
            ends += [table.tiles[part][order], place[order]]
        return set(zip(*(end.tolist() for end in ends), strict=True))

    one, other = ((layout_table(a), layout_table(b), 4) for a, b in (held[:2], held[2:]))
    assert is_alike(one, one)
    if is_alike(one, other):
        assert moves(*held[:2]) == moves(*held[2:])
    assert not is_alike(one, (*one[:2], 2))
