"""A step over many layers is planned, placed and compiled layer by distinct layer, not layer by layer."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from hlo_passes.ops import Call
from ipuxla.lowering import lower_module
from ipuxla.testing import check_engines
from tests import transformer
from tests.flow import optimized_module, run
from tests.models.optimizers import adamw
from tiles.compiler import CopyStep, certify, compile_graph, step_costs
from tiles.numerics.tolerance import check_close
from tiles.planning import Planner
from tiles.target import Target

choosing = importlib.import_module("tiles.planning.choose")
TARGET = Target.named("gc200").replace(num_tiles=16)
WIDTH, TOKENS, VOCABULARY = 8, 6, 5


def arguments(layers: int) -> tuple[Any, ...]:
    return transformer.parameters(layers, WIDTH, TOKENS, VOCABULARY), *transformer.batch(TOKENS, VOCABULARY)


def module_of(function: Any, args: tuple[Any, ...]) -> Any:
    leaves, tree = jax.tree.flatten(args)
    return optimized_module(lambda *flat: jax.tree.leaves(function(*jax.tree.unflatten(tree, flat))), leaves)


def test_each_distinct_layer_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layers more must not mean one compute set or function more; only their parameters are updated in place.

    How many updates run side by side says how many tiles each may have, so that a few questions more are asked.
    """
    found = {}
    for layers in (4, 8):
        module = module_of(transformer.sgd_step, arguments(layers))
        searches = []
        search = choosing.search

        def counted(*args: Any, search: Any = search, searches: list[Any] = searches, **options: Any) -> Any:
            form, codelet, operands, *rest = args
            searches.append((form, codelet, tuple(operands), *rest))
            return search(*args, **options)

        with monkeypatch.context() as patched:
            patched.setattr(choosing, "search", counted)
            graph = Planner().plan(lower_module(module, TARGET))
        assert len(graph.functions) == 2  # forward, backward
        updates = layers * len(arguments(1)[0]["layers"][0])
        found[layers] = len(set(searches)), len(graph.compute_sets) - updates
        certify(compile_graph(graph))
    assert found[4][1] == found[8][1]
    assert found[8][0] <= 1.25 * found[4][0]


