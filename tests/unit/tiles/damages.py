"""Every kind of damage to an executable's data, made by rule: any field dropped, swapped, another's, or off by one."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[Any, ...]
Kind = tuple[str, str]
"""Which field, places in lists and names in the target left out, and what is done to it."""

TEXTS = ("location", "source")
"""Fields that only people read."""


def paths(data: Any, at: Path = ()) -> Iterator[Path]:
    """Yield the way to every item inside plain data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        yield (*at, key)
        yield from paths(item, (*at, key))


def field_of(path: Path) -> str:
    """Return a way without the places in lists, so that fields that are alike have the same."""
    if path[:1] == ("modules",) and len(path) > 1:
        path = ("modules", "digest")
    return ".".join("*" if isinstance(key, int) else str(key) for key in path)


def at(data: Any, path: Path) -> Any:
    """Return the item at the end of a way."""
    return functools.reduce(lambda inner, key: inner[key], path, data)


def changes_of(value: Any) -> dict[str, Any]:
    """Return by name what a value may be changed to: near ones, and one of another kind."""
    found: dict[str, Any] = {"nothing": None, "text": "x", "a list": [], "an object": {}}
    if isinstance(value, bool):
        found |= {"the other": not value, "a number": int(value)}
    elif isinstance(value, int):
        found |= {"one more": value + 1, "one less": value - 1, "a word more": value + 4, "twice": 2 * value}
        found |= {
            "negative": -value,
            "zero": 0,
            "a truth": bool(value),
            "a fraction": value + 0.5,
            "huge": 1 << 70,
        }
    elif isinstance(value, float):
        found |= {"half": value / 2, "negative": -value}
    elif isinstance(value, str):
        found |= {"empty": "", "longer": value + "x", "shorter": value[:-1], "a number": 1}
    elif isinstance(value, list):
        found |= {"without the first": value[1:], "without the last": value[:-1], "reversed": value[::-1]}
        found |= {"the last twice": value + value[-1:], "emptied": []}
    elif isinstance(value, dict):
        found |= {"with more": {**value, "more": 1}}
    return {name: to for name, to in found.items() if type(to) is not type(value) or to != value}


def damages(data: dict[str, Any]) -> dict[Kind, list[Callable[[], dict[str, Any]]]]:
    """Return by kind what makes damaged copies of an executable's data, one for each place where it can be done."""
    found: dict[Kind, list[Callable[[], dict[str, Any]]]] = {}
    alike: dict[str, list[Path]] = {}
    for path in paths(data):
        if path[-1] in TEXTS:
            continue
        field = field_of(path)
        alike.setdefault(field, []).append(path)
        for name, value in changes_of(at(data, path)).items():
            found.setdefault((field, name), []).append(functools.partial(_put, data, path, value))
        if not isinstance(path[-1], int):
            found.setdefault((field, "dropped"), []).append(functools.partial(_drop, data, path))
    for field, ways in alike.items():
        for one, other in itertools.pairwise(ways):
            if at(data, one) != at(data, other) and one != other[: len(one)]:
                found.setdefault((field, "of another"), []).append(
                    functools.partial(_put, data, one, at(data, other))
                )
                found.setdefault((field, "swapped"), []).append(functools.partial(_swap, data, one, other))
    return found


def _put(data: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    made = copy.deepcopy(data)
    at(made, path[:-1])[path[-1]] = copy.deepcopy(value)
    return made


def _drop(data: dict[str, Any], path: Path) -> dict[str, Any]:
    made = copy.deepcopy(data)
    del at(made, path[:-1])[path[-1]]
    return made


def _swap(data: dict[str, Any], one: Path, other: Path) -> dict[str, Any]:
    return _put(_put(data, one, at(data, other)), other, at(data, one))
