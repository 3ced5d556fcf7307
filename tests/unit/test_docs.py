"""Documents that state facts of the code are held against it."""

from __future__ import annotations

import re
from pathlib import Path

from ipuxla.lowering import RULES

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_operations_lists_every_lowering_and_nothing_else():
    listed = re.findall(r"`((?:stablehlo|func|hlo|chlo)\.\w+)`", (DOCS / "ops.md").read_text())
    assert sorted(set(listed)) == sorted(op.name for op in RULES)
