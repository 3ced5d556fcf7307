"""One change in an executable's plain data is refused, or changes what every engine computes: nothing is decoration."""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.tiles.executable_programs import (
    ENGINES,
    WindowFirst,
    WindowSum,
    changed,
    compiled,
    group,
    named,
    padded,
    rebuilt,
    refused,
    run,
    same,
    step_of,
)
from tiles.compiler import Executable, certify, compile_graph
from tiles.errors import InvalidExecutable
from tiles.target import Target

Change = Callable[[dict[str, Any]], Any]


@functools.cache
def executable(program: str) -> Executable:
    return compiled(program, Target.named("gc200").replace(num_tiles=16))


@functools.cache
def outputs(program: str) -> list[np.ndarray]:
    return run(executable(program), "fast")


def put(*path: Any, value: Any) -> Change:
    """Return the change that sets one item of the data; a callable ``value`` is given the old one."""

    def change(data: dict[str, Any]) -> None:
        *way, last = path
        for key in way:
            data = key(data) if callable(key) else data[key]
        data[last] = value(data[last]) if callable(value) else value

    return change


def of(kind: str, name: str) -> Callable[[dict[str, Any]], Any]:
    """Return what finds a named variable or buffer."""
    return lambda data: named(data[kind], name)


def at(name: str) -> Callable[[dict[str, Any]], Any]:
    """Return what finds a vertex group."""
    return lambda data: group(data, name)


def step(name: str) -> Callable[[dict[str, Any]], Any]:
    """Return what finds a step."""
    return lambda data: step_of(data, name)


def copied(name: str) -> Callable[[dict[str, Any]], Any]:
    """Return what finds the first copy of a step."""
    return lambda data: step_of(data, name)["copies"][0]


def swapped(items: list[Any], i: int, j: int) -> list[Any]:
    """Return a list with two items exchanged."""
    items = list(items)
    items[i], items[j] = items[j], items[i]
    return items


def _constant(old: str) -> str:
    values = np.frombuffer(base64.b64decode(old), np.float32).copy()
    values[0] += 1
    return base64.b64encode(values.tobytes()).decode()


def _control(data: dict[str, Any], kind: str) -> list[Any]:
    """Return the first control step of a kind."""
    return next(tree for tree in data["program"] if isinstance(tree, list) and tree[0] == kind)


def _carry(data: dict[str, Any], codelet: WindowSum) -> None:
    """Put another codelet in the place of the one that the windows' executable carries."""
    other = compile_graph(padded(Target.named("gc200").replace(num_tiles=16), codelet)).to_data()
    group(data, "window")["codelet"] = group(other, "window")["codelet"]
    data["modules"] = other["modules"]


def _carried(data: dict[str, Any]) -> dict[str, Any]:
    return group(data, "window")["codelet"]["carried"]


def _swap(items: list[dict[str, Any]], key: str) -> None:
    """Exchange what the first two items have under a key."""
    items[0][key], items[1][key] = items[1][key], items[0][key]


def _drop_call(data: dict[str, Any]) -> None:
    """Leave out a call of the windows' codelet, with its modules."""
    call = _carried(data)["calls"].pop()
    for arithmetic in ("float", "ring"):
        del data["modules"][call[arithmetic]]


