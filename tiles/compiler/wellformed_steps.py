"""The structure of an executable's steps: variables, forms and plans fit together, results may be written.

The second half of ``wellformed``; like it, nothing here follows the program or derives slices.
"""

from __future__ import annotations

import math

import numpy as np

from tiles.compiler.executable import Executable
from tiles.compiler.steps import (
    AbortStep,
    BetweenStep,
    CopyStep,
    ErrorStep,
    ExecuteStep,
    IndexStep,
    PrintStep,
    RemoteStep,
    StepRecord,
    StreamStep,
    SyncStep,
    UndefStep,
    VariableCopy,
    VertexGroup,
)
from tiles.compiler.wellformed import (
    check_declarations,
    check_name,
    check_scalar,
    check_tiles,
    has_small_numbers,
    is_count,
    refuse,
    where,
)
from tiles.compiler.wellformed_messages import check_messages, check_print
from tiles.errors import InvalidExecutable, InvalidGraph, IpuError
from tiles.files import is_a
from tiles.graph import TEMPORARY, Codelet
from tiles.numerics.dtypes import is_integer


def check_steps(executable: Executable) -> None:
    """Raise InvalidExecutable unless every step's variables exist, have the shapes it needs and may be written."""
    kept = _kept(executable)
    for number, step in enumerate(executable.steps):
        _check_step(executable, kept, number, step)
    for number, whole in enumerate(executable.composites):
        if any(operand.buffer for operand in whole.operands) or whole.plan.num_cells != 1:
            raise refuse(f"composite {whole.name} has receive buffers or a plan that cuts it", whole.location)
        _check_step(executable, kept, number, ExecuteStep(whole.name, (whole,)))
    check_messages(executable)
    _check_shared_exchange(executable)


def _check_shared_exchange(executable: Executable) -> None:
    """Refuse a movement that is not there, or runs the exchange program of one that has none of its own before it."""
    shared = executable.shared_exchange
    for movement, first in shared.items():
        if not all(map(is_count, (*movement, *first))):
            raise refuse(f"movement {movement!r:.100} cannot run the exchange program of {first!r:.100}")
        for step, number in (movement, first):
            count = _num_movements(executable.steps[step]) if step < len(executable.steps) else 0
            if number >= count:
                raise refuse(
                    f"step {step} has {count} movements, there is no exchange program of tensor {number}"
                )
        if first >= movement or first in shared:
            raise refuse(
                f"tensor {movement[1]} of step {movement[0]} runs the exchange program of tensor {first[1]} of step"
                f" {first[0]}, which has none of its own before it"
            )


def _num_movements(step: StepRecord) -> int:
    """Return the tensors that the exchange of a compute set or copy moves."""
    if isinstance(step, CopyStep):
        return sum(len(copy.sources) for copy in step.copies)
    groups = step.groups if isinstance(step, ExecuteStep) else ()
    return sum(bool(operand.buffer) for group in groups for operand in group.operands)


def _kept(executable: Executable) -> dict[str, str]:
    """Return per storage the input or constant in it that no step may overwrite."""
    donated = {executable.inputs[i] for i in executable.donated}
    return {
        v.storage: v.name
        for v in executable.variables.values()
        if v.kind != TEMPORARY and v.name not in donated
    }


