"""StableHLO from anywhere, before jaxlib's reader sees it: its nesting, and a reading in a child process.

The reader calls itself for every bracket within a bracket, and ends the process on some bytes of a changed bytecode.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Callable

from hlo_passes.errors import HloError
from ipuxla.frontend import _jax_compat as compat
from ipuxla.frontend._jax_compat import mlir
from tiles import isolated
from tiles.files import nesting

MAX_NESTING = 500
"""Brackets within brackets of a module's text; jaxlib's reader stands some thousands of them in a stack of 8 MB."""

READER = "ipuxla.frontend.importer:read_for_another"
"""What a child process calls; it ends in ``answer``."""

_NO_BRACKETS = re.compile(rb'"(?:[^"\\\\\n]|\\\\.)*"|//[^\n]*|->')
"""Where brackets of MLIR do not count: in texts, comments and arrows."""


_NOTHING = re.compile(r"dense<\s*>")


def require_shallow(source: object) -> None:
    """Check a module's text, which bytecode and modules in memory have none of.

    Raises:
      ValueError: brackets nest deeper than jaxlib's reader can follow, or the text is none (lone surrogates).
    """
    if not isinstance(source, str):
        return
    depth = nesting(source.encode(), b"([{<)]}>", _NO_BRACKETS)
    if depth > MAX_NESTING:
        raise ValueError(f"brackets nest {depth} deep, {MAX_NESTING} at most are read")


def may_end_the_process(source: object) -> bool:
    """Whether a text holds what jaxlib's reader (0.10.2) divides by zero for: an all_to_all, and groups of nothing.

    Which of its operations the empty list belongs to is not looked into: reading apart costs a second.
    """
    return isinstance(source, str) and "all_to_all" in source and _NOTHING.search(source) is not None


def read_apart(source: str | bytes, options: dict[str, bool]) -> bytes:
    """Return a module as bytecode that a child process wrote after it read and legalized the source.

    Args:
      source: text or bytes from anywhere.
      options: of ``_jax_compat.read_stablehlo``.

    Raises:
      ValueError: MLIR refuses it, or it ends the process that reads it, or takes that too long.
    """
    is_text = isinstance(source, str)
    blob = source.encode() if isinstance(source, str) else source
    request = {"is_text": is_text, "source": base64.b64encode(blob).decode(), "options": options}
    return isolated.call(READER, json.dumps(request).encode())


def answer(request: bytes, use: Callable[[mlir.Operation], object]) -> bytes:
    """Answer ``read_apart`` in the child process, after doing with the module what the asker will do.

    Args:
      request: what ``read_apart`` sent.
      use: is given the module; named errors that it raises are the asker's to find.
    """
    asked = json.loads(request)
    blob = base64.b64decode(asked["source"])
    source = blob.decode() if asked["is_text"] else blob
    written = compat.module_bytecode(compat.read_stablehlo(source, **asked["options"]))
    again = compat.read_stablehlo(written, **asked["options"])
    with contextlib.suppress(HloError, RecursionError):
        use(again)
    compat.module_text(again, True)
    return written
