"""Costs: what every step takes, as a pure function of the executable and its target.

A superstep is sync, exchange and compute: exchange lasts as long as its busiest tile, compute as long as
its slowest. Nothing here looks at a host clock or at data.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tiles.compiler.between import LinkCost, between_cost, between_traffic, step_crossings, within_cost
from tiles.compiler.executable import Executable
from tiles.compiler.host import host_exchange
from tiles.compiler.movements import movements
from tiles.compiler.sharing import BASE_INSTRUCTIONS, LEAST_BYTES, called
from tiles.compiler.steps import (
    HOST_STEPS,
    BetweenStep,
    ExecuteStep,
    HostStep,
    StepRecord,
    SyncStep,
    VertexGroup,
)
from tiles.graph import Codelet, Extents, OpForm, Plan
from tiles.graph.layout import ceil_div
from tiles.numerics.shared import read_only
from tiles.plan import (
    Traffic,
    exchange_code_bytes,
    exchange_parts,
    superstep,
)
from tiles.target import Basis, Parts, Target, weakest_part

NOTHING: Parts = ((Basis.DOCUMENTED, 0),)


@dataclass(frozen=True, eq=False)
class StepCost:
    """The cost of one step on one IPU.

    Args:
      name: the step's label.
      compute_cycles: of the slowest tile.
      exchange_cycles: of the exchange phase.
      sync_cycles: of the sync before the exchange; 0 when nothing is exchanged.
      exchange_bytes: bytes that cross between tiles.
      flops: floating-point operations.
      vertex_parts: cycles of the slowest tile's vertices by what they rest on, for each group of vertices in turn.
      copy_parts: cycles of the slowest tile's copies, and of bringing elements into order, by what they rest on.
      exchange_parts: cycles of the exchange by what they rest on: words that move, entering the phase.
      source: source of the compute figure.
      tile_compute_cycles: int64 ``[num_tiles]``.
      traffic: what the exchange moves per tile.
      sync_basis: basis of the sync's figure.
      host_cycles: of the exchange with the host; None when the target does not know how fast its link is.
      host_bytes: bytes that cross the host's link.
      host_basis: basis of the host's figure.
      host_ipus: IPUs that exchange, or sync, with the host.
      link_cycles: that links between IPUs add to what tiles take, latency included; None when that is not known.
      links: what crosses which link, and what its figures rest on; None for a step on one IPU.
    """

    name: str
    compute_cycles: int
    exchange_cycles: int
    sync_cycles: int
    exchange_bytes: int
    flops: int
    vertex_parts: Parts
    copy_parts: Parts
    exchange_parts: Parts
    source: str
    tile_compute_cycles: np.ndarray
    traffic: Traffic
    sync_basis: Basis
    host_cycles: int | None = 0
    host_bytes: int = 0
    host_basis: Basis = Basis.DOCUMENTED
    host_ipus: tuple[int, ...] = ()
    link_cycles: int | None = 0
    links: LinkCost | None = None

    @property
    def cycles(self) -> int | None:
        """Compute, exchange, sync, exchange with the host and links together; None when that is not known."""
        if self.host_cycles is None or self.link_cycles is None:
            return None
        on_chip = self.compute_cycles + self.exchange_cycles + self.sync_cycles
        return on_chip + self.host_cycles + self.link_cycles

    @property
    def compute_parts(self) -> Parts:
        """What the slowest tile computes by what it rests on."""
        return (*self.vertex_parts, *self.copy_parts)

    @property
    def compute_basis(self) -> Basis:
        """The weakest basis of what the slowest tile computes."""
        return weakest_part(self.compute_parts)

    @property
    def exchange_basis(self) -> Basis:
        """The weakest basis of the exchange's cycles."""
        return weakest_part(self.exchange_parts)

    @property
    def link_bytes(self) -> np.ndarray:
        """Bytes by link of the system and direction, ``[links, 2]``; no links where nothing crosses one."""
        found = None if self.links is None else self.links.link_bytes
        return np.zeros((0, 2), np.int64) if found is None else found

    @property
    def link_basis(self) -> Parts:
        """The cycles of links by what they rest on."""
        return () if self.links is None or self.link_cycles is None else self.links.parts


_CACHE: weakref.WeakKeyDictionary[Executable, tuple[StepCost, ...]] = weakref.WeakKeyDictionary()


def step_costs(executable: Executable) -> tuple[StepCost, ...]:
    """Return the cost of every step, once, in step order."""
    if executable not in _CACHE:
        calls = called(executable)
        _CACHE[executable] = tuple(
            _step_cost(executable, step, calls.get(number, ()))
            for number, step in enumerate(executable.steps)
        )
    return _CACHE[executable]


