"""Which algorithm a reduction takes: closed forms of what each costs on the links of the graph's system.

A step is an exchange between IPUs, and on every tile the choice of a fragment, a sum and two counters. What a step
takes on tiles besides the links is ASSUMED, from compiled programs: the forms rank algorithms, the executable's costs
say what the one that was taken costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tiles.errors import InvalidGraph
from tiles.graph import Graph, Permutation, Replicas, Shift, swap
from tiles.numerics.dtypes import itemsize
from tiles.plan.links import permutation_cycles
from tiles.poplibs.gcl.codelets import ALGORITHMS, HALVING
from tiles.target import System
from tiles.target.routes import group_size

STEP_CYCLES = 2500
"""Of one step beside the links: three to five compute sets with their exchanges and syncs on the chip."""
GATHERING = ("two_rings", "doubling")
"""Ways to gather."""
LEAST_BYTES = 8
"""Of an operand on a tile, down to which more tiles take part."""
FRAGMENT_BYTES = 128
"""Of a fragment on a tile, at the least, see ``linear_layout``."""
WORTH = 1.1
"""Of the fewest cycles: halving has no further stage, which is code on every tile, for less than that (ASSUMED)."""
JOINED_CYCLES = 500
"""Of an operand that is put beside others and taken out again: two copies within the chip, beside their words (ASSUMED)."""
TILE_BYTES_PER_CYCLE = 2
"""That a tile takes through a step: choosing, adding, sending and receiving (ASSUMED)."""
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "permute")
"""What ``predicted_cycles`` knows."""
LARGE_BYTES = 1 << 24
"""Of an operand whose all-reduce the links' rates decide."""
WIDEST = 3
"""Bits of members' places that one stage of halving covers at the most: eight members exchange all pairs at once."""
UNIT_BYTES = 1 << 20
"""By which rates are read off: cycles grow in proportion to bytes."""
MOST_ROWS_BITS = 4
"""Of the number of rows that a buffer of scattering has at the most: looking up more costs a tile more than spreading what is left
over the tiles once more (64 to 1,024 members take 0.6 to 1 of the cycles that one group of stages does; 16 and fewer no less)."""
SHORT_BYTES = 8 << 10
"""Of a fragment up to which that is so; of longer ones links take the time (1 % less in groups, for more steps)."""
LONG_ROWS_BITS = 12
"""Of the number of rows of longer fragments, which all tiles hold."""
MOST_SHIFTS = 64
"""Shifts of an all-to-all whose routes are followed; more are taken to be as long as half the way round."""


def inner_members(graph: Graph, axes: tuple[str, ...], size_bytes: int = 1 << 20) -> int:
    """Return how many neighbours ``hierarchical`` reduces first, 0 where nothing cuts the group so.

    A pair, those of a machine, or those that links between IPUs join: whichever is cheapest.
    """
    best, found = math.inf, 0
    members = graph.replicas.size(axes)
    for inner in sorted(_inners(graph, axes), key=lambda inner: (_rings_steps(inner, members), inner)):
        if STEP_CYCLES * _rings_steps(inner, members) >= best:
            break  # without following the routes of long rings
        taken = _hierarchical(graph, axes, size_bytes, inner)
        if taken < best or not found:
            best, found = taken, inner
    return found


