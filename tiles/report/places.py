"""Source lines and scopes in reports: whole in the JSON profile, lines shortened where people read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tiles.graph import Location


def place_data(*texts: str) -> dict[str, Any]:
    """Return lines and scopes of something that comes from one place or several; see ``tiles.graph.Location``."""
    places = [Location.read(text) for text in texts]
    return {
        "location": _joined(place.line for place in places),
        "scope": _joined(place.scope for place in places),
        "transforms": list(dict.fromkeys(name for place in places for name in place.transforms)),
    }


def scope_of(data: dict[str, Any]) -> str:
    """Return the scope of a row of a profile with what transformed it: ``GPT/Block_3/Dense_0 [transpose]``."""
    return Location(scope=data["scope"], transforms=tuple(data["transforms"])).where


def short(location: str) -> str:
    """Return a source line with only the last folder and the file's name: ``models/mlp.py:33``."""
    return "/".join(location.replace("\\", "/").split("/")[-2:])


def _joined(parts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(part for part in parts if part))
