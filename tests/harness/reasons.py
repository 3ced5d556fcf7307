"""Cases whose results are not equal, and why: by the beginning of a name."""

from __future__ import annotations

REASONS: dict[str, str] = {}
"""Why a case is refused or differs, by the beginning of its name."""


def reason(name: str) -> str:
    """Return why a case is not equal; empty where no reason is known."""
    return next((text for beginning, text in REASONS.items() if name.startswith(beginning)), "")
