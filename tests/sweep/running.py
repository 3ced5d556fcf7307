"""Run one case beside ``jax.jit``, and say in a word how it went."""

from __future__ import annotations

import contextlib
import functools
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import ipuxla
from hlo_passes.errors import HloError
from ipuxla.errors import InternalError, IpuError
from tests.chunks import run_in_chunks
from tests.sweep.cases import CASES, Case
from tiles.numerics.tolerance import NotClose, check_close
from tiles.target import Target

CHUNK = 40
"""Cases that a process runs before it forgets what JAX compiled for them."""
SMALL = Target.named("gc200").replace(num_tiles=16)


@dataclass(frozen=True)
class Outcome:
    """How a case went.

    Attributes:
      name: of the case.
      engine: that ran it.
      kind: "equal", "refused", "wrong", "crash", or "invalid" where ``jax.jit`` itself refuses.
      error: name of the error, empty where there is none.
      message: its first line.
      seconds: processor time of the first call: tracing, our compiler, XLA and the run.
    """

    name: str
    engine: str
    kind: str
    error: str
    message: str
    seconds: float

    @property
    def case(self) -> Case:
        """The case."""
        return CASES[self.name]

    @property
    def as_expected(self) -> bool:
        """Whether the result is equal, or the error the one that the case names."""
        return self.error == self.case.refused_on(self.engine) and self.kind in ("equal", "refused")

    @property
    def text(self) -> str:
        """What happened, in a line."""
        return f"{self.kind} {self.error}: {self.message}"


def _line(kind: str, error: BaseException | None) -> str:
    """Return an error's first line; of a crash also where it was raised."""
    lines = str(error).splitlines() if error is not None else []
    place = ""
    if kind == "crash" and error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
    return (lines[0] if lines else "") + place


def run(case: Case, target: Target = SMALL, engine: str = "fast", arithmetic: str = "float") -> Outcome:
    """Run a case and compare it with ``jax.jit``; in the ring, on every bit with the module evaluated op by op."""
    if arithmetic == "ring":
        return _run_in_the_ring(case, target, engine)
    decorator: Callable[..., Any] = ipuxla.jit(target=target, engine=engine)
    start = time.process_time()

    def outcome(kind: str, error: BaseException | None = None) -> Outcome:
        return Outcome(
            case.name,
            engine,
            kind,
            type(error).__name__ if error else "",
            _line(kind, error),
            time.process_time() - start,
        )

    with jax.enable_x64(True) if case.x64 else contextlib.nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want = case.make(jax.jit)(*case.arguments)
        except Exception as error:
            want, invalid = None, error
        else:
            invalid = None
        start = time.process_time()
        try:
            got = case.make(decorator)(*case.arguments)
            if invalid is not None:
                return outcome("invalid", invalid)
            check_close(got, want)
        except NotClose as error:
            return outcome("wrong", error)
        except InternalError as error:
            return outcome("crash", error)
        except (IpuError, HloError) as error:
            return outcome("refused", error)
        except Exception as error:
            return outcome(
                "invalid" if invalid is not None and type(invalid) is type(error) else "crash", error
            )
    return outcome("equal")


def _run_in_the_ring(case: Case, target: Target, engine: str) -> Outcome:
    """Run a case on an engine and as a module; both give the same words, or the same named error."""
    start = time.process_time()
    found: list[Any] = []
    with jax.enable_x64(True) if case.x64 else contextlib.nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for chosen in ("hlo", engine):
            decorator: Callable[..., Any] = ipuxla.jit(target=target, engine=chosen, arithmetic="ring")
            try:
                found.append(jax.tree.leaves(case.make(decorator)(*case.arguments)))
            except Exception as error:
                found.append(error)
    want, got = found
    seconds = time.process_time() - start
    refused = case.refused_on(engine)
    for error in (got, want):
        if isinstance(error, Exception):
            # JAX itself refuses what is made of words, a gradient for one.
            is_alike = type(want) is type(got) and not isinstance(error, InternalError)
            is_refused = is_alike or (error is got and type(error).__name__ == refused)
            kind = "refused" if is_refused else "crash"
            name = refused if is_refused else type(error).__name__
            return Outcome(case.name, engine, kind, name, _line(kind, error), seconds)
    same = len(want) == len(got) and all(map(_same_words, want, got))
    message = "" if same else "words differ from those of the module"
    return Outcome(case.name, engine, "equal" if same else "wrong", "", message, seconds)


def _same_words(one: Any, other: Any) -> bool:
    if hasattr(one, "dtype") and jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    return np.array_equal(np.asarray(one), np.asarray(other))


def run_all(names: Sequence[str], engine: str, jobs: int, arithmetic: str = "float") -> Iterator[Outcome]:
    """Yield the outcomes of cases in order, from this process or from several."""
    run_one = functools.partial(_run_named, engine=engine, arithmetic=arithmetic)
    return run_in_chunks(run_one, names, CHUNK, jobs)


def _run_named(name: str, engine: str, arithmetic: str) -> Outcome:
    return run(CASES[name], engine=engine, arithmetic=arithmetic)
