"""What was found for the last questions, as long as all of it takes no more than so many bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """Answers by question, the least recently asked dropped first. Threads share it; at worst both find one answer.

    Args:
      capacity_bytes: most that all answers may take together.
      size_bytes: what an answer takes.
    """

    def __init__(self, capacity_bytes: int, size_bytes: Callable[[V], int]) -> None:
        """Know nothing yet."""
        self._capacity, self._size = capacity_bytes, size_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable, find: Callable[[], V]) -> V:
        """Return what was found for a key, which says all that it depends on; find it if it is not known any more."""
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known[0]
        found = find()
        size = self._size(found)
        with self._lock:
            if key not in self._known:
                self._known[key] = found, size
                self._bytes += size
            while self._bytes > self._capacity:
                _, (_, dropped) = self._known.popitem(last=False)
                self._bytes -= dropped
        return found
