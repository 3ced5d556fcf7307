"""What is recognized as a function of a library is that function: programs that are one operation away from one are not."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from hlo_passes import ops
from hlo_passes.ir import Builder, Computation, Instruction, Module, TensorType, Value, evaluate_computation
from hlo_passes.ops import Nonlinearity, RowFunction
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from tests.network_functions import KNOWN, with_gradient

SHAPE = (4, 6)
EXACT: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "gelu_erf": functools.partial(jax.nn.gelu, approximate=False),
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
}
"""What the recognized functions are; rows lie along the last dimension."""

POINTS = np.float32([0.3, -1.7, 2.9, -6.1, 9.5, -11.0, 17.0, -21.0, 33.0, 1e-6, -60.0, 1e4, -1e4, 0.02])
"""Where functions of single elements are looked at, far beyond where they are recognized."""
SCALES = (0.3, 3.0, 12.0)
"""How large the elements of rows are."""
EPSILONS = np.r_[0, np.geomspace(1e-5, 0.2, 300)].astype(np.float32)
"""What norms may add to the variance."""
TOLERANCE = 2e-3
"""Of the larger of 1 and the value; what is changed is changed by more."""

BINARY = (ops.Add, ops.Subtract, ops.Multiply, ops.Divide, ops.Maximum, ops.Minimum)
UNARY = (ops.Exponential, ops.Tanh, ops.Logistic, ops.Negate, ops.Abs, ops.Rsqrt, ops.Sqrt, ops.Log)
DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")


@functools.cache
def module_of(name: str) -> Module:
    """Return a known function and its gradient as operations."""
    args = [np.zeros(SHAPE, np.float32)] * 2
    lowered = jax.jit(with_gradient(KNOWN[name][1])).lower(*args)
    return optimize(import_stablehlo(lowered.compiler_ir("stablehlo")), "inline,dce")


# ---- one operation more, less or changed


def mutated(module: Module, at: int, change: Callable[[Builder, Instruction, Value], Value]) -> Module:
    """Return a module with one instruction's result replaced by what ``change`` makes of it."""
    computation = module.entry_computation
    builder = Builder(computation.name)
    env = {v: builder.parameter(v.type) for v in computation.parameters}
    for index, instruction in enumerate(computation.instructions):
        made = builder.clone(instruction, [env[v] for v in instruction.operands])
        if index == at:
            made = (change(builder, builder.instructions[-1], made[0]),)
        env.update(zip(instruction.results, made, strict=True))
    return Module(module.name, (builder.build(*(env[v] for v in computation.results)),), computation.name)


def splat(builder: Builder, value: float, type_: TensorType) -> Value:
    return builder.add(ops.Constant.splat(value, type_))


@st.composite
def changes(
    draw: st.DrawFn, instruction: Instruction
) -> Callable[[Builder, Instruction, Value], Value] | None:
    """Draw a change of an instruction: an operation behind it, one of its operands instead, another operation."""
    type_ = instruction.result.type
    options: list[Any] = []
    number = draw(st.sampled_from([0.9, -0.5, 1.02, 2.0]))
    bound = draw(st.sampled_from([-15.0, -8.0, 0.4, 4.5, 8.0, 15.0]))
    if type_.is_float:
        options += [
            lambda b, i, v: b.add(ops.Multiply(), v, splat(b, number, type_)),
            lambda b, i, v: b.add(ops.Add(), v, splat(b, number / 20, type_)),
            lambda b, i, v: b.add(ops.Maximum(), v, splat(b, bound, type_)),
            lambda b, i, v: b.add(ops.Minimum(), v, splat(b, bound, type_)),
            lambda b, i, v: b.add(
                ops.Select(),
                b.add(ops.Compare("GT"), v, splat(b, bound, type_)),
                b.add(ops.Multiply(), v, splat(b, number, type_)),
                v,
            ),
            lambda b, i, v: b.add(ops.ReducePrecision(8, 3), v),
        ]
    options += [
        lambda b, i, v, k=k: i.operands[k] for k, o in enumerate(instruction.operands) if o.type == type_
    ]
    if isinstance(instruction.op, ops.Constant) and type_.is_float:
        options.append(
            lambda b, i, v: splat(b, float(i.op.value) * number + (not i.op.value) * number, type_)
        )
    for family in (BINARY, UNARY):
        if isinstance(instruction.op, family):
            other = draw(st.sampled_from([c for c in family if not isinstance(instruction.op, c)]))
            options.append(lambda b, i, v, other=other: b.add(other(), *i.operands))
    if isinstance(instruction.op, ops.Compare):
        other = draw(st.sampled_from([d for d in DIRECTIONS if d != instruction.op.direction]))
        options.append(lambda b, i, v: b.add(dataclasses.replace(i.op, direction=other), *i.operands))
    return draw(st.sampled_from(options)) if options else None


