"""The operations of an MLIR module, one after another.

MLIR's own walk calls back, and makes an error about the module of whatever a callback raises: of an interruption, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def operations(root: Any) -> Iterator[Any]:
    """Yield every operation in an operation and it itself, those inside before the one that holds them."""
    pending = [(root.operation, _inside(root.operation))]
    while pending:
        operation, rest = pending[-1]
        inner = next(rest, None)
        if inner is None:
            pending.pop()
            yield operation
        else:
            pending.append((inner, _inside(inner)))


def _inside(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
