"""The structure of messages in an executable: texts that can be read, all of their parts printed in order."""

from __future__ import annotations

from collections.abc import Iterator

from tiles.compiler.control import Part, Sequence
from tiles.compiler.executable import Executable
from tiles.compiler.steps import PrintStep
from tiles.compiler.wellformed import is_count, refuse
from tiles.graph import read_message


def check_print(place: str, step: PrintStep) -> None:
    """Refuse a print whose message cannot be read, or has no such part.

    Args:
      place: how messages name the step.
      step: what is checked.
    """
    try:
        count = read_message(step.message).count if step.message else 1
    except (ValueError, RecursionError) as error:
        what = f"{place} prints a message that cannot be read: {error}"
        raise refuse(what, step.location) from error
    if not is_count(step.part) or step.part >= count:
        raise refuse(f"{place} prints part {step.part!r} of {count}", step.location)


def check_messages(executable: Executable) -> None:
    """Refuse parts of a message that are not printed one right after another, all of them, wherever one is."""
    if not any(isinstance(step, PrintStep) and step.message for step in executable.steps):
        return
    for body in _bodies(executable.program):
        expected: tuple[str, int] | None = None
        for entry in (*body, None):
            step = executable.steps[entry] if entry is not None else None
            if step is not None and not isinstance(step, PrintStep):
                continue
            found = (step.message, step.part) if step is not None else ("", 0)
            if found != expected and (expected is not None or found[1]):
                text, part = expected or (found[0], found[1] - 1)
                raise refuse(
                    f"part {part} of message {read_message(text).template!r} is not printed in its place"
                )
            is_open = step is not None and step.message and step.part + 1 < read_message(step.message).count
            expected = (found[0], found[1] + 1) if is_open else None


def _bodies(program: Part) -> Iterator[list[int | None]]:
    """Yield what runs one after another wherever control enters: steps, and control as None."""
    stack, seen = [program], {id(program)}
    while stack:
        body: list[int | None] = []
        entries = [stack.pop()]
        while entries:
            part = entries.pop()
            if isinstance(part, int):
                body.append(part)
            elif isinstance(part, Sequence):
                entries.extend(reversed(part.parts))
            else:
                body.append(None)
                stack.extend(inner for inner in part.parts if id(inner) not in seen)
                seen.update(map(id, part.parts))
        yield body
