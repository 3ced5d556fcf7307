"""The codelet of convolutions over a spread array, as gradients of strided ones and transposed ones are."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jax import Array, lax

from tiles.errors import InvalidGraph
from tiles.graph import Arrangement, Cell, Cycles, Extents, OpForm, VertexCode, register
from tiles.numerics.convolution import convolve
from tiles.numerics.dtypes import is_float, itemsize, to_jax
from tiles.poplibs.poplin.conv import Convolution, grouped_axes, in_order
from tiles.poplibs.poplin.conv_cycles import (
    ConvShape,
    conv_roles,
    spread_cycles,
    spread_orders,
    spread_shape,
    widened_bytes,
)
from tiles.poplibs.poplin.matmul import held_numbers, method_for, partials_of
from tiles.poplibs.poplin.spread_code import Spread, spread_code
from tiles.poplibs.popops.reduce import cast_accumulator
from tiles.target import Target


@register
@dataclass(frozen=True)
class SpreadConvolution(Convolution):
    """Convolve an array whose elements stand apart: of the taps of a window, only some meet an element.

    Along a window the result has dimensions ``(q, r)``: output ``phases * q + r``. It adds up products of elements
    ``q + t`` and taps ``phases * t + origin - r``, as far as the kernel has them. Operands are indexed by ``q + t``, with
    ``t`` a window, and by ``m``, a dimension of all the taps; the codelet says which belong together.

    Args:
      operand_dtypes: see ``Convolution``.
      accumulate_dtype: see ``Convolution``.
      out_dtype: see ``Convolution``.
      method: see ``Convolution``.
      phases: along each window of the first operand, in the order of its axes, the distance between elements.
      taps: of the kernel, along each window.
      origins: the tap that the first element of a window meets for its first output.
    """

    name: ClassVar[str] = "poplin.SpreadConvolution"

    phases: tuple[int, ...] = ()
    taps: tuple[int, ...] = ()
    origins: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the windows, too."""
        super().__post_init__()
        lengths = {len(self.phases), len(self.taps), len(self.origins)}
        if (
            len(lengths) != 1
            or min((*self.phases, *self.taps), default=1) < 1
            or min(self.origins, default=0) < 0
        ):
            raise InvalidGraph(
                f"no windows have phases {self.phases}, taps {self.taps} and origins {self.origins}"
            )

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the cell's sums: a convolution over the array, spread; see ``Convolution.compute``."""
        roles = conv_roles(cell.form)
        lhs, rhs = held_numbers(operands, self.accumulate_dtype)
        windows = [(d,) for d in roles.field]
        lhs, lhs_spec = grouped_axes(cell, 0, lhs, [roles.batch, (*roles.groups, *roles.inputs), *windows])
        kernels = (*roles.groups, *roles.outputs)
        taps = [(t + 1,) if n > 1 else () for t, n in zip(roles.taps, self.taps, strict=True)]
        rhs, rhs_spec = grouped_axes(cell, 1, rhs, [kernels, roles.inputs, *taps])
        results = [(q, q + 1) if n > 1 else (q,) for q, n in zip(roles.field, self.phases, strict=True)]
        order, out_spec = in_order(cell.form.results[0].dims, [roles.batch, kernels, *results])
        total = convolve(
            lhs,
            rhs,
            (1,) * len(windows),
            [self._padding(cell, number) for number in range(len(windows))],
            self.phases,
            None,
            lax.ConvDimensionNumbers(lhs_spec, rhs_spec, out_spec),
            math.prod(cell.sizes[d] for d in roles.groups),
            precision=lax.Precision.HIGHEST if is_float(self.accumulate_dtype) else None,
            preferred_element_type=to_jax(self.accumulate_dtype),
        )
        total = total.reshape([cell.sizes[d] for d in order])
        final = [order.index(d) for d in cell.form.results[0].dims]
        total = total if final == sorted(final) else lax.transpose(total, final)
        return (cast_accumulator(total, self.out_dtype),)

    def _padding(self, cell: Cell, number: int) -> tuple[int, int]:
        """Return what a window reaches beyond a cell's elements, counted in the spread array."""
        reach = cell.sizes[conv_roles(cell.form).taps[number]]
        low, distance = self.origins[number], self.phases[number]
        return low, self.taps[number] - 2 - low - distance * (reach - 2)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the PopLibs estimate of the vertex; see ``spread_cycles``."""
        shape = self._shape(extents)
        return spread_cycles(self.method, self.accumulate_dtype, self.out_dtype, shape, extents, target)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of convolutions on the multiply units."""
        return spread_code(
            self.method,
            self.accumulate_dtype,
            self.out_dtype,
            Spread(self.phases, self.taps, self.origins),
            self._shape(extents),
            extents,
            target,
            self.label,
        )

    def least_cycles(self, extents: Extents, target: Target) -> np.ndarray | None:
        """Return none: of the points of the domain, which has all phases, each tap meets one phase's."""
        return None

    def arrangements(self, extents: Extents, target: Target) -> list[Arrangement]:
        """Return the channels of activations, kernel and results in groups; see ``conv_orders``."""
        return spread_orders(self.method, self.accumulate_dtype, self._shape(extents), extents, target)

    def _shape(self, extents: Extents) -> ConvShape:
        return spread_shape(extents, self.phases, self.taps)

    def flops(self, extents: Extents) -> np.ndarray:
        """Count a multiplication and an addition of floats for every tap that meets a position and two channels."""
        shape = self._shape(extents)
        products = np.asarray(shape.groups * shape.positions * shape.outputs * shape.inputs * shape.taps)
        return 2 * products if is_float(self.accumulate_dtype) else np.zeros_like(products)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Keep phases and taps whole; everything else may be cut."""
        roles = conv_roles(form)
        return d not in (*roles.phases, *roles.taps, *roles.kernel_taps)

    def partial(self) -> tuple[Convolution, tuple[str, ...]]:
        """Return the convolution that leaves sums in the accumulator's dtype."""
        return dataclasses.replace(self, out_dtype=self.accumulate_dtype), (self.accumulate_dtype,)

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer channels as ``Convolution`` does; a slice of the result has all phases."""
        whole = conv_roles(form).phases
        grains = super().grains(form, target)
        return tuple(form.dims[d].size if d in whole else n for d, n in enumerate(grains))

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Return the bytes of operands that are widened, and of the sums before they are cast to a narrower result."""
        size: Any = 0 if self.out_dtype == self.accumulate_dtype else itemsize(self.accumulate_dtype)
        shape = self._shape(extents)
        widened = widened_bytes(self.method, self.accumulate_dtype, shape, extents, target)
        return extents.results * size + widened


def spread_codelet(
    lhs: str,
    rhs: str,
    out_dtype: str,
    method: str,
    phases: tuple[int, ...],
    taps: tuple[int, ...],
    origins: tuple[int, ...],
) -> SpreadConvolution:
    """Return the convolution of a spread array of the given dtypes; see ``SpreadConvolution`` and ``matmul_codelet``."""
    return SpreadConvolution(
        (lhs, rhs),
        partials_of(lhs, out_dtype),
        out_dtype,
        method_for(lhs, out_dtype, method),
        phases,
        taps,
        origins,
    )
