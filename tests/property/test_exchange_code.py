"""What the exchange program must cost at most: bounds and comparisons that hold whatever the layouts, plans and orders.

Counts against brute force are in ``test_exchange``; here one way to move words is compared with another.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.budgets import PLAN, TABLE, budget
from tests.property.test_plans import SEEDS, Case, questions, windows
from tests.random_plans import random_layout, random_plan
from tiles.graph import (
    PARALLEL,
    REDUCTION,
    Affine,
    Arrangement,
    AxisSplit,
    Dim,
    IndexMap,
    Layout,
    OpForm,
    Plan,
    whole,
)
from tiles.numerics.dtypes import WORD_BYTES, itemsize
from tiles.plan import (
    Traffic,
    exchange_code_bytes,
    exchange_cycles,
    layout_slices,
    operand_traffic,
    traffic,
)
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=48)
DTYPES = st.sampled_from(["float32", "float16", "uint8", "float64"])
SHAPES = st.lists(st.sampled_from([1, 2, 3, 5, 8, 13]), min_size=1, max_size=3).map(tuple)


def moves(case: Case, seed: int) -> list[Traffic]:
    """Return the traffic of every operand of an operation, under a plan and from layouts chosen at random, in any order."""
    form, codelet, shapes, dtype = case
    rng = np.random.default_rng(seed)
    plan = random_plan(rng, form, codelet, TARGET.num_tiles)
    sources = [random_layout(rng, shape, TARGET.num_tiles) for shape in shapes]
    return [
        operand_traffic(source, form, plan, k, shape, dtype, TARGET)
        for k, (source, shape) in enumerate(zip(sources, shapes, strict=True))
    ]


# ---- bounds


@given(st.one_of(questions(), windows()), SEEDS)
@budget(TABLE)
def test_no_more_is_sent_or_changed_than_there_are_words(case, seed):
    """Sends, sources and pointers at most one for a word; code at most that of words sent one by one."""
    for moved in moves(case, seed):
        words_in, words_out = moved.received // WORD_BYTES, moved.sent // WORD_BYTES
        assert np.all(moved.runs <= moved.sends) and np.all(moved.sends <= words_out)
        messages = moved.received // min(
            WORD_BYTES, itemsize(case[3])
        )  # less than a word may come from each tile
        assert np.all(moved.selects <= messages) and np.all(moved.pointers <= words_in)
        one_by_one = 2 * words_out + words_in + messages  # a wait and a send; a pointer, and a source
        assert np.all(exchange_code_bytes(moved, TARGET) <= one_by_one * TARGET.instruction_bytes)
        for counts, words in (
            (moved.sends, words_out),
            (moved.selects, words_in),
            (moved.pointers, words_in),
        ):
            np.testing.assert_array_equal(counts > 0, words > 0)


@given(SHAPES, DTYPES, SEEDS)
@budget(TABLE)
def test_a_relayout_costs_no_more_than_its_words_one_by_one(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    source, wanted = (random_layout(rng, shape, TARGET.num_tiles) for _ in range(2))
    moved = traffic(source, layout_slices(wanted, shape), dtype, TARGET)
    messages = moved.received // min(WORD_BYTES, itemsize(dtype))
    one_by_one = 2 * moved.sent // WORD_BYTES + moved.received // WORD_BYTES + messages
    assert np.all(moved.sends <= moved.sent // WORD_BYTES)
    assert np.all(exchange_code_bytes(moved, TARGET) <= one_by_one * TARGET.instruction_bytes)


# ---- few words cost no more than many


def read_by_all(count: int, words: int, stride: int) -> tuple[OpForm, Plan]:
    """Return the form and plan of ``count`` tiles that each read all words of a row, one of every ``stride`` tiles."""
    form = OpForm(
        (Dim("reader", count, PARALLEL), Dim("word", words, REDUCTION)),
        (IndexMap((Affine(((1, 1),)),)),),
        (IndexMap((Affine(((0, 1),)),)),),
    )
    return form, Plan((AxisSplit(count, 1, ((count, stride),)), whole(words)))


@given(SEEDS, st.integers(1, 24), st.integers(2, 40), st.sampled_from([1, 2]), DTYPES)
@budget(TABLE)
def test_a_scalar_read_by_many_tiles_costs_no_more_than_a_row(seed, readers, words, stride, dtype):
    """Read by the same tiles, from a tile that holds a word of the row."""
    row = random_layout(np.random.default_rng(seed), (words,), TARGET.num_tiles)
    home = Layout((whole(1),), int(row.tiles[0]))
    costs = []
    for source, count in ((home, 1), (row, words)):
        form, plan = read_by_all(readers, count, stride)
        moved = operand_traffic(source, form, plan, 0, (count,), dtype, TARGET)
        costs.append((int(exchange_code_bytes(moved, TARGET).max()), exchange_cycles(moved, TARGET).value))
    assert costs[0][0] <= costs[1][0] and costs[0][1] <= costs[1][1], costs


@given(st.integers(2, 20), st.sampled_from([1, 2]), SEEDS, st.integers(1, 40), DTYPES)
@budget(TABLE)
def test_a_word_that_many_tiles_take_is_sent_once(readers, stride, seed, words, dtype):
    """What leaves does not grow with those who listen; no tile sends more than it would for one other reader alone."""
    source = random_layout(np.random.default_rng(seed), (words,), TARGET.num_tiles)
    sent = []
    for count in (2, readers):
        form, plan = read_by_all(count, words, stride)
        sent.append(operand_traffic(source, form, plan, 0, (words,), dtype, TARGET))
    few, many = sent
    for name in ("sent", "sends", "runs"):
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name), err_msg=name)
    held = np.zeros(TARGET.num_tiles, np.int64)
    held[source.tiles] = source.part_bytes(dtype)
    assert np.all(many.sent <= -(-held // WORD_BYTES) * WORD_BYTES)


# ---- together costs no more than apart


@given(st.one_of(questions(), windows()), SEEDS)
@budget(PLAN)
def test_two_operands_in_one_phase_cost_no_more_than_in_two(case, seed):
    found = moves(case, seed)
    if len(found) < 2:
        return
    together, apart = found[0] + found[1], found
    code = [exchange_code_bytes(moved, TARGET) for moved in (together, *apart)]
    assert np.all(code[0] <= code[1] + code[2])
    cycles = [exchange_cycles(moved, TARGET).value for moved in (together, *apart)]
    assert cycles[0] <= cycles[1] + cycles[2]


@st.composite
def adjacent(draw: st.DrawFn) -> tuple[OpForm, Plan, tuple[int, ...], int]:
    """Return a form that reads rows of a matrix from one on, a plan, the matrix's shape, and where to cut the rows read.

    Every cell reads all of the rows, and a part of the columns or all of them; what is cut lies one after the other in
    its buffer.
    """
    rows, columns = draw(st.integers(2, 12)), draw(st.integers(1, 9))
    first, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    cut = draw(st.integers(1, rows - 1))
    others = draw(st.integers(1, 3))
    axes = [Affine(((0, 1),), first), Affine(((1, 1),))]
    shape = (rows + first + after, columns)
    form = OpForm(
        (Dim("row", rows, REDUCTION), Dim("column", columns), Dim("other", others)),
        (IndexMap(tuple(axes)),),
        (IndexMap((Affine(((1, 1),)), Affine(((2, 1),)))),),
    )
    grain = draw(st.integers(1, columns))
    parts = -(-columns // grain)
    splits = (
        whole(rows),
        AxisSplit(columns, grain, ((parts, others),) if parts > 1 else ()),
        AxisSplit(others, 1, ((others, 1),) if others > 1 else ()),
    )
    return form, Plan(splits, draw(st.integers(0, 3))), shape, cut


def rows_of(form: OpForm, plan: Plan, start: int, count: int) -> tuple[OpForm, Plan]:
    """Return the form and plan that read some of the rows."""
    axes = tuple(
        Affine(a.terms, a.offset + start) if a.terms[0][0] == 0 else a for a in form.operands[0].axes
    )
    dims = (Dim("row", count, REDUCTION), *form.dims[1:])
    return OpForm(dims, (IndexMap(axes),), form.results), Plan((whole(count), *plan.splits[1:]), plan.base)


def code_at_once_and_apart(
    form: OpForm, plan: Plan, source: Layout, dtype: str, cut: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the code of reading all rows at once, and of reading them in two slices, each with a buffer of its own."""
    rows = form.dims[0].size
    at_once, *apart = (
        exchange_code_bytes(
            operand_traffic(source, *rows_of(form, plan, start, count), 0, source.shape, dtype, TARGET),
            TARGET,
        )
        for start, count in ((0, rows), (0, cut), (cut, rows - cut))
    )
    return at_once, apart[0] + apart[1]


