"""What an exchange brings from IPU to IPU: tables per axis against sets of elements, tile by tile."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.budgets import PLAN, budget
from tests.property.test_plans import SEEDS, questions, windows
from tests.random_plans import random_layout, random_plan
from tiles.graph import Layout, OpForm, Plan, linear_layout
from tiles.numerics.dtypes import itemsize
from tiles.plan import layout_traffic, operand_traffic, reshape_traffic
from tiles.target import Target

NUM_IPUS = 3
TARGET = Target.named("gc200").replace(num_tiles=48, num_ipus=NUM_IPUS)


def owners(layout: Layout) -> np.ndarray:
    """Return the tile of every element, int64 of the tensor's shape."""
    found = np.zeros(layout.shape, np.int64)
    for number, place in enumerate(np.ndindex(layout.grid)):
        box = tuple(slice(a.lo[i], a.hi[i]) for a, i in zip(layout.axes, place, strict=True))
        found[box] = layout.tiles[number]
    return found


def crossing(owner: np.ndarray, wanted: dict[int, set[tuple[int, ...]]], dtype: str) -> np.ndarray:
    """Return the bytes from IPU to IPU of the elements that each tile wants, whole words from each tile to each IPU."""
    per_ipu = TARGET.tiles_per_ipu
    taken: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for tile, elements in wanted.items():
        taken[tile // per_ipu] |= elements
    found = np.zeros((NUM_IPUS, NUM_IPUS), np.int64)
    for ipu, elements in taken.items():
        sent = np.bincount([owner[e] for e in elements], minlength=TARGET.num_tiles)
        words = -(-sent * itemsize(dtype) // 4) * 4
        found[:, ipu] = words.reshape(NUM_IPUS, per_ipu).sum(axis=1)
    np.fill_diagonal(found, 0)
    return found


def read_by_cells(form: OpForm, plan: Plan, k: int, shape: tuple[int, ...]) -> dict[int, set]:
    """Return the elements that each tile's cell reads; of an axis that several dimensions move along all in between."""
    found: dict[int, set] = {}
    for number, place in enumerate(np.ndindex(plan.grid)):
        ranges = [range(s.lo[i], s.hi[i]) for s, i in zip(plan.splits, place, strict=True)]
        along = []
        for axis, size in zip(form.operands[k].axes, shape, strict=True):
            places = itertools.product(*(ranges[d] for d, _ in axis.terms))
            reached = {
                axis.offset + sum(c * x for (_, c), x in zip(axis.terms, at, strict=True)) for at in places
            }
            if len(axis.terms) > 1 and reached:
                reached = set(range(min(reached), max(reached) + 1))
            along.append([x for x in reached if 0 <= x < size])
        found[int(plan.tiles[number])] = set(itertools.product(*along))
    return found


@given(st.one_of(questions(), windows()), SEEDS)
@budget(PLAN)
def test_words_cross_to_an_ipu_once_however_many_of_its_tiles_take_them(case, seed):
    form, codelet, shapes, dtype = case
    rng = np.random.default_rng(seed)
    plan = random_plan(rng, form, codelet, TARGET.num_tiles)
    for k, shape in enumerate(shapes):
        layout = random_layout(rng, shape, TARGET.num_tiles)
        moved = operand_traffic(layout, form, plan, k, shape, dtype, TARGET)
        expected = crossing(owners(layout), read_by_cells(form, plan, k, shape), dtype)
        assert np.array_equal(moved.between_ipus, expected)


@given(SEEDS, st.sampled_from(["float32", "float16", "uint8"]))
@budget(PLAN)
def test_copies_cross_once(seed, dtype):
    """Into another layout, at an offset along an axis, and into another shape."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 9, 2))
    source = random_layout(rng, shape, TARGET.num_tiles)
    offset = int(rng.integers(0, 4))
    joined = random_layout(rng, (shape[0] + offset + int(rng.integers(0, 3)), shape[1]), TARGET.num_tiles)
    moved = layout_traffic(source, joined, shape, dtype, TARGET, 0, offset)
    wanted: dict[int, set] = defaultdict(set)
    for element in np.ndindex(shape):
        wanted[int(owners(joined)[element[0] + offset, element[1]])].add(element)
    assert np.array_equal(moved.between_ipus, crossing(owners(source), wanted, dtype))
    flat = linear_layout((shape[0] * shape[1],), dtype, TARGET.num_tiles, min_bytes=1)
    moved = reshape_traffic(source, flat, dtype, TARGET)
    wanted = defaultdict(set)
    for number, element in enumerate(np.ndindex(shape)):
        wanted[int(owners(flat)[number])].add(element)
    assert np.array_equal(moved.between_ipus, crossing(owners(source), wanted, dtype))
