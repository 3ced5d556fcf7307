"""Copies at the end of loop bodies and branches: free where nothing needs the old value."""

import dataclasses

import numpy as np
import pytest

import tiles
from tiles.compiler import CopyStep, certify, step_costs
from tiles.errors import InvalidExecutable
from tiles.graph import Call, Copy, Repeat, Site, Switch, linear_layout
from tiles.poplibs import popops


def loop(body_of, count=3):
    """Repeat a body on ``acc``, which starts as ``x``; return the executable."""
    g = tiles.Graph(tiles.Target.named("gc200").replace(num_tiles=4))
    x, n = g.add_input((8,), "float32", "x"), g.add_input((), "int32", "n")
    acc = popops.mul(g, x, 1.0)
    body = tiles.Sequence()
    g.outputs = [acc.name, *body_of(g, body, x, acc, n)]
    g.program.add(Repeat(count, body))
    return tiles.compile_graph(g)


def copies(executable):
    """Return for every copy whether source and destination are one storage."""
    found = []
    for step, cost in zip(executable.steps, step_costs(executable), strict=True):
        if isinstance(step, CopyStep):
            ends = [(*copy.sources, copy.destination) for copy in step.copies]
            shared = [len({executable.variables[v].storage for v in names}) == 1 for names in ends]
            assert all(shared) == (cost.cycles == 0)
            found += shared
    return found


def in_place(g, body, x, acc, n):
    body.add(Copy(acc.name, (popops.add(Site(g, sequence=body), acc, x).name,)))
    return []


def read_afterwards(g, body, x, acc, n):
    total = popops.add(Site(g, sequence=body), acc, x)
    other = popops.mul(Site(g, sequence=body), acc, 2.0)
    body.add(Copy(acc.name, (total.name,)))
    return [other.name]


def returned_too(g, body, x, acc, n):
    total = popops.add(Site(g, sequence=body), acc, x)
    body.add(Copy(acc.name, (total.name,)))
    return [total.name]


def from_before_the_loop(g, body, x, acc, n):
    start = popops.add(g, x, x)
    body.add(Copy(acc.name, (start.name,)))
    return []


def by_one_branch(g, body, x, acc, n):
    total = popops.add(Site(g, sequence=body), x, x)
    branch = tiles.Sequence()
    branch.add(Copy(acc.name, (total.name,)))
    body.add(Switch(n.name, (branch, tiles.Sequence())))
    return []


def by_each_branch(g, body, x, acc, n):
    branches = []
    for factor in (2.0, 3.0):
        branch = tiles.Sequence()
        branch.add(Copy(acc.name, (popops.mul(Site(g, sequence=branch), acc, factor).name,)))
        branches.append(branch)
    body.add(Switch(n.name, tuple(branches)))
    return []


CASES = {
    in_place: ([True], lambda x, n: [4 * x]),
    read_afterwards: ([False], lambda x, n: [4 * x, 6 * x]),
    returned_too: ([False], lambda x, n: [4 * x, 4 * x]),
    from_before_the_loop: ([False], lambda x, n: [2 * x]),
    by_one_branch: ([False], lambda x, n: [2 * x if n == 0 else x]),
    by_each_branch: ([True, True], lambda x, n: [x * (2 if n == 0 else 3) ** 3]),
}


@pytest.mark.parametrize("body", CASES, ids=lambda f: f.__name__)
def test_copy_is_free_only_where_the_old_value_is_not_needed(body):
    shared, meaning = CASES[body]
    executable = loop(body)
    assert copies(executable) == shared
    certify(executable)
    x = np.arange(8, dtype=np.float32)
    for n in (0, 1):
        for engine in ("fast", "literal"):
            outputs, _ = tiles.make_engine(executable, engine).run(x, np.int32(n))
            for got, want in zip(outputs, meaning(x, n), strict=True):
                np.testing.assert_array_equal(got, want)


def test_copy_over_itself_into_another_layout_is_refused():
    executable = loop(in_place)
    step = next(s for s in executable.steps if isinstance(s, CopyStep))
    source = executable.variables[step.copies[0].sources[0]]
    moved = dataclasses.replace(source.layout, base=source.layout.base + 1)
    object.__setattr__(source, "layout", moved)
    with pytest.raises(InvalidExecutable):
        tiles.make_engine(executable, "fast")


def carries(g, x, n, acc, body):
    g.program.add(Copy(acc.name, (x.name,)))
    return [acc.name]


def carries_and_reads(g, x, n, acc, body):
    g.program.add(Copy(acc.name, (x.name,)))
    body.add(Copy(acc.name, (popops.add(Site(g, sequence=body), acc, x).name,)))
    return [acc.name]


def carries_and_returns(g, x, n, acc, body):
    g.program.add(Copy(acc.name, (x.name,)))
    return [acc.name, x.name]


def carries_in_a_loop(g, x, n, acc, body):
    body.steps.insert(0, Copy(acc.name, (x.name,)))
    return [acc.name]


def carries_twice(g, x, n, acc, body):
    other = g.add_tensor((8,), "float32", "other", acc.layout)
    g.program.add(Copy(acc.name, (x.name,)))
    g.program.add(Copy(other.name, (x.name,)))
    body.add(Copy(other.name, (popops.mul(Site(g, sequence=body), other, 3.0).name,)))
    return [acc.name, other.name]


def carries_in_a_function(g, x, n, acc, body):
    """The function is called in every round."""
    function = g.functions["f"] = tiles.Sequence()
    function.add(Copy(acc.name, (x.name,)))
    body.steps.insert(0, Call("f"))
    body.add(Call("f"))
    return [acc.name]


DONATED = {
    carries_in_a_function: ([False, False], lambda x: [x]),
    carries: ([True, True], lambda x: [8 * x]),
    carries_and_reads: ([False, True, True], lambda x: [15 * x]),
    carries_and_returns: ([False, True], lambda x: [8 * x, x]),
    carries_in_a_loop: ([False, True], lambda x: [2 * x]),
    carries_twice: ([False, True, True, True], lambda x: [8 * x, 27 * x]),
}


@pytest.mark.parametrize("start", DONATED, ids=lambda f: f.__name__)
def test_a_donated_input_is_carried_where_it_lies_if_nobody_needs_it_later(start):
    """The body doubles what is carried, three times."""
    shared, meaning = DONATED[start]
    g = tiles.Graph(tiles.Target.named("gc200").replace(num_tiles=4))
    x, n = g.add_input((8,), "float32", "x"), g.add_input((), "int32", "n")
    g.donated = (0,)
    layout = linear_layout((8,), "float32", 4)
    acc = g.add_tensor((8,), "float32", "acc", layout)
    g.set_layout(x.name, layout)
    body = tiles.Sequence()
    body.add(Copy(acc.name, (popops.mul(Site(g, sequence=body), acc, 2.0).name,)))
    g.outputs = start(g, x, n, acc, body)
    g.program.add(Repeat(3, body))
    executable = tiles.compile_graph(g)
    assert copies(executable) == shared
    certify(executable)
    values = np.arange(8, dtype=np.float32)
    for engine in ("fast", "literal"):
        outputs, _ = tiles.make_engine(executable, engine).run(values, np.int32(0))
        for got, want in zip(outputs, meaning(values), strict=True):
            np.testing.assert_array_equal(got, want)
