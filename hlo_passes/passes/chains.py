"""Chains of operations that slices along an axis follow from each other in, and the bytes that values take at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import (
    BroadcastInDim,
    Constant,
    Iota,
    Nonlinearity,
    Pad,
    Reduce,
    Reshape,
    RowFunction,
    Slice,
    Sort,
    TopK,
    Transpose,
)
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes.fusion_groups import is_simple_fold
from hlo_passes.passes.slicing import UnknownSlice, axis_read, smaller

_FUSED = (Elementwise, Nonlinearity, BroadcastInDim, Constant, Iota, Pad, Reshape, Slice, Transpose)
"""Operations whose results need not be there where all that reads them is computed element by element, too."""
_BY_ROWS = (RowFunction, Sort, TopK)
"""Operations that read whole rows: what a product leaves in blocks arrives once more, on the tiles of the rows."""


def is_large(instruction: Instruction, least: int) -> bool:
    """Whether one of an operation's results has at least so many bytes."""
    return any(v.type.size_bytes >= least for v in instruction.results)


def is_free(instruction: Instruction) -> bool:
    """Whether an operation's result is no array in memory, or one that is made again wherever it is read."""
    return isinstance(instruction.op, BroadcastInDim | Constant | Iota)


class Chain(NamedTuple):
    """Operations by the axis of their results that slices cut.

    Attributes:
      members: closed under what lies between two of them.
      again: what the large values come from that members read and that are not made by members: operations before those, which
        slices can compute again.
    """

    members: dict[Instruction, int]
    again: dict[Instruction, int]


def chain_from(
    computation: Computation,
    users: Mapping[Value, list[int]],
    arrays: set[Value],
    seed: Instruction,
    axis: int,
    least: int,
) -> Chain:
    """Return the chain of a seed.

    From the seed on all that makes or reads a large value is taken in, if slices follow from slices, and then what leads
    from one of them to another. Where all of it is fused anyway there is none.
    """
    axes: dict[Instruction, int] = {}
    todo = [(seed, axis)]
    while todo:
        instruction, at = todo.pop()
        if instruction in axes or instruction.has_effect or is_free(instruction):
            continue
        try:
            reads = list(_sources_cut(computation, instruction, at))
            smaller(instruction, at, 1)
        except UnknownSlice:
            continue
        axes[instruction] = at
        for value, read in reads:
            producer = computation.producers.get(value)
            if producer is not None and read is not None and is_large(producer, least):
                todo.append((producer, read))
        if is_large(instruction, least):
            readers = dict.fromkeys(n for v in instruction.results for n in users[v])
            for reader in (computation.instructions[n] for n in readers):
                todo += [(reader, found) for found in _axes_reading(reader, instruction.results, at)]
    if not any(v in arrays and v.type.size_bytes >= least for i in axes for v in i.results):
        return Chain({}, {})
    _fill(computation, users, axes)
    levels = _levels(computation, axes)
    found = {i: axes[i] for i, level in levels.items() if level == levels.get(seed)}
    members = _pruned(computation, found, axes, least)
    before = {i: axes[i] for i, level in levels.items() if level < levels.get(seed, 0)}
    return Chain(members, _again(computation, members, before, least))


def _again(
    computation: Computation,
    members: Mapping[Instruction, int],
    before: Mapping[Instruction, int],
    least: int,
) -> dict[Instruction, int]:
    """Return the operations before a chain that its large operands come from."""
    found: set[Instruction] = set()
    for instruction in reversed(computation.instructions):
        if instruction in members or instruction in found:
            axis = members.get(instruction, before.get(instruction))
            for value, read in _sources_cut(computation, instruction, axis):
                producer = computation.producers.get(value)
                if producer is not None and before.get(producer) == read and is_large(producer, least):
                    found.add(producer)
    return {i: axis for i, axis in before.items() if i in found}


def _axes_reading(instruction: Instruction, values: Sequence[Value], axis: int) -> Iterator[int]:
    """Yield the axes of an operation's results that read the axis of the values; the first is as good as any."""
    if not instruction.results:
        return
    for found in range(instruction.results[0].type.rank):
        try:
            reads = {
                axis_read(instruction, k, found) for k, v in enumerate(instruction.operands) if v in values
            }
        except UnknownSlice:
            continue
        if reads == {axis}:
            yield found
            return


