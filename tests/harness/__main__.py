"""``python -m tests.harness [--only=sort,fft] [--sample=150 [--seed=N]] [--engine=fast] [--jobs=2] [--write]``."""

from __future__ import annotations

import argparse
import random
import secrets
import sys

from tests.harness.cases import harnesses
from tests.harness.running import run_all
from tests.harness.table import mean_over_groups, write_table


def main() -> int:
    """Run the cases asked for and print those that are not equal; 1 where one has no known reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness")
    parser.add_argument("--only", default="", help="beginnings of names, separated by commas")
    parser.add_argument("--sample", type=int, default=0, help="draw so many cases; all by default")
    parser.add_argument("--seed", type=int, default=None, help="of the draw; drawn by default, and printed")
    parser.add_argument("--engine", default="fast")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--write", action="store_true", help="write tests/harness/results.md")
    parser.add_argument("--slow", type=float, default=20.0, help="seconds from which a case is shown as slow")
    options = parser.parse_args()
    names = [name for name in harnesses() if name.startswith(tuple(options.only.split(",")))]
    if options.sample:
        seed = secrets.randbelow(10**6) if options.seed is None else options.seed
        print(f"{options.sample} of {len(names)} cases, --seed={seed}")
        names = sorted(random.Random(seed).sample(names, min(options.sample, len(names))))
    outcomes = []
    for outcome in run_all(names, options.engine, options.jobs):
        outcomes.append(outcome)
        if outcome.kind not in ("equal", "invalid") or outcome.seconds > options.slow:
            print(f"{outcome.name} {outcome.seconds:.1f}s {outcome.kind} {outcome.message}", flush=True)
    equal = sum(outcome.kind == "equal" for outcome in outcomes)
    print(f"{equal} of {len(outcomes)} equal, mean over primitives {mean_over_groups(outcomes):.2f} %")
    if options.write:
        write_table(outcomes)
    return not all(outcome.as_expected for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
