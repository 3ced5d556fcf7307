"""Proofs about codelets: they turn a cell's slices into parts of the right shape and dtype, and their memory is there.

A codelet may be anyone's code: whatever it raises here, it refuses its operands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import partial

import jax
import numpy as np

from tiles._jax_compat import eval_shape
from tiles.codelets import ExportedCodelet
from tiles.compiler.control import Composite, nodes_of
from tiles.compiler.control_flow import records_of
from tiles.compiler.executable import Executable
from tiles.compiler.steps import HOST_STEPS, ExecuteStep, VertexGroup
from tiles.compiler.wellformed import is_count, part_bytes, refuse, where
from tiles.graph import Cell, Codelet, Extents
from tiles.numerics.dtypes import to_jax

Part = tuple[tuple[int, ...], str]
"""Shape and dtype of a slice or part."""


def prove_codelets(executable: Executable) -> int:
    """Raise InvalidExecutable unless each codelet gives parts of its results' shapes and dtypes; return how many did."""
    known = _results_at_once(executable)
    proved = set[Hashable]()
    for number, group in executable.groups():
        at = where(number, executable.steps[number], group)
        sizes, operands = _cell_of(executable, group)
        key = _question(group, sizes, operands)
        if key not in proved:
            _prove_dtypes(at, group, operands)
            if key not in known:
                known[key] = _results(at, group, sizes, operands)
            if isinstance(group.codelet, ExportedCodelet):
                results = [executable.variables[name].dtype for name in group.results]
                group.codelet.prove(group.form, [dtype for _, dtype in operands], results)
                _prove_code(at, group, group.codelet, sizes, operands, known[key])
            proved.add(key)
        expected = tuple(
            (tuple(sizes[d] for d in index_map.dims), executable.variables[name].dtype)
            for name, index_map in zip(group.results, group.form.results, strict=True)
        )
        if known[key] != expected:
            shown = (
                f"{_shown(known[key])} for parts of {', '.join(group.results)}; expected {_shown(expected)}"
            )
            raise refuse(f"{at}: {group.codelet.name} gives {shown}", group.location)
    _prove_composites(executable)
    return len(proved)


def _prove_dtypes(at: str, group: VertexGroup, operands: tuple[Part, ...]) -> None:
    """Raise InvalidExecutable where a codelet's parameters state other dtypes than its operands have."""
    stated, held = group.codelet.stated_dtypes, tuple(dtype for _, dtype in operands)
    if stated != held[: len(stated)]:
        raise refuse(
            f"{at}: {group.codelet.name} is of {', '.join(stated)}; its operands are {', '.join(held)}",
            group.location,
        )


def _cell_of(executable: Executable, group: VertexGroup) -> tuple[tuple[int, ...], tuple[Part, ...]]:
    """Return the extents of a group's full cell, and the slices that it reads."""
    sizes = tuple(min(split.grain, split.size) for split in group.plan.splits)
    return sizes, _slices(executable, group, sizes)


def _question(group: VertexGroup, sizes: tuple[int, ...], operands: tuple[Part, ...]) -> Hashable:
    """Return all that the parts depend on which a group's codelet gives."""
    return repr(group.codelet), group.form, sizes, operands


def _results_at_once(executable: Executable) -> dict[Hashable, tuple[Part, ...]]:
    """Return what all codelets give, traced as one function, which takes half as long as one by one; nothing if any refuses."""
    groups: dict[Hashable, tuple[VertexGroup, tuple[int, ...], tuple[Part, ...]]] = {}
    for _, group in executable.groups():
        sizes, operands = _cell_of(executable, group)
        groups.setdefault(_question(group, sizes, operands), (group, sizes, operands))

    def computed(slices: list[list[jax.Array]]) -> list[tuple[jax.Array, ...]]:
        given = zip(groups.values(), slices, strict=True)
        return [_computed(group.codelet, _cell(group, sizes), *own) for (group, sizes, _), own in given]

    try:
        with jax.enable_x64(True):
            found = eval_shape(computed, [_structs(operands) for _, _, operands in groups.values()])
        return {key: _parts(results) for key, results in zip(groups, found, strict=True)}
    except Exception:
        return {}  # asked one by one, the one that refuses is found


def _prove_composites(executable: Executable) -> None:
    """Raise InvalidExecutable where a composite's body has codelets that its own codelet cannot be made of."""
    done = set[int]()
    for node in nodes_of(executable.program):
        if not isinstance(node, Composite) or node.number in done:
            continue
        done.add(node.number)
        whole = executable.composites[node.number]
        records = records_of(executable, node.body)
        stages = [group.codelet for step in records if isinstance(step, ExecuteStep) for group in step.groups]
        if found := whole.codelet.misfit(whole.form, stages):
            raise refuse(f"composite {whole.name}: {found}", whole.location)