def _fill(computation: Computation, users: Mapping[Value, list[int]], axes: dict[Instruction, int]) -> None:
    """Take in what lies between members, if what the members read of it says along which axis."""
    behind: set[Value] = set()
    for instruction in computation.instructions:
        if instruction in axes or not behind.isdisjoint(instruction.operands):
            behind.update(instruction.results)
    for instruction in reversed(computation.instructions):
        if instruction in axes or instruction.has_effect or is_free(instruction):
            continue
        if behind.isdisjoint(instruction.operands):
            continue
        wanted: set[int | None] = set()
        for value in instruction.results:
            for reader in (computation.instructions[n] for n in users[value]):
                wanted |= set(_wanted(computation, users, reader, value, axes))
        if len(wanted) != 1 or None in wanted:
            continue
        (axis,) = wanted
        assert axis is not None
        try:
            for k in range(len(instruction.operands)):
                axis_read(instruction, k, axis)
            smaller(instruction, axis, 1)
        except UnknownSlice:
            continue
        axes[instruction] = axis


def _wanted(
    computation: Computation,
    users: Mapping[Value, list[int]],
    reader: Instruction,
    value: Value,
    axes: Mapping[Instruction, int],
) -> Iterator[int | None]:
    """Yield the axes that members read of a value, those that read a broadcast of it included."""
    if reader in axes:
        ats = [axes[reader]]
    elif isinstance(reader.op, BroadcastInDim):
        again = (computation.instructions[n] for n in users[reader.result])
        ats = [at for one in again for at in _wanted(computation, users, one, reader.result, axes)]
    else:
        return
    for at in ats:
        for k, operand in enumerate(reader.operands):
            if operand == value:
                yield None if at is None else axis_read(reader, k, at)


def _levels(computation: Computation, axes: Mapping[Instruction, int]) -> dict[Instruction, int]:
    """Return how often a path to each member leaves the set and comes back: members that agree have nothing between them.

    What has an effect follows the one before it, as if it read that. A member that does not read what others make as they
    cut it is none.
    """
    inside: dict[Value, int] = {}
    left: dict[Value, int] = {}
    found: dict[Instruction, int] = {}
    last_effect = 0
    for instruction in computation.instructions:
        sources = list(_sources(computation, instruction))
        level = max((left.get(v, 0) for v in sources), default=0)
        beyond = max((left.get(v, 0) + (v in inside) for v in sources), default=0)
        if is_free(instruction):  # inside where members read it, and outside where others do
            left.update((v, level) for v in instruction.results if level)
            continue
        is_member = instruction in axes and all(
            inside.get(value, axis) == axis
            for value, axis in _sources_cut(computation, instruction, axes[instruction])
        )
        if is_member:
            found[instruction] = level
            inside.update((v, axes[instruction]) for v in instruction.results)
        else:
            level = max(beyond, last_effect) if instruction.has_effect else beyond
            last_effect = level if instruction.has_effect else last_effect
        left.update((v, level) for v in instruction.results if level)
    return found


def _sources(computation: Computation, instruction: Instruction) -> Iterator[Value]:
    """Yield what an operation reads, of broadcasts what they are of."""
    for operand in instruction.operands:
        producer = computation.producers.get(operand)
        if producer is not None and isinstance(producer.op, BroadcastInDim):
            yield from _sources(computation, producer)
        else:
            yield operand


def _sources_cut(
    computation: Computation, instruction: Instruction, axis: int | None
) -> Iterator[tuple[Value, int | None]]:
    """Yield the same with the axes along which slices cut it, None where it is read whole."""
    for k, operand in enumerate(instruction.operands):
        read = None if axis is None else axis_read(instruction, k, axis)
        producer = computation.producers.get(operand)
        if producer is not None and isinstance(producer.op, BroadcastInDim):
            yield from _sources_cut(computation, producer, read)
        else:
            yield operand, read


def _pruned(
    computation: Computation, axes: Mapping[Instruction, int], others: Mapping[Instruction, int], least: int
) -> dict[Instruction, int]:
    """Return the members that make a large value or read one that they or others make, and those between them."""
    large = {v for i in others if is_large(i, least) for v in i.results}

    def is_core(instruction: Instruction) -> bool:
        return is_large(instruction, least) or not large.isdisjoint(instruction.operands)

    after, before = set[Value](), set[Value]()
    members = [i for i in computation.instructions if i in axes]
    kept_after: set[Instruction] = set()
    for instruction in members:
        if is_core(instruction) or any(v in after for v in _sources(computation, instruction)):
            after.update(instruction.results)
            kept_after.add(instruction)
    kept: set[Instruction] = set()
    for instruction in reversed(members):
        if is_core(instruction) or not before.isdisjoint(instruction.results):
            before.update(_sources(computation, instruction))
            if instruction in kept_after:
                kept.add(instruction)
    return {i: axes[i] for i in members if i in kept}


