"""One graph being planned: the planned graph so far, and what waits for a layout.

An input, or a variable that copies write, lies nowhere until something says where: its first reader, or what is copied
into it. Steps that write such a variable are planned when it has been placed, and stand where they were in the program.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tiles.cached import cached_property
from tiles.errors import InvalidGraph, InvalidPlan
from tiles.graph import (
    ACROSS,
    CONSTANT,
    INPUT,
    TEMPORARY,
    VARIABLE,
    Call,
    Copy,
    Graph,
    Layout,
    Operation,
    Plan,
    Repeat,
    Sequence,
    Tensor,
    bodies_of,
    linear_layout,
)
from tiles.graph.layout import align_up
from tiles.plan import CODE_PRICE
from tiles.planning.lanes import Area, Lane
from tiles.planning.loads import Loads
from tiles.planning.loops import Loop, outermost
from tiles.planning.policy import Policy

MOST_MOVED = 0.75
"""The share of all tiles up to which something may end at the last tile instead of beginning at the first."""

FEW = 64
"""Elements that may share a tile with as few others of another tensor: they are read together more often than not."""

SMALL_STACK = 1 / 400
"""Share of a chip's memory up to which what an earlier loop has stacked is copied before another that reads it on every trip. Both lie
there then. Recurrent networks have many small stacks; long sequences that are computed in slices have few, which crowd the memory."""

MOST_RUNS = 4
"""How many runs of a body count at most when its exchange code is weighed against its cycles."""

T = TypeVar("T")
T_Placed = TypeVar("T_Placed", Layout, Plan)
Cost = tuple[bool, float]
"""What a way to compute something costs: whether its temporaries exceed their share of a tile, and cycles."""


@dataclass
class Deferred:
    """A write to a variable that is not placed yet.

    Attributes:
      slot: where in the program it will stand.
      write: plans it into the slot.
      source: what is copied, "" where it is computed.
      scope: the innermost loop, branch or function that the write is in, counted from outside.
    """

    slot: Sequence
    write: Callable[[Sequence], None]
    source: str
    scope: int


class Planning:
    """The state of one graph's planning.

    Attributes:
      given: the graph as recorded.
      graph: the graph being planned.
      policy: how plans are chosen.
      pins: plans pinned to steps, by name.
      renamed: by the name of a choice's result, that of the tensor which holds it in the way that was taken.
      estimates: costs of alternatives, by what they compute and where their operands lie.
      answers: what was found for a question, with all that the answer depends on: equal layers ask once.
      runs: how often the body that is planned runs, as far as that is known.
      loads: what tiles compute side by side; None where ways to compute something are priced by themselves.
      lanes: what may run side by side, by ``lanes.key_of``.
      lane: that of the choice whose operations are planned, if it is in one.
      aside: tensors that one of several operations side by side has left on tiles of its own.

    A tensor's layout counts the tiles of the IPU that it lies on, as plans of operations there do, so that equal layers
    on several IPUs have equal plans; ``planner.across`` makes them the replica's when all is planned.
    """

    def __init__(
        self,
        given: Graph,
        policy: Policy,
        pins: Mapping[str, Plan],
        estimates: dict[Hashable, tuple[Cost, ...]] | None = None,
    ) -> None:
        """Start with the inputs of a recorded graph."""
        self.given, self.policy, self.pins = given, policy, pins
        self.graph = given.successor()
        self.renamed: dict[str, str] = {}
        self.estimates = {} if estimates is None else estimates
        self.answers: dict[Hashable, Any] = {}
        self._first: dict[Any, Any] = {}
        self.loads: Loads | None = Loads(given.target.num_tiles)
        self.lanes: dict[str, Lane] = {}
        self.lane: Lane | None = None
        self.aside: set[str] = set()
        self.runs = 1
        self._deferred: dict[str, list[Deferred]] = {}
        self._scope = 0
        self._around: list[list[Loop]] = [[]]
        self._rotation = 0
        self._turns: dict[int, int] = {}
        self._brought: list[dict[tuple[str, int], Tensor]] = [{}]
        self.donated = {given.inputs[i] for i in given.donated}
        for name in given.inputs:
            self.tensor(name)

    @property
    def code_price(self) -> float:
        """Cycles that a byte of exchange code is worth, each time the present body runs.

        Its code is there once, so that it is worth fewer where it runs more often; where code will be crowded it is dear
        everywhere.
        """
        price = self.policy.code_price
        return price if price > CODE_PRICE else price / max(1, min(self.runs, MOST_RUNS))

    @cached_property
    def runs_of(self) -> dict[str, int]:
        """How often each function runs, as far as that is known."""
        found: dict[str, int] = dict.fromkeys(self.given.functions, 0)

        def count(sequence: Sequence, times: int) -> None:
            for step in sequence.steps:
                if isinstance(step, Call):
                    found[step.function] += times
                for body in bodies_of(step):
                    count(body, times * step.count if isinstance(step, Repeat) else times)

        count(self.given.program, 1)
        for name, body in reversed(self.given.functions.items()):
            count(body, max(1, found[name]))
        return found

    def answer(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return what was found for a key, which says all that it depends on; find it the first time."""
        if key not in self.answers:
            self.answers[key] = find()
        return self.answers[key]

    def same(self, value: T) -> T:
        """Return the first value that was equal: keys of what was found are then the same objects, and soon compared."""
        found: T = self._first.setdefault(value, value)
        return found

    def tensor(self, name: str) -> Tensor:
        """Return a tensor as it stands in the planned graph, by the name that a recorded step gives it.

        Raises:
          InvalidGraph: there is none of that name.
        """
        name = self.renamed.get(name, name)
        if name not in self.graph.tensors:
            recorded = self.given.tensors.get(name)
            if recorded is None:
                raise InvalidGraph(f"a step names tensor {name!r}, which the graph does not have")
            kind = TEMPORARY if recorded.kind == VARIABLE else recorded.kind
            self.graph.tensors[name] = replace(recorded, kind=kind, view_of="")
        return self.graph.tensors[name]

    def is_variable(self, name: str) -> bool:
        """Return whether a tensor is one that copies write and that may still be placed."""
        tensor = self.given.tensors.get(name)
        return tensor is not None and tensor.kind == VARIABLE and self.tensor(name).layout is None

    def place(self, name: str, layout: Layout, ipu: int | None = None) -> Tensor:
        """Say where a tensor lies, and plan what waits for that.

        Args:
          name: of the tensor.
          layout: counts the tiles of the IPU that it lies on already, or lies on from now.
          ipu: that it lies on if it lies on none yet; by default that which is planned for at present.
        """
        with self.graph.at(self.graph.ipu if ipu is None else ipu):
            tensor = self.graph.set_layout(self.tensor(name).name, layout)
        for deferred in self._deferred.pop(tensor.name, ()):
            if deferred.source:
                self.follow(deferred.source, tensor)
            deferred.write(deferred.slot)
        return tensor

    def placed(self, name: str, ipu: int | None = None) -> Tensor:
        """Return a tensor, spread evenly over the tiles in row-major order if nothing has placed it.

        Args:
          name: of the tensor.
          ipu: on which it is spread if it lies on none yet; by default that which is planned for at present.
        """
        tensor = self.tensor(name)
        if tensor.layout is not None:
            return tensor
        ipu = self.graph.ipu if ipu is None else ipu
        with self.graph.at(ipu if tensor.ipu is None else tensor.ipu):
            layout = linear_layout(tensor.shape, tensor.dtype, self.graph.target.num_tiles)
            base = self.rotated_base(int(layout.tiles.max()) + 1, math.prod(tensor.shape))
            return self.place(name, replace(layout, base=base))

    def follow(self, name: str, other: Tensor) -> None:
        """Let a tensor that is not placed lie as another one of its shape, from or to which it is copied.

        On another IPU it lies on the tiles of the same numbers.
        """
        tensor = self.tensor(name)
        if tensor.layout is not None or other.layout is None or tensor.shape != other.shape:
            return
        if tensor.ipu in (None, other.ipu) or ACROSS not in (tensor.ipu, other.ipu):
            self.place(name, other.layout, other.ipu)

    def here(self, name: str, program: Sequence, location: str = "") -> Tensor:
        """Return a tensor as an operation on the present IPU reads it: itself, or a copy on this IPU.

        A copy lies on the tiles of the same numbers, so that every tile sends its part to one other. Several operations
        of a body, and of those inside it, read one copy; of what copies write again each has its own.
        """
        graph, tensor = self.graph, self.tensor(name)
        if tensor.ipu in (None, graph.ipu):
            return tensor
        tensor = self.placed(name)
        assert tensor.layout is not None and tensor.ipu is not None
        if graph.ipu == ACROSS:
            return replace(tensor, layout=self.lifted(tensor.layout, tensor.ipu), ipu=ACROSS)
        key = tensor.name, graph.ipu
        found = next((brought[key] for brought in reversed(self._brought) if key in brought), None)
        if found is not None:
            return found
        layout = tensor.layout
        if tensor.ipu == ACROSS:
            layout = linear_layout(tensor.shape, tensor.dtype, graph.target.num_tiles)
        made = graph.add_tensor(
            tensor.shape, tensor.dtype, f"{tensor.name}.ipu{graph.ipu}", layout, location=location
        )
        if has_elements(tensor):
            program.add(Copy(made.name, (tensor.name,), None, location))
        if name not in self._changing:
            self._brought[-1][key] = made
        return made

    @cached_property
    def _changing(self) -> set[str]:
        """Recorded tensors whose elements may be others at another step: variables, what is written twice, and views of it."""
        given, written = self.given, Counter[str]()

        def count(sequence: Sequence) -> None:
            for step in sequence.steps:
                written.update(step.results if isinstance(step, Operation) else ())
                destination = getattr(step, "destination", "")
                written.update([destination] if destination else [])
                for body in bodies_of(step):
                    count(body)

        for sequence in (given.program, *given.functions.values()):
            count(sequence)
        own = {INPUT: 1, CONSTANT: 1, VARIABLE: 2}
        changing = {n for n, t in given.tensors.items() if written[n] + own.get(t.kind, 0) > 1}
        return changing | {n for n, t in given.tensors.items() if t.view_of and given.storage(n) in changing}

    def lifted(self, layout: T_Placed, ipu: int | None) -> T_Placed:
        """Return a layout or plan on an IPU's tiles as one on those of the replica."""
        if not ipu or ipu == ACROSS:
            return layout
        return replace(layout, base=layout.base + ipu * self.graph.chip.num_tiles)

    def pinned(self, name: str) -> Plan | None:
        """Return the plan pinned to a step, on the tiles of the present IPU.

        Raises:
          InvalidPlan: it begins on another one.
        """
        plan, ipu = self.pins.get(name), self.graph.ipu
        if plan is None or ipu in (0, ACROSS):
            return plan
        first = ipu * self.graph.chip.num_tiles
        if not first <= plan.base < first + self.graph.chip.num_tiles:
            raise InvalidPlan(
                f"the plan pinned to {name} begins on tile {plan.base}; the step is on IPU {ipu}",
                expected=f"tiles {first} to {first + self.graph.chip.num_tiles - 1}",
            )
        return replace(plan, base=plan.base - first)

    def defer(
        self, name: str, write: Callable[[Sequence], None], program: Sequence, source: str = ""
    ) -> None:
        """Plan a write to a variable when that is placed; it will stand at the present end of ``program``."""
        slot = Sequence()
        program.add(slot)
        self._deferred.setdefault(self.tensor(name).name, []).append(
            Deferred(slot, write, source, self._scope)
        )

    def deferred_names(self) -> set[str]:
        """Return the variables that steps write which are not planned yet."""
        return set(self._deferred)

    def area(self, lane: Lane | None) -> Area | None:
        """Return the tiles of the present IPU that a lane would have to itself, if it is one."""
        if lane is None or self.graph.ipu == ACROSS:
            return None
        return lane.area(self.graph.chip.num_tiles, self.graph.chip.tiles_per_shared_exchange_bus)

    @property
    def loops(self) -> list[Loop]:
        """The loops around what is being planned, the outermost first."""
        return self._around[-1]

    def invariant_in(self, name: str) -> tuple[Loop | None, int]:
        """Return the outermost loop on each trip of which a recorded tensor is the same, and the trips; None, 1 if none."""
        if not self.loops or name not in self.given.tensors:
            return None, 1
        storage = self.given.storage(name)
        tensor = self.given.tensors[storage]
        if name in self._changing and (tensor.kind == INPUT or not self.is_small(tensor)):
            return None, 1
        return outermost(self.loops, storage)

    def is_small(self, tensor: Tensor) -> bool:
        """Whether a stack that a loop reads is little beside a chip's memory."""
        return tensor.size_bytes <= SMALL_STACK * self.graph.chip.memory_bytes

    def enter(self, loop: Loop | None = None) -> None:
        """Begin a loop's or branch's body, or a function's: before a branch or a function nothing is prepared for it."""
        self.meet_control()
        self._around.append([] if loop is None else [*self.loops, loop])
        self._scope += 1
        self._brought.append({})

    def leave(self) -> None:
        """End a body: what it copied into variables that lie nowhere says where these lie."""
        self.meet_control()
        self.settle(lambda deferred: deferred.scope == self._scope)
        self._scope -= 1
        self._around.pop()
        self._brought.pop()
        for deferred in (each for waiting in self._deferred.values() for each in waiting):
            deferred.scope = min(deferred.scope, self._scope)

    def meet_control(self) -> None:
        """Note that no later step runs beside an earlier one."""
        if self.loads is not None:
            self.loads.clear()

    def settle(self, decides: Callable[[Deferred], bool], names: set[str] | None = None) -> None:
        """Place variables as what is copied into them lies, by the writes that may decide it."""
        for name in [n for n in self._deferred if names is None or n in names]:
            sources = [self.tensor(d.source) for d in self._deferred.get(name, ()) if d.source and decides(d)]
            source = next((source for source in sources if source.layout is not None), None)
            if source is not None:
                self.follow(name, source)

    def finish(self) -> Graph:
        """Place what is left evenly over the tiles and return the planned graph."""
        self.settle(lambda deferred: True)
        for name in self.given.outputs:
            self.tensor(name)
        for name in [n for n in self.graph.tensors if n not in self._deferred]:
            self.placed(name)
        self.settle(lambda deferred: True)
        for name in list(self.graph.tensors):
            self.placed(name)
        graph = self.graph
        graph.inputs, graph.donated = list(self.given.inputs), self.given.donated
        graph.outputs = [self.tensor(name).name for name in self.given.outputs]
        return graph

    def view(self, name: str, source: Tensor, layout: Layout) -> Tensor:
        """Make a recorded tensor another name of a placed tensor's memory."""
        self.tensor(name)
        made = replace(self.graph.tensors[name], view_of=source.name, ipu=source.ipu)
        self.graph.tensors[name] = made
        return self.place(name, layout)

    def rotated_base(self, span: int, size: int) -> int:
        """Return a first tile for something of ``size`` elements that covers ``span`` tiles, so that all tiles have code.

        What is small goes to tiles in turn, the last ones first: most of what is large begins at the first tile, and what runs
        beside it in one step (slices of a loop's arrays, statistics beside what they are of) then waits for none of it. What
        covers more than a quarter begins at the first tile or ends at the last: of two sizes one does the one, one the other,
        so that what is read element by element still lies alike.
        It is the first of an exchange bus: neighbours that read alike then share its lanes.
        """
        target = self.graph.target
        free = target.num_tiles - span
        if span > MOST_MOVED * target.num_tiles or free <= 0:
            return 0
        if span * 4 > target.num_tiles:
            turn = self._turns.setdefault(size, len(self._turns))
            base = free if turn % 2 else 0
        else:
            base = free - self._rotation % (free + 1)
            self._rotation += span if size <= FEW else align_up(span, target.tiles_per_shared_exchange_bus)
        return base - base % target.tiles_per_shared_exchange_bus


@dataclass(frozen=True)
class PlannedSite:
    """Where planned steps go, and what they are called.

    Args:
      planning: the graph being planned.
      program: the sequence to append to.
      label: name of the steps.
      location: the user's source line.
      area: the tiles that they have to themselves; None if they may use all.
    """

    planning: Planning
    program: Sequence
    label: str
    location: str = ""
    area: Area | None = None

    def at(self, suffix: str) -> PlannedSite:
        """Return the site of a part of an operation."""
        return replace(self, label=f"{self.label}.{suffix}")


def has_elements(tensor: Tensor) -> bool:
    """Return whether a tensor has any element."""
    return math.prod(tensor.shape) > 0
