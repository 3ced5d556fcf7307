"""``write_report``: the files of a report in a directory."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

from tiles.compiler import Executable
from tiles.engine.trace import Trace
from tiles.files import NotWritten, write_files
from tiles.report.links import Argument
from tiles.report.page import page
from tiles.report.profile import profile


class ReportNotWritten(NotWritten):
    """A report's directory or one of its files cannot be written."""


def write_report(
    executable: Executable,
    trace: Trace | None,
    directory: str | os.PathLike[str],
    arguments: Sequence[Argument] = (),
) -> list[pathlib.Path]:
    """Write ``summary.txt``, ``profile.json`` and ``report.html``, all or none, and return their paths.

    The same executable and counts give the same bytes. A program that does not fit is reported too, and
    marked; ``trace`` is None when it was not run.

    Args:
      executable: the program.
      trace: what its run recorded, or None.
      directory: where to write; made when it does not exist.
      arguments: as for ``profile``.

    Raises:
      ReportNotWritten: the directory or a file in it cannot be written.
      InvalidArguments: the trace is of another executable.
    """
    result = profile(executable, trace, arguments)
    files = {"summary.txt": result.text(), "profile.json": result.to_json(), "report.html": page(result.data)}
    folder = pathlib.Path(directory)
    try:
        return write_files({folder / name: text for name, text in files.items()})
    except NotWritten as error:
        raise ReportNotWritten(f"{error.what}; name a directory that can be written") from error