def test_each_distinct_layer_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast engine hands XLA a function and its calls; what the calls compute is what the host computes."""
    fast, found = importlib.import_module("tiles.engine.fast"), {}
    for layers in (4, 8):  # calls of fewer layers are inlined, as they would copy more than they compute
        args, traced = arguments(layers), []
        whole = fast.whole

        def counted(group: Any, *rest: Any, whole: Any = whole, traced: list[str] = traced) -> Any:
            traced.append(group.name)
            return whole(group, *rest)

        with monkeypatch.context() as patched:
            patched.setattr(fast, "whole", counted)
            stepped = ipuxla.jit(transformer.sgd_step, target=TARGET, check_memory=False)(*args)
        check_close(stepped, jax.jit(transformer.sgd_step)(*args), "step")
        assert len(traced) == len(set(traced))
        updates = layers * len(args[0]["layers"][0])
        found[layers] = len(traced) - updates
    assert found[4] == found[8]


def test_updates_are_computed_where_parameters_lie() -> None:
    """A function of nothing but elementwise operations would copy all it reads and returns, and save nothing."""
    module = module_of(transformer.sgd_step, arguments(6))
    executable = compile_graph(lower_module(module, TARGET))
    inputs, outputs = set(executable.inputs), set(executable.outputs)
    updates = [group for _, group in executable.groups() if outputs.intersection(group.results)]
    updated = [
        group for group in updates if inputs.intersection(operand.variable for operand in group.operands)
    ]
    assert len(updated) == len(jax.tree.leaves(arguments(6)[0]))
    assert not any(
        isinstance(step, CopyStep) and outputs.intersection(step.writes) for step in executable.steps
    )


def test_a_gradient_is_left_where_its_parameter_waits() -> None:
    """The contraction that computes it is planned for that, so the update exchanges nothing."""

    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * (x.T @ jnp.tanh(x @ w))

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) / 8 for shape in ((1024, 1024), (128, 1024))]
    executable = compile_graph(lower_module(module_of(step, tuple(arrays)), Target.named("gc200")))
    update = step_costs(executable)[-1]
    assert update.name.startswith("dot_general_multiply_subtract")
    assert not update.traffic.received.any()
    (got,) = run(executable, "fast", arrays)
    check_close(got, jax.jit(step)(*arrays), "updated")


def test_written_as_a_scan_it_is_the_same_size() -> None:
    sizes = []
    for layers in (6, 12):
        params, *rest = arguments(layers)
        module = module_of(transformer.sgd_step, (transformer.stacked(params), *rest))
        sizes.append(sum(1 for _ in module.walk()))
    assert sizes[0] == sizes[1]


def test_values_on_the_engines() -> None:
    args = arguments(2)
    check_engines(transformer.sgd_step, TARGET, *args, engines=("fast",))


def test_a_scan_over_layers_equals_the_loop() -> None:
    params, *rest = arguments(2)
    step = ipuxla.jit(transformer.sgd_step, target=TARGET)
    got = step(transformer.stacked(params), *rest)
    want = jax.jit(transformer.sgd_step)(params, *rest)
    check_close(jax.tree.leaves(got), jax.tree.leaves((transformer.stacked(want[0]), want[1])), "scan")


def test_a_layer_that_returns_for_a_later_reader() -> None:
    """What one call returns is read after the function has run again: it must have been copied out."""

    def f(x: Any, weights: Any) -> Any:
        kept = []
        for w in weights:
            x = jax.numpy.tanh(x @ w) + x
            for _ in range(8):  # more than the copies that a call takes: shorter layers are inlined
                x = jax.numpy.sin(x @ w) * 1.5 - x
            kept.append(x)
        return functools.reduce(lambda a, b: a * 0.5 + b, kept)

    weights = [np.linspace(-1, 1, 25, dtype=np.float32).reshape(5, 5) * n for n in range(1, 6)]
    compiled = check_engines(
        f, TARGET, np.ones((3, 5), np.float32), weights, engines=("fast", "literal"), floats=("fast",)
    )
    assert compiled.as_text("hlo-optimized").count("func.call") == 5


def test_the_twelve_layer_step_fits_a_whole_machine(gc200: Target) -> None:
    """256 wide, 128 tokens, 8 heads. Placed layer by layer its exchange code alone would overflow the tiles."""
    args = transformer.parameters(12, 256, 128, 64), *transformer.batch(128, 64)
    module = module_of(functools.partial(transformer.sgd_step, heads=8), args)
    kinds = {getattr(i.op, "kind", "") for i in module.walk()}
    layers = {
        f"popnn.{name}{suffix}" for name in ("layer_norm", "softmax", "gelu") for suffix in ("", "_gradient")
    }
    assert layers <= kinds
    graph = Planner().plan(lower_module(module, gc200))
    assert len(graph.functions) == 2
    executable = compile_graph(graph)
    assert executable.fits


def test_stages_of_an_optimizer_over_layers_fuse() -> None:
    """Each stage goes over all leaves of all layers before the next begins, and repeats layer by layer."""
    shapes = {"w": (6, 4), "v": (4, 6), "d": (3,)}
    optimizer = adamw(1e-2)

    def step(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    rng = np.random.default_rng(0)
    params = [
        {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()} for _ in range(6)
    ]
    args = params, optimizer.init(params), jax.tree.map(lambda p: p * p - 1, params)
    module = module_of(step, args)
    assert [computation.name for computation in module.computations] == ["main"]
    leaves = len(jax.tree.leaves(params))
    large = [i for i in module.entry_computation.instructions if i.results[0].type.shape]
    assert len(large) == leaves
    assert all(len(i.results) == 3 for i in large)  # the moments, and the parameter
    check_engines(step, TARGET, *args)


def member(weights, x):
    """Layers of one member of an ensemble."""
    for w, scale in weights:
        x = x @ w
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale
        x = jax.nn.gelu(x, approximate=False)
    return x


def ensemble(function, weights, x):
    return jnp.stack([function(each, x) for each in weights]).mean()


def members(width: int, dtype: Any = jnp.float32) -> tuple[Any, ...]:
    of = functools.partial(jax.ShapeDtypeStruct, dtype=dtype)
    return [[(of((width, width)), of((width,)))] * 2] * 6, of((width, width))


FORMS = {"plain": lambda f: f, "jit": jax.jit, "checkpoint": jax.checkpoint}


@pytest.mark.parametrize(("form", "share"), [("jit", 1.0), ("checkpoint", 1.5)])
def test_calls_that_wait_for_none_of_each_other_run_side_by_side(form: str, share: float) -> None:
    """Each call of a function of its own ran after the one before: six times as long; what is computed again takes a third more."""

    def cycles(form: str) -> int:
        gradient = jax.grad(functools.partial(ensemble, FORMS[form](member)))
        return ipuxla.jit(gradient, target="gc200").lower(*members(64)).compile().cost_analysis()["cycles"]

    assert cycles(form) <= share * cycles("plain")


@pytest.mark.parametrize("form", FORMS)
def test_an_ensemble_has_the_gradients_of_jax(form: str) -> None:
    shapes, x = members(8)
    random = np.random.default_rng(0)
    weights, x = jax.tree.map(lambda s: random.standard_normal(s.shape).astype(s.dtype), (shapes, x))
    gradient = jax.grad(functools.partial(ensemble, FORMS[form](member)))
    check_close(ipuxla.jit(gradient, target=TARGET)(weights, x), jax.jit(gradient)(weights, x), form)


def test_calls_one_after_another_stay_calls() -> None:
    """Layers that each wait for the one before share their code."""
    block = jax.jit(lambda w, x: member([(w, x[0])] * 2, x))

    def network(weights, x):
        for w in weights:
            x = block(w, x)
        return x

    of = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    module = module_of(network, ([of] * 4, of))
    assert any(isinstance(i.op, Call) for i in module.entry_computation.instructions)
