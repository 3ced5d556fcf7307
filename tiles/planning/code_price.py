"""What a byte of exchange code is worth in a program, by how much of it there will be."""

from __future__ import annotations

from tiles.graph import ACROSS, Choice, Graph, Operation, Sequence, bodies_of
from tiles.plan import CODE_PRICE

EXPECTED_CODE_BYTES = 600
"""Exchange code that an operation which folds takes on the fullest tile, with what goes on around it: 411 to 1,376 B in
the networks of ``tests/models`` at published size, as they were when this was chosen."""
CROWDED = 0.5
"""The share of the memory that code can run from which exchange code may take before its bytes become dearer."""
MOST_EXPECTED_PRICE = 8.0


def code_price_of(graph: Graph) -> float:
    """Return what a byte of exchange code is worth in a recorded program: more where there will be too much of it.

    The price rises with the square of what operations on one IPU, that with most, are expected to take. A choice, not a
    fact.
    """
    counted = [graph.program, *graph.functions.values()]
    most = max(sum(_count_folding(each, ipu) for each in counted) for ipu in range(graph.ipus_per_replica))
    crowding = EXPECTED_CODE_BYTES * most / (CROWDED * graph.chip.code_memory_bytes)
    return CODE_PRICE * min(max(1.0, crowding**2), MOST_EXPECTED_PRICE / CODE_PRICE)


def _count_folding(sequence: Sequence, ipu: int) -> int:
    """Return how many operations of a sequence fold on an IPU or across all; of several ways the one with most."""
    count = 0
    for step in sequence.steps:
        match step:
            case Operation():
                count += bool(step.form.reduced) and step.ipu in (ipu, ACROSS)
            case Choice():
                count += max(_count_folding(alternative.body, ipu) for alternative in step.alternatives)
            case _:
                count += sum(_count_folding(body, ipu) for body in bodies_of(step))
    return count
