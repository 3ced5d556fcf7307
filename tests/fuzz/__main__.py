"""The command: see the package's text."""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import datetime
import itertools
import multiprocessing
import pathlib
import secrets
import signal
import time
from typing import Any

from tests.fuzz import record
from tests.fuzz.kinds import CHUNK, Chunk, run_chunk, written

KINDS = ("programs", "control", "programs", "unusual", "large", "executables", "modules")
"""In turn; programs are drawn twice as often as the others."""


def main() -> int:
    """Run the command; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="no chunk begins after them")
    parser.add_argument("--seed", type=int, default=None, help="drawn by default, and printed")
    parser.add_argument("--kinds", default=",".join(KINDS), help="in turn, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--write", action="store_true", help="add the run to tests/fuzz/results.md")
    parser.add_argument("--as-drawn", action="store_true", help="make no failure smaller, and go on after it")
    parser.add_argument("--chunk", type=int, default=CHUNK, help="programs of one process after another")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(".fuzz"))
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(
        f"--seed={seed}, {options.minutes:g} minutes, failures in {options.folder / 'failures'}", flush=True
    )
    begin, commit = time.monotonic(), record.commit()
    tried: collections.Counter[str] = collections.Counter()
    refused: collections.Counter[str] = collections.Counter()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _draw(options, seed, begin + 60 * options.minutes, tried, refused)
    except KeyboardInterrupt:
        print("interrupted: chunks under way are not counted")
    print(", ".join(f"{count} {what}" for what, count in tried.items()))
    for line, count in refused.most_common():
        print(f"{count:6} refused: {line}")
    if options.write:
        minutes = (time.monotonic() - begin) / 60
        counts = {**tried, "refused": refused.total()}
        record.add(datetime.date.today().isoformat(), commit, seed, minutes, counts)
    return int(tried["found"] > 0)


def _draw(
    options: argparse.Namespace,
    seed: int,
    end: float,
    tried: collections.Counter[str],
    refused: collections.Counter[str],
) -> None:
    """Draw chunks until a time, and count what they did."""
    turns = itertools.count()
    running: dict[Any, tuple[str, int, Any]] = {}
    kinds = options.kinds.split(",")
    while running or time.monotonic() < end:
        while len(running) < options.jobs and time.monotonic() < end:
            turn = next(turns)
            kind, own_seed = kinds[turn % len(kinds)], seed * 1_000_003 + turn
            pool = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
            job = pool.submit(run_chunk, kind, own_seed, options.folder, options.as_drawn, options.chunk)
            running[job] = kind, own_seed, pool
        for future in concurrent.futures.wait(running, return_when="FIRST_COMPLETED").done:
            kind, own_seed, pool = running.pop(future)
            pool.shutdown()
            try:
                chunk: Chunk = future.result()
            except concurrent.futures.process.BrokenProcessPool:
                tried["found"] += 1
                print(f"DIED: run_chunk({kind!r}, {own_seed}), {options.chunk} programs", flush=True)
                continue
            tried.update(chunk.tried)
            refused.update(chunk.refused)
            tried["found"] += len(chunk.found)
            for failure in chunk.found:
                print(f"{failure.kind}: {failure.what}\n  {written(failure, options.folder)}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
