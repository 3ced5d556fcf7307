"""Sort onto popops."""

from __future__ import annotations

from hlo_passes.ir import Computation, Instruction
from hlo_passes.ops import Sort, sort_keys
from hlo_passes.passes.indexing import expression
from ipuxla.lowering.indexing import in_memory
from ipuxla.lowering.registry import Lowering, lowers, where
from tiles.graph import Tensor
from tiles.poplibs.popops.expression import Body
from tiles.poplibs.popops.sorting import sort


def region_body(region: Computation) -> tuple[Body, tuple[int, ...]]:
    """Return a region of scalars as rows over its parameters, in order, and the value that each result is."""
    count = len(region.parameters)
    body: list[tuple[str, tuple[int, ...], tuple[tuple[str, object], ...]]] = []
    outputs = []
    for result in region.results:
        single = Computation(region.name, region.parameters, region.instructions, (result,))
        rows, parameters = expression(single)
        numbers = [p.parameter for p in parameters]
        numbers += [count + len(body) + i for i in range(len(rows))]
        for name, arguments, attributes in rows:
            body.append((name, tuple(numbers[a] for a in arguments), tuple(sorted(attributes.items()))))
        outputs.append(numbers[-1] if rows else numbers[0])
    return tuple(body), tuple(outputs)


@lowers(Sort)
def lower_sort(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Sort rows, each on one tile."""
    op = instruction.op
    assert isinstance(op, Sort)
    arrays = [in_memory(lowering, v) for v in instruction.operands]
    keys = sort_keys(instruction.regions[0])
    comparator = () if keys is not None else region_body(instruction.regions[0])[0]
    return sort(
        lowering.graph,
        arrays,
        op.dimension,
        tuple(map(tuple, keys or ())),
        comparator,
        location=where(instruction),
        program=lowering.program,
    )
