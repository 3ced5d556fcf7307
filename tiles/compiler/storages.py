"""Storages: which tensors lie in one buffer.

Views lie where their base does. Beside that two tensors share a storage in four cases, found in this order:

1. What branches leave, of which one leaves an operand as it is, is that operand, if nobody reads it any more: state of which a
   step is skipped, or one row of it written, where a condition says so.
2. A copy need not move: what is copied is computed where the copy would put it. A loop's carried value, or the common
   result of branches, is written by a copy from what was computed. Where both have one layout, and nobody needs the
   destination's old value once the source is written, the copy costs nothing. A donated input that is copied for the
   last time gives its own storage to the copy.
3. What a function returned stays where it is when it is read for the last time before any function is called again.
4. A result is written over an operand that is read in place for the last time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tiles.cached import cached_property
from tiles.compiler.order import Order, is_carried_around, live_range, uncalled_range
from tiles.graph import TEMPORARY, ComputeSet, Copy, Tensor, Vertices
from tiles.numerics.dtypes import itemsize
from tiles.plan import is_resident


class Storages:
    """The storage of every tensor of a program: the tensor whose buffer holds it.

    Args:
      order: the program's steps, numbered.
      tensors: its tensors by name, with layouts.
    """

    def __init__(self, order: Order, tensors: Mapping[str, Tensor]) -> None:
        """Let every tensor lie in a storage of its own, views in their base's."""
        self.order = order
        self.tensors = tensors
        self._of = {name: order.graph.storage(name) for name in tensors}
        self._members: dict[str, list[str]] = defaultdict(list)
        for name, storage in self._of.items():
            self._members[storage].append(name)

    @classmethod
    def shared(cls, order: Order, tensors: Mapping[str, Tensor]) -> Storages:
        """Return storages that tensors share wherever they may."""
        storages = cls(order, tensors)
        storages._choose_in_place()
        storages._skip_copies()
        storages._leave_results()
        storages._overwrite_operands()
        return storages

    def of(self, name: str) -> str:
        """Return the storage of a tensor."""
        return self._of[name]

    def members(self) -> dict[str, list[str]]:
        """Return the tensors of every storage, in the order of the program's tensors."""
        members: dict[str, list[str]] = defaultdict(list)
        for name, storage in self._of.items():
            members[storage].append(name)
        return members

    def live_range(self, storage: str) -> tuple[int, int]:
        """Return the first and the last step in which a storage is live."""
        order = self.order
        return live_range(order.graph, order, self._members[storage], len(order.steps))

    def _begins(self, storage: str) -> int:
        """Return the step in which a storage's value begins, where no function shares it: whatever is called later."""
        order, members = self.order, self._members[storage]
        of = live_range if self._holds_any(storage, order.pinned) else uncalled_range
        return of(order.graph, order, members, len(order.steps))[0]

    # ---- who uses a storage

    def _uses(self, storage: str) -> list[tuple[int, bool]]:
        """Return the steps that read (False) or write (True) it, in order."""
        return sorted({use for name in self._members[storage] for use in self.order.accesses.get(name, ())})

    def _holds_any(self, storage: str, names: set[str] | frozenset[str]) -> bool:
        return any(name in names for name in self._members[storage])

    @cached_property
    def _regions(self) -> list[tuple[int, int]]:
        """First and last step of every loop and branch."""
        return [*self.order.loops, *self.order.branches]

    def _join(self, gone: str, kept: str) -> None:
        """Let all that lies in ``gone`` lie in ``kept``."""
        for name in self._members.pop(gone):
            self._of[name] = kept
            self._members[kept].append(name)

    def _ends(self, copy: Copy) -> tuple[str, str] | None:
        """Return the storages that a copy reads and writes where one could be the other: alike but not the same."""
        source, target = self.tensors[copy.sources[0]], self.tensors[copy.destination]
        ends = self._of[source.name], self._of[target.name]
        is_alike = source.dtype == target.dtype and source.layout == target.layout
        return ends if is_alike and ends[0] != ends[1] else None

    # ---- results of branches

    def _choose_in_place(self) -> None:
        """Let the common result of branches lie in an operand that one of them copies into it, where it may."""
        done: set[str] = set()
        for _, step in self.order.steps:
            if not isinstance(step, Copy) or step.axis is not None or (ends := self._ends(step)) is None:
                continue
            given, chosen = ends
            if chosen not in done and self._may_choose_in_place(given, chosen):
                done.add(chosen)
                self._join(chosen, given)

    def _may_choose_in_place(self, given: str, chosen: str) -> bool:
        """Whether what branches choose may lie in ``given``: it is not read after what is chosen is written, nor later."""
        order = self.order
        if self.tensors[chosen].kind != TEMPORARY or not (
            self.tensors[given].kind == TEMPORARY or given in order.donated
        ):
            return False
        if any(self._holds_any(each, order.pinned | order.undefined.keys()) for each in (given, chosen)):
            return False
        uses = self._uses(chosen)
        writes = [number for number, is_write in uses if is_write]
        branches = [self._branch_of(number) for number in writes]
        spans = [span for span in branches if span is not None]
        if len(spans) < len(writes) or len(set(spans)) < len(spans):
            return False
        first, last = min(a for a, _ in spans), max(b for _, b in spans)
        if any(not is_write and number <= last for number, is_write in uses):
            return False
        held = self._uses(given)
        for write, (_, end) in zip(writes, spans, strict=True):
            if any(write < number <= end for number, _ in held):
                return False
        if any(is_write and first <= number <= last for number, is_write in held):
            return False
        after = [(number, is_write) for number, is_write in held if number > last]
        if any(is_write and not self._copies(number, chosen) for number, is_write in after):
            return False
        if (after and not after[0][1]) or (not after and self._holds_any(given, order.outputs)):
            return False
        for begin, end in order.loops:  # the next trip reads what was chosen, or writes first
            if begin <= last <= end and not any(number <= end for number, _ in after):
                inside = [use for use in held if begin <= use[0] <= end]
                if len(inside) < len(held) or not inside[0][1]:
                    return False
        return True

    def _branch_of(self, number: int) -> tuple[int, int] | None:
        """Return the innermost branch around a step if no loop is in between; None without one."""
        found = min(
            (b - a, a, b) for a, b in [(0, len(self.order.steps)), *self.order.branches] if a <= number <= b
        )
        _, a, b = found
        if (a, b) not in self.order.branches:
            return None
        is_in_loop = any(a <= x <= number <= y <= b for x, y in self.order.loops)
        return None if is_in_loop else (a, b)

    def _copies(self, number: int, source: str) -> bool:
        """Whether a step is nothing but a copy of what lies in a storage."""
        step = self.order.steps[number][1]
        return isinstance(step, Copy) and step.axis is None and self._of[step.sources[0]] == source

    # ---- copies that need not move

    def _skip_copies(self) -> None:
        """Let sources of copies lie in the storage of the destination where they may."""
        order = self.order
        for number, (_, step) in enumerate(order.steps):
            if not isinstance(step, Copy) or step.axis is not None or (ends := self._ends(step)) is None:
                continue
            gone, kept = ends
            if gone in order.donated:
                is_once = not any(a <= number <= b for a, b in self._regions)
                if is_once and self._may_be_given(number, gone, kept):
                    self._join(kept, gone)
                continue
            if not self._may_go(gone, kept):
                continue
            uses = self._uses(gone)
            first = uses[0][0]
            if not uses[0][1] or uses[-1][0] > number:
                continue
            if any(a <= number <= b and not a <= first <= b for a, b in self._regions):
                continue
            if self._is_free_between(gone, kept, first, number):
                self._join(gone, kept)

    def _may_be_given(self, number: int, given: str, taker: str) -> bool:
        """Whether a donated input's storage may become that of its copy at step ``number``, which runs once."""
        pinned = self.order.pinned
        if self.tensors[taker].kind != TEMPORARY:
            return False
        if self._holds_any(given, pinned) or self._holds_any(taker, pinned):
            return False
        if self._holds_any(given, self.order.outputs):
            return False
        is_read_later = any(at > number for at, _ in self._uses(given))
        is_used_before = any(at < number for at, _ in self._uses(taker))
        return not is_read_later and not is_used_before

    def _may_go(self, gone: str, kept: str) -> bool:
        """Whether both storages are the program's own, and the first holds no output."""
        order = self.order
        if any(self.tensors[s].kind != TEMPORARY and s not in order.donated for s in (gone, kept)):
            return False
        if self._holds_any(gone, order.pinned) or self._holds_any(kept, order.pinned):
            return False
        return not self._holds_any(gone, order.outputs)

    def _is_free_between(self, gone: str, kept: str, first: int, number: int) -> bool:
        """Whether what lies in ``gone`` can lie in ``kept`` from step ``first`` on, before the copy ``number``."""
        inside = {use for use in self._uses(kept) if first <= use[0] <= number}
        inside.discard((number, True))
        if any(at != first or is_write for at, is_write in inside):
            return False
        if not inside:
            return True
        step = self.order.steps[first][1]
        if not isinstance(step, ComputeSet):
            return False
        readers = [
            (group, k)
            for group in step.vertices
            for k, operand in enumerate(group.operands)
            if self._of[operand] == kept
        ]
        return all(
            any(
                _may_write_over(self.tensors, group, k, result)
                or not _is_read_in_place(self.tensors, group, k)
                for result in group.results
                if self._of[result] == gone
            )
            for group, k in readers
        )

    # ---- results of functions

    def _leave_results(self) -> None:
        """Let a copy out of a function's result be the result itself, if that is not written again too early."""
        order, tensors = self.order, self.tensors
        recalls = [at for at, _ in order.recalls]
        for number, (_, step) in enumerate(order.steps):
            if not isinstance(step, Copy) or step.axis is not None or step.sources[0] not in order.pinned:
                continue
            if (ends := self._ends(step)) is None:
                continue
            kept, gone = ends
            if tensors[kept].kind != TEMPORARY or tensors[gone].kind != TEMPORARY:
                continue
            if self._holds_any(gone, order.outputs) or self._holds_any(gone, order.pinned):
                continue
            uses = self._uses(gone)
            last = min((at for at in recalls if at > number), default=len(order.steps))
            is_only_write = uses[0] == (number, True) and not any(is_write for _, is_write in uses[1:])
            if not is_only_write or uses[-1][0] >= last:
                continue
            if any((a <= number <= b) != (a <= at <= b) for a, b in self._regions for at, _ in uses):
                continue
            if any(number < at < last for at, is_write in self._uses(kept) if not is_write):
                continue  # a function that returns one tensor twice: the last copy of it stays, or names would swap
            self._join(gone, kept)

    # ---- results over operands

    def _overwrite_operands(self) -> None:
        """Let each result of a group lie in the storage of an operand that the group reads for the last time."""
        for number, (_, step) in enumerate(self.order.steps):
            if not isinstance(step, ComputeSet):
                continue
            for group in step.vertices:
                for result in group.results:
                    if self._of[result] != result:
                        continue
                    victim = self._overwritable(step, group, result, number)
                    if victim is not None:
                        self._join(result, victim)

    def _overwritable(self, step: ComputeSet, group: Vertices, result: str, number: int) -> str | None:
        """Return the storage that one of a group's results may take over: an operand read in place for the last time.

        No other group of its compute set may use it, and no other result lie there.
        """
        operands = [name for member in step.vertices for name in member.operands]
        others = [name for member in step.vertices for name in member.results if name != result]
        for k, name in enumerate(group.operands):
            storage = self._of[name]
            free = self.tensors[storage].kind == TEMPORARY or storage in self.order.donated
            if not free or storage == self._of[result]:
                continue
            if not _may_write_over(self.tensors, group, k, result):
                continue
            if sum(self._of[other] == storage for other in operands) > 1:
                continue
            if any(self._of[other] == storage for other in others):
                continue
            if is_carried_around(self.order, self._members[storage], number):
                continue
            if self._begins(self._of[result]) == number == self.live_range(storage)[1]:
                return storage
        return None


