"""Windows along one axis: which operand element each tap of each output reads, split into stride phases.

A window over an operand whose elements are spread apart (``base`` dilation) reads real elements only where
the distance divides; no affine map says that. Outputs are therefore split into phases: outputs ``phase +
step * y`` meet real elements at the same taps, and those lie at affine indices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tiles.errors import InvalidGraph
from tiles.graph import Affine, along


@dataclass(frozen=True)
class Window:
    """How windows lie along one axis.

    Args:
      size: elements of the operand along the axis.
      taps: elements of a window.
      stride: distance between the first elements of neighbouring windows.
      low: padding in front of the first element; negative cuts off.
      high: padding behind the last one.
      base: distance between neighbouring operand elements, once spread.
      dilation: distance between neighbouring elements of a window.
      reverse: whether the kernel's taps are stored last first.
    """

    size: int
    taps: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base: int = 1
    dilation: int = 1
    reverse: bool = False

    def __post_init__(self) -> None:
        """Check the distances."""
        if min(self.stride, self.base, self.dilation) < 1 or min(self.size, self.taps) < 0:
            raise InvalidGraph(
                f"no windows lie as {self} says", expected="strides and dilations of at least 1"
            )

    @property
    def outputs(self) -> int:
        """How many windows lie along the axis."""
        extent = self.low + self.high + (0 if self.size == 0 else (self.size - 1) * self.base + 1)
        span = 0 if self.taps == 0 else (self.taps - 1) * self.dilation + 1
        return 0 if extent <= 0 or span > extent else (extent - span) // self.stride + 1

    @property
    def num_phases(self) -> int:
        """How many phases the outputs fall into; 1 unless the operand is spread."""
        return self.base // math.gcd(self.base, self.stride)

    @property
    def phase_outputs(self) -> int:
        """Outputs of every phase; those past the last output are computed and dropped."""
        return -(-self.outputs // self.num_phases)

    def phase(self, number: int) -> Phase:
        """Return where the outputs ``number + num_phases * y`` read."""
        step = self.base // math.gcd(self.base, self.dilation)
        start = self.stride * number - self.low
        for first in range(min(step, self.taps)):
            offset, rest = divmod(start + self.dilation * first, self.base)
            if not rest:
                taps = len(range(first, self.taps, step))
                tap, tap_step = (self.taps - 1 - first, -step) if self.reverse else (first, step)
                stride = self.stride * self.num_phases // self.base
                return Phase(taps, tap, tap_step, stride, self.dilation * step // self.base, offset)
        return Phase(0, 0, 1, 1, 1, 0)

    @property
    def is_inside(self) -> bool:
        """Whether no window of an operand that is not spread reaches outside it."""
        last = self.stride * (self.outputs - 1) + self.dilation * (self.taps - 1) - self.low
        return self.base == 1 and self.low <= 0 and last < self.size


@dataclass(frozen=True)
class Phase:
    """Affine reads of one phase: tap m of output y meets ``offset + stride * y + dilation * m``.

    Args:
      taps: taps that meet real elements; 0 when none does.
      tap: stored position of the first of them in the kernel.
      tap_step: distance between them in the kernel.
      stride: distance between what neighbouring outputs read.
      dilation: distance between what neighbouring taps read.
      offset: what the first tap of the first output reads.
    """

    taps: int
    tap: int
    tap_step: int
    stride: int
    dilation: int
    offset: int

    def operand_axis(self, output: int | None, tap: int | None) -> Affine:
        """Return the operand's index over the domain dimensions of outputs and taps (None: a single one)."""
        terms = ((output, self.stride), (tap, self.dilation))
        return Affine(tuple((d, step) for d, step in terms if d is not None), self.offset)

    def kernel_axis(self, tap: int | None) -> Affine:
        """Return the kernel's index over the domain dimension of taps (None: a single tap)."""
        return Affine((), self.tap) if tap is None else along(tap, self.tap_step, self.tap)


@dataclass(frozen=True)
class Collection:
    """Which windows cover which elements of one axis, in blocks of ``stride`` elements.

    Window ``w`` covers element ``stride * w - low`` and the ``taps - 1`` behind it; block y is elements
    ``stride * y`` to ``stride * y + stride - 1``, which windows ``y + first`` to ``y + first + reach -
    1`` may cover.

    Args:
      size: elements along the axis.
      taps: elements of a window.
      stride: distance between the first elements of neighbouring windows.
      low: padding in front of the first element.
    """

    size: int
    taps: int
    stride: int
    low: int

    @property
    def blocks(self) -> int:
        """Blocks along the axis; the last may be short."""
        return -(-self.size // self.stride)

    @property
    def first(self) -> int:
        """The first window within reach of block 0."""
        return -((self.taps - 1 - self.low) // self.stride)

    @property
    def reach(self) -> int:
        """Windows within reach of a block."""
        return (self.stride - 1 + self.low) // self.stride - self.first + 1

    @property
    def origin(self) -> int:
        """The first element that windows within reach of block 0 cover."""
        return self.stride * self.first - self.low

    @property
    def lead(self) -> int:
        """Where the first element of a block lies in what the windows within its reach cover."""
        return -self.origin
