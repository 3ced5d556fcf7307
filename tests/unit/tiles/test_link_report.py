"""Reports of programs of many IPUs: a lane for each kind of link, the graph by load, what bounds a run."""

from __future__ import annotations

import json
import re

import numpy as np

from tests.replicas import replicated
from tests.unit.tiles.test_report_files import Page
from tests.unit.tiles.test_report_profile import check
from tiles import Graph, compile_graph, gcl, poplin, popops
from tiles.compiler import Executable, step_costs
from tiles.graph import Site
from tiles.report import Argument, Profile, profile, profile_schema
from tiles.report.page import page
from tiles.target import exchange_phase


def summed(count: int, name: str, size: int = 4096, num_tiles: int = 8) -> Executable:
    graph: Graph = replicated(("data", count), name=name, num_tiles=num_tiles)
    x = graph.add_input((size,), "float32", "x")
    total = gcl.all_reduce(Site(graph, location="model.py:3"), x, "data", algorithm="ring")
    graph.outputs.append(popops.mul(graph, total, 0.5).name)
    return compile_graph(graph)


def test_a_page_has_a_lane_for_the_ipus_and_one_for_each_kind_of_link() -> None:
    result = profile(summed(16, "dss8440"))
    links, steps = result.data["execution"]["links"], result.data["execution"]["steps"]
    drawn = Page(page(result.data).replace("<circle", "<path").replace("<rect", "<path"))
    charts = [dict(chart["series"]) for section, chart in drawn.charts if section == "links"]
    assert len(charts) == 1 + len(links["kinds"]) and {k["name"] for k in links["kinds"]} == {"rail", "rung"}
    assert charts[0]["compute"] == [step["count"] * step["computeCycles"] for step in steps]
    assert [chart["busy"] for chart in charts[1:]] == [kind["cyclesByStep"] for kind in links["kinds"]]
    for kind in links["kinds"]:
        cycles = kind["busiestSeconds"] * summed_clock(result)
        assert cycles <= sum(kind["cyclesByStep"]) <= cycles + len(steps)
    assert "Every IPU (16 do the same)" in drawn.text and "model.py:3" in drawn.text


def test_a_report_says_how_arguments_are_shared_out() -> None:
    graph = replicated(("data", 4), ("model", 2))
    w = graph.add_input((8, 3), "float16", "w", same_along=("data",))
    x = graph.add_input((2, 8), "float16", "x")
    total = gcl.all_reduce(Site(graph, location="model.py:4"), x, "data")
    graph.outputs.append(poplin.matmul(Site(graph, location="model.py:7"), total, w).name)
    executable = compile_graph(graph)
    said = Argument("params['w']", (8, 6), "P(None, 'model')"), Argument("x", (8, 16), "P('data', 'model')")
    result = profile(executable, arguments=said)
    check(result.data, profile_schema(), profile_schema())
    rows = result.data["execution"]["links"]["arguments"]
    assert [row["location"] for row in rows] == ["model.py:7", "model.py:4"]
    assert [row["differsAlong"] for row in rows] == [["model"], ["data", "model"]]
    assert [(row["shape"], row["ownShape"], row["ownBytes"]) for row in rows] == [
        ([8, 6], [8, 3], 48),
        ([8, 16], [2, 8], 32),
    ]
    words = "argument params['w'] float16[8, 6] P(None, 'model'): float16[8, 3], 48 B on each IPU, another along model"
    assert words in result.text()
    assert "Shardings of arguments" in (shown := page(result.data)) and "P(None, &#x27;model&#x27;)" in shown
    alone = profile(executable).data["execution"]["links"]["arguments"][0]
    assert (alone["name"], alone["shape"], alone["sharding"]) == ("w", [8, 3], None)


def summed_clock(result: Profile) -> float:
    return result.data["target"]["clockFrequency"]


def test_the_drawing_has_every_link_with_the_bytes_that_were_routed() -> None:
    executable = summed(16, "dss8440")
    system = executable.system
    assert system is not None
    data = profile(executable).data["execution"]
    there = {
        tuple(each["ends"]): each["bytes"] for each in data["links"]["drawing"]["links"] if any(each["bytes"])
    }
    matrix = np.zeros((16, 16), np.int64)
    place = gcl_ring()
    for here, to in zip(place, [*place[1:], place[0]], strict=True):
        matrix[here, to] = 30 * 256 * 4  # 15 steps down and 15 to gather, 4,096 / 16 elements each
    wanted = exchange_phase(system, matrix).link_bytes
    ends = system.table.ends
    assert there == {
        tuple(ends[row].tolist()): wanted[row].tolist() for row in np.flatnonzero(wanted.any(axis=1))
    }


def gcl_ring() -> list[int]:
    return [*range(0, 16, 2), *range(15, 0, -2)]


def test_a_large_system_is_drawn_around_its_busiest_link() -> None:
    result = profile(summed(4096, "pod64 x 64", 64))
    drawing = result.data["execution"]["links"]["drawing"]
    ipus = [name for name in drawing["nodes"] if name.startswith("ipu ")]
    assert len(ipus) == 64 and len(drawing["nodes"]) < 200
    busiest = max(drawing["links"], key=lambda each: each["seconds"])
    kinds = result.data["execution"]["links"]["kinds"]
    assert busiest["seconds"] == max(kind["busiestSeconds"] for kind in kinds)
    assert "path" in page(result.data)


def test_a_summary_says_what_bounds_a_run() -> None:
    executable = summed(16, "dss8440", 1 << 16, 512)
    result = profile(executable)
    execution = result.data["execution"]
    (line,) = re.findall(r"bound by (.*)", result.text())
    assert line.startswith("links between IPUs (rail is the busiest)")
    assert f"{execution['linkCycles'] / execution['cycles']:.0%} of the cycles" in line
    rate = execution["flops"] / execution["seconds"] / 1e12
    assert f"{rate:,.3g} Tflop/s a replica, {16 * rate:,.3g} together" in line
    fields = profile_schema()["properties"]["execution"]["properties"]["links"]["properties"]
    assert set(fields) == set(execution["links"]) and json.loads(result.to_json()) == result.data
    assert sum(c.link_cycles or 0 for c in step_costs(executable)) < execution["linkCycles"]
