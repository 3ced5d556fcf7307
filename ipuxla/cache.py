"""Compiled programs kept on disk, so that another process need not compile them again.

An entry is named after the content of everything that decides what a compilation gives: the StableHLO module with its
source lines, the target, the options, and the package's own source with the versions of what it computes with. Entries are
written beside and renamed, so that processes may share a folder; the least recently used go first when the folder is
full. A cache that cannot be read or written costs a compilation and a warning, never a result.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from absl import logging

from ipuxla.options import CompileOptions
from tiles.compiler import Executable
from tiles.errors import InvalidExecutable
from tiles.files import NotWritten, write_files

FOLDER = "IPUXLA_CACHE_DIR"
"""Environment variable: the cache's folder; empty turns the cache off."""
CAPACITY = "IPUXLA_CACHE_BYTES"
"""Environment variable: bytes that all entries may take together."""
DEFAULT_CAPACITY_BYTES = 2 << 30
LEAST_SECONDS = 0.5
"""Processor seconds of a compilation from which on its program is worth a file."""
SUFFIX = ".ipuxla"


@dataclass(frozen=True)
class ProgramCache:
    """A folder of compiled programs.

    Args:
      folder: made when the first program is kept.
      capacity_bytes: most that all programs may take together.
    """

    folder: pathlib.Path
    capacity_bytes: int = DEFAULT_CAPACITY_BYTES

    def get(self, key: str) -> Executable | None:
        """Return the program kept under a key, or None; a damaged one is told of and forgotten."""
        path = self._path(key)
        try:
            blob = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _warn_once(f"the program cache cannot read {self.folder}: {error}")
            return None
        try:
            executable = Executable.from_bytes(blob)
        except InvalidExecutable as error:
            logging.warning("%s is damaged, and compiled again: %s", path, error.what)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # it was used
        return executable

    def put(self, key: str, executable: Executable) -> None:
        """Keep a program under a key, and drop the least recently used ones beyond the capacity."""
        blob = executable.to_bytes()
        if len(blob) > self.capacity_bytes:
            return
        try:
            write_files({self._path(key): blob})
            self._shrink()
        except (NotWritten, OSError) as error:
            _warn_once(f"the program cache cannot write to {self.folder}: {error}")

    def _path(self, key: str) -> pathlib.Path:
        return self.folder / f"{key}{SUFFIX}"

    def _shrink(self) -> None:
        """Drop the least recently used programs until the others keep to the capacity."""
        entries = sorted(self._entries(), reverse=True)
        total = 0
        for _, path, size in entries:
            total += size
            if total > self.capacity_bytes:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _entries(self) -> Iterator[tuple[int, pathlib.Path, int]]:
        """Yield when each program was used last, its file and its bytes; others may drop some meanwhile."""
        for path in self.folder.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):
                found = path.stat()
                yield found.st_mtime_ns, path, found.st_size


def program_cache() -> ProgramCache | None:
    """Return the cache that the environment asks for, None where it is turned off."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = os.path.join(base, "ipuxla") if os.path.isabs(base) else ""  # nobody's home: no cache
    return ProgramCache(pathlib.Path(folder), _capacity()) if folder else None


def _capacity() -> int:
    text = os.environ.get(CAPACITY, "")
    if text and not text.isdigit():
        _warn_once(f"{CAPACITY}={text!r} is no number of bytes; {DEFAULT_CAPACITY_BYTES:,} it is")
    return int(text) if text.isdigit() else DEFAULT_CAPACITY_BYTES


def kept(
    stablehlo: bytes,
    name: str | None,
    options: CompileOptions,
    compile_: Callable[[], Executable],
    placement: dict[str, Any] | None = None,
) -> Executable:
    """Return the program of a module from the cache, or compile it and keep what took long.

    Args:
      stablehlo: the module with its source locations, as text or bytecode.
      name: replaces the module's own.
      options: what was chosen. A pipeline of passes may hold passes of the caller's, whose code no key knows: such
        a program is compiled each time.
      compile_: compiles it.
      placement: the devices that run it together and what they hold, as JSON types; None for one.
    """
    cache = program_cache()
    if cache is None or options.passes is not None:
        return compile_()
    key = program_key(stablehlo, name, options, placement)
    found = cache.get(key)
    if found is not None:
        return found
    seconds, executable = _timed(compile_)
    if seconds >= LEAST_SECONDS:
        cache.put(key, executable)
    return executable


def program_key(
    stablehlo: bytes, name: str | None, options: CompileOptions, placement: dict[str, Any] | None = None
) -> str:
    """Return the name of a program's entry: 64 hexadecimal digits of all that decides what it is."""
    chosen = json.dumps(
        {
            "name": name,
            "target": options.machine.to_data(),
            "placement": placement,
            "check_memory": options.check_memory,
            "plans": options.plans,
            "made_by": _made_by(),
        },
        sort_keys=True,
    )
    digest = hashlib.sha256(chosen.encode())
    digest.update(b"\0")
    digest.update(stablehlo)
    return digest.hexdigest()


@functools.cache
def _made_by() -> str:
    """Return a digest of the packages' source and the versions of what they compute with."""
    digest = hashlib.sha256()
    root = pathlib.Path(__file__).parents[1]
    for package in ("hlo_passes", "ipuxla", "tiles"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    for library in ("jax", "jaxlib", "numpy"):
        digest.update(f"{library} {importlib.metadata.version(library)}\0".encode())
    return digest.hexdigest()


@functools.cache
def _warn_once(message: str) -> None:
    logging.warning("%s", message)


def _timed(compile_: Callable[[], Executable]) -> tuple[float, Executable]:
    start = time.process_time()
    executable = compile_()
    return time.process_time() - start, executable
