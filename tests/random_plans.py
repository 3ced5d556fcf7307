"""Plans that nobody would choose: random legal cuts of a form, and a planner that finds nothing but those.

Engines must agree whatever the plan, so property tests put this planner in the place of the search.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from unittest import mock

import numpy as np

from tiles.errors import InvalidPlan
from tiles.graph import AxisSplit, Codelet, OpForm, Plan, unsplit_plan, whole
from tiles.plan import Operand, Priced, follow
from tiles.poplibs.poputil import place
from tiles.target import Target

TRIES = 20


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
    room = num_tiles
    radices: dict[int, list[int]] = {}
    grains = [max(1, dim.size) for dim in form.dims]
    for d in rng.permutation(len(form.dims)):
        dim = form.dims[d]
        if dim.size < 2 or (dim.is_reduced and codelet.combiner() is None) or rng.random() < 0.3:
            continue
        parts = int(rng.integers(1, min(room, dim.size) + 1))
        grains[d] = -(-dim.size // parts)
        parts = -(-dim.size // grains[d])
        if parts > 1:
            radices[int(d)] = _radices(rng, parts)
            room //= math.prod(radices[int(d)])
    digits = [(d, i, radix) for d, found in radices.items() for i, radix in enumerate(found)]
    stride, strides = 1, {}
    for n in rng.permutation(len(digits)):
        d, i, radix = digits[n]
        stride *= int(rng.choice([1, 1, 1, 2, 3]))
        strides[d, i] = stride
        stride *= radix
    span = 1 + sum((radix - 1) * strides[d, i] for d, i, radix in digits)
    splits = [whole(dim.size) for dim in form.dims]
    for d, found in radices.items():
        splits[d] = AxisSplit(form.dims[d].size, grains[d], tuple((r, strides[d, i]) for i, r in enumerate(found)))
    base = int(rng.integers(0, max(1, num_tiles - span + 1)))
    return Plan(tuple(splits), base)


def _radices(rng: np.random.Generator, parts: int) -> list[int]:
    """Return one digit, or two whose product is the parts or a little more."""
    if parts < 4 or rng.random() < 0.5:
        return [parts]
    fast = int(rng.integers(2, parts // 2 + 1))
    return [-(-parts // fast), fast]


@contextlib.contextmanager
def random_planner(seed: int, following: float = 0.2) -> Iterator[None]:
    """Plan at random inside the context: one plan per question, the same ones for the same seed.

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
    ) -> list[Priced]:
        plans = [random_plan(rng, form, codelet, target.num_tiles)]
        if rng.random() < following:
            followed = [follow(form, codelet, k, operand, target) for k, operand in enumerate(operands)]
            plans = [p for p in (*followed, *extra) if p is not None] + plans
        return [Priced(plan, float(n), 0) for n, plan in enumerate(plans)]

    with mock.patch.object(place, "search", search):
        yield