def _step_cost(executable: Executable, step: StepRecord, calls: Sequence[int]) -> StepCost:
    """Return the cost of a step, given which of its movements run programs that are called with bases."""
    target = executable.target
    if isinstance(step, HOST_STEPS):
        return _host_cost(executable, step)
    if isinstance(step, SyncStep):
        return _sync_cost(executable, step)
    if isinstance(step, BetweenStep):
        return _between_cost(executable, step)
    moved = step_traffic(executable, step)
    exchange = exchange_parts(moved, target) if not calls else _calling_parts(executable, step, calls)
    links = within_cost(executable, moved.between_ipus, sum(cycles for _, cycles in exchange))
    compute = np.zeros(target.num_tiles, np.int64)
    vertices: list[tuple[Basis, np.ndarray, np.ndarray]] = []
    flops, source, slowest = 0, "", -1
    if isinstance(step, ExecuteStep):
        for group in step.groups:
            extents = group_extents(executable, group)
            cycles = group.codelet.cycles(extents, target)
            per_cell = np.broadcast_to(
                np.ceil(np.asarray(cycles.value, np.float64)).astype(np.int64), group.plan.tiles.shape
            )
            compute[group.plan.tiles] += per_cell
            vertices.append((cycles.basis, group.plan.tiles, per_cell))
            flops += int(np.sum(np.broadcast_to(group.codelet.flops(extents), per_cell.shape)))
            if int(per_cell.max()) > slowest:
                slowest, source = int(per_cell.max()), cycles.source
    copies = copy_cycles(moved, target)
    compute += copies
    tile = int(np.argmax(compute))
    parts = tuple((basis, int(cycles[tiles == tile].sum())) for basis, tiles, cycles in vertices)
    regressed = int(moved.regressed[tile])
    sync, sync_basis = target.internal_sync_cycles, target.basis("internal_sync_cycles")[0]
    if links is not None:
        sync, sync_basis = links.sync_cycles or 0, links.sync_basis
    return StepCost(
        name=step.name,
        compute_cycles=int(compute.max()),
        exchange_cycles=sum(cycles for _, cycles in exchange),
        sync_cycles=0 if moved.is_empty else sync,
        exchange_bytes=int(moved.received.sum()),
        flops=flops,
        vertex_parts=parts,
        copy_parts=((Basis.DOCUMENTED, int(copies[tile]) - regressed), (Basis.FITTED, regressed)),
        exchange_parts=exchange,
        source=source,
        tile_compute_cycles=read_only(compute),
        traffic=moved,
        sync_basis=sync_basis,
        link_cycles=0 if links is None else None if links.sync_cycles is None else links.cycles,
        links=links,
    )


def _between_cost(executable: Executable, step: BetweenStep) -> StepCost:
    """Return the cost of an exchange between IPUs: its busiest tile, and what links take longer than that."""
    target, moved = executable.target, step_traffic(executable, step)
    exchange = exchange_parts(moved, target)
    duration = sum(cycles for _, cycles in exchange)
    links = between_cost(executable, step, duration)
    part = executable.variables[step.source].layout
    compute = np.zeros(target.num_tiles, np.int64)
    if links.copies_on_tiles:  # a copy, or zeros, on tiles to which nothing comes
        size = part.part_bytes(executable.variables[step.source].dtype)
        compute[part.tiles] = superstep.copy_cycles(size, target)
    return StepCost(
        name=step.name,
        compute_cycles=int(compute.max()),
        exchange_cycles=duration,
        sync_cycles=links.sync_cycles or 0,
        exchange_bytes=int(moved.received.sum()),
        flops=0,
        vertex_parts=(),
        copy_parts=((Basis.DOCUMENTED, int(compute.max())),),
        exchange_parts=exchange,
        source="copy to itself, or zeros" if compute.any() else "",
        tile_compute_cycles=read_only(compute),
        traffic=moved,
        sync_basis=links.sync_basis,
        link_cycles=None if links.sync_cycles is None else links.cycles,
        links=links,
    )


def _host_cost(executable: Executable, step: HostStep) -> StepCost:
    target, host = executable.target, host_exchange(executable, step)
    copies = int(host.tile_cycles.max())
    return StepCost(
        name=step.name,
        compute_cycles=copies,
        exchange_cycles=0,
        sync_cycles=host.syncs * target.global_sync_cycles,
        exchange_bytes=0,
        flops=0,
        vertex_parts=(),
        copy_parts=((Basis.DOCUMENTED, copies),),
        exchange_parts=NOTHING,
        source="copy from where a tile receives from the host" if copies else "",
        tile_compute_cycles=read_only(host.tile_cycles),
        traffic=Traffic.none(target),
        sync_basis=target.basis("global_sync_cycles")[0],
        host_cycles=host.cycles,
        host_bytes=host.size_bytes,
        host_basis=host.basis,
        host_ipus=host.ipus,
    )


