"""Which sharding a program gets where nobody said one: the best few candidates are compiled, and the fastest that fits is it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hlo_passes.errors import HloError
from ipuxla.errors import Unsupported
from ipuxla.frontend.candidates import Candidate
from ipuxla.pinned_shardings import PinnedShardings
from tiles.compiler import Executable
from tiles.errors import InvalidGraph
from tiles.report import cost_analysis

MOST_COMPILED = 3
"""Candidates that are compiled where all of them fit."""
MOST_TRIED = 6
"""Candidates that are compiled in search of one that fits."""
WORTH_COMPILING = 1.25
"""How many times as long as the best one a candidate may take, by the closed form, to be compiled beside it."""
ALONE_WORTH_COMPILING = 2.0
"""Likewise for one IPU, of which the closed form knows least beside several."""
LESS_MEMORY = 0.9
"""Of what a candidate that did not fit takes, that the next one may take to be compiled."""
SHOWN = 6
"""Runners-up that are printed."""


@dataclass(frozen=True)
class Tried:
    """A candidate, and what became of it.

    Args:
      candidate: with what the closed form says of it.
      executable: compiled; None where it was not, or was refused.
      refusal: why it was refused, or "".
    """

    candidate: Candidate
    executable: Executable | None = None
    refusal: str = ""

    @property
    def pinned(self) -> PinnedShardings:
        """The sharding as text and pins have it."""
        return pinned_of(self.candidate)

    @functools.cached_property
    def cycles(self) -> float:
        """Of the executable; by the closed form where it is not compiled, or its loops depend on data."""
        compiled = None if self.executable is None else cost_analysis(self.executable)["cycles"]
        return self.candidate.price.cycles if compiled is None else compiled

    @property
    def fits(self) -> bool:
        """Whether it is compiled, and fits."""
        return self.executable is not None and self.executable.fits

    def describe(self) -> str:
        """Return what is known of it in words."""
        if self.refusal:
            return f"refused ({self.refusal})"
        price = self.candidate.price
        if self.executable is None:
            return (
                f"{price.cycles:,.0f} cycles and {price.size_bytes:,} B an IPU by a closed form, not compiled"
            )
        outcome = f"{self.cycles:,.0f} cycles" if self.executable.fits else "does not fit"
        return f"{outcome}, compiled; by a closed form {price.cycles:,.0f} cycles and {price.size_bytes:,} B an IPU"


@dataclass(frozen=True)
class Choice:
    """The sharding of a program.

    Args:
      best: what it gets; it does not fit where nothing that was compiled does.
      others: the runners-up, the most promising first.
    """

    best: Tried
    others: tuple[Tried, ...]


def pinned_of(candidate: Candidate) -> PinnedShardings:
    """Return a candidate's sharding as text and pins have it: what is whole on every IPU is not named.

    It is what reading its text gives, so that the program compiled to choose it is the program that runs.
    """
    sharded = tuple((number, dims) for number, dims in enumerate(candidate.inputs) if any(dims))
    return PinnedShardings(candidate.mesh, sharded if candidate.mesh else ())


def choose(
    candidates: Sequence[Candidate], capacity_bytes: int, compiled: Callable[[PinnedShardings], Executable]
) -> Choice:
    """Compile the best few of some candidates, the most promising first, and return the fastest that fits.

    Args:
      candidates: at least one.
      capacity_bytes: memory of an IPU: what takes more by the closed form is compiled only where nothing else fits.
      compiled: compiles a sharding; the program need not fit.
    """
    tried: list[Tried] = []
    for candidate in candidates:
        several = [each for each in tried if each.candidate.mesh]
        is_enough = sum(each.fits for each in several) >= MOST_COMPILED or len(several) >= MOST_TRIED
        if (is_enough and candidate.mesh) or not _is_worth_compiling(candidate, tried, capacity_bytes):
            continue
        try:
            tried.append(Tried(candidate, compiled(pinned_of(candidate))))
        except (
            Unsupported,
            InvalidGraph,
            HloError,
        ) as error:  # XLA, or what comes behind it, has no program for it
            if not candidate.mesh:
                raise  # that is the program's own fault
            tried.append(Tried(candidate, refusal=" ".join(str(error).split())[:200]))
    programs = [each for each in tried if each.executable is not None]
    if not programs:
        single = next(candidate for candidate in candidates if not candidate.mesh)
        programs = [Tried(single, compiled(pinned_of(single)))]
    fitting = [each for each in programs if each.fits]
    # min keeps the first of equal ones, the more promising
    best = min(fitting, key=lambda each: each.cycles) if fitting else programs[0]
    known = {id(each.candidate) for each in (*tried, best)}
    rest = [Tried(candidate) for candidate in candidates if id(candidate) not in known]
    others = [*sorted((each for each in tried if each is not best), key=_order), *rest]
    return Choice(best, tuple(others))


def _order(tried: Tried) -> tuple[bool, float]:
    return not tried.fits, tried.cycles


def _is_worth_compiling(candidate: Candidate, tried: Sequence[Tried], capacity_bytes: int) -> bool:
    failed = [
        each.candidate.price.size_bytes for each in tried if each.executable is not None and not each.fits
    ]
    if failed and candidate.price.size_bytes > LESS_MEMORY * min(failed):
        return False
    fitting = [each.candidate.price.cycles for each in tried if each.fits]
    share = WORTH_COMPILING if candidate.mesh else ALONE_WORTH_COMPILING
    is_small = candidate.price.size_bytes <= capacity_bytes
    return not fitting or (is_small and candidate.price.cycles <= share * min(fitting))


def describe(choice: Choice, num_ipus: int, machine_name: str, names: Sequence[str]) -> str:
    """Return a choice as text, all of which pins it: what is not the choice itself is a comment.

    Args:
      choice: the sharding and the runners-up.
      num_ipus: of the machine.
      machine_name: of the machine.
      names: of the program's arguments, with their types.
    """
    taken = choice.best.candidate.num_devices
    idle = f", the other {num_ipus - taken:,} idle" if taken < num_ipus else ""
    one = "" if taken > 1 else ": the fastest of what was tried" if choice.best.fits else ""
    lines = [
        f"// {taken:,} of {num_ipus:,} IPUs of {machine_name}{idle}{one}",
        f"// {choice.best.describe()}",
    ]
    lines += shown(choice.best.pinned, names)
    for each in choice.others[:SHOWN]:
        lines.append(f"// instead: {each.describe()}")
        lines.append(f"//   {'; '.join(each.pinned.short_lines())}")
    if len(choice.others) > SHOWN:
        lines.append(f"// and {len(choice.others) - SHOWN:,} more that were priced")
    return "\n".join(lines) + "\n"


def shown(pinned: PinnedShardings, names: Sequence[str]) -> list[str]:
    """Return the lines of a sharding, with what each argument is, and how many are whole."""
    sharded = [number for number, dims in pinned.inputs if any(dims)]
    first, *others = pinned.lines()
    lines = [first, *(f"{line}  // {names[number]}" for number, line in zip(sharded, others, strict=True))]
    if pinned.mesh and len(sharded) < len(names):
        lines.append(f"// every IPU has the whole of the other {len(names) - len(sharded):,} arguments")
    return lines
