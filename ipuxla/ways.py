"""A program after the HLO passes: as it is compiled first, and with less held at once for when that does not fit."""

from __future__ import annotations

import dataclasses

from hlo_passes.ir import Module, print_module
from hlo_passes.ops import Repeat, While
from hlo_passes.passes import (
    LESS_HELD,
    EarlyUpdates,
    LoopProducts,
    Pipeline,
    Recompute,
    Rematerialize,
    Serialize,
    analyze,
    optimize,
)

EARLY = Pipeline((EarlyUpdates(),))
RECOMPUTED = Pipeline((Recompute(),))


class Ways:
    """What the passes leave of a program in each of the ways in which it is compiled until it fits.

    There is a second one where pass ``serialize`` computes other values in slices when less may be held; else, where much is held
    and donated state could be updated earlier (pass ``early-updates``). Where much is held there is another in which loops keep nothing
    for products after them (without pass ``loop-products``), if that is less, and one in which values are computed again rather than
    kept (pass ``recompute``) and donated state is updated early, too. Each is made when it is asked for.
    """

    def __init__(self, module: Module, passes: str | Pipeline) -> None:
        """Start from a module and passes; as text, the user's own, they are one way."""
        self._made: dict[int, Module] = {}
        if isinstance(passes, str):
            self._begun = [(module, Pipeline.parse(passes))]
            return
        before, first, after = passes.around(Serialize)
        between, rematerialize, rest = after.around(Rematerialize)
        module = optimize(module, before)
        more = dataclasses.replace(first, most_held=LESS_HELD)
        whole, sliced = (optimize(module, Pipeline((one,))) for one in (first, more))
        kept = Pipeline((*between.items, rematerialize))
        self._begun = [(optimize(whole, kept), rest)]
        if sliced is not whole and print_module(sliced) != print_module(whole):
            self._begun.append((optimize(sliced, kept), rest))
        held = sum(type_.size_bytes for type_ in module.entry_computation.parameter_types)
        # Where arguments alone take more than the memory nothing makes room.
        if first.memory and held <= first.memory and _peak_bytes(self[0]) > LESS_HELD * first.memory:
            number = len(self._begun) - 1
            least, _ = self._begun[number]
            if len(self._begun) == 1 and optimize(self[0], EARLY) is not self[0]:
                self._begun.append((self[0], EARLY))
            lean = Pipeline(tuple(item for item in rest.items if not isinstance(item, LoopProducts)))
            if any(isinstance(i.op, Repeat | While) for i in least.walk()):
                leaner = optimize(least, lean)
                if _peak_bytes(leaner) < _peak_bytes(self[number]):
                    self._made[len(self._begun)] = leaner
                    self._begun.append((least, lean))
                    rest = lean
            again = optimize(least, RECOMPUTED)
            if again is not least:
                self._begun.append((again, Pipeline((*rest.items, *EARLY.items))))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._begun)

    def __getitem__(self, number: int) -> Module:
        """Return the module of one of them."""
        if number not in self._made:
            module, passes = self._begun[number]
            self._made[number] = optimize(module, passes)
        return self._made[number]


def _peak_bytes(module: Module) -> int:
    """Return how many bytes a module holds at once."""
    return analyze(module.entry_computation, module.donated).peak_bytes
