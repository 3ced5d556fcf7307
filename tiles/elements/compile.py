"""From a cell's jaxpr to tile code: selection, scheduling, registers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from tiles._jax_compat import Jaxpr
from tiles.elements.amp import FieldRuns, MatrixVector, product_of
from tiles.elements.block_slice import BlockSlice
from tiles.elements.blocks import Blocks
from tiles.elements.cell import ACCESS_BYTES, Arrangement
from tiles.elements.coalesce import coalesced
from tiles.elements.cost import cost_of
from tiles.elements.dots import STEPS_AHEAD, Dots, Vertical
from tiles.elements.elementwise import Elementwise, lanes_choices
from tiles.elements.elimination import Elimination, Exchange, Exchanged, Pivot, Substitution
from tiles.elements.emitter import Emitter
from tiles.elements.folds import Folds
from tiles.elements.isa import InstructionSet, instructions_of
from tiles.elements.lookup import Lookup, PartSlice, Slice
from tiles.elements.merges import Ends, Least, Merges
from tiles.elements.narrowing import narrowed
from tiles.elements.records import (
    Fours,
    FoursInTurn,
    GatheredRecords,
    GathersInTurn,
    MergesInTurn,
    RecordMerges,
)
from tiles.elements.reduction import find_reduction
from tiles.elements.reductions import build_reduction
from tiles.elements.reflection import Division, Reflection, Reflector
from tiles.elements.rows import ElementwiseRows
from tiles.elements.scan import Scan
from tiles.elements.slic import SlidingRuns
from tiles.elements.spill import TooLong, assigned, spills_in_loops
from tiles.elements.tilecode import Item, Repeat, TileCode, walk
from tiles.elements.tilecode import instructions_of as written
from tiles.elements.updates import Updates
from tiles.errors import OutOfRegisters
from tiles.target import Target

_MANY = 12_000
_PAIR = 2
_CROWDED = 12
"""Values without a register beyond which an iteration of fewer elements is better."""
_LONG = 128
"""Instructions of a nest from which on an iteration of more elements is finished only where that may be worth while."""
_WORTHWHILE = 0.95
"""Cycles that it takes at most, as a share of those of fewer elements, both before scheduling. Integers are computed one by one:
of the random bits that a normal distribution takes pairs save 1 % before and at most 0.4 % after scheduling, and take three
times as long to compile since they need twice the registers; pairs of floats save 40 % and more."""
_APART = Arrangement((), ())
"""That of code whose accesses are never joined."""
_SEPARATE = Arrangement((), (), separate=True)


class Nest(Protocol):
    """Code before scheduling: a loop nest around selected instructions."""

    emitter: Emitter
    arguments: list[str]
    lanes: int

    def items(self) -> list[Item]:
        """Return the code, on virtual registers."""
        ...


def compile_cell(
    jaxpr: Jaxpr,
    dtypes: tuple[tuple[str, ...], tuple[str, ...]],
    arrangement: Arrangement,
    target: Target | InstructionSet,
    name: str = "cell",
) -> TileCode:
    """Return the tile code of a codelet's variant.

    Args:
      jaxpr: closed jaxpr of one element (scalars in, scalars out); or of a reduction of an array of any extents
        ``[rows, n]`` over one of its dimensions, with functions of elements before it and of the result after it.
      dtypes: of the operands and of the results.
      arrangement: how each of them lies and moves.
      target: the machine, or an instruction set.
      name: of the variant, for the printer.

    Raises:
      NoTileCode: an operation, a dtype or an arrangement that no code is known for; names it.
      OutOfRegisters: too few registers, even with values spilled.
    """
    isa = instructions_of(target)
    arrangement.check(*dtypes)
    reduction = find_reduction(jaxpr)
    if reduction is not None:
        return _made(build_reduction(Emitter(isa), reduction, dtypes, arrangement), isa, name, arrangement)
    best: TileCode | None = None
    choices = lanes_choices(dtypes[0] + dtypes[1], arrangement)
    kind = ElementwiseRows if arrangement.has_rows else Elementwise

    @functools.cache
    def selected(lanes: int) -> tuple[Nest, tuple[Item, ...]]:
        nest = kind(Emitter(isa), jaxpr, *dtypes, arrangement, lanes)
        return nest, tuple(_cleaned(nest.items()))

    def least(lanes: int) -> int:
        """Return what code of iterations of so many elements takes at least, see ``_rate``."""
        return _rate(_unscheduled(*selected(lanes), isa, name), isa)

    for lanes in choices:
        most_spilled = _CROWDED if lanes > max(_PAIR, choices[-1]) else 0
        try:
            nest, items = selected(lanes)
            if best is not None and least(lanes) >= _rate(best, isa):
                continue  # whatever becomes of it, it is no better
            is_long = lanes > choices[-1] and sum(1 for _ in written(items)) > _LONG
            if is_long and least(lanes) > _WORTHWHILE * least(choices[-1]):
                continue
            code = _looped(nest, items, arrangement, isa, name, most_spilled)
            if code is None:
                nest = kind(Emitter(isa), jaxpr, *dtypes, arrangement, lanes)
                nest.repeat_max = 0
                code = _finished(nest, _cleaned(nest.items()), arrangement, isa, name, most_spilled)
        except OutOfRegisters:
            if lanes == choices[-1] and best is None:
                raise
            continue
        if best is None or _rate(code, isa) < _rate(best, isa):
            best = code
        if not code.scratch_bytes or (_repeats(code) and not spills_in_loops(code.items)):
            break  # fewer lanes would only cost more accesses
    assert best is not None
    return best


def compile_matrix_vector(
    target: Target | InstructionSet,
    dtype: str = "float16",
    partials: str = "float16",
    name: str = "matrix vector product",
    *,
    reads_partials: bool = True,
    weights_bits: int = 0,
) -> TileCode:
    """Return the code of products with a panel of weights; operands "in0" (x), "in1" (partials), result "out0".

    Args:
      target: the machine, or an instruction set.
      dtype: of inputs and weights; see ``amp.PRODUCTS`` for the sizes of panels.
      partials: dtype of partials and results.
      name: of the variant.
      reads_partials: whether products are added to partials.
      weights_bits: of the loads by which the supervisor brings the panel at "weights" into the units; 0: it is there.

    Raises:
      NoTileCode: the generation has no multiply units for these.
    """
    isa = instructions_of(target)
    product = product_of(dtype, partials)
    isa.row(product.mnemonic)
    nest = MatrixVector(Emitter(isa), product, reads_partials, weights_bits)
    return replace(_made(nest, isa, name), supervisor=nest.supervisor)


def compile_field_runs(
    target: Target | InstructionSet,
    dtype: str,
    partials: str,
    height: int,
    name: str = "convolution",
    *,
    reads_partials: bool = True,
    weights_bits: int = 64,
) -> TileCode:
    """Return the code of a tap, or of a tap in ``height`` rows at once, over runs of positions; see ``FieldRuns``.

    Raises:
      NoTileCode: the generation has no multiply units for these, or none that take so many rows.
    """
    isa = instructions_of(target)
    product = product_of(dtype, partials)
    isa.row(product.mnemonic)
    nest = FieldRuns(Emitter(isa), product, height, reads_partials, weights_bits)
    return replace(_made(nest, isa, name), supervisor=nest.supervisor)


def compile_sliding_runs(
    target: Target | InstructionSet,
    stride: int,
    name: str = "short sliding windows",
    *,
    partials: str = "float32",
    reads_partials: bool = True,
    weights_bits: int = 64,
) -> TileCode:
    """Return the code of short sliding windows over runs of inputs; see ``SlidingRuns``.

    Raises:
      NoTileCode: windows further apart than two inputs, or partials that the generation has no sliding windows into.
    """
    isa = instructions_of(target)
    nest = SlidingRuns(Emitter(isa), stride, reads_partials, weights_bits, partials)
    isa.row(nest.product.mnemonic)
    return replace(_made(nest, isa, name), supervisor=nest.supervisor)


def compile_dots(
    target: Target | InstructionSet,
    dtype: str,
    jaxpr: Jaxpr | None = None,
    sums: str = "float32",
    name: str = "dot products",
    *,
    reads_partials: bool = False,
) -> TileCode:
    """Return the code of dot products; arguments as of ``Dots``.

    Raises:
      NoTileCode: sums that are no words, or a step without code.
    """
    isa = instructions_of(target)
    nest = Dots(Emitter(isa), dtype, jaxpr, sums, reads_partials=reads_partials)
    return _made(nest, isa, name, _SEPARATE)


def compile_vertical(
    target: Target | InstructionSet,
    dtype: str,
    width: int,
    jaxpr: Jaxpr | None = None,
    sums: str = "float32",
    name: str = "products side by side",
) -> TileCode:
    """Return the code of sums of products that lie side by side; arguments as of ``Vertical``.

    Raises:
      NoTileCode: sums that are no words, or a step without code.
    """
    isa = instructions_of(target)
    nest = Vertical(Emitter(isa), dtype, jaxpr, sums, width=width)
    code = _made(nest, isa, name, _SEPARATE)
    assert all(item.stages <= STEPS_AHEAD for item in walk(code.items) if isinstance(item, Repeat))
    return code


def compile_lookup(
    target: Target | InstructionSet,
    alignment_bytes: int = ACCESS_BYTES,
    is_unsigned: bool = False,
    name: str = "lookup",
    *,
    is_part: bool = False,
    axes: int = 1,
) -> TileCode:
    """Return the code that copies rows of a table, or of a part of one, at clamped indices; see ``Lookup``.

    Raises:
      NoTileCode: rows that start inside a word.
    """
    isa = instructions_of(target)
    nest = Lookup(Emitter(isa), alignment_bytes, is_unsigned=is_unsigned, is_part=is_part, axes=axes)
    return _made(nest, isa, name)


def compile_scan(
    jaxpr: Jaxpr,
    dtypes: tuple[str, ...],
    target: Target | InstructionSet,
    is_reversed: bool = False,
    name: str = "scan",
) -> TileCode:
    """Return the code that scans rows of arrays together; arguments as of ``Scan``.

    Raises:
      NoTileCode: elements that are no whole words, an operation without code, or one that branches.
      OutOfRegisters: too few registers, even with values spilled.
    """
    isa = instructions_of(target)
    return _made(Scan(Emitter(isa), jaxpr, dtypes, is_reversed), isa, name)


def compile_blocks(
    jaxpr: Jaxpr,
    target: Target | InstructionSet,
    apart: bool = False,
    shares_rows: bool = False,
    name: str = "blocks",
) -> TileCode:
    """Return the code that computes numbered blocks of words; arguments as of ``Blocks``.

    Raises:
      NoTileCode: an operation without code.
      OutOfRegisters: too few registers, even with values spilled.
    """
    isa = instructions_of(target)
    nest = Blocks(Emitter(isa), jaxpr, apart, shares_rows)
    code = _looped(nest, _cleaned(nest.items()), _APART, isa, name, 0)
    if code is None:
        nest = Blocks(Emitter(isa), jaxpr, apart, shares_rows)
        nest.repeat_max = 0
        code = _made(nest, isa, name)
    return code


def compile_folds(
    jaxpr: Jaxpr,
    dtypes: tuple[tuple[str, ...], tuple[str, ...]],
    target: Target | InstructionSet,
    counts: bool = False,
    shares_rows: bool = False,
    in_words: bool = False,
    name: str = "folds",
) -> TileCode:
    """Return the code that folds rows of several arrays together.

    Args:
      jaxpr: closed jaxpr of the two functions, see ``Folds``.
      dtypes: of the operands and of the arrays.
      target: the machine, or an instruction set.
      counts: whether positions are counted.
      shares_rows: whether workers take every row together.
      in_words: whether every element of an operand is a word in memory.
      name: of the variant.

    Raises:
      NoTileCode: elements of several words or floats smaller than one, an operation without code, or one that branches.
      OutOfRegisters: too few registers, even with values spilled.
    """
    isa = instructions_of(target)
    return _made(Folds(Emitter(isa), jaxpr, *dtypes, counts, shares_rows, in_words), isa, name)


def compile_merges(
    jaxpr: Jaxpr,
    dtypes: tuple[str, ...],
    target: Target | InstructionSet,
    counts: bool = False,
    search_steps: int = 0,
    name: str = "merges",
    *,
    is_scheduled: bool = True,
) -> TileCode:
    """Return the code that merges sorted runs of elements of several arrays two by two; arguments as of ``Merges``.

    Code that is not scheduled is there at once, and says by its formula the least that a vertex can cost.

    Raises:
      NoTileCode: elements that are no whole words, a comparison without code, or one that branches.
      OutOfRegisters: too few registers, even with values spilled.
    """
    isa = instructions_of(target)
    return _made(
        Merges(Emitter(isa), jaxpr, dtypes, counts, search_steps), isa, name, is_scheduled=is_scheduled
    )


def compile_record_merges(
    target: Target | InstructionSet,
    is_bounded: bool,
    search_steps: int = 0,
    name: str = "record merges",
    *,
    in_turn: bool = False,
) -> TileCode:
    """Return the code that merges sorted runs of records two by two; arguments as of ``RecordMerges``.

    ``in_turn``, here and below: workers take whole rows, see ``RowsInTurn``.

    Raises:
      OutOfRegisters: too few registers, even with values spilled.
    """
    isa = instructions_of(target)
    if in_turn:
        return _made(MergesInTurn(Emitter(isa), is_bounded), isa, name)
    return _made(RecordMerges(Emitter(isa), is_bounded, search_steps), isa, name)


def compile_fours(target: Target | InstructionSet, name: str = "fours", *, in_turn: bool = False) -> TileCode:
    """Return the code that makes sorted runs of four records of keys; see ``Fours``."""
    isa = instructions_of(target)
    return _made((FoursInTurn if in_turn else Fours)(Emitter(isa)), isa, name)


def compile_gathered_records(
    target: Target | InstructionSet,
    arrays: int,
    counts: bool = False,
    name: str = "gathered records",
    *,
    in_turn: bool = False,
) -> TileCode:
    """Return the code that puts words where records say; arguments as of ``GatheredRecords``.

    Raises:
      OutOfRegisters: too few registers, even with values spilled.
    """
    isa = instructions_of(target)
    if in_turn:
        return _made(GathersInTurn(Emitter(isa), arrays=arrays, counts=counts), isa, name)
    return _made(GatheredRecords(Emitter(isa), arrays, counts), isa, name)


def compile_least(
    jaxpr: Jaxpr,
    dtypes: tuple[str, ...],
    target: Target | InstructionSet,
    name: str = "least",
    *,
    is_scheduled: bool = True,
) -> TileCode:
    """Return the code that finds the first elements of a row; arguments as of ``Least``, errors of ``compile_merges``."""
    isa = instructions_of(target)
    return _made(Least(Emitter(isa), jaxpr, dtypes), isa, name, is_scheduled=is_scheduled)


def compile_ends(
    jaxpr: Jaxpr,
    dtypes: tuple[str, ...],
    target: Target | InstructionSet,
    search_steps: int,
    name: str = "ends",
    *,
    is_scheduled: bool = True,
) -> TileCode:
    """Return the code that sorts a bitonic row; arguments as of ``Ends``, errors as of ``compile_merges``."""
    isa = instructions_of(target)
    return _made(
        Ends(Emitter(isa), jaxpr, dtypes, search_steps=search_steps), isa, name, is_scheduled=is_scheduled
    )


def compile_slice(
    target: Target | InstructionSet,
    alignment_bytes: int = ACCESS_BYTES,
    is_update: bool = False,
    name: str = "slice",
) -> TileCode:
    """Return the code that copies from, or to, the row of a tensor at one clamped index; see ``Slice``.

    Raises:
      NoTileCode: rows that start inside a word.
    """
    isa = instructions_of(target)
    return _made(Slice(Emitter(isa), alignment_bytes, is_update=is_update), isa, name)


def compile_part_slice(
    target: Target | InstructionSet, alignment_bytes: int = ACCESS_BYTES, name: str = "slice of a part"
) -> TileCode:
    """Return the code that copies rows out of a part of a table, and zeros for what it has not; see ``PartSlice``.

    Raises:
      NoTileCode: rows that start inside a word.
    """
    isa = instructions_of(target)
    return _made(PartSlice(Emitter(isa), alignment_bytes), isa, name)


def compile_block_slice(
    target: Target | InstructionSet,
    alignment_bytes: int = ACCESS_BYTES,
    is_update: bool = False,
    has_zeros: bool = False,
    name: str = "block slice",
) -> TileCode:
    """Return the code that copies a block from, or to, clamped indices along two axes; see ``BlockSlice``.

    Raises:
      NoTileCode: places that start inside a word.
    """
    isa = instructions_of(target)
    nest = BlockSlice(Emitter(isa), alignment_bytes, is_update=is_update, has_zeros=has_zeros)
    return _made(nest, isa, name)


def compile_updates(
    jaxpr: Jaxpr,
    dtypes: tuple[str, ...],
    target: Target | InstructionSet,
    axes: int = 1,
    is_clamped: bool = False,
    is_numbered: bool = False,
    name: str = "updates",
) -> TileCode:
    """Return the code that combines rows of tensors with updates at indices in order; arguments as of ``Updates``.

    Raises:
      NoTileCode: elements that are no whole words, or an operation without code.
    """
    isa = instructions_of(target)
    return _made(Updates(Emitter(isa), jaxpr, dtypes, axes, is_clamped, is_numbered), isa, name)


def compile_pivot(jaxpr: Jaxpr, dtype: str, target: Target | InstructionSet, name: str = "pivot") -> TileCode:
    """Return the code that looks for the pivot of a column; arguments as of ``Pivot``, errors of ``compile_elimination``."""
    isa = instructions_of(target)
    return _made(Pivot(Emitter(isa), dtype, jaxpr=jaxpr), isa, name)


def compile_exchange(target: Target | InstructionSet, name: str = "exchange of rows") -> TileCode:
    """Return the code that exchanges two rows of words; see ``Exchange``."""
    isa = instructions_of(target)
    return _made(Exchange(Emitter(isa), "int32"), isa, name)


def compile_elimination(
    jaxpr: Jaxpr, dtype: str, target: Target | InstructionSet, name: str = "elimination"
) -> TileCode:
    """Return the code that takes a row out of others; arguments as of ``Elimination``.

    Raises:
      NoTileCode: elements that are no whole words, an operation without code, or one that branches.
      OutOfRegisters: too few registers, even with values spilled.
    """
    isa = instructions_of(target)
    return _made(Elimination(Emitter(isa), dtype, jaxpr=jaxpr), isa, name)


def compile_substitution(
    jaxpr: Jaxpr, dtype: str, target: Target | InstructionSet, name: str = "substitution"
) -> TileCode:
    """Return the code that takes multiples of a row out of others; arguments as of ``Substitution``.

    Raises:
      NoTileCode: elements that are no whole words, an operation without code, or one that branches.
      OutOfRegisters: too few registers, even with values spilled.
    """
    isa = instructions_of(target)
    return _made(Substitution(Emitter(isa), dtype, jaxpr=jaxpr), isa, name)


def compile_exchanged(target: Target | InstructionSet, name: str = "rows after exchanges") -> TileCode:
    """Return the code that says where exchanges brought rows; see ``Exchanged``."""
    isa = instructions_of(target)
    return _made(Exchanged(Emitter(isa), "int32"), isa, name)


def compile_reflection(
    part: str, jaxpr: Jaxpr, dtype: str, target: Target | InstructionSet, name: str = "reflection"
) -> TileCode:
    """Return a part of the code that reflects columns; errors as of ``compile_elimination``.

    Args:
      part: "reflector", "division" or "reflection"; see the classes of these names.
      jaxpr: closed jaxpr of its functions.
      dtype: of the elements.
      target: the machine, or an instruction set.
      name: of the variant.
    """
    isa = instructions_of(target)
    nest = {"reflector": Reflector, "division": Division, "reflection": Reflection}[part]
    return _made(nest(Emitter(isa), dtype, jaxpr=jaxpr), isa, name)


def _repeats(code: TileCode) -> bool:
    return any(isinstance(item, Repeat) for item in walk(code.items))


def _longest_repeat(code: TileCode) -> int:
    return max(
        (len(item.body.bundles or ()) for item in walk(code.items) if isinstance(item, Repeat)), default=0
    )


def _rate(code: TileCode, isa: InstructionSet) -> int:
    """Return cycles of many elements: what fewer elements an iteration, and fewer spilled values, are compared by."""
    return int(cost_of(code, {"n": _MANY, "rows": isa["worker_contexts"]}, isa).cycles)


def _made(
    nest: Nest,
    isa: InstructionSet,
    name: str,
    arrangement: Arrangement = _APART,
    *,
    is_scheduled: bool = True,
) -> TileCode:
    """Return a nest's code, finished or as it was before."""
    items = _cleaned(nest.items())
    if not is_scheduled:
        return _unscheduled(nest, items, isa, name)
    return _finished(nest, items, arrangement, isa, name)


