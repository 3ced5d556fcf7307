"""Cycles of PopLibs' scaled addition, ``a + s * b``: what gradient steps and moving averages fuse into.

Source: graphcore/poplibs lib/popops/PerformanceEstimation.cpp. On silicon (github.com/graphcore-research/
tessellate-ipu, tests/linalg/test_tile_linalg_jacobi.py) 64 to 512 floats took 71 to 79 cycles more than this, the
cycle counter's own part included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiles.graph import Cycles
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.expression import Body
from tiles.target import Basis, Target

SOURCE = "graphcore/poplibs lib/popops/PerformanceEstimation.cpp"


def is_scaled_add(
    body: Body,
    work: Sequence[int],
    outputs: Sequence[int],
    dtypes: Sequence[str],
    varies: Sequence[frozenset[int]],
) -> bool:
    """Return whether an expression adds to a tensor, or takes from it, a scalar times another.

    Args:
      body: the expression.
      work: its rows that cost something.
      outputs: indices of its results.
      dtypes: dtypes of operands and rows.
      varies: the dimensions that operands and rows vary with.
    """
    first = len(dtypes) - len(body)
    if len(work) != 2 or tuple(outputs) != (first + work[1],):
        return False
    (inner, factors, _), (outer, terms, _) = (body[i] for i in work)
    scaled, whole = first + work[0], varies[outputs[0]]
    if inner != "multiply" or outer not in ("add", "subtract") or terms.count(scaled) != 1:
        return False
    if outer == "subtract" and terms[0] == scaled:
        return False
    other = terms[0] if terms[1] == scaled else terms[1]
    spans = sorted((varies[i] for i in factors), key=len)
    kinds = {dtypes[i] for i in (*factors, other, scaled, outputs[0])}
    is_plain = len(kinds) == 1 and kinds <= {"float32", "float16"}
    return is_plain and spans == [frozenset(), whole] and varies[other] == whole and bool(whole)


def scaled_add_cycles(n: Amount, dtype: str, is_subtract: bool, target: Target) -> Cycles:
    """Return the cycles of the vertex whose slowest worker has ``n`` elements: three slots a 64-bit vector."""
    width = target.vector_width(dtype)
    n = np.asarray(n)
    vectors = np.maximum(-(-n // width), 1)
    supervisor = 21 + 11 + np.where(n % width, 13, 7) + 12 + 6 + (7 if is_subtract else 0)
    slots = 15 + 6 + 3 * (vectors - 1) + 3
    return Cycles(supervisor + target.worker_issue_interval_cycles * slots, Basis.DOCUMENTED, SOURCE)
