"""A simulator of tile code: all workers of any number of tiles at once, on the tiles' own memory.

It counts slots as it runs and knows nothing of the closed forms of ``cost``: an independent witness of what code
costs, and of what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tiles.elements.contexts import Contexts, Tiles
from tiles.elements.tilecode import GENERATOR, TileCode


@dataclass(frozen=True)
class Run:
    """What a run took: slots of each worker ``[tiles, workers]``, and cycles of each tile ``[tiles]``."""

    slots: np.ndarray
    cycles: np.ndarray


class TileSimulator(Tiles):
    """Tiles that run code; see ``Tiles`` for the arguments."""

    def run(self, code: TileCode, arguments: Mapping[str, int | np.ndarray], state: int, scratch: int) -> Run:
        """Run a vertex on every tile: set up its state, start the workers, wait for the last.

        Args:
          code: of one variant, for the same instruction set.
          arguments: fields of the vertex state, one word each: for all tiles, or ``[tiles]``. What the workers' generators
            give is "generator", words ``[tiles, workers, draws]``.
          state: address of the vertex state.
          scratch: address of the workers' scratch memory, one piece for each.

        Raises:
          TileFault: a misaligned access, or a store outside memory.
          NoTileCode: an instruction whose meaning is not written down.
        """
        fields = np.empty((len(self.words), len(code.arguments)), np.int64)
        for k, name in enumerate(code.arguments):
            fields[:, k] = arguments[name]
        self.write(state, fields.astype(np.uint32))
        if code.supervisor.weights:
            self.load_weights(code.supervisor.weights, fields[:, code.arguments.index("weights")])
        contexts = Contexts(self, state, scratch, -(-code.scratch_bytes // 8) * 8)
        contexts.hand(arguments.get(GENERATOR))
        with np.errstate(all="ignore"):
            contexts.items(code.items, contexts.everyone)
        slots = contexts.slots.reshape(len(self.words), self.workers)
        cycles = code.supervisor.cycles(self.isa) + self.workers * slots.max(axis=1)
        return Run(slots, cycles)