def _is_read_in_place(tensors: Mapping[str, Tensor], group: Vertices, k: int) -> bool:
    layout = tensors[group.operands[k]].layout
    return layout is not None and is_resident(group.form, group.plan, k, layout)


def _wide_parts(tensor: Tensor) -> list[int]:
    """Return the extents of a tile's part along the axes of a tensor that have more than one element."""
    assert tensor.layout is not None
    parts = zip(tensor.layout.part_shape, tensor.shape, strict=True)
    return [part for part, size in parts if size > 1]


def _may_write_over(tensors: Mapping[str, Tensor], group: Vertices, k: int, name: str) -> bool:
    """Whether one of a group's results may be written over operand ``k``, which it reads in place.

    Of several results, only those of codelets that compute point by point: the others write each when it is done.
    """
    operand, result = tensors[group.operands[k]], tensors[name]
    if not group.codelet.may_overwrite(k) or not (len(group.results) == 1 or group.codelet.is_pointwise):
        return False
    if itemsize(operand.dtype) != itemsize(result.dtype) or operand.layout is None or result.layout is None:
        return False
    if _wide_parts(operand) != _wide_parts(result):
        return False
    if operand.layout.tile_mask != result.layout.tile_mask or not _is_read_in_place(tensors, group, k):
        return False
    form = group.form
    wide = {d for d, dim in enumerate(form.dims) if dim.size > 1}
    reads, writes = (
        [d for d in m.dims if d in wide] for m in (form.operands[k], form.results[group.results.index(name)])
    )
    kept = {d for d in wide if not form.dims[d].is_reduced}
    # a transposition, or a fold of what it overwrites, would overwrite what it has yet to read
    return reads == writes and set(reads) == kept and not group.plan.split_reductions(form)
