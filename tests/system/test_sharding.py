"""Sharded programs against unsharded ``jax.jit``: every program, values and gradients, over meshes of one and two axes."""

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import ipuxla
from tests.replicas import small_system
from tests.sharded_programs import PROGRAMS, arguments, loss
from tiles.engine import certify

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


SYSTEM = small_system()


@pytest.mark.parametrize("name", PROGRAMS)
def test_engines_with_tile_memory_agree_and_certify(name, tmp_path):
    program = PROGRAMS[name]
    given, said = arguments(program), shardings(program, MESHES["2x4"])
    wanted = jax.jit(program.function)(*given)
    for engine in ("fast", "literal"):
        jitted = ipuxla.jit(program.function, target=SYSTEM, engine=engine, in_shardings=said)
        close(jitted(*given), wanted)
    compiled = jitted.lower(*given).compile()
    certify(compiled.executable)
    compiled.save(tmp_path / "program")
    close(ipuxla.load(tmp_path / "program", engine="fast")(*given), wanted)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ("cond", "while")])
def test_in_the_ring_sharded_equals_unsharded_on_every_bit(name):
    program = PROGRAMS[name]
    given, said = arguments(program), shardings(program, MESHES["2x4"])
    alone = ipuxla.jit(program.function, target=SYSTEM.chip, engine="hlo", arithmetic="ring")(*given)
    for engine in ("hlo", "fast"):
        jitted = ipuxla.jit(
            program.function, target=SYSTEM, engine=engine, arithmetic="ring", in_shardings=said
        )
        for got, want in zip(jax.tree.leaves(jitted(*given)), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(got, want)