def _garble(data: dict[str, Any]) -> None:
    """Change a byte of a module."""
    digest, text = next(iter(data["modules"].items()))
    blob = bytearray(base64.b64decode(text))
    blob[len(blob) // 2] ^= 1
    data["modules"][digest] = base64.b64encode(blob).decode()


def _code(data: dict[str, Any]) -> dict[str, Any]:
    return next(b for b in data["buffers"] if b["category"] == "vertexCode")


def _shift_view(data: dict[str, Any]) -> None:
    """Let a view's parts lie in the opposite order on the same tiles."""
    layout = named(data["variables"], "odd")["layout"]
    layout["axes"][0][2][0][1] *= -1
    layout["base"] += 1


# ---- refused when the file is loaded

AT_LOADING: dict[str, tuple[str, Change, str]] = {
    "format": ("sums", put("format", value=99), "format"),
    "unknown field": ("sums", put("more", value=1), "more"),
    "missing field": ("sums", lambda d: d.pop("donated"), "donated"),
    "a variable twice": ("sums", lambda d: d["variables"].append(d["variables"][0]), "damaged"),
    "unknown codelet": ("sums", put(at("sum.partials"), "codelet", "name", value="none"), "not registered"),
    "codelet version": ("sums", put(at("sum.partials"), "codelet", "version", value=2), "version"),
    "another codelet": ("sums", put(at("sum.partials"), "codelet", "name", value="popops.Map"), "parameters"),
    "codelet parameter's value": (
        "sums",
        put(at("sum.partials"), "codelet", "params", "operation", value="average"),
        "reduction",
    ),
    "codelet parameter's dtype": (
        "chain",
        put(at("dot.combine"), "codelet", "params", "out_dtype", value="float16"),
        r"gives float16\[2, \d+\] for parts of dot",
    ),
    "module's bytes": ("padded", _garble, "has other bytes"),
    "module left out": (
        "padded",
        lambda d: d["modules"].popitem(),
        "lacks a module of codelet test.WindowSum",
    ),
    "module for other cells": (
        "padded",
        lambda d: _swap(_carried(d)["calls"], "float"),
        "a module of codelet test.WindowSum maps",
    ),
    "call left out": ("padded", _drop_call, "carries no module of test.WindowSum"),
    "figures left out": (
        "padded",
        lambda d: _carried(d)["figures"].pop(),
        "figures of codelet test.WindowSum",
    ),
    "cut that the codelet forbids": (
        "padded",
        lambda d: _carried(d).update(may_cut=[1]),
        "cannot compute apart",
    ),
    "operand that does not exist": (
        "sums",
        put(at("sum.partials"), "operands", 0, 0, value="y"),
        "'y', which is not a variable",
    ),
    "operand of another rank": (
        "sums",
        put(at("sum.combine"), "operands", 0, 0, value="sum"),
        "does not index sum",
    ),
    "operand elsewhere": ("arithmetic", put(at("step"), "operands", 0, 0, value="y"), "it lies elsewhere"),
    "operand in place made received": (
        "arithmetic",
        put(at("step"), "operands", 0, 1, value="step.in1"),
        "in place",
    ),
    "operand received made in place": (
        "arithmetic",
        put(at("step"), "operands", 1, 1, value=""),
        "lies elsewhere",
    ),
    "two operands in one buffer": (
        "arithmetic",
        put(at("step"), "operands", 2, 1, value="step.in1"),
        "which another operand has",
    ),
    "result that another step has": (
        "chain",
        put(at("turn"), "results", 0, value="again"),
        "writes again as",
    ),
    "result that is an input": ("update", put(at("scale"), "results", 0, value="g"), "not donated"),
    "grain of a plan": (
        "sums",
        put(at("sum.partials"), "plan", "splits", 0, 1, value=1),
        "split needs|do not fit",
    ),
    "grain and radix of a plan": (
        "sums",
        put(at("sum.partials"), "plan", "splits", 0, value=[4, 4, []]),
        r"writes sum.partials as|the variable has",
    ),
    "tile stride of a plan": ("sums", put(at("sum.partials"), "plan", "splits", 1, 2, 0, 1, value=3), "tile"),
    "first tile of a plan": ("sums", put(at("sum.partials"), "plan", "base", value=1), "its layout is"),
    "cells beyond the target": (
        "sums",
        put(at("sum.combine"), "plan", "base", value=15),
        "its layout is|tiles",
    ),
    "size of the domain": ("sums", put(at("sum.partials"), "form", "dims", 0, 1, value=5), "its domain is"),
    "kind of a dimension": (
        "sums",
        put(at("sum.partials"), "form", "dims", 0, 2, value="reduction"),
        "result",
    ),
    "index outside": (
        "sums",
        put(at("sum.partials"), "form", "operands", 0, "axes", 0, 1, value=1),
        "outside|no fill|from 1 to 4",
    ),
    "grain of a layout": (
        "joins",
        put(of("variables", "join"), "layout", "axes", 0, 1, value=4),
        "needs? |bytes",
    ),
    "first tile of a layout": ("joins", put(of("variables", "join"), "layout", "base", value=1), "tiles"),
    "layout on one tile twice": (
        "joins",
        put(of("variables", "join"), "layout", "axes", 0, 2, 0, 1, value=0),
        "more than once",
    ),
    "layout beyond the target": (
        "joins",
        put(of("variables", "join"), "layout", "base", value=14),
        "target has 16",
    ),
    "result layout": (
        "sums",
        put(of("variables", "sum.partials"), "layout", "base", value=2),
        "its layout is|tiles",
    ),
    "order of a plan": (
        "chain",
        put(at("turn"), "plan", "arrangement", value=[[1, 0], [0, 0]]),
        "writes turn as",
    ),
    "order of a part": (
        "sums",
        put(of("variables", "x"), "layout", "arrangement", value=[[1, 0], [0, 0]]),
        r"x \(.* by 1,0\), in place, but it lies elsewhere",
    ),
    "order that counts a dimension twice": (
        "sums",
        put(of("variables", "x"), "layout", "arrangement", value=[[1, 0], [0, 0], [1, 0]]),
        "counts a dimension twice",
    ),
    "groups that parts cut": (
        "chain",
        put(at("dot.partials"), "plan", "arrangement", value=[[0, 0], [1, 0], [2, 0], [0, 2]]),
        "groups of 2 of dimension 1, cut as 12/3",
    ),
    "shape": ("sums", put(of("variables", "x"), "shape", value=[6, 4]), "shape"),
    "dtype": ("sums", put(of("variables", "x"), "dtype", value="float16"), "B a tile"),
    "dtype that is none": ("sums", put(of("variables", "x"), "dtype", value="float33"), "element type"),
    "kind of a variable": ("sums", put(of("variables", "x"), "kind", value="temporary"), "inputs"),
    "storage": ("sums", put(of("variables", "sum"), "storage", value="sum.partials"), "buffer"),
    "view of another variable": (
        "chain",
        put(of("variables", "odd"), "view_of", value="add"),
        "cannot be a view",
    ),
    "view of itself": ("chain", put(of("variables", "odd"), "view_of", value="odd"), "a view of it"),
    "value of the wrong size": ("arithmetic", put(of("variables", "bias"), "value", value="AAAA"), "damaged"),
    "buffer too small": ("sums", put(of("buffers", "x"), "bytes", value=lambda n: n - 4), "B a tile"),
    "buffer too large": ("sums", put(of("buffers", "x"), "bytes", value=lambda n: n + 4), "B a tile"),
    "message too small": (
        "sums",
        put(of("buffers", "sum.combine.in0"), "bytes", value=lambda n: n - 4),
        "receives",
    ),
    "message on other tiles": (
        "sums",
        put(of("buffers", "sum.combine.in0"), "tiles", value=[[3, 5]]),
        "does not lie on",
    ),
    "message at another time": (
        "sums",
        put(of("buffers", "sum.combine.in0"), "live", value=[0, 0]),
        "live in",
    ),
    "category": ("sums", put(of("buffers", "x"), "category", value="message"), "holds message"),
    "address of another buffer": (
        "sums",
        lambda d: of("buffers", "x")(d).update(address=of("buffers", "sum.partials")(d)["address"]),
        "overlap on tile",
    ),
    "address between words": ("sums", put(of("buffers", "x"), "address", value=lambda n: n + 2), "words"),
    "address outside memory": (
        "sums",
        put(of("buffers", "x"), "address", value=1 << 24),
        "not inside memory",
    ),
    "code in data memory": (
        "sums",
        lambda d: of("buffers", "control code")(d).update(address=0x90000),
        "not inside executable memory",
    ),
    "fits": ("sums", put("fits", value=False), "marked as not fitting"),
    "lifetime beyond the program": ("sums", put(of("buffers", "x"), "live", value=[-1, 9]), "live in steps"),
    "step never run": ("sums", put("program", value=["sequence", 0]), "never runs"),
    "step that does not exist": ("sums", put("program", value=["sequence", 0, 1, 2]), "runs step 2"),
    "control that is none": (
        "sums",
        put("program", value=["sequence", ["parallel", 0, 1]]),
        "no control step",
    ),
    "negative count": ("control", put("program", 2, 1, value=-1), "no control step"),
    "predicate": ("loops", lambda d: _control(d, "while").__setitem__(2, "count"), "predicate 'count'"),
    "index of a branch": (
        "control",
        lambda d: _control(d, "switch").__setitem__(1, "value"),
        "index 'value'",
    ),
    "copy of another size": ("joins", put(copied("copy.spread"), "sources", 0, value="x"), "copies"),
    "source of a copy as text": (
        "control",
        lambda d: copied("copy.value")(d).update(sources="x"),
        "damaged",
    ),
    "joined along another axis": ("joins", put(copied("copy.join"), "axis", value=1), "along axis 1"),
    "joined along no axis": ("joins", put(copied("copy.join"), "axis", value=None), "copies"),
    "input that is none": ("sums", put("inputs", value=["sum"]), "inputs"),
    "output that does not exist": ("sums", put("outputs", value=["y"]), "output 'y'"),
    "donated twice": ("update", put("donated", value=[0, 0]), "distinct"),
    "donated beyond the inputs": ("update", put("donated", value=[2]), "distinct positions"),
    "nothing donated": ("update", put("donated", value=[]), "not donated"),
    "another input donated": ("update", put("donated", value=[1]), "not donated"),
    "fewer tiles": ("chain", put("target", "fields", "num_tiles", "value", value=4), "4"),
}


@pytest.mark.parametrize("case", AT_LOADING)
def test_a_changed_file_is_refused_when_loaded(case: str) -> None:
    program, change, words = AT_LOADING[case]
    with pytest.raises(InvalidExecutable, match=words):
        rebuilt(changed(executable(program), change))


# ---- refused by the proofs

BY_PROOF: dict[str, tuple[str, Change, str]] = {
    "order of steps": (
        "sums",
        put("program", value=["sequence", 1, 0]),
        "reads sum.partials, but nothing was written",
    ),
    "order of dependent copies": (
        "chain",
        put("program", value=lambda p: [*p[:4], p[6], *p[4:6], *p[7:]]),
        "reads turn, but nothing",
    ),
    "a step twice": (
        "update",
        put("program", value=["sequence", 0, 1, 1]),
        "reads p, but its buffer p holds descend",
    ),
    "lifetime that ends too soon": (
        "sums",
        put(of("buffers", "sum"), "live", 1, value=1),
        "given up at the end",
    ),
    "lifetime that begins too late": (
        "sums",
        put(of("buffers", "sum.partials"), "live", 0, value=1),
        "writes sum.partials, but its buffer sum.partials is live only in steps 1 to 1",
    ),
    "input that is not kept": ("sums", put(of("buffers", "x"), "live", 1, value=0), "did not donate it"),
    "input loaded late": ("sums", put(of("buffers", "x"), "live", 0, value=0), "loaded before the program"),
    "carried value not kept": (
        "control",
        put(of("buffers", "value"), "live", 0, value=1),
        "live only in steps 1 to",
    ),
    "variable overwritten": (
        "chain",
        lambda d: of("variables", "flat")(d).update(view_of=""),
        "reads flat, but its buffer add holds add",
    ),
    "view with other parts": ("chain", _shift_view, "which it views"),
    "stack too small": ("update", put(of("buffers", "stacks"), "bytes", value=lambda n: n - 8), "B of stack"),
    "code too small": ("sums", lambda d: _code(d).update(bytes=8), "B of vertexCode"),
    "state on fewer tiles": (
        "sums",
        put(of("buffers", "sum.partials.state"), "tiles", 0, 1, value=5),
        "vertexInstanceState",
    ),
    "scratch too small": (
        "halves",
        put(of("buffers", "dot.scratch"), "bytes", value=lambda n: n - 4),
        "B of vertexScratch at step",
    ),
    "control code not kept": (
        "sums",
        put(of("buffers", "control code"), "live", 0, value=0),
        "expected -1 to",
    ),
}


@pytest.mark.parametrize("case", BY_PROOF)
def test_a_changed_file_is_refused_by_proof(case: str) -> None:
    program, change, words = BY_PROOF[case]
    with pytest.raises(InvalidExecutable, match=words):
        certify(rebuilt(changed(executable(program), change)))


# ---- another program

CHANGES: dict[str, tuple[str, Change]] = {
    "carried codelet": ("padded", lambda d: _carry(d, WindowFirst(2))),
    "carried codelet's parameter": ("padded", lambda d: _carry(d, WindowSum(1))),
    "codelet parameter": ("arithmetic", put(at("step"), "codelet", "params", "body", 0, 0, value="add")),
    "message's source": ("arithmetic", put(at("step"), "operands", 1, 0, value="z")),
    "constant's value": ("arithmetic", put(of("variables", "bias"), "value", value=_constant)),
    "reduction of a combination": (
        "sums",
        put(at("sum.combine"), "codelet", "params", "operation", value="max"),
    ),
    "index map's offset": ("padded", put(at("part"), "form", "operands", 0, "axes", 0, 1, value=0)),
    "fill value": ("padded", put(at("pad"), "form", "operands", 0, "fill", value=0.25)),
    "copy's sources": ("joins", put(copied("copy.join"), "sources", value=["y", "x"])),
    "count of a loop": ("control", lambda d: _control(d, "repeat").__setitem__(1, 3)),
    "order of branches": (
        "control",
        lambda d: _control(d, "switch").__setitem__(slice(2, 5), _control(d, "switch")[4:1:-1]),
    ),
    "output": ("joins", put("outputs", 0, value="x")),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_file_changes_what_all_engines_compute(case: str) -> None:
    program, change = CHANGES[case]
    other = rebuilt(changed(executable(program), change))
    results = [run(other, engine) for engine in ENGINES]
    assert not same(results[0], outputs(program))
    assert all(same(result, results[0]) for result in results[1:])


def test_unchanged_data_is_the_same_program() -> None:
    again = rebuilt(executable("arithmetic").to_data())
    assert again.to_bytes() == executable("arithmetic").to_bytes()
    assert refused(executable("arithmetic").to_data()) == ""
    for engine in ENGINES:
        assert same(run(again, engine), outputs("arithmetic"))
