"""Every kind of damage to an executable is refused, or leaves a program that all engines run alike, to the bit."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import re
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax import lax

import ipuxla
import tiles
from tests.unit.tiles.damages import Kind, damages
from tests.unit.tiles.executable_programs import ENGINES, PROGRAMS, rebuilt, run, same
from tests.unit.tiles.test_remote_buffers import accumulating
from tests.unit.tiles.test_steps import stopping, undefining
from tiles.compiler import Executable, ExecuteStep, compile_graph
from tiles.errors import InvalidExecutable, InvalidGraph, IpuError
from tiles.graph import Graph
from tiles.poplibs import gcl, popops
from tiles.poplibs.popops.expression import body_dtypes
from tiles.target import Target, find_system


def sorting(target: Target) -> Graph:
    """Sort rows that lie on many tiles, with their positions: a composite."""
    graph = Graph(target, "sorting")
    given_ = [graph.add_input((600,), dtype) for dtype in ("float32", "int32")]
    graph.outputs = [t.name for t in popops.sort(graph, given_)]
    return graph


def replicating(target: Target) -> Graph:
    """Scale by a weight that is the same on all of three IPUs, sum over them, move on: a composite and a permutation."""
    graph = Graph(dataclasses.replace(find_system("c600_host"), chip=target), "replicating")
    graph.replicate("data", 3)
    x = graph.add_input((10,), "float32")
    w = graph.add_input((10,), "float32", same_on_all=True)
    total = gcl.all_reduce(graph, popops.mul(graph, x, w), "data", algorithm="ring")
    graph.outputs = [total.name, gcl.permute(graph, x, "data", [(0, 1), (2, 0)]).name]
    return graph


GRAPHS = {
    **PROGRAMS,
    "accumulating": accumulating,
    "stopping": stopping,
    "undefining": undefining,
    "sorting": sorting,
    "replicating": replicating,
}
ENDLESS = ("loops", "control", "stopping")
"""Programs that loop as long as data say: damaged ones may never end, so they are only certified."""


DRAWN = ("accumulating", "arithmetic", "chain", "replicating", "sorting", "sums", "update")
"""Programs that damage is drawn for; the others are extended tests."""


@functools.cache
def executable(program: str) -> Executable:
    tiles_needed = 4 if program in ("sorting", "replicating") else 16
    return compile_graph(GRAPHS[program](Target.named("gc200").replace(num_tiles=tiles_needed)))


@functools.cache
def kinds(program: str) -> dict[Kind, list[Callable[[], dict[str, Any]]]]:
    """Return a program's kinds of damage, a tenth of those of its target and system, whose fields are many and alike."""
    found = damages(executable(program).to_data())
    of_target = [kind for kind in sorted(found) if kind[0].startswith(("target.", "system."))]
    return {kind: found[kind] for kind in sorted(found) if kind not in set(of_target) - set(of_target[::10])}


def outcome(data: dict[str, Any], program: str) -> str:
    """Return "refused", "alike" or how engines differ on what damaged data describe."""
    try:
        damaged = rebuilt(data)
        tiles.certify(damaged)
    except InvalidExecutable as error:
        assert str(error)
        return "refused"
    if program in ENDLESS:
        return "alike"
    results = {engine: result(damaged, engine) for engine in ENGINES}
    first = results[ENGINES[0]]
    unlike = [
        engine
        for engine, found in results.items()
        if isinstance(found, str) != isinstance(first, str)
        or (found != first if isinstance(found, str) else not same(found, first))
    ]
    return f"{ENGINES[0]} and {', '.join(unlike)} differ" if unlike else "alike"


def result(damaged: Executable, engine: str) -> list[np.ndarray] | str:
    """Return the results in the ring, or the name of the error that a run ends with."""
    try:
        return run(damaged, engine)
    except IpuError as error:
        return type(error).__name__


@given(st.sampled_from(DRAWN), st.data())
def test_damage_is_refused_or_harmless(program: str, draw: st.DataObject) -> None:
    of = kinds(program)
    kind = draw.draw(st.sampled_from(sorted(of)), "kind")
    data = draw.draw(st.sampled_from(of[kind]), "place")()
    assert outcome(data, program) in ("refused", "alike")


@pytest.mark.parametrize("program", sorted(GRAPHS))
def test_every_kind_of_damage_is_refused_or_harmless(program: str) -> None:
    """Each kind once, at a place drawn for it."""
    rng = np.random.default_rng(sorted(GRAPHS).index(program))
    through: list[tuple[Kind, str]] = []
    for kind, places in kinds(program).items():
        found = outcome(places[rng.integers(len(places))](), program)
        if found not in ("refused", "alike"):
            through.append((kind, found))
    assert not through
    assert len(kinds(program)) > 100


