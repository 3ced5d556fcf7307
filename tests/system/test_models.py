"""Ordinary networks: small ones on every engine against ``jax.jit``, and at published size compiled and proved."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from hlo_passes.passes import DEFAULT_PIPELINE
from tests.models import MAKERS, Model, model
from tests.models.layers import cross_entropy
from tiles.compiler import certify
from tiles.numerics.tolerance import check_close
from tiles.target import Target

ENGINES = ("fast", "literal", "vertex")


@functools.cache
def small(name: str) -> tuple[Model, ipuxla.Lowered, Any]:
    """Return a small model, lowered for 16 tiles, and what JAX computes."""
    found = model(name, "small")
    target = Target.named("gc200").replace(num_tiles=16)
    return found, ipuxla.jit(found.function, target=target).lower(*found.arguments), native(found)


def native(found: Model) -> Any:
    """Return what JAX computes, compiled in half the time."""
    quick = {"xla_backend_optimization_level": 0}
    return jax.jit(found.function, compiler_options=quick)(*found.arguments)


def as_computed(found: Model, results: Any) -> Any:
    """Return results rounded to halves where the model computes in them: what follows is no more exact."""
    if not any(leaf.dtype == np.float16 for leaf in jax.tree.leaves(found.arguments)):
        return results
    return jax.tree.map(
        lambda x: np.asarray(x, np.float16) if np.issubdtype(x.dtype, np.floating) else x, results
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MAKERS)
def test_small_ones_compute_what_jax_computes(name, engine):
    found, lowered, want = small(name)
    got = lowered.compile(engine=engine)(*found.arguments)
    check_close(as_computed(found, got), as_computed(found, want), f"{name}, engine {engine}")


@pytest.mark.parametrize("name", MAKERS)
def test_published_ones_compile_and_fit(name):
    """Weights are never made: shapes are enough."""
    found = model(name, "published")
    jitted = ipuxla.jit(found.function, target=found.target, donate_argnums=found.donated, check_memory=False)
    compiled = jitted.lower(*found.arguments).compile()
    assert certify(compiled.executable).num_tiles == compiled.executable.target.num_tiles
    if found.goals.must_fit:
        memory = compiled.memory_analysis()
        assert memory["fits"], f"{memory['peak_bytes']:,} bytes at {memory['peak_step_name']}"


TRAINED = [name for name in MAKERS if not name.endswith("inference")]


@pytest.mark.parametrize("name", TRAINED)
def test_values_computed_again_are_those_that_were_kept(name):
    """As they are where much is held: small ones hold little, so that they are told to."""
    found, _, want = small(name)
    target = Target.named("gc200").replace(num_tiles=16)
    passes = DEFAULT_PIPELINE.replace("rematerialize,", "rematerialize,recompute,")
    lowered = ipuxla.jit(found.function, target=target, passes=passes).lower(*found.arguments)
    again = lowered.compile(engine="literal")
    check_close(as_computed(found, again(*found.arguments)), as_computed(found, want), name)
    again.certify()


@pytest.mark.parametrize(
    ("name", "batch"), [("resnet50-training", 8), ("vit-b16-inference", 4)], ids=lambda x: str(x)
)
def test_training_on_more_images_fits_with_values_computed_again(name, batch):
    """105 KB were missing on a tile for eight images in training a ResNet-50."""
    found = model(name, "published")
    function, arguments, donated = found.function, found.arguments, found.donated
    if not donated:
        infer, labels = function, jax.ShapeDtypeStruct((batch,), np.int32)

        def loss(params, images, labels):
            return cross_entropy(infer(params, images).astype(jnp.float32), labels).mean()

        def function(params, images, labels):
            slopes = jax.grad(loss)(params, images, labels)
            return jax.tree.map(lambda p, g: p - (0.01 * g).astype(p.dtype), params, slopes)

        arguments, donated = (*arguments, labels), (0,)
    *state, images, labels = arguments
    images, labels = (jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in (images, labels))
    jitted = ipuxla.jit(function, target="gc200", donate_argnums=donated)
    compiled = jitted.lower(*state, images, labels).compile()
    assert compiled.memory_analysis()["fits"]
    compiled.certify()


def test_published_sizes_are_those_of_the_publications():
    """Parameters in millions, batch norms with their statistics; a model that lost a layer would compile faster."""
    millions = {
        "resnet50-inference": 25.6,
        "bert-base-inference": 109.5,
        "mobilenet-v2-inference": 3.5,
        "densenet121-inference": 8.1,
        "vit-b16-inference": 86.6,
        "gpt2-small-step": 123.7,
        "gpt2-small-sgd": 123.7,
    }
    for name, wanted in millions.items():
        params = model(name, "published").arguments[0]
        count = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params)) / 1e6
        assert count == pytest.approx(wanted, abs=0.06), name


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_donated_comes_back(name):
    """A training step's state has the structure, shapes and types of what it was."""
    found = model(name, "published")
    results = jax.eval_shape(found.function, *found.arguments)
    for position, argument in enumerate(found.donated):
        before, after = found.arguments[argument], results[position]
        assert jax.tree.structure(before) == jax.tree.structure(after)
        for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            assert (old.shape, old.dtype) == (new.shape, new.dtype)
