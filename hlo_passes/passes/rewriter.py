"""One forward walk over a computation that replaces instructions by what patterns make of them.

An instruction that no pattern touches stays the same object, and a computation in which none is touched is
returned
itself: passes built on this say "nothing changed" by identity.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hlo_passes.ir import UNKNOWN, Computation, Instruction, Location, Op, Value, use_counts, value_names
from hlo_passes.ops import Constant
from hlo_passes.passes.base import map_control_regions
from hlo_passes.passes.structure import FreshNames

O = TypeVar("O", bound=Op)  # noqa: E741 (the op class asked for)

Pattern = Callable[[Instruction, "Rewriter"], Value | Sequence[Value] | None]
"""Returns the values that stand for the instruction's results, or None when the pattern does not apply."""

Patterns = Mapping[type[Op], Sequence[Pattern]]


class Rewriter:
    """Builds the new computation; patterns ask it for producers and emit instructions through it.

    Every instruction a pattern emits is itself offered to the patterns, so rewriting goes on until none
    applies.

    Args:
      computation: what to rewrite.
      patterns: the patterns to offer each op class to; those under ``Op`` are offered every op, first.
    """

    def __init__(self, computation: Computation, patterns: Patterns) -> None:
        """Start before the first instruction."""
        self._computation = computation
        self._patterns = patterns
        self._everywhere = tuple(patterns.get(Op, ()))
        self._uses: dict[str, int] | None = None
        self._readers: dict[str, list[Instruction]] | None = None
        self._instructions: list[Instruction] = []
        self._producers: dict[Value, Instruction] = {}
        self._location: Location = UNKNOWN

    def producer(self, value: Value, op: type[O]) -> tuple[O, tuple[Value, ...]] | None:
        """Return the op and operands that make ``value``, if it is an ``op`` (or a subclass)."""
        made = self._producers.get(value)
        return (made.op, made.operands) if made is not None and isinstance(made.op, op) else None

    def maker(self, value: Value) -> Instruction | None:
        """Return the instruction that makes ``value``; None for a parameter."""
        return self._producers.get(value)

    def constant(self, value: Value) -> Constant | None:
        """Return the constant that ``value`` is, if it is one."""
        made = self._producers.get(value)
        return made.op if made is not None and isinstance(made.op, Constant) else None

    def has_one_use(self, value: Value) -> bool:
        """Whether the computation read ``value`` exactly once before it was rewritten."""
        return self._use_counts().get(value.name) == 1

    def is_unread(self, value: Value) -> bool:
        """Whether the computation did not read ``value`` before it was rewritten."""
        return self._use_counts().get(value.name) == 0

    def readers(self, value: Value) -> Sequence[Instruction] | None:
        """Return what read ``value`` before the computation was rewritten; None where a result was it, too."""
        if self._readers is None:
            self._readers = {}
            for instruction in self._computation.instructions:
                for used in dict.fromkeys(instruction.operands):
                    self._readers.setdefault(used.name, []).append(instruction)
        if any(result.name == value.name for result in self._computation.results):
            return None
        return self._readers.get(value.name, [])

    @functools.cached_property
    def _names(self) -> FreshNames:
        return FreshNames(value_names(self._computation))

    def _use_counts(self) -> dict[str, int]:
        if self._uses is None:
            self._uses = {used.name: count for used, count in use_counts(self._computation).items()}
        return self._uses

    def location(self, value: Value) -> Location:
        """Return the source line of what makes ``value``."""
        made = self._producers.get(value)
        return made.location if made is not None else UNKNOWN

    def emit(self, op: Op, *operands: Value, location: Location = UNKNOWN) -> Value:
        """Add an instruction with one result; return the result.

        Args:
          op: the operation.
          *operands: values of the new computation.
          location: source line; by default that of the instruction being replaced.

        Raises:
          ConstraintViolation: the op does not accept these operands.
        """
        (settled,) = self.emit_all(op, operands, location=location)
        return settled

    def emit_all(
        self,
        op: Op,
        operands: Sequence[Value],
        regions: Sequence[Computation] = (),
        location: Location = UNKNOWN,
    ) -> Sequence[Value]:
        """Add an instruction with any number of results and regions; return the results. See ``emit``."""
        types = op.infer(*[value.type for value in operands], regions=regions)
        results = tuple(Value(self._names.new(), type_) for type_ in types)
        where = location if location.is_known else self._location
        return self._settle(Instruction(op, tuple(operands), results, tuple(regions), where))

    def inline(self, computation: Computation, arguments: Sequence[Value]) -> list[Value]:
        """Add the instructions of a closed computation, applied to arguments; return its results."""
        env = dict(zip(computation.parameters, arguments, strict=True))
        for inner in computation.instructions:
            operands = [env[value] for value in inner.operands]
            made = self.emit_all(inner.op, operands, inner.regions, inner.location)
            env.update(zip(inner.results, made, strict=True))
        return [env[value] for value in computation.results]

    def run(self) -> Computation:
        """Return the rewritten computation; the given one when nothing changed."""
        old = self._computation
        if not self._everywhere and old.op_types.isdisjoint(self._patterns):
            return old
        env: dict[Value, Value] = {}
        for instruction in old.instructions:
            self._location = instruction.location
            start = len(self._instructions)
            settled = self._settle(self._with_new_operands(instruction, env))
            if settled is not instruction.results:
                settled = self._keep_names(instruction, settled, start)
                env.update(
                    (was, now) for was, now in zip(instruction.results, settled, strict=True) if was != now
                )
        results = tuple(env.get(value, value) for value in old.results) if env else old.results
        if results == old.results and len(self._instructions) == len(old.instructions):
            if all(new is was for new, was in zip(self._instructions, old.instructions, strict=True)):
                return old
        return Computation(old.name, old.parameters, tuple(self._instructions), results)

    def _with_new_operands(self, instruction: Instruction, env: dict[Value, Value]) -> Instruction:
        instruction = map_control_regions(instruction, lambda region: Rewriter(region, self._patterns).run())
        if not env or env.keys().isdisjoint(instruction.operands):
            return instruction
        operands = tuple(env.get(value, value) for value in instruction.operands)
        return dataclasses.replace(instruction, operands=operands)

    def _settle(self, instruction: Instruction) -> Sequence[Value]:
        """Return the values for the instruction's results: of the first pattern that applies, or its own."""
        for patterns in (self._everywhere, self._patterns.get(type(instruction.op), ())):
            for pattern in patterns:
                replacement = pattern(instruction, self)
                if replacement is not None:
                    return (replacement,) if isinstance(replacement, Value) else replacement
        self._instructions.append(instruction)
        for value in instruction.results:
            self._producers[value] = instruction
        return instruction.results

    def _keep_names(self, instruction: Instruction, settled: Sequence[Value], start: int) -> Sequence[Value]:
        """Give what a pattern emitted last the names of the results it replaces: texts stay comparable."""
        last = self._instructions[-1] if len(self._instructions) > start else None
        if last is None or last.results != tuple(settled):
            return settled
        results = tuple(
            Value(old.name, new.type) for old, new in zip(instruction.results, settled, strict=True)
        )
        renamed = dataclasses.replace(last, results=results)
        self._instructions[-1] = renamed
        self._producers.update((value, renamed) for value in results)
        return results
