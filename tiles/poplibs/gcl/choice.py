"""Which algorithm a reduction takes: closed forms of what each costs on the links of the graph's system.

A step is an exchange between IPUs, and on every tile the choice of a fragment, a sum and two counters. What a step
takes on tiles besides the links is ASSUMED, from compiled programs: the forms rank algorithms, the executable's costs
say what the one that was taken costs.
"""

from __future__ import annotations

import math

from tiles.errors import InvalidGraph
from tiles.graph import Graph, Permutation, Shift, Swap
from tiles.numerics.dtypes import itemsize
from tiles.plan.links import permutation_cycles
from tiles.poplibs.gcl.codelets import ALGORITHMS

STEP_CYCLES = 2500
"""Of one step beside the links: three to five compute sets with their exchanges and syncs on the chip."""
TILE_BYTES_PER_CYCLE = 2
"""That a tile takes through a step: choosing, adding, sending and receiving (ASSUMED)."""


def inner_members(graph: Graph, axes: tuple[str, ...]) -> int:
    """Return how many neighbours ``hierarchical`` reduces first: a machine's, 0 where it does not cut the group so."""
    assert graph.system is not None
    members, machine = graph.replicas.size(axes), graph.system.ipus_per_machine
    return machine if 1 < machine < members and members % machine == 0 else 0


def choose(graph: Graph, axes: tuple[str, ...], dtype: str, elements: int, scatters: bool) -> str:
    """Return the cheapest algorithm that fits the group.

    Args:
      graph: with replicas.
      axes: of the group.
      dtype: of the operand.
      elements: of the operand.
      scatters: whether only the owner of a fragment needs it.
    """
    legal = [a for a in ALGORITHMS if refusal(graph, axes, a, scatters) is None]
    return min(
        legal, key=lambda a: (cycles(graph, axes, a, elements * itemsize(dtype), scatters), legal.index(a))
    )


def refusal(graph: Graph, axes: tuple[str, ...], algorithm: str, scatters: bool) -> tuple[str, str] | None:
    """Return why an algorithm does not fit a group, and what does; None where it fits."""
    members = graph.replicas.size(axes)
    if algorithm not in ALGORITHMS:
        return f"no algorithm {algorithm!r}", ", ".join(ALGORITHMS)
    if algorithm == "halving_doubling" and members & (members - 1):
        return f"halving_doubling of {members} replicas", "a power of two"
    if algorithm == "hierarchical" and scatters:
        return "hierarchical leaves fragments in another order than the replicas'", "ring, two_rings"
    if algorithm == "hierarchical" and not inner_members(graph, axes):
        assert graph.system is not None
        return (
            f"hierarchical of {members} replicas",
            f"a multiple of the {graph.system.ipus_per_machine} IPUs of a machine of {graph.system.name}, more than one",
        )
    return None


def require(graph: Graph, axes: tuple[str, ...], algorithm: str, scatters: bool, location: str) -> None:
    """Raise InvalidGraph where an algorithm does not fit a group."""
    found = refusal(graph, axes, algorithm, scatters)
    if found is not None:
        raise InvalidGraph(found[0], expected=found[1], location=location or None)


def cycles(graph: Graph, axes: tuple[str, ...], algorithm: str, size_bytes: int, scatters: bool) -> float:
    """Return what an algorithm takes for an operand of so many bytes; see the module."""
    n, rounds = graph.replicas.size(axes), 1 if scatters else 2
    fragment = size_bytes / n
    if algorithm == "ring":
        return rounds * (n - 1) * _step(graph, axes, (Shift(1),), fragment)
    if algorithm == "two_rings":
        return rounds * (n - 1) * (_step(graph, axes, (Shift(1), Shift(-1)), fragment / 2) + STEP_CYCLES / 2)
    if algorithm == "halving_doubling":
        halves = [1 << k for k in range(int(math.log2(n)))]
        return rounds * sum(_step(graph, axes, (Swap(d),), fragment * d) for d in halves)
    inner = inner_members(graph, axes)
    local = _step(graph, axes, (Shift(1, 1, inner),), size_bytes / inner)
    return rounds * (
        (inner - 1) * local + (n // inner - 1) * _step(graph, axes, (Shift(1, inner),), fragment)
    )


def _step(
    graph: Graph, axes: tuple[str, ...], permutations: tuple[Permutation, ...], flow_bytes: float
) -> float:
    assert graph.system is not None
    links = permutation_cycles(graph.system, graph.replicas, axes, permutations, math.ceil(flow_bytes))
    on_tile = len(permutations) * flow_bytes / graph.target.num_tiles / TILE_BYTES_PER_CYCLE
    return links + on_tile + STEP_CYCLES
