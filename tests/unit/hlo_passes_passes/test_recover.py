"""Functions of networks are recognized however they are written, and only they."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_passes import ops
from hlo_passes.ir import OPS, Builder, Module, TensorType, evaluate_module
from hlo_passes.ops import Nonlinearity, RowFunction
from hlo_passes.passes import optimize, samples
from ipuxla.frontend.importer import import_stablehlo
from tests.comparison import assert_same_bits, results
from tests.models import model
from tests.network_functions import KNOWN, NEARLY, with_gradient

SHAPE = (4, 6)
PARTS = {
    "half a sigmoid": "popnn.sigmoid",
    "relu up to 8": "popnn.relu",
    "gelu up to 8": "popnn.gelu",
    "sigmoid down to -9": "popnn.sigmoid",
    "softmax up to 12": "popnn.softmax",
    "layer norm up to 10": "popnn.layer_norm",
    "silu rounded on the way": "popnn.silu",
    "relu6": "popnn.relu",
    "softplus": "popnn.relu",
    "softmax over rows and columns": "popnn.softmax",
}
"""What is recognized inside a function that is not recognized as a whole."""
PASSES = "inline,dce,recover-networks,dce"


def recovered(function: Any, *args: Any, passes: str = PASSES) -> tuple[Module, Module, list[str]]:
    """Return a function's module before and after, and the kinds recovered, in order."""
    module = import_stablehlo(jax.jit(function).lower(*args).compiler_ir("stablehlo"))
    after = optimize(module, passes)
    kinds = [i.op.kind for i in after.walk() if isinstance(i.op, (Nonlinearity, RowFunction))]
    return module, after, kinds


