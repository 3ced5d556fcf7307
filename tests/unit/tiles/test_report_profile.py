"""The profile's document: its schema, its figures against the static costs, and the same bytes every time."""

import copy
import dataclasses
import json
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.tiles.report_programs import (
    Scale,
    Total,
    looping,
    network,
    pipeline,
    repeated,
    row_layout,
    switching,
)
from tiles.compiler import Executable, compile_graph, step_costs
from tiles.engine import make_engine
from tiles.engine.trace import Trace
from tiles.graph import (
    REDUCTION,
    Dim,
    Execute,
    Graph,
    IndexMap,
    OpForm,
    Plan,
    Site,
    Vertices,
    along,
    identity_map,
    whole,
)
from tiles.poplibs import gcl, poplin
from tiles.report import SCHEMA, profile, profile_schema, write_report
from tiles.target import find_system

ROOT = pathlib.Path(__file__).parents[3]


def ran(executable, *counts):
    return Trace(counts or (1,) * len(executable.steps), "fast", "float")


def two_in_one(target):
    """Two codelets on different tiles of one compute set: rows scaled on tiles 0-3, summed on tiles 4-5."""
    graph = Graph(target, "two in one")
    x = graph.add_input((8, 4), "float32", "x")
    graph.set_layout(x.name, row_layout((8, 4), 4))
    scaled = graph.add_tensor((8, 4), "float32", "scaled", row_layout((8, 4), 4))
    sums = graph.add_tensor((8,), "float32", "sums", row_layout((8,), 2, base=4))
    rows = Dim("row", 8)
    flat = OpForm((rows, Dim("column", 4)), (identity_map(2),), (identity_map(2),))
    reduced = OpForm((rows, Dim("column", 4, REDUCTION)), (identity_map(2),), (IndexMap((along(0),)),))
    plan = Plan((*sums.layout.axes, whole(4)), 4)
    graph.add_compute_set(
        "both",
        Vertices("scaled", Scale(), flat, Plan(scaled.layout.axes), ("x",), ("scaled",), "two.py:1"),
        Vertices("sums", Total(), reduced, plan, ("x",), ("sums",), "two.py:2"),
    )
    graph.outputs = ["scaled", "sums"]
    graph.program.add(Execute("both"))
    return compile_graph(graph)


def replicated_sum(target):
    """Sum a tensor over four IPUs of a ladder."""
    system = find_system("dss8440")
    graph = Graph(dataclasses.replace(system, chip=target))
    graph.replicate("data", 4)
    x = graph.add_input((24,), "float32", "x")
    graph.outputs.append(gcl.all_reduce(graph, x, "data", algorithm="two_rings").name)
    return compile_graph(graph)


# ---- the schema


def check(value, schema, root, where="profile"):
    """Raise AssertionError where ``value`` breaks ``schema``, or the schema uses a keyword unknown here."""
    handled = {
        "$schema", "$id", "$defs", "title", "description", "$ref", "type", "properties", "required",
        "additionalProperties", "items", "enum", "const", "minimum", "oneOf",
    }  # fmt: skip
    assert set(schema) <= handled, f"{where}: the validator does not know {set(schema) - handled}"
    if "$ref" in schema:
        check(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, where)
    if "const" in schema:
        assert value == schema["const"], where
    if "enum" in schema:
        assert value in schema["enum"], f"{where}: {value!r}"
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(_is(value, kind) for kind in types), f"{where}: {value!r} is not {types}"
    if "minimum" in schema and value is not None:
        assert value >= schema["minimum"], f"{where}: {value}"
    if "oneOf" in schema:
        assert sum(_fits(value, choice, root) for choice in schema["oneOf"]) == 1, where
    if isinstance(value, dict):
        for key in schema.get("required", ()):
            assert key in value, f"{where} lacks {key}"
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is False:
            assert set(value) <= set(properties), f"{where} adds {set(value) - set(properties)}"
        for key, item in value.items():
            check(item, properties.get(key, {}), root, f"{where}.{key}")
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            check(item, schema["items"], root, f"{where}[{number}]")


def _is(value, kind):
    types = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    if kind in types:
        return isinstance(value, types[kind])
    allowed = int if kind == "integer" else (int, float)
    return isinstance(value, allowed) and not isinstance(value, bool)


def _fits(value, schema, root):
    try:
        check(value, schema, root)
    except AssertionError:
        return False
    return True


