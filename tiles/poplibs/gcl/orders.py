"""In which order collectives combine: functions of arrays whose leading axis counts the members of a group.

Steps on tiles and these functions must give the same bits, so this is where an algorithm's order is stated. ``x[i]`` is
member i's contribution, indices are taken modulo the members, and every sum is "the member's own + what arrived".
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tiles._jax_compat import fori_loop, optimization_barrier, pad

OPERATIONS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "add": lax.add,
    "mul": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
}
"""What collectives combine by."""
FUNCTIONS = {
    "add": "add",
    "mul": "multiply",
    "max": "maximum",
    "min": "minimum",
    "and": "and",
    "or": "or",
    "xor": "xor",
}
"""By operation the row of the function table that vertices compute."""
UNROLLED = 32
"""Members up to which sums are written out; more are a loop."""


def fragment_elements(elements: int, parts: int, algorithm: str) -> int:
    """Return the elements of each of ``parts`` fragments; two rings take an even number."""
    each = -(-elements // parts)
    return each + each % 2 if algorithm == "two_rings" else each


def fragments(x: jax.Array, parts: int, algorithm: str) -> jax.Array:
    """Return ``[members, *shape]`` as ``[members, parts, elements]``, filled up with zeros."""
    flat = x.reshape(x.shape[0], -1)
    each = fragment_elements(flat.shape[1], parts, algorithm)
    return pad(flat, ((0, 0), (0, each * parts - flat.shape[1]))).reshape(x.shape[0], parts, each)


def joined(parts: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return fragments ``[parts, elements]`` as one array of a shape, without what filled them up."""
    return parts.reshape(-1)[: int(np.prod(shape, dtype=np.int64))].reshape(shape)


def ring(operation: str, x: jax.Array, direction: int = 1) -> jax.Array:
    """Return the sums of all fragments, ``[n, elements]`` of ``[n, n, elements]``, as a ring gives them.

    Fragment f is summed on its way to member f: ``x[f] + (x[f-1] + (... + (x[f+2] + x[f+1])))`` in direction 1, the
    mirror image in direction -1. Source: the order of PopLibs' rings (lib/popops/ReplicatedCollectives.cpp until 2021).
    """
    n = x.shape[0]
    own = np.arange(n)
    start = x[(own + direction) % n, own]
    if n == 1:
        return start
    return _folded(operation, start, lambda j: x[(own + direction * j) % n, own], range(2, n + 1))


def halves(operation: str, x: jax.Array) -> jax.Array:
    """Return the sum of ``[n, ...]`` by halving: ``x[0] + x[1]``, then pairs of pairs, and so on.

    Where n is no power of two, members beyond the last one p below n are first added to the first: ``x[i] + x[p + i]``.
    Which of the two is the member's own makes no difference: ``a + b`` and ``b + a`` have the same bits.
    """
    power = 1 << x.shape[0].bit_length() - 1
    more = x.shape[0] - power
    if more:
        first = optimization_barrier(OPERATIONS[operation](x[:more], x[power:]))
        x = jnp.concatenate([first, x[more:power]])
    while x.shape[0] > 1:
        x = optimization_barrier(OPERATIONS[operation](x[::2], x[1::2]))
    return x[0]


def _folded(
    operation: str, start: jax.Array, term: Callable[[int | jax.Array], jax.Array], terms: range
) -> jax.Array:
    """Return ``term(j) + ...`` over all terms, each with its own rounding: XLA may else keep float16 sums in float32."""
    combine = OPERATIONS[operation]
    if len(terms) > UNROLLED:

        def step(j: jax.Array, total: jax.Array) -> jax.Array:
            return combine(term(j), total)

        return fori_loop(terms.start, terms.stop, step, start)
    total, narrow = start, start.dtype.itemsize < 4 and jnp.issubdtype(start.dtype, jnp.floating)
    for j in terms:
        total = combine(term(j), total)
        total = optimization_barrier(total) if narrow else total
    return total
