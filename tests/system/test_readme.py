"""The Python examples of the README and of the guide run as written, in an empty folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import numpy as np
import pytest

import ipuxla
from tiles.target import Target, find_system

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "guide.md"
MANY_IPUS = ROOT / "docs" / "many_ipus.md"
CODELETS = ROOT / "docs" / "codelets.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


BLOCKS = blocks(README, "python")


@pytest.fixture
def few_examples() -> Iterator[None]:
    """Let hypothesis draw two examples, each a program to compile on every engine."""
    usual = hypothesis.settings()
    hypothesis.settings.register_profile("few", usual, max_examples=2)
    hypothesis.settings.load_profile("few")
    yield
    hypothesis.settings.register_profile("usual", usual)
    hypothesis.settings.load_profile("usual")


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


def test_the_page_on_codelets_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = "\n".join(blocks(CODELETS, "python"))
    path = tmp_path / "page.py"
    path.write_text(source)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    exec(compile(source, str(path), "exec"), names)
    x, w = names["x"], names["w"]
    want = np.tanh(sum(w[k] * x[k : k + 62] for k in range(3)))  # type: ignore[index]
    np.testing.assert_allclose(names["y"], want, atol=1e-6)  # type: ignore[arg-type]


def test_the_two_commands_are_shown():
    text = README.read_text()
    assert "make run" in text and "make test" in text


def test_the_tour_of_one_tensor_splits_it_as_planning_does():
    shapes = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((128, 784), (784, 1024), (1024,)))
    layer = ipuxla.jit(lambda x, w, b: jax.nn.relu(x @ w + b), target="gc200")
    plans = json.loads(layer.lower(*shapes).as_text("plans"))["plans"]
    parts = [-(-size // part) for size, part, _ in plans["dot.partials"]["splits"]]
    text = " ".join(README.read_text().split())
    assert "splits the product over {} x {} x {} parts".format(*parts) in text
    assert f"{parts[1]} x {parts[2]} blocks, each divided among the {parts[0]} tiles" in text
    assert f"adds the {parts[2]} partials" in text


def test_the_guide_compares_machines(capsys: pytest.CaptureFixture[str]):
    (code,) = blocks(GUIDE, "python")
    exec(compile(code, str(GUIDE), "exec"), {"__name__": "guide"})
    rows = [[int(word) for word in line.split()] for line in capsys.readouterr().out.splitlines()]
    gc2, gc200, twice_as_wide = rows
    assert gc2[0] > gc200[0], "fewer tiles, and half the multiply-accumulates of float32 on each"
    assert twice_as_wide[1] < gc200[1], "an exchange twice as wide takes less time"


def test_the_guide_s_machine_of_one_s_own_is_a_target(tmp_path: Path):
    (data,) = blocks(GUIDE, "json")
    path = tmp_path / "mine.json"
    path.write_text(data)
    assert Target.named(str(path)).num_tiles == 64


def test_the_page_on_several_ipus_prints_what_it_says(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    codes, texts, (data,) = (blocks(MANY_IPUS, language) for language in ("python", "text", "json"))
    for code, said in zip(codes, texts, strict=True):
        exec(compile(code, str(MANY_IPUS), "exec"), {"__name__": "many_ipus"})
        assert capsys.readouterr().out == said
    path = tmp_path / "my_server.json"
    path.write_text(data)
    assert len(find_system(str(path)).table.ends) == len(find_system("dss8440").table.ends) + 2