def _check_step(executable: Executable, kept: dict[str, str], number: int, step: StepRecord) -> None:
    check_name("step", step.name, step.name, *step.texts())
    results = written_by(step)
    for name in (*read_by(step), *results):
        if not is_a(name, str) or name not in executable.variables:
            raise refuse(f"{where(number, step)} names {name!r}, which is not a variable")
    if len(set(results)) != len(results):
        raise refuse(f"{where(number, step)} writes a variable twice: {', '.join(results)}")
    for name in results:
        variable = executable.variables[name]
        if variable.view_of:
            raise refuse(
                f"{where(number, step)} writes {name}, a view of {variable.view_of}", variable.location
            )
        if variable.storage in kept:
            other = executable.variables[kept[variable.storage]]
            raise refuse(
                f"{where(number, step)} writes {name} over {other.kind} {other.name}, which is not donated",
                variable.location,
            )
    match step:
        case CopyStep():
            for copy in step.copies:
                _check_copy(executable, where(number, step), copy)
            _check_copies_apart(executable, number, step)
        case BetweenStep():
            _check_between(executable, number, step)
        case IndexStep():
            _check_axes(executable, number, step)
            variable = executable.variables[step.variable]
            if (variable.shape, variable.dtype) != ((), "uint32"):
                found = f"{variable.dtype}{list(variable.shape)}"
                raise refuse(f"{where(number, step)} writes its index into {found}", step.location)
        case StreamStep():
            _check_stream(executable, number, step)
        case RemoteStep():
            _check_remote(executable, number, step)
        case AbortStep():
            check_scalar(executable, step.predicate, "predicate", ("bool",))
        case UndefStep():
            _check_undefined(executable, kept, number, step)
        case SyncStep():
            if type(step.external) is not bool:
                raise refuse(f"{where(number, step)} syncs with {step.external!r}", step.location)
        case ExecuteStep():
            for group in step.groups:
                _check_group(executable, number, step, group)
            _check_apart(executable, number, step)
        case PrintStep():
            check_print(where(number, step), step)
        case ErrorStep():
            pass


def _check_apart(executable: Executable, number: int, step: ExecuteStep) -> None:
    """Refuse groups that write over each other's results, or read of another one what they do not find on their tile.

    Groups run in order on every tile: one may read in place what an earlier one wrote, and only then write over it.
    """
    written: dict[str, tuple[VertexGroup, str]] = {}
    """By storage, what is in it since which group of the step."""
    for group in step.groups:
        found: set[str] = set()
        for operand in group.operands:
            storage = executable.variables[operand.variable].storage
            if storage not in written:
                continue
            name = written[storage][1]
            if operand.buffer or operand.variable != name:
                other = f"over which another group of the same compute set writes {name}"
                raise refuse(
                    f"{where(number, step, group)} reads {operand.variable}, {other}", group.location
                )
            found.add(storage)
        for name in group.results:
            storage = executable.variables[name].storage
            if storage in written and (written[storage][0] is group or storage not in found):
                other = f"where {written[storage][1]} is written too"
                raise refuse(
                    f"{where(number, step, group)} writes {name} into buffer {storage}, {other}",
                    group.location,
                )
            written[storage] = group, name


def read_by(step: StepRecord) -> tuple[str, ...]:
    """Return the variables a step reads."""
    return step.reads


def written_by(step: StepRecord) -> tuple[str, ...]:
    """Return the variables a step writes."""
    return step.writes


def _check_copies_apart(executable: Executable, number: int, step: CopyStep) -> None:
    """Refuse two copies into one buffer, and one that reads what another one writes."""
    storage = {name: executable.variables[name].storage for name in (*step.reads, *step.writes)}
    writers: dict[str, VariableCopy] = {}
    for copy in step.copies:
        other = writers.setdefault(storage[copy.destination], copy)
        if other is not copy:
            raise refuse(
                f"{where(number, step)} writes {copy.destination} into buffer {storage[copy.destination]},"
                f" where {other.destination} is written too",
                copy.location,
            )
    for copy in step.copies:
        for name in copy.sources:
            other = writers.get(storage[name], copy)
            if other is not copy:
                raise refuse(
                    f"{where(number, step)} reads {name}, over which it copies {other.destination}",
                    copy.location,
                )


