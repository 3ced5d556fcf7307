"""Random numbers of the machine's own generator, which every worker has: raw bits, uniform and normal floats.

PopLibs draws from it (``poprand::uniform`` and ``normal``). Its stream is not public, and what it draws depends on which
worker draws: emulation takes threefry's words of the element's place instead, so that engines agree, and hands tile code
the same. How bits become floats of (-0.5, 0.5), by an instruction, is assumed: upper bits and a half. It is reached
from ``tiles`` alone; JAX's generators are defined to the bit and stay integer code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles._jax_compat import jit
from tiles.elements import instructions_for
from tiles.elements.variants import existing
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
    register,
    site_of,
)
from tiles.graph.layout import ceil_div
from tiles.numerics.dtypes import itemsize, to_jax
from tiles.poplibs.forms import map_form
from tiles.poplibs.popops.map import access_grains
from tiles.poplibs.poprand.bits import RandomBits
from tiles.poplibs.poprand.machine_code import Drawings, compiled_drawing, machine_variant, only_floats
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target

SOURCE = "graphcore/poplibs lib/poprand/poprandCycleEstimators.cpp"
DISTRIBUTIONS = ("bits", "uniform", "normal")
DTYPES = {"bits": ("uint32", "int32"), "uniform": ("float32", "float16"), "normal": ("float32", "float16")}
_SLOTS_PER_VECTOR = {"bits": 1, "uniform": 4, "normal": 4}
_UNIFORM_BITS = {"float32": 23, "float16": 10}
"""Upper bits that are kept of a lane; with the half they fill a float's digits."""
_FRAME = {"bits": 22, "uniform": 24, "normal": 24}


@register
@dataclass(frozen=True)
class MachineRandom(Codelet):
    """Fill a cell with random numbers of the machine's generator.

    Operands are a seed of two uint64 of one element each.

    Args:
      distribution: "bits" (all words alike), "uniform" (floats of [0, 1)) or "normal" (mean 0, variance 1).
      dtype: dtype of the result.

    Raises:
      InvalidGraph: an unknown distribution, or a dtype that it is not drawn in.
    """

    name: ClassVar[str] = "poprand.MachineRandom"
    version: ClassVar[int] = 2

    distribution: str
    dtype: str

    def __post_init__(self) -> None:
        """Check distribution and dtype."""
        if self.dtype not in DTYPES.get(self.distribution, ()):
            expected = "; ".join(f"{name}: {', '.join(dtypes)}" for name, dtypes in DTYPES.items())
            raise InvalidGraph(f"no {self.distribution} numbers of {self.dtype}", expected=expected)

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return numbers made of threefry's words."""
        given = self.generated(cell, *operands)
        if self.distribution != "uniform":
            return (
                lax.bitcast_convert_type(given, to_jax(self.dtype)) if self.distribution == "bits" else given,
            )
        bits = _UNIFORM_BITS[self.dtype]
        upper = given >> given.dtype.type(8 * given.dtype.itemsize - bits)
        odd = 2 * upper.astype(jnp.float32) + np.float32(1)
        return ((odd * np.float32(2.0 ** -(bits + 1))).astype(to_jax(self.dtype)),)

    def generated(self, cell: Cell, *operands: Array) -> Array:
        """Return what the generator gives for every element: unsigned integers of its width, or normal numbers."""
        (words,) = RandomBits("threefry", "uint32").compute(cell, *operands)
        if self.distribution == "bits" or (self.distribution, self.dtype) == ("uniform", "float32"):
            return words
        if self.distribution == "uniform":
            return (words >> np.uint32(16)).astype(jnp.uint16)
        unit = (words >> np.uint32(8)).astype(jnp.float32) * np.float32(2.0**-24)
        centred = 2 * unit - np.float32(1 - 2.0**-24)
        return (np.float32(2**0.5) * lax.erf_inv(centred)).astype(to_jax(self.dtype))

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the loop that draws vectors and stores them, see ``machine_code``."""
        isa = instructions_for(target)
        variant = existing(machine_variant(isa, self.distribution, self.dtype)).named(self.label)
        kernel = Drawings(
            self.dtype, variant, isa["worker_contexts"], partial(self._generated_for, extents.form)
        )
        in_ring = None if self.distribution == "bits" else only_floats
        return (VertexCode(variant, extents.results, kernel=kernel, cell=in_ring, compiled=compiled_drawing),)

    def _generated_for(
        self, form: OpForm, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return what the generator gives for the elements of cells, ``[cells, elements]``."""

        def one(origin: Array, *own: Array) -> Array:
            cell = Cell(form, sizes, tuple(origin[d] for d in range(len(sizes))), (None,) * len(sizes))
            return self.generated(cell, *own)

        found = jit(jax.vmap(one))(jnp.asarray(origins), *map(jnp.asarray, operands))
        return np.asarray(found).reshape(len(origins), -1)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return PopLibs' estimate: a frame, and slots for every 64-bit vector.

        Of raw bits, whose rate of words it divides by a width in other units, what the code takes.
        """
        if self.distribution == "bits":
            try:
                return code_cycles(self.tile_code(extents, target))
            except (NoTileCode, OutOfRegisters):
                pass
        width = target.data_path_bytes // itemsize(self.dtype)
        share = ceil_div(extents.results, target.workers_per_tile)
        vectors = ceil_div(share, width)
        slots = _FRAME[self.distribution] + _SLOTS_PER_VECTOR[self.distribution] * vectors
        basis = Basis.ASSUMED if self.distribution == "bits" else Basis.DOCUMENTED
        return Cycles(4 + target.worker_issue_interval_cycles * slots, basis, SOURCE)

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer whole 64-bit accesses along the innermost dimension."""
        return access_grains(form, (self.dtype,), target)


def machine_random(
    where: Graph | Site,
    seed: Tensor,
    shape: tuple[int, ...],
    dtype: str,
    distribution: str = "uniform",
    plan: Plan | None = None,
) -> Tensor:
    """Return random numbers of the machine's generator.

    Args:
      where: graph, or site in it, to add to.
      seed: uint64 ``[2]``.
      shape: shape of the result.
      dtype: its dtype.
      distribution: see ``MachineRandom``.
      plan: use this plan instead of searching.

    Raises:
      InvalidGraph: another seed, or what ``MachineRandom`` refuses.
    """
    site = site_of(where, distribution)
    if seed.shape != (2,) or seed.dtype != "uint64":
        raise InvalidGraph(f"a seed of {seed.dtype} {seed.shape}", expected="uint64 (2,)")
    form = map_form(shape, [IndexMap((Affine((), number),)) for number in range(2)])
    codelet = MachineRandom(distribution, dtype)
    return place(site, codelet, form, [seed, seed], (dtype,), plan=plan)[0]
