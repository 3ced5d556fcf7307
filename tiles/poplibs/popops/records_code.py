"""Tile code of sorts by one key: keys are computed once, records of a key and an offset are sorted, arrays put in order.

Merges of the elements themselves compute what orders an element anew at each level, and move every array. Both take
more slots than these records (``tiles/elements/records.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiles._jax_compat import Jaxpr, make_jaxpr
from tiles.elements import (
    Access,
    Arrangement,
    CellFunction,
    InstructionSet,
    TileCode,
    Variant,
    compile_fours,
    compile_gathered_records,
    compile_record_merges,
    compile_variant,
    instructions_for,
)
from tiles.elements.kept_variants import kept_variant
from tiles.elements.merges import PIECES_SHIFT, with_halvings
from tiles.elements.records import LAST_KEY, RECORD_BYTES, RUN
from tiles.elements.variants import UNNAMED, NoVariant, existing, variant_or_why
from tiles.errors import NoTileCode
from tiles.graph import VertexCode
from tiles.graph.cycles import Field, Kernel
from tiles.numerics.dtypes import is_float, itemsize, to_jax
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.merging_levels import POSITION, Level, Merging, levels_of
from tiles.poplibs.popops.packing_code import compiled_packing, in_words, narrow_arrays, upper_half
from tiles.poplibs.popops.sort_order import Order
from tiles.target import Target

_WORD_BYTES = 4
_KEY = "int32"
_SEARCH = 6.0, 1.6
"""As ``SEARCH``, in the time that a record takes: some 60 slots, 16 for each halving."""


def has_records(what: Merging) -> bool:
    """Return whether elements are ordered by one integer of a word, and equal ones by where they lie; arrays are of words."""
    if len(what.order.keys) != 1 or what.run != 1:
        return False
    if any(itemsize(dtype) > _WORD_BYTES for dtype in what.dtypes):
        return False
    return not what.has_positions or what.counts or what.ascends


def record_bytes(n: Amount, rows: Amount) -> Any:
    """Return the bytes in which rows of ``n`` elements are sorted, of those of ``rows`` that are at the same time."""
    return _row_bytes(n) * _rows_held(n, rows)


def _row_bytes(n: Amount) -> Any:
    """Return the bytes of a row's keys, and of its records twice, with one behind each run."""
    padded = _padded(n)
    return _WORD_BYTES * padded + 2 * RECORD_BYTES * (padded + padded // RUN)


_WORKERS = 6
_BATCH_BYTES = 48 << 10
"""In which six rows are sorted at once, at most: longer ones gain little by it (2.9 times as fast at 20 floats, 1.5 at 128, 1.3 at 340,
1.2 at 680)."""


@dataclass(frozen=True)
class Part:
    """One code that vertices run: the variant, its extents, how often, and the fields of its state.

    ``cell`` and ``compiled`` say what is computed, and what makes the code, in another arithmetic, where they differ;
    ``in_turn`` whether workers take whole rows.
    """

    variant: Variant
    n: Any
    rows: Any
    runs: Any
    turn: Callable[[RecordRows, tuple[int, ...]], dict[str, Field]]
    cell: Callable[[], CellFunction] | None = None
    compiled: Callable[[CellFunction, InstructionSet], TileCode] = compiled_packing
    in_turn: bool = False


def record_parts(what: Merging, n: Amount, rows: Amount, target: Target) -> list[Part]:
    """Return what sorts ``rows`` rows of ``n`` elements each, in order: six at a time, a worker each, and others alone.

    Workers share a row that is alone: they search for where they begin, and wait where there is less to do than they are.

    Args:
      what: is sorted; ``has_records`` of it holds.
      n: elements of a row; a number, or an array with one entry per vertex.
      rows: as ``n``.
      target: the machine.

    Raises:
      NoTileCode: elements that fit no word, a key without code, or rows that loops cannot count.
      OutOfRegisters: too few registers, even with values spilled.
    """
    isa = instructions_for(target)
    n, rows = np.broadcast_arrays(np.asarray(n, np.int64), np.asarray(rows, np.int64))
    if int(np.max(_padded(n), initial=0)) > isa["repeat_count_max"]:
        raise NoTileCode(
            f"rows of {int(np.max(n)):,} elements", expected=f"at most {isa['repeat_count_max']:,}"
        )
    alone = _shared_parts(what, n, isa)
    if not (_rows_held(n, rows) > 1).any():
        return _repeated(alone, rows)
    together, workers = _parts_in_turn(what, n, isa), isa["worker_contexts"]
    one, six = record_cycles(alone), record_cycles(together)
    full, rest = rows // workers, rows % workers
    batches = np.where((_rows_held(n, rows) > 1) & (six < workers * one), full + (six < rest * one), 0)
    return [*_repeated(together, batches), *_repeated(alone, np.maximum(rows - workers * batches, 0))]


def _repeated(parts: list[Part], rows: np.ndarray) -> list[Part]:
    """Return parts that run for so many rows, or batches of them, without those that never do."""
    found = [replace(part, runs=part.runs * rows) for part in parts]
    return [part for part in found if np.any(part.runs)]


def _rows_held(n: Amount, rows: Amount) -> Any:
    """Return of how many rows there are records at once: of six where a tile has several and they are short enough."""
    fits = _WORKERS * _row_bytes(n) <= _BATCH_BYTES
    return np.where(fits & (np.asarray(rows) > 1), _WORKERS, 1)


def _shared_parts(what: Merging, n: np.ndarray, isa: InstructionSet) -> list[Part]:
    """Return what sorts one row, by all workers."""
    found, ones = list[Part](), np.ones_like(n)
    padded, is_bounded = _padded(n), _is_bounded(what)
    for is_odd in (False, True):
        runs = np.where((n % 2 == 1) == is_odd, ones, 0)
        if runs.any():
            key = partial(_key_cell, what.order, what.size, is_odd)
            found.append(Part(existing(_key_variant(isa, *key.args)), n, 1, runs, RecordRows.keys, key))
    missing = padded - n
    if missing.any():
        runs = np.where(missing > 0, ones, 0)
        made = existing(_padding(isa, is_bounded))
        in_ring = partial(_padding_cell, False)  # where any key may be the greatest
        found.append(Part(made, missing, 1, runs, RecordRows.padding, in_ring))
    found.append(Part(existing(_fours(isa)), padded // RUN, 1, ones, RecordRows.fours))
    for level in levels_of(padded, RUN, what.kept, isa["worker_contexts"], is_sorted=True, search=_SEARCH):
        for steps in (0, level.steps):
            runs = np.where(level.active & ((level.pieces > 1) == (steps > 0)), ones, 0)
            if runs.any():
                turn, in_ring = (
                    partial(RecordRows.level, number=level.number),
                    partial(_merges_in_ring, steps),
                )
                made, pieces = existing(_merges(isa, is_bounded, steps)), level.pairs * level.pieces
                found.append(Part(made, level.piece, pieces, runs, turn, _ANY_CELL, in_ring))
    kept = n if what.kept is None else np.minimum(n, what.kept)
    gathers = existing(_gathers(isa, len(what.dtypes) - what.counts, what.counts))
    found.append(Part(gathers, kept, 1, ones, RecordRows.gathered))
    return found


def _parts_in_turn(what: Merging, n: np.ndarray, isa: InstructionSet) -> list[Part]:
    """Return what sorts as many rows as there are workers, a row each."""
    found, ones, workers = list[Part](), np.ones_like(n), isa["worker_contexts"]
    padded, is_bounded = _padded(n), _is_bounded(what)
    for is_odd in (False, True):
        runs = np.where((n % 2 == 1) == is_odd, ones, 0)
        if runs.any():
            key = partial(_key_cell, what.order, what.size, is_odd, True)
            made = existing(_key_variant(isa, *key.args))
            found.append(Part(made, n, workers, runs, RecordRows.keys, key))
    missing = padded - n
    if missing.any():
        runs = np.where(missing > 0, ones, 0)
        made = existing(_padding(isa, is_bounded, True))
        in_ring = partial(_padding_cell, False, True)
        found.append(Part(made, missing, workers, runs, RecordRows.padding, in_ring))
    made = existing(_fours(isa, True))
    found.append(Part(made, padded // RUN, workers, ones, RecordRows.fours))
    for level in levels_of(padded, RUN, what.kept, isa["worker_contexts"], is_sorted=True, search=_SEARCH):
        pairs_of = np.asarray(level.pairs)
        different: list[int] = np.unique(pairs_of[level.active]).tolist()
        for pairs in different:
            runs = np.where(level.active & (pairs_of == pairs), ones, 0)
            turn = partial(RecordRows.level, number=level.number)
            in_ring = partial(_merges_in_turn_in_ring, pairs)
            each = -(-level.found // pairs)
            made = existing(_merges_in_turn(isa, is_bounded, pairs))
            found.append(Part(made, each, workers, runs, turn, _ANY_CELL, in_ring))
    kept = n if what.kept is None else np.minimum(n, what.kept)
    made = existing(_gathers(isa, len(what.dtypes) - what.counts, what.counts, True))
    found.append(Part(made, kept, workers, ones, RecordRows.gathered))
    return [replace(part, in_turn=True) for part in found]


def record_cycles(parts: Sequence[Part]) -> Any:
    """Return the cycles of parts, one after another."""
    return sum((part.runs * part.variant.formula.cycles(part.n, part.rows) for part in parts), np.int64(0))


def record_code(parts: Sequence[Part], records: RecordRows, kernel: Kernel, name: str) -> list[VertexCode]:
    """Return parts as code of vertices, with a kernel that holds the memory of ``records``; variants have a name."""
    return [
        VertexCode(
            part.variant.named(name),
            part.n,
            part.rows,
            part.runs,
            cell=part.cell,
            kernel=kernel,
            compiled=part.compiled,
            turn=partial(_one_row if part.in_turn else _own, part.turn, records),
        )
        for part in parts
    ]


def _own(
    turn: Callable[[RecordRows, tuple[int, ...]], dict[str, Field]],
    records: RecordRows,
    sizes: tuple[int, ...],
) -> dict[str, Field]:
    """Return the fields of code that all workers share."""
    return turn(records, sizes)


def _one_row(
    turn: Callable[[RecordRows, tuple[int, ...]], dict[str, Field]],
    records: RecordRows,
    sizes: tuple[int, ...],
) -> dict[str, Field]:
    """Return the fields of code that takes rows in turn, for one row: engines run it so."""
    fields: dict[str, Field] = {**turn(records, sizes), "rows": 1}
    steps: dict[str, Field] = {
        f"{name}_{kind}_bytes": 0 for name in ("records", *fields) for kind in ("row", "step")
    }
    return {**fields, **steps}


@dataclass(frozen=True)
class RecordRows:
    """The memory in which records of rows are sorted, and the fields of the codes that do.

    Args:
      what: is sorted.
      n_of: returns a row's elements from a cell's extents.
      workers: of a tile.
    """

    what: Merging
    n_of: Callable[[tuple[int, ...]], int]
    workers: int

    def memory(self, rows: int, n: int) -> dict[str, np.ndarray]:
        """Return keys and both buffers of records, of so many rows."""
        padded = int(_padded(n))
        held = padded + padded // RUN
        records = {name: np.zeros((rows, 2 * held), np.int32) for name in ("a", "b")}
        return {"key": np.zeros((rows, padded), np.int32), **records}

    def keys(self, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of computing keys."""
        ((number, _, _),) = self.what.order.keys
        fields: dict[str, Field] = {"in0": self._array(number), "out0": "key"}
        return fields if self.what.size is None else {**fields, "in1": f"in{len(self.what.dtypes) - 1}"}

    def padding(self, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of adding the keys of what is no element."""
        return {"out0": ("key", self.n_of(sizes) * _WORD_BYTES)}

    def fours(self, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of making runs of four."""
        return {"in0": "key", "out0": "a"}

    def _levels(self, sizes: tuple[int, ...]) -> list[Level]:
        padded = _padded(self.n_of(sizes))
        return [*levels_of(padded, RUN, self.what.kept, self.workers, is_sorted=True, search=_SEARCH)]

    def level(self, sizes: tuple[int, ...], *, number: int) -> dict[str, Field]:
        """Return the fields of a level."""
        level = self._levels(sizes)[number]
        pieces = int(level.pieces)
        elements = int(level.elements)
        behind = (elements - 1) // level.run
        lengths = {"run": level.run, "most": level.most, "size": elements + behind, "piece": level.piece}
        fields: dict[str, Field] = {name: int(length) * RECORD_BYTES for name, length in lengths.items()}
        fields |= {"in0": "ab"[number % 2], "out0": "ab"[(number + 1) % 2]}
        return fields | {
            "pairs": int(level.pairs),
            "pieces": pieces,
            "factor": -(-(1 << PIECES_SHIFT) // pieces),
        }

    def gathered(self, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of putting arrays in order."""
        fields: dict[str, Field] = {"records": "ab"[len(self._levels(sizes)) % 2]}
        count = len(self.what.dtypes)
        fields |= {f"in{k}": self._array(k) for k in range(count - self.what.counts)}
        return fields | {f"out{k}": f"r{k}" for k in range(count)}

    def _array(self, k: int) -> str:
        return f"w{k}" if k in self.what.narrow else f"in{k}"


def _padded(n: Amount) -> Any:
    return -(-np.asarray(n, np.int64) // RUN) * RUN


def _is_bounded(what: Merging) -> bool:
    """Return whether no element has one of the two greatest keys."""
    ((number, _, is_total),) = what.order.keys
    dtype = what.order.dtypes[number]
    is_less = itemsize(dtype) < _WORD_BYTES or (is_float(to_jax(dtype)) and not is_total)
    return is_less and what.size is None


def _no_element(is_bounded: bool) -> int:
    """Return the key of what is no element: it is sorted behind elements, and less than what lies behind a run if they are."""
    return LAST_KEY - is_bounded


@lru_cache(maxsize=64)
def _key_cell(order: Order, size: int | None, is_odd: bool, in_turn: bool = False) -> CellFunction:
    """Return the key of an element's word, and of its position where some are padding."""
    ((number, _, _),) = order.keys
    narrow = narrow_arrays(order).get(number)
    dtype = order.dtypes[number]
    if itemsize(dtype) > _WORD_BYTES or (
        narrow is not None and narrow.key is None and is_float(to_jax(dtype))
    ):
        raise NoTileCode(f"an order of {dtype}", expected="elements of at most a word, of no 8-bit floats")
    words = in_words(order)
    word = dtype
    if narrow is not None:
        word = narrow.unpacking().dtypes[1][0]

    def key(*given: jax.Array) -> tuple[jax.Array, ...]:
        x = given[0]
        if narrow is not None:
            x = x.astype(_KEY) if narrow.key is None else upper_half(x)
        column = words.key([x] * len(order.dtypes))
        return (column if size is None else jnp.where(given[1] < size, column, LAST_KEY),)

    operands = (word,) if size is None else (word, POSITION)
    reading = Access(alignment_bytes=_WORD_BYTES if is_odd else 2 * _WORD_BYTES)
    jaxpr: Jaxpr = make_jaxpr(key)(*(jax.ShapeDtypeStruct((), to_jax(d)) for d in operands))
    how = Arrangement((reading,) * len(operands), (Access(),), has_rows=in_turn)
    return CellFunction(jaxpr, (operands, (_KEY,)), how)


@lru_cache(maxsize=64)
def _key_variant(
    isa: InstructionSet, order: Order, size: int | None, is_odd: bool, in_turn: bool = False
) -> Variant | NoVariant:
    def make() -> Variant:
        cell = _key_cell(order, size, is_odd, in_turn)
        return compile_variant(cell.jaxpr, cell.dtypes, cell.arrangement, isa, UNNAMED)

    return kept_variant(("record keys", order, size, is_odd, in_turn), isa, make)


def _kept(isa: InstructionSet, what: tuple[Any, ...], make: Callable[[], TileCode]) -> Variant | NoVariant:
    return kept_variant(what, isa, lambda: Variant.of(make(), isa))


@lru_cache(maxsize=8)
def _padding(isa: InstructionSet, is_bounded: bool, in_turn: bool = False) -> Variant | NoVariant:
    cell = _padding_cell(is_bounded, in_turn)
    return variant_or_why(lambda: compile_variant(cell.jaxpr, cell.dtypes, cell.arrangement, isa, UNNAMED))


@lru_cache(maxsize=4)
def _padding_cell(is_bounded: bool, in_turn: bool = False) -> CellFunction:
    """Return what fills the end of a row's keys."""

    def nothing() -> tuple[jax.Array, ...]:
        return (jnp.full((), _no_element(is_bounded), _KEY),)

    how = Arrangement((), (Access(alignment_bytes=_WORD_BYTES),), has_rows=in_turn)
    return CellFunction(make_jaxpr(nothing)(), ((), (_KEY,)), how)


@lru_cache(maxsize=8)
def _fours(isa: InstructionSet, in_turn: bool = False) -> Variant | NoVariant:
    return _kept(isa, ("record fours", in_turn), lambda: compile_fours(isa, UNNAMED, in_turn=in_turn))


@lru_cache(maxsize=8)
def _searching(isa: InstructionSet, is_bounded: bool) -> TileCode:
    return compile_record_merges(isa, is_bounded, 1, UNNAMED)


@lru_cache(maxsize=64)
def _merges(isa: InstructionSet, is_bounded: bool, steps: int) -> Variant | NoVariant:
    def make() -> TileCode:
        if steps:
            return with_halvings(_searching(isa, is_bounded), steps)
        return compile_record_merges(isa, is_bounded, 0, UNNAMED)

    return _kept(isa, ("record merges", is_bounded, steps), make)


@lru_cache(maxsize=8)
def _one_pair_in_turn(isa: InstructionSet, is_bounded: bool) -> TileCode:
    return compile_record_merges(isa, is_bounded, 0, UNNAMED, in_turn=True)


@lru_cache(maxsize=256)
def _merges_in_turn(isa: InstructionSet, is_bounded: bool, pairs: int) -> Variant | NoVariant:
    what = ("record merges in turn", is_bounded, pairs)
    return _kept(isa, what, lambda: with_halvings(_one_pair_in_turn(isa, is_bounded), pairs))


def _merges_in_ring(steps: int, cell: CellFunction, isa: InstructionSet) -> TileCode:
    """Return the code of a level where any key may be the greatest."""
    return existing(_merges(isa, False, steps)).code


def _merges_in_turn_in_ring(pairs: int, cell: CellFunction, isa: InstructionSet) -> TileCode:
    """Return the code of a level of rows in turn where any key may be the greatest."""
    return existing(_merges_in_turn(isa, False, pairs)).code


_ANY_CELL = partial(_padding_cell, False)


@lru_cache(maxsize=32)
def _gathers(isa: InstructionSet, arrays: int, counts: bool, in_turn: bool = False) -> Variant | NoVariant:
    def make() -> TileCode:
        return compile_gathered_records(isa, arrays, counts, UNNAMED, in_turn=in_turn)

    return _kept(isa, ("gathered records", arrays, counts, in_turn), make)
