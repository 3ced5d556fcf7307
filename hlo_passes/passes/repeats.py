"""Find what a computation does several times in a row, and make it one function, called as often.

A loop over layers written in Python arrives unrolled: the same run of instructions, again and again, on other
values. Such a run is found in the order the program was written in, extracted, and called.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hlo_passes.ir import (
    Computation,
    Instruction,
    Location,
    Module,
    Value,
    agreed,
    agreed_computation,
    relocated,
    shared_scope,
    value_names,
)
from hlo_passes.ops import Call
from hlo_passes.passes.base import Pass, map_control_regions
from hlo_passes.passes.extracted_runs import ExtractedRun, extract_equal_runs
from hlo_passes.passes.structure import SIDE_BY_SIDE, FreshNames, computation_key

_NEIGHBOURS = 4
"""How many later occurrences of an instruction are tried as the start of the next round."""
_HANDED = 1 / 8
"""Of a round's instructions, those that may wait for the round before if they are rather side by side: sums of all rounds."""


@dataclass(frozen=True)
class OutlineRepeats(Pass):
    """Replace runs of at least ``min_ops`` instructions that repeat by calls of one new computation.

    Rounds must follow each other and be equal up to names. Of the places where a round could start the one is
    taken that hands the fewest bytes to the next round. The longest saving goes first; then the rest is
    searched again.
    """

    name: ClassVar[str] = "outline-repeats"
    min_ops: int = 32

    def run(self, module: Module) -> Module:
        """Return the module with repeated runs as computations of their own; itself when nothing repeats."""
        names = {computation.name for computation in module.computations}
        made: list[Computation] = []

        def name() -> str:
            number = len(made)
            while f"layer_{number}" in names:
                number += 1
            names.add(f"layer_{number}")
            return f"layer_{number}"

        def visit(computation: Computation) -> Computation:
            instructions = tuple(map_control_regions(i, visit) for i in computation.instructions)
            if any(a is not b for a, b in zip(instructions, computation.instructions, strict=True)):
                computation = dataclasses.replace(computation, instructions=instructions)
            keys = _Keys(computation)
            while (found := _outlined(computation, self.min_ops, keys, name)) is not None:
                computation, body = found
                made.append(body)
            return computation

        changed = tuple(visit(computation) for computation in module.computations)
        return dataclasses.replace(module, computations=(*changed, *made)) if made else module


@dataclass(frozen=True)
class _Run:
    """``count`` rounds of ``period`` instructions from ``start`` on; they may start up to ``slack`` later."""

    start: int
    period: int
    count: int
    slack: int

    @property
    def saved(self) -> int:
        return (self.count - 1) * self.period


def _outlined(
    computation: Computation, min_ops: int, keys: _Keys, name: Callable[[], str]
) -> tuple[Computation, Computation] | None:
    """Return a computation with one run replaced by calls, and what they call; None if there is none."""
    for run in _runs(keys.numbers, min_ops, keys.runs):
        start = run.start + _best_offset(computation, run)
        windows = [range(s, s + run.period) for s in range(start, start + run.count * run.period, run.period)]
        if run.count * run.period <= SIDE_BY_SIDE and _are_apart(computation, windows[1]):
            continue
        extracted = extract_equal_runs(computation, windows)
        if len(extracted) > 1:
            places = _call_locations(extracted)
            bodies = [
                relocated(piece.computation, functools.partial(Location.below, call=place))
                for piece, place in zip(extracted, places, strict=True)
            ]
            body = dataclasses.replace(agreed_computation(bodies), name=name())
            return _with_calls(computation, extracted, places, body, keys), body
    return None


def _are_apart(computation: Computation, window: range) -> bool:
    """Whether few instructions of a round wait for the one before: heads, experts, members, which planning sets side by side."""
    instructions = computation.instructions
    before = instructions[window.start - len(window) : window.start]
    waiting = {value for instruction in before for value in instruction.results}
    count = 0
    for instruction in instructions[window.start : window.stop]:
        if not waiting.isdisjoint(instruction.operands):
            waiting.update(instruction.results)
            count += 1
    return count <= _HANDED * len(window)


