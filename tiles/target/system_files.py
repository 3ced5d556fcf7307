"""Finding and reading system data files: one JSON file per system, which may extend another.

Nodes, links, wiring and figures are inherited entry by entry; null takes one away. What is inherited from an abstract
file, or from a system of the same chip, keeps its basis; from a system of another chip it becomes ASSUMED.
"""

from __future__ import annotations

import difflib
import functools
import json
import pathlib
import re
from typing import Any

from tiles.errors import InvalidSystem, UnknownTarget, Unsupported
from tiles.files import JsonObject, is_dict, is_mapping
from tiles.target import load
from tiles.target.basis import Basis
from tiles.target.routes import check_routes
from tiles.target.system import SCHEMA, System
from tiles.target.target import Target

_ENTRIES = ("figures", "nodes", "links", "wiring")
_KEYS = {"schema", "name", "description", "chip", "num_ipus", "extends", "abstract", "routes", *_ENTRIES}
_TIMES = re.compile(r"(\S+) x (\d+)")


@functools.cache
def known_systems() -> tuple[str, ...]:
    """Return the names of all systems that have a data file, by their number of IPUs."""
    found: list[tuple[int, str]] = []
    for path in load.data_directory("systems").glob("*.json"):
        data = _resolve(path)
        if not data.get("abstract", False):
            found.append((data["num_ipus"], path.stem))
    return tuple(name for _, name in sorted(found))


def find_system(name: str) -> System:
    """Return the system of a name.

    Args:
      name: a system ("pod64"), the path of a data file, several of a system ("pod64 x 4"), or several chips
        ("gc2 x 16"), which are wired as the smallest system of that chip with a host that holds them.

    Raises:
      UnknownTarget: there is none; lists those there are.
      InvalidSystem: the data file is malformed, describes an impossible system, or that many cannot be wired so.
    """
    times = _TIMES.fullmatch(name.strip())
    if times is None:
        return _named(name)
    of, count = times[1], int(times[2])
    if of in load.known_names():
        scaled = _named(_holding(of, count))
    else:
        scaled = _named(of)
        count *= scaled.num_ipus
    return check_routes(scaled.with_ipus(count, name=name.strip()))


def find_machine(name: str) -> Target | System:
    """Return the target or the system of a name or path: whatever ``target=`` may name.

    Raises:
      UnknownTarget: there is neither.
      InvalidTarget: a target's data file is malformed.
      InvalidSystem: a system's data file is malformed.
    """
    if is_system(name):
        return find_system(name)
    if load.has_file(name) or (name.endswith(".json") and pathlib.Path(name).is_file()):
        return Target.named(name)
    raise unknown(name)


def one_ipu(name: str) -> Target:
    """Return the target that a name or path stands for where programs of one IPU are made.

    Raises:
      Unsupported: it names a system of several IPUs.
      UnknownTarget, InvalidTarget, InvalidSystem: as ``find_machine``.
    """
    found = find_machine(name)
    if isinstance(found, Target):
        return found
    if found.num_ipus == 1:
        return found.chip
    raise Unsupported(
        f"system {found.name!r} has {found.num_ipus:,} IPUs, and programs are compiled for one",
        try_=f"target={found.chip.name!r}, one of them",
    )


def is_system(name: str) -> bool:
    """Return whether a name is that of a system, or of several chips, or the path of a system's data file."""
    if load.has_file(name, "systems") or _TIMES.fullmatch(name.strip()):
        return True
    path = pathlib.Path(name)
    if path.suffix != ".json" or not path.is_file():
        return False
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return is_dict(data) and str(data.get("schema", "")).startswith("ipuxla.system/")


def unknown(name: str) -> UnknownTarget:
    """Return the error that tells which targets and systems there are, and which of them may be meant."""
    known = (*load.known_names(), *known_systems())
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.4)
    return UnknownTarget(
        f"no target or system is named {name!r}",
        expected=f"{', '.join(known)}, several of one (gc2 x 16), or the path of a .json file",
        try_=f"did you mean {close[0]!r}?" if close else None,
    )


