"""Copies that need not move: what is copied is computed where the copy would put it.

A loop's carried value, or the common result of branches, is written by a copy from what was computed. Where
both have one layout, and nobody needs the destination's old value once the source is written, source and
destination share their storage, and the copy costs nothing. Likewise what a function returned stays where it is
when it is read for the last time before any function is called again. A donated input that is copied for the
last time gives its own storage to the copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiles.graph import TEMPORARY, ComputeSet, Copy, Graph, Tensor, Vertices
from tiles.numerics.dtypes import itemsize
from tiles.plan import is_resident

Accesses = Mapping[str, list[tuple[int, bool]]]
"""Per tensor every step that reads (False) or writes (True) it."""


def coalesce(
    graph: Graph,
    tensors: dict[str, Tensor],
    steps: list[tuple[str, Any]],
    accesses: Accesses,
    regions: list[tuple[int, int]],
    pinned: set[str],
    root: dict[str, str],
    members: dict[str, list[str]],
) -> None:
    """Let sources of copies share the storage of the destination where they may.

    Args:
      graph: what is compiled.
      tensors: its tensors, placed.
      steps: its steps, numbered.
      accesses: who reads and writes what.
      regions: first and last step of every loop and branch.
      pinned: tensors of functions, which several calls use.
      root: storage of every tensor; changed here.
      members: tensors of every storage; changed here.
    """
    donated = {graph.inputs[position] for position in graph.donated}
    for number, (_, step) in enumerate(steps):
        if not isinstance(step, Copy) or step.axis is not None:
            continue
        source, target = tensors[step.sources[0]], tensors[step.destination]
        gone, kept = root[source.name], root[target.name]
        if gone == kept or source.dtype != target.dtype or source.layout != target.layout:
            continue
        if gone in donated:
            is_once = not any(a <= number <= b for a, b in regions)
            if is_once and _may_be_given(graph, tensors, accesses, pinned, members, number, (gone, kept)):
                _join(root, members, kept, gone)
            continue
        if not _may_go(graph, tensors, pinned, (gone, kept), members, donated):
            continue
        uses = sorted({use for name in members[gone] for use in accesses.get(name, ())})
        first = uses[0][0]
        if not uses[0][1] or uses[-1][0] > number:
            continue
        if any(a <= number <= b and not a <= first <= b for a, b in regions):
            continue
        if _is_free_between(tensors, steps, accesses, root, (gone, members[kept]), first, number):
            _join(root, members, gone, kept)


def _join(root: dict[str, str], members: dict[str, list[str]], gone: str, kept: str) -> None:
    """Let all that lies in the storage ``gone`` lie in ``kept``."""
    for name in members.pop(gone):
        root[name] = kept
        members[kept].append(name)


def _may_be_given(
    graph: Graph,
    tensors: dict[str, Tensor],
    accesses: Accesses,
    pinned: set[str],
    members: dict[str, list[str]],
    number: int,
    storages: tuple[str, str],
) -> bool:
    """Whether a donated input's storage may become that of its copy at step ``number``, which runs once."""
    given, taker = storages
    if tensors[taker].kind != TEMPORARY or any(name in pinned for s in storages for name in members[s]):
        return False
    if any(name in graph.outputs for name in members[given]):
        return False
    is_read_later = any(at > number for name in members[given] for at, _ in accesses.get(name, ()))
    is_used_before = any(at < number for name in members[taker] for at, _ in accesses.get(name, ()))
    return not is_read_later and not is_used_before


