"""The fast engine: logical arrays, every compute set in its whole-array form, one traceable function.

What parallel splits and exchange do not change is not emulated; split reductions are kept as partials,
so sums round as the plan says. Nothing is read on the host: trip counts are extra outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tiles.compiler import CopyStep, Executable, ExecuteStep
from tiles.engine.interface import FLOAT, Engine, check_inputs
from tiles.engine.trace import Trace
from tiles.engine.whole import whole

Env = dict[str, jax.Array]


class FastEngine(Engine):
    """See the module's text. ``strict=False`` lets XLA fuse partials with their combination."""

    name = "fast"

    def __init__(self, executable: Executable, arithmetic: str = FLOAT, strict: bool = True) -> None:
        """Prepare the jitted function; it compiles at the first run."""
        super().__init__(executable, arithmetic)
        self.strict = strict
        self._static: list[int | None] = []
        self._jitted = jax.jit(self._call)

    def run(self, *inputs: Any) -> tuple[list[jax.Array], Trace]:
        """Run once; see ``Engine.run``."""
        check_inputs(self.executable, inputs)
        with jax.enable_x64(True):
            outputs, counted = self._jitted(*inputs)
        dynamic = iter(counted)
        counts = tuple(int(next(dynamic)) if count is None else count for count in self._static)
        return list(outputs), Trace(counts, self.name, self.arithmetic)

    def trace(self, *inputs: Any) -> list[jax.Array]:
        """Return the outputs as a JAX-traceable function of the inputs."""
        check_inputs(self.executable, inputs)
        with jax.enable_x64(True):
            return list(self._call(*inputs)[0])

    def _call(self, *inputs: Any) -> tuple[tuple[jax.Array, ...], tuple[Any, ...]]:
        """Return the outputs, and how often each step ran whose count depends on data."""
        exe = self.executable
        env: Env = {name: self.enter(name, value) for name, value in zip(exe.inputs, inputs, strict=True)}
        env |= {v.name: self.enter(v.name, v.value) for v in exe.variables.values() if v.value is not None}
        counts: list[Any] = [0] * len(exe.steps)
        self._run(exe.program, env, counts)
        self._static = [count if isinstance(count, int) else None for count in counts]
        counted = tuple(count for count in counts if not isinstance(count, int))
        return tuple(self._read(env, name) for name in exe.outputs), counted

    def _read(self, env: Env, name: str) -> jax.Array:
        variable = self.executable.variables[name]
        if variable.view_of:
            return self._read(env, variable.view_of).reshape(variable.shape)
        if name not in env:  # a tensor without elements is never written
            return jnp.zeros(variable.shape, self.carried(variable.dtype))
        return env[name]

    def _run(self, tree: Any, env: Env, counts: list[Any]) -> None:
        if isinstance(tree, int):
            self._step(tree, env)
            counts[tree] = counts[tree] + 1
            return
        kind, *rest = tree
        if kind == "sequence":
            for step in rest:
                self._run(step, env, counts)
        elif kind == "repeat":
            self._loop(
                rest[1],
                env,
                counts,
                lambda body, carry: lax.fori_loop(0, rest[0], lambda _, c: body(c), carry),
            )
        elif kind == "while":
            self._while(rest, env, counts)
        else:
            self._switch(rest[0], rest[1:], env, counts)

    def _step(self, number: int, env: Env) -> None:
        step = self.executable.steps[number]
        if isinstance(step, CopyStep):
            env[step.destination] = self._copy(step, env)
            return
        for group in step.groups:
            operands = [self._read(env, o.variable) for o in group.operands]
            results = self.arithmetic_of(partial(_whole, group), self.operand_dtypes(group))(*operands)
            if self.strict and group.plan.split_reductions(group.form):
                results = lax.optimization_barrier(results)
            env.update(zip(group.results, results, strict=True))

    def _copy(self, step: CopyStep, env: Env) -> jax.Array:
        sources = [self._read(env, name) for name in step.sources]
        if step.axis is None:
            return sources[0].reshape(self.executable.variables[step.destination].shape)
        return jnp.concatenate(sources, axis=step.axis)

    def _carry(self, trees: list[Any], env: Env) -> Env:
        """Return what a piece of control may write, with zeros for what has no value yet."""
        names = sorted(
            {name for tree in trees for number in steps_of(tree) for name in written(self.executable, number)}
        )
        variables = self.executable.variables
        return {
            n: env[n] if n in env else jnp.zeros(variables[n].shape, self.carried(variables[n].dtype))
            for n in names
        }

    def _body(self, tree: Any, env: Env) -> Any:
        numbers = sorted(set(steps_of(tree)))

        def body(carry: tuple[Env, tuple[Any, ...]]) -> tuple[Env, tuple[Any, ...]]:
            inner = env | carry[0]
            counts: list[Any] = [0] * len(self.executable.steps)
            for number, count in zip(numbers, carry[1], strict=True):
                counts[number] = count
            self._run(tree, inner, counts)
            return {n: inner[n] for n in carry[0]}, tuple(jnp.asarray(counts[n], jnp.int64) for n in numbers)

        return body, numbers

    def _loop(self, tree: Any, env: Env, counts: list[Any], run: Any) -> None:
        body, numbers = self._body(tree, env)
        carry = self._carry([tree], env), tuple(jnp.asarray(counts[n], jnp.int64) for n in numbers)
        self._finish(run(body, carry), numbers, env, counts)

    def _while(self, rest: list[Any], env: Env, counts: list[Any]) -> None:
        """Run the condition once, then body and condition while the predicate it leaves is true."""
        condition, predicate, body_tree = rest
        self._run(condition, env, counts)
        tree = ["sequence", body_tree, condition]
        go = lambda c: self._read(env | c[0], predicate).reshape(())  # noqa: E731
        self._loop(tree, env, counts, lambda body, carry: lax.while_loop(go, body, carry))

    def _switch(self, index: str, branches: list[Any], env: Env, counts: list[Any]) -> None:
        carry = self._carry(branches, env)
        numbers = sorted({n for tree in branches for n in steps_of(tree)})
        start = tuple(jnp.asarray(counts[n], jnp.int64) for n in numbers)

        def branch(tree: Any) -> Any:
            body, mine = self._body(tree, env)
            at = [numbers.index(n) for n in mine]

            def run(operand: tuple[Env, tuple[Any, ...]]) -> tuple[Env, tuple[Any, ...]]:
                values, inner = body((operand[0], tuple(operand[1][i] for i in at)))
                all_counts = list(operand[1])
                for i, count in zip(at, inner, strict=True):
                    all_counts[i] = count
                return values, tuple(all_counts)

            return run

        which = self._read(env, index).reshape(()).astype(jnp.int32)
        which = jnp.where((which < 0) | (which >= len(branches)), len(branches) - 1, which)
        self._finish(
            lax.switch(which, [branch(tree) for tree in branches], (carry, start)), numbers, env, counts
        )

    @staticmethod
    def _finish(carry: Any, numbers: list[int], env: Env, counts: list[Any]) -> None:
        env.update(carry[0])
        for number, count in zip(numbers, carry[1], strict=True):
            counts[number] = count


def _whole(group: Any, *operands: jax.Array) -> tuple[jax.Array, ...]:
    return whole(group, operands)


def steps_of(tree: Any) -> Iterator[int]:
    """Yield the step numbers of a control tree."""
    if isinstance(tree, int):
        yield tree
        return
    kind, *rest = tree
    first = {"sequence": 0, "repeat": 1, "while": 0, "switch": 1}[kind]  # what precedes are counts and names
    bodies = [body for body in rest[first:] if not isinstance(body, str)]
    for body in bodies:
        yield from steps_of(body)


def written(executable: Executable, number: int) -> tuple[str, ...]:
    """Return the variables a step writes."""
    step = executable.steps[number]
    if isinstance(step, ExecuteStep):
        return tuple(result for group in step.groups for result in group.results)
    return (step.destination,)
