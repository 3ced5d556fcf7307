"""Tile code of convolutions by short sliding windows: four taps of a row, of four channels of one or several groups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product as pairs

import numpy as np

from tiles.elements import Formula, InstructionSet, Variant, compile_sliding_runs
from tiles.elements.cell import ACCESS_BYTES
from tiles.elements.kept_variants import kept_variant
from tiles.elements.slic import CHANNELS, TAPS, outputs_at_once, sliding_of, windows_a_turn
from tiles.elements.variants import UNNAMED, NoVariant, existing
from tiles.graph import OpForm, VertexCode
from tiles.graph.cycles import CodeMemory, Field
from tiles.poplibs.poplin.conv_cycles import ConvShape, conv_roles
from tiles.poplibs.poplin.fields import Geometry, geometry_of, held_fields, run_parts, runs_of
from tiles.poplibs.poplin.product_kernel import cast_parts
from tiles.poplibs.poplin.units_code import (
    CAST,
    INPUTS,
    RUNS,
    SUMS,
    WEIGHTS,
    extent_of,
    filled_up,
    in_order,
    in_words,
)

_PAIR = 2


@lru_cache(maxsize=16)
def _variant(
    isa: InstructionSet, partials: str, stride: int, bits: int, is_first: bool
) -> Variant | NoVariant:
    def make() -> Variant:
        reads = not is_first
        code = compile_sliding_runs(
            isa, stride, UNNAMED, partials=partials, reads_partials=reads, weights_bits=bits
        )
        return Variant.of(code, isa)

    return kept_variant(("sliding windows", partials, stride, bits, is_first), isa, make)


def slic_parts(
    isa: InstructionSet,
    weights_bits: int,
    form: OpForm,
    accumulate: str,
    out_dtype: str,
    shape: ConvShape,
    does: np.ndarray,
    name: str,
) -> Iterator[VertexCode]:
    """Yield the code of vertices by short sliding windows.

    Args:
      isa: the instruction set.
      weights_bits: of a load of weights.
      form: the operation, on halves.
      accumulate: dtype of the sums.
      out_dtype: dtype of results.
      shape: extents of every cell.
      does: which cells run it.
      name: of the variants.

    Raises:
      NoTileCode: sums that the generation has no sliding windows into.
    """
    first, later = (
        existing(_variant(isa, accumulate, shape.stride, weights_bits, is_first)).named(name)
        for is_first in (True, False)
    )
    channels = np.maximum(shape.inputs, shape.outputs)
    each = np.select([channels <= 1, channels <= _PAIR], [1, _PAIR], CHANNELS)
    turns = -(-shape.field.columns // windows_a_turn(shape.stride))
    panels = shape.tap_rows * -(-shape.tap_columns // TAPS)
    widths: list[int] = np.unique(each[does]).tolist()
    for width in widths:
        kernel = _Sliding(form, accumulate, out_dtype, width, later.formula)
        own = does & (each == width)
        blocks = -(-shape.groups // kernel.groups_at_once)
        firsts = np.where(own, blocks, 0)
        runs = firsts, firsts * (panels - 1)
        yield from run_parts(kernel, (first, later), shape.field.rows, turns, runs, later.formula)
        sums = blocks * CHANNELS * shape.field.rows * turns * windows_a_turn(shape.stride)
        yield from cast_parts(isa, kernel, own, sums, name)


@dataclass(frozen=True)
class _Sliding:
    """Blocks of groups over fields whose rows are filled up to whole turns of the loop: a ``Kernel``.

    Attributes:
      form: the operation.
      sums_dtype: dtype of the sums.
      out_dtype: dtype of results.
      width: channels that a group has of a block's four.
      formula: closed form of a panel over runs, which says how rows are cut.
    """

    form: OpForm
    sums_dtype: str
    out_dtype: str
    width: int
    formula: Formula

    @property
    def outputs(self) -> int:
        """Outputs of a pass."""
        return outputs_at_once(self.sums_dtype)

    @property
    def passes(self) -> int:
        """How often a panel goes over the data."""
        return CHANNELS // self.outputs

    @property
    def groups_at_once(self) -> int:
        """Groups of a block."""
        return CHANNELS // self.width

    def geometry(self, sizes: Sequence[int]) -> Geometry:
        """Return a cell's fields, with whole turns and whole panels in a row."""
        g = geometry_of(self.form, sizes)
        each, stride = windows_a_turn(g.strides[-1]), g.strides[-1]
        columns, taps = -(-g.field[-1] // each) * each, -(-g.taps[-1] // TAPS) * TAPS
        reach = (columns - 1) * stride + taps
        return replace(
            g, field=(*g.field[:-1], columns), taps=(*g.taps[:-1], taps), reach=(*g.reach[:-1], reach)
        )

    def _blocks(self, sizes: Sequence[int]) -> int:
        return -(-extent_of(sizes, conv_roles(self.form).groups) // self.groups_at_once)

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        g, blocks = self.geometry(sizes), self._blocks(sizes)
        x = held_fields(operands[0], self.form, sizes, g, self.width)
        cells, is_ring = len(x), x.dtype.kind == "u"
        x = filled_up(x, 1, self.groups_at_once).reshape(cells, blocks, CHANNELS, *x.shape[3:])
        runs = self.runs(g)
        positions = g.batch * math.prod(g.field)
        memory = {
            INPUTS: np.ascontiguousarray(np.moveaxis(x, 2, -1)),
            WEIGHTS: self.panels(sizes, operands[1], g),
            RUNS: np.broadcast_to(runs, (cells, *runs.shape)),
        }
        sums = (cells, blocks, self.passes, positions, self.outputs)
        memory[SUMS] = np.zeros(sums, in_words(self.sums_dtype, is_ring))
        if self.out_dtype != self.sums_dtype:
            memory[CAST] = np.zeros(sums, in_words(self.out_dtype, is_ring))
        return memory, {"pass_bytes": positions * ACCESS_BYTES}

    def panels(self, sizes: Sequence[int], kernel: np.ndarray, g: Geometry) -> np.ndarray:
        """Return panels ``[cells, blocks, rows of taps, panels of a row, outputs, taps, inputs]``, zeros between groups."""
        roles = conv_roles(self.form)
        w = in_order(kernel, self.form, 1, (*roles.groups, *roles.taps, *roles.outputs, *roles.inputs))
        outputs, inputs = (extent_of(sizes, d) for d in (roles.outputs, roles.inputs))
        taps = g.taps[:-1]
        w = w.reshape(len(w), -1, math.prod(taps), extent_of(sizes, roles.taps[-1:]), outputs, inputs)
        for axis, multiple in ((1, self.groups_at_once), (3, TAPS), (4, self.width), (5, self.width)):
            w = filled_up(w, axis, multiple)
        w = w.reshape(
            *(len(w), self._blocks(sizes), self.groups_at_once, w.shape[2], w.shape[3] // TAPS, TAPS),
            *(self.width, self.width),
        )
        found = np.zeros((*w.shape[:2], *w.shape[3:5], CHANNELS, TAPS, CHANNELS), w.dtype)
        for k in range(self.groups_at_once):
            own = slice(k * self.width, (k + 1) * self.width)
            found[..., own, :, own] = np.moveaxis(w[:, :, k], 4, 5)
        return found

    def runs(self, g: Geometry) -> np.ndarray:
        """Return where inputs and results of runs begin, in accesses, and their turns: uint16 ``[runs, 3]``, longest first."""
        return runs_of(g, self.formula, (1, 1), windows_a_turn(g.strides[-1]))

    def turns(self, is_first: bool, sizes: tuple[int, ...]) -> list[dict[str, Field]]:
        """Return the fields of every panel: of a block's first one, or of all later ones."""
        g = self.geometry(sizes)
        field_bytes = g.batch * math.prod(g.reach) * ACCESS_BYTES
        sums_bytes = self.passes * g.batch * math.prod(g.field) * ACCESS_BYTES
        taps = list(pairs(*(range(t) for t in g.taps[:-1]), range(0, g.taps[-1], TAPS)))
        found: list[dict[str, Field]] = []
        for block in range(self._blocks(sizes)):
            for number, index in list(enumerate(taps))[:1] if is_first else list(enumerate(taps))[1:]:
                at = g.place([i * d for i, d in zip(index, (*g.dilations[:-1], 1), strict=True)])
                panel = block * len(taps) + number
                found.append(
                    {
                        "in0": (INPUTS, block * field_bytes + at * ACCESS_BYTES),
                        "out0": (SUMS, block * sums_bytes),
                        "runs": RUNS,
                        "weights": (WEIGHTS, panel * sliding_of(self.sums_dtype).panel_bytes),
                    }
                )
        return found

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        roles, g = conv_roles(self.form), self.geometry(sizes)
        found = memory[SUMS if self.out_dtype == self.sums_dtype else CAST]
        cells, blocks = found.shape[:2]
        found = found.reshape(cells, blocks, self.passes, -1, g.field[-1], self.outputs)
        found = found[..., : geometry_of(self.form, sizes).field[-1], :]
        found = np.moveaxis(found, 2, -2).reshape(cells, blocks, -1, self.groups_at_once, self.width)
        found = np.moveaxis(found, 3, 2).reshape(cells, -1, found.shape[2], self.width)
        found = found[:, : extent_of(sizes, roles.groups), :, : extent_of(sizes, roles.outputs)]
        dims = (*roles.groups, *roles.batch, *roles.field, *roles.outputs)
        found = found.reshape(cells, *(sizes[d] for d in dims))
        return [found.transpose([0, *(1 + dims.index(d) for d in self.form.results[0].dims)])]
