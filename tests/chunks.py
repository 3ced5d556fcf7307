"""Many cases run in chunks, by this process or by several, with what XLA compiled for them dropped in between."""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import jax

T = TypeVar("T")


def run_in_chunks(run: Callable[[str], T], names: Sequence[str], size: int, jobs: int) -> Iterator[T]:
    """Yield what cases give, in order.

    Args:
      run: runs one case by its name; it has to pickle where there are several jobs.
      names: of the cases.
      size: cases of a chunk.
      jobs: processes.
    """
    chunks = [names[first : first + size] for first in range(0, len(names), size)]
    run_chunk = functools.partial(_run_chunk, run)
    if jobs == 1:
        yield from itertools.chain.from_iterable(map(run_chunk, chunks))
        return
    with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from itertools.chain.from_iterable(pool.map(run_chunk, chunks))


def _run_chunk(run: Callable[[str], T], names: Sequence[str]) -> list[T]:
    found = [run(name) for name in names]
    jax.clear_caches()
    return found
