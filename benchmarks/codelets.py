"""Every codelet of poplibs: whether there is tile code for it, what its cycles rest on, and how much of programs it is.

python -m benchmarks.codelets [--only=gpt,sort]

Programs are the networks of ``tests/models`` at published size and the large ones of ``tests/everyday``, compiled from shapes,
each in a process of its own. A codelet's share is of a program's cycles: what the slowest tile of every superstep computes with
it; supersteps whose runs depend on data count once.
"""

from __future__ import annotations

import math
import multiprocessing
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import numpy as np
from absl import app, flags, logging

import tiles.poplibs
from benchmarks.timing import table, write_result
from hlo_passes.passes import optimize
from ipuxla import fitting
from ipuxla.frontend.importer import import_stablehlo
from tests import everyday, models
from tiles.compiler import Executable, ExecuteStep, StepCost, step_costs
from tiles.compiler.costs import group_extents
from tiles.errors import NoTileCode, OutOfRegisters
from tiles.graph import Codelet
from tiles.graph.codelet import CODELETS
from tiles.graph.collective import Collective
from tiles.report.counts import static_counts
from tiles.target import Target

_ONLY = flags.DEFINE_list("only", [], "programs to compile, by parts of their names; all by default")
TARGET = "gc200"
"""Of everyday programs; networks have their own."""
SMALL = 0.0005


@dataclass
class Use:
    """What some programs have of a codelet.

    Attributes:
      shares: of their cycles, by program.
      by_code: the part of these that vertices with code take.
      bases: cycles by what they rest on, as shares of the programs', added up.
      reasons: why vertices have no code, with the greatest share of a program that has none for it.
    """

    shares: dict[str, float] = field(default_factory=dict)
    by_code: float = 0.0
    bases: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    reasons: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def own_codelets() -> dict[str, type[Codelet]]:
    """Return poplibs' codelets by name."""
    home = tiles.poplibs.__name__
    return {name: cls for name, cls in sorted(CODELETS.items()) if cls.__module__.startswith(home)}


def has_code(cls: type[Codelet]) -> bool:
    """Return whether a class of codelets has tile code at all."""
    return cls.tile_code is not Codelet.tile_code


def code_of(cls: type[Codelet]) -> str:
    """Return what the table says of a class' code: collectives are steps of other codelets and of exchange."""
    return "its steps'" if issubclass(cls, Collective) else "yes" if has_code(cls) else "none"


def _executable(name: str) -> Executable:
    kind, _, name = name.partition(": ")
    if kind == "network":
        made = models.model(name, "published")
        target, donated = made.target, made.donated
    else:
        made, target, donated = everyday.program(name, "large"), TARGET, ()
    jitted = jax.jit(made.function, keep_unused=True, donate_argnums=donated)
    source = jitted.lower(*made.arguments).compiler_ir("stablehlo")
    assert source is not None
    module = optimize(import_stablehlo(source))
    return fitting.planned_to_fit(module, Target.named(target), {})


Row = tuple[str, str, str, float]
"""A codelet's name, why it has no code or "", its basis, its share of the program's cycles."""


def rows_of(name: str) -> list[Row]:
    """Return what a program takes by codelet, as plain data."""
    logging.set_verbosity(logging.WARNING)
    executable = _executable(name)
    counts, _ = static_counts(executable)
    found: dict[tuple[str, str, str], int] = defaultdict(int)
    whole = 0
    for step, cost, count in zip(executable.steps, step_costs(executable), counts, strict=True):
        runs = 1 if count is None else count
        whole += runs * (cost.cycles or 0)
        if isinstance(step, ExecuteStep):
            for key, cycles in _vertices(executable, step, cost):
                found[key] += runs * cycles
    return [(*key, cycles / max(whole, 1)) for key, cycles in found.items()]


def _vertices(
    executable: Executable, step: ExecuteStep, cost: StepCost
) -> list[tuple[tuple[str, str, str], int]]:
    """Return name, lack of code and basis of a step's codelets, with their cycles on its slowest tile."""
    tile, found = int(np.argmax(cost.tile_compute_cycles)), []
    for group in step.groups:
        extents = group_extents(executable, group)
        cycles = group.codelet.cycles(extents, executable.target)
        each = np.broadcast_to(np.ceil(np.asarray(cycles.value, np.float64)), group.plan.tiles.shape)
        own = int(each[group.plan.tiles == tile].sum())
        try:
            group.codelet.tile_code(extents, executable.target)
            reason = ""
        except (NoTileCode, OutOfRegisters) as error:
            reason = "none for it" if error.what.startswith("no tile code for") else error.what
        found.append(((group.codelet.name, reason, str(cycles.basis)), own))
    return found


def gathered(programs: Sequence[str]) -> dict[str, Use]:
    """Return what programs have of every codelet, each program compiled in a process of its own."""
    uses: dict[str, Use] = defaultdict(Use)
    fresh = multiprocessing.get_context("spawn")
    with fresh.Pool(1, maxtasksperchild=1) as pool:
        for name, rows in zip(programs, pool.imap(rows_of, programs), strict=True):
            print(f"{name}: {sum(row[3] for row in rows):.0%} of its cycles in vertices", flush=True)
            for codelet, reason, basis, share in rows:
                use = uses[codelet]
                use.shares[name] = use.shares.get(name, 0.0) + share
                use.bases[basis] += share
                if reason:
                    use.reasons[reason] = max(use.reasons[reason], share)
                else:
                    use.by_code += share
    return uses


HEADER = ("codelet", "tile code", "of its cycles by code", "cycles rest on", "greatest share of a program")


def line(name: str, cls: type[Codelet], use: Use) -> tuple[str, ...]:
    """Return a codelet's row."""
    total = math.fsum(use.shares.values())
    if not total:
        return name, code_of(cls), "", "", "in none of the programs"
    bases = sorted(use.bases.items(), key=lambda item: -item[1])
    rests = ", ".join(f"{basis} {part / total:.0%}" for basis, part in bases if part / total >= SMALL)
    program, most = max(use.shares.items(), key=lambda item: item[1])
    by_code = f"{use.by_code / total:.0%}" if has_code(cls) else "0%"
    return name, code_of(cls), by_code, rests, f"{most:.1%} {program}"


def render(uses: dict[str, Use]) -> str:
    """Return the result file: codelets by their greatest share, and why some have no code."""
    own = own_codelets()
    order = sorted(own, key=lambda name: (-max(uses[name].shares.values(), default=0.0), name))
    lines = [line(name, own[name], uses[name]) for name in order]
    reasons = [
        f"- {name}: {reason} (at most {most:.1%} of a program)"
        for name in order
        for reason, most in sorted(uses[name].reasons.items(), key=lambda item: -item[1])
        if has_code(own[name]) and most >= SMALL
    ]
    return (
        "# Codelets of poplibs: tile code, and what their cycles rest on\n\n"
        + table(HEADER, lines)
        + "\n\nWhy vertices of codelets that have code run none:\n\n"
        + "\n".join(reasons)
        + "\n"
    )


def main(argv: Sequence[str]) -> None:
    """Compile, print, and write ``benchmarks/results/codelets.md`` unless only some programs were compiled."""
    del argv
    names = [f"network: {name}" for name in models.MAKERS] + [f"everyday: {name}" for name in everyday.MAKERS]
    chosen = [n for n in names if not _ONLY.value or any(part in n for part in _ONLY.value)]
    text = render(gathered(chosen))
    print(text)
    if chosen == names:
        print(f"written: {write_result('codelets', text)}")


if __name__ == "__main__":
    app.run(main)
