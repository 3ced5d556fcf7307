"""``jax.custom_partitioning``: a function that says itself what one device of a mesh computes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import ipuxla
from ipuxla.errors import Unsupported
from tests.systems import auto_mesh

MESH = auto_mesh((2, 4), ("data", "model"))
X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
WANT = X / np.sqrt((X * X).sum(-1, keepdims=True))


@custom_partitioning
def normalized(x):
    return x / jnp.sqrt((x * x).sum(-1, keepdims=True))


def rows_of_one(mesh, arguments, result):
    """Sum over the axis that cuts a row, which the whole function does not say."""
    (argument,) = arguments
    axis = argument.sharding.spec[1] if len(argument.sharding.spec) > 1 else None

    def local(x):
        squares = (x * x).sum(-1, keepdims=True)
        return x / jnp.sqrt(squares if axis is None else jax.lax.psum(squares, axis))

    return mesh, local, argument.sharding, (argument.sharding,)


normalized.def_partition(partition=rows_of_one, sharding_rule="b f -> b f")


@custom_partitioning
def uncut(x):
    return x + 1


def refuse(mesh, arguments, result):
    raise ValueError("rows of one device only")


uncut.def_partition(partition=refuse, sharding_rule="b f -> b f")


def jit(function, *spec, **options):
    return ipuxla.jit(
        function, target="dss8440", in_shardings=(NamedSharding(MESH, P(*spec)),), engine="fast", **options
    )


@pytest.mark.parametrize("spec", [("data",), ("data", "model"), (None, "model")])
def test_a_function_says_itself_how_it_is_partitioned(spec):
    function = jit(lambda x: normalized(2 * x), *spec)
    np.testing.assert_allclose(function(X), WANT, rtol=1e-6, atol=1e-7)
    assert ("all_reduce" in function.lower(X).as_text("partitioned")) == ("model" in spec)


def test_where_nothing_is_partitioned_it_is_the_function_itself():
    np.testing.assert_allclose(ipuxla.jit(normalized, target="gc200")(X), WANT, rtol=1e-6)
    manual = jax.shard_map(normalized, mesh=MESH, in_specs=P("data"), out_specs=P("data"))
    np.testing.assert_allclose(ipuxla.jit(manual, target="dss8440", engine="fast")(X), WANT, rtol=1e-6)


def test_what_it_raises_is_told_with_its_place():
    with pytest.raises(
        Unsupported,
        match=r"refuses the program: ValueError: rows of one device only \(from .*test_custom_partitioning\.py:\d+",
    ):
        jit(uncut, "data")(X)
    partly = jax.shard_map(
        lambda x: normalized(x), mesh=MESH, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}
    )
    with pytest.raises(
        Unsupported, match=r"(?s)over some axes of the mesh.*test_custom_partitioning\.py:\d+"
    ):
        ipuxla.jit(partly, target="dss8440")(X)