CASES = {
    "ran": lambda t: (pipeline(t), True),
    "looped": lambda t: (repeated(t, 4), True),
    "two codelets": lambda t: (two_in_one(t), True),
    "primitives": lambda t: (network(t), True),
    "empty": lambda t: (compile_graph(Graph(t, "empty")), True),
    "not run": lambda t: (pipeline(t), False),
    "while, not run": lambda t: (looping(t), False),
    "switch, not run": lambda t: (switching(t, (1, 2)), False),
    "replicas, not run": lambda t: (replicated_sum(t), False),
    "does not fit": lambda t: (network(t.replace(bytes_per_tile=4096), False), False),
}


@pytest.mark.parametrize("case", CASES)
def test_documents_follow_the_published_schema(small_target, case):
    executable, was_run = CASES[case](small_target)
    text = profile(executable, ran(executable) if was_run else None).to_json()
    schema = profile_schema()
    check(json.loads(text), schema, schema)


def test_the_schema_is_the_published_file_and_refuses_other_documents(small_target):
    schema = profile_schema()
    assert schema == json.loads((ROOT / "docs" / "profile-schema.json").read_text())
    assert schema["$id"] == SCHEMA
    good = json.loads(profile(pipeline(small_target), None).to_json())
    changes = [
        lambda d: d.pop("operations"),
        lambda d: d.update(extra=1),
        lambda d: d["target"].update(numTiles="16"),
        lambda d: d["execution"]["steps"][0].pop("count"),
        lambda d: d["execution"]["steps"][0]["basis"].update(compute="GUESSED"),
        lambda d: d["compilation"]["tiles"]["total"].append(-1),
        lambda d: d["compilation"]["memory"].update(fits=1),
        lambda d: d["costAnalysis"]["unresolved"].append({"kind": "while"}),
    ]
    for change in changes:
        bad = copy.deepcopy(good)
        change(bad)
        assert not _fits(bad, schema, schema)
    assert _fits(good, schema, schema)


# ---- figures


def test_a_run_is_static_cost_times_count(small_target):
    executable = looping(small_target)
    _, trace = make_engine(executable).run(jnp.int32(3))
    assert trace.counts == (1, 7, 6, 6)
    execution = profile(executable, trace).data["execution"]
    for step, cost, count in zip(execution["steps"], step_costs(executable), trace.counts, strict=True):
        assert (step["count"], step["totalCycles"]) == (count, count * cost.cycles)
        assert step["tileBalance"] == pytest.approx(
            np.mean(cost.tile_compute_cycles) / cost.compute_cycles, abs=1e-6
        )
        assert step["activeTiles"] == sum(c > 0 for c in cost.tile_compute_cycles)
    assert execution["cycles"] == sum(step["totalCycles"] for step in execution["steps"])
    active = sum(n * c.tile_compute_cycles for n, c in zip(trace.counts, step_costs(executable), strict=True))
    assert execution["activeCyclesByTile"] == list(active)
    assert execution["tileBalance"] == pytest.approx(active.mean() / active.max(), abs=1e-6)


@pytest.mark.parametrize(
    "program", [pipeline, network, lambda t: repeated(t, 9), lambda t: switching(t, (2, 2))]
)
def test_operations_add_up_to_the_run(small_target, program):
    executable = program(small_target)
    result = profile(executable, ran(executable, *range(1, 1 + len(executable.steps))))
    for key in ("cycles", "computeCycles", "exchangeCycles", "syncCycles", "flops", "exchangeBytes"):
        assert sum(row[key] for row in result.operations) == result.data["execution"][key]
    assert sum(row["runs"] for row in result.operations) == result.data["execution"]["supersteps"]
    assert sum(row["share"] for row in result.operations) == pytest.approx(1, abs=1e-4)
    assert sorted(n for row in result.operations for n in row["steps"]) == list(range(len(executable.steps)))
    cycles = [row["cycles"] for row in result.operations]
    assert cycles == sorted(cycles, reverse=True)


