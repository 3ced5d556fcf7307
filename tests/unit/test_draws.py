"""What property tests draw follows from the seed alone."""

from __future__ import annotations

import pathlib
import re
import sys
import types

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.conftest import EXTENDED, ONE_IN, left_out


def drawn() -> list[tuple[int, str]]:
    """Return what one seed draws."""
    seen: list[tuple[int, str]] = []

    @seed(7)
    @settings(max_examples=200, derandomize=False, database=None)
    @given(st.integers(), st.floats())
    def collect(whole: int, real: float) -> None:
        seen.append((whole, str(real)))

    collect()
    return seen


def test_a_seed_draws_the_same_whatever_is_imported(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants of modules that are imported in between are not drawn: hypothesis reads them from their files."""
    before = drawn()
    module = types.ModuleType("constants_of_nobody")
    module.__file__ = str(tmp_path / "constants_of_nobody.py")
    text = "\n".join(f"x{n} = {n * 7919 + 100_000}\ny{n} = {n}.6180339" for n in range(300))
    pathlib.Path(module.__file__).write_text(text)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert drawn() == before
    assert len(set(before)) > 100


TESTS = pathlib.Path(__file__).parents[1]
OWN = {"conftest.py", "budgets.py", "test_draws.py", "test_readme.py", "kinds.py"}
"""Where numbers of examples are: the profiles, shares of them, fuzzing, and tests of what is drawn or set as a user may."""


def test_only_profiles_say_how_many_examples_are_drawn() -> None:
    said = re.compile(r"\bmax_examples\b|\bderandomize\b|@settings\(")
    files = [path for path in TESTS.rglob("*.py") if path.name not in OWN]
    assert len(files) > 100
    assert [path.name for path in files if said.search(path.read_text(encoding="utf-8"))] == []


def test_each_long_test_runs_in_one_of_so_many_turns():
    lines = [line for line in EXTENDED.read_text().splitlines() if line and not line.startswith("#")]
    by_mark = {mark: [line[2:] + "[x]" for line in lines if line.startswith(mark)] for mark in ("~ ", "! ")}
    others = [line + "[x]" for line in lines if line[:2] not in by_mark]
    names = [*by_mark["~ "], *by_mark["! "], *others, "tests/unit/test_draws.py::test_anything"]
    runs = [[not out for out in left_out(names, 0, turn)] for turn in range(ONE_IN)]
    times = dict(zip(names, map(sum, zip(*runs, strict=True)), strict=True))
    assert all(times[name] == 1 for name in by_mark["~ "]) and times[names[-1]] == ONE_IN
    assert not any(times[name] for name in (*by_mark["! "], *others))
    drawn = [not out for out in left_out(names, 1, 0)]
    assert [name for name, runs in zip(names, drawn, strict=True) if not runs and name in others] == []
