"""Damaged files: whatever is changed anywhere in the data, loading and certifying answer or refuse, and never crash."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.budgets import PLAN, budget
from tests.unit.tiles.executable_programs import PROGRAMS, rebuilt
from tests.unit.tiles.test_remote_buffers import accumulating
from tests.unit.tiles.test_steps import stopping, undefining
from tiles.compiler import Executable, certify, compile_graph, load_executable
from tiles.compiler.executable import MAGIC
from tiles.errors import InvalidExecutable
from tiles.files import opened, sealed
from tiles.target import Target

GRAPHS = {**PROGRAMS, "accumulating": accumulating, "stopping": stopping, "undefining": undefining}


@functools.cache
def executable(program: str) -> Executable:
    return compile_graph(GRAPHS[program](Target.named("gc200").replace(num_tiles=16)))


def paths(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every item inside plain data, but for the target's many fields."""
    if at == ("target",) or not isinstance(data, (dict, list)):
        return [at] if at else []
    items = data.items() if isinstance(data, dict) else enumerate(data)
    return ([at] if at else []) + [path for key, item in items for path in paths(item, (*at, key))]


def others(value: Any, data: dict[str, Any]) -> list[Any]:
    """Return values to put in the place of one: of another kind, and near ones."""
    found = [None, "x", -1, 10**9, [], {}, 1.5, True]
    if isinstance(value, int):
        found += [value + 1, value - 1, value + 4, value + 8, 0, 2 * value]
    elif isinstance(value, str):
        found += ["", *(v["name"] for v in data["variables"]), *(b["name"] for b in data["buffers"])]
    elif isinstance(value, list):
        found += [value[:-1], value + value[-1:], value[::-1]]
    return found


@budget(PLAN)
@given(st.sampled_from(sorted(GRAPHS)), st.data())
def test_damaged_data_is_refused_or_still_a_program(program: str, draw: st.DataObject) -> None:
    data = copy.deepcopy(executable(program).to_data())
    *way, last = draw.draw(st.sampled_from(paths(data)))
    place = functools.reduce(lambda inner, key: inner[key], way, data)
    if isinstance(place, dict) and draw.draw(st.integers(0, 9)) == 0:
        del place[last]
    else:
        place[last] = draw.draw(st.sampled_from(others(place[last], data)))
    try:
        certify(rebuilt(data))
    except InvalidExecutable as error:
        assert str(error)


@pytest.mark.parametrize("cut", [0, 5, 40, 400])
def test_a_file_cut_short_is_refused(cut: int) -> None:
    blob = executable("sums").to_bytes()
    with pytest.raises(InvalidExecutable, match=r"damaged|not an ipuxla executable"):
        load_executable(blob[:cut])


def test_data_nested_without_end_is_refused() -> None:
    data = opened(MAGIC, executable("sums").to_bytes())
    nested = data.replace(b'"program":', b'"program":' + b"[" * 100_000 + b"]" * 100_000 + b',"other":', 1)
    deep = sealed(MAGIC, nested)
    with pytest.raises(InvalidExecutable):
        load_executable(deep)
