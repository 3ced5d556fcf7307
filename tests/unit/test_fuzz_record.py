"""The record of what was drawn adds up, and what is drawn is what the record says."""

from __future__ import annotations

import pathlib

import jax
import numpy as np
import pytest

from tests.fuzz import record
from tests.programs import RandomProgram, Step, with_smooth_results


def test_runs_add_up(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is a line, kept as it stands; the sums are of all of them."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results.md")
    record.add("2026-11-22", "0123abc", 7, 12.4, {"programs": 1000, "long": 990, "on all": 999, "found": 1})
    first = record.rows()
    record.add("2026-11-23", "?", 8, 30, {"programs": 60, "modules": 50, "refused": 2})
    assert record.rows() == [*first, ("2026-11-23", "?", "8", "30", *"60 0 0 0 0 0 0 0 0 50 0 2 0".split())]
    last = record.RESULTS.read_text(encoding="utf-8").splitlines()[-1]
    assert [cell.strip() for cell in last.strip("|").split("|")] == [
        "all", "", "", "42", "1,060", "990", "0", "0", "999", "0", "0", "0", "0", "50", "0", "2", "1",
    ]  # fmt: skip


def test_the_committed_record_is_what_its_lines_make() -> None:
    """Nobody changed a sum by hand."""
    assert record.RESULTS.read_text(encoding="utf-8") == record.text(record.rows())


def test_smooth_results_are_all_that_no_jump_touches() -> None:
    """Steps that jump, and what reads them, are left out; the last values before them become results."""
    steps = (
        Step("tanh", np.tanh, (0,)),  # 1
        Step("floor", np.floor, (1,)),  # 2
        Step("add", np.add, (0, 2)),  # 3
        Step("neg", np.negative, (0,)),  # 4
    )
    program = RandomProgram((jax.ShapeDtypeStruct((2,), np.dtype("float32")),), steps, (3, 4))
    widened, smooth = with_smooth_results(program)
    assert (widened.results, smooth) == ((3, 4, 1), (1, 2))
    assert len(widened.function(np.ones(2, np.float32))) == 3
