"""What does not fit: what is short, on which tile and when, what to plan otherwise, and the error if nothing helps."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tiles.compiler.costs import exchange_code_by_step
from tiles.compiler.executable import CODE_CATEGORIES, Buffer, Executable
from tiles.compiler.memory import live_bytes
from tiles.compiler.steps import ExecuteStep, StepRecord
from tiles.errors import OutOfTileMemory
from tiles.plan import CODE_PRICE
from tiles.planning import Policy, operation_of
from tiles.target import Target

SHOWN = 5
LEAST_HELD_SHARE = 1 / 64
"""Share of a tile that an operation may fill with what lies nowhere yet, where variables crowd a tile."""
LEAST_PROPORTION = 0.01
"""Operations are not asked to do with less of a tile than this."""
MOST_CODE_PRICE = 8.0
"""No plan pays more cycles than this for a byte of exchange code."""
CODE_PRICE_RISE = 4
"""How much dearer exchange code becomes at once."""
MOST_CODE_SAVED = (0.5, 0.35)
"""Shares of exchange code that code four times as dear is expected to save at most, the first time and then; less of them,
by logarithms, where there is less room up to the highest price.

Of eight models in ``benchmarks/results/models.md``, code four times as dear saved 0 to 26 %, and 56 % once (a GPT-2-small
step, which lacks far more); four times as dear again it saved 0 to 31 %."""
LEAST_GIVEN_UP = 1 / 8
"""Share of what an operation takes that it gives up at least when it is planned again, so that its plan changes."""
MOST_GAPS = 1 / 16
"""Share of a tile that gaps between buffers are expected to take at most; of the models in ``tests/models`` they take up
to 6 %. A buffer that finds no room lies behind all memory, so that the highest address alone says too much."""
CODE, TEMPORARIES, DATA, PIECES = "code", "temporaries", "data", "pieces"


@dataclass(frozen=True)
class Shortage:
    """What a program that does not fit lacks.

    Args:
      kind: ``code``: memory that code can run from; ``temporaries``: memory, while what operations need for
        themselves is more than what is missing; ``data``: memory for what lives on; ``pieces``: enough is free, but in
        pieces too small.
      tile: the tile that lacks most.
      step: the step in which it does; -1 where code is short, which lies there always.
      need_bytes: bytes needed there.
      have_bytes: bytes that there are.
      categories: bytes of what lies there by category, the largest first.
      temporary_bytes: bytes among these that operations need for themselves: received slices, scratch, partials.
      uneven_bytes: bytes of variables there beyond what these would take if each lay evenly on all tiles.
    """

    kind: str
    tile: int
    step: int
    need_bytes: int
    have_bytes: int
    categories: Mapping[str, int]
    temporary_bytes: int = 0
    uneven_bytes: int = 0

    @property
    def excess_bytes(self) -> int:
        """Bytes that are missing."""
        return self.need_bytes - self.have_bytes

    def most_saved_bytes(self, policy: Policy) -> int:
        """Return what planning again is expected to save at most: temporaries, and some of what lies unevenly and of the code.

        Vertices, their code and control code stay: no policy changes what they take.
        """
        return self.temporary_bytes + self._most_spread(policy) + self._most_code_saved(policy)

    @property
    def is_beyond_planning(self) -> bool:
        """Whether no other plan is expected to save what is missing, so that a program is planned only once."""
        return self.most_saved_bytes(Policy()) < self.excess_bytes

    def is_made_up_by_code(self, policy: Policy) -> bool:
        """Return whether shorter exchange code alone could save as much as is missing."""
        return self._most_code_saved(policy) >= max(self.excess_bytes, 1)

    def is_made_up_by_spreading(self, policy: Policy) -> bool:
        """Return whether variables that lie on more tiles could alone save as much as is missing."""
        return self._most_spread(policy) >= max(self.excess_bytes, 1)

    def _most_spread(self, policy: Policy) -> int:
        return self.uneven_bytes if policy.held_share > LEAST_HELD_SHARE else 0

    def _most_code_saved(self, policy: Policy) -> int:
        if policy.code_price >= MOST_CODE_PRICE:
            return 0
        first, then = MOST_CODE_SAVED
        share = first if policy.code_price <= CODE_PRICE else then
        rise = min(MOST_CODE_PRICE / policy.code_price, CODE_PRICE_RISE)
        share *= math.log(rise) / math.log(CODE_PRICE_RISE)
        return int(share * self.categories.get("internalExchangeCode", 0))


def shortage(executable: Executable) -> Shortage:
    """Return what a program that does not fit lacks: first code, then memory at the fullest tile and step."""
    target = executable.target
    code = np.zeros(target.num_tiles, np.int64)
    for buffer in executable.buffers.values():
        if buffer.category in CODE_CATEGORIES:
            for low, high in buffer.tiles:
                code[low:high] += buffer.size_bytes
    tile = int(code.argmax())
    outside = [
        b for b in executable.buffers.values() if b.category in CODE_CATEGORIES and _lies_outside(b, target)
    ]
    if outside and code[tile] <= target.code_memory_bytes:  # enough is free, but in pieces too small
        tile = outside[0].tiles[0][0]
    if outside or code[tile] > target.code_memory_bytes:
        there = [b for b in _on(executable, tile) if b.category in CODE_CATEGORIES]
        return Shortage(CODE, tile, -1, int(code[tile]), target.code_memory_bytes, _by_category(there))
    return _memory_shortage(executable)


def _lies_outside(buffer: Buffer, target: Target) -> bool:
    """Whether a buffer of code lies where no code can run."""
    return bool(buffer.size_bytes) and not any(
        region.executable
        and region.base <= buffer.address
        and buffer.address + buffer.size_bytes <= region.base + region.size_bytes
        for region in target.memory_regions
    )


def shortages(executable: Executable) -> tuple[Shortage, ...]:
    """Return all that a program that does not fit lacks, first what its error says, then what is short besides."""
    lack = shortage(executable)
    crowded = _memory_shortage(executable)
    return (lack, crowded) if lack.kind == CODE and crowded.excess_bytes > 0 else (lack,)


def shortage_text(executable: Executable, lack: Shortage) -> str:
    """Return what is short in one line, as errors and reports say it."""
    shape = (
        "the free bytes are in pieces too small"
        if lack.excess_bytes <= 0
        else f"{lack.excess_bytes:,} B too many"
    )
    if lack.kind == CODE:
        return (
            f"code needs {lack.need_bytes:,} of {lack.have_bytes:,} B of executable memory on tile {lack.tile}"
            f" ({shape})"
        )
    name = executable.step_name(lack.step)
    return f"tile {lack.tile} needs {lack.need_bytes:,} B at step {name!r} and has {lack.have_bytes:,} B ({shape})"


def parts_text(categories: Mapping[str, int]) -> str:
    """Return what lies there by category, as errors and reports say it."""
    return ", ".join(f"{category} {size:,} B" for category, size in categories.items())


def _memory_shortage(executable: Executable) -> Shortage:
    """Return what is short of memory at the fullest tile and step."""
    tile, step, live = fullest(executable)
    need, have = sum(b.size_bytes for b in live), executable.target.bytes_per_tile
    own = sum(
        b.size_bytes
        for b in live
        if b.category in ("message", "vertexScratch") or b.name.endswith(".partials")
    )
    kind = PIECES if need <= have else TEMPORARIES if own >= need - have else DATA
    return Shortage(kind, tile, step, need, have, _by_category(live), own, _uneven_bytes(executable, live))


def _uneven_bytes(executable: Executable, buffers: Iterable[Buffer]) -> int:
    """Return the bytes of variables, where they lie, beyond what they would take if each lay evenly on all tiles."""
    found = 0
    for b in buffers:
        if b.category == "variable":
            everywhere = b.size_bytes * sum(high - low for low, high in b.tiles)
            found += b.size_bytes - -(-everywhere // executable.target.num_tiles)
    return found


def eased(executable: Executable, policy: Policy) -> Policy | None:
    """Return how to plan a program again that does not fit, None where planning would not help.

    Temporaries that crowd a tile get less room; where code or data crowd, bytes of exchange code become dearer. Variables
    that crowd one tile while others have room go to more tiles first, where they were laid out for who reads them first:
    that costs some exchange, where temporaries with less room cost serial splits and the exchange code of each.
    Everything that is short has to be what planning could save (``Shortage.most_saved_bytes``): a program that
    lacks room for what it keeps is not planned again for its code.

    Args:
      executable: the program that does not fit.
      policy: what it was planned with.
    """
    lacks = shortages(executable)
    if any(lack.most_saved_bytes(policy) < lack.excess_bytes for lack in lacks):
        return None
    lack, changed = lacks[0], policy
    if lack.kind in (DATA, TEMPORARIES) and lack.is_made_up_by_spreading(policy):
        return replace(policy, held_share=LEAST_HELD_SHARE)
    by_code = lack.is_made_up_by_code(policy)
    if lack.kind != CODE and (lack.kind != DATA or not by_code):
        changed = replace(policy, memory_proportions=tightened(executable, policy))
        if changed != policy and lack.kind != DATA:
            return changed
    if by_code or lack.kind == DATA:
        changed = replace(changed, code_price=_dearer(policy.code_price))
    return None if changed == policy else changed


def with_dearer_code(executable: Executable, policy: Policy) -> Policy | None:
    """Return how to plan a program again that does not fit with code dearer, None where shorter code would not be enough.

    Args:
      executable: the program that does not fit.
      policy: what it was planned with.
    """
    if not all(lack.is_made_up_by_code(policy) for lack in shortages(executable)):
        return None
    return replace(policy, code_price=_dearer(policy.code_price))


def _dearer(price: float) -> float:
    return max(price, min(price * CODE_PRICE_RISE, MOST_CODE_PRICE))


def tightened(executable: Executable, policy: Policy) -> dict[str, float]:
    """Return memory proportions for planning again: less than operations that crowd an overfull tile take.

    Those are the ones whose received slices, scratch or partials are live in a step in which a tile needs more
    than it has, or more than it has left beside gaps between buffers: where the fullest step is mended, the next one
    does not fit either. They give up what is missing there, within ``LEAST_GIVEN_UP`` and half of what they take: that is
    often far less than they may take, and code and cycles become more with every byte that is saved.

    Args:
      executable: the program that does not fit.
      policy: what it was planned with.

    Returns:
      the same proportions when no operation is left to tighten.
    """
    most, room = _live_bytes(executable).max(axis=1), executable.target.bytes_per_tile
    left = min(room - _gap_bytes(executable, int(most.max())), int(most.max()) - 1)
    shares: dict[str, float] = {}
    for _, group in executable.groups():
        results = {executable.variables[r].storage for r in group.results}
        own = {*(o.buffer for o in group.operands), f"{group.name}.scratch"}
        own |= results if group.name.endswith(".partials") else set()
        crowding = [executable.buffers[name] for name in sorted(own) if name in executable.buffers]
        needed = max((int(most[b.start + 1 : b.end + 2].max()) for b in crowding), default=0)
        taken = sum(b.size_bytes for b in crowding)
        if needed <= left or not taken:
            continue
        taken += sum(
            executable.buffers[r].size_bytes for r in sorted(results - own) if r in executable.buffers
        )
        name = operation_of(group.name)
        given_up = min(max((needed - left) / taken, LEAST_GIVEN_UP), 0.5)
        share = min(policy.memory_proportion(name), taken / room) * (1 - given_up)
        shares[name] = max(shares.get(name, 0), share)
    return {
        **policy.memory_proportions,
        **{name: share for name, share in sorted(shares.items()) if share >= LEAST_PROPORTION},
    }


def _gap_bytes(executable: Executable, peak_bytes: int) -> int:
    """Return by how much the highest address in use exceeds the most bytes that are live at once, within limits."""
    base = min(region.base for region in executable.target.memory_regions)
    end = max((b.address + b.size_bytes for b in executable.buffers.values() if b.size_bytes), default=base)
    return min(max(0, end - base - peak_bytes), int(MOST_GAPS * executable.target.bytes_per_tile))


def peak_bytes(executable: Executable) -> int:
    """Return the most bytes live at once on a tile."""
    return sum(b.size_bytes for b in fullest(executable)[2])


def out_of_memory(executable: Executable, advice: str | None = None) -> OutOfTileMemory:
    """Return the error for an executable that does not fit, carrying it as ``executable``.

    Args:
      executable: the program that does not fit.
      advice: what the caller can do, tried.
    """
    lack, *others = shortages(executable)
    if lack.kind == CODE:
        notes, location = _code_notes(executable, lack)
    else:
        live = fullest(executable)[2]
        notes = [
            f"largest live: {b.name} {b.size_bytes:,} B ({b.category})"
            + (f" from {b.location}" if b.location else "")
            for b in live[:SHOWN]
        ]
        location = next((b.location for b in live if b.location), None)
        notes.append(_everywhere(executable, lack))
    notes += [
        f"besides, {shortage_text(executable, other)}: {parts_text(other.categories)}" for other in others
    ]
    hopeless = next((each for each in (lack, *others) if each.is_beyond_planning), None)
    if hopeless is not None:
        notes.append(
            f"not planned again: of the {hopeless.excess_bytes:,} B that are missing on tile {hopeless.tile}, other plans "
            f"are expected to save {hopeless.most_saved_bytes(Policy()):,} B at most, of temporaries and exchange code"
        )
    error = OutOfTileMemory(
        shortage_text(executable, lack),
        notes=(f"there: {parts_text(lack.categories)}", *notes),
        location=location,
        try_=advice or "check_memory=False runs it all the same, and marks it",
    )
    error.make_executable = functools.partial(_given, executable)
    return error


def _given(executable: Executable) -> Executable:
    """Return it: unlike a lambda, this crosses to other processes."""
    return executable


def _everywhere(executable: Executable, lack: Shortage) -> str:
    """Return a line on what lives on all tiles together in the step in which memory is short."""
    live = [b for b in executable.buffers.values() if b.start <= lack.step <= b.end]
    size = sum(b.size_bytes * (high - low) for b in live for low, high in b.tiles)
    held = sum(
        b.size_bytes * (high - low)
        for b in live
        if b.category in ("variable", "constant")
        for low, high in b.tiles
    )
    whole = executable.target.num_tiles * executable.target.bytes_per_tile
    return f"on all tiles together {size:,} of {whole:,} B live then, {held:,} B of them variables"


def _code_notes(executable: Executable, lack: Shortage) -> tuple[list[str], str | None]:
    """Return lines on the operations with the most exchange code on a tile, and the first one's source line."""
    code: Counter[str] = Counter()
    locations: dict[str, str] = {}
    for step, sizes in zip(executable.steps, exchange_code_by_step(executable), strict=True):
        operation = operation_of(step.name)
        code[operation] += int(sizes[lack.tile])
        location = _location(step)
        if location:
            locations.setdefault(operation, location)
    most = [(name, size) for name, size in code.most_common(SHOWN) if size]
    notes = [
        f"most exchange code: {name} {size:,} B" + (f" from {locations[name]}" if name in locations else "")
        for name, size in most
    ]
    return notes, next((locations[name] for name, _ in most if name in locations), None)


