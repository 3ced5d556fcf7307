"""The README's Python examples run as written, in an empty folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.fixture
def few_examples() -> Iterator[None]:
    """Let hypothesis draw two examples, each a program to compile on every engine."""
    usual = hypothesis.settings.get_current_profile_name()
    hypothesis.settings.register_profile("few", hypothesis.settings.get_profile(usual), max_examples=2)
    hypothesis.settings.load_profile("few")
    yield
    hypothesis.settings.load_profile(usual)


@pytest.mark.usefixtures("few_examples")
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_example_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "example.py"  # a file of its own, so that source lines exist
    path.write_text(BLOCKS[number])
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(BLOCKS[number], str(path), "exec"), names)
    if "test_softmax" in names:
        names["test_softmax"]()  # type: ignore[operator]
    elif "layer" in names:
        assert names["y"].shape == (128, 1024)  # type: ignore[attr-defined]
        assert names["g"].shape == (784, 1024)  # type: ignore[attr-defined]
        written = {p.name for p in (tmp_path / "runs" / "layer").iterdir()}
        assert written == {"summary.txt", "profile.json", "report.html"}
        assert (tmp_path / "layer.ipuxla").stat().st_size > 0
    else:
        assert (names["z"] == 2 * names["values"]).all()  # type: ignore[attr-defined, operator]


def test_the_two_commands_are_shown():
    text = README.read_text()
    assert "make run" in text and "make test" in text
