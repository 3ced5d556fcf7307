"""Discrete Fourier transforms in terms of contractions."""

from hlo_passes.passes.fourier.expand import ExpandFft

__all__ = ["ExpandFft"]
