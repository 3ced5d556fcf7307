"""Source lines and scopes in reports: whole in the JSON profile, lines shortened where people read them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tiles.files import JsonObject
from tiles.graph import Location

LISTED = 3
"""Source lines and scopes up to which all of them are listed, where a step is from several."""


def place_data(*texts: str) -> JsonObject:
    """Return lines and scopes of something that comes from one place or several; see ``tiles.graph.Location``.

    Of many lines the first are listed, and how many more there are; for many scopes stands the one around them all.
    """
    places = [Location.read(text) for text in texts]
    lines = list(dict.fromkeys(place.line for place in places if place.line))
    scopes = list(dict.fromkeys(place.scope for place in places if place.scope))
    more = f" and {len(lines) - LISTED} more" if len(lines) > LISTED else ""
    return {
        "location": "; ".join(lines[:LISTED]) + more,
        "scope": "; ".join(scopes) if len(scopes) <= LISTED else _around(scopes),
        "transforms": list(dict.fromkeys(name for place in places for name in place.transforms)),
    }


def scope_of(data: JsonObject) -> str:
    """Return the scope of a row of a profile with what transformed it: ``GPT/Block_3/Dense_0 [transpose]``."""
    return Location(scope=data["scope"], transforms=tuple(data["transforms"])).where


def _around(scopes: Sequence[str]) -> str:
    """Return what is around all of several scopes: ``Net`` for ``Net/Dense_0`` and ``Net/Dense_1``."""
    levels = zip(*(scope.split("/") for scope in scopes), strict=False)
    return "/".join(level[0] for level in itertools.takewhile(lambda level: len(set(level)) == 1, levels))
