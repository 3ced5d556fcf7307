"""The quick check that every executable passes before an engine runs it; the proofs are ``certify``'s.

Structure, plans, residency, buffers and overlap in closed form: milliseconds for hundreds of steps.
"""

from __future__ import annotations

import weakref

from tiles.codelets import ExportedCodelet
from tiles.compiler.executable import Executable
from tiles.compiler.proof_codelets import prove_codelets
from tiles.compiler.proof_memory import prove_addresses, prove_no_overlap, prove_storage
from tiles.compiler.proof_replicas import prove_replicas
from tiles.compiler.steps import ExecuteStep, VertexGroup
from tiles.compiler.wellformed import mask_of_ranges, refuse, where
from tiles.compiler.wellformed_steps import check_structure
from tiles.errors import InvalidExecutable, InvalidPlan
from tiles.graph import Affine, OpForm
from tiles.numerics.dtypes import itemsize
from tiles.plan import is_resident, staging_bytes

_PASSED: weakref.WeakSet[Executable] = weakref.WeakSet()


def check(executable: Executable) -> None:
    """Raise InvalidExecutable unless an executable is well formed and its parts fit together.

    The verdict is remembered for as long as the executable lives.

    Raises:
      InvalidExecutable: names, shapes, dtypes, layouts, plans, buffers, arguments or control do not fit, or a replica
        may wait for one that does not take part.
    """
    if executable in _PASSED:
        return
    check_structure(executable)
    prove_addresses(executable)
    prove_storage(executable)
    prove_no_overlap(executable)
    prove_replicas(executable)
    received: set[str] = set()
    for number, step in enumerate(executable.steps):
        if isinstance(step, ExecuteStep):
            for group in step.groups:
                _check_group(executable, number, where(number, step, group), group, received)
    _PASSED.add(executable)


def load_executable(blob: bytes) -> Executable:
    """Read an executable back from its bytes, and check it; its codelets are traced, some milliseconds each.

    Raises:
      InvalidExecutable: not such a file, damaged, of another version, inconsistent with itself, or with a
        codelet that gives results of other shapes or dtypes than the file says.
    """
    executable = Executable.from_bytes(blob)
    try:
        check(executable)
        prove_codelets(executable)
    except InvalidExecutable:
        raise
    except Exception as error:  # data from anywhere: what nobody thought of is refused, too
        raise refuse(f"the executable is inconsistent: {type(error).__name__}: {error}") from error
    return executable


def _check_group(
    executable: Executable, number: int, at: str, group: VertexGroup, received: set[str]
) -> None:
    if isinstance(group.codelet, ExportedCodelet):
        group.codelet.require(group.form, group.plan)
    for d, split in enumerate(group.plan.splits):
        if split.is_split and not group.codelet.may_split(group.form, d):
            name = group.form.dims[d].name
            raise refuse(
                f"{at} cuts dimension {name}, which {group.codelet.name} cannot compute apart", group.location
            )
    for k, name in enumerate(group.results):
        layout = executable.variables[name].layout
        try:
            expected = group.plan.result_layout(group.form, k)
        except InvalidPlan as error:
            raise refuse(f"{at}: {error.what}", group.location) from error
        if layout != expected:
            raise refuse(f"{at} writes {name} as {expected}, its layout is {layout}", group.location)
    for k, operand in enumerate(group.operands):
        variable = executable.variables[operand.variable]
        _check_inside(at, group, k, variable.shape)
        resident = is_resident(group.form, group.plan, k, variable.layout)
        if resident and operand.buffer:
            raise refuse(
                f"{at} receives operand {k}, {variable.name}, in {operand.buffer}, though it lies in place",
                group.location,
            )
        if not resident and not operand.buffer:
            raise refuse(
                f"{at} reads operand {k}, {variable.name} ({variable.layout}), in place, but it lies elsewhere",
                group.location,
            )
        if operand.buffer:
            if operand.buffer in received:
                raise refuse(
                    f"{at} receives operand {k} in buffer {operand.buffer}, which another operand has",
                    group.location,
                )
            received.add(operand.buffer)
            _check_message(executable, number, at, group, k)


def _check_inside(at: str, group: VertexGroup, k: int, shape: tuple[int, ...]) -> None:
    """Refuse an operand that is read outside its tensor where no fill value stands for what lies there."""
    if group.form.operands[k].fill is not None or 0 in group.form.shape:
        return
    for axis, size in zip(group.form.operands[k].axes, shape, strict=True):
        low = axis.offset + sum(min(0, c * (group.form.dims[d].size - 1)) for d, c in axis.terms)
        high = axis.offset + sum(max(0, c * (group.form.dims[d].size - 1)) for d, c in axis.terms)
        if low < 0 or high >= size:
            raise refuse(
                f"{at} reads operand {k} from {low} to {high} of {size} elements, with no fill value",
                group.location,
            )


def _check_message(executable: Executable, number: int, at: str, group: VertexGroup, k: int) -> None:
    operand = group.operands[k]
    buffer = executable.buffers.get(operand.buffer)
    if buffer is None or buffer.category != "message":
        raise refuse(
            f"{at} receives operand {k} in {operand.buffer!r}, which is no message buffer", group.location
        )
    sizes = tuple(min(split.grain, split.size) for split in group.plan.splits)
    extents = tuple(_extent(axis, sizes, group.form) for axis in group.form.operands[k].axes)
    elements = group.plan.operand_order(group.form, k).fit(extents).stored_elements(extents)
    v = executable.variables[operand.variable]
    size = -(-elements * itemsize(v.dtype) // 4) * 4
    size += staging_bytes(v.layout, group.form, group.plan, k, v.dtype)
    if buffer.size_bytes != size:
        raise refuse(
            f"{at} receives {size} B a tile in buffer {buffer.name} of {buffer.size_bytes} B", group.location
        )
    if mask_of_ranges(buffer.tiles) != group.plan.tile_mask:
        raise refuse(f"{at} receives on tiles that buffer {buffer.name} does not lie on", group.location)
    if not buffer.start <= number <= buffer.end:
        raise refuse(
            f"{at} receives in buffer {buffer.name}, which is live in steps {buffer.start} to {buffer.end}",
            group.location,
        )


def _extent(axis: Affine, sizes: tuple[int, ...], form: OpForm) -> int:
    """Return the longest slice of one operand axis."""
    if len(axis.terms) == 1:
        return sizes[axis.terms[0][0]]
    if any(not form.dims[d].size for d, _ in axis.terms):
        return 0
    return 1 + sum(abs(c) * (sizes[d] - 1) for d, c in axis.terms)