def test_a_composite_that_does_something_else_than_its_body_is_refused() -> None:
    """Its codelet runs on the fast engine alone, the body on the others."""
    data = executable("sorting").to_data()
    (whole,) = data["composites"]
    keys = whole["codelet"]["params"]["keys"]
    for changed in ([[keys[0][0], not keys[0][1], keys[0][2]]], [[keys[0][0], keys[0][1], not keys[0][2]]]):
        whole["codelet"]["params"]["keys"] = changed
        with pytest.raises(InvalidExecutable, match=r"gives another .* than its body does|in a sort of"):
            tiles.certify(rebuilt(data))


def test_stages_of_a_sort_know_which_positions_are_padding() -> None:
    """An element taken for padding moves to the end, which is where most data have it anyway."""
    found = 0
    for step in range(len(executable("sorting").to_data()["steps"])):
        data = executable("sorting").to_data()
        for group in data["steps"][step].get("vertices", ()):
            if "size" in group["codelet"].get("params", ()):
                group["codelet"]["params"]["size"] -= 1
                found += 1
                with pytest.raises(InvalidExecutable, match="in a sort of"):
                    tiles.certify(rebuilt(data))
    assert found > 1


def test_a_composite_that_runs_nearly_without_end_is_not_run() -> None:
    """Its loop makes a thousand million rounds, each of which is in order: all is proved but what the rounds compute."""
    data = executable("replicating").to_data()
    text = json.dumps(data["program"])
    (loop,) = set(re.findall(r'"repeat", \d+', text))
    data["program"] = json.loads(text.replace(loop, '"repeat", 1000000000'))
    certificate = tiles.certify(rebuilt(data))
    assert (certificate.composites, certificate.composites_run) == (1, 0)


@pytest.mark.parametrize("keys", [[[0, 0, False]], [[False, False, False]], [[0, False]], "x"])
def test_a_codelets_parameters_are_of_their_types(keys: Any) -> None:
    data = executable("sorting").to_data()
    data["composites"][0]["codelet"]["params"]["keys"] = keys
    with pytest.raises(InvalidExecutable, match=r"has keys = .*; expected"):
        rebuilt(data)


STATED = {
    "popops.Sort": (lambda x, i: jnp.sort(x), "dtypes", ("int32",)),
    "popops.TopK": (lambda x, i: lax.top_k(x, 3)[0], "dtype", "int32"),
    "popops.MultiSlice": (lambda x, i: x[i], "dtype", "uint32"),
    "popops.MultiUpdate": (lambda x, i: x.at[i].add(x[:4]), "dtype", "float64"),
    "popops.Map": (lambda x, i: x * x[0], "operand_dtypes", ("float32",) * 3),
}


@pytest.mark.parametrize("name", STATED)
def test_parameters_state_the_dtypes_of_the_operands(name: str, small_target: Target) -> None:
    """Tile code is made for the dtypes that a codelet states, whatever it reads."""
    function, field, stated = STATED[name]
    shapes = jax.ShapeDtypeStruct((12,), "float32"), jax.ShapeDtypeStruct((4,), "int32")
    whole = ipuxla.jit(function, target=small_target).lower(*shapes).compile().executable
    tiles.certify(whole)
    group = next(group for _, group in whole.groups() if group.codelet.name == name)
    held = [whole.variables[operand.variable].dtype for operand in group.operands]
    changed = copy.copy(group.codelet)
    object.__setattr__(changed, field, stated)
    assert group.codelet.stated_dtypes == tuple(held[: len(group.codelet.stated_dtypes)])
    steps = [
        dataclasses.replace(
            step,
            groups=tuple(dataclasses.replace(g, codelet=changed) if g is group else g for g in step.groups),
        )
        if isinstance(step, ExecuteStep)
        else step
        for step in whole.steps
    ]
    with pytest.raises(InvalidExecutable, match=r"is of .*; its operands are|refuses|gives"):
        tiles.certify(dataclasses.replace(whole, steps=tuple(steps)))


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (
            (("constant", (), (("value", None), ("dtype", "float32"))),),
            "a constant of float32 cannot be None",
        ),
        (
            (("constant", (), (("value", True), ("dtype", "float32"))),),
            "a constant of float32 cannot be True",
        ),
        ((("constant", (), (("value", "1"), ("dtype", "float32"))),), "a constant of float32 cannot be '1'"),
        ((("constant", (), (("value", "inf"), ("dtype", "int32"))),), "a constant of int32 cannot be 'inf'"),
        ((("iota", (), (("dim", False), ("dtype", "int32"))),), "takes the number of a dimension, got False"),
        (
            (
                (
                    "nonlinearity",
                    (0,),
                    (("body", (("tanh", (-1,), ()),)), ("dtype", "float32"), ("kind", "popnn.tanh")),
                ),
            ),
            "cannot compute tanh",
        ),
    ],
)
def test_attributes_of_expressions_are_what_they_should_be(body: Any, what: str) -> None:
    with pytest.raises(InvalidGraph, match=re.escape(what)):
        body_dtypes(body, ("float32",))
