"""Files: data from anywhere read as JSON within bounds, and files written whole or not at all.

A file is written beside its place and renamed, so that neither a full disk nor an interruption leaves half of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, TypeGuard

import numpy as np

from tiles.errors import IpuError

JsonObject: TypeAlias = dict[str, Any]
"""An object of JSON, read or to be written: its reader, or the schema of its kind, says what stands where."""

MAX_NESTING = 400
"""Brackets within brackets that ``read_json`` takes: what walks the data afterwards calls itself for each."""

MAX_DIGITS = 20
"""Of an integer: 64 bits, with or without a sign."""

_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_DIGITS_ONLY = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))
"""By byte, "0" for a digit and a space for all else."""


class NotWritten(IpuError):
    """A file or folder cannot be written."""


def is_dict(data: object) -> TypeGuard[JsonObject]:
    """Whether data is an object of JSON."""
    return isinstance(data, dict)


def is_mapping(data: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether data goes by names: an object of JSON, or what stands for one."""
    return isinstance(data, Mapping)


def is_list(data: object) -> TypeGuard[list[Any]]:
    """Whether data is a list of JSON."""
    return isinstance(data, list)


def is_row(data: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether data is a list of JSON, or the tuple that stands for one."""
    return isinstance(data, list | tuple)


def is_tuple(data: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether data is a tuple."""
    return isinstance(data, tuple)


def is_a(data: object, kind: type[Any] | tuple[type[Any], ...]) -> bool:
    """Whether data is of a kind that a type says and nobody has checked, as in what was read from a file."""
    return isinstance(data, kind)


def nesting(text: bytes, brackets: bytes = b"[{]}", skipped: re.Pattern[bytes] = _TEXT) -> int:
    """Return how deep brackets lie within brackets.

    Args:
      text: JSON, or another language with brackets.
      brackets: those that open, then as many that close.
      skipped: where brackets do not count: by default in quoted texts.
    """
    return _depth(skipped.sub(b"", text), brackets)


def _depth(plain: bytes, brackets: bytes = b"[{]}") -> int:
    """Return how deep brackets lie within brackets, all of which count."""
    opening = len(brackets) // 2
    step = np.zeros(256, np.int8)
    step[list(brackets[:opening])], step[list(brackets[opening:])] = 1, -1
    steps = step[np.frombuffer(plain, np.uint8)]
    return int(np.cumsum(steps[steps != 0], dtype=np.int64).max(initial=0))


def read_json(text: bytes) -> Any:
    """Return what JSON says.

    Raises:
      ValueError: it is no JSON, nests too deep, or holds what is no JSON of ours (NaN, more digits than 64 bits have, a
        key twice).
    """
    plain = _TEXT.sub(b"", text)
    if (depth := _depth(plain)) > MAX_NESTING:
        raise ValueError(f"brackets nest {depth} deep, {MAX_NESTING} at most are read")
    has_long = b"0" * MAX_DIGITS in plain.translate(_DIGITS_ONLY)
    integer = _integer if has_long else None  # None: the parser's own, which is in C
    return json.loads(text, parse_constant=_refuse_constant, parse_int=integer, object_pairs_hook=_object)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits, {MAX_DIGITS} at most are read")
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def sealed(magic: bytes, data: bytes) -> bytes:
    """Return data as a file: what it is, the digest of the rest, the data."""
    return b"%s%s\n%s" % (magic, hashlib.sha256(data).hexdigest().encode(), data)


def opened(magic: bytes, blob: bytes) -> bytes:
    """Return the data of a file that ``sealed`` made.

    Raises:
      ValueError: it is no such file, or its bytes are others than those written.
    """
    if not blob.startswith(magic):
        raise ValueError(f"its first bytes are {blob[: len(magic)]!r}")
    digest, _, data = blob[len(magic) :].partition(b"\n")
    if digest != hashlib.sha256(data).hexdigest().encode():
        raise ValueError("its bytes are others than those that were written: the digest differs")
    return data


def write_files(files: Mapping[str | os.PathLike[str], bytes | str]) -> list[pathlib.Path]:
    """Write files, all of them or, if one cannot be written, none; return their paths.

    Args:
      files: what to write, by path; texts as UTF-8. Folders are made, links followed, and what is no file (a pipe, a
        device) is written in place.

    Raises:
      NotWritten: one cannot be written; the message is one line.
    """
    paths = [pathlib.Path(path) for path in files]
    written: list[tuple[str, str]] = []
    path = pathlib.Path()
    try:
        for path, data in zip(paths, files.values(), strict=True):
            blob = data.encode() if isinstance(data, str) else data
            written += _written_beside(path, blob)
        for beside, place in written:
            os.replace(beside, place)
    except OSError as error:
        raise NotWritten(f"cannot write {os.fspath(path)}: {error.strerror or error}") from error
    finally:
        _remove([beside for beside, _ in written])
    return paths


def _written_beside(path: pathlib.Path, blob: bytes) -> Iterator[tuple[str, str]]:
    """Write a file beside its place; yield both, or nothing where there is nothing to rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    place = os.path.realpath(path)
    if os.path.exists(place) and not os.path.isfile(place):
        with open(place, "wb") as file:
            file.write(blob)
        return
    if os.path.exists(place) and not os.access(place, os.W_OK):
        raise PermissionError(13, "Permission denied")
    beside = f"{place}.{secrets.token_hex(4)}.part"
    try:
        with open(beside, "xb") as file:
            file.write(blob)
    except BaseException:
        _remove([beside])
        raise
    yield beside, place


def _remove(paths: Sequence[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.remove(path)