class _Keys:
    """Numbers instructions such that those which do the same to whatever values have the same number.

    A call of what was outlined before is like no other: a function of nothing but calls saves nothing. So is an
    exchange with the host, which no function holds.

    Attributes:
      numbers: the numbers of the computation's instructions, in order.
      runs: those that were found in stretches of them.
    """

    def __init__(self, computation: Computation) -> None:
        known: dict[Hashable, int] = {}
        keys = map(self._key, computation.instructions)
        self.numbers = np.array([known.setdefault(key, len(known)) for key in keys], np.int32)
        self._count = len(known)
        self.runs: _Known = {}

    def follow(self, origins: list[int | None]) -> None:
        """Number the instructions of a changed computation: by what each was before, None for a call."""
        calls = itertools.count(self._count)
        old = self.numbers.tolist()
        self.numbers = np.array([next(calls) if at is None else old[at] for at in origins], np.int32)
        self._count = next(calls)

    @staticmethod
    def _key(instruction: Instruction) -> Hashable:
        if instruction.has_transfer:
            return instruction
        types = tuple(v.type for v in (*instruction.operands, *instruction.results))
        regions = tuple(computation_key(region) for region in instruction.regions)
        return type(instruction.op), instruction.op, types, regions


_Known = dict[bytes, dict[int, list[_Run]]]
"""By the keys of a stretch and a period, the runs in it, counted from where it begins: outlining leaves most stretches."""


def _runs(keys: np.ndarray, min_ops: int, known: _Known) -> list[_Run]:
    """Return the runs in ``keys``, those that save most first; ``known`` are those of earlier searches."""
    found: list[_Run] = []
    stretches = [
        (first, keys[first:end], known.setdefault(keys[first:end].tobytes(), {}))
        for first, end in _stretches(keys, 2 * min_ops)
    ]
    for period in _periods(keys, min_ops):
        for first, stretch, runs in stretches:
            if stretch.size < 2 * period:
                break
            if period not in runs:
                runs[period] = _runs_within(stretch, period)
            found += [dataclasses.replace(run, start=run.start + first) for run in runs[period]]
    return sorted(found, key=lambda run: (-run.saved, run.period, run.start))


def _stretches(keys: np.ndarray, least: int) -> list[tuple[int, int]]:
    """Return where keys that occur more than once follow each other, the longest first: no run reaches over another key."""
    lone = np.flatnonzero(np.bincount(keys)[keys] == 1)
    edges = np.concatenate([[-1], lone, [keys.size]])
    stretches = zip((edges[:-1] + 1).tolist(), edges[1:].tolist(), strict=True)
    return sorted((s for s in stretches if s[1] - s[0] >= least), key=lambda s: (s[0] - s[1], s[0]))


def _runs_within(keys: np.ndarray, period: int) -> list[_Run]:
    """Return the runs of one period in a stretch of keys."""
    if not _may_repeat(keys, period):
        return []
    is_other = keys[:-period] != keys[period:]
    if is_other.size - np.count_nonzero(is_other) < period:
        return []
    differs = np.flatnonzero(is_other)
    edges = np.concatenate([[-1], differs, [keys.size - period]])
    starts, lengths = edges[:-1] + 1, np.diff(edges) - 1
    is_run = lengths >= period
    counts = lengths[is_run] // period + 1
    slacks = lengths[is_run] - (counts - 1) * period
    rounds = zip(starts[is_run].tolist(), counts.tolist(), slacks.tolist(), strict=True)
    return [_Run(start, period, count, slack) for start, count, slack in rounds]


