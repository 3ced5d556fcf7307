"""Compiled programs kept on disk, so that another process need not compile them again.

An entry is named after the content of everything that decides what a compilation gives: the StableHLO module with its
source lines, the target, the options, and the package's own source with the versions of what it computes with. How files
are kept says ``tiles.kept``.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ipuxla.options import CompileOptions
from tiles.compiler import Executable
from tiles.errors import InvalidExecutable
from tiles.files import JsonObject
from tiles.kept import DEFAULT_CAPACITY_BYTES, KeptFiles, capacity, kept_folder, source_digest

Result = TypeVar("Result")

LEAST_SECONDS = 0.5
"""Processor seconds of a compilation from which on its program is worth a file."""
SUFFIX = ".ipuxla"
SHARDINGS = ".sharding"
"""Of files that hold how a program without a mesh is shared out."""


@dataclass(frozen=True)
class ProgramCache:
    """A folder of compiled programs.

    Args:
      folder: made when the first program is kept.
      capacity_bytes: most that all programs may take together.
    """

    folder: pathlib.Path
    capacity_bytes: int = DEFAULT_CAPACITY_BYTES

    @property
    def _files(self) -> KeptFiles:
        return KeptFiles(self.folder, self.capacity_bytes, SUFFIX)

    def get(self, key: str) -> Executable | None:
        """Return the program kept under a key, or None; a damaged one is told of and forgotten."""
        blob = self._files.get(key)
        if blob is None:
            return None
        try:
            executable = Executable.from_bytes(blob)
        except InvalidExecutable as error:
            self._files.drop_damaged(key, error.what)
            return None
        self._files.used(key)
        return executable

    def put(self, key: str, executable: Executable) -> None:
        """Keep a program under a key, and drop the least recently used ones beyond the capacity."""
        self._files.put(key, executable.to_bytes())
        self._files.shrink()


def program_cache() -> ProgramCache | None:
    """Return the cache that the environment asks for, None where it is turned off."""
    folder = kept_folder()
    return None if folder is None else ProgramCache(folder, capacity())


def kept(
    stablehlo: bytes,
    name: str | None,
    options: CompileOptions,
    compile_: Callable[[], Executable],
    placement: JsonObject | None = None,
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
    if found is not None and (found.fits or not options.check_memory):
        return found
    seconds, executable = _timed(compile_)
    if seconds >= LEAST_SECONDS:
        cache.put(key, executable)
    return executable


def kept_sharding(
    stablehlo: bytes, options: CompileOptions, is_legal: Callable[[str], bool], choose: Callable[[], str]
) -> str:
    """Return how a program that names no mesh is shared out, from the cache, or choose it and keep what took long.

    Args:
      stablehlo: as in ``kept``.
      options: what was chosen; with passes of the caller's nothing is kept, as in ``kept``.
      is_legal: whether a text that was kept says a sharding of this program on this machine.
      choose: chooses it, and returns the text that pins it.
    """
    folder = kept_folder()
    if folder is None or options.passes is not None:
        return choose()
    files = KeptFiles(folder, capacity(), SHARDINGS)
    key = program_key(stablehlo, None, options, {"sharding": options.arithmetic == "float"})
    blob = files.get(key)
    if blob is not None:
        text = blob.decode(errors="replace")
        if is_legal(text):
            files.used(key)
            return text
        files.drop_damaged(key, "it says no sharding of this program")
    seconds, text = _timed(choose)
    if seconds >= LEAST_SECONDS:
        files.put(key, text.encode())
        files.shrink()
    return text


def program_key(
    stablehlo: bytes, name: str | None, options: CompileOptions, placement: JsonObject | None = None
) -> str:
    """Return the name of a program's entry: 64 hexadecimal digits of all that decides what it is."""
    chosen = json.dumps(
        {
            "name": name,
            "target": options.machine.to_data(),
            "placement": placement,
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
    return source_digest(pathlib.Path(__file__).parents[1], "hlo_passes", "ipuxla", "tiles")


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result
