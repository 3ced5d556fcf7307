"""Named errors of passes and pipelines."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from hlo_passes.errors import HloError


class InvalidPipeline(HloError):
    """A pipeline text that cannot be read.

    Attributes:
      text: the whole pipeline text.
      offset: 0-based position of the offending character.
    """

    def __init__(self, text: str, offset: int, expected: str) -> None:
        """Show the pipeline with a mark under the character."""
        got = repr(text[offset]) if offset < len(text) else "the end of the text"
        super().__init__(
            f"pipeline is not readable: expected {expected}, got {got}\n  {text}\n  {' ' * offset}^\n"
            "  try: names separated by commas, such as inline,fold-constants{max-elements=8},fix(cse,dce)"
        )
        self.text = text
        self.offset = offset


class UnknownPass(HloError):
    """A pipeline names a pass that does not exist."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        """Suggest the closest of the known names."""
        super().__init__(f"pass {name!r} does not exist.\n  {_suggest(name, known, 'passes')}")
        self.name = name


class UnknownPassOption(HloError):
    """A pipeline gives a pass an option that it does not have."""

    def __init__(self, pass_name: str, option: str, known: Iterable[str]) -> None:
        """Suggest the closest of the known options."""
        super().__init__(
            f"pass {pass_name!r} has no option {option!r}.\n  {_suggest(option, known, 'options')}"
        )
        self.pass_name = pass_name
        self.option = option


class InvalidPassOption(HloError):
    """A pipeline gives an option a value of the wrong kind."""

    def __init__(self, pass_name: str, option: str, expected: str, got: str) -> None:
        """Say what the option takes."""
        super().__init__(f"option {option!r} of pass {pass_name!r}: expected {expected}, got {got!r}")
        self.pass_name = pass_name
        self.option = option


class BrokenPass(HloError):
    """A pass handed over an invalid module, or failed on a valid one.

    Attributes:
      pass_name: the pass that did it.
      position: how many passes ran before it.
    """

    def __init__(self, pass_name: str, position: int, cause: Exception) -> None:
        """Show the error that the pass raised, or that verification found."""
        what = "left an invalid module" if isinstance(cause, HloError) else "failed"
        super().__init__(
            f"pass {pass_name!r} (number {position} of the run) {what}:\n  {type(cause).__name__}: {cause}\n"
            "  try: dump_dir= writes the module before and after each pass; a pipeline without this pass"
        )
        self.pass_name = pass_name
        self.position = position


class NoFixpoint(HloError):
    """The passes of a ``fix(...)`` group keep changing the module."""

    def __init__(self, group: str, rounds: int) -> None:
        """Name the group and how often it was tried."""
        super().__init__(
            f"{group} still changes the module after {rounds} rounds.\n"
            "  try: name the passes without fix(...), so that each runs once"
        )
        self.group = group
        self.rounds = rounds


class NotAffine(HloError):
    """A computation that cannot be written as one expression over its result's domain."""

    def __init__(self, what: str, where: str, hint: str) -> None:
        """Show the operation and the user's source line."""
        super().__init__(f"{what}\n  from: {where}\n  try: {hint}")
        self.where = where


def _suggest(name: str, known: Iterable[str], nouns: str) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    listed = f"{nouns}: {', '.join(names)}" if names else f"it has no {nouns}"
    return f"did you mean {close[0]!r}? {listed}" if close else listed
