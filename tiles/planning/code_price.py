"""What a byte of exchange code is worth in a program, by how much of it there will be."""

from __future__ import annotations

from tiles.graph import Choice, Graph, Operation, Sequence
from tiles.plan import CODE_PRICE
from tiles.planning.alternatives import bodies_of

EXPECTED_CODE_BYTES = 600
"""Exchange code that an operation which folds takes on the fullest tile, with what goes on around it: 411 to 1,376 B in
the networks of ``tests/models`` at published size, as they were when this was chosen."""
CROWDED = 0.5
"""The share of the memory that code can run from which exchange code may take before its bytes become dearer."""
MOST_EXPECTED_PRICE = 8.0


def code_price_of(graph: Graph) -> float:
    """Return what a byte of exchange code is worth in a recorded program: more where there will be too much of it.

    The price rises with the square of what its operations are expected to take. A choice, not a fact.
    """
    counted = [graph.program, *graph.functions.values()]
    expected = EXPECTED_CODE_BYTES * sum(map(_count_folding, counted))
    crowding = expected / (CROWDED * graph.target.code_memory_bytes)
    return CODE_PRICE * min(max(1.0, crowding**2), MOST_EXPECTED_PRICE / CODE_PRICE)


def _count_folding(sequence: Sequence) -> int:
    """Return how many operations of a sequence fold; of several ways the one with most."""
    count = 0
    for step in sequence.steps:
        match step:
            case Operation():
                count += bool(step.form.reduced)
            case Choice():
                count += max(_count_folding(alternative.body) for alternative in step.alternatives)
            case _:
                count += sum(map(_count_folding, bodies_of(step)))
    return count
