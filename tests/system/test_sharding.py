"""Sharded programs, values and gradients, beside unsharded ``jax.jit`` and XLA's own execution on as many CPU devices."""

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import ipuxla
from tests.replicas import small_system
from tests.sharded_programs import KINDS, MESHES, PROGRAMS, arguments, layout, loss
from tests.xla import cpu_devices
from tiles.engine import certify

LAYOUTS = {f"{mesh} {kind}": (mesh, kind) for mesh in MESHES for kind in KINDS}
SYSTEM = small_system()
WRONG_IN_XLA = {(f"16 {kind}", "strided convolution") for kind in ("data", "mixed")}
"""Where XLA's own execution on many devices differs from its own on one: a kernel's gradient, uneven rows, a stride."""


def close(program, got, want):
    """Compare trees of arrays within what another order of additions may change."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        scale = max(1.0, float(np.max(np.abs(np.asarray(other, np.float64)), initial=0)))
        np.testing.assert_allclose(one, other, rtol=program.tolerance, atol=program.tolerance / 10 * scale)


def with_gradients(program):
    """Return a function of what a program gives and, where it has one, of its gradient by every argument."""
    if not program.has_gradient:
        return program.function
    gradients = jax.grad(loss(program), tuple(range(len(program.shapes))))
    return lambda *arrays: (program.function(*arrays), gradients(*arrays))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("where", LAYOUTS)
def test_values_and_gradients_are_those_of_one_device_and_of_xla_on_as_many(where, name):
    program, given = PROGRAMS[name], arguments(PROGRAMS[name])
    function, (mesh, kind) = with_gradients(program), LAYOUTS[where]
    compiled = ipuxla.jit(function, target=SYSTEM, engine="hlo", in_shardings=layout(program, mesh, kind))
    got = compiled(*given)
    close(program, got, jax.jit(function)(*given))
    if (where, name) in WRONG_IN_XLA:
        return
    devices = cpu_devices(int(np.prod(MESHES[mesh])))
    close(program, got, jax.jit(function, in_shardings=layout(program, mesh, kind, devices))(*given))


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_engines_agree_and_certify(name, tmp_path):
    program, given = PROGRAMS[name], arguments(PROGRAMS[name])
    wanted = jax.jit(program.function)(*given)
    jitted = ipuxla.jit(program.function, target=SYSTEM, in_shardings=layout(program, "2x4", "mixed"))
    lowered = jitted.lower(*given)
    close(program, lowered.compile(engine="hlo")(*given), wanted)
    compiled = lowered.compile()
    certify(compiled.executable)
    compiled.save(tmp_path / "program")
    for engine in ("fast", "literal", "vertex", "tile"):
        close(program, ipuxla.load(tmp_path / "program", engine=engine)(*given), wanted)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ("cond", "while", "switch")])
def test_in_the_ring_sharded_equals_unsharded_on_every_bit(name):
    program = PROGRAMS[name]
    given, said = arguments(program), layout(program, "2x4", "mixed")
    alone = ipuxla.jit(program.function, target=SYSTEM.chip, engine="hlo", arithmetic="ring")(*given)
    for engine in ("hlo", "fast"):
        jitted = ipuxla.jit(
            program.function, target=SYSTEM, engine=engine, arithmetic="ring", in_shardings=said
        )
        for got, want in zip(jax.tree.leaves(jitted(*given)), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("devices", "rows", "stride"), [(3, 6, 3), (8, 8, 2)])
def test_the_gradient_of_a_kernel_whose_rows_devices_do_not_divide(devices, rows, stride):
    """XLA's partitioner alone gets this wrong."""

    def total(image, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(image, kernel, (stride, 1), "SAME", dimension_numbers=numbers)
        return (y * jax.numpy.cos(jax.numpy.arange(y.size)).reshape(y.shape)).sum()

    rng = np.random.default_rng(0)
    given = [rng.normal(size=s).astype(np.float32) for s in ((2, rows, 4, 3), (3, 3, 3, 4))]
    mesh = AbstractMesh((devices,), ("d",))
    said = NamedSharding(mesh, PartitionSpec(None, "d")), NamedSharding(mesh, PartitionSpec())
    gradient = jax.grad(total, 1)
    got = ipuxla.jit(gradient, target=SYSTEM, engine="hlo", in_shardings=said)(*given)
    np.testing.assert_allclose(got, jax.jit(gradient)(*given), rtol=1e-5, atol=1e-5)
