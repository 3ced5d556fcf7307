"""Source lines as a report for people shows them; the JSON profile keeps whole paths."""

from __future__ import annotations


def short(location: str) -> str:
    """Return a source line with only the last folder and the file's name: ``models/mlp.py:33``."""
    return "/".join(location.replace("\\", "/").split("/")[-2:])
