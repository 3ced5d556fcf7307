"""Expansions by family; importing this package fills ``EXPANSIONS``."""

from hlo_passes.passes.expansions import contraction, linalg, normalization, random
from hlo_passes.passes.expansions.registry import EXPANSIONS, Expansion, expands
from hlo_passes.passes.expansions.term import Term, repeat

__all__ = [
    "EXPANSIONS",
    "Expansion",
    "Term",
    "contraction",
    "expands",
    "linalg",
    "normalization",
    "random",
    "repeat",
]
