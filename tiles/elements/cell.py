"""What the element compiler is asked for: a cell's jaxpr and how its operands lie and move along the loops.

A cell has up to two dimensions here, ``rows`` and ``n``; ``n`` is the innermost contiguous one. Each operand and
result says along which of them it moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiles._jax_compat import Jaxpr
from tiles.errors import NoTileCode
from tiles.numerics.dtypes import itemsize

CELL, ROW, ELEMENT = 0, 1, 2
"""Levels of a value: the same in the whole cell, one for each row, one for each element."""
ACCESS_BYTES = 8


@dataclass(frozen=True)
class Access:
    """How an operand or a result moves along a cell's loops.

    Attributes:
      level: CELL (one element for the whole cell), ROW (one element a row) or ELEMENT.
      alignment_bytes: what the address of its first element, and of each row, is a multiple of.
      every_row: whether its address moves from row to row; False for a vector that all rows read.
      counts: whether it is no memory but an int32 that counts elements, or rows, from what the vertex' state says.
      beside: name of the operand or result ("in0", "out0") that it lies beside, at a distance that the vertex' state
        says ("in1_distance_bytes", not negative): both move by one pointer. "" for one that moves by its own.
    """

    level: int = ELEMENT
    alignment_bytes: int = ACCESS_BYTES
    every_row: bool = True
    counts: bool = False
    beside: str = ""


@dataclass(frozen=True)
class Arrangement:
    """Accesses of a cell's operands and results.

    Attributes:
      operands, results: one access each.
      separate: whether operands and results lie in different memory elements, so that one instruction may make
        several accesses.
      in_place: for each result the operand whose storage it takes, or -1; () for none.
      has_rows: whether elements lie in rows, each with a start of its own, which workers take in turn; else they
        are one vector, and workers take its accesses in turn.
      shares_rows: whether all workers take every row together, its accesses in turn: for few long rows.
      is_short: whether no worker has more than one element, so that computing several at a time takes longer.
    """

    operands: tuple[Access, ...]
    results: tuple[Access, ...]
    separate: bool = False
    in_place: tuple[int, ...] = ()
    has_rows: bool = False
    shares_rows: bool = False
    is_short: bool = False

    def stream(self, result: int) -> str:
        """Return the name of the memory of a result: its operand's where it is computed in place."""
        taken = self.in_place[result] if self.in_place else -1
        return f"in{taken}" if taken >= 0 else f"out{result}"

    def check(self, operand_dtypes: tuple[str, ...], result_dtypes: tuple[str, ...]) -> None:
        """Refuse what no code is known for.

        Raises:
          NoTileCode: numbers of accesses that do not match, an alignment below the element, a result that is no
            vector, a result in the place of an operand of another size.
        """
        if (len(self.operands), len(self.results)) != (len(operand_dtypes), len(result_dtypes)):
            raise NoTileCode(
                "an arrangement has another number of operands or results than its codelet",
                expected=(len(operand_dtypes), len(result_dtypes)),
                got=(len(self.operands), len(self.results)),
            )
        for access, dtype in zip(self.operands + self.results, operand_dtypes + result_dtypes, strict=True):
            if access.alignment_bytes % min(itemsize(dtype), ACCESS_BYTES):
                raise NoTileCode(
                    f"{dtype} elements at addresses that are multiples of {access.alignment_bytes} bytes",
                    expected="alignment to the element",
                )
            if (access.level == ROW or not access.every_row) and not self.has_rows:
                raise NoTileCode("an access by rows in a cell without rows", expected="has_rows=True")
            if access.beside and (access.level != ELEMENT or not access.every_row or not self.has_rows):
                raise NoTileCode(
                    "an access beside another that does not move as it does", expected="rows of elements"
                )
        if any(access.level != ELEMENT or not access.every_row for access in self.results):
            raise NoTileCode("a result of one element", expected="results of n elements")
        for taken, dtype in zip(self.in_place, result_dtypes, strict=bool(self.in_place)):
            if taken >= 0 and itemsize(operand_dtypes[taken]) != itemsize(dtype):
                raise NoTileCode(
                    f"{dtype} in the place of {operand_dtypes[taken]}", expected="elements of one size"
                )


@dataclass(frozen=True, eq=False)
class CellFunction:
    """What ``compile_cell`` is asked for: a closed jaxpr, dtypes of its operands and results, and their arrangement."""

    jaxpr: Jaxpr
    dtypes: tuple[tuple[str, ...], tuple[str, ...]]
    arrangement: Arrangement


def contiguous(
    operands: int,
    results: int = 1,
    *,
    separate: bool = False,
    in_place: tuple[int, ...] = (),
    has_rows: bool = False,
    shares_rows: bool = False,
) -> Arrangement:
    """Return the arrangement of whole aligned vectors."""
    accesses = (Access(),) * operands, (Access(),) * results
    return Arrangement(*accesses, separate, in_place, has_rows, shares_rows)
