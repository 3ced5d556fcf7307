"""What passes make of small inputs: each ``passes/*.hlo`` file holds cases of input, pipeline and expected text.

A case starts with ``// case: <title>`` and ``// pipeline: <text>``, then comes a module, or a computation that is its
own module, and after ``// expected:`` what the pipeline makes of it. ``--update-golden`` rewrites what is expected.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from hlo_passes.ir import Module, parse_computation, parse_module, print_computation, print_module
from hlo_passes.passes import optimize

FOLDER = Path(__file__).parent / "passes"
CASE = re.compile(r"// case: (.*)\n// pipeline: (.*)\n(.*?)// expected:\n(.*?)(?=\n*// case: |\Z)", re.DOTALL)


class Case(NamedTuple):
    title: str
    pipeline: str
    given: str
    expected: str

    def run(self) -> str:
        if self.given.startswith("module"):
            return print_module(optimize(parse_module(self.given), self.pipeline))
        computation = parse_computation(self.given)
        module = Module("m", (computation,), computation.name)
        return print_computation(optimize(module, self.pipeline).entry_computation)


def read(path: Path) -> list[Case]:
    return [Case(*match) for match in CASE.findall(path.read_text(encoding="utf-8"))]


def files() -> list[Path]:
    return sorted(FOLDER.glob("*.hlo"))


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_golden(path, request):
    cases = read(path)
    assert cases
    if request.config.getoption("--update-golden"):
        parts = [f"// case: {c.title}\n// pipeline: {c.pipeline}\n{c.given}// expected:\n{c.run()}" for c in cases]
        path.write_text("\n".join(parts), encoding="utf-8")
        return
    for case in cases:
        assert case.run().rstrip() == case.expected.rstrip(), f"{path.name}: {case.title}"
