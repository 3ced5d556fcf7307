"""Records of measurements: a JSON list, one object for each, read and checked record by record.

A record says what was run (``family``, ``what``, ``params``), on what (``target``), what was measured (``metric``,
``value``, ``unit``), where it was published (``source``) and what kind of evidence that is. One that cannot be used is a
``BadRecord`` with one line of reason; the others stay.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from ipuxla.calibration.parameters import Parameters
from ipuxla.errors import InvalidOption
from tiles.files import JsonObject

FIELDS = ("id", "family", "target", "params", "metric", "value", "unit", "source", "evidence")
"""What every record states; ``what`` and ``note`` are texts that it may leave out."""

TARGETS = {
    "gc2": "gc2",
    "gc200": "gc200",
    "bow": "bow",
    "c600": "c600",
    "mk1": "gc2",
    "mk2": "gc200",
    "mk2_unspecified": "bow",
    "mk2_fp8": "c600",
}
"""Machines by the names that records use.

A second generation that is not named more closely has a Bow's clock: at a GC200's, the dense products of the sweep that
says so would leave no time for exchange (see ``benchmarks/results/silicon.md``). With cycles it makes no difference.
"""

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
CYCLES = ("cycles", "tile cycles", "total cycles")
RATES = {"B/s": 1.0, "KB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}
FLOP_RATES = {"FLOP/s": 1.0, "MFLOP/s": 1e6, "GFLOP/s": 1e9, "TFLOP/s": 1e12}
ITEM_RATES = ("items/s", "images/s", "samples/s", "queries/s", "sequences/s", "tokens/s", "it/s", "steps/s")
SAMPLE_RATES = {
    "Msamples/s": 1e6,
    "MSamples/s": 1e6,
    "Gsamples/s": 1e9,
    "GSamples/s": 1e9,
    "Gnumbers/s": 1e9,
    "samples/cycle": 0.0,
}
"""Items per second, and 0 for items per cycle."""
FRACTIONS = ("x", "x dense", "fraction", "ratio", "%")

HARDWARE = ("hardware", "hardware_figure_read")
BOUND, SIMULATOR, OTHER = "hardware_bound", "simulator", ("secondary", "paper_parameter")
EVIDENCE = (*HARDWARE, BOUND, SIMULATOR, *OTHER)


class InvalidRecords(InvalidOption):
    """A file of records that is no JSON list of objects."""


@dataclass(frozen=True)
class BadRecord:
    """A record that cannot be used, and why, in one line."""

    where: str
    reason: str

    def __str__(self) -> str:
        """Return both as one line."""
        return f"{self.where}: {self.reason}"


@dataclass(frozen=True)
class Record:
    """A measurement; see the module's text.

    Args:
      id: its name in the file.
      family: what kind of program.
      what: the publication's words for what was measured.
      target: name of the machine, as ``Target.named`` takes it.
      params: the parameters of the program.
      metric: the kind of figure.
      value: the figure.
      unit: its unit.
      source: where it was published.
      evidence: hardware, a figure read off a plot, a bound, a simulator, ...
    """

    id: str
    family: str
    what: str
    target: str
    params: Parameters
    metric: str
    value: float
    unit: str
    source: str
    evidence: str

    @property
    def kind(self) -> str:
        """How it counts: "scored", or apart as "bound", "simulator", "time to train" or "other evidence"."""
        if self.metric == "time_to_train":
            return "time to train"
        if self.evidence == BOUND or self.metric.endswith("_bound"):
            return "bound"
        if self.evidence == SIMULATOR:
            return "simulator"
        return "other evidence" if self.evidence in OTHER else "scored"

    @property
    def ipus(self) -> int:
        """IPUs that took part."""
        return self.params.integer("ipus", 1)


def read_records(text: str, known_families: frozenset[str]) -> tuple[list[Record], list[BadRecord]]:
    """Return the records of a file that can be used, and those that cannot.

    Raises:
      InvalidRecords: the text is no JSON list.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRecords("a file of records is a JSON list of objects", got=f"no JSON: {error}") from None
    if not isinstance(data, list):
        raise InvalidRecords("a file of records is a JSON list of objects", got=type(data).__name__)
    good: list[Record] = []
    bad: list[BadRecord] = []
    seen: set[str] = set()
    for number, entry in enumerate(data):
        name = entry.get("id") if isinstance(entry, Mapping) else None
        where = name if isinstance(name, str) and name else f"record {number}"
        reason = _fault(entry, known_families)
        if reason is None and where in seen:
            reason = "another record has this id"
        if reason is not None:
            bad.append(BadRecord(where, reason))
            continue
        seen.add(where)
        good.append(_record(dict(entry)))
    return good, bad


def _fault(entry: object, known_families: frozenset[str]) -> str | None:
    """Return what is wrong with a record, None if nothing is."""
    if not isinstance(entry, Mapping):
        return f"expected an object, got {type(entry).__name__}"
    missing = [field for field in FIELDS if field not in entry]
    if missing:
        return f"lacks {', '.join(missing)}"
    for field in ("id", "family", "target", "metric", "unit", "source", "evidence"):
        if not isinstance(entry[field], str) or not entry[field]:
            return f"{field} is no text: {entry[field]!r}"
    value = entry["value"]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        return f"value is no positive number: {value!r}"
    if not isinstance(entry["params"], Mapping):
        return f"params is no object: {entry['params']!r}"
    if entry["target"] not in TARGETS:
        return f"unknown target {entry['target']!r}; known: {', '.join(TARGETS)}"
    if entry["family"] not in known_families:
        return f"unknown family {entry['family']!r}; known: {', '.join(sorted(known_families))}"
    if entry["evidence"] not in EVIDENCE:
        return f"unknown evidence {entry['evidence']!r}; known: {', '.join(EVIDENCE)}"
    if not is_known_unit(entry["unit"]):
        return f"unknown unit {entry['unit']!r}"
    return Parameters.fault(entry["params"])


def is_known_unit(unit: str) -> bool:
    """Return whether a figure can be told in a unit; what follows "of", "per" or a bracket qualifies it."""
    return unit_of(unit) is not None


def unit_of(unit: str) -> str | None:
    """Return a unit without what qualifies it ("GB/s per tile" is GB/s), None if it is none."""
    bare = unit.split(" (")[0].split(" per ")[0].strip()
    if bare.startswith("of "):
        return bare
    known = (*SECONDS, *CYCLES, *RATES, *FLOP_RATES, *ITEM_RATES, *SAMPLE_RATES, *FRACTIONS, "bytes")
    return bare if bare in known else None


def _record(entry: JsonObject) -> Record:
    return Record(
        entry["id"],
        entry["family"],
        str(entry.get("what", "")),
        TARGETS[entry["target"]],
        Parameters(dict(entry["params"])),
        entry["metric"],
        float(entry["value"]),
        entry["unit"],
        entry["source"],
        entry["evidence"],
    )
