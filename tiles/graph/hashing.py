"""Hashes of frozen dataclasses that are computed once."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def hashed_once(cls: type[T]) -> type[T]:
    """Let every object of a frozen dataclass compute its hash once: plans and layouts are keys of many caches.

    The hash is what the dataclass makes of the fields.
    """
    computed = cls.__hash__

    def hash_of(self: T) -> int:
        known = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = computed(self)
        return known

    cls.__hash__ = hash_of
    return cls
