"""The one concept: an iteration domain, an affine indexing map per operand and result, and a plan.

A codelet computes one cell of the domain; a plan cuts every domain dimension into parts and gives each
cell of the resulting grid a tile. Nothing else is written per operation: what each vertex reads, what
is exchanged, partials and their combination all follow (``tiles.plan``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tiles.cached import cached_property
from tiles.errors import InvalidPlan
from tiles.files import JsonObject
from tiles.graph.arrangement import ROW_MAJOR, Arrangement
from tiles.graph.hashing import hashed_once
from tiles.graph.layout import AxisSplit, Layout, ceil_div, mask_of, require_whole_groups, tile_grid, whole

PARALLEL, REDUCTION, WINDOW = "parallel", "reduction", "window"
KINDS = (PARALLEL, REDUCTION, WINDOW)


@dataclass(frozen=True)
class Dim:
    """A named dimension of an iteration domain; ``kind`` is parallel, reduction or window."""

    name: str
    size: int
    kind: str = PARALLEL

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidPlan(
                f"dimension {self.name} has kind {self.kind!r}; expected one of {', '.join(KINDS)}"
            )

    @property
    def is_reduced(self) -> bool:
        """Whether results are combined along this dimension."""
        return self.kind != PARALLEL


@dataclass(frozen=True)
class Affine:
    """An index ``offset + sum(coefficient * dim)`` along one axis of an operand."""

    terms: tuple[tuple[int, int], ...]
    offset: int = 0

    def __str__(self) -> str:
        """Return e.g. ``2*d1+d3-1``."""
        text = "+".join(f"d{d}" if c == 1 else f"{c}*d{d}" for d, c in self.terms)
        if self.offset or not text:
            text += f"{self.offset:+d}" if text else str(self.offset)
        return text


def along(dim: int, coefficient: int = 1, offset: int = 0) -> Affine:
    """Return the index ``coefficient * dim + offset``."""
    return Affine(((dim, coefficient),), offset)


@hashed_once
@dataclass(frozen=True)
class IndexMap:
    """Where an operand or result is indexed from the domain.

    Args:
      axes: one affine index per axis of the tensor.
      fill: the value standing for what lies outside the tensor; None when nothing may.
    """

    axes: tuple[Affine, ...]
    fill: float | int | bool | None = None

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """Domain dimensions used, in axis order."""
        return tuple(d for axis in self.axes for d, _ in axis.terms)

    def to_data(self) -> JsonObject:
        """Return plain data."""
        fill = self.fill
        if isinstance(fill, float) and not math.isfinite(fill):
            fill = str(fill)
        return {"axes": [[[list(t) for t in a.terms], a.offset] for a in self.axes], "fill": fill}

    @classmethod
    def from_data(cls, data: JsonObject) -> IndexMap:
        """Build from plain data."""
        axes = tuple(Affine(tuple((int(d), int(c)) for d, c in terms), int(o)) for terms, o in data["axes"])
        fill = data["fill"]
        return cls(axes, float(fill) if isinstance(fill, str) else fill)


def identity_map(rank: int) -> IndexMap:
    """Return the map that indexes axis i by dimension i."""
    return IndexMap(tuple(along(d) for d in range(rank)))


@hashed_once
@dataclass(frozen=True)
class OpForm:
    """A regular operation: its domain and the indexing map of each operand and result.

    Every domain dimension appears in at most one axis of an operand; results are indexed by bare
    parallel dimensions, each at most once. One that a result lacks is not cut: cells would write the same part.
    """

    dims: tuple[Dim, ...]
    operands: tuple[IndexMap, ...]
    results: tuple[IndexMap, ...]

    def __post_init__(self) -> None:
        parallel = {i for i, d in enumerate(self.dims) if not d.is_reduced}
        for result in self.results:
            bare = all(
                axis.terms and len(axis.terms) == 1 and axis.terms[0][1] == 1 and not axis.offset
                for axis in result.axes
            )
            if not bare or len(set(result.dims)) != len(result.dims) or not parallel.issuperset(result.dims):
                raise InvalidPlan(f"a result must be indexed by parallel dimensions, each once, got {result}")
        missing = parallel.difference(*(result.dims for result in self.results))
        if self.results and missing:
            raise InvalidPlan(f"dimension {self.dims[min(missing)].name} is parallel and indexes no result")
        for operand in self.operands:
            if len(set(operand.dims)) != len(operand.dims):
                raise InvalidPlan(f"a dimension may index only one axis of an operand, got {operand}")

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the domain."""
        return tuple(dim.size for dim in self.dims)

    @cached_property
    def reduced(self) -> tuple[int, ...]:
        """Indices of the dimensions results are combined along."""
        return tuple(i for i, dim in enumerate(self.dims) if dim.is_reduced)

    @cached_property
    def unsplit(self) -> tuple[int, ...]:
        """Indices of the parallel dimensions that not every result has."""
        parallel = [i for i, dim in enumerate(self.dims) if not dim.is_reduced]
        return tuple(d for d in parallel if any(d not in result.dims for result in self.results))

    def result_shape(self, k: int = 0) -> tuple[int, ...]:
        """Shape of result k when no reduction is split."""
        return tuple(self.dims[d].size for d in self.results[k].dims)

    def to_data(self) -> JsonObject:
        """Return plain data."""
        return {
            "dims": [[d.name, d.size, d.kind] for d in self.dims],
            "operands": [m.to_data() for m in self.operands],
            "results": [m.to_data() for m in self.results],
        }

    @classmethod
    def from_data(cls, data: JsonObject) -> OpForm:
        """Build from plain data."""
        return cls(
            tuple(Dim(str(n), int(s), str(k)) for n, s, k in data["dims"]),
            tuple(IndexMap.from_data(m) for m in data["operands"]),
            tuple(IndexMap.from_data(m) for m in data["results"]),
        )


