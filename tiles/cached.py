"""Properties that are computed once, without a lock: planning computes hundreds of thousands of them.

Python 3.11's ``functools.cached_property`` takes a lock each time, which later ones do without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:
        """A property that is computed when it is first asked for, and then an attribute of the object.

        Threads at worst compute it twice; all get the first one's.
        """

        def __init__(self, function: Any) -> None:
            """Take what computes it."""
            self.function = function
            self.name = ""
            self.__doc__ = function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            """Note the attribute's name."""
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Compute the property and keep it; what is kept is found before this is called."""
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.name, self.function(instance))


__all__ = ["cached_property"]
