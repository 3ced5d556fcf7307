"""The tile engine: tiles' memory and exchange as in the literal engine, and vertices by their tile code.

Codelets without code run as in the literal engine; ``coverage_of`` says which they are, and why. With floats the
results are those of the machine's own rounding as far as its instructions are known; ``measured`` tells how far a
codelet's code came from its meaning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tiles._jax_compat import Datum
from tiles.compiler import Executable, ExecuteStep, VertexGroup
from tiles.compiler.costs import group_extents
from tiles.engine.interface import FLOAT
from tiles.engine.literal import LiteralEngine, VertexEngine
from tiles.engine.memory import TileMemory
from tiles.engine.supersteps import Collected
from tiles.engine.tile_vertices import TileVertices
from tiles.errors import IpuError, NoTileCode, OutOfRegisters, TileFault
from tiles.numerics.dtypes import to_jax


@dataclass
class CodeletCoverage:
    """How many vertices of a type run by code.

    Attributes:
      vertices, by_code: vertices of the program's steps, each step counted once, and those of them with code.
      cycles, cycles_by_code: their predicted cycles, of all tiles together.
      reasons: why others have none, and the first line of the user's code where each is met, or "".
    """

    vertices: int = 0
    by_code: int = 0
    cycles: int = 0
    cycles_by_code: int = 0
    reasons: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Coverage:
    """Which of a program's vertices run by tile code, by vertex type in the order of the program."""

    codelets: dict[str, CodeletCoverage]

    @property
    def vertices_share(self) -> float:
        """Share of the vertices with code; 1 of a program without vertices."""
        return _share([(c.by_code, c.vertices) for c in self.codelets.values()])

    @property
    def cycles_share(self) -> float:
        """Share of the vertices' predicted cycles that those with code take."""
        return _share([(c.cycles_by_code, c.cycles) for c in self.codelets.values()])

    def __str__(self) -> str:
        """Return the shares, and a line for every vertex type that has vertices without code."""
        total = sum(c.vertices for c in self.codelets.values())
        lines = [
            f"tile code for {self.vertices_share:.0%} of {total:,} vertices, {self.cycles_share:.0%} of their cycles"
        ]
        for label, c in self.codelets.items():
            if c.by_code < c.vertices:
                why = "; ".join(
                    f"{reason} at {line}" if line else reason for reason, line in c.reasons.items()
                )
                lines.append(
                    f"  no tile code: {label}: {c.vertices - c.by_code:,} of {c.vertices:,} vertices, "
                    f"{c.cycles - c.cycles_by_code:,} cycles: {why}"
                )
        return "\n".join(lines)


def _share(parts: list[tuple[int, int]]) -> float:
    whole = sum(total for _, total in parts)
    return sum(part for part, _ in parts) / whole if whole else 1.0


def coverage_of(executable: Executable, arithmetic: str = FLOAT) -> Coverage:
    """Return which vertices the tile engine runs by code, and why it does not run the others so."""
    found: dict[str, CodeletCoverage] = {}
    for step in executable.steps:
        for group in step.groups if isinstance(step, ExecuteStep) else ():
            code = vertices_or_why(executable, group, arithmetic)
            _cover(executable, group, code, group.location, found)
    return Coverage(found)


def _cover(
    executable: Executable,
    group: VertexGroup,
    code: TileVertices | str,
    location: str,
    found: dict[str, CodeletCoverage],
) -> None:
    count = math.prod(group.plan.tiles.shape)
    has_code = np.zeros(count, bool) if isinstance(code, str) else code.has_code
    predicted = group.codelet.cycles(group_extents(executable, group), executable.target).value
    cycles = np.broadcast_to(np.ceil(np.asarray(predicted, np.float64)), group.plan.tiles.shape).reshape(-1)
    entry = found.setdefault(group.codelet.label, CodeletCoverage())
    entry.vertices += count
    entry.by_code += int(has_code.sum())
    entry.cycles += int(cycles.sum())
    entry.cycles_by_code += int(cycles[has_code].sum())
    if not has_code.all():
        reason = code if isinstance(code, str) else group.codelet.without_code
        entry.reasons.setdefault(reason, location)


def vertices_or_why(executable: Executable, group: VertexGroup, arithmetic: str) -> TileVertices | str:
    """Return a group's vertices with their code, or why they have none."""
    try:
        return TileVertices(executable, group, arithmetic)
    except (NoTileCode, OutOfRegisters) as error:
        return error.what


