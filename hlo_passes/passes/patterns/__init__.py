"""Canonicalization patterns, one file per family; importing this package fills ``PATTERNS``."""

from hlo_passes.passes.patterns import (
    arithmetic,
    contraction,
    control_flow,
    convolution,
    counting,
    empty,
    gather,
    mapping,
    movement,
    padding,
    reduction,
    sinking,
    sorting,
)
from hlo_passes.passes.patterns.registry import PATTERNS

__all__ = [
    "PATTERNS",
    "arithmetic",
    "contraction",
    "control_flow",
    "convolution",
    "counting",
    "empty",
    "gather",
    "mapping",
    "movement",
    "padding",
    "reduction",
    "sinking",
    "sorting",
]
