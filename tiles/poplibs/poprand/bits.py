"""Random bits of any shape from a state of key and counter, as XLA's ``rng_bit_generator`` defines them.

Every element's counter follows from its place, so cells need nothing of each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles.errors import InvalidGraph
from tiles.graph import (
    Affine,
    Cell,
    Codelet,
    Cycles,
    Extents,
    Graph,
    IndexMap,
    OpForm,
    Plan,
    Tensor,
    register,
)
from tiles.numerics.dtypes import itemsize, to_jax, unsigned_of
from tiles.poplibs.forms import map_form
from tiles.poplibs.popops.elementwise import map
from tiles.poplibs.popops.expr import arg, call
from tiles.poplibs.popops.map import access_grains
from tiles.poplibs.poprand.generators import joined, philox, threefry
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target

ALGORITHMS = ("threefry", "philox")
SOURCE = "integer instructions of the generator's rounds, one slot each; a 32-bit product's halves 12 slots"
_SLOTS_PER_BLOCK = {"threefry": 20 * 5 + 5 * 4, "philox": 10 * (2 * 12 + 6)}
_WORDS_PER_BLOCK = {"threefry": 2, "philox": 4}


@register
@dataclass(frozen=True)
class RandomBits(Codelet):
    """Fill a cell with random bits.

    Operands are the key and the counter, uint64 of one element each.

    Args:
      algorithm: threefry or philox.
      dtype: dtype of the result; one narrower than 32 bits keeps the lower bits of a word.

    Raises:
      InvalidGraph: an unknown algorithm, or booleans.
    """

    name: ClassVar[str] = "poprand.RandomBits"

    algorithm: str
    dtype: str

    def __post_init__(self) -> None:
        """Check algorithm and dtype."""
        if self.algorithm not in ALGORITHMS or self.dtype == "bool":
            raise InvalidGraph(
                f"no random bits of {self.dtype} by {self.algorithm}", expected=", ".join(ALGORITHMS)
            )

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the cell's bits."""
        key, counter = (x.reshape(()) for x in operands)
        words = (
            self._threefry(cell, key, counter)
            if self.algorithm == "threefry"
            else self._philox(cell, key, counter)
        )
        bits = words.astype(unsigned_of(self.dtype))
        return (lax.bitcast_convert_type(bits, to_jax(self.dtype)),)

    def _threefry(self, cell: Cell, key: Array, counter: Array) -> Array:
        """Return words: neighbours along one dimension share a counter, except 64-bit ones."""
        if itemsize(self.dtype) == 8:
            return joined(*threefry(key, counter + _places(cell, None)))
        split = paired_dimension(cell.form.shape)
        low, high = threefry(key, counter + _places(cell, split))
        if split is None:
            return low
        lane = _along(cell, split) % np.uint64(2)
        return jnp.where(lane == 0, low, high)

    def _philox(self, cell: Cell, key: Array, counter: Array) -> Array:
        """Return words: four (or two 64-bit ones) in row-major order share a counter of 128 bits.

        A state of two words has no upper half of the counter: XLA takes the key for it.
        """
        each = 2 if itemsize(self.dtype) == 8 else 4
        place = _places(cell, None)
        low = counter + place // np.uint64(each)
        high = key + (low < counter).astype(jnp.uint64)
        words = philox(key, low, high)
        values = [joined(words[0], words[1]), joined(words[2], words[3])] if each == 2 else words
        lane = place % np.uint64(each)
        result = values[0]
        for number, value in enumerate(values[1:], 1):
            result = jnp.where(lane == number, value, result)
        return result

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the slots of the blocks that the cell's words need, and of storing them."""
        words = extents.results * max(1, itemsize(self.dtype) // 4)
        blocks = -(-words // _WORDS_PER_BLOCK[self.algorithm])
        slots = 22 + -(-blocks // target.workers_per_tile) * (
            _SLOTS_PER_BLOCK[self.algorithm] + 2 * _WORDS_PER_BLOCK[self.algorithm]
        )
        return Cycles(target.worker_issue_interval_cycles * slots, Basis.ASSUMED, SOURCE)

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer whole 64-bit accesses along the innermost dimension."""
        return access_grains(form, (self.dtype,), target)


def paired_dimension(shape: tuple[int, ...]) -> int | None:
    """Return the dimension whose neighbours share a threefry counter: the first even, else the longest."""
    if not shape:
        return None
    even = [d for d, size in enumerate(shape) if size % 2 == 0]
    return even[0] if even else shape.index(max(shape))


def _along(cell: Cell, d: int) -> Array:
    """Return the index along dimension ``d`` of every point, uint64, size 1 along the others."""
    shape = [1] * len(cell.sizes)
    shape[d] = cell.sizes[d]
    index = lax.iota(jnp.int32, cell.sizes[d]) + cell.origin[d]
    return index.astype(jnp.uint64).reshape(shape)


def _places(cell: Cell, paired: int | None) -> Array:
    """Return every point's row-major number, uint64; ``paired`` counts two neighbours as one."""
    total, stride = jnp.zeros(cell.sizes, jnp.uint64), 1
    for d in reversed(range(len(cell.sizes))):
        index, size = _along(cell, d), cell.form.shape[d]
        if d == paired:
            index, size = index // np.uint64(2), -(-size // 2)
        total = total + index * np.uint64(stride)
        stride *= size
    return total


def random_bits(
    graph: Graph,
    state: Tensor,
    shape: tuple[int, ...],
    dtype: str,
    algorithm: str,
    plan: Plan | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Return the state after, and random bits.

    Args:
      graph: where to add it.
      state: a key and a counter, uint64 ``[2]``.
      shape: shape of the bits.
      dtype: their dtype.
      algorithm: threefry or philox.
      plan: how to cut the bits, instead of searching.
      **options: as in ``place``.

    Raises:
      InvalidGraph: another state, an unknown algorithm, or booleans.
    """
    if state.shape != (2,) or state.dtype != "uint64":
        raise InvalidGraph(f"a state of {state.dtype} {state.shape}", expected="uint64 (2,)")
    component = [IndexMap((Affine((), number),)) for number in range(2)]
    form = map_form(shape, component)
    codelet = RandomBits(algorithm, dtype)
    name = options.pop("name", "random_bits")
    (bits,) = place(graph, codelet, form, [state, state], (dtype,), name, plan=plan, **options)
    count = call("multiply", call("iota", dim=0, dtype="uint64"), _blocks(shape, dtype, algorithm))
    after = map(graph, call("add", arg(0), count), [state], name="random_state", **options)
    return after, bits


def _blocks(shape: tuple[int, ...], dtype: str, algorithm: str) -> int:
    """Return how many counters bits of a shape use up."""
    elements = math.prod(shape)
    if algorithm == "philox":
        return -(-elements * (2 if itemsize(dtype) == 8 else 1) // 4)
    split = paired_dimension(shape)
    if itemsize(dtype) == 8 or split is None:
        return elements
    return elements // max(1, shape[split]) * -(-shape[split] // 2)