class Held(NamedTuple):
    """What values take.

    Attributes:
      at: bytes while each instruction runs.
      values: results of instructions that are there when it is most.
    """

    at: tuple[int, ...]
    values: tuple[Value, ...]

    @property
    def most(self) -> int:
        """Most bytes at once."""
        return max(self.at, default=0)

    def beyond(self, size_bytes: float) -> float:
        """Return the bytes beyond a limit, of all instructions together: it falls with every chain that is cut."""
        return sum(max(0.0, held - size_bytes) for held in self.at)


def arrays_of(computation: Computation) -> set[Value]:
    """Return the results of operations that lie in memory, as fusion will leave them.

    What is computed element by element is no array where one operation reads it so, or folds it, or several that are all fused
    with one: it is fused with that. Broadcasts and constants are made wherever they are read.
    """
    found = set[Value](computation.results)
    fused_with: dict[Instruction, Instruction] = {}
    readers: dict[Value, dict[Instruction, None]] = {}
    for instruction in reversed(computation.instructions):
        for value in instruction.operands:
            readers.setdefault(value, {})[instruction] = None
        found.update(v for v in instruction.results if not isinstance(instruction.op, _FUSED))
        fused_with[instruction] = instruction
        if not isinstance(instruction.op, _FUSED) or instruction.result in found:
            continue
        read_by = readers.get(instruction.result, {})
        roots = {fused_with[reader] for reader in read_by}
        if not all(
            isinstance(r.op, _FUSED) or (isinstance(r.op, Reduce) and is_simple_fold(r)) for r in read_by
        ):
            found.add(instruction.result)
        elif len(roots) == 1:
            fused_with[instruction] = roots.pop()
        elif roots and not is_free(instruction):
            found.add(instruction.result)
    return found


def held_bytes(
    computation: Computation, counted: set[Value] | None = None, arrays: set[Value] | None = None
) -> Held:
    """Return what values take: all, or those that are counted; ``arrays`` is what ``arrays_of`` returns, if that is known.

    What is no array (``arrays_of``) takes nothing, and keeps what it is made of until it is read. What is computed element by
    element takes the place of an operand as large that is read for the last time.
    """
    arrays, end = arrays or arrays_of(computation), len(computation.instructions)
    last: dict[Value, int] = dict.fromkeys(computation.results, end)
    for n, instruction in reversed([*enumerate(computation.instructions)]):
        read = n
        if isinstance(instruction.op, _FUSED):
            read = max((last.get(v, n) for v in instruction.results if v not in arrays), default=n)
        for value in instruction.operands:
            last[value] = max(last.get(value, 0), read)
    leaving: dict[int, list[Value]] = {}
    for value, n in last.items():
        leaving.setdefault(n, []).append(value)
    held = 0 if counted is not None else sum(v.type.size_bytes for v in computation.parameters)
    at: list[int] = []
    most = 0
    there: tuple[Value, ...] = ()
    sizes: dict[Value, int] = {}
    for n, instruction in enumerate(computation.instructions):
        own = {
            v: v.type.size_bytes
            for v in instruction.results
            if v in last and v in arrays and (counted is None or v in counted)
        }
        made = sum(own.values())
        beside = _beside(instruction, counted)
        ending = {v: sizes.pop(v) for v in leaving.get(n, ()) if v in sizes}
        now = held + beside + made - _taken_over(instruction, made, list(ending.values()))
        if now > most:
            most = now
            there = (*sizes, *ending, *own)
        at.append(now)
        held += made - sum(ending.values())
        sizes.update(own)
    return Held(tuple(at), there)


def _beside(instruction: Instruction, counted: set[Value] | None) -> int:
    """Return the bytes that an operation takes beside operands and results: a loop's values, rows that arrive on their tiles."""
    op = instruction.op
    if isinstance(op, _BY_ROWS):
        return sum(v.type.size_bytes for v in instruction.operands if counted is None or v in counted)
    if counted is not None or not op.is_control or op.is_unit:
        return 0
    return max((inside_bytes(region) for region in instruction.regions), default=0)


def _taken_over(instruction: Instruction, made: int, ending: list[int]) -> int:
    """Return how many of the bytes that an operation makes may lie where operands lay that it reads for the last time."""
    op = instruction.op
    if op.is_control and not op.is_unit:
        return min(made, sum(ending))
    return made if (isinstance(op, _FUSED) or op.replaces_elements) and made in ending else 0


def inside_bytes(region: Computation) -> int:
    """Return the most bytes that a loop's or branch's values take beside those it is handed, in which updates lie."""
    counted = {v for i in region.instructions for v in i.results if not i.op.replaces_elements}
    return held_bytes(region, counted).most