def _check_copy(executable: Executable, at: str, step: VariableCopy) -> None:
    target = executable.variables[step.destination]
    sources = [executable.variables[name] for name in step.sources]
    if not sources or any(s.dtype != target.dtype for s in sources):
        found = ", ".join(s.dtype for s in sources) or "nothing"
        raise refuse(f"{at} copies {found} into {target.name} of {target.dtype}", step.location)
    if step.axis is None:
        if len(sources) != 1 or math.prod(sources[0].shape) != math.prod(target.shape):
            shapes = ", ".join(str(s.shape) for s in sources)
            raise refuse(f"{at} copies {shapes} into {target.name} of shape {target.shape}", step.location)
        source = sources[0]
        if (source.storage, source.shape) == (
            target.storage,
            target.shape,
        ) and source.layout != target.layout:
            raise refuse(f"{at} writes {target.name} over {source.name} while it reads it", step.location)
        return
    if not is_count(step.axis) or step.axis >= len(target.shape):
        raise refuse(
            f"{at} joins along axis {step.axis!r} of {target.name}, which has {len(target.shape)} axes",
            step.location,
        )
    for s in sources:
        if len(s.shape) != len(target.shape) or _without(s.shape, step.axis) != _without(
            target.shape, step.axis
        ):
            raise refuse(
                f"{at} joins {s.name} {s.shape} into {target.name} {target.shape} along axis {step.axis}",
                step.location,
            )
    total = sum(s.shape[step.axis] for s in sources)
    if total != target.shape[step.axis]:
        raise refuse(
            f"{at} joins {total} elements along axis {step.axis} of {target.name}, which has {target.shape[step.axis]}",
            step.location,
        )


def _check_axes(executable: Executable, number: int, step: BetweenStep | IndexStep) -> None:
    try:
        executable.replicas.require(step.axes)
    except InvalidGraph as error:
        raise refuse(f"{where(number, step)}: {error.what}", step.location) from error


def _check_between(executable: Executable, number: int, step: BetweenStep) -> None:
    """Refuse ends that do not lie alike, and permutations that leave the group or send two to one."""
    at = where(number, step)
    _check_axes(executable, number, step)
    one, other = executable.variables[step.source], executable.variables[step.destination]
    if (one.shape, one.dtype, one.layout) != (other.shape, other.dtype, other.layout):
        shown = (f"{v.name} of {v.dtype}{list(v.shape)} {v.layout}" for v in (one, other))
        raise refuse(f"{at} sends {' to '.join(shown)}; both ends must lie alike", step.location)
    if one.storage == other.storage:
        raise refuse(f"{at} receives {other.name} over {one.name}, which it sends", step.location)
    if step.stage:
        check_scalar(executable, step.stage, "stage", ("uint32",))
    slices = len(step.exchanges[0]) if step.permutations else 0
    if not slices or (slices > 1 and (not one.shape or one.shape[0] % slices)):
        raise refuse(f"{at} sends {slices} parts of {one.name} of shape {one.shape}", step.location)
    size = executable.replicas.size(step.axes)
    for permutation in step.permutations:
        try:
            there = permutation.destinations(size)
        except InvalidGraph as error:
            raise refuse(f"{at}: {error.what}", step.location) from error
        used = there[there >= 0]
        if used.size and (used.max() >= size or np.bincount(used).max() > 1):
            raise refuse(f"{at} sends twice to one replica, or to one that is not there", step.location)


def _check_stream(executable: Executable, number: int, step: StreamStep) -> None:
    at, stream = where(number, step), executable.streams.get(step.stream)
    if stream is None:
        raise refuse(f"{at} copies stream {step.stream!r}, which does not exist", step.location)
    if step.to_host is not stream.to_host:
        raise refuse(f"{at} copies stream {stream.name} the wrong way", step.location)
    variable = executable.variables[step.variable]
    if (variable.shape, variable.dtype) != (stream.shape, stream.dtype):
        raise refuse(
            f"{at} copies items of stream {stream.name}, {stream.dtype}{list(stream.shape)},"
            f" with {variable.name} of {variable.dtype}{list(variable.shape)}",
            step.location,
        )


