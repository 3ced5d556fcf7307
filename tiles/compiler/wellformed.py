"""The structure of an executable: names resolve, types and shapes fit, the control tree is a tree of its steps.

What must hold before any proof makes sense; each function raises InvalidExecutable at the first violation. Nothing
here reads addresses against each other, follows the program or derives slices: see ``check`` and ``certify``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from tiles.compiler.executable import (
    CATEGORIES,
    Buffer,
    CopyStep,
    Executable,
    ExecuteStep,
    StepRecord,
    Variable,
    VertexGroup,
)
from tiles.errors import InvalidExecutable, IpuError
from tiles.graph import CONSTANT, INPUT, TEMPORARY, Codelet, Layout
from tiles.numerics.dtypes import NAMES, is_integer, itemsize, to_jax

DATA = ("variable", "constant")
WORD_BYTES = 4


def check_structure(executable: Executable) -> None:
    """Raise InvalidExecutable unless everything named exists and fits by name, kind, dtype and shape."""
    _check_name("program", executable.name, executable.name)
    _check_buffers(executable)
    _check_variables(executable)
    _check_arguments(executable)
    kept = _kept(executable)
    for number, step in enumerate(executable.steps):
        _check_step(executable, kept, number, step)
    _check_tree(executable)


def refuse(what: str, location: str = "") -> InvalidExecutable:
    """Return the error of one violation."""
    return InvalidExecutable(what, location=location or None)


def where(number: int, step: StepRecord, group: VertexGroup | None = None) -> str:
    """Return how messages name a step, or one group of it."""
    name = step.name if group is None or group.name == step.name else f"{step.name}, {group.name}"
    return f"step {number} ({name})"


def root_of(executable: Executable, name: str) -> str:
    """Return the variable whose memory a view names, or the variable itself."""
    variable = executable.variables[name]
    while variable.view_of:
        variable = executable.variables[variable.view_of]
    return variable.name


def part_bytes(variable: Variable) -> int:
    """Return the bytes of a full part of a variable on its tile, in whole words."""
    elements = math.prod(min(axis.grain, axis.size) for axis in variable.layout.axes)
    return -(-elements * itemsize(variable.dtype) // WORD_BYTES) * WORD_BYTES


def mask_of_ranges(ranges: tuple[tuple[int, int], ...]) -> int:
    """Return tile ranges as the bits of one integer."""
    return sum((1 << end) - (1 << first) for first, end in ranges)


def _is_count(value: Any, low: int = 0) -> bool:
    return type(value) is int and value >= low


def _check_buffers(executable: Executable) -> None:
    tiles, steps = executable.target.num_tiles, len(executable.steps)
    for key, b in executable.buffers.items():
        _check_name("buffer", key, b.name, b.location)
        if b.category not in CATEGORIES:
            raise refuse(f"buffer {key} has category {b.category!r}; expected one of {', '.join(CATEGORIES)}")
        if not _is_count(b.address) or not _is_count(b.size_bytes):
            raise refuse(
                f"buffer {key} has {b.size_bytes!r} B at address {b.address!r}; both must be whole numbers of at least 0"
            )
        if b.address % WORD_BYTES or (b.size_bytes % WORD_BYTES and b.category in (*DATA, "message")):
            raise refuse(
                f"buffer {key} has {b.size_bytes} B at {b.address:#x}; data begins and ends on words of {WORD_BYTES} B"
            )
        if not (type(b.start) is int and type(b.end) is int and -1 <= b.start <= b.end <= steps):
            raise refuse(
                f"buffer {key} is live in steps {b.start} to {b.end}; expected an interval within -1 to {steps}"
            )
        _check_ranges(b, tiles)


def _check_ranges(b: Buffer, num_tiles: int) -> None:
    reached = 0
    for first, end in b.tiles:
        if not (_is_count(first) and _is_count(end) and reached <= first < end <= num_tiles):
            raise refuse(
                f"buffer {b.name} lies on tiles {b.tiles}; expected ascending ranges within 0 to {num_tiles}"
            )
        reached = end


def _check_name(kind: str, key: Any, name: Any, *texts: Any) -> None:
    """Refuse what is not named as it is listed, or whose other ``texts`` are none."""
    if not isinstance(name, str) or not name or key != name:
        raise refuse(f"a {kind} is listed as {key!r} but is named {name!r}")
    if not all(isinstance(text, str) for text in texts):
        raise refuse(f"{kind} {name} has {', '.join(map(repr, texts))} where names or locations belong")


def _check_variables(executable: Executable) -> None:
    known: set[Layout] = set()
    for key, v in executable.variables.items():
        _check_name("variable", key, v.name, v.storage, v.view_of, v.location)
        if v.dtype not in NAMES:
            raise refuse(f"variable {key} has dtype {v.dtype!r}, which is no element type", v.location)
        if not (isinstance(v.shape, tuple) and all(_is_count(n) for n in v.shape)):
            raise refuse(
                f"variable {key} has shape {v.shape!r}; expected whole numbers of at least 0", v.location
            )
        if v.layout.shape != v.shape:
            raise refuse(
                f"variable {key} has shape {v.shape}, its layout is for {v.layout.shape}", v.location
            )
        if v.layout not in known:
            check_layout(key, v.layout, executable.target.num_tiles)
            known.add(v.layout)
        _check_storage(executable, v)
        _check_value(v)
        _check_view(executable, v)


def check_layout(name: str, layout: Layout, num_tiles: int) -> None:
    """Raise InvalidExecutable unless the parts of a layout lie on distinct existing tiles."""
    if any(radix < 1 for axis in layout.axes for radix, _ in axis.digits):
        raise refuse(f"variable {name} has layout {layout} with a radix below 1")
    if math.prod(layout.grid) > num_tiles:
        raise refuse(
            f"variable {name} has layout {layout} of {math.prod(layout.grid)} parts for {num_tiles} tiles"
        )
    check_tiles(f"the parts of variable {name} ({layout})", layout.tiles, num_tiles)


def check_tiles(what: str, tiles: np.ndarray, num_tiles: int) -> None:
    """Raise InvalidExecutable unless ``tiles`` are distinct and exist."""
    low, high = int(tiles.min()), int(tiles.max())
    if low < 0 or high >= num_tiles:
        raise refuse(f"{what} lie on tiles {low} to {high}; the target has {num_tiles}")
    if high - low + 1 < tiles.size or np.bincount(tiles - low).max() > 1:
        twice = int(np.argmax(np.bincount(tiles)))
        raise refuse(f"{what} lie on tile {twice} more than once")


def _check_storage(executable: Executable, v: Variable) -> None:
    buffer = executable.buffers.get(v.storage)
    if buffer is None:
        raise refuse(f"variable {v.name} is stored in buffer {v.storage!r}, which does not exist", v.location)
    if buffer.category not in DATA:
        raise refuse(
            f"variable {v.name} is stored in buffer {v.storage}, which holds {buffer.category}", v.location
        )
    if (buffer.category == "constant") != (executable.variables[v.name].kind == CONSTANT) and not v.view_of:
        raise refuse(
            f"variable {v.name} is of kind {v.kind}, its buffer {v.storage} of category {buffer.category}",
            v.location,
        )


def _check_value(v: Variable) -> None:
    if v.kind not in (INPUT, CONSTANT, TEMPORARY):
        raise refuse(
            f"variable {v.name} has kind {v.kind!r}; expected {INPUT}, {CONSTANT} or {TEMPORARY}", v.location
        )
    if (v.value is not None) != (v.kind == CONSTANT):
        raise refuse(
            f"variable {v.name} of kind {v.kind} has {'a' if v.value is not None else 'no'} value", v.location
        )
    if v.value is not None and (np.shape(v.value) != v.shape or np.asarray(v.value).dtype != to_jax(v.dtype)):
        found = f"{np.asarray(v.value).dtype}{list(np.shape(v.value))}"
        raise refuse(f"constant {v.name} is {v.dtype}{list(v.shape)}, its value is {found}", v.location)


def _check_view(executable: Executable, v: Variable) -> None:
    seen = {v.name}
    base = v
    while base.view_of:
        if base.view_of not in executable.variables or base.view_of in seen:
            raise refuse(
                f"variable {v.name} is a view of {base.view_of!r}, which does not exist or is a view of it",
                v.location,
            )
        base = executable.variables[base.view_of]
        seen.add(base.name)
    if base is v:
        return
    if (
        v.kind != TEMPORARY
        or v.storage != base.storage
        or v.dtype != base.dtype
        or math.prod(v.shape) != math.prod(base.shape)
    ):
        raise refuse(
            f"variable {v.name} ({v.kind} {v.dtype}{list(v.shape)} in {v.storage}) cannot be a view of {base.name}"
            f" ({base.dtype}{list(base.shape)} in {base.storage})",
            v.location,
        )


def _check_arguments(executable: Executable) -> None:
    variables = executable.variables
    for role, names in (("input", executable.inputs), ("output", executable.outputs)):
        for name in names:
            if not isinstance(name, str) or name not in variables:
                raise refuse(f"{role} {name!r} is not a variable")
    if len(set(executable.inputs)) != len(executable.inputs):
        raise refuse(f"inputs {executable.inputs} name a variable twice")
    of_kind = {v.name for v in variables.values() if v.kind == INPUT}
    if of_kind != set(executable.inputs):
        raise refuse(
            f"variables of kind {INPUT} are {sorted(of_kind)}, the executable's inputs {sorted(executable.inputs)}"
        )
    donated = executable.donated
    if len(set(donated)) != len(donated) or not all(
        _is_count(i) and i < len(executable.inputs) for i in donated
    ):
        raise refuse(
            f"donated inputs {donated} are not distinct positions among {len(executable.inputs)} inputs"
        )
    filled = Counter(v.storage for v in variables.values() if v.kind != TEMPORARY)
    for storage, count in filled.items():
        if count > 1:
            raise refuse(f"{count} inputs or constants are loaded into buffer {storage}")


def _kept(executable: Executable) -> dict[str, str]:
    """Return per storage the input or constant in it that no step may overwrite."""
    donated = {executable.inputs[i] for i in executable.donated}
    return {
        v.storage: v.name
        for v in executable.variables.values()
        if v.kind != TEMPORARY and v.name not in donated
    }


def _check_step(executable: Executable, kept: dict[str, str], number: int, step: StepRecord) -> None:
    _check_name("step", step.name, step.name, *_texts(step))
    results = written_by(step)
    for name in (*read_by(step), *results):
        if not isinstance(name, str) or name not in executable.variables:
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
    if isinstance(step, CopyStep):
        _check_copy(executable, number, step)
        return
    for group in step.groups:
        _check_group(executable, number, step, group)


def _texts(step: StepRecord) -> Iterator[Any]:
    """Yield all that must be text in a step."""
    if isinstance(step, CopyStep):
        yield step.location
        return
    for group in step.groups:
        yield from (group.name, group.location)
        for operand in group.operands:
            yield operand.buffer


def read_by(step: StepRecord) -> tuple[str, ...]:
    """Return the variables a step reads."""
    if isinstance(step, CopyStep):
        return step.sources
    return tuple(operand.variable for group in step.groups for operand in group.operands)


def written_by(step: StepRecord) -> tuple[str, ...]:
    """Return the variables a step writes."""
    if isinstance(step, CopyStep):
        return (step.destination,)
    return tuple(result for group in step.groups for result in group.results)


def _check_copy(executable: Executable, number: int, step: CopyStep) -> None:
    target = executable.variables[step.destination]
    sources = [executable.variables[name] for name in step.sources]
    at = where(number, step)
    if not sources or any(s.dtype != target.dtype for s in sources):
        found = ", ".join(s.dtype for s in sources) or "nothing"
        raise refuse(f"{at} copies {found} into {target.name} of {target.dtype}", step.location)
    if step.axis is None:
        if len(sources) != 1 or math.prod(sources[0].shape) != math.prod(target.shape):
            shapes = ", ".join(str(s.shape) for s in sources)
            raise refuse(f"{at} copies {shapes} into {target.name} of shape {target.shape}", step.location)
        if sources[0].storage == target.storage and sources[0].layout != target.layout:
            what = f"{at} copies {sources[0].name} over itself into another layout, that of {target.name}"
            raise refuse(what, step.location)
        return
    if not _is_count(step.axis) or step.axis >= len(target.shape):
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


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _check_group(executable: Executable, number: int, step: ExecuteStep, group: VertexGroup) -> None:
    at, form, plan = where(number, step, group), group.form, group.plan
    if not isinstance(group.codelet, Codelet):
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
    if (
        any(radix < 1 for s in plan.splits for radix, _ in s.digits)
        or plan.num_cells > executable.target.num_tiles
    ):
        raise refuse(
            f"{at} has a plan of {plan.num_cells} cells for {executable.target.num_tiles} tiles",
            group.location,
        )
    check_tiles(f"{at}: the cells", plan.tiles, executable.target.num_tiles)
    fills = [m.fill for m in form.operands if m.fill is not None]
    if not all(isinstance(fill, (int, float)) for fill in fills) or any(
        m.fill is not None for m in form.results
    ):
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


def _check_tree(executable: Executable) -> None:
    """Refuse a program that is not a tree of control over all of the executable's steps."""
    seen: set[int] = set()
    stack = [executable.program]
    while stack:
        tree = stack.pop()
        if type(tree) is int:
            if not 0 <= tree < len(executable.steps):
                raise refuse(f"the program runs step {tree}, the executable has {len(executable.steps)}")
            seen.add(tree)
            continue
        stack.extend(_bodies(executable, tree))
    for number in range(len(executable.steps)):
        if number not in seen:
            raise refuse(f"the program never runs {where(number, executable.steps[number])}")


