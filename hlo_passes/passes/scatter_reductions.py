"""All-reduces of which each device keeps its own part become reduce-scatters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hlo_passes.ir import Computation, Instruction, Module, Value, evaluate_partitioned
from hlo_passes.ops import AllReduce, Constant, DynamicSlice, ReduceScatter
from hlo_passes.passes.base import LocalPass, map_control_regions

MOST_STEPS = 100
"""Operations that lead from a device's number to an offset: a partitioner writes three, ``axis_index`` along two axes 30."""


@dataclass(frozen=True)
class ScatterReductions(LocalPass):
    """Make a reduce-scatter of an all-reduce that is read by slices alone, of each member its own chunk of one dimension.

    A partitioner sums up the gradient of a parameter that is cut over the devices, whole, and cuts it then; half of what
    crosses the links is never read. Left alone are small operands, which cross together (``join-collectives``), and groups
    whose size is no power of two: halving leaves those no equal chunks, and rings of many members take long.

    Args:
      min_bytes: of an operand.
    """

    name: ClassVar[str] = "scatter-reductions"
    min_bytes: int = (1 << 16) + 1

    def change(self, computation: Computation) -> Computation:
        """Return the computation with reductions scattered; itself where there are none."""
        if not computation.has_effect:
            return computation
        instructions = [map_control_regions(each, self.change) for each in computation.instructions]
        if any(new is not old for new, old in zip(instructions, computation.instructions, strict=True)):
            computation = dataclasses.replace(computation, instructions=tuple(instructions))
        found = _OwnSlices(computation)
        scattered: dict[Instruction, Instruction] = {}
        renamed: dict[Value, Value] = {}
        dropped = set[Instruction]()
        for instruction in computation.instructions:
            op = instruction.op
            if not isinstance(op, AllReduce) or instruction.operand_types[0].size_bytes < self.min_bytes:
                continue
            slices = found.of(instruction)
            if slices:
                (result,) = slices[0].results
                scatter = ReduceScatter(op.groups, _scattered_dimension(slices[0]))
                scattered[instruction] = dataclasses.replace(instruction, op=scatter, results=(result,))
                renamed |= {each.results[0]: result for each in slices[1:]}
                dropped.update(slices)
        if not scattered:
            return computation
        kept = [scattered.get(i, i) for i in computation.instructions if i not in dropped]
        return dataclasses.replace(
            computation,
            instructions=tuple(_with_operands(i, renamed) for i in kept),
            results=tuple(renamed.get(value, value) for value in computation.results),
        )


class _OwnSlices:
    """What reads the all-reduces of a computation."""

    def __init__(self, computation: Computation) -> None:
        """Find every value's readers; None stands for those of the computation's results."""
        self._producers = computation.producers
        self._readers: dict[Value, list[Instruction | None]] = {
            value: [None] for value in computation.results
        }
        for instruction in computation.instructions:
            for value in instruction.operands:
                self._readers.setdefault(value, []).append(instruction)
        self._known: dict[tuple[Value, int], np.ndarray | None] = {}

    def of(self, instruction: Instruction) -> list[Instruction]:
        """Return what reads an all-reduce if that are equal slices, of each device the chunk of its place; else nothing."""
        op = instruction.op
        assert isinstance(op, AllReduce)
        size = op.groups.size
        if len(instruction.results) != 1 or size < 2 or size & (size - 1):
            return []
        (result,) = instruction.results
        found: list[Instruction] = []
        for reader in self._readers.get(result, ()):
            if reader is None or not isinstance(reader.op, DynamicSlice):
                return []
            found.append(reader)
        if len({each.op for each in found}) != 1:
            return []
        dimension = _scattered_dimension(found[0])
        chunk, rest = divmod(result.type.shape[dimension], size) if dimension >= 0 else (0, 1)
        if rest or found[0].results[0].type.shape[dimension] != chunk:
            return []
        place = np.zeros(op.groups.num_devices, np.int64)
        place[op.groups.members] = np.arange(size)
        for reader in found:
            offsets = self._numbers(reader.operands[1 + dimension], op.groups.num_devices)
            if offsets is None or (offsets != place * chunk).any():
                return []
        return found

    def _numbers(self, value: Value, devices: int) -> np.ndarray | None:
        """Return a number as it is on each device, where it follows from the device's own number alone."""
        if (value, devices) not in self._known:
            steps = self._steps_to(value)
            found = None
            if steps is not None:
                main = Computation("main", (), tuple(steps), (value,))
                module = Module("offset", (main,), "main", mesh=(("device", devices),))
                found = np.asarray(evaluate_partitioned(module)[0]).astype(np.int64)
            self._known[value, devices] = found
        return self._known[value, devices]

    def _steps_to(self, value: Value) -> list[Instruction] | None:
        """Return the instructions, in order, that compute a value of constants and the device's number; None of others."""
        order: dict[Instruction, None] = {}
        waiting = [(value, False)]
        while waiting:
            wanted, has_operands = waiting.pop()
            step = self._producers.get(wanted)
            if step is None or step.has_effect or step.regions or step.op.callees or len(order) > MOST_STEPS:
                return None
            is_table = isinstance(step.op, Constant)
            if not is_table and any(result.type.size != 1 for result in step.results):
                return None
            if has_operands:
                order[step] = None
            elif step not in order:
                waiting.append((wanted, True))
                waiting += [(operand, False) for operand in step.operands]
        return list(order)


def _scattered_dimension(instruction: Instruction) -> int:
    """Return the one dimension in which a slice is smaller than what it is of; -1 where there are none or several."""
    whole, part = instruction.operand_types[0].shape, instruction.results[0].type.shape
    cut = [d for d, (n, k) in enumerate(zip(whole, part, strict=True)) if n != k]
    return cut[0] if len(cut) == 1 else -1


def _with_operands(instruction: Instruction, renamed: Mapping[Value, Value]) -> Instruction:
    if not any(value in renamed for value in instruction.operands):
        return instruction
    return dataclasses.replace(
        instruction, operands=tuple(renamed.get(value, value) for value in instruction.operands)
    )
