"""Running a cell's tile code in the simulator on drawn operands, with checks of cost, bounds and operand forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tiles.elements import (
    Arrangement,
    InstructionSet,
    TileCode,
    TileSimulator,
    compile_cell,
    contiguous,
    cost_of,
)
from tiles.elements.verify import verify

BASE = 0x4C000
STATE, SCRATCH, DATA = BASE, BASE + 256, BASE + 16384


def trace(f: Callable, dtypes: Sequence[str], shape: tuple[int, ...] = ()) -> Any:
    """Return the closed jaxpr of a function of scalars, or of arrays of a shape."""
    return jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct(shape, d) for d in dtypes))


def compiled(
    f: Callable,
    dtypes: Sequence[str],
    isa: InstructionSet,
    how: Arrangement | None = None,
    name: str = "cell",
) -> TileCode:
    """Compile a function of scalars, and check every instruction of it."""
    jaxpr = trace(f, dtypes)
    results = tuple(a.dtype.name for a in jaxpr.out_avals)
    how = how or contiguous(len(dtypes), len(results))
    code = compile_cell(jaxpr, (tuple(dtypes), results), how, isa, name)
    verify(code, isa)
    return code


def simulate(
    code: TileCode,
    operands: Sequence[np.ndarray],
    results: Sequence[str],
    isa: InstructionSet,
    how: Arrangement | None = None,
    offset_bytes: int = 0,
    spacing: int = 64,
    n: int = 1,
) -> tuple[list[np.ndarray], int]:
    """Run code on operands ``[tiles, n]``; return the results ``[tiles, n]`` and the cycles.

    Where no operand has an element for each result, ``n`` says how many there are.
    The closed form must state the slots of every worker exactly, and bytes that are no result stay as they were.
    """
    how = how or contiguous(len(operands), len(results))
    tiles = operands[0].shape[0]
    n = max((x.shape[1] for x, a in zip(operands, how.operands, strict=True) if a.level), default=n)
    simulator = TileSimulator(isa, 1 << 17, tiles=tiles)
    arguments, at = {"n": n}, DATA
    for k, operand in enumerate(operands):
        arguments[f"in{k}"] = at + offset_bytes
        simulator.write(at + offset_bytes, operand)
        at += -(-(operand[0].nbytes + 64) // spacing) * spacing
    for k, dtype in enumerate(results):
        name = how.stream(k)
        if name not in arguments:
            arguments[name] = at + offset_bytes
            at += -(-(n * np.dtype(dtype).itemsize + 64) // spacing) * spacing
    before = simulator.memory.copy()
    run = simulator.run(code, arguments, STATE, SCRATCH)
    out = [simulator.read(arguments[how.stream(k)], n, d) for k, d in enumerate(results)]
    kept = np.ones(before.shape[1], bool)
    kept[: DATA - BASE] = False
    for k, dtype in enumerate(results):
        start = arguments[how.stream(k)] - BASE
        kept[start : start + n * np.dtype(dtype).itemsize] = False
    assert (simulator.memory == before)[:, kept].all(), "code wrote outside its results"
    expected = cost_of(code, {"n": n}, isa)
    assert (run.slots == expected.slots).all()
    assert (run.cycles == expected.cycles).all()
    return out, int(run.cycles[0])


def simulate_rows(
    code: TileCode, operand: np.ndarray, result_dtype: str, isa: InstructionSet, over_rows: bool
) -> tuple[np.ndarray, int]:
    """Run a reduction of ``[rows, n]``; return its result and the cycles, which the closed form must state."""
    simulator = TileSimulator(isa, 1 << 17)
    rows, n = operand.shape
    pitch = -(-n * operand.itemsize // 8) * 8
    padded = np.zeros((rows, pitch // operand.itemsize), operand.dtype)
    padded[:, :n] = operand
    simulator.write(DATA, padded[None])
    out = DATA + -(-(padded.nbytes + 64) // 64) * 64
    arguments = {"in0": DATA, "in0_row_bytes": pitch, "out0": out, "n": n, "rows": rows}
    run = simulator.run(code, arguments, STATE, SCRATCH)
    expected = cost_of(code, {"n": n, "rows": rows}, isa)
    assert (run.slots[0] == expected.slots).all()
    return simulator.read(out, n if over_rows else rows, result_dtype)[0], int(run.cycles[0])


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    """Return the greatest distance from exact float64 values in units of the last place, where those are finite."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        apart = np.abs(got.astype(np.float64) - exact) / np.spacing(np.abs(rounded)).astype(np.float64)
    inside = np.isfinite(rounded)
    return float(np.max(apart[inside], initial=0.0))
