"""Documents that state facts of the code are held against it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hlo_passes.passes import DEFAULT_PIPELINE, PASSES, Pipeline
from hlo_passes.passes.expansions import EXPANSIONS
from ipuxla.frontend.legalization import LEGALIZED
from ipuxla.lowering import RULES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "ARCHITECTURE.md", *sorted((DOCS / "decisions").glob("*.md"))]


def test_the_page_of_operations_lists_every_lowering_and_nothing_else():
    listed = re.findall(r"`((?:stablehlo|func|hlo|chlo)\.\w+)`", (DOCS / "ops.md").read_text())
    lowered = {op.name for op in RULES} | {name for cls in PASSES.values() for name in cls.removes}
    lowered |= {op.name for op in EXPANSIONS}
    lowered |= {name for name in LEGALIZED if name.startswith("stablehlo.")}
    assert sorted(set(listed)) == sorted(lowered)


def test_what_passes_remove_is_removed_by_default():
    default = {type(item) for item in Pipeline.parse(DEFAULT_PIPELINE).items}
    assert {cls for cls in PASSES.values() if cls.removes} <= default


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    folders = [ROOT / name for name in ("ipuxla", "hlo_passes", "tiles", "configs", "benchmarks", "docs")]
    known = {path.relative_to(ROOT) for folder in folders for path in folder.rglob("*")}
    known |= {path.relative_to(ROOT) for path in ROOT.glob("*")}
    named = re.findall(r"`([\w/{},.*]+\.(?:py|md|json|toml)|\w+/[\w/]*)`", text)
    named += [
        str((page.parent / link).resolve().relative_to(ROOT)) for link in re.findall(r"\]\(([\w/.]+)\)", text)
    ]
    assert named
    for name in named:
        before, _, rest = name.rstrip("/").partition("{")
        inside, _, after = rest.partition("}")
        for each in inside.split(",") if rest else [""]:
            assert any(
                path.match(f"**/{before}{each}{after}") or path.match(before + each + after) for path in known
            ), name
