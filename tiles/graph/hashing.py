"""Hashes of frozen dataclasses that are computed once."""

from __future__ import annotations

from typing import TypeVar

from tiles.numerics.shared import fields_of

T = TypeVar("T")


def hashed_once(cls: type[T]) -> type[T]:
    """Let every object of a frozen dataclass compute its hash once: plans and layouts are keys of many caches.

    The hash is what the dataclass makes of the fields. It holds in one process only (those of texts are drawn when Python
    starts), so an object pickles as its fields.
    """
    computed = cls.__hash__

    def hash_of(self: T) -> int:
        known = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = computed(self)
        return known

    cls.__hash__ = hash_of
    cls.__getstate__ = fields_of  # pyright: ignore[reportAttributeAccessIssue]
    return cls
