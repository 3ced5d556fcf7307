"""Tile code of elementwise cells whose elements lie in rows: what is shared by rows, what is one a row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.unit.tiles.elements_running import DATA, SCRATCH, STATE, trace
from tiles.elements import (
    Access,
    Arrangement,
    TileSimulator,
    compile_cell,
    compile_lookup,
    contiguous,
    cost_of,
    named,
)
from tiles.elements.cell import CELL, ELEMENT, ROW
from tiles.elements.verify import verify
from tiles.errors import NoTileCode

MK2 = named("mk2")
WHOLE, VECTOR, ONE = Access(), Access(every_row=False), Access(CELL)
F, H = "float32", "float16"


def each(dtype: str) -> Access:
    return Access(ROW, np.dtype(dtype).itemsize)


def shape_of(access: Access, rows: int, n: int) -> tuple[int, int]:
    moves = access.level == ROW or (access.level == ELEMENT and access.every_row)
    return (rows if moves else 1, n if access.level == ELEMENT else 1)


class Memory:
    """Places arrays of rows, each row at a multiple of 8 bytes unless it is one element."""

    def __init__(self, n: int, rows: int, row_step: int = 6) -> None:
        self.simulator, self.at, self.row_step = TileSimulator(MK2, 1 << 17), DATA, row_step
        self.arguments = {"n": n, "rows": rows}

    def put(self, name: str, array: np.ndarray) -> None:
        pitch = array.itemsize if array.shape[1] == 1 else -(-array.shape[1] * array.itemsize // 8) * 8
        padded = np.zeros((array.shape[0], pitch // array.itemsize), array.dtype)
        padded[:, : array.shape[1]] = array
        self.simulator.write(self.at, padded[None])
        steps = {f"{name}_row_bytes": pitch, f"{name}_step_bytes": pitch * self.row_step}
        self.arguments |= {name: self.at, **steps}
        self.at += -(-(padded.nbytes + 64) // 64) * 64


@pytest.mark.parametrize(
    ("f", "dtypes", "accesses"),
    [
        (lambda x, b: x + b, [F, F], (WHOLE, VECTOR)),
        (lambda x, b: x - b, [F, F], (WHOLE, each(F))),
        (lambda x, b: jnp.maximum(x - b, b), [H, H], (WHOLE, each(H))),
        (lambda x, a, b, c: (x * a + b) * c, [F] * 4, (WHOLE, VECTOR, VECTOR, each(F))),
        (lambda x, a, b, c: (x * a + b) * c, [H] * 4, (WHOLE, VECTOR, WHOLE, ONE)),
        (lax.div, ["int32"] * 2, (WHOLE, VECTOR)),
        (lambda x: x.astype(H), [F], (WHOLE,)),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_rows(f, dtypes, accesses, together) -> None:
    """Workers take rows in turn, or each row together."""
    jaxpr = trace(f, dtypes)
    result = jaxpr.out_avals[0].dtype.name
    how = Arrangement(accesses, (WHOLE,), has_rows=True, shares_rows=together)
    code = compile_cell(jaxpr, (tuple(dtypes), (result,)), how, MK2)
    verify(code, MK2)
    rng = np.random.default_rng(0)
    whole = [
        (rng.normal(size=shape_of(a, 13, 31)) * 9).astype(d) for a, d in zip(accesses, dtypes, strict=True)
    ]
    with jax.disable_jit():
        wanted = np.broadcast_to(np.asarray(f(*(jnp.asarray(x) for x in whole))), (13, 31))
    for rows, n in ((0, 3), (1, 2), (5, 7), (13, 31)):
        memory = Memory(n, rows, 1 if together else 6)
        for k, (operand, access) in enumerate(zip(whole, accesses, strict=True)):
            height, width = shape_of(access, rows, n)
            memory.put(f"in{k}", operand[:height, :width])
        memory.put("out0", np.zeros((rows, n), result))
        run = memory.simulator.run(code, memory.arguments, STATE, SCRATCH)
        assert (run.slots[0] == cost_of(code, {"n": n, "rows": rows}, MK2).slots).all()
        pitch = memory.arguments["out0_row_bytes"] // np.dtype(result).itemsize
        got = memory.simulator.read(memory.arguments["out0"], rows * pitch, result)[0].reshape(rows, pitch)
        np.testing.assert_array_equal(got[:, :n], wanted[:rows, :n])


def test_accesses_by_rows_need_rows() -> None:
    jaxpr = trace(lambda x, b: x + b, [F, F])
    for access in (VECTOR, each(F)):
        with pytest.raises(NoTileCode, match="without rows"):
            compile_cell(jaxpr, ((F, F), (F,)), Arrangement((WHOLE, access), (WHOLE,)), MK2)
    with pytest.raises(NoTileCode, match="in the place of"):
        to_half = trace(lambda x: x.astype(H), [F])
        compile_cell(to_half, ((F,), (H,)), contiguous(1, in_place=(0,)), MK2)


@pytest.mark.parametrize("alignment", [8, 4])
def test_lookups_clamp_their_indices(alignment) -> None:
    code = compile_lookup(MK2, alignment)
    verify(code, MK2)
    rng = np.random.default_rng(0)
    for words, count in ((1, 1), (2, 7), (5, 13), (8, 40), (3, 0)):
        table = rng.integers(0, 1000, (19, words)).astype("int32")
        pitch = -(-words * 4 // alignment) * alignment
        padded = np.zeros((19, pitch // 4), "int32")
        padded[:, :words] = table
        indices = rng.integers(-5, 25, count).astype("int32")
        simulator = TileSimulator(MK2, 1 << 16)
        places = {"in0": DATA, "in1": DATA + 4096, "out0": DATA + 8192}
        shapes = {"n": words, "rows": count, "size": 19, "in0_row_bytes": pitch, "out0_row_bytes": pitch}
        simulator.write(places["in0"], padded[None])
        simulator.write(places["in1"], indices[None])
        run = simulator.run(code, {**places, **shapes}, STATE, SCRATCH)
        assert (run.slots[0] == cost_of(code, {"n": words, "rows": count}, MK2).slots).all()
        got = simulator.read(places["out0"], count * pitch // 4, "int32")[0].reshape(count, pitch // 4)[
            :, :words
        ]
        np.testing.assert_array_equal(got, np.asarray(jnp.take(table, indices, axis=0, mode="clip")))


@pytest.mark.parametrize("is_unsigned", [False, True])
@pytest.mark.parametrize("alignment", [8, 4])
def test_lookups_in_a_part_of_a_table_leave_zeros_for_rows_elsewhere(alignment, is_unsigned) -> None:
    code = compile_lookup(MK2, alignment, is_unsigned, is_part=True)
    verify(code, MK2)
    rng, first, size, whole = np.random.default_rng(0), 6, 5, 19
    for words, count in ((1, 3), (2, 7), (5, 13), (8, 40), (3, 0)):
        pitch = -(-words * 4 // alignment) * alignment
        table = rng.integers(1, 1000, (whole, pitch // 4)).astype("int32")
        indices = rng.integers(0 if is_unsigned else -5, 25, count).astype(
            "uint32" if is_unsigned else "int32"
        )
        if is_unsigned:
            indices[:1] = 2**32 - 1
        simulator = TileSimulator(MK2, 1 << 16)
        places = {"in0": DATA, "in1": DATA + 4096, "out0": DATA + 8192}
        shapes = {"n": words, "rows": count, "size": size, "first": first, "last": whole - 1}
        shapes |= {"in0_row_bytes": pitch, "out0_row_bytes": pitch}
        simulator.write(places["in0"], table[None, first : first + size])
        simulator.write(places["in1"], indices[None])
        run = simulator.run(code, {**places, **shapes}, STATE, SCRATCH)
        assert (run.slots[0] == cost_of(code, {"n": words, "rows": count}, MK2).slots).all()
        got = simulator.read(places["out0"], count * pitch // 4, "int32")[0].reshape(count, pitch // 4)
        at = np.minimum(np.maximum(indices.astype("int64"), 0), whole - 1)
        here = (at >= first) & (at < first + size)
        np.testing.assert_array_equal(got[:, :words], np.where(here[:, None], table[at], 0)[:, :words])


def test_a_lookup_copies_eight_bytes_in_two_slots_as_multi_slice_does() -> None:
    more, less = (cost_of(compile_lookup(MK2), {"n": 2 * k, "rows": 6}, MK2).slots[0] for k in (101, 100))
    assert int(more - less) == 2
    part = compile_lookup(MK2, is_part=True)  # masks beside them
    more, less = (cost_of(part, {"n": 2 * k, "rows": 6}, MK2).slots[0] for k in (101, 100))
    assert int(more - less) == 2
    with pytest.raises(NoTileCode, match="whole words"):
        compile_lookup(MK2, 2)


@pytest.mark.parametrize("over_rows", [False, True])
@pytest.mark.parametrize(
    ("f", "dtypes", "accesses"),
    [
        (lambda x, y: x * y, [F, F], (WHOLE, WHOLE)),
        (lambda x, m: (x - m) * (x - m), [F, F], (WHOLE, each(F))),
        (lambda x, m, s: (x - m) * s, [F, F, F], (WHOLE, each(F), ONE)),
        (lambda x, v: x * v, [F, F], (WHOLE, VECTOR)),
        (lambda x, m: x * m, [H, H], (WHOLE, each(H))),
        (lambda x, y: x.astype(F) * y, [H, F], (WHOLE, WHOLE)),
    ],
)
def test_reductions_of_what_rows_share(f, dtypes, accesses, over_rows) -> None:
    """Sums in f32 along and over rows of functions of vectors, of one element a row, and of one for all."""
    shapes = [shape_of(a, 4, 6) for a in accesses]
    structs = [jax.ShapeDtypeStruct(s, d) for s, d in zip(shapes, dtypes, strict=True)]

    def fold(*xs):
        value = jnp.broadcast_to(f(*xs), (4, 6))
        return jnp.sum(value, axis=0 if over_rows else 1, dtype=F)

    code = compile_cell(
        jax.make_jaxpr(fold)(*structs),
        (tuple(dtypes), (F,)),
        Arrangement(accesses, (WHOLE,), has_rows=True),
        MK2,
    )
    verify(code, MK2)
    rng = np.random.default_rng(0)
    whole = [
        rng.integers(-8, 9, shape_of(a, 13, 31)).astype(d) for a, d in zip(accesses, dtypes, strict=True)
    ]
    for rows, n in ((1, 2), (5, 7), (13, 31)):
        memory = Memory(n, rows)
        cut = []
        for k, (operand, access) in enumerate(zip(whole, accesses, strict=True)):
            height, width = shape_of(access, rows, n)
            cut.append(operand[:height, :width])
            memory.put(f"in{k}", cut[-1])
            if not access.every_row:
                memory.arguments[f"in{k}_row_bytes"] = 0  # all rows read the same vector
        memory.put("out0", np.zeros((1, max(n, rows)), F))
        run = memory.simulator.run(code, memory.arguments, STATE, SCRATCH)
        assert (run.slots[0] == cost_of(code, {"n": n, "rows": rows}, MK2).slots).all()
        got = memory.simulator.read(memory.arguments["out0"], n if over_rows else rows, F)[0]
        value = np.broadcast_to(f(*(x.astype(F) for x in cut)), (rows, n))
        np.testing.assert_array_equal(got, value.sum(axis=0 if over_rows else 1))


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("level", [ELEMENT, ROW])
def test_positions_are_counted(level, together) -> None:
    """One-hot rows: what stands in a row, or at an element, is compared with where it stands."""
    counter = Access(level, 4, level == ROW, counts=True)
    other = each("int32") if level == ELEMENT else Access(every_row=False)
    how = Arrangement((other, counter), (WHOLE,), has_rows=True, shares_rows=together)
    code = compile_cell(
        trace(lambda x, k: (x == k).astype(F), ["int32"] * 2), (("int32",) * 2, (F,)), how, MK2
    )
    verify(code, MK2)
    for rows, n in ((1, 3), (5, 7), (13, 31)):
        memory = Memory(n, rows, 1 if together else 6)
        x = (
            np.random.default_rng(0)
            .integers(0, 40, (rows, 1) if level == ELEMENT else (1, n))
            .astype("int32")
        )
        memory.put("in0", x)
        memory.put("out0", np.zeros((rows, n), F))
        memory.arguments |= {"in1": 3, "in1_row_bytes": 1, "in1_step_bytes": 1 if together else 6}
        run = memory.simulator.run(code, memory.arguments, STATE, SCRATCH)
        assert (run.slots[0] == cost_of(code, {"n": n, "rows": rows}, MK2).slots).all()
        pitch = memory.arguments["out0_row_bytes"] // 4
        got = memory.simulator.read(memory.arguments["out0"], rows * pitch, F)[0].reshape(rows, pitch)[:, :n]
        counted = 3 + (np.arange(n) if level == ELEMENT else np.arange(rows)[:, None])
        np.testing.assert_array_equal(got, np.broadcast_to(x == counted, (rows, n)))
