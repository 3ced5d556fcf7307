"""Regions of scalars as expressions, for codelets that apply a function of the user's to elements."""

from __future__ import annotations

from hlo_passes.ir import Computation
from hlo_passes.passes.indexing import expression
from tiles.poplibs.popops.expression import Body


def region_body(region: Computation) -> tuple[Body, tuple[int, ...]]:
    """Return a region of scalars as rows over its parameters, in order, and the value that each result is."""
    count = len(region.parameters)
    body: list[tuple[str, tuple[int, ...], tuple[tuple[str, object], ...]]] = []
    outputs: list[int] = []
    for result in region.results:
        single = Computation(region.name, region.parameters, region.instructions, (result,))
        rows, parameters = expression(single)
        numbers = [p.parameter for p in parameters]
        numbers += [count + len(body) + i for i in range(len(rows))]
        for name, arguments, attributes in rows:
            body.append((name, tuple(numbers[a] for a in arguments), tuple(sorted(attributes.items()))))
        outputs.append(numbers[-1] if rows else numbers[0])
    return tuple(body), tuple(outputs)
