"""Source lines and scopes as one text, and what reports make of them."""

from __future__ import annotations

import pytest

from tests.unit.tiles.report_programs import pipeline
from tiles.compiler import compile_graph
from tiles.graph import Graph, Location, Site
from tiles.graph.location import short
from tiles.poplibs import poplin
from tiles.report import profile
from tiles.report.page import page
from tiles.report.places import place_data, scope_of
from tiles.report.scopes import scopes_data


@pytest.mark.parametrize(
    ("location", "text"),
    [
        (Location(), ""),
        (Location("model.py:3"), "model.py:3"),
        (Location("model.py:3", "GPT/Dense_0"), "model.py:3 in GPT/Dense_0"),
        (Location("model.py:3", "GPT", ("transpose", "vmap")), "model.py:3 in GPT [transpose, vmap]"),
        (Location("model.py:3", "", ("jvp",)), "model.py:3 in [jvp]"),
        (Location("", "GPT", ("jvp",)), "in GPT [jvp]"),
        (Location("", "", ("jvp",)), "in [jvp]"),
        (Location("a in b/model.py:3"), "a in b/model.py:3"),
        (Location("a in b/model.py:3", "heads[0]"), "a in b/model.py:3 in heads[0]"),
        (Location("wherever the user says"), "wherever the user says"),
    ],
)
def test_a_text_says_what_it_was_made_from(location, text):
    assert str(location) == text and Location.read(text) == location


def test_places_of_several_are_joined():
    data = place_data("a.py:1 in A/b [jvp]", "b.py:2", "a.py:1 in A/c [jvp]")
    assert data == {"location": "a.py:1; b.py:2", "scope": "A/b; A/c", "transforms": ["jvp"]}
    assert scope_of(data) == "A/b; A/c [jvp]"


def test_without_scopes_reports_have_no_column_for_them(small_target):
    result = profile(pipeline(small_target))
    assert "scope" not in result.text() and "<th>scope" not in page(result.data)
    assert {row["scope"] for row in result.operations} == {""}


def test_what_several_scopes_share_counts_for_those_around_them_all(small_target):
    empty = compile_graph(Graph(small_target, "empty"))
    given = {"A/b/c; A/d": 5, "A/d": 2, "": 3}
    rows = [{"scope": scope, "cycles": cycles, "steps": [], "members": []} for scope, cycles in given.items()]
    found = [
        {name: row[name] for name in ("scope", "depth", "cycles", "share")}
        for row in scopes_data(empty, rows)
    ]
    assert found == [
        {"scope": "A", "depth": 0, "cycles": 7, "share": 0.7},
        {"scope": "A/d", "depth": 1, "cycles": 2, "share": 0.2},
    ]
    unknown = {"scope": "A", "cycles": None, "steps": [], "members": []}
    assert scopes_data(empty, [unknown])[0]["cycles"] is None
    rows[0]["members"] = [{"scope": "A/b/c", "vertexCycles": 3}, {"scope": "A/d", "vertexCycles": 1}]
    assert {row["scope"]: row["cycles"] for row in scopes_data(empty, rows)} == {
        "A": 7,
        "A/b": 3,
        "A/b/c": 3,
        "A/d": 3,
    }
    assert scopes_data(empty, []) == []


def test_operations_of_one_line_and_two_scopes_are_two(small_target):
    graph = Graph(small_target, "net")
    x = graph.add_input((8, 8), "float32", "x")
    for name in ("Dense_0", "Dense_1"):
        x = poplin.matmul(Site(graph, "dot", f"linear.py:287 in Net/{name} [jvp]"), x, x)
    graph.outputs = [x.name]
    result = profile(compile_graph(graph))
    found = {(row["location"], row["scope"], *row["transforms"]) for row in result.operations}
    assert found == {("linear.py:287", f"Net/{name}", "jvp") for name in ("Dense_0", "Dense_1")}
    net, *layers = result.data["scopes"]
    assert (net["scope"], net["depth"], net["share"]) == ("Net", 0, 1)
    assert {row["scope"] for row in layers} == {"Net/Dense_0", "Net/Dense_1"}
    assert net["cycles"] == sum(row["cycles"] for row in layers) == result.cycles
    assert "    Dense_0" in result.text() and "<h2>Scopes</h2>" in page(result.data)
    assert "Net/Dense_0 [jvp]" in result.text() and "Net/Dense_1 [jvp]" in page(result.data)


def test_places_of_many_are_the_first_lines_and_the_scope_around_all():
    data = place_data(*(f"net/model.py:{n} in Net/Dense_{n}/add" for n in range(5)))
    assert data["location"] == "net/model.py:0; net/model.py:1; net/model.py:2 and 2 more"
    assert data["scope"] == "Net"
    assert place_data(*(f"a.py:1 in {name}" for name in "ABCD"))["scope"] == ""
    assert short("/home/net/model.py:0; /home/net/model.py:1") == "net/model.py:0; net/model.py:1"
