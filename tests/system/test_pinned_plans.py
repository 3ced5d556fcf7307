"""Plans print, load and can be pinned: kept as they were chosen, or replaced step by step."""

from __future__ import annotations

import importlib
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla.errors import InvalidOption
from tiles.compiler import plans_of, read_plans
from tiles.errors import InvalidPlan
from tiles.graph import Plan, whole
from tiles.numerics.tolerance import check_close

choosing, combining = (
    importlib.import_module(f"tiles.planning.{name}") for name in ("operations", "combining")
)
X = np.linspace(-1, 1, 6 * 300, dtype=np.float32).reshape(6, 300)
W = np.linspace(0, 1, 300 * 7, dtype=np.float32).reshape(300, 7)


def model(x: Any, w: Any) -> Any:
    """A loop, a split contraction, a fold of two results, a row function."""
    y = jax.lax.fori_loop(0, 3, lambda _, v: jnp.sin(v) * 0.5, x)
    return jax.nn.softmax(y @ w), jnp.argmax(x), (x * x).sum()


@pytest.fixture(scope="module")
def lowered(small_target: Any) -> ipuxla.Lowered:
    return ipuxla.jit(model, target=small_target).lower(X, W)


@pytest.fixture(scope="module")
def text(lowered: ipuxla.Lowered) -> str:
    return lowered.compile().as_text("plans")


def one_tile(plan: Plan) -> Plan:
    return Plan(tuple(whole(split.size) for split in plan.splits), 3)


def test_all_plans_pinned_give_the_same_program_without_a_search(
    lowered: ipuxla.Lowered, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lowered.compile()
    assert any(name.endswith(".combine") for name in read_plans(text))  # of a contraction that is cut

    def refused(*args: Any) -> Any:
        raise AssertionError("a step was planned although its plan is pinned")

    monkeypatch.setattr(choosing, "choose", refused)
    monkeypatch.setattr(combining, "_combine_plan", refused)
    again = ipuxla.jit(model, target=lowered.options.target, plans=text).lower(X, W).compile()
    assert again.executable.to_bytes() == first.executable.to_bytes()
    assert again.as_text("plans") == text == lowered.as_text("plans")


def test_one_plan_may_be_replaced(lowered: ipuxla.Lowered, text: str) -> None:
    name, plan = next((n, p) for n, p in read_plans(text).items() if n.startswith("dot"))
    pins = json.dumps({"format": 1, "plans": {name: one_tile(plan).to_data()}})
    assert one_tile(plan) != plan
    # partials of a plan that cuts no reduction are results: the step then has the operation's own name
    compiled = lowered.compile(plans=pins.replace(f'"{name}"', f'"{name.removesuffix(".partials")}"'))
    placed = plans_of(compiled.executable)[name.removesuffix(".partials")]
    assert (placed.splits, placed.base) == (one_tile(plan).splits, one_tile(plan).base)
    check_close(compiled(X, W), jax.jit(model)(X, W), "pinned")


def test_what_is_pinned_must_be_a_step_and_fit_it(lowered: ipuxla.Lowered, text: str) -> None:
    data = json.loads(text)
    name = next(iter(data["plans"]))
    with pytest.raises(InvalidPlan, match="nowhere that a plan is pinned to"):
        lowered.compile(plans=json.dumps({"format": 1, "plans": {"nowhere": data["plans"][name]}}))
    other = {**data["plans"][name], "splits": [[5, 5, []]]}
    with pytest.raises(InvalidPlan, match="the plan cuts"):
        lowered.compile(plans=json.dumps({"format": 1, "plans": {name: other}}))


@pytest.mark.parametrize(
    "plans", ["", "[]", '{"format": 2, "plans": {}}', '{"format": 1, "plans": {"dot": {"splits": 3}}}']
)
def test_what_is_no_plans_is_refused(plans: str) -> None:
    with pytest.raises(InvalidPlan):
        ipuxla.jit(model, plans=plans)


def test_plans_are_text() -> None:
    with pytest.raises(InvalidOption, match="plans is no text"):
        ipuxla.jit(model, plans={"dot": 1})  # type: ignore[arg-type]


def test_a_contraction_cannot_be_pinned_to_an_order_it_does_not_read(
    lowered: ipuxla.Lowered, text: str
) -> None:
    name, plan = next((n, p) for n, p in read_plans(text).items() if n.startswith("dot"))
    turned = {**plan.to_data(), "arrangement": [[0, 0], [2, 0], [1, 0]]}
    with pytest.raises(InvalidPlan, match="does not go through its cells in the order 0,2,1") as caught:
        lowered.compile(plans=json.dumps({"format": 1, "plans": {name: turned}}))
    assert "test_pinned_plans.py" in str(caught.value)
