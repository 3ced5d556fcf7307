"""Plans that nobody would choose: random legal cuts of a form, and a planner that finds nothing but those.

Engines must agree whatever the plan, so property tests put this planner in the place of the search.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable, Container, Iterator, Sequence
from unittest import mock

import numpy as np

from tiles.errors import InvalidPlan
from tiles.graph import ROW_MAJOR, Arrangement, AxisSplit, Codelet, Layout, OpForm, Plan, unsplit_plan, whole
from tiles.plan import Operand, Priced, follow, preferred_layout
from tiles.target import Target

TRIES = 20
OPERATIONS, CHOOSE, COMBINING, EMIT = (
    importlib.import_module(f"tiles.planning.{name}")
    for name in ("operations", "choose", "combining", "emit")
)
"""The modules of planning that ask for a plan or a layout."""


def random_plan(rng: np.random.Generator, form: OpForm, codelet: Codelet, num_tiles: int) -> Plan:
    """Return a legal plan: uneven parts, digits in any order, gaps between tiles, any first tile."""
    for _ in range(TRIES):
        plan = _attempt(rng, form, codelet, num_tiles)
        try:
            plan.check(form, num_tiles)
            plan.result_layout(form)
        except InvalidPlan:
            continue
        return plan
    return unsplit_plan(form, int(rng.integers(num_tiles)))


def _attempt(rng: np.random.Generator, form: OpForm, codelet: Codelet, num_tiles: int) -> Plan:
    fixed = {d for d in range(len(form.dims)) if not codelet.may_split(form, d)}
    splits, base = random_splits(rng, form.shape, num_tiles, fixed)
    return Plan(splits, base, random_order(rng, splits))


def random_order(rng: np.random.Generator, splits: Sequence[AxisSplit], ordered: float = 0.5) -> Arrangement:
    """Return an order of parts in memory, row-major ones in every other case."""
    rank = len(splits)
    if not rank or rng.random() > ordered:
        return ROW_MAJOR
    digits = [(int(d), 0) for d in rng.permutation(rank)]
    for d in rng.permutation(rank)[: int(rng.integers(0, 3))]:
        after = digits.index((int(d), 0)) + 1
        divisors = [n for n in range(1, 5) if not splits[d].is_split or splits[d].grain % n == 0]
        digits.insert(int(rng.integers(after, len(digits) + 1)), (int(d), int(rng.choice(divisors))))
    return Arrangement(tuple(digits))


def random_splits(
    rng: np.random.Generator, shape: Sequence[int], num_tiles: int, fixed: Container[int] = ()
) -> tuple[tuple[AxisSplit, ...], int]:
    """Return a cut of every dimension of ``shape`` except ``fixed`` ones, and the first tile.

    Parts lie on tiles of their own, of which the last may be beyond the target's.
    """
    room = num_tiles
    digits: list[tuple[int, int, int]] = []
    grains = [max(1, size) for size in shape]
    for d in map(int, rng.permutation(len(shape))):
        if shape[d] < 2 or d in fixed or rng.random() < 0.3:
            continue
        grains[d] = -(-shape[d] // int(rng.integers(1, max(1, min(room, shape[d])) + 1)))
        parts = -(-shape[d] // grains[d])
        if parts > 1:
            radices = _radices(rng, parts)
            digits += [(d, i, radix) for i, radix in enumerate(radices)]
            room //= math.prod(radices)
    stride, found = 1, dict.fromkeys(range(len(shape)), ())
    strides: dict[tuple[int, int], int] = {}
    for n in rng.permutation(len(digits)):
        d, i, radix = digits[n]
        strides[d, i] = stride * int(rng.choice([1, 1, 1, 2, 3]))
        stride = strides[d, i] * radix
    span = 1 + sum((radix - 1) * strides[d, i] for d, i, radix in digits)
    for d, i, radix in digits:
        found[d] = (*found[d], (radix, strides[d, i]))
    splits = tuple(AxisSplit(size, grains[d], found[d]) for d, size in enumerate(shape))
    return splits, int(rng.integers(0, max(1, num_tiles - span + 1)))


def random_layout(rng: np.random.Generator, shape: tuple[int, ...], num_tiles: int) -> Layout:
    """Return a legal layout of a tensor."""
    for _ in range(TRIES):
        splits, base = random_splits(rng, shape, num_tiles)
        layout = Layout(splits, base, random_order(rng, splits))
        if layout.tiles.max() < num_tiles:
            return layout
    return Layout(tuple(map(whole, shape)), int(rng.integers(num_tiles)))


def _radices(rng: np.random.Generator, parts: int) -> list[int]:
    """Return one digit, or two whose product is the parts or a little more."""
    if parts < 4 or rng.random() < 0.5:
        return [parts]
    fast = int(rng.integers(2, parts // 2 + 1))
    return [-(-parts // fast), fast]


class Found(list[Priced]):
    """Plans in order of a cost that means nothing, with what is asked of a ``Ranking``."""

    def first_below(self, cost: float) -> Priced | None:
        """Return the first if it costs less."""
        return self[0] if self[0].cost < cost else None

    def cheapest(self, is_wanted: Callable[[Plan], bool], most: float) -> Priced | None:
        """Return the first that is wanted."""
        return next((p for p in self if is_wanted(p.plan) and p.cost <= most), None)


@contextlib.contextmanager
def random_planner(seed: int, following: float = 0.2) -> Iterator[None]:
    """Plan operations and lay out inputs at random inside the context; the same seed gives the same choices.

    Args:
      seed: of the choices.
      following: share of operations that follow an operand where it lies, as many real plans do.
    """
    rng = np.random.default_rng(seed)

    def search(
        form: OpForm,
        codelet: Codelet,
        operands: Sequence[Operand],
        result_dtypes: tuple[str, ...],
        target: Target,
        extra: Sequence[Plan] = (),
        memory_proportion: float = 0,
        code_price: float = 0,
        least_cells: int = 1,
        within: int = 0,
    ) -> Found:
        plans = [random_plan(rng, form, codelet, target.num_tiles)]
        if rng.random() < following:
            followed = [follow(form, codelet, k, operand, target) for k, operand in enumerate(operands)]
            plans = [p for p in (*followed, *extra) if p is not None] + plans
        cycles = float(rng.integers(1 << 16))  # so that some operands are put into another order before
        return Found(Priced(plan, cycles + n, 0) for n, plan in enumerate(plans))

    def home(form: OpForm, plan: Plan, k: int, shape: tuple[int, ...], dtype: str, target: Target) -> Layout:
        if rng.random() < 0.5:
            return preferred_layout(form, plan, k, shape, dtype, target)
        return random_layout(rng, shape, target.num_tiles)

    with (
        mock.patch.object(COMBINING, "search", search),
        mock.patch.object(CHOOSE, "search", search),
        mock.patch.object(EMIT, "preferred_layout", home),
    ):
        yield
