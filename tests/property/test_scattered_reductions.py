"""All-reduces of which each device reads its own part are reduce-scatters: the same bits on every device, others untouched."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import ipuxla
from hlo_passes.ir import evaluate_partitioned, parse_module, print_module, verify
from hlo_passes.ops import AllReduce, ReduceScatter
from hlo_passes.passes import ScatterReductions
from tests.budgets import SEQUENCE, budget
from tests.replicas import small_system
from tests.systems import auto_mesh

MESH = auto_mesh((2, 4), ("a", "b"))
SYSTEM = small_system("pod16")
SIZES = {"a": 2, "b": 4}


def own_chunk(total, axes, dimension):
    """Return the chunk of a device's place along axes."""
    size = total.shape[dimension] // np.prod([SIZES[axis] for axis in axes])
    return jax.lax.dynamic_slice_in_dim(total, jax.lax.axis_index(axes) * size, size, dimension)


def module_of(function, shape=(8, 16)):
    """Return the module of a function of one device's array."""
    inner = lambda x: jax.tree.map(lambda y: y[None], function(x[0]))  # noqa: E731
    rows = P(("a", "b"))
    mapped = jax.shard_map(inner, mesh=MESH, in_specs=rows, out_specs=rows, check_vma=False)
    return ipuxla.jit(mapped, target=SYSTEM).lower(np.zeros((8, *shape), np.float32))._pipeline.module


def count(module, kind):
    return sum(isinstance(instruction.op, kind) for instruction in module.walk())


def same(module, changed, shape=(8, 16)):
    """Check that a changed module is valid, readable and gives every device the same bits."""
    verify(changed)
    assert print_module(parse_module(print_module(changed))) == print_module(changed)
    x = np.random.default_rng(0).normal(size=(8, 1, *shape)).astype(np.float32)
    for one, other in zip(*(evaluate_partitioned(each, x) for each in (module, changed)), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@given(
    axes=st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "a")]),
    dimension=st.integers(0, 1),
    twice=st.booleans(),
    loops=st.booleans(),
)
@budget(SEQUENCE)
def test_every_device_keeps_its_bits(axes, dimension, twice, loops):
    def function(x):
        total = jax.lax.psum(x, axes)
        own = own_chunk(total, axes, dimension)
        return (own, jnp.tanh(own_chunk(total, axes, dimension))) if twice else (own,)

    def looping(x):
        return jax.lax.fori_loop(0, 3, lambda _, y: y + function(y)[-1].sum(), x)

    module = module_of(looping if loops else function)
    changed = ScatterReductions(min_bytes=0).run(module)
    assert (count(changed, ReduceScatter), count(changed, AllReduce)) == (1, 0)
    same(module, changed)


OTHERS = {
    "the whole is read, too": lambda x: (lambda t: (own_chunk(t, ("b",), 0), t * 2))(jax.lax.psum(x, "b")),
    "the whole is a result": lambda x: (lambda t: (own_chunk(t, ("b",), 0), t))(jax.lax.psum(x, "b")),
    "the neighbour's chunk": lambda x: jax.lax.dynamic_slice_in_dim(
        jax.lax.psum(x, "b"), (jax.lax.axis_index("b") + 1) % 4 * 2, 2
    ),
    "chunks of another axis": lambda x: own_chunk(jax.lax.psum(x, "b"), ("a",), 0),
    "chunks in another order": lambda x: own_chunk(jax.lax.psum(x, ("a", "b")), ("b", "a"), 0),
    "smaller chunks": lambda x: jax.lax.dynamic_slice_in_dim(
        jax.lax.psum(x, "b"), jax.lax.axis_index("b") * 2, 1
    ),
    "an offset that data say": lambda x: jax.lax.dynamic_slice_in_dim(
        jax.lax.psum(x, "b"), jax.lax.axis_index("b") * x[0, 0].astype(int), 2
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_else_is_read_keeps_its_sum(name):
    module = module_of(OTHERS[name])
    assert ScatterReductions(min_bytes=0).run(module) is module


def test_small_sums_and_groups_that_halving_does_not_cut_are_left():
    module = module_of(lambda x: own_chunk(jax.lax.psum(x, "b"), ("b",), 0))
    assert ScatterReductions().run(module) is module, "small ones cross together"
    assert ScatterReductions(min_bytes=513).run(module) is module
    assert ScatterReductions(min_bytes=512).run(module) is not module
    mesh = auto_mesh((3,), ("c",))

    def of_three(x):
        total = jax.lax.psum(x, "c")
        return jax.lax.dynamic_slice_in_dim(total, jax.lax.axis_index("c") * 2, 2)

    mapped = jax.shard_map(of_three, mesh=mesh, in_specs=P("c"), out_specs=P("c"), check_vma=False)
    module = ipuxla.jit(mapped, target=SYSTEM).lower(np.zeros((18, 4), np.float32))._pipeline.module
    assert ScatterReductions(min_bytes=0).run(module) is module


def test_gradients_of_parameters_that_are_cut_are_scattered():
    """As parameters and optimizer states are cut over the devices of a batch: gathered, and gradients summed in parts."""
    on = NamedSharding(MESH, P("b"))

    def step(w, x, constrain=lambda h: jax.lax.with_sharding_constraint(h, on)):
        value, gradient = jax.value_and_grad(lambda w: constrain(jnp.tanh(x @ w)).sum())(w)
        return w - 0.1 * gradient, value

    draw = np.random.default_rng(0).normal
    w, x = (draw(size=shape).astype(np.float32) / 16 for shape in ((256, 512), (64, 256)))
    target = small_system("pod16", 64)
    lowered = ipuxla.jit(step, target=target, in_shardings=(on, on), out_shardings=(on, None)).lower(w, x)
    assert "reduce_scatter" in lowered.as_text("hlo-optimized")
    assert lowered.compile().certify()
    wanted = jax.jit(lambda w, x: step(w, x, lambda h: h))(w, x)
    for engine in ("fast", "literal"):
        for got, value in zip(lowered.compile(engine=engine)(w, x), wanted, strict=True):
            np.testing.assert_allclose(got, value, rtol=2e-5, atol=1e-5)
