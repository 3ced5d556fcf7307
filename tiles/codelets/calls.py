"""How an exported codelet's modules stand for it in a trace: the primitive ``exported_p``.

A module computes the cells of one ``CellCall``, with floats or in the ring. Vectorizing the primitive adds a level,
ring arithmetic takes the other module, and a level that no module was made for is computed cell by cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import core

from tiles._jax_compat import (
    Atom,
    Datum,
    Equation,
    batchers,
    lax_map,
    lower_fun,
    new_primitive,
    register_lowering,
)
from tiles.codelets.cells import CellCall, Level
from tiles.codelets.modules import Module, Parts
from tiles.errors import InvalidExecutable, Unsupported
from tiles.numerics.ring_rules import Evaluate, rule


@dataclass(frozen=True)
class CompiledCall:
    """The modules of one call; ``ring`` is None where ring arithmetic has no meaning for the codelet."""

    call: CellCall
    floats: Module
    ring: Module | None


@dataclass(frozen=True)
class Cells:
    """All compiled calls of cells of one size: what ``exported_p`` runs.

    Args:
      name: the codelet's name, for messages.
      results: shape and dtype of what one cell gives.
      calls: compiled calls by their levels.
    """

    name: str
    results: Parts
    calls: tuple[CompiledCall, ...]

    def run(self, levels: tuple[Level, ...], in_ring: bool, arguments: Sequence[Datum]) -> list[Datum]:
        """Return the results of cells vectorized in ``levels``: of one module, or of several in turn.

        Raises:
          Unsupported: the codelet has no ring form.
          InvalidExecutable: no module computes such cells.
        """
        known = {compiled.call.levels: compiled for compiled in self.calls}
        if levels in known:
            module = known[levels].ring if in_ring else known[levels].floats
            if module is None:
                raise Unsupported(
                    f"codelet {self.name} has no meaning in ring arithmetic", try_="run it with floats"
                )
            return list(module.call(*arguments))
        if not levels:
            raise InvalidExecutable(
                f"the executable carries no module of codelet {self.name} for one such cell"
            )
        (_, varies), *inner = levels
        given = list(arguments)

        def one(own: list[Datum]) -> list[Datum]:
            mine = iter(own)
            chosen = [next(mine) if v else x for v, x in zip(varies, given, strict=True)]
            return self.run(tuple(inner), in_ring, chosen)

        return list(lax_map(one, [x for v, x in zip(varies, given, strict=True) if v]))


exported_p = new_primitive("tiles_exported_codelet")
exported_p.multiple_results = True


def run_cells(cells: Cells, *arguments: Datum) -> tuple[jax.Array, ...]:
    """Return the results of one cell, as part of whatever trace this is called in."""
    return tuple(exported_p.bind(*arguments, cells=cells, levels=()))


def _run(*arguments: Datum, cells: Cells, levels: tuple[Level, ...]) -> list[Datum]:
    return cells.run(levels, False, arguments)


def _types(*avals: Atom, cells: Cells, levels: tuple[Level, ...]) -> list[core.ShapedArray]:
    counts = tuple(count for count, _ in levels)
    return [core.ShapedArray((*counts, *shape), jnp.dtype(dtype)) for shape, dtype in cells.results]


def _batch(
    arguments: Sequence[Datum], dims: Sequence[int | None], *, cells: Cells, levels: tuple[Level, ...]
) -> tuple[list[Datum], list[int]]:
    varies = tuple(dim is not None for dim in dims)
    moved = [x if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(arguments, dims, strict=True)]
    count = next(x.shape[0] for x, v in zip(moved, varies, strict=True) if v)
    results = exported_p.bind(*moved, cells=cells, levels=((count, varies), *levels))
    return results, [0] * len(results)


@rule(exported_p.name)
def _in_ring(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    """Run the modules made in the ring."""
    return eqn.params["cells"].run(eqn.params["levels"], True, ins)


exported_p.def_impl(_run)
exported_p.def_abstract_eval(_types)
batchers[exported_p] = _batch
register_lowering(exported_p, lower_fun(_run, multiple_results=True))
