"""Random bits by their tile code: cells of any extents that begin anywhere, bit for bit as the generators say."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.budgets import PROGRAM, budget
from tests.unit.tiles.elements_running import BASE, DATA, SCRATCH, STATE
from tests.unit.tiles.poplibs_cells import compute_cell, extents_of
from tiles.compiler import compile_graph
from tiles.elements import TileSimulator, instructions_for
from tiles.elements.verify import verify
from tiles.engine import coverage_of, make_engine
from tiles.errors import NoTileCode
from tiles.graph import Affine, Graph, IndexMap
from tiles.poplibs.forms import map_form
from tiles.poplibs.poprand import RandomBits, random_bits
from tiles.target import Basis, Target

GC200 = Target.named("gc200")
STATES = st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([2**32 - 1, 2**64 - 1]), min_size=3, max_size=3)
DTYPES = ["uint32", "int32", "uint64", "uint16", "int8"]


def form_of(shape: tuple[int, ...], operands: int):
    return map_form(shape, [IndexMap((Affine((), k),)) for k in range(operands)])


def run_code(
    codelet: RandomBits, shape, sizes, origins: np.ndarray, state: list[int]
) -> tuple[Any, int, int]:
    """Return a cell's bits by its code for every origin, the cycles that the simulator counts and those that are stated."""
    extents = extents_of(form_of(shape, len(state)), ("uint64",) * len(state), (codelet.dtype,), sizes)
    parts = [p for p in codelet.tile_code(extents, GC200) if np.any(p.runs)]
    kernel = parts[0].kernel
    assert kernel is not None and all(p.kernel is kernel for p in parts)
    operands = [np.full((len(origins), 1), word, np.uint64) for word in state]
    memory, fields = kernel.find(sizes, origins, operands)
    isa, at = instructions_for(GC200), DATA
    simulator = TileSimulator(isa, 1 << 17, tiles=len(origins))
    places: dict[str, int] = {}
    for name, x in memory.items():
        places[name] = at
        simulator.write(at, x)
        at += -(-x[0].nbytes // 8) * 8 + 64
    before, took = simulator.memory.copy(), 0
    for part in parts:
        verify(part.variant.code, isa)
        assert part.turn is not None
        own = {name: places[str(where)] for name, where in part.turn(sizes).items()}
        arguments = {"n": int(np.ravel(part.n)[0]), **fields, **places, **own}
        took += int(simulator.run(part.variant.code, arguments, STATE, SCRATCH).cycles.max())
    kept = np.ones(before.shape[1], bool)
    kept[: DATA - BASE] = False
    for name in memory.keys() & {"words", "out0"}:
        kept[places[name] - BASE : places[name] - BASE + memory[name][0].nbytes] = False
    assert (simulator.memory == before)[:, kept].all(), "code wrote outside its results"
    left = {
        name: simulator.read(places[name], x[0].size, x.dtype.name).reshape(x.shape)
        for name, x in memory.items()
    }
    (found,) = kernel.results(sizes, left)
    stated = codelet.cycles(extents, GC200)
    assert stated.basis is Basis.DERIVED
    return found, took, int(np.ravel(stated.value)[0])


def expected(codelet: RandomBits, shape, sizes, origin, state: list[int]) -> np.ndarray:
    operands, count = [np.full(1, word, np.uint64) for word in state], len(state)
    form, limits = form_of(shape, count), (None,) * len(sizes)
    with jax.enable_x64(True):
        dtypes = ("uint64",) * count
        (found,) = compute_cell(codelet, form, origin, sizes, limits, operands, dtypes, "float")
    return np.asarray(found)


@given(
    st.sampled_from(["threefry", "philox", "philox, long counter"]),
    st.sampled_from(DTYPES),
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(0, 6)), min_size=1, max_size=3),
    STATES,
)
@budget(PROGRAM)
def test_cells_anywhere(algorithm, dtype, axes, state) -> None:
    name, _, long = algorithm.partition(",")
    state = state if long else state[:2]
    shape = tuple(n for n, _, _ in axes)
    sizes = tuple(min(n, size) for n, size, _ in axes)
    origins = np.array(
        [
            [min(at + step, n - size) for (n, _, at), size in zip(axes, sizes, strict=True)]
            for step in range(2)
        ],
        np.int32,
    )
    codelet = RandomBits(name, dtype)
    found, took, stated = run_code(codelet, shape, sizes, origins, state)
    for origin, bits in zip(origins, found, strict=True):
        np.testing.assert_array_equal(bits, expected(codelet, shape, sizes, origin.tolist(), state))
    if shape == sizes:
        assert took == stated


@pytest.mark.parametrize("algorithm", ["threefry", "philox"])
@pytest.mark.parametrize("shape", [(1,), (600,), (24, 50), (3, 101), (2, 5, 40)])
def test_whole_arrays_take_what_is_stated(algorithm, shape) -> None:
    codelet, state = RandomBits(algorithm, "uint32"), [3, 2**64 - 2]
    found, took, stated = run_code(codelet, shape, shape, np.zeros((1, len(shape)), np.int32), state)
    np.testing.assert_array_equal(found[0], expected(codelet, shape, shape, [0] * len(shape), state))
    assert took == stated


@given(
    st.sampled_from(["threefry", "philox"]),
    st.sampled_from(DTYPES),
    st.lists(st.integers(1, 9), min_size=0, max_size=3),
    st.integers(1, 7),
    STATES,
)
@budget(PROGRAM)
def test_engines_agree_on_every_bit(algorithm, dtype, shape, tiles, state) -> None:
    assume(math.prod(shape) > 0)
    graph = Graph(GC200.replace(num_tiles=tiles))
    operand = graph.add_input((2,), "uint64", "state")
    after, bits = random_bits(graph, operand, tuple(shape), dtype, algorithm)
    graph.outputs = [bits.name, after.name]
    executable = compile_graph(graph)
    given_state = np.array(state[:2], np.uint64)
    results = [
        make_engine(executable, engine, arithmetic=arithmetic).run(given_state)[0]
        for engine, arithmetic in (("tile", "float"), ("literal", "float"), ("tile", "ring"))
    ]
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    (found,) = [c for name, c in coverage_of(executable).codelets.items() if name.startswith("poprand.")]
    assert found.by_code == found.vertices


def test_bits_that_are_floats_have_no_code() -> None:
    codelet = RandomBits("philox", "float32")
    extents = extents_of(form_of((8,), 2), ("uint64",) * 2, ("float32",))
    with pytest.raises(NoTileCode, match="random bits that are float32"):
        codelet.tile_code(extents, GC200)
    assert codelet.cycles(extents, GC200).basis is Basis.ASSUMED