def _prove_code(
    at: str,
    group: VertexGroup,
    codelet: ExportedCodelet,
    sizes: tuple[int, ...],
    operands: tuple[Part, ...],
    expected: tuple[Part, ...],
) -> None:
    """Raise InvalidExecutable where the tile code that a user's codelet runs is of something else."""
    if codelet.runs is not None:
        found = _results(at, replace(group, codelet=codelet.runs), sizes, operands)
        if found != expected:
            shown = f"{_shown(found)}; expected {_shown(expected)}"
            raise refuse(f"{at}: the tile code of {codelet.name} gives {shown}", group.location)


def _slices(executable: Executable, group: VertexGroup, sizes: tuple[int, ...]) -> tuple[Part, ...]:
    """Return the slices that a full cell reads."""
    found: list[tuple[tuple[int, ...], str]] = []
    for operand, index_map in zip(group.operands, group.form.operands, strict=True):
        extents: list[int] = []
        for axis in index_map.axes:
            reach = sum((abs(c) if len(axis.terms) > 1 else 1) * (sizes[d] - 1) for d, c in axis.terms)
            extents.append(0 if any(not sizes[d] for d, _ in axis.terms) else 1 + reach)
        found.append((tuple(extents), executable.variables[operand.variable].dtype))
    return tuple(found)


def _results(
    at: str, group: VertexGroup, sizes: tuple[int, ...], operands: tuple[Part, ...]
) -> tuple[Part, ...]:
    try:
        with jax.enable_x64(True):
            results = eval_shape(partial(_computed, group.codelet, _cell(group, sizes)), *_structs(operands))
        return _parts(results)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise refuse(
            f"{at}: {group.codelet.name} refuses {_shown(operands)}: {reason}", group.location
        ) from error


def _cell(group: VertexGroup, sizes: tuple[int, ...]) -> Cell:
    return Cell(group.form, sizes, (0,) * len(sizes), (None,) * len(sizes))


def _structs(slices: tuple[Part, ...]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, to_jax(dtype)) for shape, dtype in slices]


def _parts(results: Iterable[jax.ShapeDtypeStruct]) -> tuple[Part, ...]:
    return tuple((tuple(r.shape), r.dtype.name) for r in results)


def _computed(codelet: Codelet, cell: Cell, *operands: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(codelet.compute(cell, *operands))


def _shown(parts: tuple[Part, ...]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in parts) or "nothing"


def prove_overheads(executable: Executable) -> int:
    """Raise InvalidExecutable unless each tile has room for the state, code and stacks it needs; return the bytes needed.

    Scratch counts step by step: all vertices of a compute set may run at once.
    """
    total = _prove_by_step(executable, "vertexScratch", _scratch_needed(executable))
    total += _prove_by_step(executable, "hostMessage", _apertures_needed(executable))
    for category, need in _overheads(executable).items():
        have = np.zeros(executable.target.num_tiles, np.int64)
        for b in executable.buffers.values():
            if b.category == category:
                for first, end in b.tiles:
                    have[first:end] += b.size_bytes
        short = np.flatnonzero(have < need)
        if short.size:
            tile = int(short[0])
            raise refuse(f"tile {tile} has {have[tile]} B of {category}, it needs {need[tile]} B")
        total += int(need.sum())
    return total


def _scratch_needed(executable: Executable) -> dict[int, np.ndarray]:
    """Return the scratch of every step's vertices by step, int64 ``[num_tiles]`` each."""
    need: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(executable.target.num_tiles, np.int64))
    known: dict[Hashable, int] = {}
    for number, group in executable.groups():
        kind = _kind(executable, group)
        if kind not in known:
            known[kind] = _scratch(executable, number, group)
        if known[kind]:
            need[number][group.plan.tiles] += known[kind]
    return need


def _kind(executable: Executable, group: VertexGroup) -> Hashable:
    """Return all that the sizes of a group's vertices depend on."""
    names = (*(operand.variable for operand in group.operands), *group.results)
    dtypes = tuple(executable.variables[name].dtype for name in names)
    return group.codelet, group.form, tuple((split.size, split.grain) for split in group.plan.splits), dtypes


def _apertures_needed(executable: Executable) -> dict[int, np.ndarray]:
    """Return the bytes in which every tile receives a slice of an item from the host, by step."""
    need: dict[int, np.ndarray] = {}
    for number, step in enumerate(executable.steps):
        if isinstance(step, HOST_STEPS) and not step.to_host:
            variable = executable.variables[step.variable]
            need[number] = np.zeros(executable.target.num_tiles, np.int64)
            need[number][variable.layout.tiles] = min(
                part_bytes(variable), executable.target.host_slice_bytes
            )
    return need


