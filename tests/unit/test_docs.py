"""Documents that state facts of the code are held against it."""

from __future__ import annotations

import re
from pathlib import Path

from hlo_passes.passes import DEFAULT_PIPELINE, PASSES, Pipeline
from hlo_passes.passes.expansions import EXPANSIONS
from ipuxla.frontend.rewritten import REWRITTEN
from ipuxla.lowering import RULES

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_operations_lists_every_lowering_and_nothing_else():
    listed = re.findall(r"`((?:stablehlo|func|hlo|chlo)\.\w+)`", (DOCS / "ops.md").read_text())
    lowered = {op.name for op in RULES} | {name for cls in PASSES.values() for name in cls.removes}
    lowered |= {op.name for op in EXPANSIONS}
    lowered |= {name for name in REWRITTEN if name.startswith("stablehlo.")}
    assert sorted(set(listed)) == sorted(lowered)


def test_what_passes_remove_is_removed_by_default():
    default = {type(item) for item in Pipeline.parse(DEFAULT_PIPELINE).items}
    assert {cls for cls in PASSES.values() if cls.removes} <= default
