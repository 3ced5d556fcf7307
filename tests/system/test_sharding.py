"""Sharded programs, values and gradients, beside unsharded ``jax.jit`` and XLA's own execution on as many CPU devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import ipuxla
from hlo_passes.passes.pipeline import DEFAULT_PIPELINE
from tests.replicas import small_system
from tests.sharded_programs import KINDS, MESHES, PROGRAMS, arguments, close, layout, loss
from tests.systems import auto_mesh
from tests.xla import cpu_devices
from tiles.engine import certify

LAYOUTS = {f"{mesh} {kind}": (mesh, kind) for mesh in MESHES for kind in KINDS}
SYSTEM = small_system()
WRONG_IN_XLA = {
    *((f"16 {kind}", "strided convolution") for kind in ("data", "mixed")),
    *((f"2x4 {kind}", name) for kind in ("data", "tensor") for name in ("halo", "strided convolution")),
}
"""Where XLA's own execution on many devices differs from its own on one: convolutions of images cut along rows."""


def lax_pad(low, high, interior):
    return lambda x, c: lax.pad(x, 0.5, [(low, high, interior)])


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
    close(got, jax.jit(function)(*given), program.tolerance)
    if (where, name) in WRONG_IN_XLA:
        return
    devices = cpu_devices(int(np.prod(MESHES[mesh])))
    close(
        got, jax.jit(function, in_shardings=layout(program, mesh, kind, devices))(*given), program.tolerance
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_engines_agree_and_certify(name, tmp_path):
    program, given = PROGRAMS[name], arguments(PROGRAMS[name])
    wanted = jax.jit(program.function)(*given)
    jitted = ipuxla.jit(program.function, target=SYSTEM, in_shardings=layout(program, "2x4", "mixed"))
    lowered = jitted.lower(*given)
    close(lowered.compile(engine="hlo")(*given), wanted, program.tolerance)
    compiled = lowered.compile()
    certify(compiled.executable)
    compiled.save(tmp_path / "program")
    for engine in ("fast", "literal", "vertex", "tile"):
        close(ipuxla.load(tmp_path / "program", engine=engine)(*given), wanted, program.tolerance)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ("cond", "while", "switch")])
def test_in_the_ring_sharded_equals_unsharded_on_every_bit(name):
    """Quotients stay what they are: those of a norm, which is one function on a single IPU only, are never products."""
    program = PROGRAMS[name]
    given, said = arguments(program), layout(program, "2x4", "mixed")
    jit = functools.partial(
        ipuxla.jit, program.function, arithmetic="ring", passes=DEFAULT_PIPELINE.replace(",quotients,", ",")
    )
    alone = jit(target=SYSTEM.chip, engine="hlo")(*given)
    for engine in ("hlo", "fast"):
        jitted = jit(target=SYSTEM, engine=engine, in_shardings=said)
        for got, want in zip(jax.tree.leaves(jitted(*given)), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(got, want)


CUTS = {
    "one row each": ((8,), P(None, "a"), P(), 8, 2),
    "uneven rows": ((3,), P(None, "a"), P(), 6, 3),
    "rows along one axis of two": ((2, 4), P(None, "a"), P(), 16, 1),
    "rows and features of the result": ((2, 4), P(None, "a"), P(None, None, None, "b"), 16, 1),
    "rows and features that are summed": ((2, 2, 2), P(None, "a", None, "b"), P(None, None, "b"), 16, 1),
    "batch and rows along two axes of three": ((2, 2, 2), P("a", "b"), P(), 16, 2),
}
"""Axes of a mesh, how image and kernel are cut, rows, stride: XLA's partitioner alone gets these wrong."""


@pytest.mark.parametrize("name", CUTS)
def test_convolutions_of_images_cut_along_rows(name):
    sizes, image, kernel, rows, stride = CUTS[name]

    def convolved(x, k):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, k, (stride, 1), "SAME", dimension_numbers=numbers)

    def total(x, k):
        y = convolved(x, k)
        return (y * jax.numpy.cos(jax.numpy.arange(y.size)).reshape(y.shape)).sum()

    def both(x, k):
        return convolved(x, k), jax.grad(total, (0, 1))(x, k)

    rng = np.random.default_rng(0)
    given = [rng.normal(size=s).astype(np.float32) for s in ((4, rows, 4, 4), (3, 3, 4, 8))]
    mesh = auto_mesh(sizes, ("a", "b", "c")[: len(sizes)])
    said = NamedSharding(mesh, image), NamedSharding(mesh, kernel)
    got = ipuxla.jit(both, target=SYSTEM, engine="hlo", in_shardings=said)(*given)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(both)(*given)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def of_cotangent(function):
    return lambda x, c: jax.vjp(function, x)[1](c)[0]


PADS = {
    "between": lambda x, c: lax.pad(x, 0.5, [(0, 2, 1)]),
    "between and cut off": lax_pad(-1, 0, 1),
    "cut off in front": lax_pad(-1, 0, 0),
    "cut off on both sides": lax_pad(-2, -1, 2),
    "two between": lax_pad(1, -2, 2),
    "a strided slice's gradient": of_cotangent(lambda x: jnp.zeros(8).at[:4].set(x[::2])),
    "cumprod": of_cotangent(jnp.cumprod),
    "cummax": of_cotangent(lax.cummax),
    "cumlogsumexp": of_cotangent(lax.cumlogsumexp),
}


@pytest.mark.parametrize("whole", [(), ("a",)])
@pytest.mark.parametrize("result", [None, (), ("a",)])
@pytest.mark.parametrize("name", PADS)
def test_padding_between_and_padding_that_cuts_off(name, whole, result):
    """XLA's partitioner computes other values for some of these, and ends the process for others, left as they are."""
    mesh = auto_mesh((2,), ("a",))

    def function(x, c):
        found = PADS[name](x, c)
        return (
            found if result is None else lax.with_sharding_constraint(found, NamedSharding(mesh, P(*result)))
        )

    given = np.linspace(0.5, 2, 8, dtype=np.float32), np.linspace(-1, 3, 8, dtype=np.float32)
    shardings = NamedSharding(mesh, P("a")), NamedSharding(mesh, P(*whole))
    got = ipuxla.jit(function, target=SYSTEM, engine="hlo", in_shardings=shardings)(*given)
    close(got, jax.jit(PADS[name])(*given), 1e-5)
