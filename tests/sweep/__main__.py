"""``python -m tests.sweep [--only=jnp.sort,lax] [--drawn=20 [--seed=N]] [--engine=fast] [--arithmetic=float] [--jobs=2] [--write]``."""

from __future__ import annotations

import argparse
import random
import secrets
import sys

from tests.sweep import CASES
from tests.sweep.running import run_all
from tests.sweep.table import write_table


def main() -> int:
    """Run the cases asked for and print those that are not equal; 1 where one is not as expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep")
    parser.add_argument("--only", default="", help="beginnings of names, separated by commas")
    parser.add_argument("--groups", default="", help="names of groups, separated by commas")
    parser.add_argument(
        "--drawn", type=int, default=1, metavar="N", help="draw one in N cases; all by default"
    )
    parser.add_argument("--seed", type=int, default=None, help="of the draw; drawn by default, and printed")
    parser.add_argument("--engine", default="fast")
    parser.add_argument("--arithmetic", default="float", choices=("float", "ring"))
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
    if options.drawn > 1:
        seed = secrets.randbelow(10**6) if options.seed is None else options.seed
        print(f"one in {options.drawn} of {len(chosen)} cases, --seed={seed}", flush=True)
        draw = random.Random(seed)
        chosen = [name for name in chosen if draw.random() * options.drawn < 1]
    outcomes = []
    for outcome in run_all(chosen, options.engine, options.jobs, options.arithmetic):
        outcomes.append(outcome)
        if options.all or not outcome.as_expected or outcome.seconds > options.slow:
            flag = "" if outcome.as_expected else outcome.text
            print(f"{outcome.name:50s} {outcome.seconds:6.2f}s  {flag}", flush=True)
    good = sum(outcome.as_expected for outcome in outcomes)
    print(f"{good} of {len(outcomes)} as expected, {sum(o.kind == 'equal' for o in outcomes)} equal")
    if options.write:
        write_table(outcomes)
    return int(good < len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
