"""A program after the HLO passes: as it is compiled first, and with less held at once for when that does not fit."""

from __future__ import annotations

import dataclasses

from hlo_passes.ir import Module, print_module
from hlo_passes.passes import LESS_HELD, EarlyUpdates, Pipeline, Serialize, analyze, optimize

EARLY = Pipeline((EarlyUpdates(),))


class Ways:
    """What the passes leave of a program in each of the ways in which it is compiled until it fits.

    There is a second one where pass ``serialize`` computes other values in slices when less may be held; else, where much is held
    and donated state could be updated earlier (pass ``early-updates``). Each is made when it is asked for.
    """

    def __init__(self, module: Module, passes: str | Pipeline) -> None:
        """Start from a module and passes; as text, the user's own, they are one way."""
        self._made: dict[int, Module] = {}
        if isinstance(passes, str):
            self._begun = [(module, Pipeline.parse(passes))]
            return
        before, first, after = passes.around(Serialize)
        module = optimize(module, before)
        more = dataclasses.replace(first, most_held=LESS_HELD)
        whole, sliced = (optimize(module, Pipeline((one,))) for one in (first, more))
        self._begun = [(whole, after)]
        if sliced is not whole and print_module(sliced) != print_module(whole):
            self._begun.append((sliced, after))
        elif first.memory and self._is_updated_late(LESS_HELD * first.memory):
            self._begun.append((self[0], EARLY))

    def _is_updated_late(self, least: float) -> bool:
        """Return whether the first way holds so many bytes at once, and donated state could be updated earlier."""
        found = self[0]
        if optimize(found, EARLY) is found:
            return False
        return analyze(found.entry_computation, found.donated).peak_bytes > least

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._begun)

    def __getitem__(self, number: int) -> Module:
        """Return the module of one of them."""
        if number not in self._made:
            module, passes = self._begun[number]
            self._made[number] = optimize(module, passes)
        return self._made[number]
