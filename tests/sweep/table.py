"""The committed table of the sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.sweep.cases import CASES
from tests.sweep.running import Outcome

RESULTS = Path(__file__).parent / "results.md"


def write_table(outcomes: Sequence[Outcome]) -> None:
    """Write ``results.md``: per group how many cases are equal, refused or wrong, and every one that is not equal."""
    groups = dict.fromkeys(outcome.case.group for outcome in outcomes)
    lines = [
        "# Sweep over JAX's public API",
        "",
        f"`python -m tests.sweep --write` on 16 tiles of a gc200, fast engine, against `jax.jit`: "
        f"{len(outcomes)} of {len(CASES)} cases.",
        "",
        "| group | cases | equal | refused by a named error | wrong or crashed |",
        "|---|---|---|---|---|",
    ]
    for group in groups:
        kinds = Counter(o.kind for o in outcomes if o.case.group == group)
        rest = kinds.total() - kinds["equal"] - kinds["refused"]
        lines.append(f"| {group} | {kinds.total()} | {kinds['equal']} | {kinds['refused']} | {rest} |")
    kinds = Counter(o.kind for o in outcomes)
    rest = kinds.total() - kinds["equal"] - kinds["refused"]
    lines.append(f"| all | {kinds.total()} | {kinds['equal']} | {kinds['refused']} | {rest} |")
    lines += ["", "## Not equal", "", "| case | kind | error |", "|---|---|---|"]
    for o in outcomes:
        if o.kind != "equal":
            message = o.message.replace("|", "\\|")[:160]
            lines.append(f"| {o.name} | {o.kind} | {o.error}: {message} |")
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