def _check_remote(executable: Executable, number: int, step: RemoteStep) -> None:
    at, buffer = where(number, step), executable.remote_buffers.get(step.buffer)
    if buffer is None:
        raise refuse(f"{at} copies remote buffer {step.buffer!r}, which does not exist", step.location)
    if type(step.to_remote) is not bool:
        raise refuse(
            f"{at} copies remote buffer {buffer.name} in direction {step.to_remote!r}", step.location
        )
    leading: tuple[int, ...] = ()
    if step.rows:
        rows = executable.variables[step.rows]
        if not is_integer(rows.dtype) or len(rows.shape) > 1:
            raise refuse(f"{at} numbers rows by {rows.dtype}{list(rows.shape)}", step.location)
        leading = rows.shape
    variable = executable.variables[step.variable]
    if (variable.shape, variable.dtype) != ((*leading, *buffer.shape), buffer.dtype):
        raise refuse(
            f"{at} copies rows of remote buffer {buffer.name}, {buffer.dtype}{[*leading, *buffer.shape]},"
            f" with {variable.name} of {variable.dtype}{list(variable.shape)}",
            step.location,
        )


def _check_undefined(executable: Executable, kept: dict[str, str], number: int, step: UndefStep) -> None:
    variable = executable.variables.get(step.variable)
    if variable is None or variable.view_of or variable.storage in kept:
        what = "is not a variable" if variable is None else "is a view, or kept by the caller"
        raise refuse(f"{where(number, step)} undefines {step.variable!r}, which {what}", step.location)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _check_group(executable: Executable, number: int, step: ExecuteStep, group: VertexGroup) -> None:
    at, form, plan = where(number, step, group), group.form, group.plan
    if not is_a(group.codelet, Codelet):
        raise refuse(f"{at} runs {group.codelet!r}, which is no codelet", group.location)
    if len(group.operands) != len(form.operands) or len(group.results) != len(form.results):
        counts = f"{len(group.operands)} operands and {len(group.results)} results"
        raise refuse(
            f"{at} has {counts}, its form {len(form.operands)} and {len(form.results)}", group.location
        )
    if any(d.size < 0 for d in form.dims) or tuple(s.size for s in plan.splits) != form.shape:
        raise refuse(
            f"{at} has a plan for {tuple(s.size for s in plan.splits)}, its domain is {form.shape}",
            group.location,
        )
    numbers = [axis.offset for m in (*form.operands, *form.results) for axis in m.axes]
    numbers += [c for m in (*form.operands, *form.results) for axis in m.axes for _, c in axis.terms]
    if not has_small_numbers(plan.splits, plan.base, *numbers):
        raise refuse(f"{at} has a plan or a form of numbers beyond any memory", group.location)
    if (
        any(radix < 1 for s in plan.splits for radix, _ in s.digits)
        or plan.num_cells > executable.target.num_tiles
    ):
        raise refuse(
            f"{at} has a plan of {plan.num_cells} cells for {executable.target.num_tiles} tiles",
            group.location,
        )
    check_tiles(f"{at}: the cells", plan.tiles, executable.target.num_tiles)
    plan.arrangement.fit(plan.extents)
    fills = [m.fill for m in form.operands if m.fill is not None]
    if not all(is_a(fill, (int, float)) for fill in fills) or any(m.fill is not None for m in form.results):
        raise refuse(f"{at} has a fill value that is no number, or one for a result", group.location)
    rank = len(form.dims)
    for k, (operand, index_map) in enumerate(zip(group.operands, form.operands, strict=True)):
        variable = executable.variables[operand.variable]
        if len(index_map.axes) != len(variable.shape) or not all(
            0 <= d < rank and c for a in index_map.axes for d, c in a.terms
        ):
            raise refuse(
                f"{at}: the map of operand {k} does not index {operand.variable} {variable.shape} from {rank} dimensions",
                group.location,
            )
    for k, name in enumerate(group.results):
        shape = tuple(form.dims[d].size for d in form.results[k].dims)
        partials = plan.num_partials(form)
        expected = (partials, *shape) if partials > 1 else shape
        if executable.variables[name].shape != expected:
            raise refuse(
                f"{at} gives {name} of shape {expected}, the variable has {executable.variables[name].shape}",
                group.location,
            )


def check_structure(executable: Executable) -> None:
    """Check variables, buffers, control and steps, turning errors of other kinds into InvalidExecutable."""
    try:
        check_declarations(executable)
        check_steps(executable)
    except InvalidExecutable:
        raise
    except (IpuError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise refuse(f"the executable's data is malformed: {type(error).__name__}: {error}") from error
