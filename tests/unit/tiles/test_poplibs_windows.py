"""Windows, their phases and who covers whom, against enumeration; pooling and its gradient against numpy."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.budgets import TABLE, budget
from tests.unit.tiles.poplibs_cells import run_graph, words
from tiles.errors import InvalidGraph
from tiles.graph import Graph, codelet_from_data
from tiles.poplibs import popnn
from tiles.poplibs.popops.interleave import Interleave, interleave
from tiles.poplibs.windows import Collection, Window
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=8)
small = st.integers(1, 4)
WINDOWS = st.builds(
    Window,
    st.integers(1, 7),
    small,
    small,
    st.integers(-1, 3),
    st.integers(-1, 3),
    small,
    small,
    st.booleans(),
)


def _reads(window: Window) -> list[list[tuple[int, int]]]:
    """Return, per output, the pairs (operand element, stored tap) that meet, by enumeration."""
    extent = (window.size - 1) * window.base + 1 + window.low + window.high
    span = (window.taps - 1) * window.dilation + 1
    found = []
    for start in range(0, extent - span + 1, window.stride):
        pairs = []
        for tap in range(window.taps):
            element, rest = divmod(start + tap * window.dilation - window.low, window.base)
            if not rest and 0 <= element < window.size:
                pairs.append((element, window.taps - 1 - tap if window.reverse else tap))
        found.append(sorted(pairs))
    return found


@budget(TABLE)
@given(WINDOWS)
@example(Window(3, 3, 1, 1, 1, 2))
def test_phases_read_what_windows_of_the_spread_operand_read(window):
    expected = _reads(window)
    assert window.outputs == len(expected)
    for output, pairs in enumerate(expected):
        y, number = divmod(output, window.num_phases)
        phase = window.phase(number)
        reads = [
            (phase.offset + phase.stride * y + phase.dilation * m, phase.tap + phase.tap_step * m)
            for m in range(phase.taps)
        ]
        assert sorted((e, k) for e, k in reads if 0 <= e < window.size) == pairs
    if window.is_inside:
        assert all(len(pairs) == window.taps for pairs in expected)


@budget(TABLE)
@given(st.builds(Collection, st.integers(1, 9), small, small, st.integers(0, 3)))
def test_windows_within_reach_are_those_that_cover_a_block(c):
    for element in range(c.size):
        block = element // c.stride
        covering = [w for w in range(-9, 20) if 0 <= element - (c.stride * w - c.low) < c.taps]
        assert set(covering) <= set(range(block + c.first, block + c.first + c.reach))
        start = c.stride * (block + c.first) - c.low  # of the first window within reach
        assert element - start == c.lead + element % c.stride
    assert c.origin == c.stride * c.first - c.low


def _run(build, *arrays, arithmetic="float"):
    graph = Graph(TARGET)
    tensors = [graph.add_input(x.shape, x.dtype.name) for x in arrays]
    result = build(graph, *tensors)
    held = [words(x) for x in arrays] if arithmetic == "ring" else arrays
    given_ = dict(zip([t.name for t in tensors], held, strict=True))
    return run_graph(graph, given_, arithmetic)[result.name]


def _pooled(x, windows, fold, start):
    out = np.full([w.outputs for w in windows], start, x.dtype)
    reads = [_reads(w) for w in windows]
    for at in np.ndindex(*out.shape):
        for places in itertools.product(*(r[i] for r, i in zip(reads, at, strict=True))):
            out[at] = fold(out[at], x[tuple(p[0] for p in places)])
    return out


POOLS = {
    "apart": [Window(6, 2, 2), Window(4, 2, 2)],
    "overlapping, padded": [Window(5, 3, 2, 1, 1), Window(6, 3, 1, 2, 0)],
    "spread": [Window(3, 2, 1, 1, 1, base=2), Window(4, 2, 2, base=3)],
    "spread window": [Window(7, 3, 1, dilation=2), Window(4, 1)],
    "long": [Window(20, 20, 1, 19, 0), Window(2, 1)],
    "everything": [Window(5, 5), Window(3, 3)],
}


@pytest.mark.parametrize("case", POOLS)
def test_pooling_folds_every_window(case):
    windows = POOLS[case]
    x = np.random.default_rng(0).integers(-9, 10, [w.size for w in windows]).astype(np.float32)
    for operation, fold, start in (("max", np.maximum, -np.inf), ("add", np.add, 0)):
        found = _run(lambda g, t, operation=operation: popnn.pool(g, t, windows, operation), x)
        np.testing.assert_array_equal(found, _pooled(x, windows, fold, start))


def _collected(x, source, windows, stays):
    out = np.zeros_like(x)
    reads = [_reads(w) for w in windows]
    for at in np.ndindex(*source.shape):
        best = None
        for places in itertools.product(*(r[i] for r, i in zip(reads, at, strict=True))):
            place = tuple(p[0] for p in places)
            best = place if best is None or not stays(x[best], x[place]) else best
        if best is not None:
            with np.errstate(over="ignore"):  # words are added modulo 2^32
                out[best] += source[at]
    return out


SCATTERS = {
    "apart": [Window(6, 2, 2), Window(5, 2, 2)],
    "overlapping, padded": [Window(5, 3, 2, 1, 1), Window(6, 3, 1, 2, 0)],
    "gaps": [Window(7, 1, 2), Window(6, 2, 3, 1, 0)],
    "padding only": [Window(4, 2, 2, 2, 2), Window(3, 1)],
}


@pytest.mark.parametrize("case", SCATTERS)
@pytest.mark.parametrize("direction", ["GE", "LT"])
def test_elements_collect_from_the_windows_they_lead(case, direction):
    windows = SCATTERS[case]
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, [w.size for w in windows]).astype(np.float32)
    source = rng.integers(1, 9, [w.outputs for w in windows]).astype(np.float32)
    found = _run(lambda g, t, s: popnn.select_and_scatter(g, t, s, windows, direction), x, source)
    stays = {"GE": np.greater_equal, "LT": np.less}[direction]
    np.testing.assert_array_equal(found, _collected(x, source, windows, stays))
    exact = _run(
        lambda g, t, s: popnn.select_and_scatter(g, t, s, windows, direction), x, source, arithmetic="ring"
    )
    np.testing.assert_array_equal(exact, _collected(words(x), words(source), windows, stays))


def test_interleaved_phases_take_turns_and_absent_ones_are_filled():
    a, b = (np.arange(6, dtype=np.int32).reshape(2, 3) + n for n in (10, 20))

    def build(graph, x, y):
        return interleave(graph, [x, None, y, None], [2, 2], [3, 6], dtype="int32", shape=(2, 3), fill=7)

    expected = np.full((4, 6), 7, np.int32)
    expected[0::2, 0::2], expected[1::2, 0::2] = a, b
    np.testing.assert_array_equal(_run(build, a, b), expected[:3])


def test_what_does_not_fit_is_refused():
    graph = Graph(TARGET)
    x = graph.add_input((4, 4), "float32")
    with pytest.raises(InvalidGraph, match="strides and dilations"):
        Window(4, 2, 0)
    with pytest.raises(InvalidGraph, match="elements of"):
        popnn.pool(graph, x, [Window(4, 2)])
    with pytest.raises(InvalidGraph, match="no pooling by"):
        popnn.pool(graph, x, [Window(4, 2), Window(4, 2)], "median")
    with pytest.raises(InvalidGraph, match="as source"):
        popnn.select_and_scatter(graph, x, x, [Window(4, 2), Window(4, 2)])


def test_codelets_survive_their_data():
    collecting = popnn.SelectAndScatter("GE", "float32", (1,), (2,), (2,), (1,), (0,), (0,), (8,))
    filled = Interleave((1,), (2,), (True, False), "float32", -np.inf)
    for codelet in (popnn.pool_codelet("max", "float16"), collecting, filled):
        assert codelet_from_data(codelet.to_data()) == codelet
