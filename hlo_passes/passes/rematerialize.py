"""Compute again what is cheap, instead of keeping it where most is kept."""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from hlo_passes import ops
from hlo_passes.ir import Computation, Instruction, Module, Value, value_names
from hlo_passes.passes.base import Pass
from hlo_passes.passes.structure import FreshNames

CHEAP = (
    *(
        ops.Abs,
        ops.Add,
        ops.And,
        ops.BroadcastInDim,
        ops.Clamp,
        ops.Compare,
        ops.Constant,
        ops.Convert,
        ops.Iota,
    ),
    *(
        ops.Maximum,
        ops.Minimum,
        ops.Multiply,
        ops.Negate,
        ops.Not,
        ops.Or,
        ops.Reshape,
        ops.Select,
        ops.Subtract,
    ),
)
"""Operations that cost about as much as reading their result would."""

CHEAP_NONLINEARITIES = ("popnn.relu",)

MAX_DEPTH = 16
"""The longest chain of operations that is computed again."""

MAX_VALUES = 1024
"""The most values that are decided together; where more depend on each other they are kept."""

MAX_ROUNDS = 4
LEAST_BYTES = 1024
"""What is kept in fewer is not worth a barrier: a step that reads it costs more."""

LEAST_GAIN = 0.01
"""Share of the bytes kept at a place that have to become free there."""

_UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Rematerialize(Pass):
    """Compute cheap values again that are needed before and after the place where most bytes are kept.

    A network's gradient reads what its forward pass made, so most is kept where one turns into the other. Which
    values are kept there is a minimum cut: from what cannot be computed again (or is not cheap to) to what is read
    afterwards, through cheap elementwise operations, with bytes as capacities (as in functorch's
    ``min_cut_rematerialization_partition`` for PyTorch). What something else than a cheap operation or a reduction reads afterwards
    is kept as it is: it would have to be written to memory again. Barriers keep what is computed again from being
    merged with what it repeats.
    """

    name: ClassVar[str] = "rematerialize"

    def run(self, module: Module) -> Module:
        """Return the module with cheap values computed again; itself when nothing is gained."""
        entry = module.entry_computation
        changed = entry
        for _ in range(MAX_ROUNDS):
            before, changed = changed, _round(changed, module.donated)
            if changed is before:
                break
        if changed is entry:
            return module
        computations = tuple(changed if c is entry else c for c in module.computations)
        return dataclasses.replace(module, computations=computations)


def _is_cheap(instruction: Instruction) -> bool:
    op = instruction.op
    if isinstance(op, ops.Nonlinearity):
        return op.kind in CHEAP_NONLINEARITIES
    return isinstance(op, CHEAP)


def _is_fused(instruction: Instruction) -> bool:
    """Whether an instruction's operands may be computed in one pass with it."""
    return isinstance(instruction.op, (ops.Elementwise, ops.Reduce)) or _is_cheap(instruction)


def _round(computation: Computation, donated: tuple[int, ...]) -> Computation:
    """Compute values again after the place where most is kept; return the computation itself if nothing is gained."""
    kept = Kept(computation, donated)
    if kept.position < 0 or kept.size_bytes < LEAST_BYTES:
        return computation
    again: set[Value] = set()
    gained = 0
    for component in _components(kept):
        if len(component.values) > MAX_VALUES:
            continue
        cut = _Cut(kept, component)
        if cut.gained > 0:
            gained += cut.gained
            again |= cut.again
    if gained < LEAST_GAIN * kept.size_bytes:
        return computation
    return _rewritten(computation, kept, again)


