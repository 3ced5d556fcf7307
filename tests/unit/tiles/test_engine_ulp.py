"""Floats of different engines lie within the bounds that ``docs/numerics.md`` states; the document is what is read."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.ulp import DTYPES, KINDS, measure

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs" / "numerics.md"
ROW = re.compile(
    r"\| (?P<kind>[^|]+) \| (?P<unit>[^|]*ulp[^|]*) \| (?P<wide>[\d.]+) \| (?P<narrow>[\d.]+) \|"
)


def stated() -> dict[str, tuple[str, float, float]]:
    """Return the table of bounds: unit, and bound of wide and of 16-bit floats, by kind."""
    rows = ROW.finditer(DOCUMENT.read_text(encoding="utf-8"))
    return {row["kind"]: (row["unit"], float(row["wide"]), float(row["narrow"])) for row in rows}


def test_every_kind_has_a_bound():
    assert set(stated()) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_engines_are_within_the_stated_bound(kind):
    """One case of each kind, under a random plan, of a type that changes from kind to kind."""
    _, wide, narrow = stated()[kind]
    dtype = DTYPES[list(KINDS).index(kind) % len(DTYPES)]
    found = measure(kind, dtype, seed=101)
    assert found <= (wide if dtype in DTYPES[:2] else narrow), f"{kind} of {dtype}: {found}"
