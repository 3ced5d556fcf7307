"""Finding and reading target data files: one JSON file per target, which may extend another.

A field inherited from an abstract file (one that describes no device, such as ``common``) keeps its basis,
because it is stated for every device. A field inherited from another device becomes ASSUMED and says where it
was carried from.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.resources
import pathlib
from typing import Any

from tiles.errors import InvalidTarget, UnknownTarget
from tiles.files import JsonObject, is_dict, is_mapping, read_json
from tiles.target.basis import Basis
from tiles.target.quantity import Provenance

SCHEMA = "ipuxla.target/1"
_FILE_KEYS = {"schema", "name", "extends", "abstract", "fields"}
_LEAF_KEYS = {"value", "unit", "basis", "source"}


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One field of a data file: a value, its unit and where it comes from."""

    value: Any
    unit: str
    provenance: Provenance

    @staticmethod
    def read(data: object, where: str) -> Leaf:
        """Return the leaf that JSON ``data`` describes.

        Raises:
          InvalidTarget: a key is missing or unknown, or a text or the basis is not one.
        """
        if not is_mapping(data) or set(data) != _LEAF_KEYS:
            got = sorted(data) if is_mapping(data) else repr(data)
            raise InvalidTarget(
                "a target field must be an object of four keys",
                location=where,
                expected=", ".join(sorted(_LEAF_KEYS)),
                got=got,
            )
        if data["basis"] not in list(Basis):
            raise InvalidTarget(
                "a target field has no legal basis",
                location=where,
                expected=", ".join(Basis),
                got=data["basis"],
            )
        if (
            not isinstance(data["unit"], str)
            or not isinstance(data["source"], str)
            or not data["source"].strip()
        ):
            raise InvalidTarget("a target field needs a unit and a source, both texts", location=where)
        return Leaf(data["value"], data["unit"], Provenance(Basis(data["basis"]), data["source"]))

    def carried_over(self, parent: str) -> Leaf:
        """Return this leaf as another device inherits it: ASSUMED, and saying so."""
        marker = f"carried over from {parent}: "
        origin = self.provenance.source
        return dataclasses.replace(self, provenance=Provenance(Basis.ASSUMED, marker + origin))


def data_directory(kind: str = "targets") -> pathlib.Path:
    """Return the folder of data files of a kind: inside an installed package, else in ``configs``."""
    packaged = importlib.resources.files("tiles") / "_configs" / kind
    if isinstance(packaged, pathlib.Path) and packaged.is_dir():
        return packaged
    return pathlib.Path(__file__).resolve().parents[2] / "configs" / kind


def has_file(name: str, kind: str = "targets") -> bool:
    """Return whether a data file of a kind has a name, without reading any."""
    return _is_plain(name) and (data_directory(kind) / f"{name}.json").is_file()


def known_names() -> tuple[str, ...]:
    """Return the names of all targets that have a data file, sorted."""
    files = sorted(data_directory().glob("*.json"))
    return tuple(path.stem for path in files if not _read_file(path).get("abstract", False))


def resolve(name: str) -> tuple[str, dict[str, Leaf]]:
    """Return a target's name and its fields, inherited ones included.

    Args:
      name: a target's name, or a path to a data file.

    Raises:
      UnknownTarget: no data file has that name or path.
      InvalidTarget: a data file is malformed, or extends itself.
    """
    path = _locate(name)
    data, fields, abstract = _resolve_file(path, seen=())
    if abstract:
        raise UnknownTarget(
            f"{name!r} describes no device, only what devices share", expected=", ".join(known_names())
        )
    return data["name"], fields


def _locate(name: str) -> pathlib.Path:
    """Return the data file of a target's name or path."""
    if name.endswith(".json"):
        path = pathlib.Path(name)
    else:
        path = data_directory() / f"{name}.json" if _is_plain(name) else None
    if path is None or not path.is_file():
        names = known_names()
        close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.4)
        raise UnknownTarget(
            f"no target is named {name!r}",
            expected=", ".join(names) + ", or the path of a .json file",
            try_=f"did you mean {close[0]!r}?" if close else None,
        )
    return path


def _is_plain(name: str) -> bool:
    """Return whether a name can be a file's stem: letters, digits, dash and underscore."""
    return name.replace("-", "").replace("_", "").isalnum()


def _resolve_file(
    path: pathlib.Path, seen: tuple[pathlib.Path, ...]
) -> tuple[JsonObject, dict[str, Leaf], bool]:
    """Return a file's data, its fields with those it inherits, and whether it is abstract."""
    path = path.resolve()
    if path in seen:
        chain = " -> ".join(p.stem for p in (*seen, path))
        raise InvalidTarget("target data files extend each other in a circle", location=str(path), got=chain)
    data = _read_file(path)
    own = {field: Leaf.read(leaf, f"{path.name}: {field}") for field, leaf in data["fields"].items()}
    inherited: dict[str, Leaf] = {}
    if "extends" in data:
        inherited = _inherit(path, data["extends"], (*seen, path))
    return data, inherited | own, data.get("abstract", False)


def _inherit(path: pathlib.Path, parent: str, seen: tuple[pathlib.Path, ...]) -> dict[str, Leaf]:
    """Return what a file inherits: fields of an abstract ancestor as they are, of a device as ASSUMED."""
    parent_path = _parent_path(path, parent)
    data, fields, abstract = _resolve_file(parent_path, seen)
    shared = _abstract_fields(parent_path, data)
    return {
        name: leaf if abstract or shared.get(name) == leaf else leaf.carried_over(parent)
        for name, leaf in fields.items()
    }


def _abstract_fields(path: pathlib.Path, data: JsonObject) -> dict[str, Leaf]:
    """Return the fields that stand for every device: those of the abstract ancestors of a file."""
    while "extends" in data:
        path = _parent_path(path, data["extends"])
        data = _read_file(path)
        if data.get("abstract", False):
            return _resolve_file(path, seen=())[1]
    return {}


def _parent_path(path: pathlib.Path, parent: str) -> pathlib.Path:
    """Return the file that ``path`` extends: beside it, else among the packaged ones."""
    beside = path.parent / f"{parent}.json"
    return beside if beside.is_file() else _locate(parent)


def _read_file(path: pathlib.Path) -> JsonObject:
    """Return a data file's JSON object.

    Raises:
      InvalidTarget: not JSON, of another schema, or with unknown or missing keys.
    """
    try:
        data = read_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidTarget(
            "a target data file cannot be read", location=str(path), got=str(error)
        ) from error
    if not is_dict(data) or data.get("schema") != SCHEMA:
        got = data.get("schema") if is_dict(data) else type(data).__name__
        raise InvalidTarget(
            "a target data file has another schema",
            location=str(path),
            expected=f"{SCHEMA}, or ipuxla.system/1 of a system",
            got=got,
        )
    _check_keys(data, path)
    return data


def _check_keys(data: JsonObject, path: pathlib.Path) -> None:
    """Check the top level of a data file."""
    unknown = sorted(set(data) - _FILE_KEYS)
    if unknown:
        raise InvalidTarget(
            "a target data file has unknown keys",
            location=str(path),
            expected=sorted(_FILE_KEYS),
            got=unknown,
        )
    legal = (
        isinstance(data.get("name"), str)
        and isinstance(data.get("fields"), dict)
        and isinstance(data.get("extends", ""), str)
        and isinstance(data.get("abstract", False), bool)
    )
    if not legal:
        raise InvalidTarget(
            "a target data file needs name (text), fields (object); extends is a text, abstract a flag",
            location=str(path),
        )
