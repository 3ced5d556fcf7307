"""Recognized functions of networks and their gradients run on every engine, and reports name them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from hlo_passes.passes import DEFAULT_PIPELINE
from ipuxla.testing import check_engines
from tests.network_functions import KNOWN, with_gradient
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=16)
RNG = np.random.default_rng(4)


def labels(compiled: ipuxla.Compiled) -> set[str]:
    """Return the vertex types of a program."""
    return {group.codelet.label for _, group in compiled.executable.groups()}


CASES = [
    ("jax.nn.gelu", "float32", "popnn::NonLinearityGELU<float>", "popnn::NonLinearityGradGELU<float>"),
    (
        "jax.nn.gelu exact",
        "float16",
        "popnn::NonLinearityGELU_ERF<half>",
        "popnn::NonLinearityGradGELU_ERF<half>",
    ),
    (
        "jax.nn.softmax",
        "float32",
        "popnn::Softmax<float>",
    ),  # its gradient goes in stages here, which is quicker
    ("jax.nn.softmax", "bfloat16", "popnn::Softmax<bfloat16>", "popnn::SoftmaxGradient<bfloat16>"),
    ("jax.nn.log_softmax", "bfloat16", "popnn::LogSoftmax<bfloat16>", "popnn::LogSoftmaxGradient<bfloat16>"),
    ("layer norm", "float32"),
    ("layer norm", "bfloat16"),  # in stages here, too: each of its functions rounds
    ("batch norm", "float32", "popnn::BatchNorm<float>", "popnn::BatchNormGradient<float>"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_values_and_gradients_on_every_engine(case: Any) -> None:
    name, dtype, *vertices = case
    rng = np.random.default_rng(4)  # whichever tests run before
    args = [rng.standard_normal((18, 12)).astype(jnp.dtype(dtype)) for _ in range(2)]
    compiled = check_engines(with_gradient(KNOWN[name][1]), TARGET, *args)
    assert set(vertices) <= labels(compiled)


def test_long_rows_are_composed_of_steps_on_all_tiles() -> None:
    """One row of many elements: no tile could keep up with sixteen."""
    x = RNG.standard_normal((1, 4096)).astype(np.float32)
    compiled = check_engines(jax.nn.softmax, TARGET, x, engines=("fast", "literal"))
    assert "popnn::Softmax<float>" not in labels(compiled)
    assert all(step.name.startswith("popnn.softmax.") for step in compiled.executable.steps)


def test_a_report_names_them() -> None:
    def f(x: Any) -> Any:
        return jax.nn.softmax(jax.nn.gelu(x))

    text = (
        ipuxla.jit(f, target=TARGET)
        .lower(RNG.standard_normal((18, 12)).astype(np.float32))
        .compile()
        .profile(np.ones((18, 12), np.float32))
        .text()
    )
    assert "popnn.softmax" in text and "popnn.gelu" in text


def test_a_named_function_is_cheaper_than_what_it_replaces() -> None:
    """Fewer passes over memory: one vertex instead of two reductions and two expressions."""
    x = np.ones((64, 96), np.float32)
    lowered = ipuxla.jit(jax.nn.softmax, target=TARGET).lower(x)
    plain = lowered.compile(passes=DEFAULT_PIPELINE.replace("recover-networks,", ""))
    assert lowered.compile().cost_analysis()["cycles"] < plain.cost_analysis()["cycles"]


def test_bias_and_nonlinearity_behind_a_convolution_are_one_pass_in_place() -> None:
    """As poplin adds a bias: over the convolution's result; the relu comes along."""

    def f(x: Any, kernel: Any, bias: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.nn.relu(
            jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims) + bias
        )

    shapes = (2, 8, 8, 4), (3, 3, 4, 8), (8,)
    args = [RNG.standard_normal(shape).astype(np.float32) for shape in shapes]
    executable = check_engines(f, TARGET, *args, engines=("fast",)).executable
    last = [group for _, group in executable.groups()][-1]
    (result,) = last.results
    assert last.codelet.label == "popops::Expression<ADD,NonLinearityRELU,float>"
    assert executable.variables[result].storage != result


@pytest.mark.parametrize("dtypes", [("float16", "float32"), ("float32", "float16"), ("bfloat16", "float32")])
def test_an_activation_of_the_library_may_change_the_type(dtypes: Any) -> None:
    """Mixed precision widens or narrows what GELU gives, in one fused expression with what follows and its gradient."""
    given, wanted = (jnp.dtype(name) for name in dtypes)
    x = np.random.default_rng(5).uniform(-2, 2, (24, 20)).astype(given)

    def function(x: Any) -> Any:
        return 2 * jax.nn.gelu(x, approximate=False).astype(wanted)

    def loss(x: Any) -> Any:
        return jnp.sum(function(x).astype(jnp.float32) ** 2)

    check_engines(lambda x: (function(x), jax.grad(loss)(x)), TARGET, x, engines=("fast", "literal"))
    on_chip = ipuxla.jit(jax.grad(loss), target="gc200").lower(jax.ShapeDtypeStruct((64, 256, 128), given))
    assert on_chip.compile().cost_analysis()["cycles"] > 0