def _prove_by_step(executable: Executable, category: str, need: dict[int, np.ndarray]) -> int:
    """Raise InvalidExecutable unless what a step needs in one category is there; return the bytes needed."""
    tiles = executable.target.num_tiles
    have: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(tiles, np.int64))
    for b in executable.buffers.values():
        if b.category == category:
            for number in range(max(b.start, 0), min(b.end, len(executable.steps) - 1) + 1):
                for first, end in b.tiles:
                    have[number][first:end] += b.size_bytes
    for number, bytes_needed in need.items():
        short = np.flatnonzero(have[number] < bytes_needed)
        if short.size:
            tile, name = int(short[0]), executable.steps[number].name
            raise refuse(
                f"tile {tile} has {have[number][tile]} B of {category} at step {number} ({name}), "
                f"it needs {bytes_needed[tile]} B"
            )
    return sum(int(n.sum()) for n in need.values())


def _scratch(executable: Executable, number: int, group: VertexGroup) -> int:
    """Return the temporary bytes of the group's vertex that needs most."""
    try:
        need = group.codelet.variant_scratch_bytes(_kinds_of_cells(executable, group), executable.target)
        return int(np.max(need, initial=0))
    except Exception as error:
        at = where(number, executable.steps[number], group)
        raise refuse(f"{at}: {group.codelet.name} has no size: {error!r}", group.location) from error


def _extents(executable: Executable, group: VertexGroup, sizes: tuple[np.ndarray, ...]) -> Extents:
    operands = tuple(executable.variables[o.variable].dtype for o in group.operands)
    return Extents(group.form, sizes, operands, tuple(executable.variables[r].dtype for r in group.results))


def _kinds_of_cells(executable: Executable, group: VertexGroup) -> Extents:
    """Return the extents of a cell of every kind: those of each dimension's parts with those of all others."""
    lengths = [np.unique(split.hi - split.lo) for split in group.plan.splits]
    sizes = tuple(axis.ravel() for axis in np.meshgrid(*lengths, indexing="ij"))
    return _extents(executable, group, sizes)


def _overheads(executable: Executable) -> dict[str, np.ndarray]:
    """Return bytes that every tile needs per category, int64 ``[num_tiles]``."""
    target = executable.target
    state = np.zeros(target.num_tiles, np.int64)
    code: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(target.num_tiles, np.int64))
    known: dict[Hashable, tuple[int, str, int]] = {}
    for number, group in executable.groups():
        kind = _kind(executable, group)
        if kind not in known:
            known[kind] = _sizes(executable, number, group)
        state_bytes, label, code_bytes = known[kind]
        tiles = group.plan.tiles
        state[tiles] += state_bytes
        code[label][tiles] = np.maximum(code[label][tiles], code_bytes)
    zeros = np.zeros(target.num_tiles, np.int64)
    headers, copies = zeros.copy(), 0
    for step in executable.steps:
        if isinstance(step, HOST_STEPS):
            variable, copies = executable.variables[step.variable], copies + 1
            packet = target.host_write_packet_bytes if step.to_host else target.host_read_packet_bytes
            packets = -(-part_bytes(variable) // packet)
            headers[variable.layout.tiles] += packets * target.host_packet_header_bytes
    return {
        "hostExchangeCode": zeros + target.host_exchange_code_bytes_per_step * copies,
        "hostExchangePacketHeader": headers,
        "vertexInstanceState": state,
        "vertexCode": sum(code.values(), zeros),
        "controlCode": zeros + target.control_code_bytes_per_step * max(1, len(executable.steps)),
        "stack": zeros + target.supervisor_stack_bytes + target.workers_per_tile * target.worker_stack_bytes,
    }


def _sizes(executable: Executable, number: int, group: VertexGroup) -> tuple[int, str, int]:
    """Return the state of each vertex of a group, what its code is called, and the bytes of that."""
    target, codelet = executable.target, group.codelet
    at = where(number, executable.steps[number], group)
    try:
        state_bytes, label = codelet.state_bytes(group.form, target), codelet.label
        code_bytes = codelet.variant_bytes(_kinds_of_cells(executable, group), target)
    except Exception as error:
        raise refuse(f"{at}: {codelet.name} has no size: {error!r}", group.location) from error
    if not (is_count(state_bytes) and is_count(code_bytes)):
        sizes = f"{state_bytes!r} B of state and {code_bytes!r} B of code"
        raise refuse(f"{at}: {codelet.name} has {sizes}", group.location)
    return state_bytes, label, code_bytes
