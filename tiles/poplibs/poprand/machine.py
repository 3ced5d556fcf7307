"""Random numbers of the machine's own generator, which every worker has: raw bits, uniform and normal floats.

PopLibs draws from it (``poprand::uniform`` and ``normal``). Its stream is not public, and what it draws depends on which
worker draws: emulation takes threefry's words of the element's place instead, so that engines agree. It is reached from
``tiles`` alone; JAX's generators are defined to the bit and stay integer code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
    Site,
    Tensor,
    register,
    site_of,
)
from tiles.graph.layout import ceil_div
from tiles.numerics.dtypes import itemsize, to_jax
from tiles.poplibs.forms import map_form
from tiles.poplibs.popops.map import access_grains
from tiles.poplibs.poprand.bits import RandomBits
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target

SOURCE = "graphcore/poplibs lib/poprand/poprandCycleEstimators.cpp"
DISTRIBUTIONS = ("bits", "uniform", "normal")
DTYPES = {"bits": ("uint32", "int32"), "uniform": ("float32", "float16"), "normal": ("float32", "float16")}
_SLOTS_PER_VECTOR = {"bits": 1, "uniform": 4, "normal": 4}
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

    distribution: str
    dtype: str

    def __post_init__(self) -> None:
        """Check distribution and dtype."""
        if self.dtype not in DTYPES.get(self.distribution, ()):
            expected = "; ".join(f"{name}: {', '.join(dtypes)}" for name, dtypes in DTYPES.items())
            raise InvalidGraph(f"no {self.distribution} numbers of {self.dtype}", expected=expected)

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return numbers made of threefry's words."""
        (words,) = RandomBits("threefry", "uint32").compute(cell, *operands)
        if self.distribution == "bits":
            return (lax.bitcast_convert_type(words, to_jax(self.dtype)),)
        unit = (words >> np.uint32(8)).astype(jnp.float32) * np.float32(2.0**-24)
        if self.distribution == "uniform":
            below = np.float32(1 - 2.0**-11 if self.dtype == "float16" else 1 - 2.0**-24)
            return (jnp.minimum(unit, below).astype(to_jax(self.dtype)),)
        centred = 2 * unit - np.float32(1 - 2.0**-24)
        return ((np.float32(2**0.5) * lax.erf_inv(centred)).astype(to_jax(self.dtype)),)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return PopLibs' estimate: a frame, and slots for every 64-bit vector.

        Raw bits take one for each (ASSUMED: its rate of words divides by a width in other units).
        """
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