def _holding(chip: str, count: int) -> str:
    """Return the name of the smallest system of a chip with a host that has so many IPUs, else of the largest."""
    data = ((name, _resolve(load.data_directory("systems") / f"{name}.json")) for name in known_systems())
    own = [(d["num_ipus"], name, d.get("nodes", {}).get("host")) for name, d in data if d["chip"] == chip]
    sizes = [(size, name) for size, name, host in own if host is not None and not host.get("above_ipus")]
    if not sizes:
        raise UnknownTarget(f"no system is made of {chip!r}", expected=", ".join(known_systems()))
    return next((name for size, name in sizes if size >= count), sizes[-1][1])


@functools.lru_cache(maxsize=64)
def _packaged(name: str) -> System:
    return check_routes(System.from_data(_resolve(load.data_directory("systems") / f"{name}.json")))


def _named(name: str) -> System:
    if name in known_systems():
        return _packaged(name)
    path = pathlib.Path(name)
    if path.suffix != ".json" or not path.is_file():
        raise unknown(name)
    data = _resolve(path)
    if data.pop("abstract", False):
        raise InvalidSystem(f"{path.name} describes no system, only what systems share")
    return check_routes(System.from_data(data))


def _resolve(path: pathlib.Path, seen: tuple[pathlib.Path, ...] = ()) -> JsonObject:
    """Return a file's data with what it inherits.

    Raises:
      InvalidSystem: a file is malformed, or files extend each other in a circle.
    """
    path = path.resolve()
    if path in seen:
        chain = " -> ".join(p.stem for p in (*seen, path))
        raise InvalidSystem(f"system data files extend each other in a circle: {chain}")
    own = _read(path)
    parent = own.pop("extends", None)
    if parent is None:
        return own
    inherited = _resolve(_parent(path, parent), (*seen, path))
    if "chip" in inherited and inherited["chip"] != own.get("chip", inherited["chip"]):
        inherited = _carried_over(inherited, parent)
    merged = {**inherited, **own}
    merged["abstract"] = own.get("abstract", False)
    for key in _ENTRIES:
        entries = {**inherited.get(key, {}), **own.get(key, {})}
        merged[key] = {name: entry for name, entry in entries.items() if entry is not None}
    return {key: value for key, value in merged.items() if key != "abstract" or value}


def _parent(path: pathlib.Path, parent: str) -> pathlib.Path:
    """Return the file that ``path`` extends: beside it, else among the packaged ones."""
    for candidate in (path.parent / f"{parent}.json", load.data_directory("systems") / f"{parent}.json"):
        if candidate.is_file():
            return candidate
    raise InvalidSystem(
        f"{path.name} extends {parent!r}, and there is no such system", try_=unknown(parent).try_
    )


def _carried_over(data: Any, parent: str) -> Any:
    """Return data whose figures and wiring say that they are another chip's."""
    if not is_mapping(data):
        return data
    changed: JsonObject = {key: _carried_over(value, parent) for key, value in data.items()}
    if "basis" in data and "source" in data:
        changed |= {"basis": str(Basis.ASSUMED), "source": f"carried over from {parent}: {data['source']}"}
    return changed


def _read(path: pathlib.Path) -> JsonObject:
    """Return a data file's JSON object.

    Raises:
      InvalidSystem: not JSON, of another schema, or with unknown keys or entries that are no objects.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidSystem(f"system data file {path.name} cannot be read", got=str(error)) from error
    if not is_dict(data) or data.get("schema") != SCHEMA:
        got = data.get("schema") if is_dict(data) else type(data).__name__
        raise InvalidSystem(f"system data file {path.name} has another schema", expected=SCHEMA, got=got)
    unknown_keys = sorted(set(data) - _KEYS)
    if unknown_keys:
        raise InvalidSystem(f"{path.name} has unknown keys", expected=sorted(_KEYS), got=unknown_keys)
    for key in _ENTRIES:
        if not isinstance(data.get(key, {}), dict):
            raise InvalidSystem(f"{path.name}: {key} are an object, by name", got=type(data[key]).__name__)
    if not isinstance(data.get("extends", ""), str) or not isinstance(data.get("abstract", False), bool):
        raise InvalidSystem(f"{path.name}: extends is a text, abstract a flag")
    return data
