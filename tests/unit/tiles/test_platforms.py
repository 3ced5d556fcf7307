"""What engines do where JAX's default device is no CPU: convolutions, and where they compute."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jax import lax

import hlo_passes.platforms
import ipuxla
import tiles.platforms
from hlo_passes.passes import precompute
from tests.budgets import PLAN, budget
from tiles.numerics.convolution import convolve, in_windows

CPU = jax.devices("cpu")[0]
MODULES = (hlo_passes.platforms, tiles.platforms)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Any, ...]:
    """Draw two arrays of integers and arguments of ``lax.conv_general_dilated``."""
    spatial = draw(st.integers(0, 2))
    features, batches = draw(st.sampled_from([(1, 1), (1, 2), (3, 1), (2, 1)]))
    small = st.integers(1, 3)
    each = st.lists(small, min_size=spatial, max_size=spatial)
    size = [draw(st.integers(0, 6)) for _ in range(spatial)]
    x = (batches * draw(st.integers(0, 2)), features * draw(small), *size)
    kernel = (features * batches * draw(small), x[1] // features, *draw(each))
    orders = [tuple(draw(st.permutations(range(spatial + 2)))) for _ in range(3)]
    edges = [(draw(st.integers(-1, 3)), draw(st.integers(-1, 3))) for _ in range(spatial)]
    rng = np.random.default_rng(draw(st.integers(0, 99)))

    def array(shape: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
        """Return an array whose dimensions, taken in this order, have this shape."""
        plain = rng.integers(-(2**31), 2**31, shape).astype(np.int32)
        return plain.transpose(np.argsort(order))

    strides, lhs_dilation, rhs_dilation = draw(each), draw(each), draw(each)
    numbers = lax.ConvDimensionNumbers(*orders)
    return (
        array(x, orders[0]),
        array(kernel, orders[1]),
        strides,
        edges,
        (lhs_dilation, rhs_dilation),
        numbers,
        (features, batches),
    )


@budget(PLAN)
@given(convolutions())
def test_a_convolution_in_windows_is_the_convolution(drawn) -> None:
    lhs, rhs, strides, edges, dilations, numbers, groups = drawn
    inner = [lhs.shape[d] for d in numbers.lhs_spec[2:]]
    spread = [(n - 1) * step + 1 if n else 0 for n, step in zip(inner, dilations[0], strict=True)]
    assume(all(n + low + high >= 0 for n, (low, high) in zip(spread, edges, strict=True)))
    wanted = lax.conv_general_dilated(lhs, rhs, strides, edges, *dilations, numbers, *groups)
    found = jax.jit(lambda lhs, rhs: in_windows(lhs, rhs, *drawn[2:]))(lhs, rhs)
    np.testing.assert_array_equal(found, wanted)


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the default device called an accelerator; it computes as the CPU that it is."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


TARGET = ipuxla.Target.named("gc200").replace(num_tiles=8)
RNG = np.random.default_rng(0)


def image_step(x: jax.Array, kernel: jax.Array) -> Any:
    """Return a convolution and its gradients, one of which is over a spread array."""

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(lax.conv(x, kernel, (2, 2), "SAME")))

    return loss(x, kernel), jax.grad(loss, (0, 1))(x, kernel)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("engine", ["fast", "literal"])
def test_programs_mean_the_same_on_an_accelerator(accelerator, engine, dtype) -> None:
    x, kernel = (RNG.standard_normal(shape).astype(dtype) / 4 for shape in ((2, 3, 6, 6), (4, 3, 3, 3)))
    wanted = jax.jit(image_step)(x, kernel)
    found = ipuxla.jit(image_step, target=TARGET, engine=engine)(x, kernel)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        tolerance = (1e-5 if dtype == "float32" else 1e-2) * np.abs(theirs).max()
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance)


def test_the_ring_is_the_same_on_an_accelerator(monkeypatch) -> None:
    x, kernel = (RNG.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 6, 6), (4, 3, 3, 3)))

    def words(engine: str) -> list[np.ndarray]:
        function = ipuxla.jit(image_step, target=TARGET, engine=engine, arithmetic="ring")
        return [np.asarray(each).view(np.uint32) for each in jax.tree.leaves(function(x, kernel))]

    there = words("fast")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    jax.clear_caches()
    for engine in ("fast", "literal"):
        for mine, theirs in zip(words(engine), there, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_an_accelerator_is_asked_for_no_convolution_of_integers_or_of_other_widths(accelerator) -> None:
    def types(dtype: str) -> set[str]:
        arrays = jnp.ones((1, 2, 5, 5), dtype), jnp.ones((3, 2, 2, 2), dtype)

        def function(x: jax.Array, kernel: jax.Array) -> jax.Array:
            wide = jnp.float32 if dtype == "float16" else jnp.int32
            return convolve(x, kernel, (1, 1), [(0, 0)] * 2, preferred_element_type=wide)

        equations = jax.make_jaxpr(function)(*arrays).eqns
        return {str(v.aval.dtype) for e in equations if "conv_" in e.primitive.name for v in e.invars}

    assert types("float16") == {"float32"}
    assert types("int8") == set()


def test_an_accelerator_is_told_nothing_that_is_for_cpus(accelerator) -> None:
    x = np.ones((4, 4), np.float32)
    for arithmetic in ("float", "ring"):
        executable = ipuxla.jit(lambda x: jnp.tanh(x) @ x, target=TARGET).lower(x).compile().executable
        engine = tiles.make_engine(executable, "fast", arithmetic=arithmetic)
        assert engine.compiler_options is None


@pytest.mark.parametrize("module", MODULES)
def test_constants_and_tile_memory_are_computed_on_a_cpu(module, accelerator) -> None:
    assert module.default_platform() == "gpu"
    with module.on_cpu():
        assert module.default_platform() == "cpu"
        assert jax.config.jax_default_device == CPU
    with jax.default_device("cpu"), module.on_cpu():
        assert jax.config.jax_default_device == "cpu"  # as the caller said


def test_passes_evaluate_on_a_cpu(accelerator, monkeypatch) -> None:
    seen: list[Any] = []
    real = precompute.evaluate_instruction

    def evaluated(*arguments: Any) -> Any:
        seen.append(jax.config.jax_default_device)
        return real(*arguments)

    monkeypatch.setattr(precompute, "evaluate_instruction", evaluated)
    angles = ipuxla.jit(lambda x: x * jnp.sin(jnp.arange(3.0)), target=TARGET)
    angles.lower(np.ones(3, np.float32)).as_text("hlo-optimized")
    assert seen and all(device == CPU for device in seen)


def test_what_is_traced_follows_committed_arrays(accelerator, monkeypatch) -> None:
    monkeypatch.setattr(tiles.platforms, "_has_several_platforms", lambda: True)
    free, kept = jnp.ones(3), jax.device_put(jnp.ones(3), CPU)
    for arrays, platform in (([free, np.ones(3)], "gpu"), ([free, kept], "cpu"), ([], "gpu")):
        with tiles.platforms.where_arrays_are(arrays):
            assert tiles.platforms.default_platform() == platform
    with jax.default_device(CPU), tiles.platforms.where_arrays_are([kept]):
        assert jax.config.jax_default_device == CPU
