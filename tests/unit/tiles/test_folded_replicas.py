"""Axes of replicas that follow a folded ring of IPUs: as short as any order there is, and the same values."""

import itertools

import numpy as np
import pytest

from ipuxla.lowering.collectives import split_axes
from tests.replicas import drawn, small_system
from tiles import Executable, Graph, certify, compile_graph, find_system, gcl, make_engine, popops
from tiles.errors import InvalidGraph
from tiles.graph import Copy, If, Replicas, Sequence, Shift, Site
from tiles.plan.links import permutation_cycles
from tiles.report import cost_analysis
from tiles.target import flow_phase


@pytest.mark.parametrize("name", ["dss8440", "pod16", "pod64", "c600_host"])
@pytest.mark.parametrize("size_bytes", [4, 1 << 20])
def test_no_order_of_ipus_makes_a_ring_shorter(name, size_bytes):
    """Brute force over the orders of up to six IPUs of ladders, tori and a line; all of 16 are a ladder's ring."""
    for count in (4, 6):
        system = find_system(name).with_ipus(count)

        def cycles(order, system=system):
            found = flow_phase(system, order, np.roll(order, -1), np.full(len(order), size_bytes)).cycles
            assert found is not None
            return found

        least = min(cycles(np.array((0, *rest))) for rest in itertools.permutations(range(1, count)))
        ring = Replicas((("x", count),), ("x",))
        assert cycles(ring.ipus) == least
        assert permutation_cycles(system, ring, ("x",), (Shift(1),), size_bytes) == pytest.approx(
            least, abs=1
        )


def test_folded_axes_number_every_ipu_once():
    for axes, folded in (
        ((("a", 8), ("b", 2)), ("a",)),
        ((("a", 4), ("b", 4)), ("b", "a")),
        ((("a", 16),), ()),
    ):
        replicas = Replicas(axes, folded)
        assert sorted(replicas.ipus.tolist()) == list(range(replicas.count))
        assert Replicas.from_data(replicas.to_data()) == replicas
    assert Replicas((("a", 4), ("b", 2)), ("a",)).ipus.tolist() == [0, 1, 4, 5, 6, 7, 2, 3]
    assert str(Replicas((("a", 4), ("b", 2)), ("a",))) == "a 4 folded x b 2"
    with pytest.raises(InvalidGraph, match="no axis 'c'"):
        Replicas((("a", 4),), ("c",))
    with pytest.raises(InvalidGraph, match="no axes of replicas"):
        Replicas.from_data([["a", 4, "turned"]])


def test_a_folded_axis_changes_links_and_no_value():
    def graph(folded):
        made = Graph(small_system("dss8440"))
        made.replicate("x", 16, folded=folded)
        x = made.add_input((5, 7), "float32", "x")
        made.outputs.append(gcl.permute(made, x, "x", Shift(1)).name)
        made.outputs.append(gcl.all_reduce(made, x, "x", algorithm="ring").name)
        return compile_graph(made)

    values = drawn(np.random.default_rng(0), (16, 5, 7), "float32")
    plain, turned = graph(False), graph(True)
    certify(turned)
    again = Executable.from_bytes(turned.to_bytes())
    assert again.replicas.folded == ("x",) and again.to_bytes() == turned.to_bytes()
    for engine in ("fast", "literal"):
        for executable in (plain, again):
            shifted, total = make_engine(executable, engine=engine).run(values)[0]
            np.testing.assert_array_equal(np.asarray(shifted), np.roll(values, 1, axis=0))
            np.testing.assert_allclose(np.asarray(total)[3], values.sum(0), rtol=1e-4, atol=1e-4)
    assert cost_analysis(turned)["link_cycles"] < cost_analysis(plain)["link_cycles"]


def test_messages_name_an_axis_that_was_split_as_the_user_did() -> None:
    def build(part_of: str) -> Graph:
        graph = Graph(small_system())
        graph.replicate("model", 2)
        graph.replicate("model.1", 2, part_of=part_of)
        x = graph.add_input((4,), "int32", "x")
        total = graph.add_variable((4,), "int32", "total")
        body = Sequence()
        found = gcl.all_reduce(Site(graph, sequence=body), x, "model.1")
        body.add(Copy(total.name, (found.name,)))
        if part_of:
            own = gcl.replica_index(graph, ("model.1",))
            graph.program.add(If(popops.lt(graph, own, 1).name, body, Sequence()))
        else:
            graph.program.add(body)
        graph.outputs.append(total.name)
        return graph

    with pytest.raises(InvalidGraph, match=r"which may differ along model, decides"):
        compile_graph(build("model"))
    replicas = Replicas((("a", 2), ("a.1", 2)), ("a.1",), parts=(("a.1", "a"),))
    assert Replicas.from_data(replicas.to_data()) == replicas and replicas.shown(("a.1", "a")) == "a"
    for damaged in (
        [["a", 2, ["of"]]],
        [["a", 2, "upside"]],
        [["a", 2, ["of", 3]]],
        [["a", 2, ["of", "b"], 1]],
    ):
        with pytest.raises(InvalidGraph):
            Replicas.from_data(damaged)


def test_parts_of_split_axes_have_names_of_their_own() -> None:
    assert [name for name, _, _ in split_axes((("a", 4), ("a.1", 2)))] == ["a", "a.1_", "a.1"]
