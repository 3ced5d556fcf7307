"""The command ``ipuxla``, also as ``python -m ipuxla``: ends well however it is interrupted, even while it is imported."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

INTERRUPTED = 130
INSIST_S = 0.5
"""Python drops an interruption that strikes where no error can go (a finalizer): it is repeated until it is heard."""


def main() -> None:
    """Run the command line and exit."""
    signal.signal(signal.SIGINT, _interrupt)
    try:
        from ipuxla import cli

        code = cli.main(sys.argv)
    except KeyboardInterrupt:
        _end("ipuxla: interrupted", INTERRUPTED)
    sys.exit(code)


def _interrupt(*_: object) -> NoReturn:
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, INSIST_S)
    raise KeyboardInterrupt


def _end(message: str, code: int) -> NoReturn:
    """End the process at once: threads of XLA still compute on memory that an ordinary exit takes from under them."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is sys.stderr:
                print(message, file=stream)
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)


if __name__ == "__main__":
    main()
