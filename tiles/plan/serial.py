"""Serial splits: an operation whose temporaries do not fit a tile is computed slice by slice, one after another.

PopLibs' convolution planner calls them serial splits of the output channels; here any parallel dimension of a
contraction may be cut. A slice is the same operation over a shorter dimension, read with an offset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tiles.graph import Affine, Codelet, IndexMap, OpForm
from tiles.graph.layout import align_up, ceil_div
from tiles.plan.question import CODE_PRICE, Operand, Question
from tiles.plan.search import least_cost, search
from tiles.target import Target

MOST_TURNS = 64
DEAR, LONG = 4.0, 100_000
"""How much dearer than without exchange a plan is, and how many cycles it takes, from which on slices are looked at though it fits."""
NEARLY = 1.25
"""How much more temporaries than the fewest the slices have that are taken where none keep to the bound."""


@dataclass(frozen=True)
class SerialSplit:
    """Cut domain dimension ``dim`` into slices of ``extent``, computed one after another."""

    dim: int
    extent: int

    def forms(self, form: OpForm) -> list[OpForm]:
        """Return the form of every slice, in order."""
        size = form.dims[self.dim].size
        return [
            slice_form(form, self.dim, start, min(self.extent, size - start))
            for start in range(0, size, self.extent)
        ]


def slice_form(form: OpForm, d: int, start: int, size: int) -> OpForm:
    """Return the form that computes ``size`` points of dimension ``d`` from ``start`` on, of the same operands."""

    def shifted(axis: Affine) -> Affine:
        return replace(axis, offset=axis.offset + sum(c * start for e, c in axis.terms if e == d))

    dims = tuple(replace(dim, size=size) if e == d else dim for e, dim in enumerate(form.dims))
    operands = tuple(IndexMap(tuple(map(shifted, m.axes)), m.fill) for m in form.operands)
    return OpForm(dims, operands, form.results)


def serial_split(
    form: OpForm,
    codelet: Codelet,
    operands: Sequence[Operand],
    result_dtypes: tuple[str, ...],
    target: Target,
    memory_proportion: float,
    code_price: float = CODE_PRICE,
) -> SerialSplit | None:
    """Return the cheapest serial split whose temporaries keep to the bound, None if none is needed or none helps.

    Where the whole does not keep to it and no split does, either, that is the cheapest of those with the fewest temporaries.

    One is needed where no plan of the whole keeps to it, or where those that do are far dearer than others: a cell that sums a
    long reduction for few results, say, as all that a better one reads at once does not fit. Along each dimension that is the
    one into the fewest slices that do: twice as many until they do, then halving.

    Args:
      form: the whole operation.
      codelet: what it computes; only contractions are cut, whose cells do not ask where they lie.
      operands: shapes, dtypes and present layouts.
      result_dtypes: dtypes of the results.
      target: the machine.
      memory_proportion: share of a tile's memory that temporaries may take.
      code_price: cycles that a byte of exchange code on the fullest tile is worth.
    """

    def best(part: OpForm) -> tuple[float, int]:
        found = search(part, codelet, operands, result_dtypes, target, (), memory_proportion, code_price)[0]
        return found.cost, found.temporary_bytes

    limit = memory_proportion * target.bytes_per_tile
    if not codelet.is_contraction:
        return None
    whole, needed = best(form)
    if needed > limit:
        whole = math.inf
    else:
        question = Question(form, codelet, tuple(operands), result_dtypes, target, code_price)
        if whole <= max(LONG, DEAR * least_cost(question)):
            return None
    grains = codelet.grains(form, target)
    options: list[tuple[float, int, int]] = []
    beyond: list[tuple[int, tuple[float, int, int]]] = []
    for d in form.results[0].dims:
        size, tried, count = form.dims[d].size, 1, 2  # too few slices, and slices to try
        enough = None
        while tried < count <= min(size, MOST_TURNS):
            extent = min(size, align_up(ceil_div(size, count), grains[d]))
            cycles, temporary = best(slice_form(form, d, 0, extent))
            option = (cycles * ceil_div(size, extent), d, extent)
            if extent < size and temporary <= limit:
                options.append(option)
                enough = count
            else:
                tried = count
                beyond += [(temporary, option)] if extent < size else []
            count = 2 * count if enough is None else (tried + enough) // 2
    if options:
        return SerialSplit(*min(options)[1:]) if min(options)[0] < whole else None
    fewest = min((temporary for temporary, _ in beyond), default=needed)
    if needed <= max(limit, NEARLY * fewest):
        return None
    return SerialSplit(*min(option for temporary, option in beyond if temporary <= NEARLY * fewest)[1:])