@dataclass
class Distance:
    """How far the results of a vertex type's code came from its meaning.

    Attributes:
      results: how many were compared.
      differing: how many differ in any bit, but for signs of zeros and kinds of NaN.
      ulps: the greatest distance in units of the last place of its dtype, of numbers that are finite on both sides.
      relative: the greatest distance over the greatest magnitude among results that were computed together.
      others: how many differ in being finite.
    """

    results: int = 0
    differing: int = 0
    ulps: float = 0.0
    relative: float = 0.0
    others: int = 0

    def meet(self, got: np.ndarray, meant: np.ndarray) -> None:
        """Take in some results."""
        same = (got == meant) | ((got != got) & (meant != meant))
        self.results += got.size
        self.differing += int(got.size - same.sum())
        if same.all():
            return
        a, b = got[~same].astype(np.float64), meant[~same].astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        self.others += int((~finite).sum())
        if finite.any():
            apart, all_meant = np.abs(a - b)[finite], meant.astype(np.float64)
            self.ulps = max(self.ulps, float(np.max(apart / _spacing(meant[~same][finite]))))
            greatest = float(np.max(np.abs(all_meant[np.isfinite(all_meant)])))
            self.relative = max(self.relative, float(apart.max()) / max(greatest, np.finfo(np.float64).tiny))


def _spacing(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind != "f":
        return np.ones(x.shape)
    smallest = np.finfo(x.dtype).tiny
    return np.spacing(np.maximum(np.abs(x), smallest)).astype(np.float64)


class TileEngine(VertexEngine):
    """See the module's text.

    Attributes:
      measures: whether runs compare what code computes with what it means, on the same operands.
      measured: what they found, by vertex type.
    """

    name = "tile"
    measures = False

    def __init__(
        self, executable: Executable, arithmetic: str = FLOAT, resident_bytes: int | None = None
    ) -> None:
        """Prepare; code is compiled when a step first runs."""
        super().__init__(executable, arithmetic, resident_bytes)
        self._found: dict[int, TileVertices | str] = {}
        self.measured: dict[str, Distance] = {}

    def coverage(self) -> Coverage:
        """Return which vertices run by code, and why others do not."""
        return coverage_of(self.executable, self.arithmetic)

    def _by_code(self, group: VertexGroup) -> TileVertices | None:
        key = id(group)
        if key not in self._found:
            self._found[key] = vertices_or_why(self.executable, group, self.arithmetic)
        found = self._found[key]
        return None if isinstance(found, str) else found

    def _operands_of(self, number: int, which: slice, state: TileMemory) -> list[list[np.ndarray]]:
        """Return what cells find on their tiles where they run by code, whole operands for other groups."""
        step = self.executable.steps[number]
        assert isinstance(step, ExecuteStep)
        held = self._stored(number)[which]
        in_cells = [self._by_code(group) is not None for group in step.groups[which]]
        apart = [[] if cells else own for cells, own in zip(in_cells, held, strict=True)]
        whole = state.kept(("operands", number, which.start), lambda: Collected(state, apart)).read()
        return [
            [self._found_cells(own, (number, which.start + g, k), state) for k, own in enumerate(held[g])]
            if cells
            else whole[g]
            for g, cells in enumerate(in_cells)
        ]

    def _require_agreement(self, number: int, which: slice, state: TileMemory) -> None:
        LiteralEngine._require_agreement(self, number, which, state)

    def _vertices(self, group: VertexGroup, operands: list[np.ndarray]) -> list[Datum]:
        if self._by_code(group) is None:
            return LiteralEngine._vertices(self, group, operands)
        return super()._vertices(group, operands)

    def _store_result(self, group: VertexGroup, i: int, run: Any, result: np.ndarray) -> None:
        if self._by_code(group) is None:
            LiteralEngine._store_result(self, group, i, run, result)
        else:
            super()._store_result(group, i, run, result)

    def _computed(
        self,
        group: VertexGroup,
        first: tuple[int, ...],
        sizes: tuple[int, ...],
        origins: np.ndarray,
        operands: list[np.ndarray],
    ) -> Sequence[Datum]:
        """Run cells by their code, or as the vertex engine where theirs is unknown."""
        vertices = self._by_code(group)
        assert vertices is not None
        number = int(np.ravel_multi_index(first, group.plan.grid)) if first else 0
        if not vertices.has_code[number]:
            return super()._computed(group, first, sizes, origins, operands)
        try:
            results = vertices.run(number, sizes, origins, operands)
        except TileFault as error:
            raise IpuError(
                f"the tile code of {group.codelet.label} fails in cells of {list(sizes)}: {error.what}",
                try_='engine="vertex", and report this: it is a fault of the element compiler',
            ) from error
        if self.measures and self.arithmetic == FLOAT:
            self._measure(group, results, super()._computed(group, first, sizes, origins, operands))
        return results

    def _measure(self, group: VertexGroup, results: Sequence[np.ndarray], meant: Sequence[Datum]) -> None:
        entry = self.measured.setdefault(group.codelet.label, Distance())
        for name, got, wanted in zip(group.results, results, meant, strict=True):
            dtype = to_jax(self.executable.variables[name].dtype)
            entry.meet(np.asarray(got, dtype), np.asarray(wanted))
