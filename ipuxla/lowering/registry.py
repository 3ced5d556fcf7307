"""Lowering rules by op class, and the state of one lowering: HLO values to graph tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias, TypeVar

from hlo_passes.ir import Computation, Instruction, Module, Op, TensorType, Value
from hlo_passes.ops import Constant
from ipuxla.lowering.errors import UnsupportedLowering
from tiles.graph import Graph, Location, Sequence, Site, Tensor
from tiles.graph.location import short
from tiles.numerics.dtypes import name_of


@dataclass(frozen=True)
class Function:
    """A computation placed once in the graph: its parameters' and results' tensors."""

    parameters: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


@dataclass
class Lowering:
    """One computation being lowered into a graph.

    Args:
      module: the module, for calls.
      graph: where operations go.
      computation: the computation being walked.
      program: the sequence that steps go to.
      values: the tensor of every value lowered so far; splat constants have none until somebody needs one.
      functions: computations placed as functions, by name.
      prefix: put before the labels of steps that are part of a named function.
    """

    module: Module
    graph: Graph
    computation: Computation
    program: Sequence
    values: dict[Value, Tensor] = field(default_factory=dict[Value, Tensor])
    functions: dict[str, Function] = field(default_factory=dict[str, Function])
    prefix: str = ""

    @cached_property
    def call_counts(self) -> Counter[str]:
        """How often the module calls each computation."""
        return Counter(name for computation in self.module.computations for name in computation.callees)

    def tensor(self, value: Value) -> Tensor:
        """Return the tensor of a value as it stands in the graph now."""
        return self.graph.tensors[self.values[value].name]

    def site(self, location: str, name: str = "") -> Site:
        """Return where builders add the steps of an instruction; ``name`` is "" for the builder's own."""
        return Site(self.graph, name, location, self.program)

    def constant(self, value: Value) -> Constant | None:
        """Return the constant a value is, or None."""
        producer = self.computation.producers.get(value)
        return producer.op if producer is not None and isinstance(producer.op, Constant) else None

    def lower(self, instruction: Instruction) -> None:
        """Lower one instruction by the rule of its op class.

        Raises:
          UnsupportedLowering: the op has no rule.
        """
        rule = RULES.get(type(instruction.op))
        if rule is None:
            raise UnsupportedLowering(
                f"{instruction.op.name} has no lowering onto tiles",
                location=where(instruction),
                try_='engine="hlo" evaluates it without tiles; or express it with the ops listed in docs/ops.md',
            )
        results = rule(self, instruction)
        self.values.update(zip(instruction.results, results, strict=True))


Rule: TypeAlias = Callable[[Lowering, Instruction], tuple[Tensor, ...]]
RULES: dict[type[Op], Rule] = {}
R = TypeVar("R", bound=Rule)


def lowers(*ops: type[Op]) -> Callable[[R], R]:
    """Register the lowering rule of op classes."""

    def keep(rule: R) -> R:
        for op in ops:
            RULES[op] = rule
        return rule

    return keep


def where(instruction: Instruction) -> str:
    """Return the user's source line with scope and transforms, as the graph carries them; "" if none is known.

    Of a file's path there are its name and its folder's: a program is the same wherever its source lies.
    """
    found = instruction.location
    return str(Location(short(found.source), found.scope, found.transforms))


def dtype_of(type_: TensorType) -> str:
    """Return the tiles-side name of an element type."""
    return name_of(type_.np_dtype)