class Kept:
    """What is kept at the place of a computation where that is most.

    Args:
      computation: a valid computation.
      donated: numbers of its parameters that need not be kept.

    Attributes:
      made: number of the instruction that makes each value; parameters are absent.
      readers: numbers of the instructions that read each value.
      donated: parameters that need not be kept.
      position: instructions up to this one run before, the others after; -1 where nothing is kept.
      size_bytes: bytes of the values that are made before and read after.
      read: values made before that only what can be computed in one pass with them reads after.
      fixed: values that are kept whatever is decided.
    """

    def __init__(self, computation: Computation, donated: tuple[int, ...]) -> None:
        """Find that place, and who reads what."""
        self.computation = computation
        self.donated = {computation.parameters[n] for n in donated}
        self.producers = computation.producers
        self.made = {v: n for n, i in enumerate(computation.instructions) for v in i.results}
        self.readers: dict[Value, list[int]] = defaultdict(list)
        for number, instruction in enumerate(computation.instructions):
            for value in instruction.operands:
                self.readers[value].append(number)
        self.position, self.size_bytes = self._fullest(donated)
        after = self.position
        self.fixed = {v for n, v in enumerate(computation.parameters) if n not in donated}
        self.fixed.update(v for v in computation.results if self.made.get(v, -1) <= after)
        self.read: dict[Value, None] = {}
        for value, readers in self.readers.items():
            late = [computation.instructions[n] for n in readers if n > after]
            if not late or self.made.get(value, -1) > after:
                continue
            if all(map(_is_fused, late)):
                self.read[value] = None
            else:
                self.fixed.add(value)
        for value in self.fixed:
            self.read.pop(value, None)

    def _fullest(self, donated: tuple[int, ...]) -> tuple[int, int]:
        """Return where most bytes are kept, and how many; what only one pass reads is taken to be part of it."""
        instructions, results = self.computation.instructions, set(self.computation.results)
        change = [0] * (len(instructions) + 1)
        for value, start in self.made.items():
            readers = self.readers.get(value, [])
            if value in results:
                end = len(instructions)
            elif not readers or (len(readers) == 1 and _is_cheap(self.producers[value])):
                continue
            else:
                end = max(readers)
            change[start] += value.type.size_bytes
            change[end] -= value.type.size_bytes
        for number in donated:
            value = self.computation.parameters[number]
            change[0] += value.type.size_bytes
            change[max(self.readers.get(value, [0]))] -= value.type.size_bytes
        best, most, live = -1, 0, 0
        for position, size in enumerate(change[:-1]):
            live += size
            if live > most:
                best, most = position, live
        return best, most

    def may_be_computed_again(self, value: Value) -> bool:
        """Whether a value's own operation is cheap."""
        producer = self.producers.get(value)
        return producer is not None and _is_cheap(producer)


@dataclass
class _Component:
    """Values connected by cheap operations: the values, and which of them cannot be computed again here."""

    values: list[Value] = field(default_factory=list[Value])
    leaves: set[Value] = field(default_factory=set[Value])


def _components(kept: Kept) -> list[_Component]:
    """Return what is read after the place, with what it can be computed from, apart where nothing is shared."""
    depth: dict[Value, int] = {}
    stack = deque((value, 0) for value in kept.read)
    while stack:
        value, far = stack.popleft()
        if value in depth:
            continue
        depth[value] = far
        if value not in kept.fixed and kept.may_be_computed_again(value) and far < MAX_DEPTH:
            stack.extend((operand, far + 1) for operand in kept.producers[value].operands)
    leaves = {
        value
        for value, far in depth.items()
        if value in kept.fixed or not kept.may_be_computed_again(value) or far >= MAX_DEPTH
    }
    parent = {value: value for value in depth}

    def root(value: Value) -> Value:
        while parent[value] != value:
            parent[value] = value = parent[parent[value]]
        return value

    for value in depth:
        if value in leaves:
            continue
        for operand in kept.producers[value].operands:
            if operand not in kept.fixed:
                parent[root(operand)] = root(value)
    found: dict[Value, _Component] = defaultdict(_Component)
    for value in depth:
        if value not in kept.fixed:
            component = found[root(value)]
            component.values.append(value)
            if value in leaves:
                component.leaves.add(value)
    return list(found.values())


