"""Tile code of sorts and selections: runs of sorted elements, of one at first, are merged until there is one a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiles._jax_compat import Function, Jaxpr, make_jaxpr
from tiles.elements import (
    Access,
    Arrangement,
    CellFunction,
    Formula,
    InstructionSet,
    TileCode,
    Variant,
    compile_ends,
    compile_least,
    compile_merges,
    compile_variant,
    formula_of,
    instructions_for,
)
from tiles.elements.kept_variants import kept_variant
from tiles.elements.merges import PIECES_SHIFT, with_halvings
from tiles.elements.variants import UNNAMED, NoVariant, existing, variant_or_why
from tiles.errors import NoTileCode
from tiles.graph import Extents, VertexCode
from tiles.graph.cycles import CodeMemory, Field
from tiles.numerics.dtypes import to_jax
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.expression import ONE_ELEMENT
from tiles.poplibs.popops.map_code import check_widths
from tiles.poplibs.popops.merging_levels import NOWHERE, POSITION, Level, Merging, levels_of
from tiles.poplibs.popops.packing_code import (
    compiled_packing,
    in_words,
    narrow_arrays,
    packing_cycles,
    upper_half,
)
from tiles.poplibs.popops.records_code import (
    RecordRows,
    has_records,
    record_bytes,
    record_code,
    record_cycles,
    record_parts,
)
from tiles.poplibs.popops.sort_order import Order
from tiles.target import Target

_WORD_BYTES = 4
RECORDS_LEAST = 3
"""Elements of a row from which on records of keys take fewer cycles than merges of the elements, of every dtype measured:
0.4 to 1.0 times as many; of two elements 1.06 to 1.7 times (f32, f16, integers of 8 and 32 bits, alone and with another)."""


@dataclass(frozen=True)
class _Run:
    """A variant of the code at one level, and how often vertices run it."""

    level: Level
    variant: Variant
    counts: bool
    steps: int
    runs: Amount


def _runs(what: Merging, n: Amount, rows: Amount, target: Target, name: str) -> list[_Run]:
    """Return what sorts ``rows`` rows of ``n`` elements each, in order; see ``merging_code``."""
    isa, found = instructions_for(target), list[_Run]()
    variants: dict[tuple[bool, int], Variant] = {}
    for level, counts, steps, runs in _turns(what, n, rows, isa):
        if (counts, steps) not in variants:
            made = existing(_variant(isa, *what.question, counts, steps))
            variants[counts, steps] = made.named(name)
        found.append(_Run(level, variants[counts, steps], counts, steps, runs))
    return found


def _turns(
    what: Merging, n: Amount, rows: Amount, isa: InstructionSet
) -> Iterator[tuple[Level, bool, int, Any]]:
    """Yield for each time that code goes over rows: the level, whether it counts, its halvings, how often vertices run it."""
    n, rows = np.broadcast_arrays(np.asarray(n, np.int64), np.asarray(rows, np.int64))
    most = int(np.max(n, initial=0))
    if most > isa["repeat_count_max"]:
        raise NoTileCode(f"rows of {most:,} elements", expected=f"at most {isa['repeat_count_max']:,}")
    for level in levels_of(n, what.run, what.kept, isa["worker_contexts"]):
        counts = what.counts and level.number == 0
        for steps in (0, level.steps):
            runs = np.where(level.active & ((level.pieces > 1) == (steps > 0)), rows, 0)
            if runs.any():
                yield level, counts, steps, runs


def merging_code(
    what: Merging, n: Amount, rows: Amount, kernel: MergedRows, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code that sorts ``rows`` rows of ``n`` elements each, a run of the code for every level and row.

    Args:
      what: is merged.
      n: elements of a row; a number, or an array with one entry per vertex.
      rows: as ``n``.
      kernel: of the codelet.
      target: the machine.
      name: of the variants.

    Raises:
      NoTileCode: elements that fit no word, a comparison without code, or rows that loops cannot count.
      OutOfRegisters: too few registers, even with values spilled.
    """
    cell, all_rows = partial(_cell, *what.question), np.asarray(rows, np.int64)
    rows = all_rows
    width = np.asarray(n if what.kept is None else what.kept, np.int64)
    unpacked = _packing_parts(what, False, np.asarray(n, np.int64), rows, kernel, target, name)
    packed = _packing_parts(what, True, width, rows, kernel, target, name)
    parts = list[VertexCode]()
    by_records = _by_records(what, n)
    if by_records.any():
        found = record_parts(what, n, np.where(by_records, rows, 0), target)
        parts += record_code(found, kernel.records, kernel, name)
        rows = np.where(by_records, 0, rows)
    parts += [
        VertexCode(
            run.variant,
            run.level.piece,
            run.level.pairs * run.level.pieces,
            run.runs,
            cell=cell,
            kernel=kernel,
            compiled=_Compiled(run.counts, run.steps),
            turn=partial(kernel.turn, run.level.number),
        )
        for run in _runs(what, n, rows, target, name)
    ]
    missing = np.maximum((what.kept or 0) - np.asarray(n, np.int64), 0)
    if np.any(missing):
        made = existing(_filling(instructions_for(target), what.words)).named(name)
        runs = np.where(missing > 0, all_rows, 0)
        parts.append(VertexCode(made, missing, 1, runs, kernel=kernel, turn=kernel.fill))
    return (*unpacked, *parts, *packed)


