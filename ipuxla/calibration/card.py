"""The calibration card: rows and scores as text, or as plain data for JSON."""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

from collections.abc import Sequence

from ipuxla.calibration.fitted import fitted
from ipuxla.calibration.held_out import LEVEL, held_out, intervals
from ipuxla.calibration.predict import Row
from ipuxla.calibration.records import BadRecord
from ipuxla.calibration.score import Score, score
from tiles.files import JsonObject

APART = ("bound", "simulator", "time to train", "other evidence")
SCHEMA = "ipuxla.calibration/1"


def scored(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that count: measured on hardware, no bounds."""
    return [row for row in rows if row.record.kind == "scored"]


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows that count, in all, of one IPU, and by family."""
    counted = scored(rows)
    families = sorted({row.record.family for row in counted})
    found = {"all": counted, "one IPU": [row for row in counted if row.record.ipus == 1]}
    return found | {name: [row for row in counted if row.record.family == name] for name in families}


def as_data(rows: Sequence[Row], bad: Sequence[BadRecord]) -> JsonObject:
    """Return everything as plain data."""
    scores = {name: _score_data(score(group)) for name, group in groups(rows).items()}
    return {
        "schema": SCHEMA,
        "all": scores.pop("all"),
        "one_ipu": scores.pop("one IPU"),
        "families": scores,
        "held_out": _held_out_data(rows),
        "without_family": {name: _score_data(value) for name, value in without_family(rows).items()},
        "fitted": [vars(each) for each in fitted()],
        "records": [_row_data(row) for row in rows],
        "bad_records": [{"id": fault.where, "reason": fault.reason} for fault in bad],
    }


def without_family(rows: Sequence[Row]) -> dict[str, Score]:
    """Return the score of the modelled rows that count but for one family, by family."""
    modelled = [row for row in scored(rows) if row.ratio is not None]
    families = sorted({row.record.family for row in modelled})
    return {name: score([row for row in modelled if row.record.family != name]) for name in families}


def _held_out_data(rows: Sequence[Row]) -> JsonObject:
    """Return how often intervals learnt from other sources hold, and those that all sources teach."""
    inside, total = held_out(scored(rows))
    learnt = {kind: [each.low, each.high] for kind, each in intervals(scored(rows)).items()}
    return {"level": LEVEL, "inside": inside, "rows": total, "intervals": learnt}


def _score_data(value: Score) -> JsonObject:
    return {
        "rows": value.rows,
        "modelled": value.modelled,
        "coverage": value.coverage,
        "error_factor": value.strict,
        "error_factor_modelled": value.modelled_only,
        "bias": value.bias,
        "inside_range": value.inside_share,
    }


def _row_data(row: Row) -> JsonObject:
    record = row.record
    return {
        "id": record.id,
        "family": record.family,
        "kind": record.kind,
        "target": record.target,
        "ipus": record.ipus,
        "unit": record.unit,
        "measured": record.value,
        "predicted": row.predicted,
        "ratio": row.ratio,
        "range": None if row.low is None else [row.low, row.high],
        "inside_range": row.is_inside,
        "basis_shares": row.basis_shares,
        "built": row.built,
    }


def as_text(rows: Sequence[Row]) -> str:
    """Return everything as text: the rows by family, what stands apart, the scores."""
    counted = scored(rows)
    blocks = []
    for family in sorted({row.record.family for row in counted}):
        blocks.append(f"{family}\n{_table([row for row in counted if row.record.family == family])}")
    for kind in APART:
        apart = [row for row in rows if row.record.kind == kind]
        if apart:
            blocks.append(f"apart: {kind} (no part of any score)\n{_table(apart)}")
    blocks.append(scores_text(rows))
    return "\n\n".join(blocks)


def scores_text(rows: Sequence[Row]) -> str:
    """Return the scores as a table."""
    head = ["rows", "number", "modelled", "error factor", "of modelled", "bias", "inside range"]
    lines = []
    for name, group in groups(rows).items():
        value = score(group)
        share = value.inside_share
        lines.append(
            [
                name,
                str(value.rows),
                str(value.modelled),
                _number(value.strict),
                _number(value.modelled_only),
                _number(value.bias),
                "-" if share is None else f"{100 * share:.0f} %",
            ]
        )
    return "\n\n".join([columns(head, lines), _held_out_text(rows), _without_text(rows), _fitted_text()])


def _without_text(rows: Sequence[Row]) -> str:
    """Return how much one family decides."""
    whole = score(scored(rows)).modelled_only
    found = {name: each.modelled_only for name, each in without_family(rows).items()}
    changes = [
        [name, f"{error:.3f}", f"{error - whole:+.3f}"]
        for name, error in found.items()
        if error is not None and whole is not None
    ]
    if not changes:
        return "too few families to leave one out"
    head = ["without", "error factor of modelled", "change"]
    return f"the error factor of modelled rows where a family is left out:\n{columns(head, changes)}"


def _fitted_text() -> str:
    """Return the constants that were fitted to something."""
    rows = [[each.name, f"{each.value:.4g}", each.unit] for each in fitted()]
    return f"{len(rows)} constants are FITTED:\n{columns(['constant', 'value', 'unit'], rows)}"


def _held_out_text(rows: Sequence[Row]) -> str:
    """Return the intervals that the rows teach, and how often those of other sources hold."""
    counted = scored(rows)
    lines = [
        [kind, str(found.rows), f"{found.low:.2f}", f"{found.high:.2f}"]
        for kind, found in intervals(counted).items()
    ]
    if not lines:
        return "too few rows to learn an interval from"
    inside, total = held_out(counted)
    share = f"{100 * inside / total:.0f} %" if total else "-"
    return (
        f"time measured over predicted, {100 * LEVEL:.0f} % of rows, by what most of a prediction rests on:\n"
        f"{columns(['kind', 'rows', 'low', 'high'], lines)}\n"
        f"learnt from all sources but one, such intervals hold {inside} of {total} measurements of that one ({share})"
    )


def _table(rows: Sequence[Row]) -> str:
    head = ["record", "target", "measured", "predicted", "unit", "ratio", "range", "rests on", "program"]
    lines = []
    for row in rows:
        record = row.record
        spread = "-" if row.low is None or row.high is None else f"{row.low:.4g} to {row.high:.4g}"
        lines.append(
            [
                record.id,
                record.target,
                f"{record.value:.6g}",
                "-" if row.predicted is None else f"{row.predicted:.6g}",
                record.unit,
                _number(row.ratio),
                spread,
                ", ".join(f"{basis} {100 * part:.0f}%" for basis, part in row.basis_shares.items()) or "-",
                row.built,
            ]
        )
    return columns(head, lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows in aligned columns."""
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )
