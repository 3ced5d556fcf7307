"""Memories of replicas that lie in files: fewer at a time than there are give the same words."""

from __future__ import annotations

import numpy as np
import pytest

from tests.replicas import replicated
from tiles import Graph, compile_graph, gcl, make_engine, popops
from tiles.errors import InvalidArguments
from tiles.graph import Copy, RepeatWhileTrue, Sequence, Shift, Site


def program() -> Graph:
    """Return a program with exchanges round a ring and of slices, and a loop that replicas leave at different times."""
    graph = replicated(("data", 4), num_tiles=4)
    x = graph.add_input((8, 16), "int32", "x")
    y = popops.mul(graph, x, graph.add_input((16,), "int32", "w", same_on_all=True))
    total = gcl.all_reduce(graph, y, ("data",), algorithm="ring")
    graph.outputs.append(gcl.all_to_all(graph, popops.add(graph, total, y), ("data",), 1, 1).name)
    count = graph.add_variable((), "uint32", "count")
    graph.program.add(Copy(count.name, (gcl.replica_index(graph, ("data",)).name,)))
    test, body = Sequence(), Sequence()
    goes_on = popops.lt(Site(graph, sequence=test), count, 6)
    more = popops.add(Site(graph, sequence=body), count, 2)
    body.add(Copy(count.name, (more.name,)))
    graph.program.add(RepeatWhileTrue(test, goes_on.name, body))
    graph.outputs.append(gcl.permute(graph, count, ("data",), Shift(1)).name)
    return graph


def test_waves_give_the_same_words_run_after_run() -> None:
    executable = compile_graph(program())
    rng = np.random.default_rng(0)
    inputs = [rng.integers(0, 2**31 - 1, shape).astype(np.int32) for shape in ((4, 8, 16), (16,))]
    fast, _ = make_engine(executable).run(*inputs)
    whole, trace = make_engine(executable, "literal").run(*inputs)
    assert np.asarray(whole[1]).tolist() == [7, 6, 7, 6]
    one = sum(end - first for first, end in executable.data_spans) * executable.target.num_tiles
    for resident in (1, 3 * one + 1):
        engine = make_engine(executable, "literal", resident_bytes=resident)
        for _ in range(2):
            found, again = engine.run(*inputs)
            for words in (whole, fast):
                assert [np.asarray(x).tobytes() for x in found] == [np.asarray(x).tobytes() for x in words]
            assert again.trips == trace.trips


def test_options_of_memory_are_checked(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    executable = compile_graph(program())
    with pytest.raises(InvalidArguments, match="engine 'fast' has no tile memory"):
        make_engine(executable, resident_bytes=1)
    with pytest.raises(InvalidArguments, match="cannot share 0 B"):
        make_engine(executable, "literal", resident_bytes=0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    inputs = np.zeros((4, 8, 16), np.int32), np.zeros((16,), np.int32)
    with pytest.raises(InvalidArguments, match=r"does not fit into a file in .*gone"):
        make_engine(executable, "literal", resident_bytes=1).run(*inputs)
