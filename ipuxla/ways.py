"""A program after the HLO passes: as it is compiled first, and with more of it in slices for when that does not fit."""

from __future__ import annotations

import dataclasses

from hlo_passes.ir import Module, print_module
from hlo_passes.passes import LESS_HELD, Pipeline, Serialize, optimize


class Ways:
    """What the passes leave of a program in each of the ways in which it is compiled until it fits.

    There is a second one where pass ``serialize`` computes other values in slices when less may be held. Each is made when it is
    asked for.
    """

    def __init__(self, module: Module, passes: str | Pipeline) -> None:
        """Start from a module and passes; as text, the user's own, they are one way."""
        self._made: dict[int, Module] = {}
        if isinstance(passes, str):
            self._begun, self._rest = [module], Pipeline.parse(passes)
            return
        before, first, after = passes.around(Serialize)
        module = optimize(module, before)
        more = dataclasses.replace(first, most_held=LESS_HELD)
        whole, sliced = (optimize(module, Pipeline((one,))) for one in (first, more))
        is_one = sliced is whole or print_module(sliced) == print_module(whole)
        self._begun, self._rest = [whole] if is_one else [whole, sliced], after

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._begun)

    def __getitem__(self, number: int) -> Module:
        """Return the module of one of them."""
        if number not in self._made:
            self._made[number] = optimize(self._begun[number], self._rest)
        return self._made[number]
