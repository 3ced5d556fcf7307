"""Cycles of a reduction vertex, after PopLibs' estimators.

Three forms: contiguous partials (reduced dimensions innermost in the operand), strided partials (a kept
dimension innermost), and the general one. A prologue adds its arithmetic and further loads.

Source: graphcore/poplibs lib/popops/reduction/CycleEstimationFunctions.cpp.
"""

from __future__ import annotations

import itertools

import numpy as np

from tiles.graph import Cycles, Extents, OpForm
from tiles.numerics.arrays import where
from tiles.numerics.dtypes import itemsize
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.elementwise_cycles import body_slots, load_slots
from tiles.poplibs.popops.expression import Body
from tiles.target import Basis, Target

SOURCE = "graphcore/poplibs lib/popops/reduction/CycleEstimationFunctions.cpp"
BITWISE = ("or", "and")
"""Operations on integers that join 64 bits at once, in the loops of sums (ASSUMED: PopLibs has no such vertices; ``or64``
and ``and64`` of the aux pipeline, github.com/graphcore/poplibs' tile vertex ISA, take the place of its additions)."""
_ASSEMBLY = {"float32": ("add", "mul", "max", "min"), "float16": ("add", "mul", "max", "min")}


def reduce_cycles(
    body: Body, operation: str, dtype: str, out_dtype: str, extents: Extents, target: Target
) -> Cycles:
    """Return the duration of a reduction vertex on all workers, vectorized over ``extents``.

    Args:
      body: the prologue, empty for none.
      operation: the reduction.
      dtype: dtype of the values folded.
      out_dtype: dtype of the result.
      extents: cell sizes.
      target: the machine.
    """
    if operation == "add" and dtype == "float32" and is_widened_half(body, extents.operand_dtypes):
        body, dtype = (), "float16"
    order = stored_order(extents.form)
    outputs, partials = np.asarray(extents.results), np.asarray(extents.reduced)
    is_bitwise = operation in BITWISE and dtype != "bool" and itemsize(dtype) <= target.data_path_bytes
    basis = Basis.ASSUMED if is_bitwise else Basis.DOCUMENTED
    width = target.data_path_bytes // itemsize(dtype) if is_bitwise else target.vector_width(dtype)
    if not is_bitwise and operation not in _ASSEMBLY.get(dtype, ()):
        slots, basis = _scalar(outputs, partials, dtype, target), Basis.ASSUMED
    elif _is_innermost_reduced(extents.form, order):
        slots = contiguous_slots(outputs, partials, width, out_dtype, target)
    elif _is_strided(extents.form, order):
        slots = _strided(order, outputs, partials, width, extents, target)
    else:
        slots = _general(outputs, partials, width, target)
    if body:
        slots = slots + body_slots(body, list(range(len(body))), extents, target)
        loaded_once = -(
            -np.asarray(extents.points) * itemsize(dtype) // target.data_path_bytes // target.workers_per_tile
        )
        slots = slots + np.maximum(load_slots(body, extents, target) - loaded_once, 0)
        basis = Basis.ASSUMED
    return Cycles(target.worker_issue_interval_cycles * slots, basis, SOURCE)


def is_widened_half(body: Body, operand_dtypes: tuple[str, ...]) -> bool:
    """Return whether a prologue only widens halves, which the accumulators of float32 take as they are.

    PopLibs has vertices that add halves into float32 (``ReduceAdd`` of half partials and float results), at the rate of
    halves.
    """
    return operand_dtypes == ("float16",) and len(body) == 1 and body[0][0] == "convert"


def stored_order(form: OpForm) -> tuple[int, ...]:
    """Return the domain dimensions of more than one point in the order operand 0 stores them."""
    held = form.operands[0].dims if form.operands else ()
    rest = [d for d in range(len(form.dims)) if d not in held]
    return tuple(d for d in (*rest, *held) if form.dims[d].size > 1)


def _is_innermost_reduced(form: OpForm, order: tuple[int, ...]) -> bool:
    """Return whether every result's partials lie next to each other."""
    reduced = [form.dims[d].is_reduced for d in order]
    return reduced == sorted(reduced)


def _is_strided(form: OpForm, order: tuple[int, ...]) -> bool:
    """Return whether a kept dimension is innermost and the reduced ones lie together."""
    reduced = [form.dims[d].is_reduced for d in order]
    changes = sum(a != b for a, b in itertools.pairwise(reduced))
    return not reduced[-1] and changes <= 2


def contiguous_slots(outputs: Amount, partials: Amount, width: int, out_dtype: str, target: Target) -> Amount:
    """Return the slots with contiguous partials: workers take whole results, or share the partials of few results.

    Sharing leaves one partial per worker, folded by a second short reduction; ``width`` elements are folded at once.
    """
    workers = target.workers_per_tile
    cast = 5 if out_dtype == "float16" else 0
    single = 3 + 6 + -(-partials // width) + 5 + 3 + cast
    many = 17 + -(-outputs // workers) * (12 + -(-partials // width))
    whole = where(outputs == 1, single, many)
    sharers = np.maximum(workers // np.maximum(outputs, 1), 1)
    parts = -(-partials // sharers)
    shared = 17 + 12 + -(-parts // width) + 17 + outputs * (12 + -(-sharers // width))
    return where(sharers > 1, np.minimum(whole, shared), whole)


def _strided(
    order: tuple[int, ...], outputs: Amount, partials: Amount, width: int, extents: Extents, target: Target
) -> Amount:
    """Slots with a kept dimension innermost: one vector of neighbouring results at a time."""
    inner: list[int] = []
    for d in reversed(order):
        if extents.form.dims[d].is_reduced:
            break
        inner.append(d)
    columns = extents.product(inner)
    vectors = outputs // np.maximum(columns, 1) * -(-columns // width)
    post = 8 if width == 4 else 5
    groups = -(-vectors // target.workers_per_tile)
    return 16 + groups * (3 + post + 3 + np.maximum(partials - 1, 0))


def _general(outputs: Amount, partials: Amount, width: int, target: Target) -> Amount:
    """Slots of the region form: a loop over vectors of results and over the regions of each."""
    vectors = -(-outputs // width)
    groups = -(-vectors // target.workers_per_tile)
    return 33 + groups * (24 + 2 + 9 + 10 + 9 * partials)


def _scalar(outputs: Amount, partials: Amount, dtype: str, target: Target) -> Amount:
    """Slots of dtypes without assembly (ASSUMED): 8 per partial, 64-bit ones twice that, floats emulated."""
    each = {1: 8, 2: 8, 4: 8, 8: 16}[itemsize(dtype)] * (4 if dtype == "float64" else 1)
    workers = target.workers_per_tile
    whole = -(-outputs // workers) * (12 + each * partials)
    sharers = np.maximum(workers // np.maximum(outputs, 1), 1)
    shared = 12 + each * -(-partials // sharers) + 17 + outputs * (12 + each * sharers)
    return 33 + where(sharers > 1, np.minimum(whole, shared), whole)
