"""Memory figures against a count tile by tile and step by step, and against the out-of-memory error."""

import numpy as np
import pytest

from tests.unit.tiles.report_programs import looping, network, pipeline, repeated, row_layout
from tiles.compiler import compile_graph
from tiles.compiler.executable import CATEGORIES
from tiles.compiler.oom import fullest
from tiles.errors import OutOfTileMemory
from tiles.graph import Graph
from tiles.report import memory_analysis
from tiles.report.memory import tile_memory


def strided(target):
    """An input on every third tile, handed back."""
    graph = Graph(target, "strided")
    x = graph.add_input((5, 8), "float32", "x")
    graph.set_layout(x.name, row_layout((5, 8), 5, base=1, stride=3))
    graph.outputs = [x.name]
    return compile_graph(graph)


PROGRAMS = {
    "strided": strided,
    "pipeline": pipeline,
    "repeated": lambda target: repeated(target, 2),
    "looping": looping,
    "network": network,
    "network that does not fit": lambda target: network(target.replace(bytes_per_tile=4096), False),
    "empty": lambda target: compile_graph(Graph(target, "empty")),
}


def live_by_hand(executable, tile, step, category=None):
    """Bytes of the buffers that one tile holds at one step, one buffer after the other."""
    return sum(
        b.size_bytes
        for b in executable.buffers.values()
        if tile in list(b.tile_numbers) and b.start <= step <= b.end and category in (None, b.category)
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_tile_and_step_by_hand(small_target, name):
    executable = PROGRAMS[name](small_target)
    memory = tile_memory(executable)
    steps = range(-1, len(executable.steps) + 1)
    table = np.array([[live_by_hand(executable, tile, s) for tile in range(16)] for s in steps])
    assert np.array_equal(memory.peak, table.max(axis=0))
    assert np.array_equal(memory.live, table[:, memory.fullest_tile])
    assert np.array_equal(memory.device_live, table.sum(axis=1))
    for tile in range(16):
        step = int(memory.peak_step[tile])
        assert step == int(table[:, tile].argmax()) - 1
        for category in CATEGORIES:
            assert memory.category[category][tile] == live_by_hand(executable, tile, step, category)
        always = sum(
            b.size_bytes
            for b in executable.buffers.values()
            if tile in b.tile_numbers and all(b.start <= s <= b.end for s in steps)
        )
        assert memory.always_live[tile] == always
        assert memory.not_always_live[tile] == memory.peak[tile] - always


@pytest.mark.parametrize("name", PROGRAMS)
def test_gaps_and_addresses_byte_by_byte(small_target, name):
    executable = PROGRAMS[name](small_target)
    target, memory = executable.target, tile_memory(executable)
    regions = [range(r.base, r.end) for r in target.memory_regions]
    for tile in range(16):
        used = [
            range(b.address, b.address + b.size_bytes)
            for b in executable.buffers.values()
            if tile in b.tile_numbers and b.size_bytes
        ]
        highest = max((r.stop for r in used), default=0)
        assert memory.highest_address[tile] == highest
        expected = 0
        for region in [*regions, range(regions[-1].stop, max(regions[-1].stop, highest))]:
            inside = [
                min(r.stop, region.stop) for r in used if r.start < region.stop and r.stop > region.start
            ]
            expected += max(inside, default=region.start) - region.start
        assert memory.including_gaps[tile] == expected
        assert memory.including_gaps[tile] >= memory.always_live[tile]


@pytest.mark.parametrize("name", ["pipeline", "network", "network that does not fit"])
def test_agrees_with_the_out_of_memory_error(small_target, name):
    executable = PROGRAMS[name](small_target)
    tile, step, live = fullest(executable)
    memory = memory_analysis(executable)
    assert (memory["fullest_tile"], memory["peak_step"]) == (tile, step)
    assert memory["peak_bytes"] == sum(b.size_bytes for b in live)
    assert [row["bytes"] for row in memory["largest_live"]] == [b.size_bytes for b in live][:10]


def test_figures_add_up(small_target):
    executable = network(small_target)
    memory = memory_analysis(executable)
    categories = memory["categories"].values()
    assert sum(c["fullest_tile_bytes"] for c in categories) == memory["peak_bytes"]
    assert sum(c["total_bytes"] for c in categories) == memory["total_bytes"]
    assert memory["always_live_bytes"] + memory["not_always_live_bytes"] == memory["peak_bytes"]
    assert max(memory["live_bytes"]) == memory["live_bytes"][memory["peak_step"] + 1] == memory["peak_bytes"]
    assert len(memory["live_bytes"]) == len(executable.steps) + 2
    assert memory["limit_bytes"] == small_target.bytes_per_tile
    assert memory["fits"] is True
    assert any(row["location"].startswith("net.py:") for row in memory["largest_live"])


def test_a_program_that_does_not_fit_is_analyzed(small_target):
    tight = small_target.replace(bytes_per_tile=4096)
    with pytest.raises(OutOfTileMemory) as caught:
        network(tight)
    memory = memory_analysis(caught.value.executable)  # pyright: ignore[reportAttributeAccessIssue]
    assert memory["fits"] is False
    assert memory["peak_bytes"] > memory["limit_bytes"] == 4096
    assert f"needs {memory['peak_bytes']:,} B" in str(caught.value)
