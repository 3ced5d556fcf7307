"""The example of an experiment of one's own: flags choose the machine, and a wrong one is told in a line."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

EXAMPLE = pathlib.Path(__file__).parents[2] / "docs" / "examples" / "own_experiment.py"


def call(*flags: str, cwd: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, EXAMPLE, *flags], capture_output=True, text=True, cwd=cwd)


def test_flags_reach_the_machine(tmp_path: pathlib.Path):
    (tmp_path / "my.flags").write_text("--target=gc2\n--engine=literal\n--report=out\n--steps=20\n")
    done = call("--flagfile=my.flags", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = re.match(r"slope (\S+), offset (\S+)\n", done.stdout)
    assert found
    slope = offset = (
        0.0  # the same descent by hand: over evenly spread x the slope's curvature is mean(x * x)
    )
    for _ in range(20):
        slope, offset = slope - 0.4 * (slope - 3) * (4097 / 4095) / 3, offset - 0.4 * (offset + 1)
    assert abs(float(found[1]) - slope) < 2e-3 and abs(float(found[2]) - offset) < 2e-3
    assert "gc2 (1,216 tiles" in (tmp_path / "out" / "summary.txt").read_text()
    assert "engine literal" in (tmp_path / "out" / "summary.txt").read_text()


def test_a_wrong_machine_is_told_before_anything_runs(tmp_path: pathlib.Path):
    done = call("--target=gc201", cwd=tmp_path)
    assert done.returncode == 1 and not done.stdout
    assert "did you mean 'gc200'" in done.stderr and "Traceback" not in done.stderr
