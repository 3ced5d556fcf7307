"""The command: see the package's text."""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import time

from tests.hostile.workers import Worker

TELL_EVERY = 1000
"""Cases after which the command says how far it is."""


def main() -> int:
    """Run the command; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("kind", choices=("modules", "executables"))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop then, however many are left")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    found: collections.Counter[str] = collections.Counter()
    shown: dict[str, int] = {}
    end = time.monotonic() + 60 * chosen.minutes
    context = multiprocessing.get_context("spawn")
    left = iter(range(chosen.first, chosen.first + chosen.count))
    workers = [Worker(context, chosen.kind, chosen.seed) for _ in range(chosen.workers)]
    for worker in workers:
        worker.take(left)
    told = 0
    while any(worker.at is not None for worker in workers):
        if sum(found.values()) >= told + TELL_EVERY:
            told = sum(found.values())
            print(f"{told} cases", flush=True)
        for worker in workers:
            for number, answer in worker.answers():
                kind = " ".join(answer.split()[:2]) if answer.isupper() or answer[:4].isupper() else answer
                found[kind if answer[:4].isupper() else answer] += 1
                if answer[:4].isupper() and shown.setdefault(answer, number) == number:
                    print(f"case {number}: {answer}", flush=True)
                if time.monotonic() < end:
                    worker.take(left)
        time.sleep(0.002)
    for worker in workers:
        worker.end()
    print(f"{sum(found.values())} {chosen.kind}, seed {chosen.seed}:")
    for answer, count in found.most_common():
        print(f"{count:7}  {answer}")
    return int(any(answer[:4].isupper() for answer in found))


if __name__ == "__main__":
    raise SystemExit(main())