def _bodies(executable: Executable, tree: Any) -> Iterator[Any]:
    kind = tree[0] if isinstance(tree, (list, tuple)) and tree else None
    if kind == "sequence":
        yield from tree[1:]
    elif kind == "repeat" and len(tree) == 3 and _is_count(tree[1]):
        yield tree[2]
    elif kind == "while" and len(tree) == 4:
        _check_scalar(executable, tree[2], "predicate", ("bool",))
        yield from (tree[1], tree[3])
    elif kind == "switch" and len(tree) > 2:
        integers = tuple(name for name in NAMES if name == "bool" or is_integer(name))
        _check_scalar(executable, tree[1], "index", integers)
        yield from tree[2:]
    else:
        raise refuse(f"the program has {str(tree)[:80]}, which is no control step")


def _check_scalar(executable: Executable, name: Any, role: str, dtypes: tuple[str, ...]) -> None:
    variable = executable.variables.get(name) if isinstance(name, str) else None
    if variable is None or math.prod(variable.shape) != 1 or variable.dtype not in dtypes:
        found = "nothing" if variable is None else f"{variable.dtype}{list(variable.shape)}"
        raise refuse(f"the program's {role} {name!r} is {found}; expected one element of {', '.join(dtypes)}")


def structure_of(executable: Executable) -> None:
    """Do ``check_structure``, turning errors of other kinds into InvalidExecutable."""
    try:
        check_structure(executable)
    except InvalidExecutable:
        raise
    except (IpuError, TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise refuse(f"the executable's data is malformed: {type(error).__name__}: {error}") from error
