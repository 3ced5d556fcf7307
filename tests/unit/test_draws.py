"""What property tests draw follows from the seed alone."""

from __future__ import annotations

import pathlib
import re
import sys
import types

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st


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
