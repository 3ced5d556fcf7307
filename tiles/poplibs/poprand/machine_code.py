"""Tile code of numbers of the machine's own generator: vectors that workers draw in turn, made floats of [0, 1) and stored.

Which numbers the generator gives is not public. The kernel hands the simulator those that the codelet's meaning has at the
places to which a worker's vectors go; what the code does with them, and where it puts them, is its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import jax
import numpy as np

from tiles._jax_compat import make_jaxpr
from tiles.elements import CellFunction, InstructionSet, TileCode, Variant, compile_variant, contiguous, drawn
from tiles.elements.compile import compile_cell
from tiles.elements.kept_variants import kept_variant
from tiles.elements.tilecode import GENERATOR, Repeat, walk
from tiles.elements.variants import UNNAMED, NoVariant
from tiles.errors import NoTileCode
from tiles.graph.cycles import CodeMemory
from tiles.numerics.dtypes import itemsize, to_jax

_VECTOR_BYTES, _WORD_BYTES = 8, 4
Generated = Callable[[tuple[int, ...], np.ndarray, Sequence[np.ndarray]], np.ndarray]
"""From sizes and origins of cells and the codelet's operands what the generator gives for each element, ``[cells, elements]``."""


@lru_cache(maxsize=16)
def machine_variant(isa: InstructionSet, distribution: str, dtype: str) -> Variant | NoVariant:
    """Return the code that fills a vector, or why there is none."""

    def make() -> Variant:
        cell = drawing_cell(distribution, dtype)
        return compile_variant(cell.jaxpr, cell.dtypes, cell.arrangement, isa, UNNAMED)

    return kept_variant(("numbers of the generator", distribution, dtype), isa, make)


def drawing_cell(distribution: str, dtype: str) -> CellFunction:
    """Return what is computed of one element; bits move as floats, two words at a time."""
    carrier = "float32" if distribution == "bits" else dtype

    def element() -> tuple[jax.Array, ...]:
        number = drawn(distribution, carrier)
        return (number + np.dtype(carrier).type(0.5) if distribution == "uniform" else number,)

    return CellFunction(make_jaxpr(element)(), ((), (carrier,)), contiguous(0))


def only_floats() -> CellFunction:
    """Refuse code in the ring.

    Raises:
      NoTileCode: always.
    """
    raise NoTileCode("numbers of the machine's generator in the ring", expected="floats, or bits")


def compiled_drawing(cell: CellFunction, isa: InstructionSet) -> TileCode:
    """Return a cell's code."""
    return compile_cell(cell.jaxpr, cell.dtypes, cell.arrangement, isa, UNNAMED)


@dataclass(frozen=True, eq=False)
class Drawings:
    """What vertices find and leave in memory, and what their workers' generators give. A ``Kernel``.

    Args:
      dtype: of the elements.
      variant: the code.
      workers: of a tile.
      generated: what the generator gives, as the codelet has it.
    """

    dtype: str
    variant: Variant
    workers: int
    generated: Generated

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        cells, elements = len(origins), math.prod(sizes)
        lanes, workers = _VECTOR_BYTES // itemsize(self.dtype), self.workers
        given = self.generated(sizes, origins, operands)
        vectors, whole = -(-elements // lanes), elements // lanes
        padded = np.zeros((cells, vectors * lanes), given.dtype)
        padded[:, :elements] = given
        words = np.ascontiguousarray(padded).view(np.uint32).reshape(cells, vectors, -1)
        ahead = max(item.stages - 1 for item in walk(self.variant.code.items) if isinstance(item, Repeat))
        each = np.zeros((cells, workers, -(-whole // workers) + ahead + 1, words.shape[2]), np.uint32)
        for worker in range(workers):
            own = words[:, worker:whole:workers]
            each[:, worker, : own.shape[1]] = own
            if worker == workers - 1 and vectors > whole:
                each[:, worker, own.shape[1] + ahead] = words[:, whole]
        fields = {GENERATOR: each.reshape(cells, workers, -1)}
        return {"out0": np.zeros((cells, elements), to_jax(self.dtype))}, fields

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        return [memory["out0"].reshape(-1, *sizes)]
