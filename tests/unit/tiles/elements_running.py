"""Running a cell's tile code in the simulator on drawn operands, beside its meaning in JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tiles.elements.verify import verify
from tiles.elements import Arrangement, InstructionSet, TileCode, TileSimulator, compile_cell, contiguous, cost_of

BASE = 0x4C000
STATE, SCRATCH, DATA = BASE, BASE + 256, BASE + 4096


def trace(f: Callable, dtypes: Sequence[str]) -> Any:
    """Return the closed jaxpr of a function of scalars."""
    return jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct((), d) for d in dtypes))


def compiled(f: Callable, dtypes: Sequence[str], isa: InstructionSet, how: Arrangement | None = None) -> TileCode:
    """Compile a function of scalars."""
    jaxpr = trace(f, dtypes)
    results = tuple(a.dtype.name for a in jaxpr.out_avals)
    how = how or contiguous(len(dtypes), len(results))
    code = compile_cell(jaxpr, (tuple(dtypes), results), how, isa)
    verify(code, isa)
    return code


def simulate(
    code: TileCode, operands: Sequence[np.ndarray], results: Sequence[str], n: int, isa: InstructionSet,
    how: Arrangement | None = None, misaligned: int = 0, spacing: int = 64,
) -> tuple[list[np.ndarray], int]:
    """Run code on operands; return the results and the cycles. Bytes around the results must stay as they were."""
    how = how or contiguous(len(operands), len(results))
    simulator = TileSimulator(isa, 1 << 17)
    arguments, at = {"n": n}, DATA
    for k, operand in enumerate(operands):
        arguments[f"in{k}"] = at + misaligned
        simulator.write(at + misaligned, operand[None])
        at += -(-(operand.nbytes + 64) // spacing) * spacing
    for k, dtype in enumerate(results):
        name = how.stream(k)
        if name not in arguments:
            arguments[name] = at + misaligned
            at += -(-(n * np.dtype(dtype).itemsize + 64) // spacing) * spacing
    before = simulator.memory.copy()
    run = simulator.run(code, arguments, STATE, SCRATCH)
    out = [simulator.read(arguments[how.stream(k)], n, d)[0] for k, d in enumerate(results)]
    kept = np.ones(before.shape[1], bool)
    kept[: DATA - BASE] = False
    for k, dtype in enumerate(results):
        start = arguments[how.stream(k)] - BASE
        kept[start : start + n * np.dtype(dtype).itemsize] = False
    assert (simulator.memory[0] == before[0])[kept].all(), "code wrote outside its results"
    expected = cost_of(code, {"n": n}, isa)
    assert int(run.cycles[0]) == int(expected.cycles)
    assert (run.slots[0] == expected.slots).all()
    return out, int(run.cycles[0])


def simulate_rows(
    code: TileCode, operand: np.ndarray, result_dtype: str, isa: InstructionSet, over_rows: bool, pitch_bytes: int = 0
) -> tuple[np.ndarray, int]:
    """Run a reduction of ``[rows, n]``; return its result and the cycles."""
    simulator = TileSimulator(isa, 1 << 17)
    rows, n = operand.shape
    pitch = pitch_bytes or -(-n * operand.itemsize // 8) * 8
    padded = np.zeros((rows, pitch // operand.itemsize), operand.dtype)
    padded[:, :n] = operand
    simulator.write(DATA, padded[None])
    out = DATA + -(-(padded.nbytes + 64) // 64) * 64
    arguments = {"in0": DATA, "in0_row_bytes": pitch, "out0": out, "n": n, "rows": rows}
    run = simulator.run(code, arguments, STATE, SCRATCH)
    expected = cost_of(code, {"n": n, "rows": rows}, isa)
    assert (run.slots[0] == expected.slots).all()
    return simulator.read(out, n if over_rows else rows, result_dtype)[0], int(run.cycles[0])