class _Cut:
    """The cheapest values to keep of one component, those nearest to their readers where several cost the same.

    Attributes:
      gained: bytes that need not be kept.
      again: values to compute again.
    """

    def __init__(self, kept: Kept, component: _Component) -> None:
        self.values = component.values
        number = {value: n for n, value in enumerate(self.values)}
        self.source, self.sink = 2 * len(self.values), 2 * len(self.values) + 1
        self.room: list[dict[int, int]] = [{} for _ in range(self.sink + 1)]
        for n, value in enumerate(self.values):
            self._edge(2 * n, 2 * n + 1, value.type.size_bytes)
            if value in component.leaves:
                self._edge(self.source, 2 * n, _UNLIMITED)
            else:
                for operand in kept.producers[value].operands:
                    if operand in number:
                        self._edge(2 * number[operand] + 1, 2 * n, _UNLIMITED)
            if value in kept.read:
                self._edge(2 * n + 1, self.sink, _UNLIMITED)
        before = sum(value.type.size_bytes for value in self.values if value in kept.read)
        self.gained = before - self._flow()
        behind = self._reaching_sink()
        self.again = {value for n, value in enumerate(self.values) if 2 * n in behind}

    def _edge(self, start: int, end: int, capacity: int) -> None:
        self.room[start][end] = self.room[start].get(end, 0) + capacity
        self.room[end].setdefault(start, 0)

    def _flow(self) -> int:
        total = 0
        while (path := self._path()) is not None:
            pushed = min(self.room[a][b] for a, b in path)
            for a, b in path:
                self.room[a][b] -= pushed
                self.room[b][a] += pushed
            total += pushed
        return total

    def _path(self) -> list[tuple[int, int]] | None:
        """Return a shortest path with room from source to sink."""
        came = {self.source: self.source}
        queue = deque([self.source])
        while queue:
            node = queue.popleft()
            for other, room in self.room[node].items():
                if room > 0 and other not in came:
                    came[other] = node
                    queue.append(other)
            if self.sink in came:
                path: list[tuple[int, int]] = []
                node = self.sink
                while node != self.source:
                    path.append((came[node], node))
                    node = came[node]
                return path
        return None

    def _reaching_sink(self) -> set[int]:
        found, queue = {self.sink}, deque([self.sink])
        while queue:
            node = queue.popleft()
            for other in self.room[node]:
                if other not in found and self.room[other].get(node, 0) > 0:
                    found.add(other)
                    queue.append(other)
        return found


def _rewritten(computation: Computation, kept: Kept, again: set[Value]) -> Computation:
    """Return the computation whose later part computes values again, each right before its first reader."""
    names = FreshNames(value_names(computation))
    made: list[Instruction] = list(computation.instructions[: kept.position + 1])
    env: dict[Value, Value] = {}

    def behind_barrier(value: Value) -> Value:
        if value not in env:
            env[value] = Value(names.new(), value.type)
            location = kept.producers[value].location if value in kept.producers else made[-1].location
            made.append(Instruction(ops.OptimizationBarrier(), (value,), (env[value],), (), location))
        return env[value]

    def computed_again(values: Iterable[Value]) -> None:
        for value in _in_order(values, kept, again, env):
            producer = kept.producers[value]
            operands = [env[v] if v in again else behind_barrier(v) for v in producer.operands]
            env[value] = Value(names.new(), value.type)
            made.append(dataclasses.replace(producer, operands=tuple(operands), results=(env[value],)))

    for instruction in computation.instructions[kept.position + 1 :]:
        wanted = [v for v in dict.fromkeys(instruction.operands) if v in again and v in kept.read]
        computed_again(wanted)
        if wanted:
            operands = tuple(env[v] if v in wanted else v for v in instruction.operands)
            instruction = dataclasses.replace(instruction, operands=operands)
        made.append(instruction)
    return dataclasses.replace(computation, instructions=tuple(made))


def _in_order(
    values: Iterable[Value], kept: Kept, again: set[Value], env: Mapping[Value, Value]
) -> list[Value]:
    """Return what is to be computed again for ``values``, operands first."""
    order: dict[Value, None] = {}
    stack = list(values)
    while stack:
        value = stack[-1]
        missing = [
            v for v in kept.producers[value].operands if v in again and v not in env and v not in order
        ]
        if missing and value not in order:
            stack += missing
            continue
        stack.pop()
        if value not in env:
            order.setdefault(value)
    return list(order)
