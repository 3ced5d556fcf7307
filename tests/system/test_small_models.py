"""Models on emulated machines: values, gradients and updates of every engine against ``jax.jit`` and against each other."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

import ipuxla
from tests.small_models import MODELS, TYPED, Model, large_step
from tiles.numerics.tolerance import check_close
from tiles.target import Target

ENGINES = ("fast", "literal", "vertex", "hlo")
ALL = MODELS | TYPED
WITH_FLOATS = ("mlp", "adam", "float16", "int64", "bool")
"""Programs whose floats every engine computes; of the others the ring shows that engines move the same words."""
WHOLE_MACHINE = {"gc200": ("feed_forward", "momentum"), "gc2": ("mlp", "integers", "float16")}
"""Which programs run on all tiles of a machine; see also ``test_everyday``."""


def lowered(model: Model, target: Target) -> ipuxla.Lowered:
    """Return a model lowered for a target."""
    return ipuxla.jit(model.function, target=target).lower(*model.arguments)


@functools.cache
def native(name: str) -> Any:
    """Return what JAX computes."""
    return jax.jit(ALL[name].function)(*ALL[name].arguments)


def assert_same(got: Any, want: Any, where: str) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, err_msg=where), got, want)


@pytest.mark.parametrize("name", ALL)
def test_every_engine_gives_what_jax_gives(name, small_target):
    model = ALL[name]
    with jax.enable_x64(model.wide):
        program, want = lowered(model, small_target), native(name)
        for engine in ENGINES if name in WITH_FLOATS else ("fast",):
            check_close(program.compile(engine=engine)(*model.arguments), want, f"{name}, engine {engine}")


@pytest.mark.parametrize("name", ALL)
def test_every_engine_gives_the_same_words_in_the_ring(name, small_target):
    model = ALL[name]
    with jax.enable_x64(model.wide):
        program = lowered(model, small_target)
        want = program.compile(engine="hlo", arithmetic="ring")(*model.arguments)
        for engine in ENGINES[:-1]:
            got = program.compile(engine=engine, arithmetic="ring")(*model.arguments)
            assert_same(got, want, f"{name}, engine {engine}")


@pytest.mark.parametrize(
    ("machine", "name"), [(m, name) for m, names in WHOLE_MACHINE.items() for name in names]
)
def test_models_run_on_all_tiles_of_a_machine(machine, name):
    model = ALL[name]
    program = lowered(model, Target.named(machine))
    check_close(program.compile()(*model.arguments), native(name), f"{name} on {machine}")
    want = program.compile(engine="hlo", arithmetic="ring")(*model.arguments)
    for engine in ("fast", "literal"):
        assert_same(
            program.compile(engine=engine, arithmetic="ring")(*model.arguments),
            want,
            f"{name}, engine {engine}",
        )


def test_a_training_step_spreads_over_a_whole_machine(gc200):
    """Large enough for what small models lack: sums split over tiles and combined in stages, thousands of parts."""
    model = large_step()
    program = lowered(model, gc200)
    executable = program.compile().executable
    used = {int(tile) for _, group in executable.groups() for tile in group.plan.tiles}
    assert len(used) > 1400
    assert any(group.plan.split_reductions(group.form) for _, group in executable.groups())
    check_close(program.compile()(*model.arguments), jax.jit(model.function)(*model.arguments), "step")
    want = program.compile(engine="hlo", arithmetic="ring")(*model.arguments)
    for engine in ("fast", "literal"):
        assert_same(program.compile(engine=engine, arithmetic="ring")(*model.arguments), want, engine)


def test_transformations_of_a_decorated_model_run_on_the_machine(small_target):
    """Gradients taken outside, of the decorated function, are those of the function itself."""
    function, arguments = MODELS["logistic"].function, MODELS["logistic"].arguments
    decorated = ipuxla.jit(lambda *a: function(*a)[0], target=small_target)
    check_close(jax.grad(decorated)(*arguments), native("logistic")[1], "gradient")
    batches = [np.stack([x, x * 2]) for x in arguments[1:]]
    got = jax.vmap(decorated, (None, 0, 0))(arguments[0], *batches)
    want = jax.vmap(lambda *a: function(*a)[0], (None, 0, 0))(arguments[0], *batches)
    check_close(got, want, "batched loss")
