"""Products on the multiply units as a ``Kernel``: panels of weights over positions, whatever operation they are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product as pairs
from typing import Any

import numpy as np

from tiles.elements import InstructionSet
from tiles.elements.amp import Product
from tiles.elements.variants import existing
from tiles.graph import OpForm, VertexCode
from tiles.graph.cycles import Field
from tiles.numerics.dtypes import itemsize
from tiles.numerics.shared import Amount
from tiles.poplibs.poplin.casts import cast_cell, cast_variant, compiled_cast
from tiles.poplibs.poplin.units_code import (
    CAST,
    INPUTS,
    SUMS,
    WEIGHTS,
    as_passed,
    filled_up,
    holds_words,
    in_words,
    panels,
    product_variant,
)


@dataclass(frozen=True)
class Counts:
    """What a cell, or each of many, has of groups, positions and outputs, and of groups of channels that units take at once."""

    groups: Any
    positions: Any
    outputs: Any
    output_groups: Any
    input_groups: Any


@dataclass(frozen=True)
class Products:
    """Panels of weights over positions.

    Attributes:
      form: the operation.
      product: what the units compute.
      out_dtype: dtype of results.
    """

    form: OpForm
    product: Product
    out_dtype: str

    @property
    def sums_dtype(self) -> str:
        """Dtype of the sums."""
        return self.product.partials

    def counts(self, sizes: Sequence[int]) -> Counts:
        """Return what a cell has."""
        raise NotImplementedError

    def channels(self, sizes: Sequence[int], operands: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs ``[cells, groups, positions, channels]`` and weights ``[cells, groups, outputs, channels]``."""
        raise NotImplementedError

    @property
    def kept(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the dimensions of groups, of positions and of outputs."""
        raise NotImplementedError

    def find(
        self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """See ``Kernel``."""
        count, p = self.counts(sizes), self.product
        x, w = self.channels(sizes, [as_passed(x, self.out_dtype) for x in operands])
        x = filled_up(x, 3, p.inputs)
        x = x.reshape(*x.shape[:3], count.input_groups, p.inputs).transpose(0, 1, 3, 2, 4)
        sums = (len(x), count.groups, count.output_groups, count.positions, p.outputs)
        is_ring = holds_words(x, self.out_dtype)
        memory = {INPUTS: np.ascontiguousarray(x), WEIGHTS: panels(w, p)}
        memory[SUMS] = np.zeros(sums, in_words(p.partials, is_ring))
        if self.out_dtype != p.partials:
            memory[CAST] = np.zeros(sums, in_words(self.out_dtype, is_ring))
        return memory, {}

    def turns(self, is_first: bool, sizes: tuple[int, ...]) -> list[dict[str, Field]]:
        """Return the fields of every panel: of the first groups of inputs, or of all later ones."""
        count, p = self.counts(sizes), self.product
        block = count.positions * p.inputs_bytes
        sums_block = count.positions * p.outputs * itemsize(p.partials)
        inputs = range(1) if is_first else range(1, count.input_groups)
        found: list[dict[str, Field]] = []
        for group, i, o in pairs(range(count.groups), inputs, range(count.output_groups)):
            panel = (group * count.output_groups + o) * count.input_groups + i
            sums = SUMS, (group * count.output_groups + o) * sums_block
            found.append(
                {
                    "in0": (INPUTS, (group * count.input_groups + i) * block),
                    "in1": sums,
                    "out0": sums,
                    "weights": (WEIGHTS, panel * p.panel_bytes),
                }
            )
        return found

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        count, (groups, positions, outputs) = self.counts(sizes), self.kept
        found = memory[SUMS if self.out_dtype == self.product.partials else CAST]
        found = found.transpose(0, 1, 3, 2, 4).reshape(len(found), count.groups, count.positions, -1)
        dims = (*groups, *positions, *outputs)
        found = found[..., : count.outputs].reshape(len(found), *(sizes[d] for d in dims))
        return [found.transpose([0, *(1 + dims.index(d) for d in self.form.results[0].dims)])]

    def parts(
        self, isa: InstructionSet, bits: int, does: np.ndarray, counts: Counts, name: str
    ) -> list[VertexCode]:
        """Return the code of vertices: the first panels, later ones, and the cast of sums.

        Args:
          isa: the instruction set.
          bits: of a load of weights.
          does: which cells run it.
          counts: of every cell.
          name: of the variants.
        """
        firsts = np.where(does, counts.groups * counts.output_groups, 0)
        found: list[VertexCode] = []
        for is_first, runs in ((True, firsts), (False, firsts * (counts.input_groups - 1))):
            variant = existing(product_variant(isa, self.product, bits, is_first)).named(name)
            turn = partial(self.turns, is_first)
            found.append(
                VertexCode(variant, counts.positions, 1, runs, kernel=self, turn=turn, interleaved=(SUMS,))
            )
        sums = counts.groups * counts.output_groups * self.product.outputs * counts.positions
        return [*found, *cast_parts(isa, self, does, sums, name)]


def cast_parts(
    isa: InstructionSet, kernel: Any, does: np.ndarray, sums: Amount, name: str
) -> list[VertexCode]:
    """Return the code that casts sums, of a kernel's ``sums_dtype``, to its ``out_dtype``; none where they are the same."""
    dtype, out_dtype = kernel.sums_dtype, kernel.out_dtype
    if dtype == out_dtype:
        return []
    variant = existing(cast_variant(isa, dtype, out_dtype)).named(name)
    return [
        VertexCode(
            variant,
            sums,
            1,
            np.asarray(does, np.int64),
            cell=partial(cast_cell, dtype, out_dtype),
            kernel=kernel,
            compiled=compiled_cast,
            turn=_casting,
            interleaved=(SUMS,),
        )
    ]


def _casting(sizes: tuple[int, ...]) -> dict[str, Field]:
    del sizes
    return {"in0": SUMS, "out0": CAST}
