"""Branch and bound: boxes of values are narrowed, dropped where they cannot be best, and halved, many at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tiles.solver.relations import Relation

AT_ONCE = 512
"""Boxes looked at together: NumPy then spends its time on values."""
MOST_ROUNDS = 64
"""Times that relations are gone over before a box is halved though bounds still move; they would stop at a fixed point."""


def minimum(
    low: np.ndarray,
    high: np.ndarray,
    choices: Mapping[int, np.ndarray],
    free: tuple[int, ...],
    relations: tuple[Relation, ...],
    objectives: tuple[int, ...],
) -> tuple[np.ndarray, int] | None:
    """Return the values of all variables that make the objectives least, in their order, and how many boxes it took.

    Args:
      low: least value of every variable.
      high: greatest value of every variable.
      choices: values of those that do not have all in between, in order.
      free: variables that are not computed: when they are single values, all others are too.
      relations: between the variables.
      objectives: variables to minimise, the first one first.
    """
    waiting = [(low[:, None], high[:, None])]
    best: np.ndarray | None = None
    looked_at = 0
    while waiting:
        low, high = waiting.pop()
        looked_at += low.shape[1]
        low, high = _narrowed(low.copy(), high.copy(), choices, relations)
        kept = (low <= high).all(0) & _may_be_better(low, best, objectives)
        low, high = low[:, kept], high[:, kept]
        if not low.shape[1]:
            continue
        order = np.lexsort([low[number] for number in reversed(objectives)])
        low, high = low[:, order], high[:, order]
        is_single = (low[[*free]] == high[[*free]]).all(0) if free else np.ones(low.shape[1], bool)
        if is_single.any():
            solutions = low[:, is_single]
            least = np.lexsort([solutions[number] for number in reversed(objectives)])[0]
            if _may_be_better(solutions[:, [least]], best, objectives)[0]:
                best = solutions[:, least]
        low, high = low[:, ~is_single], high[:, ~is_single]
        kept = _may_be_better(low, best, objectives)
        low, high = low[:, kept], high[:, kept]
        if low.shape[1]:
            low, high = _halved(low, high, choices, free)
            # the most promising boxes are looked at first: they lie at the end of the list
            for start in reversed(range(0, low.shape[1], AT_ONCE)):
                waiting.append((low[:, start : start + AT_ONCE], high[:, start : start + AT_ONCE]))
    return None if best is None else (best, looked_at)


def _narrowed(
    low: np.ndarray, high: np.ndarray, choices: Mapping[int, np.ndarray], relations: tuple[Relation, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return boxes with every bound that follows from the others; impossible ones have a bound above the other."""
    for _ in range(MOST_ROUNDS):
        before = low.copy(), high.copy()
        for number, values in choices.items():
            lows: np.ndarray = low[number]
            highs: np.ndarray = high[number]
            above = np.searchsorted(values, lows)
            below = np.searchsorted(values, highs, side="right") - 1
            is_empty = above > below
            low[number] = np.where(is_empty, highs + 1, values[np.minimum(above, len(values) - 1)])
            high[number] = np.where(is_empty, highs, values[np.maximum(below, 0)])
        for relation in relations:
            relation.narrow(low, high)
        # what is impossible stays so, whatever else follows from it
        possible = (low <= high).all(0)
        low, high, before = low[:, possible], high[:, possible], tuple(b[:, possible] for b in before)
        if np.array_equal(before[0], low) and np.array_equal(before[1], high):
            break
    return low, high


def _may_be_better(low: np.ndarray, best: np.ndarray | None, objectives: tuple[int, ...]) -> np.ndarray:
    """Return which boxes may hold something better than the best known."""
    if best is None:
        return np.ones(int(low.shape[1]), bool)
    better, equal = np.zeros(low.shape[1], bool), np.ones(low.shape[1], bool)
    for number in objectives:
        better |= equal & (low[number] < best[number])
        equal &= low[number] == best[number]
    return better


def _halved(
    low: np.ndarray, high: np.ndarray, choices: Mapping[int, np.ndarray], free: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return both halves of every box along its widest free variable, each pair together, lower half first."""
    numbers = np.array(free)
    widest = numbers[np.argmax(high[numbers] - low[numbers], 0)]
    boxes = np.arange(int(low.shape[1]))
    middle = (low[widest, boxes] + high[widest, boxes]) // 2
    lows, highs = np.repeat(low, 2, 1), np.repeat(high, 2, 1)
    highs[widest, 2 * boxes] = middle
    lows[widest, 2 * boxes + 1] = middle + 1
    return lows, highs