def zeros(dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(SHAPE, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", KNOWN)
def test_function_and_gradient_are_one_operation_each(name: str, dtype: str) -> None:
    kind, function = KNOWN[name]
    x = zeros(jnp.dtype(dtype))
    assert recovered(function, x)[2] == [f"popnn.{kind}"]
    _, after, kinds = recovered(with_gradient(function), x, x)
    assert sorted(kinds) == [f"popnn.{kind}", f"popnn.{kind}_gradient"]
    rest = {type(i.op) for i in after.entry_computation.instructions} - {Nonlinearity, RowFunction}
    assert rest <= {ops.Reshape, ops.Constant, ops.BroadcastInDim, ops.Convert}


@pytest.mark.parametrize("name", KNOWN)
def test_no_bit_changes(name: str) -> None:
    rng = np.random.default_rng(3)
    args = [rng.standard_normal(SHAPE).astype(np.float32) for _ in range(2)]
    before, after, _ = recovered(with_gradient(KNOWN[name][1]), *args)
    assert_same_bits(results(before, args), results(after, args))


@pytest.mark.parametrize("name", NEARLY)
def test_what_is_nearly_the_same_stays(name: str) -> None:
    _, after, kinds = recovered(NEARLY[name], zeros())
    assert set(kinds) <= {PARTS[name]} if name in PARTS else kinds == []
    entry = after.entry_computation
    last = entry.instructions[-1]
    assert not (isinstance(last.op, (Nonlinearity, RowFunction)) and last.operands == entry.parameters)


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_only_nearly_the_function_says_so(name: str) -> None:
    """Other constants, a tie halved between two operands, an overflow or a NaN on the way: JAX's own have none."""
    x = zeros()
    found = {
        i.op.kind: i.op.is_approximate
        for i in recovered(with_gradient(KNOWN[name][1]), x, x)[1].walk()
        if isinstance(i.op, Nonlinearity)
    }
    approximate = {
        "maximum": {"popnn.relu_gradient"},
        "sigmoid by exp": {"popnn.sigmoid_gradient"},
        "silu by division": {"popnn.silu_gradient"},
    }
    assert {kind for kind, is_so in found.items() if is_so} == approximate.get(name, set())


def test_a_relus_gradient_is_told_by_its_result_where_that_is_narrower() -> None:
    """The result is kept for what follows anyway; the operand in float32 need not be."""

    def function(x: Any, g: Any) -> Any:
        return with_gradient(lambda x: jax.nn.relu((2 * x).astype(jnp.float16)))(x, g)

    rng = np.random.default_rng(3)
    special = [0.0, -0.0, 1e-9, -1e-9, np.nan, np.inf]
    args = [
        np.array([*special, *rng.standard_normal(18)], np.float32).reshape(4, 6),
        np.ones((4, 6), np.float16),
    ]
    before, after, kinds = recovered(function, *args)
    assert sorted(kinds) == ["popnn.relu", "popnn.relu_gradient"]
    entry = after.entry_computation
    gradient = next(i for i in entry.instructions if i.op == Nonlinearity("popnn.relu_gradient"))
    assert gradient.operands[0] == entry.results[0]
    assert_same_bits(results(before, args), results(after, args))


@pytest.mark.parametrize("compared", ["before rounding", "with at least zero"])
def test_a_relus_gradient_is_not_told_by_a_result_that_says_otherwise(compared: str) -> None:
    def function(x: Any, g: Any) -> Any:
        y = x.astype(jnp.float16)
        truth = x > 0 if compared == "before rounding" else y >= 0
        return jax.nn.relu(y), jnp.where(truth, g, 0)

    args = [np.array([1e-9, -1e-9, 0.0, -0.0, 2.0, -2.0], np.float32), np.ones(6, np.float32)]
    before, after, _ = recovered(function, *args)
    assert_same_bits(results(before, args), results(after, args))


def test_functions_of_narrower_operands_are_decided_or_left_alone() -> None:
    for dtype in ("float8_e4m3b11fnuz", "float8_e5m2", "int8", "bool"):
        x = jax.ShapeDtypeStruct((2, 5), jnp.dtype(dtype))
        for function in (jax.nn.gelu, jnp.tanh, jax.nn.softmax):
            lowered = jax.jit(lambda x, f=function: f(x.astype(jnp.bfloat16))).lower(x)
            module = import_stablehlo(lowered.compiler_ir("stablehlo"))
            given = np.arange(10).reshape(x.shape).astype(x.dtype)
            (found,) = evaluate_module(optimize(module, "recover-networks"), given)
            np.testing.assert_array_equal(found, evaluate_module(module, given)[0])


@pytest.mark.parametrize("scale", [0.79788, 0.7978846])
def test_constants_are_compared_with_those_of_the_function(scale: float) -> None:
    def gelu(x: Any) -> Any:
        return 0.5 * x * (1 + jnp.tanh(scale * (x + 0.044715 * x**3)))

    ((op,),) = ([i.op for i in recovered(gelu, zeros())[1].walk() if isinstance(i.op, Nonlinearity)],)
    assert op.kind == "popnn.gelu" and op.is_approximate == (scale == 0.79788)


def test_where_what_is_chosen_by_one_truth_for_all_is_tabulated() -> None:
    """A select by a scalar, sign and quotient of a boolean as a number: tables are not to stop at them."""

    def f(x: Any, p: Any) -> Any:
        chosen = jax.lax.select(p, jnp.tanh(x), x)
        number = (x > 0).astype(x.dtype)
        return chosen + jnp.sign(number) + jnp.floor_divide(x, number)

    assert recovered(f, zeros(), np.bool_(True))[2] == ["popnn.tanh"]


def test_a_gradient_of_something_else_is_not_taken_for_it() -> None:
    def f(x: Any, g: Any) -> Any:
        y = jax.nn.softmax(x)
        return y, y * (g - (g * y).sum(-1, keepdims=True) * 1.01)

    assert recovered(f, zeros(), zeros())[2] == ["popnn.softmax"]


def test_a_part_that_is_needed_elsewhere_is_not_computed_twice() -> None:
    def f(x: Any) -> Any:
        e = jnp.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True), e * 2

    before, after, kinds = recovered(f, zeros())
    assert kinds == [] and len(after.entry_computation.instructions) <= len(
        before.entry_computation.instructions
    )


def test_scaled_and_shifted_norms_and_their_gradients() -> None:
    def loss(x: Any, scale: Any, shift: Any, weights: Any) -> Any:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        y = (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift
        return (y * weights).sum()

    row = np.zeros(SHAPE[1], np.float32)
    kinds = recovered(jax.grad(loss, (0, 1, 2)), zeros(), row, row, zeros())[2]
    assert kinds == ["popnn.layer_norm", "popnn.layer_norm_gradient"]


def test_a_residual_beside_a_norm_is_part_of_its_gradient() -> None:
    """The terms of a gradient are added to what comes along the residual, one after another."""

    def loss(x: Any, weights: Any) -> Any:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        y = x + jnp.sin((x - mean) * jax.lax.rsqrt(variance + 1e-5) @ weights)
        return (y * y).sum()

    _, after, kinds = recovered(jax.grad(loss), zeros(), np.zeros((6, 6), np.float32))
    assert "popnn.layer_norm_gradient" in kinds
    (found,) = (i for i in after.walk() if getattr(i.op, "kind", "") == "popnn.layer_norm_gradient")
    assert len(found.operands) == 3


def test_inside_loops() -> None:
    def f(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, x: jax.nn.softmax(x) + jax.nn.gelu(x), x)

    assert sorted(recovered(f, zeros(), passes="inline,dce,recover-networks,dce")[2]) == [
        "popnn.gelu",
        "popnn.softmax",
    ]


def test_the_tables_functions_are_the_operations() -> None:
    """What a table is computed with agrees with what the operation means, for every operation tabulated."""
    type_, flags = TensorType((3, 5), "f32"), TensorType((3, 5), "i1")
    rng = np.random.default_rng(7)
    x, y = (rng.uniform(0.1, 0.9, (3, 5)).astype(np.float32) for _ in range(2))
    p, q = (rng.integers(0, 2, (3, 5)).astype(bool) for _ in range(2))
    checked = set()
    for cls in OPS.values():
        for op, given, kind in _uses(cls, x, y, p, q):
            builder = Builder("main")
            operands = [builder.parameter(flags if a.dtype == bool else type_) for a in given]
            module = Module("m", (builder.build(builder.add(op, *operands)),), "main")
            function = samples.function_of(module.entry_computation.instructions[0])
            assert function is not None, kind
            (want,) = evaluate_module(module, *given)
            np.testing.assert_allclose(function(*given), np.asarray(want), rtol=1e-5, err_msg=kind)
            checked.add(type(op))
    assert {*samples._UNARY, *samples._BINARY, ops.Compare, ops.Select, ops.Clamp, ops.Convert} == checked


def _uses(cls: Any, x: Any, y: Any, p: Any, q: Any) -> Any:
    if cls is ops.Compare:
        return [(cls(d), [x, y], f"compare {d}") for d in ("EQ", "NE", "LT", "LE", "GT", "GE")]
    special = {
        ops.Select: (ops.Select(), [p, x, y]),
        ops.Clamp: (ops.Clamp(), [x * 0.5, y, x]),
        ops.Convert: (ops.Convert("f32"), [p]),
        ops.ReducePrecision: (ops.ReducePrecision(8, 23), [x]),
    }
    if cls in special:
        return [(*special[cls], cls.name)]
    logical = cls in (ops.And, ops.Or, ops.Xor, ops.Not)
    if cls in samples._BINARY:
        return [(cls(), [p, q] if logical else [x, y], cls.name)]
    return [(cls(), [p if logical else x], cls.name)] if cls in samples._UNARY else []


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("gpt", {"gelu": 2, "relu": 6, "softmax": 2}),
        ("bert-layer-training", {"gelu_erf": 2, "relu": 4, "softmax": 2}),
        ("nerf-mlp", {"relu": 10, "sigmoid": 2}),
    ],
)
def test_ordinary_networks_keep_their_functions(name: str, kinds: dict[str, int]) -> None:
    """What is recognized in training steps, functions and gradients together; a proof that fails would show here."""
    found = model(name, "small")
    prepared = f"expand,inline,expand-fft,legalize-complex,dce,{PASSES}"
    _, _, names = recovered(found.function, *found.arguments, passes=prepared)
    counted = Counter(kind.removeprefix("popnn.").removesuffix("_gradient") for kind in names)
    assert counted == kinds