@hashed_once
@dataclass(frozen=True)
class Plan:
    """How a domain is cut, and in which order its vertices go through it.

    Cells lie on different tiles; splitting a reduction gives partials, one per reduction cell.

    Args:
      splits: one per dimension of the domain.
      base: tile of the first cell.
      arrangement: order of a cell's points, by dimensions of the domain; what a vertex reads and writes lies in its
        tile's memory in this order. Row-major: everything lies in row-major order of its own axes.
    """

    splits: tuple[AxisSplit, ...]
    base: int = 0
    arrangement: Arrangement = ROW_MAJOR

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Parts along each dimension."""
        return tuple(split.parts for split in self.splits)

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Extents of a full cell."""
        return tuple(min(split.grain, split.size) for split in self.splits)

    @cached_property
    def num_cells(self) -> int:
        """Cells, that is vertices, of the plan."""
        return math.prod(self.grid)

    @cached_property
    def tiles(self) -> np.ndarray:
        """Tile of every cell, int64 ``[num_cells]`` in row-major order of the grid."""
        return tile_grid(self.splits, self.base)

    @cached_property
    def tile_mask(self) -> int:
        """The set of tiles as the bits of an integer."""
        return mask_of(self.tiles)

    def check(self, form: OpForm, num_tiles: int) -> None:
        """Raise InvalidPlan unless the plan cuts exactly ``form`` onto distinct existing tiles."""
        if tuple(split.size for split in self.splits) != form.shape:
            raise InvalidPlan(
                f"the plan cuts {tuple(s.size for s in self.splits)}, the domain is {form.shape}"
            )
        if self.num_cells > num_tiles:
            raise InvalidPlan(f"the plan has {self.num_cells} cells for {num_tiles} tiles")
        for d in form.unsplit:
            if self.splits[d].is_split:
                raise InvalidPlan(f"the plan cuts dimension {form.dims[d].name}, which not all results have")
        tiles = self.tiles
        if tiles.min() < 0 or tiles.max() >= num_tiles:
            raise InvalidPlan(f"the plan uses tiles {tiles.min()}..{tiles.max()} of {num_tiles}")
        if np.bincount(tiles).max() > 1:
            raise InvalidPlan("two cells of the plan lie on one tile")
        if not self.arrangement.is_row_major:
            self.arrangement.fit(self.extents)
            require_whole_groups(self.arrangement, self.splits)

    def split_reductions(self, form: OpForm) -> tuple[int, ...]:
        """Reduction dimensions cut into more than one part."""
        return tuple(d for d in form.reduced if self.splits[d].is_split)

    def num_partials(self, form: OpForm) -> int:
        """Partials of each result element; 1 when no reduction is split."""
        return math.prod(self.splits[d].parts for d in self.split_reductions(form))

    def result_layout(self, form: OpForm, k: int = 0) -> Layout:
        """Layout of result k: the cells' parts, behind a leading partials axis if a reduction is split."""
        axes = [self.splits[d] for d in form.results[k].dims]
        split = self.split_reductions(form)
        if split:
            digits = partial_digits([self.splits[d] for d in split])
            axes.insert(0, AxisSplit(self.num_partials(form), 1, digits))
        return Layout(tuple(axes), self.base, self.result_order(form, k, int(bool(split))))

    def result_order(self, form: OpForm, k: int = 0, lead: int = 0) -> Arrangement:
        """Return the order in which a vertex writes result ``k``, by the result's axes with ``lead`` others before."""
        return self._order_of(form.results[k], lead)

    def operand_order(self, form: OpForm, k: int) -> Arrangement:
        """Return the order in which a vertex reads operand ``k``, by the operand's axes."""
        return self._order_of(form.operands[k], 0)

    def _order_of(self, index_map: IndexMap, lead: int) -> Arrangement:
        """Return the order of a tensor's axes, those of a window by its first dimension; ``lead`` axes come before."""
        if self.arrangement.is_row_major:
            return ROW_MAJOR
        return _order_along(self.arrangement, index_map, lead)

    def to_data(self) -> JsonObject:
        """Return plain data."""
        splits = [s.to_data() for s in self.splits]
        return {"splits": splits, "base": self.base, "arrangement": self.arrangement.to_data()}

    @classmethod
    def from_data(cls, data: JsonObject) -> Plan:
        """Build from plain data."""
        splits = tuple(AxisSplit.from_data(s) for s in data["splits"])
        return cls(splits, int(data["base"]), Arrangement.from_data(data["arrangement"]))

    def describe(self, form: OpForm) -> str:
        """Return e.g. ``m:128/32 n:1024/16 k:784`` for reports, and the order of a cell's points behind ``by``."""
        cut = " ".join(
            f"{dim.name}:{s.size}/{s.grain}" if s.is_split else f"{dim.name}:{s.size}"
            for dim, s in zip(form.dims, self.splits, strict=True)
        )
        digits = self.arrangement.fit(self.extents).digits
        if not digits:
            return cut
        order = " ".join(f"{form.dims[d].name}%{g}" if g else form.dims[d].name for d, g in digits)
        return f"{cut} by {order}"