def _sync_cost(executable: Executable, step: SyncStep) -> StepCost:
    """Return the cost of a sync; all IPUs take part, so that an internal one levels their clocks, too."""
    target = executable.target
    field = "global_sync_cycles" if step.external else "internal_sync_cycles"
    return StepCost(
        name=step.name,
        compute_cycles=0,
        exchange_cycles=0,
        sync_cycles=getattr(target, field),
        exchange_bytes=0,
        flops=0,
        vertex_parts=(),
        copy_parts=NOTHING,
        exchange_parts=NOTHING,
        source="",
        tile_compute_cycles=read_only(np.zeros(target.num_tiles, np.int64)),
        traffic=Traffic.none(target),
        sync_basis=target.basis(field)[0],
        host_ipus=tuple(range(target.num_ipus)),
    )


def scratch_bytes(executable: Executable, group: VertexGroup) -> int:
    """Return the temporary bytes that the largest vertex of a group needs, in whole words."""
    return most_scratch_bytes(group.codelet, *_kinds_of_group(executable, group), executable.target)


def variant_bytes(executable: Executable, group: VertexGroup) -> int:
    """Return the bytes of code that a group's vertices run."""
    return _variant_bytes(group.codelet, *_kinds_of_group(executable, group), executable.target)


Kinds = tuple[OpForm, tuple[tuple[int, int], ...], tuple[str, ...], tuple[str, ...]]
"""What says how large the cells of a plan are: form, size and grain of each dimension, dtypes of operands and results."""


def kinds_of(
    form: OpForm, plan: Plan, operand_dtypes: tuple[str, ...], result_dtypes: tuple[str, ...]
) -> Kinds:
    """Return what says how large the cells of a plan are, wherever they lie."""
    return form, tuple((split.size, split.grain) for split in plan.splits), operand_dtypes, result_dtypes


def _kinds_of_group(executable: Executable, group: VertexGroup) -> Kinds:
    return kinds_of(group.form, group.plan, *_dtypes(executable, group))


def _different_extents(
    form: OpForm,
    cuts: tuple[tuple[int, int], ...],
    operand_dtypes: tuple[str, ...],
    result_dtypes: tuple[str, ...],
) -> Extents:
    """Return the extents of the cells of a plan, each that occurs once: a dimension's parts are full ones and a last one."""
    full_and_last = (
        sorted({min(grain, size), size - (max(1, ceil_div(size, grain)) - 1) * grain}) for size, grain in cuts
    )
    sizes = tuple(axis.reshape(-1) for axis in np.meshgrid(*map(np.array, full_and_last), indexing="ij"))
    return Extents(form, sizes, operand_dtypes, result_dtypes)