def _location(step: StepRecord) -> str:
    """Return the source line of a step, that of its first vertices where it is a compute set."""
    if isinstance(step, ExecuteStep):
        return step.groups[0].location if step.groups else ""
    return getattr(step, "location", "")


def fullest(executable: Executable) -> tuple[int, int, list[Buffer]]:
    """Return the tile and step with the most live bytes, and the buffers live there, largest first."""
    live = _live_bytes(executable)
    step, tile = np.unravel_index(int(np.argmax(live)), live.shape)
    number = int(step) - 1
    there = [b for b in _on(executable, int(tile)) if b.start <= number <= b.end]
    return int(tile), number, sorted(there, key=lambda b: -b.size_bytes)


def _on(executable: Executable, tile: int) -> list[Buffer]:
    """Return the buffers that a tile holds at any time."""
    return [b for b in executable.buffers.values() if any(low <= tile < high for low, high in b.tiles)]


def _by_category(buffers: Iterable[Buffer]) -> dict[str, int]:
    """Return the bytes of buffers by category, the largest first."""
    sizes: Counter[str] = Counter()
    for b in buffers:
        sizes[b.category] += b.size_bytes
    return dict(sizes.most_common())


def _live_bytes(executable: Executable) -> np.ndarray:
    """Return live bytes as ``live_bytes`` does, int64 ``[steps + 2, tiles]``."""
    ranges = [
        (b.start, b.end, low, high, b.size_bytes)
        for b in executable.buffers.values()
        for low, high in b.tiles
    ]
    return live_bytes(np.array(ranges, np.int64).reshape(-1, 5), executable.target.num_tiles)
