"""Calls in a process of their own, for what bytes from anywhere may do to the process that reads them.

jaxlib's readers of MLIR end the process on some bytes: no Python code sees an error. Who has to read such bytes reads them
in a child first; what comes back is what the child wrote.
"""

from __future__ import annotations

import importlib
import math
import os
import signal
import subprocess
import sys
import time

TIME_LIMIT_S = 120
"""Of a call on the wall, the start of Python and the import of JAX included."""
PROCESSOR_LIMIT_S = 10
"""Of a call's processor time, its imports not counted, and a second more for every ``BYTES_PER_S`` bytes."""
BYTES_PER_S = 1 << 20
PARTITIONER_LIMIT_S = 60
"""Of the processor time of XLA's partitioner and of Shardy, which takes seconds for a large program."""
MEMORY_LIMIT_BYTES = 8 << 30
REFUSED = 3
_SERVE = "from tiles.isolated import serve; serve()"


class Ended(ValueError):
    """A child process ended, or was ended, before it answered."""


def call(
    function: str,
    data: bytes,
    time_limit_s: float = TIME_LIMIT_S,
    processor_limit_s: int = PROCESSOR_LIMIT_S,
) -> bytes:
    """Return what a function makes of bytes, called in a fresh Python process.

    Args:
      function: ``module:name`` of a function from bytes to bytes.
      data: its argument.
      time_limit_s: after which the process is ended.
      processor_limit_s: of processor time for the call itself, after which it is ended, too.

    Raises:
      ValueError: with the same message, where the function raises it.
      Ended: the process died, or took too long.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", _SERVE, function, str(processor_limit_s)]
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, env=environment, timeout=time_limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise Ended(f"a process of its own took longer than {time_limit_s:g} s over it") from None
    except OSError as error:
        raise Ended(f"no process of its own could be started: {error}") from error
    if done.returncode == REFUSED:
        raise ValueError(done.stdout.decode(errors="replace"))
    if done.returncode:
        raise Ended(f"a process of its own died of it ({_cause(done.returncode)})")
    return done.stdout


def _cause(code: int) -> str:
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"signal {-code}"


def serve() -> None:
    """Answer one call: the child's side of ``call``."""
    module, _, name = sys.argv[1].partition(":")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    data = sys.stdin.buffer.read()
    function = getattr(importlib.import_module(module), name)
    # Importing JAX takes as long as the machine is slow: what is limited is what the bytes make of the call.
    _limit(math.ceil(time.process_time()) + int(sys.argv[2]) + len(data) // BYTES_PER_S)
    code = 0
    try:
        answer = function(data)
    except ValueError as error:
        answer, code = str(error).encode(errors="replace"), REFUSED
    answers.write(answer)
    answers.flush()
    os._exit(code)


def _limit(seconds: int) -> None:
    """Let the process fail before the machine does; where there are no such limits, it has none."""
    try:
        import resource
    except ImportError:
        return
    limits = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_DATA, MEMORY_LIMIT_BYTES),
    )
    for kind, wanted in limits:
        _, most = resource.getrlimit(kind)
        resource.setrlimit(kind, (wanted if most == resource.RLIM_INFINITY else min(most, wanted), most))
