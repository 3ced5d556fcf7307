"""Elementwise codelets of small programs: what a prediction charges beside what their tile code takes.

python -m benchmarks.tile_code_programs

Predictions follow PopLibs' estimators where they state a figure (DOCUMENTED); elsewhere they are the code's (DERIVED), and
where there is none a reading of the estimators (ASSUMED). The codelets are those that `tests.small_models` place, here all
on 3,000 elements.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from absl import app

import ipuxla
from benchmarks.timing import table, write_result
from tests.small_models import MODELS
from tiles.errors import IpuError
from tiles.graph import Extents
from tiles.poplibs.forms import broadcast_map, map_form
from tiles.poplibs.popops.map import Map
from tiles.target import Target

ELEMENTS = 3_000


def codelets() -> Iterator[Map]:
    """Yield the expressions of all models in 32-bit types, each once."""
    seen: set[Map] = set()
    for model in MODELS.values():
        if model.wide:
            continue
        compiled = ipuxla.jit(model.function).lower(*model.arguments).compile()
        for _, group in compiled.executable.groups():
            codelet = group.codelet
            if isinstance(codelet, Map) and codelet.body and codelet not in seen:
                seen.add(codelet)
                yield codelet


def cell(codelet: Map) -> Extents:
    """Return a cell of vectors."""
    maps = tuple(broadcast_map((ELEMENTS,), (ELEMENTS,)) for _ in codelet.operand_dtypes)
    form = map_form((ELEMENTS,), maps, len(codelet.outputs))
    return Extents(form, (np.array([ELEMENTS]),), codelet.operand_dtypes, codelet.result_dtypes)


def predicted(codelet: Map, target: Target) -> tuple[int, str]:
    """Return the cycles that a prediction charges for vectors, and their basis."""
    cycles = codelet.cycles(cell(codelet), target)
    return int(np.max(cycles.value)), str(cycles.basis)


def code_cycles(codelet: Map, target: Target) -> int:
    """Return the cycles of the codelet's tile code.

    Raises:
      IpuError: there is no code for it.
    """
    return int(np.max(sum(part.cycles for part in codelet.tile_code(cell(codelet), target))))


def main(argv: list[str]) -> None:
    """Print and record the table."""
    del argv
    target = Target.named("gc200")
    lines: list[tuple[str, ...]] = []
    for codelet in codelets():
        charged, basis = predicted(codelet, target)
        try:
            code = code_cycles(codelet, target)
            found = (f"{code:,}", f"{code / charged:.2f}")
        except IpuError as error:
            found = (str(error).splitlines()[0], "")
        lines.append((codelet.label, f"{charged:,}", basis, *found))
    text = table(("codelet", "predicted", "basis", "code", "ratio"), lines)
    print(text)
    write_result("tile_code_programs", text)


if __name__ == "__main__":
    app.run(main)
