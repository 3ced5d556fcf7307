"""``python -m tests.sweep [--only=jnp.sort,lax] [--groups=jax.lax] [--engine=fast] [--jobs=2] [--write]``."""

from __future__ import annotations

import argparse

from tests.sweep import CASES
from tests.sweep.running import run_all
from tests.sweep.table import write_table


def main() -> None:
    """Run the cases asked for, print those that are not equal, and write the table if asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep")
    parser.add_argument("--only", default="", help="beginnings of names, separated by commas")
    parser.add_argument("--groups", default="", help="names of groups, separated by commas")
    parser.add_argument("--engine", default="fast")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--write", action="store_true", help="write tests/sweep/results.md")
    parser.add_argument(
        "--all", action="store_true", help="show every case, not only what is slow or unexpected"
    )
    parser.add_argument("--slow", type=float, default=5.0, help="seconds from which a case is shown as slow")
    options = parser.parse_args()
    names, groups = tuple(options.only.split(",")), options.groups.split(",") if options.groups else None
    chosen = [
        case.name
        for case in CASES.values()
        if case.name.startswith(names) and (groups is None or case.group in groups)
    ]
    outcomes = []
    for outcome in run_all(chosen, options.engine, options.jobs):
        outcomes.append(outcome)
        if options.all or not outcome.as_expected or outcome.seconds > options.slow:
            flag = "" if outcome.as_expected else outcome.text
            print(f"{outcome.name:50s} {outcome.seconds:6.2f}s  {flag}", flush=True)
    good = sum(outcome.as_expected for outcome in outcomes)
    print(f"{good} of {len(outcomes)} as expected, {sum(o.kind == 'equal' for o in outcomes)} equal")
    if options.write:
        write_table(outcomes)


if __name__ == "__main__":
    main()
