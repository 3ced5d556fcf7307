"""What property tests draw follows from the seed alone."""

from __future__ import annotations

import pathlib
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
