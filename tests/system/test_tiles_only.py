"""Tiles alone: the documented example builds, compiles and runs a user's codelet, and no HLO is involved."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from types import ModuleType

import jax
import numpy as np
import pytest

import tiles
from tests.flow import ENGINES
from tests.flow import run as run_engine
from tiles.compiler import step_costs
from tiles.numerics.ring import to_ring
from tiles.numerics.tolerance import check_close
from tiles.report import memory_analysis, profile

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "two_stage_reduction.py"
X, Y = np.random.default_rng(1).standard_normal((2, 4096)).astype(np.float32)


def load_example(name: str = "two_stage_reduction") -> ModuleType:
    """Import an example from its file."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLE.with_stem(name))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load_example()


@pytest.fixture(scope="module")
def executable(example) -> tiles.Executable:
    return tiles.compile_graph(example.build(tiles.Target.named("gc200")))


def test_the_example_runs_where_no_hlo_can_be_imported():
    code = f"""
        import runpy, sys

        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("ipuxla", "hlo_passes"):
                    raise ImportError(name + " is not here")

        sys.meta_path.insert(0, Refuse())
        runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *_ = done.stdout.splitlines()
    engine, total, _, witness = first.replace(",", "").split()
    assert engine == "fast" and abs(float(total) - float(witness)) <= 1e-4 * float(witness)
    assert "step 1 squares.partials: example.SumOfSquares" in done.stdout


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_computes_it(executable, engine):
    z, total = run_engine(executable, engine, (X, Y))
    np.testing.assert_array_equal(z, X + Y)
    check_close(total, np.float32(((X.astype(float) + Y) ** 2).sum()), engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_ring_form_of_a_users_codelet_needs_no_user(executable, engine):
    words, total = run_engine(executable, engine, (X, Y), "ring")
    with jax.enable_x64(True):
        x, y = (np.asarray(to_ring(v)) for v in (X, Y))
    np.testing.assert_array_equal(words, x + y)
    assert total == np.sum((x + y) * (x + y), dtype=np.uint32)


def test_two_stages_on_the_tiles_that_hold_the_parts(executable):
    groups = {group.name: group for _, group in executable.groups()}
    assert list(groups) == ["z", "squares.partials", "squares.combine"]
    assert groups["squares.partials"].codelet.name == "example.SumOfSquares"
    assert groups["squares.partials"].plan.num_cells == 64
    assert not groups["squares.partials"].operands[0].buffer, "z is read where it lies"
    assert groups["squares.combine"].operands[0].buffer, "partials come by exchange"
    tiles.certify(executable)


def test_a_training_loop_streams_its_batches(capsys):
    training = load_example("training_stream")
    training.main(tiles.Target.named("gc200").replace(num_tiles=16), steps=150)
    first, last, error = re.findall(r"\d+\.\d+", capsys.readouterr().out)
    assert float(first) > 10 and float(last) < 1e-3 and float(error) < 1e-2


def test_layers_are_loaded_from_beside_the_ipu(capsys):
    example, small = load_example("remote_layers"), tiles.Target.named("gc200").replace(num_tiles=16)
    example.main(small, layers=7)
    captured = capsys.readouterr()
    assert float(captured.out.split()[-1]) < 1e-5
    assert len(re.findall(r"^largest: 0\.\d+$", captured.err, re.MULTILINE)) == 7
    few, many = (tiles.compile_graph(example.build(small, layers)) for layers in (2, 200))
    assert memory_analysis(few)["total_bytes"] == memory_analysis(many)["total_bytes"]


def test_its_cost_uses_the_users_figure(executable):
    costs = {cost.name: cost for cost in step_costs(executable)}
    target = executable.target
    assert costs["squares.partials"].source == "this example"
    assert costs["squares.partials"].compute_cycles == 64 // target.workers_per_tile + 20
    assert costs["squares.partials"].exchange_cycles == 0
    plans = {group.name: group.plan for _, group in executable.groups()}
    (joined_on,) = plans["squares.combine"].tiles
    brought = np.count_nonzero(plans["squares.partials"].tiles != joined_on)
    assert brought >= 63
    assert costs["squares.combine"].exchange_bytes == 4 * brought, (
        "all partials but one that is already there"
    )
    (operation,) = [o for o in profile(executable).data["operations"] if o["name"] == "squares"]
    assert operation["vertexTypes"][0] == "example.SumOfSquares"


ELSEWHERE = """
    import hashlib, importlib.util, json, sys

    import numpy as np
    import tiles
    from tiles.engine import make_engine
    from tiles.report import profile

    path, source = sys.argv[1:]
    with open(path, "rb") as file:
        executable = tiles.load_executable(file.read())
    assert "example.SumOfSquares" not in tiles.graph.codelet.CODELETS
    x, y = np.random.default_rng(1).standard_normal((2, 4096)).astype(np.float32)
    found = {"certificate": str(tiles.certify(executable))}
    for choice in ("fast float", "fast ring", "vertex float"):
        outputs, trace = make_engine(executable, *choice.split()).run(x, y)
        found[choice] = [[np.asarray(v).tobytes().hex() for v in outputs], list(trace.counts)]
    found["report"] = profile(executable, trace).to_json()
    spec = importlib.util.spec_from_file_location("copied", source)
    copied = sys.modules["copied"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)
    anew = tiles.compile_graph(copied.build(executable.target)).to_bytes()
    found["compiled anew"] = hashlib.sha256(anew).hexdigest()
    print(json.dumps(found))