def _inners(graph: Graph, axes: tuple[str, ...]) -> list[int]:
    """Return how many neighbours may be reduced first; none where nothing cuts the group so."""
    assert graph.system is not None
    members = graph.replicas.size(axes)
    sizes = graph.system.ipus_per_machine, group_size(graph.system)
    found = dict.fromkeys((2, *(size // graph.ipus_per_replica for size in sizes)))
    return [inner for inner in found if 1 < inner < members and members % inner == 0]


def _rings_steps(inner: int, members: int) -> int:
    """Return the steps of an all-reduce by rings among neighbours and across."""
    return 2 * (inner - 1 + members // inner - 1)


def halving_radices(graph: Graph, axes: tuple[str, ...], size_bytes: int) -> tuple[int, ...]:
    """Return how many neighbours exchange all pairs of their fragments at once, stage by stage, nearest first.

    Each is a power of two, and their product is into how many fragments ``halving_doubling`` cuts, 1 to the members:
    what is left of members is exchanged whole. The fewest stages that are about as fast as any.
    """
    return _halving(graph, axes, size_bytes)[1]


def scattering_radices(graph: Graph, axes: tuple[str, ...], size_bytes: int) -> tuple[int, ...]:
    """Return ``halving_radices`` of as many fragments as members, for operands of so many bytes together."""
    return _halving(graph, axes, size_bytes, scatters=True)[1]


def stage_groups(radices: Sequence[int], fragment_bytes: int) -> list[tuple[int, ...]]:
    """Return stages of scattering in groups, nearest first: one, or of more rows than tiles hold several about alike."""
    bits = math.prod(radices).bit_length() - 1
    most = MOST_ROWS_BITS if fragment_bytes <= SHORT_BYTES else LONG_ROWS_BITS
    count = max(1, -(-bits // most))
    groups: list[tuple[int, ...]] = []
    own: tuple[int, ...] = ()
    for radix in radices:
        if own and math.prod((*own, radix)).bit_length() - 1 > -(-bits // count):
            groups.append(own)
            own = ()
        own = (*own, radix)
    return [*groups, own] if own else groups


def choose(graph: Graph, axes: tuple[str, ...], dtype: str, elements: int, scatters: bool) -> str:
    """Return the cheapest algorithm that fits the group.

    Args:
      graph: with replicas.
      axes: of the group.
      dtype: of the operand.
      elements: of the operand.
      scatters: whether only the owner of a fragment needs it.
    """
    size_bytes, best, found = elements * itemsize(dtype), math.inf, ""
    for algorithm in sorted(ALGORITHMS, key=lambda a: (_least(graph, axes, a), ALGORITHMS.index(a))):
        if _least(graph, axes, algorithm) >= best or refusal(graph, axes, algorithm, scatters):
            continue
        taken = cycles(graph, axes, algorithm, size_bytes, scatters)
        if taken < best:
            best, found = taken, algorithm
    return found


def _least(graph: Graph, axes: tuple[str, ...], algorithm: str) -> float:
    """Return a bound of an algorithm's cycles from its steps alone: routes need not be followed for what is too long."""
    n = graph.replicas.size(axes)
    halving = math.log2(n)
    steps = {
        "halving_doubling": halving,
        "paired_halving": halving + 1,
        "hierarchical": min((_rings_steps(inner, n) for inner in _inners(graph, axes)), default=0),
    }
    return STEP_CYCLES * steps.get(algorithm, n - 1)


def refusal(
    graph: Graph, axes: tuple[str, ...], algorithm: str, scatters: bool
) -> tuple[str, str, str | None] | None:
    """Return why an algorithm does not fit a group, what does, and which to try; None where it fits."""
    members = graph.replicas.size(axes)
    is_power = not members & (members - 1)
    rings = "algorithm='ring', 'two_rings', or None for the cheapest that fits"
    if algorithm not in ALGORITHMS:
        return f"no algorithm {algorithm!r}", ", ".join(ALGORITHMS), None
    what = f"{algorithm} of {members:,} replicas"
    if algorithm == "halving_doubling" and not is_power:
        return what, "a power of two", rings if scatters else "algorithm='paired_halving', or None"
    if algorithm == "paired_halving" and scatters:
        return "paired_halving leaves fragments with some of the replicas only", "ring, two_rings", rings
    if algorithm == "paired_halving" and is_power:
        return what, "replicas whose number is no power of two", "algorithm='halving_doubling', or None"
    if algorithm == "hierarchical" and scatters:
        return "hierarchical leaves fragments in another order than the replicas'", "ring, two_rings", rings
    if algorithm == "hierarchical" and not _inners(graph, axes):
        return what, "groups of equal size, of more than one member, and several", rings
    return None


def require(graph: Graph, axes: tuple[str, ...], algorithm: str, scatters: bool, location: str) -> None:
    """Raise InvalidGraph where an algorithm does not fit a group."""
    found = refusal(graph, axes, algorithm, scatters)
    if found is not None:
        raise InvalidGraph(found[0], expected=found[1], location=location or None, try_=found[2])


def together(graph: Graph, axes: tuple[str, ...], sizes_bytes: Sequence[int]) -> tuple[int, ...]:
    """Return which operands of an all-reduce are cheaper combined as one array than each for itself, in order.

    The smallest come first: another one joins while that costs less than its own exchanges would.
    """
    if len(sizes_bytes) < 2 or graph.replicas.size(axes) == 1:
        return ()
    chosen: list[int] = []
    total, spent = 0, 0.0
    for number in sorted(range(len(sizes_bytes)), key=lambda n: (sizes_bytes[n], n)):
        size = sizes_bytes[number]
        copies = 2 * (total + size) / graph.target.num_tiles / graph.target.exchange_bytes_per_cycle
        joined = predicted_cycles(graph, "all_reduce", axes, total + size) + copies
        joined += JOINED_CYCLES * (len(chosen) + 1)
        alone = predicted_cycles(graph, "all_reduce", axes, size)
        if size and (not chosen or joined - spent < alone):
            chosen.append(number)
            total, spent = total + size, joined if len(chosen) > 1 else alone
    return tuple(sorted(chosen)) if len(chosen) > 1 else ()


def latency_bytes(graph: Graph, axes: tuple[str, ...]) -> int:
    """Return the bytes of an operand whose words take an all-reduce as long as what it takes whatever its size.

    0 where a link's latency or rate is not known.
    """
    least, most = (predicted_cycles(graph, "all_reduce", axes, size) for size in (1, LARGE_BYTES))
    return int(LARGE_BYTES * least / (most - least)) if least < most < math.inf else 0


def gathering(
    graph: Graph, axes: tuple[str, ...], algorithm: str | None, size_bytes: int, location: str
) -> str:
    """Return the algorithm of an all-gather of operands of so many bytes: the one given, else the cheaper one.

    Raises:
      InvalidGraph: an unknown one, or doubling of members that are no power of two.
    """
    n = graph.replicas.size(axes)
    doubles = not n & (n - 1)
    if algorithm is not None:
        if algorithm not in GATHERING:
            what, expected = f"no algorithm {algorithm!r} of an all_gather", ", ".join(GATHERING)
            raise InvalidGraph(what, expected=expected, location=location or None)
        if algorithm == "doubling" and not doubles:
            raise InvalidGraph(
                f"doubling of {n:,} replicas",
                expected="a power of two",
                location=location or None,
                try_="algorithm='two_rings', or None",
            )
        return algorithm
    return _gathering(graph, axes, size_bytes)[0]


def _gathering(graph: Graph, axes: tuple[str, ...], size_bytes: int) -> tuple[str, float]:
    """Return the cheaper algorithm of an all-gather, and its cycles."""
    n = graph.replicas.size(axes)
    if n == 1:
        return "two_rings", 0.0
    doubling = math.inf
    if not n & (n - 1):
        doubling = _halving(graph, axes, n * size_bytes, scatters=True)[0] / 2
    if doubling <= STEP_CYCLES * (n - 1):
        return "doubling", doubling  # without following the ring's routes
    ring = ring_of(graph, axes)
    both = _step(graph, axes, (ring, replace(ring, by=-1)), size_bytes / 2) + STEP_CYCLES / 2
    rings = (n - 1) * both
    return ("doubling", doubling) if doubling <= rings else ("two_rings", rings)


def ring_of(graph: Graph, axes: tuple[str, ...], extent: int = 0) -> Shift:
    """Return the ring of a group, or of ``extent`` neighbours: plain or folded, whichever has the shorter hops."""
    extent = extent or graph.replicas.size(axes)
    plain = Shift(1, 1, extent)
    if extent < 4 or extent % 2:
        return plain
    turned = Shift(1, 1, extent, True)
    return min((plain, turned), key=lambda ring: _step(graph, axes, (ring,), 1024))


def predicted_cycles(graph: Graph, collective: str, axes: tuple[str, ...], size_bytes: int) -> float:
    """Return what a collective is about to take by the closed forms here, before any program is made.

    Args:
      graph: with replicas.
      collective: "all_reduce", "reduce_scatter", "all_gather", "all_to_all" or "permute".
      axes: of the group.
      size_bytes: of the operand on one replica.

    Raises:
      InvalidGraph: no such collective or axis.
    """
    n = graph.replicas.size(axes)
    if collective not in COLLECTIVES:
        raise InvalidGraph(f"no collective {collective!r}", expected=", ".join(COLLECTIVES))
    if n == 1 or not size_bytes:
        return 0.0
    if collective in ("all_reduce", "reduce_scatter"):
        scatters = collective == "reduce_scatter"
        algorithm = choose(graph, axes, "uint8", size_bytes, scatters)
        return cycles(graph, axes, algorithm, size_bytes, scatters)
    if collective == "all_gather":
        return _gathering(graph, axes, size_bytes)[1]
    if collective == "all_to_all":
        shifts = [Shift(by) for by in range(1, n)] if n <= MOST_SHIFTS else [Shift(n // 2)] * MOST_SHIFTS
        return _step(graph, axes, tuple(shifts), size_bytes / n * (n - 1) / len(shifts))
    return _step(graph, axes, (ring_of(graph, axes),), size_bytes)


def cycles(graph: Graph, axes: tuple[str, ...], algorithm: str, size_bytes: int, scatters: bool) -> float:
    """Return what an algorithm takes for an operand of so many bytes; see the module."""
    n, rounds = graph.replicas.size(axes), 1 if scatters else 2
    fragment = size_bytes / n
    if algorithm == "ring":
        return rounds * (n - 1) * _step(graph, axes, (ring_of(graph, axes),), fragment)
    if algorithm == "two_rings":
        ring = ring_of(graph, axes)
        both = ring, replace(ring, by=-1)
        return rounds * (n - 1) * (_step(graph, axes, both, fragment / 2) + STEP_CYCLES / 2)
    if algorithm in HALVING:
        return _halving(graph, axes, size_bytes, scatters)[0] / (2 if scatters else 1)
    return _hierarchical(graph, axes, size_bytes, inner_members(graph, axes, size_bytes))


def _halving(
    graph: Graph, axes: tuple[str, ...], size_bytes: float, scatters: bool = False
) -> tuple[float, tuple[int, ...]]:
    """Return what halving and doubling take, and the radices of their stages.

    The fewest stages that are about as fast as any; where the operand is scattered, to one fragment for each member.
    """
    links, n = _links(graph, axes), graph.replicas.size(axes)
    bits = n.bit_length() - 1
    beyond = 0.0
    if n & (n - 1):  # members beyond the last power of two: to their partners, and back
        tiles = _tiles(graph, size_bytes, FRAGMENT_BYTES)
        beyond = 2 * links.cycles(bits, 1, size_bytes, tiles)
    by_stages: list[dict[int, tuple[float, tuple[int, ...]]]] = [{0: (0.0, ())}]
    found: list[tuple[float, tuple[int, ...]]] = []
    while by_stages[-1]:
        most = {bit: path for bit, path in by_stages[-1].items() if bit == bits or not scatters}
        whole = [
            (taken + _whole(graph, links, bits, bit, size_bytes), path) for bit, (taken, path) in most.items()
        ]
        found += [min(whole)] if whole else []
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        for bit, (taken, path) in by_stages[-1].items():
            for more in range(1, links.widest(bit, bits) + 1):
                if not scatters and size_bytes < (FRAGMENT_BYTES << bit + more):
                    break
                each = size_bytes / (1 << bit + more)
                stage = 2 * links.cycles(bit, more, each, _tiles(graph, each, FRAGMENT_BYTES))
                further = taken + stage, (*path, 1 << more)
                following[bit + more] = min(further, following.get(bit + more, further))
        by_stages.append(following)
    least = min(taken for taken, _ in found)
    taken, path = next(each for each in found if each[0] <= WORTH * least)
    return beyond + taken, path


def _whole(graph: Graph, links: _Links, bits: int, bit: int, size_bytes: float) -> float:
    """Return what stages from one on take in which a fragment is exchanged whole, two by two."""
    piece = size_bytes / (1 << bit)
    tiles = _tiles(graph, piece, FRAGMENT_BYTES)
    return links.in_turn(bit, bits, piece, tiles)


def _hierarchical(graph: Graph, axes: tuple[str, ...], size_bytes: int, inner: int) -> float:
    n = graph.replicas.size(axes)
    near = _step(graph, axes, (ring_of(graph, axes, inner),), size_bytes / inner)
    far = _step(graph, axes, (Shift(1, inner, n // inner),), size_bytes / n)
    return 2 * ((inner - 1) * near + (n // inner - 1) * far)


def _tiles(graph: Graph, size_bytes: float, least: int) -> float:
    """Return how many tiles an array takes, with so many bytes on each at the least."""
    return min(graph.target.num_tiles, max(1, size_bytes // least))


def _step(
    graph: Graph,
    axes: tuple[str, ...],
    permutations: tuple[Permutation, ...],
    flow_bytes: float,
    tiles: float = 0,
) -> float:
    assert graph.system is not None
    size_bytes = math.ceil(flow_bytes)
    links = permutation_cycles(graph.system, graph.replicas, axes, permutations, size_bytes, _shares(graph))
    return links + _on_tile(len(permutations) * flow_bytes, tiles or _tiles(graph, flow_bytes, LEAST_BYTES))


def _on_tile(size_bytes: float, tiles: float) -> float:
    return size_bytes / tiles / TILE_BYTES_PER_CYCLE + STEP_CYCLES


def _shares(graph: Graph) -> tuple[int, ...]:
    """Return the shares of a replica's IPUs: of what lies across IPUs, as of what lies on the first."""
    return (*[0] * graph.ipu, 1)


def _links(graph: Graph, axes: tuple[str, ...]) -> _Links:
    assert graph.system is not None
    return _links_of(graph.system, graph.replicas, axes, _shares(graph))


@lru_cache(maxsize=64)
def _links_of(system: System, replicas: Replicas, axes: tuple[str, ...], shares: tuple[int, ...]) -> _Links:
    return _Links(system, replicas, axes, shares)


class _Links:
    """What stages of halving take on links, known after their routes were followed once.

    Args:
      system: the system.
      replicas: on it.
      axes: of the group.
      shares: as in ``permutation_cycles``.
    """

    def __init__(
        self, system: System, replicas: Replicas, axes: tuple[str, ...], shares: tuple[int, ...]
    ) -> None:
        """Start without any."""
        self._where = system, replicas, axes
        self._shares, self._members = shares, replicas.size(axes)
        self._near = max(1, group_size(system) // (replicas.ipus_each * replicas.strides(axes)[-1]))
        self._known: dict[tuple[int, int], tuple[float, float]] = {}
        self._from: dict[int, list[tuple[float, float]]] = {}

    def widest(self, bit: int, bits: int) -> int:
        """Return how many bits of members' places one stage may cover: more than one among those near each other."""
        near = self._near.bit_length() - 1
        return min(bits - bit, max(1, min(WIDEST, near - bit)))

    def cycles(self, bit: int, more: int, size_bytes: float, tiles: float) -> float:
        """Return what the members whose places agree in all but ``more`` bits take to exchange all pairs.

        Args:
          bit: the first of the bits.
          more: how many.
          size_bytes: that each sends to each other one.
          tiles: that these lie on.
        """
        fixed, each = self._figures(bit, more)
        return fixed + each * size_bytes + _on_tile(((1 << more) - 1) * size_bytes, tiles)

    def in_turn(self, first: int, bits: int, size_bytes: float, tiles: float) -> float:
        """Return what members take that exchange in pairs, differing in one bit, from ``first`` to the last, one by one.

        Args:
          first: of the bits.
          bits: of a place.
          size_bytes: that each sends at once.
          tiles: that these lie on.
        """
        if bits not in self._from:
            sums = [(0.0, 0.0)]
            for bit in reversed(range(bits)):
                fixed, each = self._figures(bit, 1)
                sums.append((sums[-1][0] + fixed, sums[-1][1] + each))
            self._from[bits] = sums[::-1]
        fixed, each = self._from[bits][first]
        return fixed + each * size_bytes + (bits - first) * _on_tile(size_bytes, tiles)

    def _figures(self, bit: int, more: int) -> tuple[float, float]:
        """Return the cycles of an exchange whatever is sent, and those of a byte."""
        if (bit, more) not in self._known:
            others = [swap(k << bit, self._members) for k in range(1, 1 << more)]
            none, some = (
                permutation_cycles(*self._where, others, size, self._shares) for size in (0, UNIT_BYTES)
            )
            self._known[bit, more] = none, (some - none) / UNIT_BYTES if some < math.inf else math.inf
        return self._known[bit, more]
