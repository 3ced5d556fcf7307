"""What escapes compilation though no caller caused it: one named error, and files that reproduce it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import pathlib
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator, Mapping
from typing import TypeAlias

from hlo_passes.errors import UnsupportedOp, UnsupportedType
from hlo_passes.ir import UNKNOWN, Instruction, print_instruction
from hlo_passes.passes import InvalidPassOption, InvalidPipeline, UnknownPass, UnknownPassOption
from ipuxla.errors import InternalError, InvalidCodelet, OutOfTileMemory, Unsupported
from tiles.compiler import VertexGroup
from tiles.compiler.steps import StepRecord
from tiles.graph import Operation, Vertices

CALLERS = (
    InternalError,  # named already
    InvalidCodelet,
    InvalidPassOption,
    InvalidPipeline,
    MemoryError,
    OutOfTileMemory,
    UnknownPass,
    UnknownPassOption,
    Unsupported,
    UnsupportedOp,
    UnsupportedType,
)
"""What a caller can cause while a program is compiled, whatever the options."""

LONGEST = 200
"""Characters shown of an operation or of what an error says."""

Step: TypeAlias = Operation | Vertices | VertexGroup | StepRecord
"""What planning and the compiler work on."""


@contextlib.contextmanager
def naming_internal_errors(
    files: Callable[[], Mapping[str, str]], *callers: type[Exception]
) -> Generator[None]:
    """Let errors that a caller can cause pass, and make all others one ``InternalError``, with files beside it.

    Args:
      files: returns texts that reproduce the failure, by file name.
      *callers: errors that a caller can cause with the options at hand, besides ``CALLERS``.

    Raises:
      InternalError: what happened, at which operation, and where the files lie.
    """
    try:
        yield
    except (*CALLERS, *callers):
        raise
    except RecursionError as error:
        raise Unsupported(
            "the program nests too deep: its compiler follows calls, loops and branches by calling itself",
            expected=f"what {sys.getrecursionlimit()} frames of Python are enough for",
            try_="fewer functions, loops or branches within one another, or sys.setrecursionlimit",
        ) from error
    except Exception as error:
        raise _named(error, files) from error


def _named(error: Exception, files: Callable[[], Mapping[str, str]]) -> InternalError:
    """Return the error that names another, after writing the files that reproduce it."""
    instruction, step = _worked_on(error)
    notes: list[str] = []
    if instruction is not None:
        notes.append(f"operation: {_shortened(print_instruction(instruction).splitlines()[0].strip())}")
    if step is not None:
        notes.append(f"step: {step.name}")
    location = step.location if isinstance(step, Operation | VertexGroup | Vertices) else None
    if instruction is not None and instruction.location != UNKNOWN:
        location = str(instruction.location)
    folder = _written({**files(), "error.txt": _account(error)})
    with_files = (
        f"the files in {folder}" if folder is not None else "this program: no folder could be written"
    )
    named = InternalError(
        f"ipuxla failed on this program: {type(error).__name__}: {_shortened(str(error))}",
        location=location or None,
        notes=tuple(notes),
        try_=f"this is a bug of ipuxla; report it where you got ipuxla from, with {with_files}",
    )
    named.folder = folder
    return named


def _worked_on(error: BaseException) -> tuple[Instruction | None, Step | None]:
    """Return the operation and the step that the innermost frames of an error were about.

    Frames know: the compiler keeps no account of what it works on only for what must not happen.
    """
    instruction: Instruction | None = None
    step: Step | None = None
    errors: list[BaseException] = [error]
    while (cause := errors[-1].__cause__) is not None:
        errors.append(cause)
    for each in errors:
        for frame, _ in traceback.walk_tb(each.__traceback__):
            for value in list(frame.f_locals.values()):
                if isinstance(value, Instruction):
                    instruction = value
                elif isinstance(value, Operation | Vertices | VertexGroup | StepRecord):
                    step = value
    return instruction, step


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 4] + " ..."


def _account(error: Exception) -> str:
    """Return an error with its traceback, and the versions that it came from."""
    versions = {name: _version(name) for name in ("ipuxla", "jax", "jaxlib", "numpy")}
    versions |= {"python": platform.python_version(), "platform": platform.platform()}
    lines = [f"{name} {version}" for name, version in versions.items()]
    return "\n".join(["".join(traceback.format_exception(error)), *lines, ""])


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _written(files: Mapping[str, str]) -> pathlib.Path | None:
    """Write files into a folder of the current directory, else of the temporary one; None where neither can be.

    Its name is drawn from what reproduces the failure, so that the same failure has the same folder.
    """
    drawn = hashlib.sha256(
        json.dumps([files[name] for name in sorted(files) if name != "error.txt"]).encode()
    )
    name = f"ipuxla-report-{drawn.hexdigest()[:12]}"
    for parent in (pathlib.Path.cwd(), pathlib.Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            folder = parent / name
            folder.mkdir(exist_ok=True)
            for file, text in files.items():
                (folder / file).write_text(text, encoding="utf-8")
            return folder
    return None


def options_text(options: object) -> str:
    """Return what was chosen about a compilation, the target apart, as JSON."""
    chosen = ("engine", "arithmetic", "check_memory", "passes", "strict", "plans", "shard")
    return json.dumps({name: getattr(options, name) for name in chosen}, indent=2) + "\n"