"""


def test_a_file_carries_the_codelet_it_needs(example, tmp_path):
    """A process that has never seen the codelet computes, reports and certifies the same; one that compiles it
    from a copy elsewhere gives the same bytes."""
    executable = tiles.compile_graph(example.build(tiles.Target.named("gc200").replace(num_tiles=64)))
    blob = executable.to_bytes()
    (tmp_path / "program").write_bytes(blob)
    source = tmp_path / "anywhere.py"
    source.write_text("# moved down by one line\n" + EXAMPLE.read_text())
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ELSEWHERE), str(tmp_path / "program"), str(source)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    for choice in ("fast float", "fast ring", "vertex float"):
        outputs, trace = tiles.make_engine(executable, *choice.split()).run(X, Y)
        assert there[choice] == [[np.asarray(v).tobytes().hex() for v in outputs], list(trace.counts)], choice
    assert there["report"] == profile(executable, trace).to_json()
    assert there["certificate"] == str(tiles.certify(executable))
    assert there["compiled anew"] == hashlib.sha256(blob).hexdigest()


def test_any_other_plan_gives_the_same_words(example):
    """Cuts that are uneven, or do not exist, change where and when things are added, not which."""
    want = None
    for target, size, parts in (("gc2", 4096, 128), ("gc200", 4096, 1), ("gc200", 4096, 4096 // 96)):
        machine = tiles.Target.named(target)
        graph = example.build(machine, size, parts) if size % parts == 0 else _uneven(example, machine, parts)
        words = run_engine(tiles.compile_graph(graph), "literal", (X, Y), "ring")
        want = want or words
        assert all((a == b).all() for a, b in zip(words, want, strict=True))


def _uneven(example: ModuleType, target: tiles.Target, parts: int) -> tiles.Graph:
    graph = tiles.Graph(target)
    x, y = (graph.add_input((4096,), "float32", name) for name in "xy")
    cut = tiles.Plan((tiles.AxisSplit(4096, -(-4096 // parts), ((parts, 2),)),), 5)
    z = tiles.popops.add(graph, x, y, plan=cut)
    form = tiles.forms.reduce_form((4096,), (0,))
    (total,) = tiles.place(
        tiles.Site(graph, "squares"), example.SumOfSquares(), form, [z], ("float32",), plan=cut
    )
    graph.outputs = [z.name, total.name]
    return graph
