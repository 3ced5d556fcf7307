"""Errors of lowering."""

from __future__ import annotations

from tiles.errors import Unsupported


class UnsupportedLowering(Unsupported):
    """An HLO operation, or a form of one, that cannot be placed on tiles."""
