"""What is cheap is computed again where that leaves least to keep; no bit changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given

from hlo_passes.ir import Computation, Module
from hlo_passes.ops import OptimizationBarrier
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from tests.budgets import PLAN, budget
from tests.comparison import assert_same_bits, results
from tests.models.base import Values
from tests.models.layers import batch_norm_in_training, batch_norm_params

SIZE, BIG = 256, 4096
"""Elements of a value that may be kept, and of the one in the middle that makes it the fullest place."""


def both(function: Callable[..., Any], *arguments: Any) -> tuple[Module, Module]:
    """Return a function's module before and after the pass."""
    module = import_stablehlo(jax.jit(function).lower(*arguments).compiler_ir("stablehlo"))
    before = optimize(module, "inline,recover-networks,dce")
    return before, optimize(before, "rematerialize,dce")


def middle(computation: Computation) -> int:
    """Return the position of the big value that is not a broadcast."""
    return next(
        n
        for n, i in enumerate(computation.instructions)
        if i.op.name == "stablehlo.exponential" and i.result.type.size == BIG
    )


def kept_bytes(module: Module) -> int:
    """Return the bytes of values made before the middle and read after it."""
    entry = module.entry_computation
    at = middle(entry)
    made = {v for i in entry.instructions[:at] for v in i.results}
    read = {v for i in entry.instructions[at + 1 :] for v in i.operands}
    return sum(v.type.size_bytes for v in made & read)


def through_the_middle(x: Any) -> Any:
    """Return a number that depends on many others."""
    return jnp.exp(jnp.broadcast_to(x, (BIG,))).sum()


STEPS = st.one_of(
    st.tuples(st.sampled_from(["float32", "float16"]), st.integers(0, 99)),
    st.tuples(st.sampled_from(["add", "multiply", "exp"]), st.integers(0, 99), st.integers(0, 99)),
)


@budget(PLAN)
@given(st.lists(STEPS, min_size=1, max_size=8), st.sets(st.integers(0, 99), min_size=1, max_size=4))
def test_the_fewest_bytes_are_kept(steps: list[tuple[Any, ...]], chosen: set[int]) -> None:
    operands: list[tuple[int, ...] | None] = []

    def function(x: Any, y: Any) -> Any:
        operands[:] = [None, None]
        values = [jnp.exp(x), jnp.exp(y)]
        for kind, *places in steps:
            a, *others = (p % len(values) for p in places)
            made = values[a]
            if kind == "exp":
                made, read = jnp.exp(made), None
            elif others:
                other = values[others[0]].astype(made.dtype)
                read = (a, others[0])
                if other.dtype != values[others[0]].dtype:
                    values.append(other)
                    operands.append((others[0],))
                    read = (a, len(values) - 1)
                made = made + other if kind == "add" else made * other
            else:
                made, read = made.astype(kind), (a,)
            if read is None or made is not values[a]:
                values.append(made)
                operands.append(read)
        sizes[:] = [v.dtype.itemsize * SIZE for v in values]
        total = through_the_middle(x[0])
        reads[:] = sorted({c % len(values) for c in chosen})
        return [(values[c] * total.astype(values[c].dtype)).sum() for c in reads]

    sizes: list[int] = []
    reads: list[int] = []
    given_ = [np.linspace(-1, 1, SIZE, dtype=np.float32), np.linspace(0, 2, SIZE, dtype=np.float32)]
    _, after = both(function, *given_)
    assert kept_bytes(after) == least_bytes(operands, sizes, reads)


def least_bytes(operands: list[tuple[int, ...] | None], sizes: list[int], reads: list[int]) -> int:
    """Return the fewest bytes of values from which those that are read can be computed, trying all."""

    def can_make(value: int, kept: tuple[int, ...]) -> bool:
        from_ = operands[value]
        return value in kept or (from_ is not None and all(can_make(v, kept) for v in from_))

    return min(
        sum(sizes[v] for v in kept)
        for count in range(len(sizes) + 1)
        for kept in itertools.combinations(range(len(sizes)), count)
        if all(can_make(value, kept) for value in reads)
    )


def test_a_batch_norm_keeps_what_it_normalizes_and_what_follows_it() -> None:
    """Of four or five tensors for the gradient two in half precision stay: the operand, and the relu's result."""
    new = Values(False, "float16")
    params, x = batch_norm_params(new, 8), new.normal(4, 6, 6, 8)
    trained = {k: params[k] for k in ("scale", "bias")}

    def loss(trained: Any, x: Any) -> Any:
        made = jnp.einsum("bijc,cd->bijd", x, jnp.eye(8, dtype=x.dtype))
        y = jax.nn.relu(batch_norm_in_training(trained, params, made)[0])
        y = jnp.einsum("bijc,cd->bijd", y, trained["scale"][:, None].astype(y.dtype))
        return through_the_middle(y.astype(jnp.float32).sum())

    before, after = both(jax.grad(loss, argnums=(0, 1)), trained, x)
    assert kept_bytes(before) > 3.5 * x.nbytes
    assert kept_bytes(after) < 2.25 * x.nbytes
    flat = [*jax.tree.leaves(trained), x]
    assert_same_bits(results(before, flat), results(after, flat))


def test_what_is_cheap_to_keep_stays() -> None:
    def function(x: Any) -> Any:
        y = jnp.exp(x)
        return (y * through_the_middle(x[0])).sum()

    before, after = both(function, np.ones(SIZE, np.float32))
    assert after is before


def test_what_must_be_written_anew_is_kept() -> None:
    """A contraction reads its operands from memory."""

    def function(x: Any) -> Any:
        y = jnp.exp(x.astype(jnp.float16)).astype(jnp.float32)
        return jnp.dot(y, y * through_the_middle(x[0]))

    before, after = both(function, np.ones(SIZE, np.float32))
    assert kept_bytes(after) == kept_bytes(before) == 4 * SIZE
    assert not any(isinstance(i.op, OptimizationBarrier) for i in after.walk())


def test_where_little_is_kept_nothing_is_computed_again() -> None:
    key = jax.ShapeDtypeStruct((2,), "uint32")
    before, after = both(jax.random.split, key)
    assert after is before
