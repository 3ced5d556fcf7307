"""All-reduces that are joined: every device gets the same bits as before, and nothing waits for what waits for it."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import ipuxla
from hlo_passes.ir import evaluate_partitioned, parse_module, print_module, verify
from hlo_passes.ops import AllReduce
from hlo_passes.passes import JoinCollectives
from tests.budgets import SEQUENCE, budget
from tests.replicas import small_system
from tests.systems import auto_mesh

MESH = auto_mesh((2, 2), ("a", "b"))
SHAPES = ((3,), (2, 2), (5,))
AXES = (("a",), ("b",), ("a", "b"))
STEP = st.tuples(st.sampled_from(["psum", "pmax", "tanh", "loop"]), st.integers(0, 99), st.sampled_from(AXES))


def program(steps):
    """Return a function of one device: each step takes an argument or an earlier result, which all are returned."""

    def step(kind, x, axes):
        if kind == "psum":
            return jax.lax.psum(x, axes)
        if kind == "pmax":
            return jax.lax.pmax(x, axes)
        if kind == "loop":
            return jax.lax.fori_loop(
                0, 2, lambda _, c: jax.lax.psum(c / 3, axes) + jax.lax.psum(c * c, axes), x
            )
        return jnp.tanh(x) + 1

    def function(*values):
        values = list(values)
        for kind, number, axes in steps:
            values.append(step(kind, values[number % len(values)], axes))
        return tuple(x[None] for x in values)

    rows = tuple(P(("a", "b")) for _ in SHAPES)
    every = (P(("a", "b")),) * (len(SHAPES) + len(steps))
    inner = lambda *arrays: function(*(x[0] for x in arrays))  # noqa: E731
    return jax.shard_map(inner, mesh=MESH, in_specs=rows, out_specs=every, check_vma=False)


def module_of(steps):
    given = [np.zeros((4, *shape), np.float32) for shape in SHAPES]
    return ipuxla.jit(program(steps), target=small_system("pod4")).lower(*given)._pipeline.module


def count(module):
    return sum(isinstance(instruction.op, AllReduce) for instruction in module.walk())


@given(steps=st.lists(STEP, min_size=2, max_size=8), most=st.sampled_from([16, 40, 1 << 16]))
@budget(SEQUENCE)
def test_joining_keeps_every_bit(steps, most):
    module = module_of(steps)
    joined = JoinCollectives(max_bytes=most, max_total_bytes=2 * most).run(module)
    verify(joined)
    text = print_module(joined)
    assert print_module(parse_module(text)) == text
    operands = sum(len(i.operands) for i in joined.walk() if isinstance(i.op, AllReduce))
    assert operands == count(module), "none is lost, none is made twice"
    for instruction in joined.walk():
        if isinstance(instruction.op, AllReduce) and len(instruction.operands) > 1:
            sizes = [type_.size_bytes for type_ in instruction.operand_types]
            assert max(sizes) <= most and sum(sizes) <= 2 * most
    rng = np.random.default_rng(len(steps))
    arrays = [rng.normal(size=(4, 1, *shape)).astype(np.float32) for shape in SHAPES]
    before, after = (evaluate_partitioned(each, *arrays) for each in (module, joined))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_neighbours_are_one_and_what_waits_or_differs_is_not():
    a, b = ("a",), ("b",)
    alike = [("psum", 0, a), ("tanh", 3, a), ("psum", 1, a), ("psum", 2, a)]
    assert count(JoinCollectives().run(module_of(alike))) == 1, "a reader of the first is no hindrance"
    assert count(JoinCollectives().run(module_of([("psum", 0, a), ("psum", 3, a)]))) == 2, "one waits"
    others = [("psum", 0, a), ("psum", 1, b), ("pmax", 2, a)]
    assert count(JoinCollectives().run(module_of(others))) == 3, "other groups, another operation"
    crossed = [("psum", 0, a), ("psum", 3, b), ("psum", 1, b), ("psum", 5, a)]
    assert count(JoinCollectives().run(module_of(crossed))) == 4, "two joined pairs would wait for each other"
    apart = JoinCollectives(max_bytes=12)
    assert count(apart.run(module_of([("psum", 0, a), ("psum", 1, a)]))) == 2, "16 bytes are not small"
    nothing = module_of([("tanh", 0, a), ("tanh", 1, a)])
    assert JoinCollectives().run(nothing) is nothing


def test_what_is_small_depends_on_the_systems_latency():
    def joined(system, count, size):
        mesh = auto_mesh((count,), ("d",))
        both = jax.shard_map(
            lambda x, y: jax.lax.psum((x, y), "d"), mesh=mesh, in_specs=P("d"), out_specs=P()
        )
        xs = [jax.ShapeDtypeStruct((count * n,), np.float32) for n in (size, size + 1)]
        text = ipuxla.jit(both, target=system).lower(*xs).as_text("hlo-optimized")
        return text.count("all_reduce(") == 1

    assert joined("pod4", 4, 30_000) and not joined("pod4", 4, 40_000)
    assert joined("dss8440", 16, 60_000) and not joined("dss8440", 16, 70_000)
    assert joined("pod64 x 1024", 2**16, 250_000)