def _cleaned(items: Sequence[Item]) -> list[Item]:
    """Return unscheduled items without copies and extensions that nobody needs."""
    return narrowed(coalesced(items))


def _unscheduled(nest: Nest, items: Sequence[Item], isa: InstructionSet, name: str) -> TileCode:
    """Return a nest's code on virtual registers, which says by its cost what it costs at least once it is finished."""
    return TileCode(name, isa.name, tuple(nest.arguments), tuple(items), lanes=nest.lanes)


def _looped(
    nest: Nest,
    items: Sequence[Item],
    arrangement: Arrangement,
    isa: InstructionSet,
    name: str,
    most_spilled: int,
) -> TileCode | None:
    """Return ``_finished``; None where what is spilled makes the body of a hardware loop too long."""
    longest = isa["repeat_body_max_bundles"]
    try:
        code = _finished(nest, items, arrangement, isa, name, most_spilled, longest)
    except TooLong:
        return None
    return code if _longest_repeat(code) <= longest else None


def _finished(
    nest: Nest,
    unscheduled: Sequence[Item],
    arrangement: Arrangement,
    isa: InstructionSet,
    name: str,
    most_spilled: int = 0,
    longest: int | None = None,
) -> TileCode:
    """Return a nest's code, scheduled and on physical registers."""
    items, registers, scratch = assigned(
        tuple(unscheduled),
        isa,
        arrangement.separate,
        nest.emitter.scratch_bytes,
        name,
        most_spilled,
        longest,
    )
    stages = max((item.stages for item in walk(items) if isinstance(item, Repeat)), default=1)
    return TileCode(
        name,
        isa.name,
        tuple(nest.arguments),
        items,
        registers,
        scratch_bytes=scratch,
        overread_bytes=stages * isa["worker_contexts"] * nest.lanes * ACCESS_BYTES,
        lanes=nest.lanes,
    )
