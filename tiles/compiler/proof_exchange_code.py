"""Proof of exchange code: the fewest instructions that any exchange program of a tile takes, and that there is room.

What a program takes exactly depends on the order of messages, which an executable does not state. Whatever the order:
a tile listens to one tile at a time, so there is a select for every tile that it takes words of in a step; it has to be
told once where they go (a pointer), and a tile that others take words of sends at least once. Contiguous runs are not
counted: a send may go on over words that nobody listens to. What this bound is from shares no code with ``tiles.plan``.
A program that several movements run counts once, if they are of the same elements between the same tiles and places.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tiles.cached import cached_property
from tiles.compiler import proof_tables as tables
from tiles.compiler.executable import Executable, MovementId
from tiles.compiler.proof_exchange import Exchange
from tiles.compiler.proof_tables import Table
from tiles.compiler.wellformed import refuse
from tiles.graph import Layout
from tiles.numerics.arrays import distinct

MOST_PAIRS_NUMBERED = 1 << 24
"""Pairs of tiles up to which each has a place of its own to tell equal ones by; those of more tiles are sorted."""
Movement = tuple[Table, Table, int]
"""What parts hold of a tensor, what holders take of it, and the bytes of its elements."""


def is_alike(one: Movement, other: Movement) -> bool:
    """Return whether words go from and to the same places of the same tiles, wherever what holds them begins."""
    return one[2] == other[2] and all(map(_is_same_table, one[:2], other[:2]))


def _is_same_table(one: Table, other: Table) -> bool:
    if one is other:
        return True
    if one.shape != other.shape or one.extents != other.extents or not one.lies_like(other):
        return False
    pairs = [(one.tiles, other.tiles), *zip(one.rows, other.rows, strict=True)]
    pairs += zip(one.index, other.index, strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


class ExchangeCode:
    """Adds up, step by step, the instructions that the exchange code of every tile has at least.

    Args:
      num_tiles: tiles of the target.
      limit: pairs of a tile and one that it takes words of, of one operand, up to which they are enumerated; tiles that
        several operands are taken from are told apart then. Above, the operand with most of them counts alone.
      shared: by movement, the earlier one whose program it runs.
    """

    def __init__(self, num_tiles: int, limit: int, shared: Mapping[MovementId, MovementId]) -> None:
        """Start without steps."""
        self.num_tiles, self.limit, self.shared = num_tiles, limit, shared
        self.instructions = np.zeros(num_tiles, np.int64)
        self._programs: dict[MovementId, Movement | None] = dict.fromkeys(shared.values())
        self._step = 0
        self._begin()

    def _begin(self) -> None:
        self._moved = 0
        self._exchanges: list[Exchange] = []
        self._pairs: list[np.ndarray] = []
        self._selects = np.zeros(self.num_tiles, np.int64)
        self._sends = np.zeros(self.num_tiles, bool)

    def take(self, exchange: Exchange, element_bytes: int) -> None:
        """Note what one operand or copied tensor of the present step brings."""
        if self._runs_another((exchange.parts, exchange.wanted, element_bytes)):
            return
        self._sends[exchange.senders] = True
        if exchange.touched.positions <= self.limit:
            self._exchanges.append(exchange)
        else:
            self._select(exchange)

    def _select(self, exchange: Exchange) -> None:
        """Let every tile take words of as many others as in one operand."""
        tiles = exchange.wanted.tiles
        self._selects[tiles] = np.maximum(self._selects[tiles], exchange.sources)

    def take_reshape(self, source: Layout, target: Layout, element_bytes: int) -> None:
        """Note what a copy brings that pairs the elements of two layouts in row-major order."""
        if self._runs_another((tables.layout_table(source), tables.layout_table(target), element_bytes)):
            return
        for here, there in tables.paired_tiles(source, target):
            self._sends[here[here != there]] = True
            self._pairs.append(distinct(self._coded(there, here)))

    def _coded(self, holder: np.ndarray, source: np.ndarray) -> np.ndarray:
        """Return which tiles take words of which others, each pair as one number."""
        crosses = holder != source
        return holder[crosses] * self.num_tiles + source[crosses]

    def _runs_another(self, movement: Movement) -> bool:
        """Return whether the next movement of the present step runs an earlier one's program; prove that it can.

        Raises:
          InvalidExecutable: that program moves other elements, or between other tiles or places.
        """
        here = self._step, self._moved
        self._moved += 1
        if here in self._programs:
            self._programs[here] = movement
        if here not in self.shared:
            return False
        first = self.shared[here]
        other = self._programs[first]
        if other is None or not is_alike(movement, other):
            raise refuse(
                f"tensor {here[1]} of step {here[0]} runs the exchange program of tensor {first[1]} of step {first[0]},"
                " which moves other elements"
            )
        return True

    def end_step(self) -> None:
        """Add the present step to those before."""
        if len(self._exchanges) == 1 and not self._pairs:
            self._select(self._exchanges[0])
        elif self._exchanges or self._pairs:
            coded = [self._coded(*pairs) for exchange in self._exchanges for pairs in exchange.pairs()]
            holders = self._distinct(np.concatenate([*coded, *self._pairs])) // self.num_tiles
            self._selects = np.maximum(self._selects, np.bincount(holders, minlength=self.num_tiles))
        self.instructions += self._selects + (self._selects > 0) + self._sends
        self._step += 1
        self._begin()

    def _distinct(self, pairs: np.ndarray) -> np.ndarray:
        """Return each of some coded pairs once."""
        if self.num_tiles**2 > MOST_PAIRS_NUMBERED:
            return distinct(pairs)
        numbers = np.arange(pairs.size, dtype=np.int32)
        self._last[pairs] = numbers  # of equal pairs one stays
        return pairs[self._last[pairs] == numbers]

    @cached_property
    def _last(self) -> np.ndarray:
        """Room for the number of every pair of tiles, int32 ``[pairs]``."""
        return np.empty(self.num_tiles**2, np.int32)

    def prove(self, executable: Executable) -> int:
        """Raise InvalidExecutable where a tile has less room than the least exchange code; return the bytes of that."""
        need = self.instructions * executable.target.instruction_bytes
        have = np.zeros(self.num_tiles, np.int64)
        for b in executable.buffers.values():
            if b.category == "internalExchangeCode":
                for first, end in b.tiles:
                    have[first:end] += b.size_bytes
        short = np.flatnonzero(have < need)
        if short.size:
            tile = int(short[(need - have)[short].argmax()])
            raise refuse(
                f"tile {tile} has {have[tile]:,} B of internalExchangeCode, any exchange program for its steps needs"
                f" {need[tile]:,} B or more"
            )
        return int(need.sum())
