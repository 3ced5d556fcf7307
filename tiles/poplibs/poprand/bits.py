"""Random bits of any shape from a state of key and counter, as XLA's ``rng_bit_generator`` defines them.

Every element's counter follows from its place, so cells need nothing of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles.errors import InvalidGraph, NoTileCode, OutOfRegisters
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
    Site,
    Tensor,
    VertexCode,
    code_cycles,
    identity_map,
    register,
    site_of,
)
from tiles.numerics.dtypes import itemsize, to_jax, unsigned_of
from tiles.poplibs.forms import map_form
from tiles.poplibs.popops.elementwise import map
from tiles.poplibs.popops.expr import arg, call, cast, compare, select
from tiles.poplibs.popops.map import access_grains
from tiles.poplibs.poprand.bits_code import bits_code, bits_scratch_bytes
from tiles.poplibs.poprand.generators import halves, joined, philox, threefry
from tiles.poplibs.poprand.numbering import BLOCK_WORDS, Numbering, paired_dimension
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target

ALGORITHMS = ("threefry", "philox")
SOURCE = "integer instructions of the generator's rounds, one slot each; a 32-bit product's halves 12 slots"
_SLOTS_PER_BLOCK = {"threefry": 20 * 5 + 5 * 4, "philox": 10 * (2 * 12 + 6)}


@register
@dataclass(frozen=True)
class RandomBits(Codelet):
    """Fill a cell with random bits.

    Operands are the key and the counter, uint64 of one element each, and for Philox the counter's upper half if it
    has one.

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
        key, counter, *upper = (x.reshape(()) for x in operands)
        words = (
            self._threefry(cell, key, counter)
            if self.algorithm == "threefry"
            else self._philox(cell, key, counter, upper[0] if upper else key)
        )
        bits = words.astype(unsigned_of(self.dtype))
        return (lax.bitcast_convert_type(bits, to_jax(self.dtype)),)

    def _threefry(self, cell: Cell, key: Array, counter: Array) -> Array:
        """Return words: neighbours along one dimension share a counter, except 64-bit ones."""
        if itemsize(self.dtype) == 8:
            return joined(*threefry(halves(key), halves(counter + _places(cell, None))))
        split = paired_dimension(cell.form.shape)
        low, high = threefry(halves(key), halves(counter + _places(cell, split)))
        if split is None:
            return low
        lane = _along(cell, split) % np.uint64(2)
        return jnp.where(lane == 0, low, high)

    def _philox(self, cell: Cell, key: Array, counter: Array, upper: Array) -> Array:
        """Return words: four (or two 64-bit ones) in row-major order share a counter of 128 bits.

        A state of two words has no upper half of the counter: XLA takes the key for it.
        """
        each = 2 if itemsize(self.dtype) == 8 else 4
        place = _places(cell, None)
        low = counter + place // np.uint64(each)
        high = upper + (low < counter).astype(jnp.uint64)
        words = philox(halves(key), halves(low), halves(high))
        values = [joined(words[0], words[1]), joined(words[2], words[3])] if each == 2 else words
        lane = place % np.uint64(each)
        result = values[0]
        for number, value in enumerate(values[1:], 1):
            result = jnp.where(lane == number, value, result)
        return result

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return what the code takes; where there is none, slots of the blocks that the cell's words need."""
        try:
            return code_cycles(self.tile_code(extents, target))
        except (NoTileCode, OutOfRegisters):
            pass
        words = extents.results * max(1, itemsize(self.dtype) // 4)
        each = BLOCK_WORDS[self.algorithm]
        share = -(-words // (each * target.workers_per_tile))
        slots = 22 + share * (_SLOTS_PER_BLOCK[self.algorithm] + 2 * each)
        return Cycles(target.worker_issue_interval_cycles * slots, Basis.ASSUMED, SOURCE)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the generator's rounds, block by block, see ``bits_code``."""
        numbering, operands = self._numbering(extents.form), len(extents.operand_dtypes)
        return extents.once("bits code", lambda: bits_code(numbering, operands, extents, target, self.label))

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Return the bytes of what says where rows lie, and of the words that narrower elements are made of."""
        return bits_scratch_bytes(self._numbering(extents.form), extents)

    def _numbering(self, form: OpForm) -> Numbering:
        return Numbering(self.algorithm, self.dtype, form.shape)

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer whole blocks, and whole 64-bit accesses along the innermost dimension."""
        found = list(access_grains(form, (self.dtype,), target))
        numbering = self._numbering(form)
        if numbering.apart and numbering.paired is not None and form.shape[numbering.paired] % 2 == 0:
            found[numbering.paired] = 2
        return tuple(found)


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
    where: Graph | Site,
    state: Tensor,
    shape: tuple[int, ...],
    dtype: str,
    algorithm: str,
    plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the state after, and random bits.

    Args:
      where: graph, or site in it, to add to.
      state: a key and a counter, uint64 ``[2]``; for Philox also ``[3]``, the counter's upper half last.
      shape: shape of the bits.
      dtype: their dtype.
      algorithm: threefry or philox.
      plan: how to cut the bits, instead of searching.

    Raises:
      InvalidGraph: another state, an unknown algorithm, or booleans.
    """
    site = site_of(where, "random_bits")
    sizes = (2, 3) if algorithm == "philox" else (2,)
    if state.shape not in [(n,) for n in sizes] or state.dtype != "uint64":
        expected = " or ".join(f"uint64 ({n},)" for n in sizes)
        raise InvalidGraph(f"a state of {state.dtype} {state.shape}", expected=expected)
    component = [IndexMap((Affine((), number),)) for number in range(state.shape[0])]
    form = map_form(shape, component)
    codelet = RandomBits(algorithm, dtype)
    given = [state] * state.shape[0]
    (bits,) = place(site, codelet, form, given, (dtype,), plan=plan)
    return _advanced(site, state, Numbering(algorithm, dtype, shape).blocks), bits


def _advanced(site: Site, state: Tensor, blocks: int) -> Tensor:
    """Return a state whose counter has gone on by ``blocks``, carrying into its upper half."""
    place_in_state = call("iota", dim=0, dtype="uint64")
    counter = call("add", arg(1), blocks)
    carried = call("add", arg(0), cast(compare("LT", counter, arg(1)), "uint64"))
    upper = select(compare("EQ", place_in_state, 2), carried, arg(0))
    after = select(compare("EQ", place_in_state, 1), counter, upper)
    maps = [identity_map(1), IndexMap((Affine((), 1),))]
    return map(site.named("random_state"), after, [state, state], shape=state.shape, operand_maps=maps)
