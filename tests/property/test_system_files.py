"""Data files of systems with anything in the place of something: a system, or one clear error."""

from __future__ import annotations

import copy
import json
import pathlib
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tests.budgets import TABLE, budget
from tests.systems import link, node, system_data
from tiles.errors import InvalidSystem
from tiles.target import describe_system, exchange_phase, find_system, load
from tiles.target.system import System

TOY = system_data(
    8,
    {
        "ladder": {"pattern": "ladder", "nodes": "ipu", "rungs": 2, "rung": "wire", "rail": "wire", "ends_joined": True},
        "up": {"pattern": "switch", "nodes": "ipu", "to": "box", "link": "wire"},
        "ring": {"pattern": "grid", "nodes": "box", "sizes": [2, None], "links": [None, "far"],
                 "ends_joined": [False, True], "through": [None, None]},
        "row": {"pattern": "torus", "nodes": "box", "sizes": [2], "links": ["far"]},
        "hosts": {"pattern": "all-to-all", "nodes": "host", "size": None, "link": "far"},
        "top": {"pattern": "switch", "nodes": "box", "to": "host", "link": "far"},
    },
    nodes={"box": node(2), "host": node(4)},
    links={"wire": link(), "far": link(parallel=2, latency=None)},
)  # fmt: skip
LISTED = system_data(
    4,
    {"all": {"pattern": "list", "link": "wire",
             "ends": [["ipu 0", "ipu 1"], ["ipu 1", "box 0"], ["box 0", "ipu 2"], ["ipu 2", "ipu 3"]]}},
    nodes={"box": node(4)},
) | {"routes": [["ipu 0", "ipu 1", "box 0", "ipu 2"]]}  # fmt: skip

ANYTHING = st.sampled_from(
    [None, True, 0, 1, 2, 3, -1, 1.5, 2**70, float("nan"), float("inf"), "", "ipu", "ipu 9", "box", "wire", "gc2",
     "MEASURED", [], [1], [[]], ["ipu 0"], [["ipu 0", "ipu 3"]], {}, {"value": 1}, [None, None], "list", "grid"]
)  # fmt: skip


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to everything inside some data."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [found for key, value in inside for found in [(*path, key), *places(value, (*path, key))]]


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """Return data with one to three things replaced, taken away or added."""
    data = copy.deepcopy(draw(st.sampled_from([TOY, LISTED])))
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(places(data)))
        place = data
        for key in way:
            place = place[key]
        match draw(st.sampled_from(["replace", "replace", "take", "add"])):
            case "take":
                del place[last]
            case "add" if isinstance(place, dict):
                place["another"] = copy.deepcopy(draw(ANYTHING))
            case _:
                place[last] = copy.deepcopy(draw(ANYTHING))
        hypothesis.assume(places(data))
    return data


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("systems") / "toy.json"


@hypothesis.given(data=damaged())
@budget(TABLE)
def test_a_file_is_a_system_or_one_clear_error(path: pathlib.Path, data: dict[str, Any]):
    path.write_text(json.dumps(data))
    try:
        system = find_system(str(path))
    except InvalidSystem as error:
        assert error.what and "\n" not in error.what
        return
    assert System.from_data(json.loads(json.dumps(system.to_data(), sort_keys=True))) == system
    assert system.name in describe_system(system)
    phase = exchange_phase(system, np.ones((system.num_ipus,) * 2, np.int64))
    assert system.num_ipus == 1 or phase.hops >= 1


def test_the_undamaged_files_are_systems(path: pathlib.Path):
    for data in (TOY, LISTED):
        path.write_text(json.dumps(data))
        assert find_system(str(path)).num_ipus == data["num_ipus"]


def test_every_figure_of_every_file_has_a_source():
    for file in sorted(load.data_directory("systems").glob("*.json")):
        data = json.loads(file.read_text())
        for place in places(data):
            if place[-1] == "value":
                figure = data
                for key in place[:-1]:
                    figure = figure[key]
                assert figure["source"].strip(), (file.name, place)
