"""Where something comes from, as the text that tensors, steps and buffers carry: ``model.py:42 in GPT/Dense_0 [jvp]``.

A text without any of this is a source line, so a program built by hand gives just ``model.py:42``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TEXT = re.compile(
    r"(?:(?P<line>.*:\d+) )?in (?P<scope>\S+)??(?:(?:(?<=in )| )\[(?P<transforms>\w+(?:, \w+)*)\])?",
    re.DOTALL,
)


class Location(NamedTuple):
    """A source line and what the program calls that part of it.

    Args:
      line: the user's source line, ``model.py:42``.
      scope: names from the outermost on, ``GPT/Block_3/Dense_0``; none holds a space.
      transforms: what made this from the operation written there, outermost first: ``transpose``, ``vmap``.
    """

    line: str = ""
    scope: str = ""
    transforms: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The scope and what transformed it, ``GPT/Block_3/Dense_0 [transpose]``."""
        applied = f"[{', '.join(self.transforms)}]" if self.transforms else ""
        return " ".join(part for part in (self.scope, applied) if part)

    def __str__(self) -> str:
        """Return the text that ``read`` reads."""
        return " ".join(part for part in (self.line, self.where and f"in {self.where}") if part)

    @classmethod
    def read(cls, text: str) -> Location:
        """Return the location that a text says."""
        match = _TEXT.fullmatch(text)
        if match is None:
            return cls(text)
        transforms = match["transforms"]
        return cls(
            match["line"] or "", match["scope"] or "", tuple(transforms.split(", ")) if transforms else ()
        )


def short(lines: str) -> str:
    """Return source lines with only the last folder and the file's name: ``models/mlp.py:33``."""
    return "; ".join("/".join(line.split("/")[-2:]) for line in lines.replace("\\", "/").split("; "))
