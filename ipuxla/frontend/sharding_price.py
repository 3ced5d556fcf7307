"""What a program is about to take on each IPU of a mesh: a closed form of its operations, before anything is compiled.

It ranks shardings, no more: executables say what the few that are compiled cost. What stands beside the machine's own
figures is ASSUMED, from compiled programs.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from ipuxla.frontend._jax_compat.shardy import COLLECTIVES, Block, LocalProgram, Work, element_bytes
from ipuxla.sharding import Mesh
from tiles.graph import Graph
from tiles.poplibs import gcl
from tiles.target import System, Target

MAC_SHARE = 0.35
"""Of the peak rate of multiply-accumulates, that contractions reach (ASSUMED)."""
CONTRACTION_CYCLES = 800
"""Of a contraction beside its multiply-accumulates and words: syncs, starting vertices, adding partials (ASSUMED)."""
MAP_CYCLES = 60
"""Of an elementwise operation beside its elements: several are one compute set (ASSUMED)."""
MOVE_CYCLES = 400
"""Of a copy between tiles, or a reduction, beside its words (ASSUMED)."""
ELEMENT_CYCLES = 1.5
"""Of an element of an elementwise operation on a tile (ASSUMED)."""
USABLE = 0.7
"""Share of a chip's memory for what programs hold, beside code, received slices and gaps (ASSUMED)."""

_VIEWS = frozenset(
    (
        "broadcast_in_dim",
        "constant",
        "iota",
        "optimization_barrier",
        "reshape",
        "return",
        "get_tuple_element",
        "tuple",
    )
)
_MOVES = frozenset(
    (
        "concatenate",
        "dynamic_slice",
        "dynamic_update_slice",
        "gather",
        "pad",
        "reduce",
        "reduce_window",
        "reverse",
        "scatter",
        "select_and_scatter",
        "slice",
        "sort",
        "transpose",
        "fft",
    )
)


class Price(NamedTuple):
    """What one IPU takes.

    Args:
      cycles: of one run.
      size_bytes: that it holds at most, without code.
    """

    cycles: float
    size_bytes: int


class Pricing:
    """The closed form for one mesh of a machine, or for one chip."""

    def __init__(self, machine: System | Target, mesh: Mesh = ()) -> None:
        """Price for a mesh of a system's IPUs; for one of them where there are no axes."""
        self.chip = machine.chip if isinstance(machine, System) else machine
        self._graph = Graph(machine if mesh else self.chip)
        for name, size in mesh:
            self._graph.replicate(name, size)
        self._sizes = dict(mesh)
        self._collectives: dict[tuple[str, tuple[str, ...], int], float] = {}

    @property
    def usable_bytes(self) -> int:
        """Memory of a chip that a program may be expected to fill."""
        return int(USABLE * self.chip.memory_bytes)

    def price(self, program: LocalProgram, donated: Collection[int] = ()) -> Price:
        """Return the price of a program, whose donated arguments give their memory to results."""
        walk = _Walk(self, program)
        main = program.functions["main"]
        cycles, peak = walk.block(main)
        arguments = sum(program.size_bytes(value) for value in main.arguments)
        given = sum(program.size_bytes(value) for n, value in enumerate(main.arguments) if n in donated)
        results = sum(program.size_bytes(value) for value in main.results)
        return Price(cycles, arguments + peak - min(given, results))

    def work_cycles(self, work: Work, program: LocalProgram) -> float:
        """Return the cycles of one operation, without its regions and what it calls."""
        kind, chip = work.name.removeprefix("stablehlo.").removeprefix("chlo."), self.chip
        if kind in _VIEWS or not work.makes or (work.name.startswith("sdy.") and not work.axes):
            return 0.0
        type_, elements = (
            program.types[work.makes[0]],
            max(math.prod(program.shapes[value]) for value in (*work.uses, *work.makes)),
        )
        size = element_bytes(type_)
        if work.axes:
            collective = COLLECTIVES[work.name]
            return self._collective(collective, work, program.size_bytes(work.uses[0])) if collective else 0.0
        if work.macs:
            return self._contraction(work.macs, size)
        if kind in _MOVES:
            return MOVE_CYCLES + elements * size / chip.num_tiles / chip.exchange_bytes_per_cycle
        return MAP_CYCLES + elements * ELEMENT_CYCLES / chip.num_tiles

    def _contraction(self, macs: int, size: int) -> float:
        """Return the cycles of a contraction: each tile has a cube of the domain, and receives and sends its faces."""
        chip, each = self.chip, macs / self.chip.num_tiles
        rate = chip.fp16_macs_per_cycle if size <= 2 else chip.fp32_macs_per_cycle
        words = 3 * max(each, 1.0) ** (2 / 3) * size / chip.exchange_bytes_per_cycle
        return CONTRACTION_CYCLES + each / max(1, rate) / MAC_SHARE + words

    def _collective(self, collective: str, work: Work, size_bytes: int) -> float:
        axes = tuple(dict.fromkeys(name for name, _ in work.axes))
        members = math.prod(size for _, size in work.axes)
        if collective == "reduce_scatter" and members != math.prod(self._sizes[name] for name in axes):
            collective = "all_reduce"
        key = collective, axes, size_bytes
        if key not in self._collectives:
            self._collectives[key] = gcl.predicted_cycles(self._graph, collective, axes, size_bytes)
        return self._collectives[key]


