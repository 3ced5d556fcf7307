"""Planning until a program fits, and what to do where it does not: changes that were tried."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hlo_passes import ops
from hlo_passes.ir import Computation, Instruction, Module, Value
from hlo_passes.passes import optimize
from ipuxla.lowering import lower_module
from ipuxla.sharding import ArraySharding
from tiles.compiler import Executable, compile_graph, eased, shortage, shortage_text, shortages
from tiles.compiler.executable import CODE_CATEGORIES
from tiles.compiler.oom import CODE, SHOWN, with_dearer_code
from tiles.errors import IpuError, OutOfTileMemory
from tiles.graph import Graph, Plan
from tiles.planning import Planner, Policy, code_price_of
from tiles.target import System, Target, find_machine, known_names

REPLANS = 4
"""How often a program that does not fit is planned again."""
FIRST_REPLANS = 1
"""The same where it can be compiled in another way, which holds less at once: that is tried next, and takes less time."""
LITTLE_MISSING = 0.1
"""Share of a tile's memory up to which what is missing may be found by planning again so: nine training steps that lacked
more, in thirteen ways together, fitted in none of them then, and this took up to two fifths of their compilation."""
STILL_MISSING = 0.75
"""Share of the bytes that a tile lacks which planning again has to bring it down to, or it was the last time."""
DEARER = 2
"""How often code then becomes dearer, and what is planned so is eased once."""
SHARING = "outline-repeats{min-ops=8},dce"
"""Passes after the default ones that make functions of shorter runs of operations, which then share their code."""
MOST_SHARED = 0.1
"""Share of the code on a tile that sharing more of it may save: of a U-Net training step it was 6 % of the exchange code."""
SHARED_OUT_FROM = 0.5
"""Share of a chip's memory from which on arguments and results are better on several."""
UNCOUNTED = (ops.ControlFlow, ops.Call, ops.CodeletCall, ops.HostTransfer, ops.OptimizationBarrier)
"""Operations whose results may lie where something else did."""
PROVED_FROM = 2**25
"""Elements of a program's largest array from which on it is refused unplanned where data alone have no room: deriving copies of
such arrays takes up to half a minute and 1.5 GB. Smaller programs are planned first, and their errors say where what lies."""
MOST_STEPS = 4_000
"""Changes of programs with more steps than this are not tried: each would take as long as the program did."""


def planned(graph: Graph, planner: Planner) -> Graph:
    """Return a graph as a planner plans it."""
    return planner.plan(graph)


def planned_to_fit(
    module: Module,
    target: Target | System,
    plans: Mapping[str, Plan],
    inputs: Sequence[ArraySharding] = (),
    replans: int | None = None,
) -> Executable:
    """Return the program, planned again while it does not fit and planning otherwise may help.

    When nothing helps it is the attempt that came closest, marked as not fitting. ``inputs`` is as for
    ``lower_module``; ``replans`` is how often it is planned again at most, and only where little is missing; all that may help
    is tried if it is None.
    """
    graph = lower_module(module, target, inputs)
    first = Policy(code_price=code_price_of(graph))
    attempts: list[_Attempt] = []
    for policy in _policies(first, attempts, replans):
        executable = compile_graph(planned(graph, Planner(policy, plans)), check_memory=False)
        if executable.fits:
            return executable
        attempts.append(_Attempt(policy, executable))
    return min(attempts, key=lambda attempt: shortage(attempt.executable).excess_bytes).executable


@dataclass(frozen=True)
class _Attempt:
    """A program that does not fit, and what it was planned by."""

    policy: Policy
    executable: Executable

    @functools.cached_property
    def missing_bytes(self) -> int:
        """Bytes that are missing, of memory and of memory for code."""
        return sum(max(0, lack.excess_bytes) for lack in shortages(self.executable))


