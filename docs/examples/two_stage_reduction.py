"""Tiles without HLO: a vector addition and a reduction in two stages, one of them with a codelet of our own."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

import tiles


@tiles.register
@dataclass(frozen=True)
class SumOfSquares(tiles.Codelet):
    """Add the squares of the elements of a vertex's slice."""

    name = "example.SumOfSquares"

    def compute(self, cell, x):
        """Return the cell's sum; ``Cell.reduced_mask`` says which elements of a padded slice are real."""
        mask = cell.reduced_mask()
        return (jnp.sum(x * x if mask is None else jnp.where(mask, x * x, 0)),)

    def cycles(self, extents, target):
        """Return the duration of a vertex: a multiply-add an element, shared by the tile's workers."""
        cycles = extents.points // target.workers_per_tile + 20
        return tiles.Cycles(cycles, tiles.Basis.ASSUMED, "this example")

    def combiner(self):
        """Let the reduction be split: partial sums are added."""
        return "add"

    def partial(self):
        """Return the codelet that makes partials, and their dtypes."""
        return self, ("float32",)


def build(target: tiles.Target, size: int = 4096, parts: int = 64) -> tiles.Graph:
    """Return a graph of x + y and of the sum of its squares, each cut into ``parts`` on as many tiles."""
    graph = tiles.Graph(target, "two_stage_reduction")
    x, y = (graph.add_input((size,), "float32", name) for name in ("x", "y"))
    cut = tiles.Plan(
        (tiles.AxisSplit(size, size // parts, ((parts, 1),)),)
    )  # the planner chooses one if not given
    z = tiles.popops.add(tiles.Site(graph, "z"), x, y, plan=cut)
    # Stage one: every tile adds the squares of its own part of z. Stage two, a sum of the partials, follows from it.
    form = tiles.forms.reduce_form((size,), (0,))
    (total,) = tiles.place(tiles.Site(graph, "squares"), SumOfSquares(), form, [z], ("float32",), plan=cut)
    graph.outputs = [z.name, total.name]
    return graph


def main() -> None:
    """Compile for a GC200, run on every engine, print the program and its cost."""
    executable = tiles.compile_graph(build(tiles.Target.named("gc200")))
    x, y = np.random.default_rng(0).standard_normal((2, 4096)).astype(np.float32)
    for engine in ("fast", "literal", "vertex"):
        (z, total), _ = tiles.make_engine(executable, engine).run(x, y)
        assert np.array_equal(z, x + y)
        print(f"{engine:8} {float(total):.3f}, numpy {np.sum((x + y) ** 2):.3f}")
    print(executable.text())


if __name__ == "__main__":
    main()