def _may_repeat(keys: np.ndarray, period: int) -> bool:
    """Return False if no ``period`` neighbours are all equal to those a period later, as seen from a few of each period."""
    probes = (keys[offset::period] for offset in (0, period // 3, 2 * period // 3))
    return all((probe[1:] == probe[:-1]).any() for probe in probes)


def _periods(keys: np.ndarray, min_ops: int) -> list[int]:
    """Return the distances at which an instruction comes again, from ``min_ops`` on."""
    order = np.argsort(keys, kind="stable")
    distances: set[int] = set()
    for step in range(1, _NEIGHBOURS + 1):
        same = keys[order[step:]] == keys[order[:-step]]
        distances.update(np.unique((order[step:] - order[:-step])[same]).tolist())
    return sorted(d for d in distances if min_ops <= d <= keys.size // 2)


def _best_offset(computation: Computation, run: _Run) -> int:
    """Return how much later the rounds should start so that each hands the fewest bytes to the next."""
    first, last = run.start, run.start + 3 * run.period
    crossing = np.zeros(run.slack + 1, np.int64)
    made: dict[Value, int] = {}
    read: dict[Value, int] = {}
    for at, instruction in enumerate(computation.instructions[first:last], first):
        made.update(dict.fromkeys(instruction.results, at))
        for value in instruction.operands:
            read[value] = at  # ends as the last reader
    for value, born in made.items():
        reader = read.get(value, born)
        low, high = max(born + 1, reader - run.period + 1), min(reader, born + run.period)
        begin, end = low - first - run.period, high - first - run.period
        crossing[max(0, begin) : max(0, end + 1)] += value.type.size_bytes
    return int(np.argmin(crossing))


def _call_locations(extracted: list[ExtractedRun]) -> list[Location]:
    """Return where each run's call is: its first line, and the scope that all its instructions are in.

    Scopes of all calls have as many names, so that those of the body go on from any.
    """
    scopes = [shared_scope(i.location for i in piece.instructions) for piece in extracted]
    depth = min(map(len, scopes))
    return [
        dataclasses.replace(_line(piece), scope="/".join(scope[:depth]))
        for piece, scope in zip(extracted, scopes, strict=True)
    ]


def _line(piece: ExtractedRun) -> Location:
    """Return the first line that is known, of something in a scope if there is any."""
    locations = [i.location for i in piece.instructions]
    return agreed([each for each in locations if each.scope] or locations).without_scope()


def _with_calls(
    computation: Computation,
    extracted: list[ExtractedRun],
    places: list[Location],
    body: Computation,
    keys: _Keys,
) -> Computation:
    """Return the computation with each run's instructions replaced by a call and what is made again after it."""
    names = FreshNames(value_names(computation))
    call = Call(body.name, body.result_types)
    replaced: dict[Value, Value] = {}
    made: list[Instruction] = []
    origins: list[int | None] = []
    done = 0
    for piece, place in zip(extracted, places, strict=True):
        made += _reading(computation.instructions[done : piece.window.start], replaced)
        origins += range(done, piece.window.start)
        made += _call(piece, place, call, names, replaced)
        origins += [None, *(piece.window[piece.instructions.index(i)] for i in piece.remade)]
        done = piece.window.stop
    made += _reading(computation.instructions[done:], replaced)
    origins += range(done, len(computation.instructions))
    keys.follow(origins)
    results = tuple(replaced.get(value, value) for value in computation.results)
    return dataclasses.replace(computation, instructions=tuple(made), results=results)


def _call(
    piece: ExtractedRun, location: Location, call: Call, names: FreshNames, replaced: dict[Value, Value]
) -> Iterator[Instruction]:
    """Yield a call in place of a run, then what stands for values that the call does not return itself."""
    operands = tuple(replaced.get(value, value) for value in piece.operands)
    results = tuple(Value(names.new(), value.type) for value in piece.results)
    replaced.update(zip(piece.results, results, strict=True))
    yield Instruction(call, operands, results, (), location)
    for instruction in piece.remade:
        again = tuple(Value(names.new(), value.type) for value in instruction.results)
        (reading,) = _reading((instruction,), replaced)
        remade = dataclasses.replace(reading, results=again)
        replaced.update(zip(instruction.results, again, strict=True))
        yield remade


def _reading(instructions: Sequence[Instruction], replaced: dict[Value, Value]) -> Sequence[Instruction]:
    """Return instructions with the values they read replaced."""
    if not replaced:
        return instructions
    is_same = replaced.keys().isdisjoint
    return [
        i
        if is_same(i.operands)
        else dataclasses.replace(i, operands=tuple(replaced.get(value, value) for value in i.operands))
        for i in instructions
    ]
