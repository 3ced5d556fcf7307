"""Every collective by every algorithm, element type and odd size on systems of all kinds: the bits that NumPy gives.

Sums are NumPy's in the order that docs state; what only moves is NumPy's indexing. One program holds many collectives,
so that an engine is made once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.replicas import drawn, reduced, replicated, turned
from tiles import Graph, Tensor, certify, compile_graph, gcl, make_engine
from tiles.poplibs.gcl import choice

ENGINES = ("fast", "literal", "vertex")
OPERATIONS = {
    "float32": ("add", "max"),
    "float16": ("add", "mul", "min"),
    "int32": ("add", "xor", "min"),
    "bool": ("and", "or", "xor"),
    "uint8": ("add", "or"),
}
SHAPES = ((), (0,), (1,), (7,), (3, 5), (41,))
GROUPS = (
    ("dss8440", 16),
    ("c2_card", 2),
    ("pod16", 4),
    ("c600_host", 6),
    ("bow_pod64", 8),
    ("dss8440_pair", 3),
)


PARTS = 8
"""Programs that the rows of a group are shared out to."""


class Row(NamedTuple):
    """A collective: its builder, its operand, and what the members get of ``[members, *shape]``."""

    build: Callable[[Graph, Tensor], Tensor]
    dtype: str
    shape: tuple[int, ...]
    wanted: Callable[[Graph, np.ndarray], np.ndarray]


def summed(
    graph: Graph, x: np.ndarray, operation: str, algorithm: str, size_bytes: int, scatters: bool
) -> np.ndarray:
    """Return ``[members, elements]`` combined, each fragment the part of a member: in the members' order if scattered."""
    inner = choice.inner_members(graph, ("data",), size_bytes) if algorithm == "hierarchical" else 0
    halves = "halving" in algorithm
    is_folded = not halves and choice.ring_of(graph, ("data",), inner).is_folded
    if not scatters or not is_folded:
        return reduced(x, operation, algorithm, inner, is_folded)
    n = len(x)
    on_ring = x.reshape(n, n, -1)[:, turned(n)].reshape(n, -1)
    found = reduced(on_ring, operation, algorithm, inner, is_folded).reshape(n, -1)
    return found[np.argsort(turned(n))].reshape(-1)


def algorithms(system: str, n: int, scatters: bool) -> list[str]:
    """Return those that fit the group: not all halve, and not all have groups of neighbours."""
    graph = replicated(("data", n), name=system, num_tiles=4)
    return [a for a in gcl.ALGORITHMS if choice.refusal(graph, ("data",), a, scatters) is None]


def table_of(system: str, n: int) -> list[Row]:
    """Return every row for a group of n."""
    reduces = all_reduces(algorithms(system, n, False)), reduce_scatters(n, algorithms(system, n, True))
    return [*reduces[0], *reduces[1], *moves(n)]


def all_reduces(legal: list[str]) -> Iterator[Row]:
    for algorithm in legal:
        for dtype, operations in OPERATIONS.items():
            for operation in operations:
                for shape in SHAPES:

                    def build(graph: Graph, x: Tensor, o: str = operation, a: str = algorithm) -> Tensor:
                        return gcl.all_reduce(graph, x, "data", o, algorithm=a)

                    def wanted(
                        graph: Graph, x: np.ndarray, o: str = operation, a: str = algorithm
                    ) -> np.ndarray:
                        flat = x.reshape(len(x), -1)
                        one = summed(graph, flat, o, a, flat[0].nbytes, False) if flat.size else flat[0]
                        return np.broadcast_to(one.reshape(x.shape[1:]), x.shape)

                    yield Row(build, dtype, shape, wanted)


