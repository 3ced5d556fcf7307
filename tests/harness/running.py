"""Run JAX's cases, in this process or in several."""

from __future__ import annotations

import functools
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

import ipuxla
from hlo_passes.errors import HloError
from ipuxla.errors import InternalError, IpuError
from tests.chunks import run_in_chunks
from tests.harness.cases import arguments, check, harnesses
from tests.harness.reasons import reason
from tiles.numerics.tolerance import NotClose
from tiles.target import Target

CHUNK = 60
"""Cases that a process runs before it forgets what JAX compiled for them."""
SMALL = Target.named("gc200").replace(num_tiles=16)


@dataclass(frozen=True)
class Outcome:
    """How a case went.

    Attributes:
      name: of the case.
      group: the primitive it tests.
      kind: "equal", "refused", "wrong" or "crash"; "invalid" where ``jax.jit`` refuses, too.
      message: the error's name and first line.
      seconds: processor time of the first call: tracing, our compiler, XLA and the run.
    """

    name: str
    group: str
    kind: str
    message: str = ""
    seconds: float = 0.0

    @property
    def as_expected(self) -> bool:
        """Whether the result is equal, or why it is not is known."""
        return self.kind in ("equal", "invalid") or bool(reason(self.name))


def run(name: str, engine: str = "fast") -> Outcome:
    """Run a case and compare it with ``jax.jit``."""
    harness = harnesses()[name]
    args = arguments(harness)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want = jax.jit(harness.dyn_fun)(*args)
        except Exception as error:
            return Outcome(name, harness.group_name, "invalid", _line(error))
        start = time.process_time()
        kind, message = "equal", ""
        try:
            got = ipuxla.jit(harness.dyn_fun, target=SMALL, engine=engine)(*args)
            check(harness, got, want, args)
        except Exception as error:
            kind, message = _kind(error), _line(error)
        return Outcome(name, harness.group_name, kind, message, time.process_time() - start)


def _kind(error: Exception) -> str:
    if isinstance(error, NotClose):
        return "wrong"
    if isinstance(error, IpuError | HloError) and not isinstance(error, InternalError):
        return "refused"
    return "crash"


def _line(error: Exception) -> str:
    """Return an error's name and first line; where none of ours, also where it was raised."""
    lines = str(error).splitlines() or [""]
    place = ""
    if not isinstance(error, IpuError | HloError | NotClose):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f" ({Path(frame.filename).name}:{frame.lineno})"
    return f"{type(error).__name__}: {lines[0]}{place}"


def run_all(names: Sequence[str], engine: str, jobs: int) -> Iterator[Outcome]:
    """Yield the outcomes of cases in order, from this process or from several."""
    return run_in_chunks(functools.partial(run, engine=engine), names, CHUNK, jobs)
