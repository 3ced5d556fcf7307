"""Elementwise codelets of small programs: what a prediction charges today beside what their tile code takes.

python -m benchmarks.tile_code_programs

Predictions follow PopLibs' estimators where they state a figure (DOCUMENTED) and a reading of them for fused
expressions (ASSUMED). The codelets are those that `tests.small_models` place, here all on 3,000 elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from absl import app

import ipuxla
from benchmarks.timing import table, write_result
from tests.small_models import MODELS
from tiles.elements import compile_cell, contiguous, cost_of, of_target
from tiles.errors import IpuError
from tiles.graph import Extents
from tiles.poplibs.forms import broadcast_map, map_form
from tiles.poplibs.popops.expression import evaluate_body
from tiles.poplibs.popops.map import Map
from tiles.target import Target

ELEMENTS = 3_000
ONE_ELEMENT: Any = SimpleNamespace(sizes=(), origin=())
"""A cell without dimensions, for functions that ask for the cell's sizes."""


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


def predicted(codelet: Map, target: Target) -> tuple[int, str]:
    """Return the cycles that a prediction charges for vectors, and their basis."""
    count = len(codelet.operand_dtypes)
    maps = tuple(broadcast_map((ELEMENTS,), (ELEMENTS,)) for _ in range(count))
    form = map_form((ELEMENTS,), maps, len(codelet.outputs))
    extents = Extents(form, (np.array([ELEMENTS]),), codelet.operand_dtypes, codelet.result_dtypes)
    cycles = codelet.cycles(extents, target)
    return int(np.max(cycles.value)), str(cycles.basis)


def code_cycles(codelet: Map, target: Target) -> int:
    """Return the cycles of the codelet's tile code.

    Raises:
      IpuError: there is no code for it.
    """

    def body(*operands: jax.Array) -> tuple[jax.Array, ...]:
        values = evaluate_body(codelet.body, list(operands), ONE_ELEMENT)
        return tuple(values[i] for i in codelet.outputs)

    jaxpr = jax.make_jaxpr(body)(*(jax.ShapeDtypeStruct((), d) for d in codelet.operand_dtypes))
    how = contiguous(len(codelet.operand_dtypes), len(codelet.result_dtypes))
    isa = of_target(target)
    code = compile_cell(jaxpr, (codelet.operand_dtypes, codelet.result_dtypes), how, isa, codelet.label)
    return int(cost_of(code, {"n": ELEMENTS}, isa).cycles)


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
        except IndexError:
            continue  # an expression of the cell's own position has no meaning for one element
        lines.append((codelet.label, f"{charged:,}", basis, *found))
    text = table(("codelet", "predicted", "basis", "code", "ratio"), lines)
    print(text)
    write_result("tile_code_programs", text)


if __name__ == "__main__":
    app.run(main)