def reduce_scatters(n: int, legal: list[str]) -> Iterator[Row]:
    for algorithm in legal:
        for dtype, operations in OPERATIONS.items():
            for each in (0, 1, 3):

                def build(graph: Graph, x: Tensor, o: str = operations[0], a: str = algorithm) -> Tensor:
                    return gcl.reduce_scatter(graph, x, "data", 1, o, algorithm=a)

                def wanted(
                    graph: Graph, x: np.ndarray, o: str = operations[0], a: str = algorithm
                ) -> np.ndarray:
                    members, rows, columns = x.shape
                    chunks = x.reshape(members, rows, members, -1).swapaxes(1, 2)  # of each member
                    flat = chunks.reshape(members, -1)
                    total = summed(graph, flat, o, a, x[0].nbytes, True) if flat.size else flat[0]
                    return total.reshape(members, rows, columns // members)

                yield Row(build, dtype, (2, n * each), wanted)


def moves(n: int) -> Iterator[Row]:
    rng = np.random.default_rng(n)
    ways = ("two_rings", "doubling") if not n & (n - 1) else ("two_rings",)
    for dtype in OPERATIONS:
        for shape in ((3, 1), (1, 5), (0, 2)):
            for way in ways:

                def gathers(graph: Graph, x: Tensor, way: str = way) -> Tensor:
                    return gcl.all_gather(graph, x, "data", 1, algorithm=way)

                yield Row(gathers, dtype, shape, lambda _, x: np.stack([np.concatenate(list(x), 1)] * len(x)))
            root, there = int(rng.integers(n)), rng.permutation(n)
            pairs = [(int(a), int(b)) for a, b in enumerate(there) if rng.random() < 0.8]
            yield Row(
                lambda graph, x, root=root: gcl.broadcast(graph, x, "data", root),
                dtype,
                shape,
                lambda _, x, root=root: np.stack([x[root]] * len(x)),
            )

            def sent(_: Graph, x: np.ndarray, pairs: Any = pairs) -> np.ndarray:
                found = np.zeros_like(x)
                for a, b in pairs:
                    found[b] = x[a]
                return found

            yield Row(lambda graph, x, p=pairs: gcl.permute(graph, x, "data", p), dtype, shape, sent)

        def turned_over(_: Graph, x: np.ndarray) -> np.ndarray:
            chunks = x.reshape(len(x), len(x), -1, x.shape[2])  # from, to
            return np.stack([np.concatenate(list(chunks[:, m]), 1) for m in range(len(x))])

        yield Row(lambda graph, x: gcl.all_to_all(graph, x, "data", 0, 1), dtype, (n, 3), turned_over)
        yield Row(lambda graph, x: gcl.all_to_all(graph, x, "data", 0, 1), dtype, (2 * n, 1), turned_over)


def agree(rows: list[Row], system: str, n: int, seed: int) -> None:
    """Require of every engine the bits of every row."""
    graph = replicated(("data", n), name=system, num_tiles=4)
    rng, values, wanted = np.random.default_rng(seed), [], []
    for number, row in enumerate(rows):
        x = graph.add_input(row.shape, row.dtype, f"x{number}")
        values.append(drawn(rng, (n, *row.shape), row.dtype))
        with np.errstate(over="ignore"):
            wanted.append(row.wanted(graph, values[-1]))
        graph.outputs.append(row.build(graph, x).name)
    executable = compile_graph(graph)
    certificate = certify(executable)
    assert certificate.composites_run == certificate.composites
    for engine in ENGINES:
        outputs, _ = make_engine(executable, engine).run(*values)
        for number, (got, want) in enumerate(zip(outputs, wanted, strict=True)):
            got = np.asarray(got)
            assert got.dtype == want.dtype and got.shape == want.shape, (engine, number)
            assert got.tobytes() == want.tobytes(), (engine, rows[number].dtype, rows[number].shape, number)


@pytest.mark.parametrize("draw", range(4))
def test_collectives_drawn_from_the_table(draw: int) -> None:
    system, n = GROUPS[1 + draw]
    rows, rng = table_of(system, n), np.random.default_rng(draw)
    agree([rows[int(k)] for k in rng.choice(len(rows), 5, replace=False)], system, n, draw)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("system", "n"), GROUPS, ids=[name for name, _ in GROUPS])
def test_every_row_of_the_table(system: str, n: int, part: int) -> None:
    agree(table_of(system, n)[part::PARTS], system, n, part)
