"""StableHLO's interpreter running every process of a grid, in a Python process of its own.

Its processes are threads of a pool that has one for every core, and wait for each other: it ends the whole process
after seconds where there are fewer cores than processes.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _stablehlo

from hlo_passes.ir import TensorType
from ipuxla.frontend import _jax_compat as compat
from tests.conformance.conftest import attribute_text

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""How many processes a grid may have here."""


class Case(NamedTuple):
    """A module, the grid that its ``main`` runs on, and arguments with an element for each process in front."""

    text: str
    replicas: int
    partitions: int
    arrays: tuple[np.ndarray, ...]


def interpreted(cases: Sequence[Case]) -> list[list[np.ndarray] | None]:
    """Return what the processes of each case get; None where there are too few cores, or was too little time twice."""
    found: list[list[np.ndarray] | None] = [None] * len(cases)
    waiting = [n for n, case in enumerate(cases) if case.replicas * case.partitions <= CORES]
    again: set[int] = set()
    with tempfile.TemporaryDirectory() as folder:
        asked, told = os.path.join(folder, "asked"), os.path.join(folder, "told")
        while waiting:
            with open(asked, "wb") as file:
                pickle.dump([(n, cases[n]) for n in waiting], file)
            command = [sys.executable, "-m", "tests.conformance.interpreting", asked, told]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            with open(told, "rb") as file:
                while file.peek(1):
                    number, arrays = pickle.load(file)
                    found[number] = arrays
            waiting = [n for n in waiting if found[n] is None]
            if done.returncode and "rendezvous timed out" not in done.stderr:
                raise AssertionError(done.stderr)
            if waiting:  # the first of them ended the process
                late = waiting.pop(0)
                if late not in again:
                    again.add(late)
                    waiting.append(late)
    return found


def run_processes(case: Case) -> list[np.ndarray]:
    """Run ``main`` as a program of the interpreter's own operation ``interpreter.run_parallel``."""
    module = compat.read_stablehlo(case.text)
    processes = case.replicas * case.partitions
    with module.context, ir.Location.unknown():
        _stablehlo.register_interpreter_dialect(module.context)
        parsed = ir.Module.parse(str(module))
        main = next(op for op in parsed.body.operations if op.attributes["sym_name"].value == "main")
        kind = main.attributes["function_type"].value
        inputs, outputs = (list(map(str, types)) * processes for types in (kind.inputs, kind.results))
        main.attributes["sym_name"] = ir.StringAttr.get("process")
        names = ", ".join(f"%x{n}" for n in range(len(inputs)))
        grid = ", ".join(f"[{', '.join(['@process'] * case.partitions)}]" for _ in range(case.replicas))
        results = ", ".join(f"%r#{n}" for n in range(len(outputs)))
        whole = f"""{str(parsed).rstrip().removesuffix("}")}
          func.func @main({", ".join(f"%x{n}: {t}" for n, t in enumerate(inputs))}) -> ({", ".join(outputs)}) {{
            %r:{len(outputs)} = "interpreter.run_parallel"({names}) {{programs = [{grid}]}}
              : ({", ".join(inputs)}) -> ({", ".join(outputs)})
            return {results} : {", ".join(outputs)}
          }}
        }}"""
        given = [ir.Attribute.parse(attribute_text(a[n])) for n in range(processes) for a in case.arrays]
        found = [_array(result) for result in _stablehlo.eval_module(ir.Module.parse(whole), given)]
    count = len(found) // processes
    return [np.stack(found[place::count]) for place in range(count)]


def _array(attribute: Any) -> np.ndarray:
    """Return an attribute's elements; jaxlib gives some in another type, and splats as one element."""
    type_ = TensorType.parse(str(attribute.type))
    return np.array(attribute).reshape(type_.shape).astype(type_.np_dtype)


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as questions, open(sys.argv[2], "wb") as answers:
        for number, case in pickle.load(questions):
            pickle.dump((number, run_processes(Case(*case))), answers)
            answers.flush()
