"""The plans of an executable as text, read back, and pinned: what was chosen once can be kept, edited, compared.

A plan goes by the name of its step, as reports and listings show it. Pinned plans go into ``Graph.pinned_plans``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tiles.compiler.executable import Executable
from tiles.errors import InvalidPlan, IpuError
from tiles.files import is_mapping
from tiles.graph import Plan

FORMAT = 1


def plans_of(executable: Executable) -> dict[str, Plan]:
    """Return the plan of every operation by the name of its step, in program order."""
    return {group.name: group.plan for _, group in executable.groups()}


def print_plans(executable: Executable) -> str:
    """Return an executable's plans as JSON, one operation a line: ``read_plans`` takes it.

    A plan has a first tile and for each dimension of the operation's domain ``[size, grain, digits]``; see
    ``AxisSplit``.
    """
    rows = [
        f"  {json.dumps(name)}: {json.dumps(plan.to_data())}" for name, plan in plans_of(executable).items()
    ]
    return f'{{"format": {FORMAT}, "plans": {{\n' + ",\n".join(rows) + "\n}}\n"


def read_plans(text: str) -> dict[str, Plan]:
    """Return plans by step from what ``print_plans`` wrote, or from a part of it.

    Raises:
      InvalidPlan: not such a text, of another format, or with a plan that cuts nothing legally.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidPlan(f"these are no plans: {error}", expected=_EXPECTED, got=repr(text[:60])) from error
    if not is_mapping(data) or data.get("format") != FORMAT or set(data) != {"format", "plans"}:
        raise InvalidPlan("these are no plans", expected=_EXPECTED, got=repr(text[:60]))
    if not is_mapping(data["plans"]):
        raise InvalidPlan("these are no plans", expected=_EXPECTED, got=repr(data["plans"])[:60])
    plans: Mapping[str, Any] = data["plans"]
    return {name: _plan(name, plan) for name, plan in plans.items()}


_EXPECTED = f'{{"format": {FORMAT}, "plans": {{step: plan}}}}, as as_text("plans") gives it'


def _plan(name: str, data: Any) -> Plan:
    try:
        plan = Plan.from_data(data)
    except (LookupError, TypeError, ValueError, IpuError) as error:
        raise InvalidPlan(f"the plan of {name} is damaged: {error}", location=name) from error
    if plan.to_data() != data:
        raise InvalidPlan(f"the plan of {name} is damaged", location=name, expected=plan.to_data(), got=data)
    return plan


def require_pinned(executable: Executable, plans: Mapping[str, Plan]) -> None:
    """Raise InvalidPlan unless every pinned plan is that of its step, whose order it may leave open.

    Raises:
      InvalidPlan: there is no such step, or its plan follows from where its result lies.
    """
    found = plans_of(executable)
    for name, plan in plans.items():
        if name not in found:
            raise InvalidPlan(
                f"no operation of {executable.name} is the step {name} that a plan is pinned to",
                location=name,
                expected=", ".join(list(found)[:12]) + (", ..." if len(found) > 12 else ""),
                try_='take names and plans from as_text("plans") of the same program',
            )
        taken = found[name]
        is_its_order = plan.arrangement.is_row_major or plan.arrangement == taken.arrangement
        if (taken.splits, taken.base) != (plan.splits, plan.base) or not is_its_order:
            raise InvalidPlan(
                f"the plan pinned to {name} was not taken: where its result lies decides how it is cut",
                location=name,
                expected=taken.to_data(),
                got=plan.to_data(),
                try_="leave this step's plan out",
            )
