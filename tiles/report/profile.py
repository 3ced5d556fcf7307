"""``profile``: what a run cost, as one document of plain data with a published schema, and as text."""

from __future__ import annotations

import functools
import importlib.resources
import json
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiles.compiler import Executable
from tiles.engine.trace import Trace
from tiles.errors import InvalidArguments
from tiles.files import JsonObject, is_dict, is_list
from tiles.report.code import codelets_data
from tiles.report.compilation import camel, compilation_data, target_data
from tiles.report.cost import cost_analysis
from tiles.report.counts import static_counts
from tiles.report.execution import execution_data, operations_data
from tiles.report.links import Argument
from tiles.report.memory import tile_memory
from tiles.report.scopes import scopes_data
from tiles.report.static_trips import static_trips
from tiles.report.text import summary
from tiles.report.totals import Count

SCHEMA = "ipuxla.profile/1"
"""Name and version of the profile's schema; the number changes when a reader of the old one would fail."""


@dataclass(frozen=True, eq=False)
class Profile:
    """The profile of one run.

    Args:
      data: the document that ``profile_schema`` describes.
    """

    data: JsonObject

    @property
    def cycles(self) -> int | None:
        """Tile cycles of the run; None when the program was not run and its length depends on data."""
        return self.data["execution"]["cycles"]

    @property
    def seconds(self) -> float | None:
        """The same in seconds."""
        return self.data["execution"]["seconds"]

    @property
    def operations(self) -> list[JsonObject]:
        """What every operation cost, costliest first."""
        return self.data["operations"]

    def to_json(self) -> str:
        """Return the document as JSON; the same executable and counts give the same text."""
        return _dump(self.data, "") + "\n"

    def text(self, top: int = 10) -> str:
        """Return a summary in plain text, with the ``top`` costliest operations."""
        return summary(self.data, top)


def profile(
    executable: Executable, trace: Trace | None = None, arguments: Sequence[Argument] = ()
) -> Profile:
    """Return the profile of a run: static cost times how often every step ran.

    Args:
      executable: the program.
      trace: what its run recorded; None for a program that was not run (one that does not fit): counts are
        then those known without running, None where they depend on data.
      arguments: what the caller knows of each input of a program of several replicas; none if no more than that.

    Raises:
      InvalidArguments: the trace is of another executable.
    """
    counts: Sequence[Count]
    if trace is None:
        counts, trips = static_counts(executable)[0], static_trips(executable)
    else:
        counts, trips = _checked(executable, trace), trace.trips
    operations = operations_data(executable, counts)
    data = {
        "schema": SCHEMA,
        "name": executable.name,
        "run": None if trace is None else {"engine": trace.engine, "arithmetic": trace.arithmetic},
        "target": target_data(executable.target),
        "costAnalysis": camel(cost_analysis(executable)),
        "compilation": compilation_data(executable, tile_memory(executable)),
        "execution": execution_data(executable, counts, trips, arguments),
        "operations": operations,
        "scopes": scopes_data(executable, operations),
        "codelets": codelets_data(executable, operations),
    }
    return Profile(data)


def _checked(executable: Executable, trace: Trace) -> tuple[int, ...]:
    if len(trace.counts) != len(executable.steps):
        raise InvalidArguments(
            f"the trace is not of executable {executable.name!r}",
            expected=f"a count for each of {len(executable.steps)} steps",
            got=f"{len(trace.counts)} counts",
            try_="pass the trace that a run of this executable returned",
        )
    return tuple(int(count) for count in trace.counts)


@functools.cache
def _schema_text() -> str:
    """Return the schema's file: inside an installed package, else the repository's ``docs``."""
    packaged = importlib.resources.files("tiles") / "_docs" / "profile-schema.json"
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    repository = pathlib.Path(__file__).resolve().parents[2]
    return (repository / "docs" / "profile-schema.json").read_text(encoding="utf-8")


def profile_schema() -> JsonObject:
    """Return the JSON schema (draft 2020-12) of a profile's document."""
    return json.loads(_schema_text())


def _dump(value: Any, indent: str) -> str:
    """Return JSON with a line per key and per object, and lists of plain values on one line."""
    inner = indent + " "
    if is_dict(value) and value:
        rows = [f"{inner}{json.dumps(key)}: {_dump(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if is_list(value) and any(isinstance(item, dict) for item in value):
        rows = [inner + _dump(item, inner) for item in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)