# ---- what is recognized, against JAX


def check_recognized(instruction: Instruction) -> None:
    """Compare the region of a recognized function with JAX's function, wherever both are finite numbers."""
    op = instruction.op
    assert isinstance(op, Nonlinearity | RowFunction)
    kind = op.kind.removeprefix("popnn.").removesuffix("_gradient")
    region, shape = instruction.regions[0], instruction.operands[0].type.shape
    if isinstance(op, Nonlinearity):
        region = at_shape(region, POINTS.shape)
        check_function(op.kind, region, EXACT[kind], POINTS)
        return
    function = functools.partial(EXACT[kind], axis=op.dimensions) if kind in EXACT else norm(op.dimensions)
    for scale in SCALES:  # every row is far from constant, so that all have much the same epsilon
        x = scale * sum(np.linspace(-1, 1.2, n).reshape(-1, *[1] * d) for d, n in enumerate(reversed(shape)))
        check_function(op.kind, region, function, x.astype(np.float32))


def check_function(kind: str, region: Computation, function: Any, x: np.ndarray) -> None:
    """Compare a region with a function, or its gradient as a function of its operand or its result.

    What a norm adds to the variance is its own: one of many has to agree.
    """
    g = np.linspace(0.5, 2, x.size, dtype=np.float32).reshape(x.shape)
    rest = [np.float32(0.25) * x] if len(region.parameters) > 2 else []
    is_norm, is_gradient = "norm" in kind, kind.endswith("_gradient")

    def value_and_gradient(epsilon: Any) -> Any:
        value, back = jax.vjp(functools.partial(function, epsilon=epsilon) if is_norm else function, x)
        return value, back(g)[0]

    values, gradients = jax.vmap(value_and_gradient)(EPSILONS if is_norm else EPSILONS[:1])
    sources = [x] if is_norm or not is_gradient else [x, np.asarray(values[0])]
    got = [run(region, source, g, *rest) if is_gradient else run(region, source) for source in sources]
    wanted = np.asarray(gradients) + sum(rest) if is_gradient else np.asarray(values)
    close = [is_close(one, want) for one in got for want in wanted]
    assert any(close), f"{kind} is not what its region computes at {x}"


def norm(dimensions: tuple[int, ...]) -> Any:
    def function(x: Any, epsilon: Any) -> Any:
        mean = x.mean(dimensions, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(dimensions, keepdims=True) + epsilon)

    return function


def at_shape(region: Computation, shape: tuple[int, ...]) -> Computation:
    """Return a region of single elements for operands of another shape."""
    builder = Builder(region.name)
    env = {v: builder.parameter(TensorType(shape, v.type.dtype)) for v in region.parameters}
    for instruction in region.instructions:
        op, operands = instruction.op, [env[v] for v in instruction.operands]
        if isinstance(op, ops.Constant):
            env[instruction.result] = builder.add(ops.Constant(op.value, TensorType(shape, op.type.dtype)))
        elif isinstance(op, ops.BroadcastInDim | ops.Reshape):
            env[instruction.result] = operands[0]
        else:
            env[instruction.result] = builder.add(op, *operands)
    return builder.build(env[region.results[0]])


def run(region: Computation, *values: Any) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(evaluate_computation(region, *map(jnp.asarray, values))[0])


def is_close(got: np.ndarray, want: Any) -> bool:
    want = np.asarray(want)
    finite = np.isfinite(got) & np.isfinite(want)
    with np.errstate(all="ignore"):
        return bool((np.abs(got - want) <= TOLERANCE * np.maximum(1, np.abs(want)))[finite].all())


@hypothesis.given(data=st.data())
def test_one_operation_away_is_not_recognized(data: st.DataObject) -> None:
    module = module_of(data.draw(st.sampled_from(sorted(KNOWN)), "function"))
    instructions = module.entry_computation.instructions
    at = data.draw(st.integers(0, len(instructions) - 1), "instruction")
    change = data.draw(changes(instructions[at]))
    hypothesis.assume(change is not None)
    after = optimize(mutated(module, at, change), "dce,recover-networks,dce")
    for instruction in after.walk():
        if isinstance(instruction.op, Nonlinearity | RowFunction):
            check_recognized(instruction)


def test_the_functions_themselves_are_what_they_say() -> None:
    """The check above passes where nothing is changed, and what it looks at is there: one of every kind."""
    for name in {kind: name for name, (kind, _) in KNOWN.items()}.values():
        found = [
            i
            for i in optimize(module_of(name), "recover-networks,dce").walk()
            if isinstance(i.op, Nonlinearity | RowFunction)
        ]
        assert len(found) == 2
        for instruction in found:
            check_recognized(instruction)
