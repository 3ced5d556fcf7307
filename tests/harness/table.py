"""The committed table of JAX's own tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.harness.reasons import reason
from tests.harness.running import Outcome

RESULTS = Path(__file__).parent / "results.md"


def mean_over_groups(outcomes: Sequence[Outcome]) -> float:
    """Return the mean over primitives of the share of their cases that are equal, in percent.

    Cases that ``jax.jit`` refuses are not counted.
    """
    counts = _counts(outcomes)
    shares = [kinds["equal"] / kinds.total() for kinds in counts.values()]
    return 100 * sum(shares) / len(shares) if shares else 100.0


def _counts(outcomes: Sequence[Outcome]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        if outcome.kind != "invalid":
            counts.setdefault(outcome.group, Counter())[outcome.kind] += 1
    return counts


def write_table(outcomes: Sequence[Outcome]) -> None:
    """Write ``results.md``: cases per primitive, and every one that is not equal with its reason."""
    counts = _counts(outcomes)
    equal = sum(kinds["equal"] for kinds in counts.values())
    total = sum(kinds.total() for kinds in counts.values())
    lines = [
        "# JAX's own tests of its primitives",
        "",
        "`python -m tests.harness --write`: every case of `jax._src.internal_test_util.test_harnesses` that JAX runs on",
        "a CPU, on 16 tiles of a gc200, fast engine, against `jax.jit`.",
        "",
        f"Mean over {len(counts)} primitives: {mean_over_groups(outcomes):.2f} % equal; {equal} of {total} cases.",
        f"{sum(o.kind == 'invalid' for o in outcomes)} cases that `jax.jit` itself refuses on a CPU are not counted.",
        "",
        "| primitive | cases | equal | refused | wrong or crashed |",
        "|---|---|---|---|---|",
    ]
    for group in sorted(counts):
        kinds = counts[group]
        rest = kinds.total() - kinds["equal"] - kinds["refused"]
        lines.append(f"| {group} | {kinds.total()} | {kinds['equal']} | {kinds['refused']} | {rest} |")
    lines += ["", "## Not equal", "", "| case | kind | error | reason |", "|---|---|---|---|"]
    for o in outcomes:
        if o.kind not in ("equal", "invalid"):
            message = o.message.replace("|", "\\|")[:160]
            lines.append(f"| {o.name} | {o.kind} | {message} | {reason(o.name)} |")
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