def _policies(first: Policy, attempts: Sequence[_Attempt], replans: int | None) -> Iterator[Policy]:
    """Yield how to plan a program and, as it does not fit, how to plan it again, as long as that may help.

    First it is eased step by step. Where that ends, and ``replans`` is None, code becomes dearer than for the attempt that came
    closest, if shorter code could make up for what is missing there: operations with less room are cut into slices, whose code
    then takes what their data do not.

    Args:
      first: how to plan it first.
      attempts: what came of all that was yielded so far.
      replans: how often it is planned again at most, and only where little is missing.
    """
    yield first
    missing, is_spread = math.inf, False
    for _ in range(REPLANS if replans is None else replans):
        last = attempts[-1]
        before, missing = missing, last.missing_bytes
        if replans is not None and missing > LITTLE_MISSING * last.executable.target.bytes_per_tile:
            break
        # Variables on more tiles are tried first and cost little; what helps where they do not is still to come.
        goes_on = is_spread or missing <= STILL_MISSING * before
        policy = eased(last.executable, last.policy) if goes_on else None
        if policy is None:
            break
        is_spread = policy.held_share < last.policy.held_share
        yield policy
    for _ in range(DEARER if replans is None else 0):
        closest = min(attempts, key=lambda attempt: attempt.missing_bytes)
        policy = with_dearer_code(closest.executable, closest.policy)
        if policy is None or any(policy == attempt.policy for attempt in attempts):
            return
        yield policy
        policy = eased(attempts[-1].executable, policy)
        if policy is not None:
            yield policy


def beyond_memory(
    module: Module, machine: Target | System, inputs: Sequence[ArraySharding] = ()
) -> OutOfTileMemory | None:
    """Return the error of a program of huge arrays that has no room on any chip known, however it is planned.

    Arguments lie there from beginning to end, and at the end all results do (``least_held``); while a contraction runs, so do its
    result and what that is computed from (``least_at_contractions``). The error plans the program when it is asked for its
    executable or report.

    Args:
      module: the program of one device, optimized.
      machine: what it is for.
      inputs: as for ``lower_module``.
    """
    target = machine.chip if isinstance(machine, System) else machine
    if max((value.type.size for value in _values(module.entry_computation)), default=0) < PROVED_FROM:
        return None
    larger = _larger(target)
    most = max(target.memory_bytes, larger.memory_bytes if larger is not None else 0)
    needs = next(
        (n for n in (_at_the_end(module), *least_at_contractions(module)) if n.size_bytes > most), None
    )
    if needs is None:
        return None
    several = _several_ipus(module, machine)
    shared = "" if several is None else f"target={several!r} shares it out over IPUs (not tried); "
    excess = needs.size_bytes - target.memory_bytes
    error = OutOfTileMemory(
        f"{needs.what} need {needs.size_bytes:,} B and all tiles of {target.name!r} together have "
        f"{target.memory_bytes:,} B ({excess:,} B too many)",
        notes=(
            *needs.notes,
            "not planned: no plan needs less (the error's executable and profile are made when they are asked for)",
        ),
        try_=f"{shared}smaller arrays or types; check_memory=False plans and runs it all the same, and marks it",
    )
    error.make_executable = functools.partial(planned_to_fit, module, machine, {}, inputs)
    return error


@dataclass(frozen=True)
class Needs:
    """What a program holds at some moment, however it is planned.

    Attributes:
      size_bytes: how much.
      what: subject of a sentence, in the plural.
      notes: what is there, a line each.
    """

    size_bytes: int
    what: str
    notes: tuple[str, ...]


def _at_the_end(module: Module) -> Needs:
    held, beside = least_held(module)
    arguments, results = (sum(value.type.size_bytes for value in side) for side in (held, beside))
    largest = sorted((*held, *beside), key=lambda value: -value.type.size_bytes)[:SHOWN]
    named = (
        _named(module, value, value.name.removeprefix("%") if value in held else "a result")
        for value in largest
    )
    there = f"there: arguments {arguments:,} B, results {results:,} B (none of them could take an argument's place)"
    return Needs(arguments + results, "arguments and results alone", (there, *named))


def _values(entry: Computation) -> Iterator[Value]:
    yield from entry.parameters
    for instruction in entry.instructions:
        yield from instruction.results


def _named(module: Module, value: Value, name: str) -> str:
    producer = module.entry_computation.producers.get(value)
    place = producer.location if producer is not None else None
    return f"largest: {name} {value.type}, {value.type.size_bytes:,} B" + (f" from {place}" if place else "")