def test_operations_name_line_vertex_and_plan(small_target):
    rows = {row["name"]: row for row in profile(pipeline(small_target), None).operations}
    assert set(rows) == {"first", "second", "sums", "copy.out"}
    second = rows["second"]
    assert second["location"] == "model.py:5"
    assert second["vertexTypes"] == ["test.report.Scale"]
    assert second["plans"] == ["d0:8/4 d1:64"]
    assert (second["numVertices"], second["flops"]) == (2, 512)
    copied = small_target.local_copy_call_cycles + 2 * 64 * 4 // small_target.memcpy_bytes_per_cycle
    assert second["basisCycles"]["FITTED"] == second["computeCycles"] - copied
    assert (rows["sums"]["basis"], rows["sums"]["sources"]) == ("MEASURED", ["a test"])
    assert second["basis"] == "ASSUMED"  # its sync is carried over from another device
    assert rows["copy.out"]["location"] == "model.py:7"
    assert "->" in rows["copy.out"]["plans"][0]


def test_stages_of_a_split_reduction_are_one_operation(small_target):
    graph = Graph(small_target, "split")
    x = graph.add_input((2, 4096), "float32", "x")
    w = graph.add_input((4096, 2), "float32", "w")
    graph.outputs = [poplin.matmul(Site(graph, "dot", "net.py:3"), x, w).name]
    executable = compile_graph(graph)
    names = [group.name for _, group in executable.groups()]
    assert "dot.partials" in names and "dot.combine" in names
    (row,) = profile(executable, None).operations
    assert (row["name"], row["location"]) == ("dot", "net.py:3")
    assert row["runs"] == len(row["steps"]) == len(names)
    assert len(row["vertexTypes"]) > 1


def test_vertices_that_share_a_compute_set_are_one_row(small_target):
    executable = two_in_one(small_target)
    (row,) = profile(executable, None).operations
    assert row["name"] == "sums and 1 more"  # the sum of a row of four takes longer than scaling one
    assert row["location"] == "two.py:2; two.py:1"
    taken = {each["vertexType"]: each["vertexCycles"] for each in row["members"]}
    assert list(taken) == ["test.report.Total", "test.report.Scale"]
    assert taken["test.report.Scale"] == 0  # on other tiles than the one that the step waits for
    assert row["vertexTypes"] == ["test.report.Scale", "test.report.Total"]
    assert row["plans"] == ["row:8/2 column:4 | row:8/4 column:4"]
    assert row["cycles"] == step_costs(executable)[0].cycles


def test_unknown_costs_come_last_and_stay_unknown(small_target):
    result = profile(looping(small_target), None)
    assert result.cycles is None and result.seconds is None
    assert [row["cycles"] is None for row in result.operations] == [False, True, True, True]
    assert result.data["execution"]["activeCyclesByTile"] is None
    text = result.text()
    assert "while on go: 309 cycles per trip from while.py:3" in text
    assert "not run" in text.splitlines()[0]


def test_the_number_of_operations_shown_is_the_callers(small_target):
    result = profile(pipeline(small_target), None)
    assert "the 2 costliest of 4 operations" in result.text(top=2)
    shown = [
        name
        for name in ("second", "copy.out", "sums", "first")
        if f"\n  {name} " in result.text(top=2).split("memory:")[0]
    ]
    assert shown == ["second", "copy.out"]


# ---- the same bytes


def test_the_same_program_gives_the_same_bytes(small_target):
    first, again = network(small_target), network(small_target)
    loaded = Executable.from_bytes(first.to_bytes())
    texts = {profile(e, ran(e)).to_json() for e in (first, again, loaded)}
    assert len(texts) == 1
    assert len({profile(e, ran(e)).text() for e in (first, again, loaded)}) == 1


_FRESH = """
import pathlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ipuxla", "hlo_passes"):
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import tests.unit.tiles.report_programs
from tiles.compiler import Executable
from tiles.engine.trace import Trace
from tiles.report import write_report

executable = Executable.from_bytes(pathlib.Path(sys.argv[1]).read_bytes())
write_report(executable, Trace((1,) * len(executable.steps), "fast", "float"), sys.argv[2])
"""


def test_a_fresh_process_reports_the_same_from_the_file_alone(small_target, tmp_path):
    executable = pipeline(small_target)
    saved = tmp_path / "saved"
    saved.write_bytes(executable.to_bytes())
    here = write_report(executable, ran(executable), tmp_path / "here")
    command = [sys.executable, "-c", _FRESH, str(saved), str(tmp_path / "there")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    for path in here:
        assert path.read_bytes() == (tmp_path / "there" / path.name).read_bytes()
