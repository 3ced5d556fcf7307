"""The preferred layouts of parameters that several operations read, and of what updates them.

A layout is settled by an operand's first reader. For a table that is looked up before it is multiplied with, or a weight
that is reshaped first, that would be the wrong one: what reads it next would exchange all of it. So parameters wait as
the first contraction that reads them wants it. A gradient is best left where its parameter waits: everything between
the two, moments and clipping, then lies there too.
"""

from __future__ import annotations

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ir.op import FusionCategory
from hlo_passes.ops import DotGeneral, Fusion, Reshape, Scatter
from ipuxla.lowering.contraction import preferred_layout
from ipuxla.lowering.registry import Lowering
from tiles.graph import reshape_layout

Reader = tuple[Instruction, int]
"""A dot_general and the number of one of its operands."""


def contraction_readers(computation: Computation) -> dict[Value, tuple[Reader, ...]]:
    """Return, for parameters that something else reads first, the contractions that read them, in program order.

    What reads a reshape of a parameter reads the parameter.
    """
    origin = {parameter: parameter for parameter in computation.parameters}
    found: dict[Value, list[Reader]] = {}
    early: set[Value] = set()
    for instruction in computation.instructions:
        if isinstance(instruction.op, Reshape) and instruction.operands[0] in origin:
            origin[instruction.result] = origin[instruction.operands[0]]
            early.add(origin[instruction.result])
            continue
        reads = _reads(instruction)
        for position, value in enumerate(instruction.operands):
            if value not in origin:
                continue
            readers = found.setdefault(origin[value], [])
            if position in reads:
                readers.append(reads[position])
            elif not readers:
                early.add(origin[value])
    return {value: tuple(readers) for value, readers in found.items() if readers and value in early}


def _reads(instruction: Instruction) -> dict[int, Reader]:
    """Return which operands of an instruction a contraction reads as they are."""
    if isinstance(instruction.op, DotGeneral):
        return {k: (instruction, k) for k in range(2)}
    if not isinstance(instruction.op, Fusion):
        return {}
    (region,) = instruction.regions
    return {
        region.parameters.index(value): (inner, k)
        for inner in region.instructions
        if isinstance(inner.op, DotGeneral)
        for k, value in enumerate(inner.operands)
        if value in region.parameters
    }


def set_preferred_layouts(
    lowering: Lowering, instruction: Instruction, readers: dict[Value, tuple[Reader, ...]]
) -> None:
    """Give parameters that an instruction is the first to read the layout that their first contraction wants."""
    for value in instruction.operands:
        if value not in readers or lowering.tensor(value).layout is not None:
            continue
        contraction, k = readers[value][0]
        layout = reshape_layout(preferred_layout(lowering, contraction, k), value.type.shape)
        if layout is not None:
            lowering.graph.set_layout(lowering.values[value].name, layout)


def met_parameters(computation: Computation) -> dict[Value, tuple[Value, ...]]:
    """Return, for each value, the parameters of its shape that it meets further on, in program order.

    It meets what an elementwise operation reads beside it, or beside what such operations, and updates at indices,
    made of it.
    """
    readers: dict[Value, list[Instruction]] = {}
    for instruction in computation.instructions:
        for value in dict.fromkeys(_passed_on(instruction)):
            readers.setdefault(value, []).append(instruction)
    parameters = set(computation.parameters)
    met: dict[Value, dict[Value, None]] = {}
    for instruction in reversed(computation.instructions):
        for result in instruction.results:
            found = met.setdefault(result, {})
            for reader in readers.get(result, ()):
                if reader.results[0].type.shape != result.type.shape:
                    continue
                found |= {
                    v: None for v in reader.operands if v in parameters and v.type.shape == result.type.shape
                }
                found |= met.get(reader.results[0], {})
    return {value: tuple(found) for value, found in met.items() if found}


def _passed_on(instruction: Instruction) -> tuple[Value, ...]:
    """Return the operands that an instruction's one result is made of element by element."""
    if len(instruction.results) != 1:
        return ()
    if isinstance(instruction.op, Scatter):
        return instruction.operands[:1]
    is_loop = isinstance(instruction.op, Fusion) and instruction.op.kind == "loop"
    return instruction.operands if is_loop or instruction.op.category is FusionCategory.INJECTIVE else ()
