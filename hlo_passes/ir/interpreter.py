"""Evaluate a module op by op with JAX: the meaning of a program, and the outside witness for every engine.

Everything here is traceable by ``jax.jit``. 64-bit types keep their width whatever ``jax_enable_x64`` says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from hlo_passes._jax_compat import jit, optimization_barrier, set_xla_metadata
from hlo_passes.errors import EvaluationError
from hlo_passes.ir.module import Computation, Instruction, Module
from hlo_passes.ir.types import TensorType
from hlo_passes.platforms import default_platform

Datum: TypeAlias = Any
"""What an evaluation computes with: JAX's arrays, or what an ``Apply`` makes of them."""

Apply = Callable[..., Sequence[Datum]]
"""``apply(function, *operands)`` returns the results of the function, or its own reading of them."""


class Decisions:
    """What an evaluation asks of what is around it: loops and branches before they act, transfers for items.

    This one lets loops and branches act on what they computed, and has no host to exchange items with.

    Attributes:
      state: JAX values that loops and branches carry through their bodies, since a body that is traced cannot
        write to anything outside.
    """

    state: Datum = ()

    def take(self, decision: Datum) -> Datum:
        """Return what to do in the place of ``decision``, a predicate or the index of a branch."""
        return decision

    def goes_on(self, predicate: Datum) -> Datum:
        """Return whether a loop runs another round, whose condition is ``predicate``."""
        return self.take(predicate)

    def receive(self, stream: str, type_: TensorType) -> Datum:
        """Return the next item of a stream from the host."""
        raise EvaluationError(f"an item of stream {stream!r} ({type_}) is read where there is no host")

    def send(self, stream: str, value: Datum) -> None:
        """Append an item to a stream to the host."""
        raise EvaluationError(f"an item is sent to stream {stream!r} where there is no host")

    def show(self, message: str, values: Sequence[Datum]) -> None:
        """Show values as a message says."""
        raise EvaluationError("something is printed where there is no host")

    def stop(self, message: str, value: Datum) -> None:
        """End the program with a message and a value."""
        raise EvaluationError(f"the program stops where there is no host: {message}")


@dataclass(frozen=True, eq=False)
class Closure:
    """A computation ready to run: with the module its calls name, the interception and decisions in force."""

    computation: Computation
    module: Module | None = None
    apply: Apply | None = None
    decisions: Decisions = field(default_factory=Decisions)

    def __call__(self, *arrays: Datum) -> tuple[Datum, ...]:
        """Evaluate the computation."""
        return evaluate_computation(
            self.computation, *arrays, module=self.module, apply=self.apply, decisions=self.decisions
        )


def as_closure(region: Computation | Closure) -> Closure:
    """Return a callable for a region handed to ``Op.evaluate``."""
    return region if isinstance(region, Closure) else Closure(region)


def as_computation(region: Computation | Closure) -> Computation:
    """Return the computation of a region handed to ``Op.evaluate``."""
    return region.computation if isinstance(region, Closure) else region


def evaluate_module(
    module: Module, *arrays: Datum, apply: Apply | None = None, decisions: Decisions | None = None
) -> tuple[Datum, ...]:
    """Evaluate the entry computation.

    Args:
      module: a valid module.
      *arrays: one array per parameter of the entry computation, of exactly its shape and element type (under
        an ``apply`` that changes representation, whatever that expects).
      apply: called for every operation as ``apply(function, *operands)`` instead of ``function(*operands)``;
        the function maps arrays to a tuple of arrays. ``function.func.__self__`` is the operation. Calls,
        fusions, loops and branches are looked into rather than applied as a whole; the body of a reduction is
        part of the reduction's function.
      decisions: asked before every round of a loop and every branch, and for items of streams.

    Returns:
      The entry computation's results.

    Raises:
      EvaluationError: number, shape or element type of an array differ from the parameter's.
    """
    entry = module.entry_computation
    with jax.enable_x64(True):
        if apply is None:
            arrays = tuple(_check_arguments(entry, arrays))
        return evaluate_computation(entry, *arrays, module=module, apply=apply, decisions=decisions)


