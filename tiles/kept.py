"""Files kept on disk, so that another process need not work out again what one has: named by content, and bounded.

Entries are written beside and renamed, so that processes may share a folder; the least recently used go first when the
folder is full. A folder that cannot be read or written costs work and one warning, never a result.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

from absl import logging

from tiles.files import NotWritten, write_files

FOLDER = "IPUXLA_CACHE_DIR"
"""Environment variable: the folder of all that is kept; empty turns that off."""
CAPACITY = "IPUXLA_CACHE_BYTES"
"""Environment variable: bytes that all compiled programs may take together."""
DEFAULT_CAPACITY_BYTES = 2 << 30


@dataclass
class _Standing:
    """What a process may still do with a folder: what has failed is said once, and not tried again."""

    is_readable: bool = True
    is_writable: bool = True

    def refuse(self, folder: pathlib.Path, doing: str, error: Exception) -> None:
        """Do it no more; say so unless something was said of the folder before."""
        if self.is_readable and self.is_writable:
            logging.warning("the cache folder %s cannot be %s, and is not: %s", folder, doing, _reason(error))
        self.is_writable = False
        self.is_readable = self.is_readable and doing != "read"


@functools.cache
def standing(folder: pathlib.Path) -> _Standing:
    """Return what this process may still do with a folder."""
    del folder
    return _Standing()


@dataclass(frozen=True)
class KeptFiles:
    """Files of one kind in a folder.

    Args:
      folder: made when the first file is kept.
      capacity_bytes: most that all files may take together.
      suffix: of their names.
      within: the folder inside ``folder`` that they lie in, if not in itself.
    """

    folder: pathlib.Path
    capacity_bytes: int
    suffix: str
    within: str = ""

    def get(self, key: str) -> bytes | None:
        """Return the bytes kept under a key, or None."""
        if not standing(self.folder).is_readable:
            return None
        try:
            return self.path(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            standing(self.folder).refuse(self.folder, "read", error)
            return None

    def put(self, key: str, blob: bytes) -> None:
        """Keep bytes under a key, if they are not more than the folder may hold; ``shrink`` makes room."""
        if len(blob) > self.capacity_bytes or not standing(self.folder).is_writable:
            return
        try:
            write_files({self.path(key): blob})
        except (NotWritten, OSError) as error:
            standing(self.folder).refuse(self.folder, "written", error)

    def used(self, key: str) -> None:
        """Note that an entry was used."""
        with contextlib.suppress(OSError):
            os.utime(self.path(key))

    def drop_damaged(self, key: str, why: str) -> None:
        """Tell of a damaged entry and forget it."""
        logging.warning("%s is damaged, and compiled again: %s", self.path(key), why)
        with contextlib.suppress(OSError):
            self.path(key).unlink()

    def path(self, key: str) -> pathlib.Path:
        """Return the file of a key."""
        return self.folder / self.within / f"{key}{self.suffix}"

    def shrink(self) -> None:
        """Drop the least recently used files until the others keep to the capacity."""
        entries = sorted(self._entries(), reverse=True)
        total = 0
        for _, path, size in entries:
            total += size
            if total > self.capacity_bytes:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _entries(self) -> Iterator[tuple[int, pathlib.Path, int]]:
        """Yield when each file was used last, the file and its bytes; others may drop some meanwhile."""
        paths: list[pathlib.Path] = []
        with contextlib.suppress(OSError):  # of a folder that is none; reading and writing say so
            paths += (self.folder / self.within).glob(f"*{self.suffix}")
        for path in paths:
            with contextlib.suppress(OSError):
                found = path.stat()
                yield found.st_mtime_ns, path, found.st_size


def kept_folder() -> pathlib.Path | None:
    """Return the folder that the environment asks for, None where keeping is turned off."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = os.path.join(base, "ipuxla") if os.path.isabs(base) else ""  # nobody's home: nothing is kept
    return pathlib.Path(folder) if folder else None


def capacity() -> int:
    """Return the bytes that all compiled programs may take together."""
    text = os.environ.get(CAPACITY, "")
    if text and not text.isdigit():
        warn_once(f"{CAPACITY}={text!r} is no number of bytes; {DEFAULT_CAPACITY_BYTES:,} it is")
    return int(text) if text.isdigit() else DEFAULT_CAPACITY_BYTES


def source_digest(root: pathlib.Path, *packages: str) -> str:
    """Return a digest of the Python source under folders of ``root``, and the versions of what it computes with."""
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    for library in ("jax", "jaxlib", "numpy"):
        digest.update(f"{library} {importlib.metadata.version(library)}\0".encode())
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    """Return what the system says, without the one file's name."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return getattr(cause, "strerror", None) or str(error)


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning, once a process."""
    logging.warning("%s", message)
