"""A group's vertices run by their tile code: all tiles of equal extents at once, in the simulator's memory.

What a vertex finds on its tile is laid out in the order in which its code goes through it, as planning charges for, and
the code runs on that, worker by worker, store by store. An operand that varies with only some of the rows' dimensions
is laid out for every row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from tiles._jax_compat import make_jaxpr
from tiles.compiler import Executable, VertexGroup
from tiles.compiler.costs import group_extents
from tiles.elements import (
    CellFunction,
    InstructionSet,
    TileCode,
    TileSimulator,
    compile_cell,
    instructions_for,
)
from tiles.elements.cell import CELL, ELEMENT
from tiles.engine.interface import FLOAT
from tiles.errors import NoTileCode
from tiles.graph import CodeData, OpForm, VertexCode
from tiles.graph.cycles import Field, ValueName
from tiles.numerics.dtypes import to_jax
from tiles.numerics.ring import evaluate, to_ring, word_type

BATCH_BYTES = 1 << 24
"""Simulated memory of one batch of tiles."""
_BASE, _STATE_BYTES, _ACCESS_BYTES = 0x4C000, 512, 8
_LONGEST_BYTES = 16
"""Of an access, to interleaved memory."""


class _Part:
    """A part of the vertices' code, in the engine's arithmetic.

    Attributes:
      code, cell: what runs, and what it computes.
      data: what it reads and writes; where all elements are one vector, dimensions of rows are of the inner loop too.
      n, rows, runs, sharers: of every cell, in cell order.
    """

    def __init__(
        self, part: VertexCode, shape: tuple[int, ...], isa: InstructionSet, arithmetic: str
    ) -> None:
        """Take a part whose ``cell`` and ``data`` are known."""
        assert part.cell is not None and part.data is not None
        self.isa, data = isa, part.data
        if arithmetic == FLOAT:
            self.code, self.cell = part.variant.code, part.cell()
        else:
            self.code, self.cell = _ring_code(part.cell(), isa)
        if not self.cell.arrangement.has_rows:
            data = dataclasses.replace(data, rows=(), inner=(*data.rows, *data.inner))
        self.data = data
        self.n, self.rows, self.runs, self.sharers = (
            np.broadcast_to(np.asarray(x, np.int64), shape).reshape(-1)
            for x in (part.n, part.rows, part.runs, part.sharers)
        )

    def run(self, number: int, cells: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Return results of cells like the one of a number: ``[cells, rows, n]``, or ``[cells, rows, sharers]``.

        Args:
          number: of one of them.
          cells: how many there are.
          arrays: operands ``[cells, rows or 1, n or 1]``; of positions the first one, ``[cells]``.
        """
        n, rows, sharers = int(self.n[number]), int(self.rows[number]), int(self.sharers[number])
        if sharers == 1:
            return self._simulate(n, rows, cells, arrays)
        total, rows = max(x.shape[2] for x in arrays), rows // sharers
        found = np.empty((cells, rows, sharers), to_jax(self.cell.dtypes[1][0]))
        lengths = np.clip(total - n * np.arange(sharers), 0, n)
        different: list[int] = np.unique(lengths).tolist()
        for length in different:
            those = np.flatnonzero(lengths == length)
            cut = [
                x if access.level == CELL else _shares(x, those * n, length, rows)
                for x, access in zip(arrays, self.cell.arrangement.operands, strict=True)
            ]
            (part,) = self._simulate(length, rows * len(those), cells, cut)
            found[:, :, those] = part.reshape(cells, rows, len(those))
        return [found]

    def _simulate(self, n: int, rows: int, cells: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Return the code's results, ``[cells, rows, n]`` with what is folded of size 1, batch of tiles by batch."""
        window = _Window(self, n, rows, arrays)
        batch = max(1, BATCH_BYTES // window.size_bytes)
        runs = [
            window.run(min(batch, cells - at), [x[at : at + batch] for x in arrays])
            for at in range(0, cells, batch)
        ]
        return runs[0] if len(runs) == 1 else [np.concatenate(x) for x in zip(*runs, strict=True)]


class _Window:
    """Where a part's operands and results lie in the simulated memory of a tile, behind vertex state and scratch."""

    def __init__(self, part: _Part, n: int, rows: int, arrays: list[np.ndarray]) -> None:
        """Place what ``arrays`` hold, and results for loops of ``rows`` times ``n``."""
        self.part, how, folds = part, part.cell.arrangement, part.data.folds
        self.arguments: dict[str, Any] = {"n": n, "rows": rows}
        self.scratch = _BASE + _STATE_BYTES
        self.end = self.scratch + part.isa["worker_contexts"] * _up(part.code.scratch_bytes)
        self.shapes: list[tuple[int, int]] = []
        for k, (x, access) in enumerate(zip(arrays, how.operands, strict=True)):
            if access.counts:
                self._step(f"in{k}", 1)
                self.shapes.append((0, 0))
                continue
            held = 1 if access.level == CELL else x.shape[1], n if access.level == ELEMENT else 1
            self.shapes.append(held)
            pitch = held[1] if held[0] > 1 or access.beside else 0
            self._take(f"in{k}", held, part.cell.dtypes[0][k], pitch, access.beside)
        found = (1, n) if folds == "rows" else (rows, 1) if folds else (rows, n)
        self.results = [(how.stream(k), dtype, found) for k, dtype in enumerate(part.cell.dtypes[1])]
        for (name, dtype, _), access in zip(self.results, how.results, strict=True):
            if name not in self.arguments:
                self._take(name, found, dtype, found[1], access.beside)
        self.size_bytes = _up(self.end - _BASE)

    def _take(self, name: str, shape: tuple[int, int], dtype: str, pitch: int, beside: str) -> None:
        size = np.dtype(to_jax(dtype)).itemsize
        self.arguments[name] = self.end
        if beside:
            self.arguments[f"{name}_distance_bytes"] = self.end - self.arguments[beside]
        self._step(name, pitch * size)
        self.end += _up(math.prod(shape) * size) + _ACCESS_BYTES

    def _step(self, name: str, pitch: int) -> None:
        steps = 1 if self.part.cell.arrangement.shares_rows else self.part.isa["worker_contexts"]
        self.arguments |= {f"{name}_row_bytes": pitch, f"{name}_step_bytes": pitch * steps}

    def run(self, tiles: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Return the results of some tiles, ``[tiles, rows, n]``."""
        simulator = TileSimulator(self.part.isa, self.size_bytes, tiles, _BASE)
        arguments = dict(self.arguments)
        operands = zip(arrays, self.part.cell.arrangement.operands, self.shapes, strict=True)
        for k, (x, access, shape) in enumerate(operands):
            if access.counts:
                arguments[f"in{k}"] = x
            else:
                simulator.write(arguments[f"in{k}"], np.broadcast_to(x, (tiles, *shape)))
        simulator.run(self.part.code, arguments, _BASE, self.scratch)
        return [
            simulator.read(arguments[name], math.prod(shape), to_jax(dtype).name).reshape(tiles, *shape)
            for name, dtype, shape in self.results
        ]


class _KernelPart:
    """A kernel with its code, or with several that run one after another on the same memory.

    ``runs`` says of every cell, in cell order, whether it runs any.
    """

    def __init__(
        self, parts: Sequence[VertexCode], shape: tuple[int, ...], isa: InstructionSet, arithmetic: str
    ) -> None:
        """Take parts whose ``kernel`` is known, and one."""
        assert parts[0].kernel is not None
        self.isa, self.kernel = isa, parts[0].kernel
        self.in_ring = arithmetic != FLOAT and not parts[0].in_floats
        self.interleaved = parts[0].interleaved
        self.turns = [_Turn(part, shape, isa, arithmetic) for part in parts]
        self.runs = sum((turn.runs for turn in self.turns), np.zeros(math.prod(shape), np.int64))

    def run(
        self, number: int, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Return results of cells like the one of a number, ``[cells, *extents]``, batch of tiles by batch."""
        arrays, fields = self.kernel.find(sizes, origins, operands)
        turns = [turn for turn in self.turns if turn.runs[number]]
        scratch = _BASE + _STATE_BYTES
        most = max(turn.code.scratch_bytes for turn in turns)
        end = scratch + self.isa["worker_contexts"] * _up(most)
        end = -(-end // _LONGEST_BYTES) * _LONGEST_BYTES
        places, elements = dict[str, int](), None
        ahead = max(
            turn.code.overread_bytes for turn in turns
        )  # loads of others do not reach interleaved memory
        for name in sorted(arrays, key=lambda name: name in self.interleaved):
            if name in self.interleaved and elements is None:
                end = -(-(end + ahead) // _LONGEST_BYTES) * _LONGEST_BYTES
                elements = end
            places[name], end = end, end + _up(arrays[name][0].nbytes) + _ACCESS_BYTES
            end = -(-end // _LONGEST_BYTES) * _LONGEST_BYTES
        arguments: list[tuple[TileCode, dict[str, int | np.ndarray]]] = [
            (turn.code, {**fields, **places, **own})
            for turn in turns
            for own in turn.fields(number, sizes, places)
        ]
        size_bytes = _up(end - _BASE)
        cells = len(next(iter(arrays.values())))
        batch = max(1, BATCH_BYTES // size_bytes)
        found: list[list[np.ndarray]] = []
        for at in range(0, cells, batch):
            tiles = min(batch, cells - at)
            simulator = TileSimulator(self.isa, size_bytes, tiles, _BASE, elements, self.in_ring)
            for name, x in arrays.items():
                simulator.write(places[name], x[at : at + tiles])
            for code, given in arguments:
                own = {k: v[at : at + tiles] if isinstance(v, np.ndarray) else v for k, v in given.items()}
                simulator.run(code, own, _BASE, scratch)
            found.append(self.kernel.results(sizes, _Left(simulator, places, arrays)))
        return found[0] if len(found) == 1 else [np.concatenate(x) for x in zip(*found, strict=True)]


class _Left(dict[str, np.ndarray]):
    """What a kernel's code leaves in memory, by name; read when it is asked for: operands mostly are not."""

    def __init__(
        self, simulator: TileSimulator, places: Mapping[str, int], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Take tiles, and where what was put there lies."""
        super().__init__()
        self.simulator, self.places, self.arrays = simulator, places, arrays

    def __missing__(self, name: str) -> np.ndarray:
        """Read an array ``[tiles, ...]``."""
        like = self.arrays[name]
        shape = like.shape[1:]
        found = self.simulator.read(self.places[name], math.prod(shape), like.dtype.name)
        self[name] = found.reshape(len(found), *shape)
        return self[name]


class _Turn:
    """One code of a kernel, in the engine's arithmetic, and its loops' extents for every cell, in cell order."""

    def __init__(
        self, part: VertexCode, shape: tuple[int, ...], isa: InstructionSet, arithmetic: str
    ) -> None:
        if arithmetic == FLOAT or part.cell is None or part.compiled is None:
            self.code = part.variant.code
        else:
            self.code = _ring_kernel(part.cell(), part.compiled, isa)
        self.part = part
        self.n, self.rows, self.runs = (
            np.broadcast_to(np.asarray(x, np.int64), shape).reshape(-1)
            for x in (part.n, part.rows, part.runs)
        )

    def fields(self, number: int, sizes: tuple[int, ...], places: Mapping[str, int]) -> list[dict[str, int]]:
        """Return the fields that are this code's own, of each of its runs, where memory lies at ``places``."""
        given: Mapping[str, Field] | Sequence[Mapping[str, Field]] = {}
        if self.part.turn is not None:
            given = self.part.turn(sizes)
        found: list[dict[str, int]] = []
        for run in [given] if isinstance(given, Mapping) else given:
            own = {"n": int(self.n[number]), "rows": int(self.rows[number])}
            for name, x in run.items():
                where, offset = x if isinstance(x, tuple) else (x, 0)
                own[name] = where if isinstance(where, int) else places[where] + offset
            found.append(own)
        return found


def _by_kernel(parts: Sequence[VertexCode]) -> list[list[VertexCode]]:
    """Return the parts that have kernels; those that follow one another on the same memory together."""
    found: list[list[VertexCode]] = []
    for part in parts:
        if part.kernel is None:
            continue
        if part.turn is not None and found and found[-1][0].kernel is part.kernel:
            found[-1].append(part)
        else:
            found.append([part])
    return found


class TileVertices:
    """The vertices of a group, by their code.

    Args:
      executable: the program.
      group: the group.
      arithmetic: "float", or "ring": then the code is that of the cells' ring form, on words.

    Attributes:
      has_code: of every cell, in cell order, whether it has code.

    Raises:
      NoTileCode, OutOfRegisters: the group's vertices have no code; says why.
    """

    def __init__(self, executable: Executable, group: VertexGroup, arithmetic: str = FLOAT) -> None:
        """Compile what the group's vertices run."""
        self.group = group
        isa, shape = instructions_for(executable.target), group.plan.tiles.shape
        parts = group.codelet.tile_code(group_extents(executable, group), executable.target)
        self.kernels = [_KernelPart(group, shape, isa, arithmetic) for group in _by_kernel(parts)]
        parts = tuple(part for part in parts if part.kernel is None)
        if any(part.data is None or part.cell is None for part in parts):
            raise NoTileCode(f"nothing says what the code of {group.codelet.label} reads")
        _check_order([part.data for part in parts if part.data is not None], group.codelet.label)
        self.parts = [_Part(part, shape, isa, arithmetic) for part in parts]
        count = math.prod(shape)
        runs = [part.runs for part in (*self.parts, *self.kernels)]
        self.has_code = sum(runs, np.zeros(count, np.int64)) > 0

    def run(
        self, number: int, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Return the results of cells of equal extents, ``[cells, *extents]`` each.

        Args:
          number: of one of the cells; it has code.
          sizes: their extents.
          origins: int32 ``[cells, dims]``.
          operands: what each finds on its tile, ``[cells, *extents]``.
        """
        for part in self.kernels:
            if part.runs[number]:
                return part.run(number, sizes, origins, operands)
        form, points = self.group.codelet.code_operands(self.group.form, sizes, operands)
        values: dict[ValueName, np.ndarray] = {
            ("operand", k): _aligned(form, k, x) for k, x in enumerate(points)
        }
        for part in self.parts:
            if not part.runs[number]:
                continue
            arrays: list[np.ndarray] = []
            for kind, k in part.data.reads:
                if kind == "position":
                    arrays.append(np.repeat(origins[:, k], math.prod(sizes[d] for d in part.data.each)))
                elif part.data.folds == "shares":
                    arrays.append(values[kind, k])
                else:
                    arrays.append(_by_rows(values[kind, k], part.data, sizes))
            is_shared = int(part.sharers[number]) > 1
            runs = len(origins) * math.prod(sizes[d] for d in part.data.each)
            for name, x in zip(part.data.writes, part.run(number, runs, arrays), strict=True):
                values[name] = x if is_shared else _placed(x, part.data, sizes)
        written = [values[name] for name in sorted(values) if name[0] == "result"]
        results = self.group.codelet.code_results(self.group.form, sizes, written)
        return [_result(self.group.form, k, sizes, x) for k, x in enumerate(results)]


def _check_order(parts: Sequence[CodeData], label: str) -> None:
    """Raise NoTileCode where a part reads what none before it writes."""
    written: set[ValueName] = set()
    for data in parts:
        missing = [name for name in data.reads if name[0] == "value" and name not in written]
        if missing:
            raise NoTileCode(f"parts of the code of {label} read {missing} before it is written")
        written |= set(data.writes)


@lru_cache(maxsize=1024)
def _ring_code(cell: CellFunction, isa: InstructionSet) -> tuple[TileCode, CellFunction]:
    """Return the code of a cell's ring form, whose floats are words, and that form."""
    words = _ring_cell(cell)
    return compile_cell(words.jaxpr, words.dtypes, cell.arrangement, isa, "in the ring"), words


@lru_cache(maxsize=256)
def _ring_kernel(
    cell: CellFunction, compiled: Callable[[CellFunction, InstructionSet], TileCode], isa: InstructionSet
) -> TileCode:
    """Return a kernel's code for the ring form of what it computes."""
    return compiled(_ring_cell(cell), isa)


def _ring_cell(cell: CellFunction) -> CellFunction:
    """Return a cell's ring form."""
    consts = [to_ring(c) for c in cell.jaxpr.consts]
    dtypes = tuple(tuple(np.dtype(word_type(to_jax(d))).name for d in names) for names in cell.dtypes)
    shapes = [jax.ShapeDtypeStruct(a.shape, d) for a, d in zip(cell.jaxpr.in_avals, dtypes[0], strict=True)]

    def in_ring(*words: jax.Array) -> list[jax.Array]:
        return evaluate(cell.jaxpr.jaxpr, consts, words)

    jaxpr = make_jaxpr(in_ring)(*shapes)
    return CellFunction(jaxpr, (dtypes[0], dtypes[1]), cell.arrangement)


def _up(size_bytes: int) -> int:
    return -(-size_bytes // _ACCESS_BYTES) * _ACCESS_BYTES


def _aligned(form: OpForm, k: int, operand: np.ndarray) -> np.ndarray:
    """Return operand k of many cells with one axis per domain dimension behind the first, as ``Cell.align``."""
    axes = form.operands[k].axes
    moving = sorted((axis.terms[0][0], 1 + i) for i, axis in enumerate(axes) if axis.terms)
    constant = [1 + i for i, axis in enumerate(axes) if not axis.terms]
    shape = [len(operand)] + [1] * len(form.dims)
    for d, i in moving:
        shape[1 + d] = operand.shape[i]
    return operand.transpose([0, *(i for _, i in moving), *constant]).reshape(shape)


def _by_rows(x: np.ndarray, data: CodeData, sizes: Sequence[int]) -> np.ndarray:
    """Return a value in the order of the loops: ``[runs, rows or 1, n or 1]``, whole where it varies with a part.

    Runs are cells, or the points of ``data.each`` of every cell.
    """
    loops = (*data.each, *data.rows, *data.inner)
    rest = [d for d in range(x.ndim - 1) if d not in loops]
    ordered = x.transpose([0, *(1 + d for d in (*loops, *rest))])
    whole = [len(x), *(sizes[d] for d in data.each)]
    for dims in (data.rows, data.inner):
        varies = any(x.shape[1 + d] > 1 for d in dims)
        whole += [sizes[d] if varies else 1 for d in dims]
    full = np.broadcast_to(ordered.reshape(ordered.shape[: 1 + len(loops)]), whole)
    first = 1 + len(data.each)
    rows = math.prod(whole[first : first + len(data.rows)])
    return full.reshape(math.prod(whole[:first]), rows, math.prod(whole[first + len(data.rows) :]))


def _placed(x: np.ndarray, data: CodeData, sizes: Sequence[int]) -> np.ndarray:
    """Return ``[runs, rows, n]`` with one axis per domain dimension behind the cells; folded ones have size 1."""
    folded = {"inner": data.inner, "shares": data.inner, "rows": data.rows}.get(data.folds, ())
    dims = (*data.each, *data.rows, *data.inner)
    cells = len(x) // math.prod(sizes[d] for d in data.each)
    ordered = x.reshape(cells, *(1 if d in folded else sizes[d] for d in dims))
    order = sorted(range(len(dims)), key=lambda at: dims[at])
    shape = [1 if d in folded or d not in dims else sizes[d] for d in range(len(sizes))]
    return ordered.transpose([0, *(1 + at for at in order)]).reshape(cells, *shape)


def _result(form: OpForm, k: int, sizes: Sequence[int], x: np.ndarray) -> np.ndarray:
    """Return a result in the order of its map, whole where the code knew that it does not vary."""
    dims = form.results[k].dims
    rest = [d for d in range(x.ndim - 1) if d not in dims]
    ordered = x.transpose([0, *(1 + d for d in (*dims, *rest))]).reshape(
        len(x), *(x.shape[1 + d] for d in dims)
    )
    return np.broadcast_to(ordered, (len(x), *(sizes[d] for d in dims)))


def _shares(x: np.ndarray, starts: np.ndarray, length: int, rows: int) -> np.ndarray:
    """Return rows ``[cells, rows or 1, n or 1]`` cut where some sharers begin, a row for each of them."""
    if x.shape[2] > 1:
        x = x[:, :, starts[:, None] + np.arange(length)]
    else:
        x = np.repeat(x[:, :, None], len(starts), axis=2)
    return np.broadcast_to(x, (len(x), rows, *x.shape[2:])).reshape(len(x), rows * len(starts), x.shape[3])
