"""What passes make of small inputs: each ``passes/*.hlo`` file holds cases of input and expected text.

A case starts with ``// case: <title>`` and ``// pipeline: <text>``, then comes a module, or a computation
that is its own module, and after ``// expected:`` what the pipeline makes of it. ``--update-golden`` rewrites
what is expected.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from hlo_passes.ir import Module, parse_computation, parse_module, print_computation, print_module
from hlo_passes.passes import optimize
from tests.comparison import assert_same_bits, results, special_array

FOLDER = Path(__file__).parent / "passes"
CASE = re.compile(
    r"// case: ([^\n]*)\n// pipeline: ([^\n]*)\n(.*?)// expected:\n(.*?)(?=\n*// case: |\Z)", re.DOTALL
)


class Case(NamedTuple):
    title: str
    pipeline: str
    given: str
    expected: str

    @property
    def module(self) -> Module:
        if self.given.startswith("module"):
            return parse_module(self.given)
        computation = parse_computation(self.given)
        return Module("m", (computation,), computation.name)

    def run(self) -> str:
        optimized = optimize(self.module, self.pipeline)
        is_module = self.given.startswith("module")
        return print_module(optimized) if is_module else print_computation(optimized.entry_computation)


def read(path: Path) -> list[Case]:
    return [Case(*match) for match in CASE.findall(path.read_text(encoding="utf-8"))]


def files() -> list[Path]:
    return sorted(FOLDER.glob("*.hlo"))


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_golden(path, request):
    cases = read(path)
    assert cases
    if request.config.getoption("--update-golden"):
        parts = [
            f"// case: {c.title}\n// pipeline: {c.pipeline}\n{c.given}// expected:\n{c.run()}" for c in cases
        ]
        path.write_text("\n".join(parts), encoding="utf-8")
        return
    for case in cases:
        assert case.run().rstrip() == case.expected.rstrip(), f"{path.name}: {case.title}"


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_cases_keep_results(path):
    """What a case rewrites means the same on zeros of both signs, infinities, NaN and extreme integers."""
    rng = np.random.default_rng(0)
    for case in read(path):
        module = case.module
        arrays = [special_array(type_, rng) for type_ in module.entry_computation.parameter_types]
        assert_same_bits(results(module, arrays), results(optimize(module, case.pipeline), arrays))