def leave_results(
    tensors: dict[str, Tensor],
    steps: list[tuple[str, Any]],
    accesses: Accesses,
    regions: list[tuple[int, int]],
    recalls: list[int],
    shared: tuple[set[str], set[str]],
    root: dict[str, str],
    members: dict[str, list[str]],
) -> None:
    """Let a copy out of a function's result be the result itself, if that is not written again too early.

    Args:
      tensors: the tensors, placed.
      steps: the steps, numbered.
      accesses: who reads and writes what.
      regions: first and last step of every loop and branch.
      recalls: the numbers of the steps right before which a function runs again.
      shared: tensors of functions that callers see, and outputs of the program.
      root: storage of every tensor; changed here.
      members: tensors of every storage; changed here.
    """
    pinned, outputs = shared
    for number, (_, step) in enumerate(steps):
        if not isinstance(step, Copy) or step.axis is not None or step.sources[0] not in pinned:
            continue
        source, target = tensors[step.sources[0]], tensors[step.destination]
        kept, gone = root[source.name], root[target.name]
        if gone == kept or tensors[kept].kind != TEMPORARY or tensors[gone].kind != TEMPORARY:
            continue
        if source.dtype != target.dtype or source.layout != target.layout:
            continue
        if any(name in outputs or name in pinned for name in members[gone]):
            continue
        uses = sorted({use for name in members[gone] for use in accesses.get(name, ())})
        last = min((at for at in recalls if at > number), default=len(steps))
        is_only_write = uses[0] == (number, True) and not any(is_write for _, is_write in uses[1:])
        if not is_only_write or uses[-1][0] >= last:
            continue
        if any((a <= number <= b) != (a <= at <= b) for a, b in regions for at, _ in uses):
            continue
        read_again = (at for name in members[kept] for at, is_write in accesses.get(name, ()) if not is_write)
        if any(number < at < last for at in read_again):
            continue  # a function that returns one tensor twice: the last copy of it stays, or names would swap
        _join(root, members, gone, kept)


def _may_go(
    graph: Graph,
    tensors: dict[str, Tensor],
    pinned: set[str],
    storages: tuple[str, str],
    members: dict[str, list[str]],
    donated: set[str],
) -> bool:
    """Whether both storages are the program's own, and the first holds no output."""
    if any(tensors[storage].kind != TEMPORARY and storage not in donated for storage in storages):
        return False
    if any(name in pinned for storage in storages for name in members[storage]):
        return False
    return not any(name in graph.outputs for name in members[storages[0]])


def _is_free_between(
    tensors: dict[str, Tensor],
    steps: list[tuple[str, Any]],
    accesses: Accesses,
    root: dict[str, str],
    storages: tuple[str, list[str]],
    first: int,
    number: int,
) -> bool:
    """Whether what lies in ``gone`` can lie in the storage of ``names`` from step ``first`` on, before the copy ``number``."""
    gone, names = storages
    inside = {use for name in names for use in accesses.get(name, ()) if first <= use[0] <= number}
    inside.discard((number, True))
    if any(at != first or is_write for at, is_write in inside):
        return False
    if not inside:
        return True
    step = steps[first][1]
    if not isinstance(step, ComputeSet):
        return False
    storage = root[names[0]]
    readers = [
        (group, k)
        for group in step.vertices
        for k, operand in enumerate(group.operands)
        if root[operand] == storage
    ]
    return all(
        any(root[result] == gone for result in group.results)
        and (may_write_over(tensors, group, k) or not _is_read_in_place(tensors, group, k))
        for group, k in readers
    )


def _is_read_in_place(tensors: dict[str, Tensor], group: Vertices, k: int) -> bool:
    layout = tensors[group.operands[k]].layout
    return layout is not None and is_resident(group.form, group.plan, k, layout)


def may_write_over(tensors: dict[str, Tensor], group: Vertices, k: int) -> bool:
    """Whether a group's only result may be written over operand ``k``, which it reads in place."""
    operand, result = tensors[group.operands[k]], tensors[group.results[0]]
    if len(group.results) != 1 or not group.codelet.may_overwrite(k):
        return False
    if itemsize(operand.dtype) != itemsize(result.dtype) or operand.layout is None or result.layout is None:
        return False
    if operand.layout.part_shape != result.layout.part_shape:
        return False
    if operand.layout.tile_mask != result.layout.tile_mask or not _is_read_in_place(tensors, group, k):
        return False
    form = group.form
    wide = {d for d, dim in enumerate(form.dims) if dim.size > 1}
    reads, writes = ([d for d in m.dims if d in wide] for m in (form.operands[k], form.results[0]))
    kept = {d for d in wide if not form.dims[d].is_reduced}
    # a transposition, or a fold of what it overwrites, would overwrite what it has yet to read
    return reads == writes and set(reads) == kept and not group.plan.split_reductions(form)
