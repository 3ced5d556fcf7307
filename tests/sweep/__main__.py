"""``python -m tests.sweep [--only=jnp.sort,lax] [--groups=jax.lax] [--engine=fast] [--write]``."""

from __future__ import annotations

import argparse

import jax

from tests.sweep import CASES
from tests.sweep.running import run
from tests.sweep.table import write_table


def main() -> None:
    """Run the cases asked for, print those that are not equal, and write the table if asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep")
    parser.add_argument("--only", default="", help="beginnings of names, separated by commas")
    parser.add_argument("--groups", default="", help="names of groups, separated by commas")
    parser.add_argument("--engine", default="fast")
    parser.add_argument("--write", action="store_true", help="write tests/sweep/results.md")
    parser.add_argument(
        "--all", action="store_true", help="show every case, not only what is slow or unexpected"
    )
    parser.add_argument("--slow", type=float, default=5.0, help="seconds from which a case is shown as slow")
    options = parser.parse_args()
    names, groups = tuple(options.only.split(",")), options.groups.split(",") if options.groups else None
    outcomes = []
    for number, case in enumerate(CASES.values()):
        if not case.name.startswith(names) or (groups and case.group not in groups):
            continue
        outcome = run(case, engine=options.engine)
        outcomes.append(outcome)
        if options.all or not outcome.as_expected or outcome.seconds > options.slow:
            flag = "" if outcome.as_expected else outcome.text
            print(f"{case.name:50s} {outcome.seconds:6.2f}s  {flag}", flush=True)
        if number % 100 == 99:
            jax.clear_caches()
    good = sum(outcome.as_expected for outcome in outcomes)
    print(f"{good} of {len(outcomes)} as expected, {sum(o.kind == 'equal' for o in outcomes)} equal")
    if options.write:
        write_table(outcomes)


if __name__ == "__main__":
    main()