@given(adjacent(), DTYPES, SEEDS)
@budget(TABLE)
def test_two_adjacent_slices_in_one_cost_no_more_than_apart(case, dtype, seed):
    """Where a cell's columns lie in one part, by rows; see below for where they do not.

    But for one pointer: a tile's own elements count as an interruption even where they come first or last.
    """
    form, plan, shape, cut = case
    found = random_layout(np.random.default_rng(seed), shape, TARGET.num_tiles)
    source = Layout(found.axes, found.base)
    assume(not spans_parts(form, plan, source))
    at_once, apart = code_at_once_and_apart(form, plan, source, dtype, cut)
    apart += TARGET.instruction_bytes * np.isin(np.arange(TARGET.num_tiles), source.tiles)
    assert np.all(at_once <= apart), f"{at_once} B at once, {apart} B in two; from {source}, {plan}"


def spans_parts(form: OpForm, plan: Plan, source: Layout) -> bool:
    """Return whether any cell's columns lie in several parts."""
    number = next(n for n, axis in enumerate(form.operands[0].axes) if axis.terms[0][0] == 1)
    grain, split = source.axes[number].grain, plan.splits[1]
    return bool(np.any(split.lo // grain != np.maximum(split.hi - 1, 0) // grain))


def matrix_form(rows: int, columns: int, is_transposed: bool = False) -> OpForm:
    """Return the form that reduces a matrix over its rows, which lie along the second axis if it is transposed."""
    axes = (Affine(((0, 1),)), Affine(((1, 1),)))
    return OpForm(
        (Dim("row", rows, REDUCTION), Dim("column", columns)),
        (IndexMap(axes[::-1] if is_transposed else axes),),
        (IndexMap((Affine(((1, 1),)),)),),
    )


def test_adjacent_rows_from_several_parts_cost_no_more_at_once():
    """Two rows of three columns from two parts: 32 B at once, 24 B row by row."""
    form, plan = matrix_form(2, 7), Plan((whole(2), AxisSplit(7, 3, ((3, 1),))))
    source = Layout((whole(2), AxisSplit(7, 4, ((2, 1),))), 4)
    at_once, apart = code_at_once_and_apart(form, plan, source, "float32", 1)
    assert np.all(at_once <= apart)


def test_adjacent_slices_of_groups_cost_no_more_at_once():
    """A row of four elements, in groups of three, leaves in two runs, and in three if it is cut before."""
    form, plan = matrix_form(4, 2, is_transposed=True), Plan((whole(4), AxisSplit(2, 1, ((2, 1),))), 1)
    source = Layout((whole(2), whole(5)), 0, Arrangement(((1, 0), (0, 0), (1, 3))))
    at_once, apart = code_at_once_and_apart(form, plan, source, "float32", 1)
    assert np.all(at_once <= apart)


@pytest.mark.parametrize("columns", [17, 20, 23, 31])
def test_a_group_that_is_not_full_travels_with_its_padding(columns):
    """The last part has 1 to 15 of 16 columns, in groups of eight, of six rows that two tiles read: as if it had all."""

    def code(columns: int) -> np.ndarray:
        form = matrix_form(6, columns)
        source = Layout(
            (whole(6), AxisSplit(columns, 16, ((2, 1),))), 0, Arrangement(((1, 0), (0, 0), (1, 8)))
        )
        cut = AxisSplit(6, 3, ((2, 4),)), AxisSplit(columns, 16, ((2, 2),))
        plan = Plan(cut, 4, Arrangement(((1, 0), (0, 0), (1, 8))))
        moved = operand_traffic(source, form, plan, 0, source.shape, "float32", TARGET)
        return exchange_code_bytes(moved, TARGET)

    np.testing.assert_array_equal(code(columns) > 0, code(32) > 0)
    assert np.all(code(columns) <= code(32)), f"{code(columns)} B of {columns} columns, {code(32)} B of 32"


@st.composite
def reads_of_groups(draw: st.DrawFn) -> tuple[Layout, tuple[range, ...]]:
    """Return a matrix on one tile, of which one axis lies in whole groups, and the rows and columns that are read."""
    group, count = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    shape = (draw(st.integers(1, 4)), group * count)
    order = draw(st.sampled_from([((1, 0), (0, 0), (1, group)), ((0, 0), (1, 0), (1, group))]))
    bounds = [sorted(draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))) for n in shape]
    source = Layout(tuple(map(whole, shape)), 0, Arrangement(order))
    return source, tuple(range(*pair) for pair in bounds)


@given(reads_of_groups())
@budget(TABLE)
def test_what_ends_inside_groups_leaves_in_the_runs_that_it_lies_in(case):
    source, read = case
    form = OpForm(
        tuple(Dim("", len(indices), REDUCTION) for indices in read),
        (IndexMap(tuple(Affine(((d, 1),), indices.start) for d, indices in enumerate(read))),),
        (IndexMap(()),),
    )
    plan = Plan(tuple(whole(len(indices)) for indices in read), 1)
    moved = operand_traffic(source, form, plan, 0, source.shape, "float32", TARGET)
    rows, columns = source.arrangement.offsets(source.shape)
    found = {int(rows[i] + columns[j]) for i in read[0] for j in read[1]}
    assert moved.runs[0] == sum(place - 1 not in found for place in found)
