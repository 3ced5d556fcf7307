"""Sharded programs against unsharded ``jax.jit``: every program, values and gradients, over meshes of one and two axes."""

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import ipuxla
from tests.sharded_programs import PROGRAMS, arguments, loss

MESHES = {"2": (("d", 2),), "4": (("m", 4),), "2x4": (("d", 2), ("m", 4))}


def shardings(program, axes):
    """Return shardings of a program's arguments over a mesh, by those of its axes that the mesh has."""
    names, sizes = zip(*axes, strict=True)
    mesh = AbstractMesh(sizes, names)
    return tuple(
        NamedSharding(mesh, PartitionSpec(*(name if name in names else None for name in spec)))
        for spec in program.specs
    )


def close(got, want):
    """Compare trees of arrays within what another order of additions may change."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        scale = max(1.0, float(np.max(np.abs(np.asarray(other, np.float64)), initial=0)))
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6 * scale)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("mesh", MESHES)
def test_values_are_those_of_one_device(name, mesh):
    program = PROGRAMS[name]
    compiled = ipuxla.jit(
        program.function, target="gc200 x 8", engine="hlo", in_shardings=shardings(program, MESHES[mesh])
    )
    given = arguments(program)
    close(compiled(*given), jax.jit(program.function)(*given))


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.has_gradient])
@pytest.mark.parametrize("mesh", MESHES)
def test_gradients_are_those_of_one_device(name, mesh):
    program, total = PROGRAMS[name], loss(PROGRAMS[name])
    numbers = tuple(range(len(program.shapes)))
    compiled = ipuxla.jit(
        jax.grad(total, numbers),
        target="gc200 x 8",
        engine="hlo",
        in_shardings=shardings(program, MESHES[mesh]),
    )
    given = arguments(program)
    close(compiled(*given), jax.jit(jax.grad(total, numbers))(*given))
