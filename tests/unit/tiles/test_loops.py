"""Places of axes and what two have in common, against the address of every element."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tiles.engine.addresses import Axis, Box, Place, boxes, dense, part_axis


def addresses(axis: Axis) -> dict[int, int]:
    """Return where every element of an axis lies, run by run."""
    found: dict[int, int] = {}
    for run in axis:
        turns = itertools.product(*(range(count) for count, _ in run.loops))
        for element, turn in enumerate(turns, run.start):
            assert element not in found
            found[element] = run.offset + sum(i * s for i, (_, s) in zip(turn, run.loops, strict=True))
    return found


def pairs(box: Box) -> list[tuple[int, int]]:
    """Return both addresses of every element of a box."""
    turns = itertools.product(*(range(count) for count, _, _ in box.loops))
    return [
        (
            box.offsets[0] + sum(i * s for i, (_, s, _) in zip(turn, box.loops, strict=True)),
            box.offsets[1] + sum(i * t for i, (_, _, t) in zip(turn, box.loops, strict=True)),
        )
        for turn in turns
    ]


def random_axis(rng: np.random.Generator, size: int, unit: int) -> Axis:
    """Return an axis in parts on tiles of two digits, after checking it element by element."""
    grain = min(int(rng.choice([1, 2, 3, 4, 6, 7, 8, 12, 24])), size)
    fast = int(rng.integers(1, 6))
    slow = -(-size // (grain * fast)) + int(rng.integers(0, 3))
    group = int(rng.choice([g for g in (1, 2, 3, 4) if grain % g == 0]))
    axis = part_axis(
        size, grain, ((slow, 1000 * unit), (fast, -70 * unit)), ((grain // group, 9 * group), (group, 5))
    )
    want = {}
    for element in range(size):
        part, inside = divmod(element, grain)
        tile = part // fast * 1000 * unit - part % fast * 70 * unit
        want[element] = tile + inside // group * 9 * group + inside % group * 5
    assert addresses(axis) == want
    assert len(axis) <= 7
    return axis


@pytest.mark.parametrize("size", [1, 5, 12, 21, 24, 64, 96, 100])
def test_what_two_arrangements_have_in_common(size):
    rng, refined = np.random.default_rng(size), 0
    for _ in range(40):
        first, second = random_axis(rng, size, 1), random_axis(rng, size, 3)
        for other, must_fit in ((second, False), (dense(size, 4), True)):
            want = sorted(zip(addresses(first).values(), addresses(other).values(), strict=True))
            found = boxes(Place((first,), 11), Place((other,), 5))
            assert found is not None or not must_fit
            if found is None:
                continue
            refined += 1
            got = sorted(pair for box in found for pair in pairs(box))
            assert got == [(a + 11, b + 5) for a, b in want]
    assert refined > 40


def test_several_axes_empty_ones_and_none():
    rng = np.random.default_rng(0)
    first, second = random_axis(rng, 21, 1), random_axis(rng, 10, 40)
    found = boxes(Place((first, second)), Place((dense(21, 10), dense(10, 1))))
    assert found is not None
    a, b = addresses(first), addresses(second)
    want = sorted((a[i] + b[j], 10 * i + j) for i in range(21) for j in range(10))
    assert sorted(pair for box in found for pair in pairs(box)) == want
    assert boxes(Place((first, ())), Place((dense(21, 1), dense(0, 1)))) == []
    assert boxes(Place((), 3), Place((), 4)) == [Box((3, 4), ())]


def test_pieces_of_a_box_are_its_elements():
    box = Box((7, 9), ((4, 100, 6), (6, 10, 1)))
    for loop, count in enumerate((4, 6)):
        pieces = [box.piece(loop, first, first + 1) for first in range(count)]
        assert sorted(pair for piece in pieces for pair in pairs(piece)) == sorted(pairs(box))