def _by_records(what: Merging, n: Amount) -> np.ndarray:
    """Return whether rows of ``n`` elements are sorted as records of their keys, with one entry per vertex."""
    return (np.asarray(n) >= RECORDS_LEAST) & has_records(what)


def _packing_parts(
    what: Merging,
    packs: bool,
    n: Amount,
    rows: Amount,
    kernel: MergedRows | _BitonicRows,
    target: Target,
    name: str,
) -> list[VertexCode]:
    """Return the code that makes words of all rows' narrow elements, or such elements of words."""
    return [
        VertexCode(
            narrow.variant(packs, target, name),
            n * rows,
            runs=np.minimum(n * rows, 1),
            cell=None if packs or narrow.key is None else narrow.unpacking,
            kernel=kernel,
            compiled=compiled_packing,
            turn=partial(kernel.packing, k, packs),
        )
        for k, narrow in what.narrow.items()
    ]


def merging_cycles(what: Merging, n: Amount, rows: Amount, target: Target) -> Any:
    """Return the cycles of sorting ``rows`` rows of ``n`` elements on one tile; arguments and errors as of ``merging_code``."""
    by_records = _by_records(what, n)
    merging = _record_cycles(what, n, rows, by_records, target)
    found = _runs(what, n, np.where(by_records, 0, rows), target, "merges")
    merging += sum(
        run.runs * run.variant.formula.cycles(run.level.piece, run.level.pairs * run.level.pieces)
        for run in found
    )
    return merging + packing_cycles(what.order, n * rows, rows * (what.kept or n), target)


def least_merging_cycles(what: Merging, n: Amount, rows: Amount, target: Target) -> Any:
    """Return what ``merging_cycles`` is at least, from code that is not scheduled; arguments and errors as of it."""
    isa, question = instructions_for(target), what.question
    by_records = _by_records(what, n)
    merging = _record_cycles(what, n, rows, by_records, target)
    merging += sum(
        runs
        * _least_formula(isa, _Compiled, (counts,), steps, *question).cycles(
            level.piece, level.pairs * level.pieces
        )
        for level, counts, steps, runs in _turns(what, n, np.where(by_records, 0, rows), isa)
    )
    return merging + packing_cycles(what.order, n * rows, rows * (what.kept or n), target)


def sorting_bytes(what: Merging, n: Amount, rows: Amount) -> Any:
    """Return the bytes of the records in which ``rows`` rows of ``n`` elements are sorted; 0 where they are merged as they are."""
    return np.where(_by_records(what, n), record_bytes(n, rows), 0)


