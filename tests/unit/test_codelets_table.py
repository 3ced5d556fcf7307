"""The table of poplibs' codelets says of each whether there is tile code for it."""

from __future__ import annotations

import pathlib

from tiles import poplibs
from tiles.graph import Codelet
from tiles.graph.codelet import CODELETS
from tiles.graph.collective import Collective

TABLE = pathlib.Path(__file__).parents[2] / "benchmarks" / "results" / "codelets.md"


def test_the_table_lists_every_codelet_and_whether_it_has_code() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in TABLE.read_text().splitlines()]
    listed = {name: code for name, code in filter(len, rows) if code in ("yes", "none", "its steps'")}
    own = {name: cls for name, cls in CODELETS.items() if cls.__module__.startswith(poplibs.__name__)}
    expected = {name: "none" if cls.tile_code is Codelet.tile_code else "yes" for name, cls in own.items()}
    expected |= {name: "its steps'" for name, cls in own.items() if issubclass(cls, Collective)}
    assert listed == expected, "run: python -m benchmarks.codelets"