class _Walk:
    """Sums over a program's operations, once for each function."""

    def __init__(self, pricing: Pricing, program: LocalProgram) -> None:
        self._pricing, self._program = pricing, program
        self._functions: dict[str, tuple[float, int]] = {}

    def block(self, block: Block) -> tuple[float, int]:
        """Return cycles, and the most bytes that values made in the block take at once."""
        program = self._program
        last: dict[int, int] = {}
        readers: dict[int, list[Work]] = {}
        for place, work in enumerate(block.works):
            for value in work.uses:
                last[value] = place
                readers.setdefault(value, []).append(work)
        for value in block.results:
            last[value] = len(block.works)
        results = frozenset(block.results)
        leaving: dict[int, int] = {}
        cycles, held, peak = 0.0, 0, 0
        for place, work in enumerate(block.works):
            inner = self._inner(work)
            cycles += self._pricing.work_cycles(work, program) + inner[0]
            for value in work.makes:
                if value in last and _is_stored(work, readers.get(value, []), value in results):
                    size = program.size_bytes(value)
                    held += size
                    leaving[last[value]] = leaving.get(last[value], 0) + size
            peak = max(peak, held + inner[1])
            held -= leaving.pop(place, 0)
        return cycles, peak

    def _inner(self, work: Work) -> tuple[float, int]:
        if work.callee:
            return self._function(work.callee)
        if not work.blocks:
            return 0.0, 0
        parts = [self.block(each) for each in work.blocks]
        if work.name == "stablehlo.while":
            return sum(part[0] for part in parts) * work.trips, max(part[1] for part in parts)
        return max(part[0] for part in parts), max(part[1] for part in parts)

    def _function(self, name: str) -> tuple[float, int]:
        if name not in self._functions:
            self._functions[name] = self.block(self._program.functions[name])
        return self._functions[name]


def _is_stored(work: Work, readers: list[Work], is_result: bool) -> bool:
    """Whether a value lies in memory: views do not, nor what one elementwise operation hands to the next."""
    if work.name.removeprefix("stablehlo.") in _VIEWS or work.name == "sdy.constant":
        return False
    return is_result or len(readers) != 1 or not (_is_elementwise(work) and _is_elementwise(readers[0]))


def _is_elementwise(work: Work) -> bool:
    kind = work.name.removeprefix("stablehlo.")
    is_plain = not (work.macs or work.axes or work.callee or work.blocks)
    return is_plain and kind not in _MOVES and not work.name.startswith("sdy.")
