"""Complex numbers in terms of real ones."""

from hlo_passes.passes.complex.legalize import LegalizeComplex, has_complex, split_positions

__all__ = ["LegalizeComplex", "has_complex", "split_positions"]