@lru_cache(maxsize=4096)
def most_scratch_bytes(codelet: Codelet, *kinds_and_target: Any) -> int:
    """Return the temporary bytes that the largest vertex needs, in whole words; arguments as of ``kinds_of``, and the target."""
    *kinds, target = kinds_and_target
    need = codelet.variant_scratch_bytes(_different_extents(*kinds), target)
    return -(-int(np.max(need, initial=0)) // 4) * 4


@lru_cache(maxsize=4096)
def _variant_bytes(codelet: Codelet, *kinds_and_target: Any) -> int:
    """Return the bytes of code that vertices run; arguments as of ``most_scratch_bytes``."""
    *kinds, target = kinds_and_target
    return codelet.variant_bytes(_different_extents(*kinds), target)


def copy_cycles(moved: Traffic, target: Target) -> np.ndarray:
    """Return cycles each tile spends bringing bytes into the buffers its vertices read, in their order, int64 ``[num_tiles]``."""
    return superstep.copy_cycles(moved.local, target).astype(np.int64) + moved.reordering


def group_extents(executable: Executable, group: VertexGroup) -> Extents:
    """Return the extents of every cell of a group, in cell order."""
    return cell_extents(group.form, group.plan, *_dtypes(executable, group))


def _dtypes(executable: Executable, group: VertexGroup) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the dtypes of a group's operands, and of its results."""
    variables = executable.variables
    return (
        tuple(variables[o.variable].dtype for o in group.operands),
        tuple(variables[r].dtype for r in group.results),
    )


def cell_extents(
    form: OpForm, plan: Plan, operand_dtypes: tuple[str, ...], result_dtypes: tuple[str, ...]
) -> Extents:
    """Return the extents of every cell of a plan, in cell order."""
    grid = plan.grid
    index = np.indices(grid).reshape(len(grid), -1) if grid else np.zeros((0, 1), np.int64)
    sizes = tuple((s.hi - s.lo)[index[d]] for d, s in enumerate(plan.splits))
    return Extents(form, sizes, operand_dtypes, result_dtypes)


def step_traffic(executable: Executable, step: StepRecord) -> Traffic:
    """Return what the exchange before (or of) a step moves."""
    if isinstance(step, BetweenStep):
        moves = any(found.unit is not None for found in step_crossings(executable, step))
        return between_traffic(executable.variables[step.source], moves, executable.target)
    target = executable.target
    found = (each.traffic(target) for each in movements(step, executable.variables) if each is not None)
    return sum(found, Traffic.none(target))


def _calling_parts(executable: Executable, step: StepRecord, calls: Sequence[int]) -> Parts:
    """Return the duration of an exchange phase that calls the programs of some movements, one after the other.

    Each takes as long as its busiest tile, and the time to set its bases; then come all other movements together.
    """
    target = executable.target
    together, cycles = Traffic.none(target), 0
    for number, each in enumerate(movements(step, executable.variables)):
        if each is None:
            continue
        if number in calls:
            cycles += exchange_parts(each.traffic(target), target)[0][1]
        else:
            together = together + each.traffic(target)
    (_, busiest), *_ = exchange_parts(together, target)
    setting = len(calls) * 2 * (1 + target.exchange_base_write_cycles)
    bases = (target.basis("exchange_base_write_cycles")[0], setting)
    return *superstep.phase_parts(busiest + cycles, target), bases


def exchange_code_sizes(executable: Executable, own: Sequence[np.ndarray] | None = None) -> np.ndarray:
    """Return the bytes of exchange code that each tile needs for all steps, int64 ``[num_tiles]``."""
    return sum(exchange_code_by_step(executable, own), np.zeros(executable.target.num_tiles, np.int64))


def own_exchange_code(
    executable: Executable,
) -> tuple[list[np.ndarray], list[dict[int, tuple[Hashable, ...]]]]:
    """Return what each step's own exchange program takes, and which of its movements others could run.

    Returns:
      By step, the bytes on each tile, int64 ``[num_tiles]``, and by the numbers of movements with enough code, their keys.
    """
    found = [_own_exchange_code(executable, step) for step in executable.steps]
    return [code for code, _ in found], [keys for _, keys in found]


def _own_exchange_code(
    executable: Executable, step: StepRecord
) -> tuple[np.ndarray, dict[int, tuple[Hashable, ...]]]:
    if isinstance(step, BetweenStep):  # the tiles it talks to are on IPUs that bases do not name
        return exchange_code_bytes(step_traffic(executable, step), executable.target), {}
    total = np.zeros(executable.target.num_tiles, np.int64)
    keys: dict[int, tuple[Hashable, ...]] = {}
    for number, each in enumerate(movements(step, executable.variables)):
        if each is not None and each.add_code(executable.target, total) >= LEAST_BYTES:
            keys[number] = each.key
    return total, keys


def exchange_code_by_step(
    executable: Executable, own: Sequence[np.ndarray] | None = None
) -> Iterator[np.ndarray]:
    """Yield the bytes of exchange code that each tile needs for a step, int64 ``[num_tiles]``, in step order.

    A program that several movements run counts at the first of them; each call sets its bases. ``own`` is what
    ``own_exchange_code`` returns first, where it is known.
    """
    calls, shared, target = called(executable), executable.shared_exchange, executable.target
    codes = own_exchange_code(executable)[0] if own is None else own
    for number, (step, code) in enumerate(zip(executable.steps, codes, strict=True)):
        if number in calls:
            moved = list(movements(step, executable.variables))
            for k in calls[number]:
                each, program = moved[k], np.zeros(target.num_tiles, np.int64)
                if each is None:
                    continue
                each.add_code(target, program)
                setting = np.where(program > 0, BASE_INSTRUCTIONS * target.instruction_bytes, 0)
                code = code + setting - (program if (number, k) in shared else 0)
        yield code


_CODE: weakref.WeakKeyDictionary[Executable, tuple[np.ndarray, ...]] = weakref.WeakKeyDictionary()


def exchange_code(executable: Executable) -> tuple[np.ndarray, ...]:
    """Return what ``exchange_code_by_step`` yields, computed once."""
    if executable not in _CODE:
        own = [exchange_code_bytes(cost.traffic, executable.target) for cost in step_costs(executable)]
        _CODE[executable] = tuple(exchange_code_by_step(executable, own))
    return _CODE[executable]


def seconds(cycles: int, target: Target) -> float:
    """Return the time that many cycles take."""
    return cycles / target.clock_hz


def words(size_bytes: int) -> int:
    """Return 32-bit words that hold ``size_bytes``."""
    return ceil_div(size_bytes, 4)