def least_at_contractions(module: Module) -> Iterator[Needs]:
    """Yield what each contraction of a program holds while it runs, the result of which some result follows from.

    That is its result, since no tile has all that it takes for an element before others may read what lies there; the least
    that its operands are computed from; and arguments whose memory no result could take over.
    """
    entry = module.entry_computation
    free = Counter((t.shape, t.np_dtype) for t in entry.result_types)
    kept = [v for v in least_held(module)[0] if not free[v.type.shape, v.type.np_dtype]]
    arguments = sum(value.type.size_bytes for value in kept)
    least = {value: 0 if value in kept else value.type.size_bytes for value in entry.parameters}
    needed = _needed(entry)
    for instruction in entry.instructions:
        given = max((least[operand] for operand in instruction.operands), default=0)
        if isinstance(instruction.op, UNCOUNTED):
            least.update(dict.fromkeys(instruction.results, 0))
        elif not _is_contraction(instruction):
            # What is computed lies there, or what it is computed from anew each time that it is read.
            least.update((value, min(value.type.size_bytes, given)) for value in instruction.results)
        else:
            (result,) = instruction.results
            least[result] = own = result.type.size_bytes
            if result in needed:
                notes = (
                    f"there: the result {own:,} B, operands or what they are computed from {given:,} B, arguments that no result "
                    f"could take the place of {arguments:,} B",
                    _named(module, result, "the result"),
                )
                what = "a contraction's result and what it is computed from"
                yield Needs(arguments + given + own, what, notes)


def _is_contraction(instruction: Instruction) -> bool:
    """Whether an instruction sums products of several elements for each of its result's, so that neither operand can lie there."""
    return ops.summed_products(instruction.op, [v.type for v in instruction.operands]) > 1


def _needed(entry: Computation) -> set[Value]:
    """Return the values of a computation that its results follow from."""
    needed, asked = set[Value](), list(entry.results)
    while asked:
        value = asked.pop()
        if value not in needed:
            needed.add(value)
            producer = entry.producers.get(value)
            asked += producer.operands if producer is not None else ()
    return needed


def least_held(module: Module) -> tuple[list[Value], list[Value]]:
    """Return arguments and results that a program holds side by side at its end, however it is planned.

    These are arguments that something reads, and results that something computes, each once; without results that could take
    over an argument's memory, donated or not.
    """
    entry = module.entry_computation
    read = {value for instruction in entry.instructions for value in instruction.operands} | {*entry.results}
    held = [value for value in entry.parameters if value in read]
    free = Counter((value.type.shape, value.type.np_dtype) for value in held)
    beside: list[Value] = []
    for value in _computed_results(entry):
        kind = value.type.shape, value.type.np_dtype
        if free[kind] > 0:
            free[kind] -= 1
        else:
            beside.append(value)
    return held, beside


def _computed_results(entry: Computation) -> list[Value]:
    """Return values, each once, that the results of a computation show, and that an operation computes into memory of their own.

    What only moves elements or chooses among values is followed to what it moves, or not counted: nothing says that it takes memory.
    """
    found: dict[Value, None] = {}
    seen = set[Value]()
    asked = list(entry.results)
    while asked:
        value = asked.pop()
        producer = entry.producers.get(value)
        if producer is None or value in seen:
            continue
        seen.add(value)
        if isinstance(producer.op, (ops.DataMovement, ops.Real, ops.Imag, ops.Complex, ops.BitcastConvert)):
            asked += [operand for operand in producer.operands if _shows_all(value, operand)]
        elif not isinstance(producer.op, UNCOUNTED):
            found[value] = None
    return list(found)


def _shows_all(value: Value, operand: Value) -> bool:
    """Whether a result that is made of an operand's elements can hold every one of them."""
    return value.type.size >= operand.type.size


def advice(
    module: Module, executable: Executable, plans: Mapping[str, Plan], inputs: Sequence[ArraySharding] = ()
) -> str:
    """Return the first change that makes a program fit, or what those that were tried gain."""
    gains: list[str] = []
    for change, trial in _changes(module, executable, plans, inputs).items():
        tried = trial()
        if tried.fits:
            return f"{change}: it fits then"
        gains.append(f"{change} ({_gain(executable, tried)})")
    checked = "check_memory=False runs it all the same, and marks it"
    if (several := _several_ipus(module, executable.system or executable.target)) is not None:
        checked = f"target={several!r} shares it out over IPUs (not tried); {checked}"
    if not gains:
        return checked
    return f"nothing that was tried makes it fit: {'; '.join(gains)}; {checked}"