def _record_cycles(what: Merging, n: Amount, rows: Amount, by_records: np.ndarray, target: Target) -> Any:
    """Return the cycles of sorting those rows that are sorted as records."""
    if not by_records.any():
        return np.int64(0)
    return record_cycles(record_parts(what, n, np.where(by_records, rows, 0), target))


def sorting_code(
    what: Merging, dimension: int, extents: Extents, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code that sorts arrays along a dimension of theirs; arguments and errors as of ``merging_code``."""
    n = np.asarray(extents.sizes[dimension], np.int64)

    def rows_of(sizes: tuple[int, ...], operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.moveaxis(x, 1 + dimension, -1).reshape(-1, sizes[dimension]) for x in operands]

    def results_of(sizes: tuple[int, ...], found: list[np.ndarray]) -> list[np.ndarray]:
        rest = [size for d, size in enumerate(sizes) if d != dimension]
        return [split_rows(x, rest, dimension) for x in found]

    def n_of(sizes: tuple[int, ...]) -> int:
        return sizes[dimension]

    kernel = MergedRows(what, rows_of, results_of, n_of, target.workers_per_tile)
    return merging_code(what, n, extents.points // np.maximum(n, 1), kernel, target, name)


def bitonic_code(what: Merging, extents: Extents, target: Target, name: str) -> tuple[VertexCode, ...]:
    """Return the code that sorts bitonic rows along the last dimension; arguments and errors as of ``merging_code``.

    Workers find the first element of a row in turn, then each writes a share of the result.
    """
    isa = instructions_for(target)
    n = np.asarray(extents.sizes[-1], np.int64)
    rows = extents.points // np.maximum(n, 1)
    piece = -(-n // target.workers_per_tile)
    question = what.question
    cell, kernel = partial(_cell, *question), _BitonicRows(what, target.workers_per_tile)
    least = existing(_bitonic_variant(isa, *question, 0)).named(name)
    parts = _packing_parts(what, False, n, rows, kernel, target, name)
    parts += [
        VertexCode(
            least, n, runs=rows, cell=cell, kernel=kernel, compiled=_CompiledEnds(0), turn=kernel.first
        )
    ]
    steps = np.array([_halvings(size) for size in np.atleast_1d(n).tolist()]).reshape(n.shape)
    different: list[int] = np.unique(steps).tolist()
    for count in different:
        variant = existing(_bitonic_variant(isa, *question, count)).named(name)
        runs, compiled = np.where(steps == count, rows, 0), _CompiledEnds(count)
        parts.append(
            VertexCode(
                variant, piece, runs=runs, cell=cell, kernel=kernel, compiled=compiled, turn=kernel.ends
            )
        )
    return (*parts, *_packing_parts(what, True, n, rows, kernel, target, name))


def bitonic_cycles(what: Merging, n: int, rows: int, target: Target) -> Any:
    """Return the cycles of sorting ``rows`` bitonic rows of ``n`` elements on one tile; errors as of ``merging_code``."""
    isa, question = instructions_for(target), what.question
    least = existing(_bitonic_variant(isa, *question, 0)).formula.cycles(n)
    ends = existing(_bitonic_variant(isa, *question, _halvings(n))).formula
    merging = rows * (least + ends.cycles(-(-n // target.workers_per_tile)))
    return merging + packing_cycles(what.order, n * rows, n * rows, target)


def least_bitonic_cycles(what: Merging, n: int, rows: int, target: Target) -> Any:
    """Return what ``bitonic_cycles`` is at least, from code that is not scheduled; arguments and errors as of it."""
    isa, question = instructions_for(target), what.question
    least = _least_formula(isa, _CompiledEnds, (), 0, *question).cycles(n)
    ends = _least_formula(isa, _CompiledEnds, (), _halvings(n), *question)
    merging = rows * (least + ends.cycles(-(-n // target.workers_per_tile)))
    return merging + packing_cycles(what.order, n * rows, n * rows, target)


@lru_cache(maxsize=256)
def _least_formula(
    isa: InstructionSet, kind: Function, given: tuple[bool, ...], steps: int, *question: Any
) -> Formula:
    """Return the least that a vertex of some code can cost, whatever becomes of it."""
    code = _compiled_once(isa, kind(*given, min(steps, 1), is_scheduled=False), *question)
    return formula_of(with_halvings(code, steps) if steps else code, isa)


def _halvings(n: int) -> int:
    """Return how many halvings tell how many of the first elements of a row of ``n`` lie forward."""
    return max(1, (n - 1).bit_length())


@lru_cache(maxsize=256)
def _bitonic_variant(isa: InstructionSet, *question: Any) -> Variant | NoVariant:
    def make() -> Variant:
        *what, steps = question
        code = _compiled_once(isa, _CompiledEnds(min(steps, 1)), *what)
        return Variant.of(with_halvings(code, steps) if steps else code, isa)

    return kept_variant(("bitonic", *question), isa, make)


@dataclass(frozen=True)
class _CompiledEnds:
    """Makes the code of bitonic rows; 0 steps for that which finds the first elements."""

    steps: int
    is_scheduled: bool = True

    def __call__(self, cell: CellFunction, isa: InstructionSet) -> TileCode:
        arrays = cell.jaxpr, cell.dtypes[1], isa
        if not self.steps:
            return compile_least(*arrays, UNNAMED, is_scheduled=self.is_scheduled)
        return compile_ends(*arrays, self.steps, UNNAMED, is_scheduled=self.is_scheduled)


@dataclass(frozen=True)
class _BitonicRows:
    """Bitonic rows along the last dimension: a ``Kernel``."""

    what: Merging
    workers: int

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        rows = [np.ascontiguousarray(x.reshape(-1, sizes[-1])) for x in operands]
        memory = _memory(self.what, rows, sizes[-1])
        memory |= {f"r{k}": np.zeros(x.shape, _word_type(self.what, rows, k)) for k, x in enumerate(rows)}
        return memory | {"near": np.zeros((len(rows[0]), self.workers), np.int32)}, {}

    def packing(self, k: int, packs: bool, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of making words of array k, or its elements of words."""
        return _packing_fields(k, packs, sizes[-1])

    def _words(self) -> dict[str, Field]:
        return {f"in{k}": f"w{k}" for k in self.what.narrow}

    def first(self, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of finding the first element."""
        return {**self._words(), "out0": "near"}

    def ends(self, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of going on from there."""
        results: dict[str, Field] = {f"out{k}": f"r{k}" for k in range(len(self.what.dtypes))}
        share = -(-sizes[-1] // self.workers)
        results |= {"size": sizes[-1] * _WORD_BYTES, "piece": share * _WORD_BYTES}
        return results | self._words()

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        rest = sizes[:-1]
        return [split_rows(x, rest, len(rest)) for x in _found(self.what, memory)]


@lru_cache(maxsize=256)
def _variant(isa: InstructionSet, *question: Any) -> Variant | NoVariant:
    def make() -> Variant:
        *what, counts, steps = question
        code = _compiled_once(isa, _Compiled(counts, min(steps, 1)), *what)
        return Variant.of(with_halvings(code, steps) if steps else code, isa)

    return kept_variant(("merges", *question), isa, make)


@lru_cache(maxsize=64)
def _compiled_once(
    isa: InstructionSet, compiled: Callable[[CellFunction, InstructionSet], TileCode], *what: Any
) -> TileCode:
    """Return the code that searches of all lengths have in common."""
    return compiled(_cell(*what), isa)


@lru_cache(maxsize=64)
def _filling(isa: InstructionSet, dtypes: tuple[str, ...]) -> Variant | NoVariant:
    """Return the code that fills the end of what was found: zeros, at the position of nothing."""

    def nothing() -> tuple[jax.Array, ...]:
        return *(jnp.zeros((), to_jax(d)) for d in dtypes[:-1]), jnp.full((), NOWHERE, POSITION)

    how = Arrangement((), (Access(alignment_bytes=_WORD_BYTES),) * len(dtypes))
    return variant_or_why(lambda: compile_variant(make_jaxpr(nothing)(), ((), dtypes), how, isa, UNNAMED))


@dataclass(frozen=True)
class _Compiled:
    """Makes the code for another arithmetic."""

    counts: bool
    steps: int
    is_scheduled: bool = True

    def __call__(self, cell: CellFunction, isa: InstructionSet) -> TileCode:
        arrays = cell.jaxpr, cell.dtypes[1], isa
        return compile_merges(*arrays, self.counts, self.steps, is_scheduled=self.is_scheduled)


@lru_cache(maxsize=256)
def _cell(order: Order, has_positions: bool, size: int | None, ascends: bool) -> CellFunction:
    """Return whether later elements go before earlier ones: of the arrays' later elements, then of their earlier ones.

    Where positions ascend from run to run a later element goes first only if it is less.
    """
    check_widths(order.dtypes)
    keyed = [k for k, narrow in narrow_arrays(order).items() if narrow.key is not None]
    order = in_words(order)
    arrays = (*order.dtypes, POSITION) if has_positions else order.dtypes

    def goes_before(*elements: jax.Array) -> jax.Array:
        both = elements[: len(arrays)], elements[len(arrays) :]
        later, earlier = ([upper_half(x) if k in keyed else x for k, x in enumerate(own)] for own in both)
        if not has_positions:
            return order.less(ONE_ELEMENT, later, earlier)
        if ascends:
            less = order.less(ONE_ELEMENT, later[:-1], earlier[:-1])
            return less if size is None else less & (later[-1] < size)
        if size is None:
            return order.earlier(ONE_ELEMENT, later, earlier)
        return order.precedes(ONE_ELEMENT, later, earlier, size)

    jaxpr: Jaxpr = make_jaxpr(goes_before)(*(jax.ShapeDtypeStruct((), to_jax(d)) for d in arrays * 2))
    return CellFunction(jaxpr, (arrays * 2, arrays), Arrangement((), ()))


@dataclass(frozen=True)
class MergedRows:
    """Rows that code sorts level by level, from one buffer to another: a ``Kernel``.

    Args:
      what: is merged.
      rows_of: returns the arrays ``[rows of all cells, n]`` from extents and operands.
      results_of: returns the results ``[cells, *extents]`` from extents and sorted arrays ``[rows of all cells, kept]``.
      workers: of a tile.
      dimension: of the domain along which positions are counted.
    """

    what: Merging
    rows_of: Callable[[tuple[int, ...], Sequence[np.ndarray]], list[np.ndarray]]
    results_of: Callable[[tuple[int, ...], list[np.ndarray]], list[np.ndarray]]
    n_of: Callable[[tuple[int, ...]], int]
    workers: int
    dimension: int = 0

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        rows = [np.ascontiguousarray(x) for x in self.rows_of(sizes, operands)]
        count, n = rows[0].shape
        memory = _memory(self.what, rows, self.what.kept or n)
        levels = self._levels(sizes)
        for buffer in sorted({self._buffer(level, len(levels)) for level in range(len(levels))}):
            width = max(levels[-1].found, self.what.kept or 0) if buffer == "r" else n
            for k in range(len(self.what.dtypes)):
                memory[f"{buffer}{k}"] = np.zeros((count, int(width)), _word_type(self.what, rows, k))
        memory |= self.records.memory(count, n)
        first = origins[:, self.dimension] if self.what.counts else np.zeros(len(origins), np.int64)
        return memory, {"first": np.repeat(first, count // len(origins))}

    @property
    def records(self) -> RecordRows:
        """What sorts rows as records of their keys."""
        return RecordRows(self.what, self.n_of, self.workers)

    def _levels(self, sizes: tuple[int, ...]) -> list[Level]:
        return [*levels_of(self.n_of(sizes), self.what.run, self.what.kept, self.workers)]

    def _buffer(self, number: int, levels: int) -> str:
        """Return the name of the buffer that a level writes: the results' last, two others in turn before."""
        if number == levels - 1:
            return "r"
        return (
            "ab"[(levels - 2 - number) % 2] if self.what.kept is not None else "ra"[(levels - 1 - number) % 2]
        )

    def turn(self, number: int, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of a level; a text names memory."""
        levels = self._levels(sizes)
        level = levels[number]
        target, source = self._buffer(number, len(levels)), "in"
        if number:
            source = self._buffer(number - 1, len(levels))
        held = len(self.what.dtypes) - (self.what.counts and number == 0)
        fields: dict[str, Field] = {f"in{k}": f"{source}{k}" for k in range(held)}
        if not number:
            fields |= {f"in{k}": f"w{k}" for k in self.what.narrow}
        fields |= {f"out{k}": f"{target}{k}" for k in range(len(self.what.dtypes))}
        pieces, piece = int(level.pieces), int(level.piece)
        fields |= {"run": level.run * _WORD_BYTES, "most": level.most * _WORD_BYTES}
        fields |= {"size": int(level.elements) * _WORD_BYTES, "piece": piece * _WORD_BYTES}
        return fields | {"pieces": pieces, "factor": -(-(1 << PIECES_SHIFT) // pieces)}

    def packing(self, k: int, packs: bool, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of making words of array k, or its elements of words."""
        n = self.n_of(sizes)
        return _packing_fields(k, packs, self.what.kept or n if packs else n)

    def fill(self, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of filling the end of a row in which fewer are found than are wanted."""
        offset = self.n_of(sizes) * _WORD_BYTES
        return {f"out{k}": (f"r{k}", offset) for k in range(len(self.what.dtypes))}

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        return self.results_of(sizes, _found(self.what, memory))


def _word_type(what: Merging, rows: Sequence[np.ndarray], k: int) -> np.dtype:
    """Return the type of the words of array k: in the ring, its words'."""
    is_held = k < len(rows) and k not in what.narrow
    return rows[k].dtype if is_held else np.dtype(to_jax(what.words[k]))


def _memory(what: Merging, rows: Sequence[np.ndarray], width: int) -> dict[str, np.ndarray]:
    """Return memory for arrays as they are read and, of narrow ones, for their words and for what becomes of them.

    Arrays of words lie in order: none lies before the first one.
    """
    memory = {f"in{k}": rows[k] for k in what.narrow}
    memory |= {f"p{k}": np.zeros((len(rows[k]), width), rows[k].dtype) for k in what.narrow}
    for k, x in enumerate(rows):
        memory |= {f"w{k}": np.zeros(x.shape, what.words[k])} if k in what.narrow else {f"in{k}": x}
    return memory


def _packing_fields(k: int, packs: bool, n: int) -> dict[str, Field]:
    """Return the fields of making words of array k, or its elements of words; of one row, as rows follow one another."""
    source, target = ("r", "p") if packs else ("in", "w")
    return {"in0": f"{source}{k}", "out0": f"{target}{k}", "n": n}


def _found(what: Merging, memory: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the arrays that merges have left."""
    return [memory[f"{'p' if k in what.narrow else 'r'}{k}"] for k in range(len(what.dtypes))]


def split_rows(x: np.ndarray, sizes: Sequence[int], axis: int) -> np.ndarray:
    """Return sorted rows ``[cells * rows, n]`` with the axis back in its place among the other extents ``sizes``."""
    cells = len(x) // max(1, math.prod(sizes))
    return np.moveaxis(x.reshape(cells, *sizes, x.shape[1]), -1, 1 + axis)