def one_by_one(function: Any, *operands: Any) -> tuple[Any, ...]:
    """Apply an operation so that XLA, which may compile it with others, neither merges nor reassociates across it.

    An ``apply`` of ``evaluate_module``. It is what makes a compiled evaluation a witness: XLA:CPU (jaxlib 0.10.2)
    makes one dynamic_slice of two and clamps once where each is to be clamped. It also computes an update while it writes
    it, over elements that the update follows from: updates are computations of their own, since a barrier does not help.
    And it may choose an order of elements, in memory, for which it then has no code: it drops barriers first, and
    makes one batched contraction of that and a transpose whose result another one reads. Of the exponential of what it knows
    to be NaN it makes any numbers.
    """
    op = function.func.__self__
    if op.replaces_elements and default_platform() == "cpu":
        with set_xla_metadata(inlineable="false"):
            updates: tuple[Any, ...] = jit(_same)(*operands[1:])
        operands = (operands[0], *updates)
    if op.is_apart and default_platform() == "cpu":
        with set_xla_metadata(inlineable="false"):
            results: tuple[Any, ...] = jit(lambda *arrays: tuple(function(*arrays)))(*operands)
    else:
        results = tuple(function(*operands))
    return tuple(optimization_barrier(results)) if results else results


def _same(*operands: Any) -> tuple[Any, ...]:
    return operands


def evaluate_computation(
    computation: Computation,
    *arrays: Datum,
    module: Module | None = None,
    apply: Apply | None = None,
    decisions: Decisions | None = None,
) -> tuple[Datum, ...]:
    """Evaluate one computation; arguments are trusted to match its parameters. See ``evaluate_module``."""
    env = dict(zip(computation.parameters, arrays, strict=True))
    for instruction in computation.instructions:
        operands = [env[value] for value in instruction.operands]
        results = evaluate_instruction(
            instruction, *operands, module=module, apply=apply, decisions=decisions
        )
        env.update(zip(instruction.results, results, strict=True))
    return tuple(env[value] for value in computation.results)


def evaluate_instruction(
    instruction: Instruction,
    *operands: Datum,
    module: Module | None = None,
    apply: Apply | None = None,
    decisions: Decisions | None = None,
) -> tuple[Datum, ...]:
    """Evaluate one instruction. See ``evaluate_module``; the caller holds ``jax.enable_x64(True)``."""
    op = instruction.op
    if op.is_transfer:
        return tuple(op.exchange(decisions or Decisions(), *operands))
    bodies = list(instruction.regions)
    if op.callees:
        if module is None:
            raise EvaluationError(f"{op.name} calls {op.callees[0]!r}, which only a module can resolve")
        bodies += [module.computation(name) for name in op.callees]
    inner = apply if op.is_control else None
    asked = (op.is_control and decisions) or Decisions()
    closures = [Closure(body, module, inner, asked) for body in bodies]
    function = functools.partial(op.evaluate, regions=closures)
    if apply is None or op.is_control:
        return tuple(function(*operands))
    return tuple(apply(function, *operands))


def _check_arguments(entry: Computation, arrays: Sequence[Datum]) -> list[jax.Array]:
    if len(arrays) != len(entry.parameters):
        raise EvaluationError(f"@{entry.name}: expected {len(entry.parameters)} arrays, got {len(arrays)}")
    checked: list[jax.Array] = []
    for parameter, array in zip(entry.parameters, arrays, strict=True):
        value = jnp.asarray(array)
        got = TensorType.of(value)
        if got != parameter.type:
            raise EvaluationError(f"@{entry.name} {parameter}: expected {parameter.type}, got {got}")
        checked.append(value)
    return checked
