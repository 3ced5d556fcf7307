"""The codelet that scans rows: every element becomes the fold of all before it and itself.

A row is scanned by one vertex, so it must fit on a tile; rows are spread over the tiles. Long rows are cut
into blocks before they come here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles._jax_compat import dynamic_index_in_dim, dynamic_update_index_in_dim, fori_loop
from tiles.errors import InvalidGraph, NoTileCode, OutOfRegisters
from tiles.graph import (
    Cell,
    Codelet,
    Cycles,
    Extents,
    Graph,
    OpForm,
    Plan,
    Site,
    Tensor,
    VertexCode,
    code_cycles,
    identity_map,
    register,
    site_of,
)
from tiles.numerics.dtypes import is_float
from tiles.poplibs.forms import map_form
from tiles.poplibs.popops import elementwise_cycles
from tiles.poplibs.popops.expression import FUNCTIONS, Body, body_dtypes, evaluate_body
from tiles.poplibs.popops.inner_loops import loop_of
from tiles.poplibs.popops.scan_code import scan_code
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target

SOURCE = "graphcore/poplibs lib/popops: elementwise loops, a load and a store per element scanned"


@register
@dataclass(frozen=True)
class Scan(Codelet):
    """Fold rows of several arrays together, keeping every intermediate value, one element after another.

    Args:
      body: expression that combines N values (its first N operands, the earlier ones of a row) with N later
        ones.
      outputs: index of the value that each of the N results takes.
      dtypes: dtypes of the N arrays.
      dimension: the dimension scanned, of the domain and of every array.
      is_reversed: whether to start at the end of rows.

    Raises:
      InvalidGraph: an expression that does not give N values of these dtypes.
    """

    name: ClassVar[str] = "popops.Scan"

    body: Body
    outputs: tuple[int, ...]
    dtypes: tuple[str, ...]
    dimension: int
    is_reversed: bool = False

    def __post_init__(self) -> None:
        """Check the expression against the dtypes."""
        known = body_dtypes(self.body, self.dtypes * 2)
        found = tuple(known[i] for i in self.outputs if 0 <= i < len(known))
        if found != self.dtypes:
            raise InvalidGraph("the combining expression gives other dtypes", expected=self.dtypes, got=found)

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """Those of the arrays."""
        return self.dtypes

    @property
    def label(self) -> str:
        """Vertex type: PopLibs has none for scans; this one is named for its functions and dtypes."""
        names = [FUNCTIONS[name].poplibs for name, arguments, _ in self.body if arguments]
        what = names[0] if len(names) == 1 else "Expression"
        return f"popops::Scan<{','.join([what, *map(elementwise_cycles.cpp_name, self.dtypes)])}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the cell's rows, scanned."""
        rows = [jnp.moveaxis(x, self.dimension, 0) for x in operands]
        if rows[0].shape[0] < 2:
            return tuple(operands)
        count = rows[0].shape[0]
        edge = tuple(x[-1 if self.is_reversed else 0] for x in rows)

        def step(number: Array, state: tuple[Any, Any]) -> tuple[Any, Any]:
            before, found = state
            at = np.int32(count - 2) - number if self.is_reversed else number + np.int32(1)
            here = tuple(dynamic_index_in_dim(x, at, keepdims=False) for x in rows)
            pair = (*here, *before) if self.is_reversed else (*before, *here)
            folded = self._combined(cell, pair)
            kept = [dynamic_update_index_in_dim(x, new, at, 0) for x, new in zip(found, folded, strict=True)]
            return folded, tuple(kept)

        _, folds = fori_loop(0, count - 1, step, (edge, tuple(rows)))
        return tuple(jnp.moveaxis(fold, 0, self.dimension) for fold in folds)

    def _combined(self, cell: Cell, pair: Sequence[Array]) -> tuple[Array, ...]:
        """Return one step of all rows."""
        shape = pair[0].shape
        widened = [lax.expand_dims(x, (self.dimension,)) for x in pair]
        known = evaluate_body(self.body, widened, cell)
        full = lax.expand_dims(pair[0], (self.dimension,)).shape
        return tuple(jnp.broadcast_to(known[i], full).reshape(shape) for i in self.outputs)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the cycles of the code; where there is none, a formula's, see ``_estimated``."""
        try:
            return code_cycles(self.tile_code(extents, target))
        except (NoTileCode, OutOfRegisters):
            return self._estimated(extents, target)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of whole rows of words, a worker each."""
        how = (self.body, self.outputs, self.dtypes, self.dimension, self.is_reversed)
        return scan_code(*how, extents, target, self.label)

    def _estimated(self, extents: Extents, target: Target) -> Cycles:
        """Return the slots of a scan of whole rows by workers, or of parts of rows where workers are idle (ASSUMED).

        Workers that share rows scan their parts, then add to each the fold of the parts before it: two passes.
        """
        known = body_dtypes(self.body, self.dtypes * 2)
        count = 2 * len(self.dtypes)
        each = 2 * len(self.dtypes) + sum(
            int(loop_of(name, dict(attrs), known[arguments[-1]]).total(1, known[arguments[-1]], target))
            for name, arguments, attrs in self.body
            if arguments
        )
        n = np.asarray(extents.sizes[self.dimension], np.int64)
        rows = extents.points // np.maximum(n, 1)
        workers = target.workers_per_tile
        whole = -(-rows // workers) * n
        shared = rows * (2 * -(-n // workers) + workers)
        slots = 30 + count + each * np.minimum(whole, shared)
        value = target.supervisor_vertex_overhead_cycles + target.worker_issue_interval_cycles * slots
        return Cycles(value, Basis.ASSUMED, SOURCE)

    def flops(self, extents: Extents) -> np.ndarray:
        """Count the arithmetic of one combination per element, on floats."""
        known = body_dtypes(self.body, self.dtypes * 2)
        each = sum(FUNCTIONS[name].is_arithmetic and is_float(known[a[0]]) for name, a, _ in self.body if a)
        return extents.points * each

    def may_split(self, form: OpForm, d: int) -> bool:
        """Keep rows whole."""
        return d != self.dimension

    def may_overwrite(self, k: int) -> bool:
        """Every element is read before the result at its place is written."""
        return True

    def code_bytes(self, target: Target) -> int:
        """Estimate instructions: a fixed frame and the loop of every function (ASSUMED)."""
        return target.instruction_bytes * (64 + 12 * len(self.body))


def scan(
    where: Graph | Site,
    arrays: Sequence[Tensor],
    dimension: int,
    body: Body = (("add", (0, 1), ()),),
    outputs: tuple[int, ...] = (2,),
    is_reversed: bool = False,
    *,
    plan: Plan | None = None,
) -> tuple[Tensor, ...]:
    """Scan tensors of one shape together along ``dimension``; see ``Scan``.

    Raises:
      InvalidGraph: shapes that differ, or a dimension that does not exist.
    """
    site = site_of(where, "scan")
    shape = arrays[0].shape
    if any(x.shape != shape for x in arrays) or not -len(shape) <= dimension < len(shape):
        raise InvalidGraph(f"cannot scan shapes {[x.shape for x in arrays]} along dimension {dimension}")
    dtypes = tuple(x.dtype for x in arrays)
    codelet = Scan(body, outputs, dtypes, dimension % len(shape), is_reversed)
    form = map_form(shape, [identity_map(len(shape))] * len(arrays), len(arrays))
    return place(site, codelet, form, arrays, dtypes, plan=plan)
