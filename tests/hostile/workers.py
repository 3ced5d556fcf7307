"""Processes that run cases one after another, and are started again when they die."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import tempfile
import time
import traceback
import types
import warnings
from typing import Any

SLOW_S = 10
"""Of processor time for one case; a hang."""


HANGS_S = 120
"""Of time on the wall, for a process that does not even notice that it is slow. Bytes that jaxlib read before may be why."""


class TooSlow(BaseException):
    """A case took too long; no ``except Exception`` holds it up."""


def _stop(*_: Any) -> None:
    raise TooSlow


def module_of(kind: str) -> types.ModuleType:
    """Return what draws and runs the cases of a kind."""
    return importlib.import_module(f"tests.hostile.{kind}")


def _work(kind: str, seed: int, numbers: Any, answers: Any) -> None:
    """Run cases as they come, saying which before each."""
    warnings.simplefilter("ignore")
    os.chdir(tempfile.mkdtemp())
    module = module_of(kind)
    signal.signal(signal.SIGVTALRM, _stop)
    faulthandler.enable()
    while (case := numbers.get()) is not None:
        number, is_apart = case
        answers.put(("begun", number, ""))
        signal.setitimer(signal.ITIMER_VIRTUAL, SLOW_S)
        try:
            found = module.run_apart(seed, number) if is_apart else module.run(seed, number)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except TooSlow:
            found = "SLOW: " + _place()
        except Exception as error:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            last = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
            what = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            found = f"UNNAMED {what} ({last.filename}:{last.lineno})"
        answers.put(("done", number, found))


def _place() -> str:
    lines = [line for line in traceback.format_exc().splitlines() if "/" in line]
    return lines[-1].strip() if lines else ""


class Worker:
    """A process that runs cases, started again when it dies."""

    def __init__(self, context: Any, kind: str, seed: int) -> None:
        self.context, self.kind, self.seed = context, kind, seed
        self.at: int | None = None
        self._start()

    def _start(self) -> None:
        self.numbers, self.found = self.context.Queue(), self.context.SimpleQueue()
        arguments = (self.kind, self.seed, self.numbers, self.found)
        self.process = self.context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()

    def take(self, left: Any) -> None:
        """Work on the next case, if one is left."""
        number = next(left, None)
        if number is not None:
            self._give(number, False)

    def _give(self, number: int, is_apart: bool) -> None:
        self.at, self.is_apart, self.since = number, is_apart, time.monotonic()
        self.numbers.put((number, is_apart))

    def answers(self) -> list[tuple[int, str]]:
        """Return what came of the case that it works on, if anything has.

        Where reading a module ended the process, it is read once more as one from anywhere.
        """
        while not self.found.empty():
            state, number, answer = self.found.get()
            if state == "begun":
                self.since = time.monotonic()
            else:
                self.at = None
                return [(number, answer + (" (its reader died)" if self.is_apart else ""))]
        hangs = self.at is not None and time.monotonic() - self.since > HANGS_S
        if self.at is None or (self.process.is_alive() and not hangs):
            return []
        number, self.at = self.at, None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGABRT)  # tells where it is
        self.process.join(10)
        self.process.kill()
        self._start()
        if self.is_apart or not hasattr(module_of(self.kind), "run_apart"):
            return [(number, "SLOW: see above" if hangs else "DIED")]
        self._give(number, True)
        return []

    def end(self) -> None:
        """Let the process end."""
        self.numbers.put(None)
        self.process.join(10)
        self.process.kill()
