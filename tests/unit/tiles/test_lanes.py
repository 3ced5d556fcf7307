"""What runs side by side: which operations may, on which tiles each has, and that the answer is the same."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ipuxla
from ipuxla.lowering import lower_module
from tests.flow import assert_engines_agree, optimized_module
from tests.unit.tiles.executable_programs import split
from tiles.compiler import ExecuteStep, certify, compile_graph
from tiles.graph import Choice, Graph, Layout, Operation, Reshape, Site
from tiles.planning import Planner
from tiles.planning.lanes import Area, lanes_of
from tiles.poplibs import poplin, popops, poputil
from tiles.target import Target

GC200 = Target.named("gc200")


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def heads(q, k, v):
    return jnp.stack([jax.nn.softmax(q[:, i] @ k[:, i].T, axis=-1) @ v[:, i] for i in range(q.shape[1])], 1)


def planned(function, args, target):
    return Planner().plan(lower_module(optimized_module(function, args), target))


def tiles_of(graph: Graph, name: str) -> set[int]:
    (group,) = graph.compute_sets[name].vertices
    return set(group.plan.tiles.ravel().tolist())


def test_heads_have_tiles_of_their_own_and_keep_them() -> None:
    args = [normal(64, 4, 32)] * 3
    graph = planned(heads, args, GC200.replace(num_tiles=256))
    products = [
        {
            n
            for name in graph.compute_sets
            if name in (label, f"{label}.partials")
            for n in tiles_of(graph, name)
        }
        for label in ("dot", *(f"dot.{k}" for k in range(1, 8)))
    ]
    firsts, seconds = products[::2], products[1::2]
    for group in (firsts, seconds):
        assert all(a.isdisjoint(b) for a, b in itertools.combinations(group, 2))
    assert [min(tiles) // 64 for tiles in firsts] == [min(tiles) // 64 for tiles in seconds] == [0, 1, 2, 3]
    executable = compile_graph(graph)
    certify(executable)
    steps = [len(s.groups) for s in executable.steps if isinstance(s, ExecuteStep)]
    assert max(steps) >= 4 and len(steps) < 12
    assert_engines_agree(executable, optimized_module(heads, args), args)


@pytest.mark.parametrize("tiles", [4, 6, 16])
def test_more_of_them_than_tiles_share_these(tiles: int) -> None:
    def members(xs, ws):
        return [jnp.tanh(x @ w) @ w for x, w in zip(xs, ws, strict=True)]

    args = [normal(9, 7) * n for n in range(1, 12)], [normal(7, 7) + n for n in range(11)]
    target = GC200.replace(num_tiles=tiles)
    executable = compile_graph(planned(members, args, target))
    certify(executable)
    assert_engines_agree(executable, optimized_module(members, args), jax.tree.leaves(args))
    found = ipuxla.jit(members, target=target)(*args)
    for got, want in zip(found, jax.jit(members)(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_what_a_slice_begins_at_does_not_tell_lanes_apart() -> None:
    graph = Graph(GC200, "slices")
    x = graph.add_input((32, 16), "float32", "x")
    for k in range(4):
        part = popops.slice(Site(graph, f"part{k}"), x, (8 * k, 0), (8 * k + 8, 16))
        popops.exp(Site(graph, f"exp{k}"), part)
    popops.exp(Site(graph, "whole"), x)
    lanes = lanes_of(graph, graph.program)
    numbers = {
        step.name: lanes[step.results[0]].number
        for step in graph.program.steps
        if isinstance(step, Operation) and step.results[0] in lanes
    }
    assert numbers == {f"{kind}{k}": k for k in range(4) for kind in ("part", "exp")}


@given(st.data())
def test_what_may_run_side_by_side_waits_for_none_of_each_other(data: st.DataObject) -> None:
    graph = Graph(GC200, "random")
    tensors = [graph.add_input((8, 8), "float32", f"in{k}") for k in range(2)]
    for k in range(data.draw(st.integers(2, 24))):
        x, y = (data.draw(st.sampled_from(tensors)) for _ in range(2))
        site = Site(graph, f"op{k}")
        kind = data.draw(st.sampled_from(["exp", "add", "dot", "reshape"]))
        if kind == "exp":
            tensors.append(popops.exp(site, x))
        elif kind == "add":
            tensors.append(popops.add(site, x, y))
        elif kind == "dot":
            tensors.append(poplin.matmul(site, x, y))
        else:
            there = poputil.reshape(site.at("there"), x, (4, 16))
            tensors.append(poputil.reshape(site.at("back"), there, (8, 8)))
    made_of: dict[str, set[str]] = {}
    for step in graph.program.steps:
        assert isinstance(step, Operation | Reshape | Choice)
        read, written = (
            ((step.source,), (step.destination,))
            if isinstance(step, Reshape)
            else (step.operands if isinstance(step, Operation) else (), step.results)
        )
        for name in written:
            made_of[name] = set(read).union(*(made_of.get(each, set()) for each in read))
    groups: dict[int, list[tuple[str, int]]] = {}
    for name, lane in lanes_of(graph, graph.program).items():
        groups.setdefault(id(lane.alike), []).append((name, lane.number))
        assert lane.alike.count > 1
    for members in groups.values():
        assert len({number for _, number in members}) == len(members)
        assert all(a not in made_of[b] for (a, _), (b, _) in itertools.permutations(members, 2))


@given(
    num_tiles=st.integers(8, 64),
    size=st.integers(1, 8),
    parts=st.integers(1, 64),
    data=st.data(),
)
def test_tiles_are_counted_from_an_area_and_back(
    num_tiles: int, size: int, parts: int, data: st.DataObject
) -> None:
    parts = min(parts, num_tiles)
    area = Area(data.draw(st.integers(0, num_tiles - size)), size, num_tiles)
    base = data.draw(st.integers(0, num_tiles - parts))
    layout = Layout((split(8 * parts, 8),), base) if parts > 1 else Layout((split(8, 8),), base)
    moved = area.from_base(layout)
    assert 0 <= moved.base and int(moved.tiles.max()) < num_tiles
    if area.holds(layout):
        assert int(moved.tiles.max()) < size
        assert area.placed(moved) == layout
