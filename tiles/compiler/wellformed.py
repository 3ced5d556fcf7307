"""The structure of an executable: names resolve, types and shapes fit, the control tree is a tree of its steps.

What must hold before any proof makes sense; each function raises InvalidExecutable at the first violation. Nothing
here reads addresses against each other, follows the program or derives slices: see ``check`` and ``certify``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tiles.compiler.control import Composite, Node, Part, Switch, While
from tiles.compiler.executable import CATEGORIES, Buffer, Executable, Variable
from tiles.compiler.steps import StepRecord, VertexGroup
from tiles.errors import InvalidExecutable
from tiles.files import is_a
from tiles.graph import CONSTANT, INPUT, TEMPORARY, AxisSplit, Layout, Replicas
from tiles.numerics.dtypes import NAMES, is_integer, itemsize, to_jax

DATA = ("variable", "constant")
WORD_BYTES = 4


def check_declarations(executable: Executable) -> None:
    """Raise InvalidExecutable unless everything named exists and fits by name, kind, dtype and shape."""
    check_name("program", executable.name, executable.name)
    if executable.target.num_ipus > 1 and executable.system is None:
        raise refuse(f"it is for {executable.target.num_ipus} IPUs without links between them")
    _check_replicas(executable)
    _check_buffers(executable)
    _check_variables(executable)
    _check_arguments(executable)
    _check_streams(executable)
    _check_remote_buffers(executable)
    _check_tree(executable)


def _check_replicas(executable: Executable) -> None:
    """Refuse replicas without IPUs to run on, and inputs that differ along axes that are not there."""
    replicas, system, differs = executable.replicas, executable.system, executable.differs_along
    if not is_a(replicas, Replicas) or (system is None and (replicas.axes or differs)):
        raise refuse("it has replicas and no system of several IPUs")
    if system is not None:
        each = replicas.ipus_each
        if system.several(each) != executable.target or replicas.num_ipus > system.num_ipus:
            what = f"{replicas.count:,} replicas, each on {'' if each == 1 else f'{each:,} '}{executable.target.name}"
            raise refuse(f"it has {what}; {system.name} has {system.num_ipus:,} of {system.chip.name}")
    if system is not None and len(differs) != len(executable.inputs):
        raise refuse(f"of {len(executable.inputs)} inputs it says along which axes {len(differs)} differ")
    for name, axes in zip(executable.inputs, differs, strict=system is not None):
        if axes != tuple(axis for axis in replicas.names if axis in axes):
            have = ", ".join(replicas.names) or "none"
            raise refuse(
                f"input {name} differs along {axes!r:.100}; expected axes of the replicas in order: {have}"
            )


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
    part = tuple(min(axis.grain, axis.size) for axis in variable.layout.axes)
    elements = variable.layout.arrangement.stored_elements(part)
    return -(-elements * itemsize(variable.dtype) // WORD_BYTES) * WORD_BYTES


def mask_of_ranges(ranges: tuple[tuple[int, int], ...]) -> int:
    """Return tile ranges as the bits of one integer."""
    return sum((1 << end) - (1 << first) for first, end in ranges)


def is_count(value: Any, low: int = 0) -> bool:
    """Return whether a value is a whole number of at least ``low`` that sums of 64 bits have room for."""
    return type(value) is int and low <= value < 1 << 48


def _check_buffers(executable: Executable) -> None:
    tiles, steps = executable.target.num_tiles, len(executable.steps)
    for key, b in executable.buffers.items():
        check_name("buffer", key, b.name, b.location)
        if b.category not in CATEGORIES:
            raise refuse(f"buffer {key} has category {b.category!r}; expected one of {', '.join(CATEGORIES)}")
        if not is_count(b.address) or not is_count(b.size_bytes):
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
        if not (is_count(first) and is_count(end) and reached <= first < end <= num_tiles):
            raise refuse(
                f"buffer {b.name} lies on tiles {b.tiles}; expected ascending ranges within 0 to {num_tiles}"
            )
        reached = end


def check_name(kind: str, key: Any, name: Any, *texts: Any) -> None:
    """Refuse what is not named as it is listed, or whose other ``texts`` are none."""
    if not isinstance(name, str) or not name or key != name:
        raise refuse(f"a {kind} is listed as {key!r} but is named {name!r}")
    if not all(isinstance(text, str) for text in texts):
        raise refuse(f"{kind} {name} has {', '.join(map(repr, texts))} where names or locations belong")


def _check_variables(executable: Executable) -> None:
    known: set[Layout] = set()
    for key, v in executable.variables.items():
        check_name("variable", key, v.name, v.storage, v.view_of, v.location)
        if v.dtype not in NAMES:
            raise refuse(f"variable {key} has dtype {v.dtype!r}, which is no element type", v.location)
        if not (is_a(v.shape, tuple) and all(is_count(n) for n in v.shape)):
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


def has_small_numbers(splits: Sequence[AxisSplit], *numbers: int) -> bool:
    """Whether no number of a layout, a plan or a form is so large that places computed of it leave 64 bits."""
    cut = (n for s in splits for n in (s.size, s.grain, *(n for digit in s.digits for n in digit)))
    return all(abs(n) < 1 << 31 for n in (*cut, *numbers))


def check_layout(name: str, layout: Layout, num_tiles: int) -> None:
    """Raise InvalidExecutable unless the parts of a layout lie on distinct existing tiles."""
    if not has_small_numbers(layout.axes, layout.base):
        raise refuse(f"variable {name} has a layout of numbers beyond any memory")
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
            if not is_a(name, str) or name not in variables:
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
        is_count(i) and i < len(executable.inputs) for i in donated
    ):
        raise refuse(
            f"donated inputs {donated} are not distinct positions among {len(executable.inputs)} inputs"
        )
    filled = Counter(v.storage for v in variables.values() if v.kind != TEMPORARY)
    for storage, count in filled.items():
        if count > 1:
            raise refuse(f"{count} inputs or constants are loaded into buffer {storage}")


def _check_streams(executable: Executable) -> None:
    for key, s in executable.streams.items():
        check_name("stream", key, s.name, s.location)
        if s.dtype not in NAMES or not all(is_count(n) for n in s.shape) or type(s.to_host) is not bool:
            raise refuse(f"stream {key} has items {s.dtype!r}{list(s.shape)}, to the host: {s.to_host!r}")


def _check_remote_buffers(executable: Executable) -> None:
    for key, r in executable.remote_buffers.items():
        check_name("remote buffer", key, r.name, r.location)
        if r.dtype not in NAMES or not all(is_count(n) for n in r.shape) or not is_count(r.repeats, 1):
            raise refuse(f"remote buffer {key} has {r.repeats!r} rows of {r.dtype!r}{list(r.shape)}")


def _check_tree(executable: Executable) -> None:
    """Refuse a program that is not control over all of the executable's steps."""
    seen: set[int] = set()
    stack: list[Part] = [executable.program]
    while stack:
        part = stack.pop()
        if isinstance(part, int):
            if not 0 <= part < len(executable.steps):
                raise refuse(f"the program runs step {part}, the executable has {len(executable.steps)}")
            seen.add(part)
            continue
        _check_node(executable, part)
        stack.extend(part.parts)
    for number in range(len(executable.steps)):
        if number not in seen:
            raise refuse(f"the program never runs {where(number, executable.steps[number])}")


def _check_node(executable: Executable, node: Node) -> None:
    """Refuse a node that names a composite that is not there, or what cannot decide."""
    match node:
        case Composite(number) if number >= len(executable.composites):
            raise refuse(f"the program runs composite {number} of {len(executable.composites)}")
        case While():
            check_scalar(executable, node.predicate, "predicate", ("bool",))
        case Switch():
            integers = tuple(name for name in NAMES if name == "bool" or is_integer(name))
            check_scalar(executable, node.index, "index", integers)
        case _:
            pass


def check_scalar(executable: Executable, name: Any, role: str, dtypes: tuple[str, ...]) -> None:
    """Refuse what decides something and is not one element of one of the dtypes."""
    variable = executable.variables.get(name) if isinstance(name, str) else None
    if variable is None or math.prod(variable.shape) != 1 or variable.dtype not in dtypes:
        found = "nothing" if variable is None else f"{variable.dtype}{list(variable.shape)}"
        raise refuse(f"the program's {role} {name!r} is {found}; expected one element of {', '.join(dtypes)}")