@lru_cache(maxsize=4096)
def _order_along(order: Arrangement, index_map: IndexMap, lead: int) -> Arrangement:
    """Return an order of domain dimensions as one of a tensor's axes behind ``lead`` others."""
    return order.mapped({axis.terms[0][0]: lead + i for i, axis in enumerate(index_map.axes) if axis.terms})


def partial_digits(splits: Sequence[AxisSplit]) -> tuple[tuple[int, int], ...]:
    """Return the digits that number the partials of split reductions, the slowest first.

    Raises:
      InvalidPlan: the parts of another than the first do not fill their faster digits.
    """
    first, *others = splits
    inner = math.prod(radix for radix, _ in first.digits[1:])
    slowest = (ceil_div(first.parts, inner), first.digits[0][1])
    return (
        slowest,
        *first.digits[1:],
        *itertools.chain.from_iterable(full_digits(split) for split in others),
    )


def full_digits(split: AxisSplit) -> tuple[tuple[int, int], ...]:
    """Return digits whose radices multiply to exactly the number of parts.

    A split whose slowest digit is not used up is tightened; parts are a mixed-radix prefix, so only the
    slowest digit can be.

    Raises:
      InvalidPlan: the parts do not fill the faster digits.
    """
    if not split.is_split:
        return ()
    inner = math.prod(radix for radix, _ in split.digits[1:])
    if split.parts % inner:
        raise InvalidPlan(f"split {split} does not fill its faster digits, so it cannot index partials")
    return ((split.parts // inner, split.digits[0][1]), *split.digits[1:])


def unsplit_plan(form: OpForm, base: int = 0) -> Plan:
    """Return the plan with a single cell."""
    return Plan(tuple(whole(dim.size) for dim in form.dims), base)
