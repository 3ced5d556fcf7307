"""Properties that are computed once."""

import threading
from dataclasses import dataclass

from tiles.cached import cached_property


@dataclass(frozen=True)
class Kept:
    """Something with such a property."""

    seed: int

    @cached_property
    def values(self) -> list[int]:
        """Values."""
        computed.append(self.seed)
        return [self.seed]


computed: list[int] = []


def test_it_is_computed_once_for_each_object():
    computed.clear()
    one, other = Kept(1), Kept(2)
    assert one.values is one.values
    assert (one.values, other.values, computed) == ([1], [2], [1, 2])
    assert (one, Kept.values.__doc__) == (Kept(1), "Values.")


def test_threads_that_compute_it_at_once_get_the_first_ones():
    together = threading.Barrier(2)

    class Slow:
        """A property that two threads are inside of."""

        @cached_property
        def value(self) -> object:
            """The value."""
            together.wait()
            return object()

    slow, found = Slow(), []
    threads = [threading.Thread(target=lambda: found.append(slow.value)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1] is slow.value
