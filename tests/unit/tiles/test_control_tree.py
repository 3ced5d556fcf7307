"""Control trees: step counts from trips, what lives through a loop, what floats decide; decisions."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiles
from tests.flow import assert_engines_agree, executable_of, optimized_module, run
from tiles.compiler import control
from tiles.compiler.control import decided_parts, functions_of, part_data, part_from, steps_of
from tiles.compiler.control_flow import count_steps, decided_by_floats, loop_carried
from tiles.errors import InvalidExecutable
from tiles.graph import Copy, Repeat, RepeatWhileTrue, Site, Switch
from tiles.numerics.decisions import FIRST_CAPACITY, Decisions, Recording, Replay, record
from tiles.poplibs import popops


@pytest.fixture(scope="module")
def looping():
    """While ``i < n`` repeat three times ``acc = acc / 2 + x``; then a branch by ``n``."""
    g = tiles.Graph(tiles.Target.named("gc200").replace(num_tiles=4))
    x, n = g.add_input((8,), "float32", "x"), g.add_input((), "int32", "n")
    acc, i = popops.fill(g, (8,), "float32", 0.0), popops.fill(g, (), "int32", 0)
    inner, body, condition = tiles.Sequence(), tiles.Sequence(), tiles.Sequence()
    half = popops.mul(Site(g, sequence=inner), acc, 0.5)
    total = popops.add(Site(g, sequence=inner), half, x)
    inner.add(Copy(acc.name, (total.name,)))
    body.add(Repeat(3, inner))
    body.add(Copy(i.name, (popops.add(Site(g, sequence=body), i, 1).name,)))
    predicate = popops.lt(Site(g, sequence=condition), i, n)
    g.program.add(RepeatWhileTrue(condition, predicate.name, body))
    out = popops.fill(g, (8,), "float32", 0.0)
    branches = []
    for operation in (popops.add, popops.sub):
        branch = tiles.Sequence()
        branch.add(Copy(out.name, (operation(Site(g, sequence=branch), acc, 1.0).name,)))
        branches.append(branch)
    g.program.add(Switch(n.name, tuple(branches)))
    g.outputs = [out.name]
    return tiles.compile_graph(g), {"acc": acc.name, "i": i.name, "half": half.name, "out": out.name}


def test_only_what_is_read_later_is_carried(looping):
    executable, names = looping
    (_, loop), (_, choice) = decided_parts(executable.program)
    assert loop_carried(executable, loop) == sorted([names["acc"], names["i"]])
    assert loop_carried(executable, choice) == [names["out"]]


def test_steps_are_counted_from_trips(looping):
    executable, _ = looping
    (where_loop, loop), (where_choice, choice) = decided_parts(executable.program)
    counts = count_steps(executable, {where_loop: 2, where_choice: (0, 1)})
    repeat = next(part for part in loop.body.parts if isinstance(part, control.Repeat))
    assert {counts[s] for s in steps_of(repeat)} == {6}
    assert {counts[s] for s in steps_of(loop.condition)} == {3}
    assert {counts[s] for s in steps_of(loop.body)} == {2, 6}
    assert [{counts[s] for s in steps_of(branch)} for branch in choice.branches] == [{0}, {1}]


@pytest.mark.parametrize("n", [-1, 0, 1, 4])
def test_engines_count_alike(looping, n):
    executable, _ = looping
    x = np.arange(8, dtype=np.float32)
    runs = [tiles.make_engine(executable, e).run(x, np.int32(n)) for e in ("fast", "literal")]
    assert runs[0][1].counts == runs[1][1].counts
    want = np.zeros(8, np.float32)
    for _ in range(3 * max(n, 0)):
        want = want / 2 + x
    for outputs, _ in runs:
        np.testing.assert_allclose(outputs[0], want + 1 if n == 0 else want - 1, rtol=1e-6)


def test_steps_of_an_empty_sequence():
    assert list(steps_of(control.While(control.Sequence(()), "p", control.Sequence((1,))))) == [1]


def _trees(functions: dict[str, control.Part]) -> st.SearchStrategy[control.Part]:
    """Control trees that may call the given functions."""
    calls = [control.Call(name, body) for name, body in functions.items()]
    leaves = st.integers(0, 9) | (st.sampled_from(calls) if calls else st.nothing())
    return st.recursive(
        leaves,
        lambda part: st.one_of(
            st.lists(part, max_size=3).map(lambda parts: control.Sequence(tuple(parts))),
            st.builds(control.Repeat, st.integers(0, 5), part),
            st.builds(control.While, part, st.sampled_from("pq"), part, st.booleans()),
            st.lists(part, min_size=1, max_size=3).map(lambda parts: control.Switch("i", tuple(parts))),
            st.builds(control.Composite, st.integers(0, 3), part),
        ),
        max_leaves=12,
    )


@given(st.data())
def test_trees_are_what_their_data_says(data):
    functions: dict[str, control.Part] = {}
    for name in data.draw(st.sampled_from([(), ("f",), ("f", "g")])):
        functions[name] = data.draw(_trees(dict(functions)))
    tree = data.draw(_trees(functions))
    called = functions_of(tree)
    read: dict[str, control.Part] = {}
    for name, body in json.loads(json.dumps([[n, part_data(b)] for n, b in called.items()])):
        read[name] = part_from(body, read)
    assert read == called
    assert part_from(json.loads(json.dumps(part_data(tree))), read) == tree


@pytest.mark.parametrize(
    "data",
    [
        True,
        None,
        1.0,
        [],
        ["sequence", "x"],
        ["repeat", -1, 0],
        ["repeat", True, 0],
        ["repeat", 1],
        ["call", "f"],
        ["while", 0, 1, 0],
        ["switch", "i"],
        ["composite", -1, 0],
        ["sequence", ["parallel", 0]],
        {"sequence": 0},
    ],
)
def test_what_is_no_control_tree_is_refused(data):
    with pytest.raises(InvalidExecutable, match="no control step"):
        part_from(data, {})


def test_decisions_by_integers_need_no_replay(looping):
    executable, _ = looping
    assert not decided_by_floats(executable)
    g = tiles.Graph(tiles.Target.named("gc200").replace(num_tiles=4))
    x = g.add_input((), "float32", "x")
    condition, body = tiles.Sequence(), tiles.Sequence()
    predicate = popops.lt(Site(g, sequence=condition), x, 3.0)
    body.add(Copy(x.name, (popops.add(Site(g, sequence=body), x, 1.0).name,)))
    g.program.add(RepeatWhileTrue(condition, predicate.name, body))
    g.outputs = [predicate.name]
    assert decided_by_floats(tiles.compile_graph(g))


@pytest.mark.parametrize("halves", [False, True])
def test_decisions_by_floats_between_integers_are_seen(halves):
    """The expression is one vertex, whose operand and result hold no float."""

    def count(n):
        def is_even(k):
            return jnp.remainder(k.astype(jnp.float32), 2) == 0 if halves else k % 2 == 0

        return jax.lax.fori_loop(
            0, 5, lambda k, c: jax.lax.cond(is_even(k), lambda c: c + k * n, lambda c: c, c), n
        )

    module = optimized_module(count, [np.int32(1)])
    executable = executable_of(module, tiles.Target.named("gc200").replace(num_tiles=4))
    assert decided_by_floats(executable) == halves
    assert_engines_agree(executable, module, [np.int32(1)])
    assert run(executable, "literal", [np.int32(1)], "ring")[0] == count(np.int32(1))


def test_decisions_are_recorded_and_repeated():
    def loop(decisions, limit):
        """Return how often the loop ran and the decisions' state."""

        def again(carry):
            decisions.state = carry[2]
            goes_on = decisions.take(carry[1] + 1 < limit)
            return goes_on, carry[1] + 1, decisions.state

        first = decisions.take(0 < limit)
        return jax.lax.while_loop(lambda c: c[0], again, (first, 0, decisions.state))

    @jax.jit
    def replayed(recorded):
        return loop(Replay(recorded), 0)[1]

    for limit in (0, 5, FIRST_CAPACITY, 5 * FIRST_CAPACITY):
        kept = record(lambda capacity, limit=limit: loop(Recording(capacity), jnp.int32(limit))[2])
        np.testing.assert_array_equal(kept[: limit + 1], [1] * limit + [0])
        assert int(replayed(kept)) == limit
    assert int(loop(Decisions(), jnp.int32(7))[1]) == 7
