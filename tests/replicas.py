"""What collectives compute, in NumPy and in the order that docs state: the witness beside all engines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tiles import Graph, find_system
from tiles.numerics.dtypes import to_jax
from tiles.target import System

OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def small_system(name: str = "dss8440", num_tiles: int = 8) -> System:
    """Return a system of chips with few tiles, whose links are as they are."""
    system = find_system(name)
    return dataclasses.replace(system, chip=system.chip.replace(num_tiles=num_tiles))


def replicated(*axes: tuple[str, int], name: str = "dss8440", num_tiles: int = 8) -> Graph:
    """Return an empty graph with replicas on a small system."""
    graph = Graph(small_system(name, num_tiles))
    for axis, size in axes:
        graph.replicate(axis, size)
    return graph


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return values whose sums depend on their order where they are floats."""
    if dtype == "bool":
        return rng.random(shape) < 0.6
    if "float" in dtype:
        return (rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3, shape)).astype(to_jax(dtype))
    return rng.integers(0, 2**31 - 1, shape).astype(to_jax(dtype))


def one_ring(combine: Callable[..., Any], parts: list[np.ndarray], last: int, step: int = 1) -> np.ndarray:
    """Return one fragment's sum on its way round to member ``last``, each member adding its own to what arrives."""
    n = len(parts)
    total = parts[(last + step) % n]
    for k in range(2, n + 1):
        total = combine(parts[(last + step * k) % n], total)
    return total


def turned(n: int) -> list[int]:
    """Return the members of a folded ring in the order in which it goes round."""
    return [*range(0, n, 2), *range(n - 1 - n % 2, 0, -2)]


def reduced(
    x: np.ndarray, operation: str, algorithm: str, inner: int = 0, is_folded: bool = False
) -> np.ndarray:
    """Return ``x``, ``[members, elements]``, combined over members; fragment i belongs to the i-th on the ring."""
    n, size = x.shape
    combine = OPERATIONS[operation]
    if is_folded:
        near = inner or n
        x = x[[group + i for group in range(0, n, near) for i in turned(near)]]
    if algorithm in ("halving_doubling", "paired_halving"):
        power = 1 << n.bit_length() - 1
        if n > power:
            x = np.concatenate([combine(x[: n - power], x[power:]), x[n - power : power]])
        while len(x) > 1:
            x = combine(x[::2], x[1::2])
        return x[0]
    each = -(-size // n)
    each += each % 2 if algorithm == "two_rings" else 0
    result = np.empty_like(x[0])
    for element in range(size):
        fragment, place = divmod(element, each)
        values = [x[i, element : element + 1] for i in range(n)]
        if algorithm == "hierarchical":
            outer = n // inner
            near, far = divmod(fragment, outer)
            groups = [one_ring(combine, values[g * inner : (g + 1) * inner], near) for g in range(outer)]
            result[element] = one_ring(combine, groups, far)[0]
        else:
            up = algorithm == "ring" or place < each // 2
            result[element] = one_ring(combine, values, fragment, 1 if up else -1)[0]
    return result
