"""What no caller can cause comes out as one named error, with the operation, the line and files that reproduce it."""

from __future__ import annotations

import importlib
import json
import re
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from hlo_passes.ir import parse_module
from hlo_passes.passes import BrokenPass, EliminateCommonSubexpressions
from ipuxla.errors import InternalError
from ipuxla.lowering import UnsupportedLowering, registry
from tiles.errors import InvalidPlan, OutOfTileMemory
from tiles.graph import Codelet

operations = importlib.import_module("tiles.planning.operations")

TARGET = ipuxla.Target.named("gc200").replace(num_tiles=8)


def model(x, w):
    with jax.named_scope("Net"), jax.named_scope("Dense_0"):
        return x @ w  # the line that errors must name


LINE = f"{__file__}:{model.__code__.co_firstlineno + 2} in Net/Dense_0"


def compiled(function=model, **options):
    x = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    return ipuxla.jit(function, target=TARGET, **options).lower(x, x).compile()


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


def _planner(monkeypatch, error):
    monkeypatch.setattr(operations, "choose", failing(error))


@pytest.mark.parametrize(
    "error",
    [
        IndexError("no such axis"),
        InvalidPlan("the planner's own"),
        AssertionError(),
        np.exceptions.AxisError("odd"),
    ],
)
def test_a_failing_planner_is_one_named_error(monkeypatch, own_folder, error):
    _planner(monkeypatch, error)
    with pytest.raises(InternalError, match="ipuxla failed on this program") as caught:
        compiled()
    found = caught.value
    assert found.__cause__ is error and type(error).__name__ in str(found)
    assert found.location == LINE
    assert "step: dot" in found.notes
    assert "bug of ipuxla" in str(found) and str(found.folder) in str(found)
    assert found.folder is not None and found.folder.parent == own_folder


def test_the_files_reproduce_it(monkeypatch):
    _planner(monkeypatch, KeyError("digits"))
    with pytest.raises(InternalError) as caught:
        compiled()
    folder = caught.value.folder
    assert folder is not None and re.fullmatch(r"ipuxla-report-[0-9a-f]{12}", folder.name)
    monkeypatch.undo()
    names = {path.name for path in folder.iterdir()}
    assert names == {"module.mlir", "module.hlo", "target.json", "options.json", "error.txt"}
    assert ipuxla.Target.from_data(json.loads((folder / "target.json").read_text())) == TARGET
    assert parse_module((folder / "module.hlo").read_text()).entry == "main"
    assert "KeyError" in (folder / "error.txt").read_text() and "jaxlib" in (folder / "error.txt").read_text()
    assert json.loads((folder / "options.json").read_text())["engine"] == "fast"
    again = ipuxla.compile_stablehlo((folder / "module.mlir").read_text(), str(folder / "target.json"))
    x = jnp.eye(16)
    np.testing.assert_allclose(again(x, x)[0], x)


def test_the_same_failure_has_the_same_folder(monkeypatch, own_folder):
    _planner(monkeypatch, ZeroDivisionError("nothing"))
    for _ in range(2):
        with pytest.raises(InternalError):
            compiled(lambda x, w: x @ w)
    assert len(list(own_folder.iterdir())) == 1


def test_where_nothing_can_be_written_the_error_says_so(monkeypatch):
    _planner(monkeypatch, ZeroDivisionError("nothing"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/nowhere")
    monkeypatch.setattr("pathlib.Path.mkdir", failing(OSError("read-only")))
    with pytest.raises(InternalError, match="no folder could be written") as caught:
        compiled()
    assert caught.value.folder is None


def test_a_codelet_that_fails_while_memory_is_planned_names_its_step(monkeypatch):
    monkeypatch.setattr(Codelet, "state_bytes", failing(TypeError("no code")))
    with pytest.raises(InternalError, match="TypeError: no code") as caught:
        compiled(lambda x, w: jnp.exp(x) + w)
    assert any(note.startswith("step: ") for note in caught.value.notes)
    assert __file__ in caught.value.location


def test_a_failing_pass_is_one_named_error(monkeypatch):
    monkeypatch.setattr(EliminateCommonSubexpressions, "change", failing(RuntimeError("no pass")))
    with pytest.raises(InternalError, match="no pass"):
        compiled(lambda x, w: x @ w)
    monkeypatch.setattr(EliminateCommonSubexpressions, "change", failing(ValueError("no pass")))
    with pytest.raises(InternalError, match="BrokenPass"):
        compiled(lambda x, w: x @ w)


def test_what_callers_cause_stays_what_it_is(monkeypatch, own_folder):
    with pytest.raises(OutOfTileMemory):
        x = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
        ipuxla.jit(model, target=TARGET).lower(x, x).compile()
    monkeypatch.setattr(EliminateCommonSubexpressions, "change", failing(ValueError("no pass")))
    with pytest.raises(BrokenPass):
        compiled(passes="cse")
    monkeypatch.undo()
    monkeypatch.chdir(own_folder)
    plans = compiled().as_text("plans")
    _planner(monkeypatch, InvalidPlan("of the user"))
    monkeypatch.setattr(operations, "_pinned", failing(InvalidPlan("of the user")))
    with pytest.raises(InvalidPlan, match="of the user"):
        compiled(plans=plans)
    monkeypatch.undo()
    monkeypatch.chdir(own_folder)
    monkeypatch.setattr(registry, "RULES", {})
    with pytest.raises(UnsupportedLowering):
        compiled(lambda x, w: x @ w + 1)
    assert not list(own_folder.iterdir())
