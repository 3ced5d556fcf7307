"""Shardings as text: what ``as_text("sharding")`` prints, and what ``shard=`` pins.

    mesh: x=8, y=2
    argument 0: P('x', None)
    arguments 3, 5-7: P(None, ('x', 'y'))

Arguments that are not named are whole on every IPU. Lines may also be parted by semicolons; what follows ``//`` is a
comment. ``mesh: one IPU`` shards nothing.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ipuxla.errors import InvalidOption
from ipuxla.sharding import Mesh

AUTO = "auto"
ONE_IPU = "one IPU"
_TRY = "lines as as_text(\"sharding\") prints them: mesh: x=4, y=2 and argument 0: P('x', None)"


@dataclass(frozen=True)
class PinnedShardings:
    """A mesh, and how arguments are sharded over it.

    Args:
      mesh: names and sizes of axes; none for one IPU.
      inputs: number of an argument, and for each of its dimensions the names of the axes that shard it.
    """

    mesh: Mesh
    inputs: tuple[tuple[int, tuple[tuple[str, ...], ...]], ...] = ()

    def lines(self) -> list[str]:
        """Return it as text, a line each."""
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh) or ONE_IPU
        sharded = [(number, dims) for number, dims in self.inputs if any(dims)]
        return [f"mesh: {axes}", *(f"argument {number}: {_spec(dims)}" for number, dims in sharded)]

    def short_lines(self) -> list[str]:
        """Return it as text, a line for all arguments that are sharded in the same way."""
        alike: dict[str, list[int]] = {}
        for number, dims in self.inputs:
            if any(dims):
                alike.setdefault(_spec(dims), []).append(number)
        return [
            self.lines()[0],
            *(f"argument{'s' * (len(n) > 1)} {_numbers(n)}: {spec}" for spec, n in alike.items()),
        ]

    def of_arguments(self, shapes: Sequence[Sequence[int]]) -> list[tuple[tuple[str, ...], ...]]:
        """Return how each argument of a program is sharded.

        Args:
          shapes: of the arguments.

        Raises:
          InvalidOption: no such argument, more dimensions than it has, or a size that is not divided.
        """
        found: list[tuple[tuple[str, ...], ...]] = [((),) * len(shape) for shape in shapes]
        sizes = dict(self.mesh)
        for number, dims in self.inputs:
            if number >= len(shapes):
                raise _wrong(f"there is no argument {number}", f"0 to {len(shapes) - 1}")
            shape = shapes[number]
            if len(dims) > len(shape):
                got = f"{len(dims)} entries for {list(shape)}"
                raise _wrong(f"argument {number} has fewer dimensions", f"at most {len(shape)}", got)
            for dim, names in enumerate(dims):
                parts = math.prod(sizes[name] for name in names)
                if shape[dim] % parts:
                    what = f"argument {number}: {parts} parts do not divide dimension {dim} of {list(shape)}"
                    raise _wrong(what, f"a size that {parts} divides", str(shape[dim]))
            found[number] = (*dims, *((),) * (len(shape) - len(dims)))
        return found


def read_pinned(text: str) -> PinnedShardings:
    """Return what a text says.

    Raises:
      InvalidOption: it cannot be read; names the line.
    """
    mesh: Mesh | None = None
    inputs: dict[int, tuple[tuple[str, ...], ...]] = {}
    for line in _statements(text):
        key, _, value = (part.strip() for part in line.partition(":"))
        numbers = re.fullmatch(r"arguments? ((?:\d{1,6}(?:-\d{1,6})?(?:, *)?)+)", key)
        if key == "mesh" and mesh is None:
            mesh = _mesh(value, line)
        elif numbers is None or mesh is None:
            raise _wrong(
                "a line of pinned shardings cannot be read", "mesh: first, once, then argument N:", line
            )
        else:
            dims = _dimensions(value, mesh, line)
            for number in _read_numbers(numbers[1]):
                if number in inputs:
                    raise _wrong(f"argument {number} is pinned twice", "once", line)
                inputs[number] = dims
    if mesh is None:
        raise _wrong("pinned shardings name no mesh", "mesh: name=size, ...", text)
    return PinnedShardings(mesh, tuple(sorted(inputs.items())))


def _numbers(numbers: Sequence[int]) -> str:
    """Return rising numbers as text: ``3, 5-7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _read_numbers(text: str) -> Iterator[int]:
    for part in re.findall(r"\d+(?:-\d+)?", text):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _statements(text: str) -> Iterator[str]:
    for line in text.splitlines():
        for part in line.partition("//")[0].split(";"):
            if part.strip():
                yield part.strip()


def _mesh(value: str, line: str) -> Mesh:
    if value == ONE_IPU:
        return ()
    found = [re.fullmatch(r"\s*(\w+)\s*=\s*(\d{1,6})\s*", part) for part in value.split(",")]
    axes = tuple((each[1], int(each[2])) for each in found if each is not None)
    names = [name for name, _ in axes]
    if len(axes) != len(found) or len(set(names)) != len(names) or not all(size > 0 for _, size in axes):
        raise _wrong("a mesh of pinned shardings cannot be read", f"name=size, ..., or {ONE_IPU}", line)
    return axes


def _dimensions(value: str, mesh: Mesh, line: str) -> tuple[tuple[str, ...], ...]:
    found = re.fullmatch(r"P\((.*)\)", value)
    try:
        entries: Any = ast.literal_eval(f"({found[1]},)" if found and found[1].strip(" ,") else "()")
        if found is None:
            raise ValueError
        dims = tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise _wrong(
            "a sharding cannot be read", "P(...) of names of axes, None and tuples of names", line
        ) from None
    names = [name for dim in dims for name in dim]
    known = [name for name, _ in mesh]
    wrong = next((name for name in names if name not in known), None)
    if wrong is not None:
        raise _wrong(f"the mesh has no axis {wrong!r}", ", ".join(known) or "no axes: one IPU", line)
    if len(set(names)) != len(names):
        raise _wrong("an axis is used twice for one argument", "each at most once", line)
    return dims


def _spec(dims: Sequence[Sequence[str]]) -> str:
    def entry(names: Sequence[str]) -> str:
        shown = [repr(name) for name in names]
        return "None" if not shown else shown[0] if len(shown) == 1 else f"({', '.join(shown)})"

    return f"P({', '.join(map(entry, dims))})"


def _wrong(what: str, expected: str, got: str | None = None) -> InvalidOption:
    shown = None if got is None else " ".join(got.split())[:120]
    return InvalidOption(f"shard: {what}", expected=expected, got=shown, try_=_TRY)