def _gain(executable: Executable, tried: Executable) -> str:
    """Return what a change gains that does not make a program fit."""
    before, after = shortage(executable), shortage(tried)
    if (before.kind == CODE) != (after.kind == CODE):
        return f"then {shortage_text(tried, after)}"
    gained = before.excess_bytes - after.excess_bytes
    return f"saves {gained:,} B on the fullest tile" if gained > 0 else "saves nothing"


def _several_ipus(module: Module, machine: Target | System) -> str | None:
    """Return a system over whose IPUs arguments and results may fit, split evenly; None where one IPU might hold them."""
    entry = module.entry_computation
    if isinstance(machine, System) or module.num_devices > 1 or entry.has_transfer:
        return None
    given = sum(type_.size_bytes for type_ in entry.parameter_types)
    made = sum(type_.size_bytes for type_ in entry.result_types)
    reused = sum(entry.parameter_types[n].size_bytes for n in module.donated)
    held = given + max(0, made - reused)
    if held <= SHARED_OUT_FROM * machine.memory_bytes:
        return None
    ipus = 1 << math.ceil(math.log2(held / (SHARED_OUT_FROM * machine.memory_bytes)))
    name = f"{machine.name} x {max(2, ipus)}"
    try:
        return name if isinstance(find_machine(name), System) else None
    except IpuError:
        return None  # no system of such chips is known


def _changes(
    module: Module, executable: Executable, plans: Mapping[str, Plan], inputs: Sequence[ArraySharding]
) -> dict[str, Callable[[], Executable]]:
    """Return changes of a program or its machine that may make it fit, by what a caller would do, with their trials."""
    target = executable.system or executable.target
    changes: dict[str, Callable[[], Executable]] = {}
    if len(executable.steps) > MOST_STEPS:
        return changes
    lack = shortage(executable)
    donated = _donatable(module)
    if donated and lack.kind != CODE:
        names = [module.entry_computation.parameters[i].name.removeprefix("%") for i in donated]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        changed = replace(module, donated=tuple(sorted({*module.donated, *donated})))
        changes[f"donate {shown} (donate_argnums), whose types results have"] = lambda: planned_to_fit(
            changed, target, plans, inputs
        )
    larger = _larger(target) if lack.kind != CODE and isinstance(target, Target) else None
    if larger is not None:
        tiles = f"target {larger.name!r} with its {larger.num_tiles:,} tiles of {larger.bytes_per_tile:,} B"
        changes[tiles] = lambda: planned_to_fit(module, larger, plans)
    code = sum(lack.categories.get(category, 0) for category in CODE_CATEGORIES)
    shared = module if lack.excess_bytes > MOST_SHARED * code else optimize(module, SHARING)
    if shared is not module:
        changes[f"passes with ',{SHARING}' after the others, so that shorter runs share code"] = lambda: (
            planned_to_fit(shared, target, plans, inputs, replans=0)
        )
    return changes


def _donatable(module: Module) -> list[int]:
    """Return the parameters that are not donated though a result could take over their memory."""
    entry = module.entry_computation
    free = Counter((t.shape, t.np_dtype) for t in entry.result_types)
    free -= Counter(
        (entry.parameter_types[i].shape, entry.parameter_types[i].np_dtype) for i in module.donated
    )
    found: list[int] = []
    for i, type_ in enumerate(entry.parameter_types):
        kind = type_.shape, type_.np_dtype
        if i not in module.donated and free[kind] > 0:
            free[kind] -= 1
            found.append(i)
    return found


def _larger(target: Target) -> Target | None:
    """Return a machine of which this one is a part, or the next with more memory, or None."""
    known = [Target.named(name) for name in known_names()]
    whole = next(
        (t for t in known if t.name == target.name.rstrip("*") and t.num_tiles > target.num_tiles), None
    )
    if whole is not None:
        return whole
    return min(
        (t for t in known if t.memory_bytes > target.memory_bytes),
        key=lambda t: (t.memory_bytes, t.name),
        default=None,
    )
