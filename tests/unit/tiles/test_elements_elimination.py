"""Tile code of LU, QR and Cholesky factorizations and of triangular solves: factors, pivots and slots by simulation, launch after launch."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.tiles.elements_running import DATA, SCRATCH, STATE
from tests.unit.tiles.poplibs_cells import extents_of
from tiles.elements import TileSimulator, cost_of, named
from tiles.elements.verify import verify
from tiles.errors import NoTileCode
from tiles.graph import REDUCTION, IndexMap, OpForm, along, identity_map
from tiles.graph.domain import Dim
from tiles.poplibs.poplin.factor import Cholesky, Lu, Qr, TriangularSolve
from tiles.target import Target

GC200 = Target.named("gc200")
MK2 = named("mk2")


def form_of(*shape: int) -> OpForm:
    whole = identity_map(len(shape))
    rows = IndexMap(whole.axes[:-1])
    return OpForm(tuple(Dim(f"d{d}", n) for d, n in enumerate(shape)), (whole,), (whole, rows, rows))


def parts_of(n: int):
    extents = extents_of(form_of(n, n), ["float32"], ["float32", "int32", "int32"])
    return Lu("float32").tile_code(extents, GC200)


def factored(a: np.ndarray) -> list[np.ndarray]:
    """Return factors, pivots and permutation by numpy, element by element in f32."""
    a, n = a.copy(), a.shape[-1]
    pivots, order = np.zeros(n, np.int32), np.arange(n, dtype=np.int32)
    for k in range(n):
        chosen = pivots[k] = k + np.argmax(np.abs(a[k:, k]))
        for x in (a, order):
            x[[k, chosen]] = x[[chosen, k]]
        with np.errstate(all="ignore"):
            factor = a[k + 1 :, k] if a[k, k] == 0 else a[k + 1 :, k] / a[k, k]
            a[k + 1 :, k + 1 :] -= factor[:, None] * a[k, k + 1 :]
        a[k + 1 :, k] = factor
    return [a, pivots, order]


def drawn(n: int, kind: str) -> np.ndarray:
    a = np.random.default_rng(n).normal(size=(n, n)).astype(np.float32)
    middle = n // 2
    if kind == "zeros":
        a[:, middle] = 0
    elif kind == "not a number":
        a[middle, middle] = np.nan
    elif kind == "ties":
        a[:, 0] = np.where(np.arange(n) % 2, 1, -1)
    return a


def run_parts(simulator: TileSimulator, parts, shape: tuple[int, int], places: dict[str, int]) -> None:
    """Run codes one after the other, each in the slots that its closed form states."""
    for part in parts:
        n, rows = (int(np.max(x)) for x in (part.n, part.rows))
        fields = {"n": n, "rows": rows, **{k: x for k, x in places.items() if k == "in0"}}
        for name, field in part.turn(shape).items():
            where, offset = field if isinstance(field, tuple) else (field, 0)
            fields[name] = where if isinstance(where, int) else places[where] + offset
        verify(part.variant.code, MK2)
        run = simulator.run(part.variant.code, fields, STATE, SCRATCH)
        expected = cost_of(part.variant.code, {"n": n, "rows": rows}, MK2)
        assert (run.slots[0] == expected.slots).all()
        assert run.cycles[0] == part.variant.formula.cycles(n, rows)


@pytest.mark.parametrize("kind", ["numbers", "zeros", "not a number", "ties"])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_a_matrix_is_factored_in_as_many_slots_as_the_closed_forms_say(n, kind) -> None:
    a = drawn(n, kind)
    simulator = TileSimulator(MK2, 1 << 15)
    places = {"in0": DATA, "factors": DATA + 4096, "pivots": DATA + 8192, "permutation": DATA + 9216}
    simulator.write(DATA, a[None])
    run_parts(simulator, parts_of(n), (n, n), places)
    wanted = factored(a)
    found = [
        simulator.read(places[name], x.size, x.dtype.name).reshape(x.shape)
        for name, x in zip(("factors", "pivots", "permutation"), wanted, strict=True)
    ]
    np.testing.assert_array_equal(found[1], wanted[1])
    np.testing.assert_array_equal(found[2], wanted[2])
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-6)


def reflected(a: np.ndarray) -> list[np.ndarray]:
    """Return the triangle with vectors, and factors, by numpy in f64."""
    a, n = a.astype(np.float64), a.shape[1]
    taus = np.zeros(n)
    for k in range(n):
        alpha, rest = a[k, k], np.sum(a[k + 1 :, k] ** 2)
        if rest == 0:
            continue
        beta = -np.copysign(np.sqrt(alpha**2 + rest), alpha)
        taus[k] = (beta - alpha) / beta
        vector = np.concatenate([[1], a[k + 1 :, k] / (alpha - beta)])
        a[k:, k + 1 :] -= taus[k] * np.outer(vector, vector @ a[k:, k + 1 :])
        a[k, k], a[k + 1 :, k] = beta, vector[1:]
    return [a.astype(np.float32), taus.astype(np.float32)]


@pytest.mark.parametrize("kind", ["numbers", "zeros"])
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (3, 3), (8, 5), (13, 13)])
def test_columns_are_reflected_in_as_many_slots_as_the_closed_forms_say(shape, kind) -> None:
    a = drawn(shape[0], kind)[:, : shape[1]].copy()
    whole = identity_map(2)
    form = OpForm((Dim("r", shape[0]), Dim("c", shape[1])), (whole,), (whole, IndexMap(whole.axes[1:])))
    parts = Qr("float32").tile_code(extents_of(form, ["float32"], ["float32"] * 2), GC200)
    simulator = TileSimulator(MK2, 1 << 15)
    places = {"in0": DATA, "factors": DATA + 4096, "taus": DATA + 8192, "divisor": DATA + 9216}
    simulator.write(DATA, a[None])
    run_parts(simulator, parts, shape, places)
    factors, taus = reflected(a)
    found = simulator.read(places["factors"], a.size, "float32").reshape(shape)
    np.testing.assert_allclose(found, factors, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(
        simulator.read(places["taus"], shape[1], "float32")[0], taus, rtol=2e-5, atol=2e-6
    )


@pytest.mark.parametrize("kind", ["numbers", "not positive"])
@pytest.mark.parametrize("n", [1, 2, 5, 13])
def test_factors_of_cholesky_take_as_many_slots_as_the_closed_forms_say(n, kind) -> None:
    """Only the lower triangle is read; all of a factor is NaN where a pivot is not positive."""
    a = drawn(n, "numbers")
    a = (a @ a.T + np.eye(n)).astype(np.float32)
    wanted = np.linalg.cholesky(a.astype(np.float64))
    if kind == "not positive":
        a[n // 2, n // 2] = -1
        wanted = np.where(wanted == 0, 0, np.nan)
    a[np.triu_indices(n, 1)] = 1e6
    whole = identity_map(2)
    form = OpForm((Dim("r", n), Dim("c", n)), (whole,), (whole,))
    extents = extents_of(form, ["float32"], ["float32"])
    parts = Cholesky("float32").tile_code(extents, GC200)
    simulator = TileSimulator(MK2, 1 << 15)
    places = {"in0": DATA, "factors": DATA + 4096}
    simulator.write(DATA, np.ascontiguousarray(a.T)[None])
    run_parts(simulator, parts, (n, n), places)
    found = simulator.read(places["factors"], a.size, "float32").reshape(n, n).T
    np.testing.assert_allclose(found, np.tril(wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_unit", [False, True])
@pytest.mark.parametrize("is_lower", [False, True])
@pytest.mark.parametrize(("n", "columns"), [(1, 1), (2, 7), (9, 1), (8, 13)])
def test_systems_are_solved_in_as_many_slots_as_the_closed_forms_say(n, columns, is_lower, is_unit) -> None:
    a = drawn(n, "numbers") + np.eye(n, dtype=np.float32) * 4
    b = np.random.default_rng(1).normal(size=(n, columns)).astype(np.float32)
    matrix, sides = IndexMap((along(1), along(2))), IndexMap((along(1), along(0)))
    dims = Dim("columns", columns), Dim("unknowns", n), Dim("terms", n, REDUCTION)
    extents = extents_of(OpForm(dims, (matrix, sides), (sides,)), ["float32"] * 2, ["float32"])
    parts = TriangularSolve("float32", is_lower, is_unit).tile_code(extents, GC200)
    simulator = TileSimulator(MK2, 1 << 15)
    places = {"matrix": DATA, "sides": DATA + 4096, "unknowns": DATA + 8192}
    for name, x in (("matrix", a), ("sides", b)):
        simulator.write(places[name], x[None])
    run_parts(simulator, parts, (columns, n, n), places)
    triangle = np.tril(a) if is_lower else np.triu(a)
    if is_unit:
        np.fill_diagonal(triangle, 1)
    found = simulator.read(places["unknowns"], b.size, "float32").reshape(b.shape)
    wanted = np.linalg.solve(triangle.astype(np.float64), b)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_cycles_are_those_of_the_code_for_every_matrix() -> None:
    one, many = (
        Lu("float32").cycles(extents_of(form_of(*shape), ["float32"], ["float32", "int32", "int32"]), GC200)
        for shape in ((16, 16), (7, 16, 16))
    )
    assert many.value == 7 * one.value
    assert one.value == sum(part.cycles for part in parts_of(16))
    assert 20_000 < one.value < 30_000


def test_elements_of_two_words_have_no_code() -> None:
    extents = extents_of(form_of(4, 4), ["float64"], ["float64", "int32", "int32"])
    with pytest.raises(NoTileCode, match="float64"):
        Lu("float64").tile_code(extents, GC200)
    assert Lu("float64").cycles(extents, GC200).basis.name == "ASSUMED"
