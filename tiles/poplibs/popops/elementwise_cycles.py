"""Cycles of an elementwise vertex: PopLibs' exact forms for single functions, a stated reading for fusions.

A vertex is a supervisor part and six workers that share the elements; the slowest worker takes
``ceil(n / 6)``. One function on a tensor, two tensors, a tensor and a scalar or a vector, casts, fills and
selects follow the PopLibs estimators. What those state nothing of, fused expressions and unusual types, costs what
its tile code does (basis DERIVED). Where there is no code, a fused expression is read as: load each operand once,
run the arithmetic of every function, store the results once (basis ASSUMED).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tiles.errors import NoTileCode, OutOfRegisters
from tiles.graph import Cycles, Extents, OpForm, code_or_formula
from tiles.numerics.arrays import where
from tiles.numerics.dtypes import is_integer, itemsize, to_jax
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.expression import FUNCTIONS, NAMED, Body, Row, body_dtypes
from tiles.poplibs.popops.inner_loops import INVERSE, SOURCE, Loop, derived_loop, library_rows, loop_of
from tiles.poplibs.popops.map_code import expression_code
from tiles.poplibs.popops.relayout_cycles import movement, movement_cycles
from tiles.poplibs.popops.scaled_add import is_scaled_add, scaled_add_cycles
from tiles.target import Basis, Target

_CPP_NAMES = {"float32": "float", "float16": "half", "int32": "int", "uint32": "unsigned int", "bool": "bool"}
_COMPARISONS = {
    "EQ": "EQUAL",
    "NE": "NOT_EQUAL",
    "LT": "LESS_THAN",
    "LE": "LESS_THAN_EQUAL",
    "GT": "GREATER_THAN",
    "GE": "GREATER_THAN_EQUAL",
}
_POPNN = {
    "relu": "RELU",
    "tanh": "TANH",
    "sigmoid": "SIGMOID",
    "silu": "SWISH",
    "gelu": "GELU",
    "gelu_erf": "GELU_ERF",
}
_FUSED_FRAME = 26  # the worker prologue of PopLibs' binary vertices
BRANCH_SLOTS = 1
"""What an iteration of a loop compiled from C++ ends with: a branch that counts down (brnzdec) in place of a repeat block."""
MERGED_STORE_SLOTS = 3
"""A store of less than a word: a load of the word, a merge, a store of 32 bits (there is no narrower one)."""


def cpp_name(dtype: str) -> str:
    """Return a dtype as vertex names spell it."""
    return _CPP_NAMES.get(dtype, dtype)


def vertex_name(body: Body, outputs: tuple[int, ...], operand_dtypes: tuple[str, ...]) -> str:
    """Return the vertex type of an expression, as PopLibs spells it."""
    dtypes = body_dtypes(body, operand_dtypes)
    work = _work_rows(body, outputs, len(operand_dtypes))
    out = cpp_name(dtypes[outputs[0]]) if outputs else ""
    if not work:
        return f"popops::Copy<{out}>"
    if len(work) > 1 or len(outputs) > 1:
        names = ",".join(dict.fromkeys(_spelled(body[i]) for i in work))
        return f"popops::Expression<{names},{out}>"
    name, arguments, _ = body[work[0]]
    taken = [cpp_name(dtypes[a]) for a in arguments]
    if name in ("constant", "iota"):
        return f"popops::{'Fill' if name == 'constant' else 'Iota'}<{out}>"
    if name in ("convert", "bitcast_convert"):
        return f"popops::{'Cast' if name == 'convert' else 'Bitcast'}<{taken[0]},{out}>"
    if name in ("select", "clamp"):
        return f"popops::{name.capitalize()}<{out}>"
    if name in NAMED:
        return f"popnn::{_spelled(body[work[0]])}<{out}>"
    arity = "UnaryOp" if len(arguments) == 1 else "BinaryOp"
    return f"popops::{arity}<{_spelled(body[work[0]])},{taken[0]}>"


def _spelled(row: Row) -> str:
    name, _, attrs = row
    if name in NAMED:
        kind, is_gradient = dict(attrs)["kind"].removeprefix("popnn."), name.endswith("gradient")
        return f"NonLinearity{'Grad' if is_gradient else ''}{_POPNN[kind.removesuffix('_gradient')]}"
    return _COMPARISONS[dict(attrs)["direction"]] if name == "compare" else FUNCTIONS[name].poplibs


def _work_rows(body: Body, outputs: tuple[int, ...], num_operands: int) -> list[int]:
    """Return the rows that cost something: constants that other rows take are immediates."""
    return [i for i, row in enumerate(body) if row[0] != "constant" or num_operands + i in outputs]


@lru_cache(maxsize=4096)
def dims_of_values(body: Body, form: OpForm) -> tuple[frozenset[int], ...]:
    """Return for every operand and row the domain dimensions (of more than one point) that it varies with."""
    long = {d for d, dim in enumerate(form.dims) if dim.size > 1}
    varies = [frozenset(long.intersection(index_map.dims)) for index_map in form.operands]
    for name, arguments, attrs in body:
        own = long.intersection([dict(attrs)["dim"]]) if name == "iota" else ()
        varies.append(frozenset(own).union(*(varies[a] for a in arguments)))
    return tuple(varies)


def map_cycles(body: Body, outputs: tuple[int, ...], extents: Extents, target: Target) -> Cycles:
    """Return the duration of an elementwise vertex, vectorized over ``extents``."""
    num_operands = len(extents.operand_dtypes)
    work = _work_rows(body, outputs, num_operands)
    moved = _permuted_operands(body, outputs, extents, target)
    if not work:
        return moved or movement_cycles(extents.form, outputs[0], extents, target)
    is_single = len(work) == 1 and len(outputs) == 1 and outputs[0] == num_operands + work[0]
    if is_single and not _is_compiled(target):
        cycles = _single(body, work[0], extents, target)
    else:
        cycles = _fused(body, work, outputs, extents, target)
    if is_single and _is_dear(body, work[0], cycles, extents, target):
        cycles = _or_code(body, outputs, extents, target, cycles)
    cycles = _from_code(body, outputs, extents, target, cycles)
    if moved is None:
        return cycles
    bases = (cycles.basis, moved.basis)
    return Cycles(cycles.value + moved.value, Basis.weakest(bases), f"{cycles.source}; {moved.source}")


def _from_code(
    body: Body, outputs: tuple[int, ...], extents: Extents, target: Target, stated: Cycles
) -> Cycles:
    """Return what PopLibs states; where it states nothing, the cycles of the vertex' tile code.

    Functions of the C library keep their figure in an expression, code of ours for them is far shorter: the code is that
    of what stands around them.
    """
    if stated.basis is not Basis.ASSUMED:
        return stated
    calls = library_rows(body, extents.operand_dtypes)
    rest, ends = _without(body, outputs, calls, extents.operand_dtypes)
    try:
        parts = expression_code(
            rest, ends, extents, target, vertex_name(body, outputs, extents.operand_dtypes)
        )
    except (NoTileCode, OutOfRegisters):
        return stated
    if not calls:
        return code_or_formula(parts, stated)
    dtypes = body_dtypes(body, extents.operand_dtypes)
    loops = [loop_of(body[i][0], dict(body[i][2]), dtypes[body[i][1][-1]]) for i in calls]
    called = target.worker_issue_interval_cycles * body_slots(body, calls, extents, target)
    around = code_or_formula(parts, Cycles(stated.value - called, Basis.ASSUMED, stated.source))
    basis = Basis.weakest([around.basis, *(loop.basis for loop in loops)])
    return Cycles(around.value + called, basis, f"{loops[0].source}; around it {around.source}")


DEAR = 2
"""How many times as long as the loop over two whole tensors one over rows takes where it is asked whether code is quicker."""


def _is_dear(body: Body, index: int, stated: Cycles, extents: Extents, target: Target) -> bool:
    """Return whether code of ours may be much quicker than PopLibs' vertex of a function, so that it is asked for.

    Vertices of a tensor and a row, or a value for each row, spend much on every row, and on every element of one row: code is
    asked for where they take ``DEAR`` times as long as that of two tensors. A boolean's opposite takes booleans one by one, as a
    float's size does floats, and divisions of integers call a function for each.
    """
    name, arguments, attrs = body[index]
    dtype = body_dtypes(body, extents.operand_dtypes)[arguments[0]] if arguments else ""
    if (name == "not" and dtype == "bool") or (name == "abs" and dtype in ("float16", "float32")):
        return stated.basis is not Basis.ASSUMED and not _is_compiled(target)
    if len(arguments) != 2 or stated.basis is Basis.ASSUMED or _is_compiled(target):
        return False
    if name in ("divide", "remainder") and is_integer(to_jax(extents.result_dtypes[0])):
        return True
    varies = dims_of_values(body, extents.form)
    sizes = {len(varies[a]) for a in arguments}
    if len(sizes) == 1 or 0 in sizes:
        return False
    dtype = body_dtypes(body, extents.operand_dtypes)[arguments[0]]
    loop = loop_of(name, dict(attrs), dtype).total(_share(extents.results, target), dtype, target)
    whole = target.supervisor_vertex_overhead_cycles + target.worker_issue_interval_cycles * (29 + loop)
    return bool(np.any(np.asarray(stated.value) > DEAR * whole))


def _or_code(
    body: Body, outputs: tuple[int, ...], extents: Extents, target: Target, stated: Cycles
) -> Cycles:
    """Return the cycles of PopLibs' vertex, or of the expression's code where that takes fewer."""
    name = vertex_name(body, outputs, extents.operand_dtypes)
    try:
        found = code_or_formula(expression_code(body, outputs, extents, target, name), stated)
    except (NoTileCode, OutOfRegisters):
        return stated
    basis = Basis.weakest((stated.basis, found.basis))
    value = np.minimum(stated.value, found.value)
    return Cycles(value, basis, f"{stated.source}; {found.source}") if basis is not Basis.ASSUMED else stated


def _without(
    body: Body, outputs: tuple[int, ...], calls: Sequence[int], operand_dtypes: tuple[str, ...]
) -> tuple[Body, tuple[int, ...]]:
    """Return an expression whose rows ``calls`` are left out: the value of each is its operand's, of two their product.

    Operands of another dtype than the row's, as of an activation whose result is wider, are converted.
    """
    dtypes = body_dtypes(body, operand_dtypes)
    operands = len(operand_dtypes)
    places, rows = list(range(operands)), list[Row]()

    def add(row: Row) -> int:
        rows.append(row)
        return operands + len(rows) - 1

    for i, (name, arguments, attrs) in enumerate(body):
        if i not in calls:
            places.append(add((name, tuple(places[a] for a in arguments), attrs)))
            continue
        dtype = dtypes[operands + i]
        taken = tuple(
            places[a] if dtypes[a] == dtype else add(("convert", (places[a],), (("dtype", dtype),)))
            for a in arguments
        )
        places.append(taken[0] if len(taken) == 1 else add(("multiply", taken, ())))
    return tuple(rows), tuple(places[i] for i in outputs)


def _permuted_operands(
    body: Body, outputs: tuple[int, ...], extents: Extents, target: Target
) -> Cycles | None:
    """Return the cycles of bringing operands stored in another order into the results' order."""
    total: Amount = 0
    bases: list[Basis] = []
    sources: list[str] = []
    for k in range(len(extents.operand_dtypes)):
        if movement(extents.form, k).kind in ("transpose", "gather"):
            cycles = movement_cycles(extents.form, k, extents, target)
            total = total + cycles.value
            bases.append(cycles.basis)
            sources.append(cycles.source)
    return Cycles(total, Basis.weakest(bases), sources[0]) if bases else None


def _is_constant(body: Body, index: int) -> bool:
    """Return whether a row is a constant; negative numbers are operands."""
    return index >= 0 and body[index][0] == "constant"


def _share(n: Amount, target: Target) -> Amount:
    """Return the elements of the slowest worker."""
    return -(-np.asarray(n) // target.workers_per_tile)


def _single(body: Body, index: int, extents: Extents, target: Target) -> Cycles:
    """Return the PopLibs estimate of one function."""
    name, arguments, attrs = body[index]
    given = dict(attrs)
    dtypes = body_dtypes(body, extents.operand_dtypes)
    n = _share(extents.results, target)
    out = dtypes[len(extents.operand_dtypes) + index]
    is_fill = name == "bitcast_convert" and _is_constant(body, arguments[0] - len(extents.operand_dtypes))
    if name == "constant" or is_fill:
        return _workers(0, fill_slots(n, out, target), target, Basis.DOCUMENTED)
    if name == "iota":
        slots = 10 + 4 + 3 * -(-n // target.vector_width(out))
        return _workers(0, slots, target, Basis.DOCUMENTED)
    if name == "convert":
        loop = loop_of(name, given, dtypes[arguments[0]])
        core = 19 + loop.total(n, out, target) + 2
        return _workers(12, 18 + core, target, loop.basis)
    if name == "bitcast_convert":
        return movement_cycles(extents.form, arguments[0], extents, target)
    if name == "select":
        return _select(body, index, n, out, extents, target)
    if name == "clamp":
        loop = loop_of(name, given, out)
        return _workers(0, 5 + 6 + loop.total(n, out, target), target, loop.basis)
    if name in NAMED:
        return _named(name, given, dtypes[arguments[0]], n, target)
    if len(arguments) == 1:
        loop = loop_of(name, given, dtypes[arguments[0]])
        frame = 33 if name == "exponential" else 17
        supervisor = target.supervisor_vertex_overhead_cycles + 9
        slots = frame + loop.total(n, dtypes[arguments[0]], target)
        return Cycles(_workers(supervisor, slots, target, loop.basis).value, loop.basis, loop.source)
    return _binary(body, index, extents, target)


def _named(name: str, attrs: dict[str, Any], dtype: str, n: Amount, target: Target) -> Cycles:
    """Return the cycles of popnn's non-linearity vertices: the first element on its own, then whole vectors.

    Source: graphcore/poplibs lib/popnn/PerformanceEstimation.hpp.
    """
    loop = loop_of(name, attrs, dtype)
    frame = 20 + 5 if name.endswith("gradient") else 22 + 3 + loop.slots
    cycles = _workers(9, frame + loop.total(n, dtype, target), target, loop.basis)
    return Cycles(cycles.value, loop.basis, loop.source)


def _workers(supervisor: Amount, slots: Amount, target: Target, basis: Basis) -> Cycles:
    """Return supervisor cycles and the slots of the slowest worker as one duration."""
    return Cycles(supervisor + target.worker_issue_interval_cycles * np.asarray(slots), basis, SOURCE)


def fill_slots(n: Amount, dtype: str, target: Target) -> Amount:
    """Return the slots in which one worker fills ``n`` elements."""
    size = itemsize(dtype)
    if size == 8:
        return 5 + n
    if size == 4:
        return 23 + -(-n // 2)
    if size == 2:
        return np.where(n <= 1, 15, np.where(n == 2, 21, 26 + -(-n // 4)))
    return where(n < 64, 28 + -(-n // 4), 39 + -(-n // 8))


def _select(body: Body, index: int, n: Amount, dtype: str, extents: Extents, target: Target) -> Cycles:
    """Return the cycles of a select; with one predicate for all it is a copy of one of two tensors."""
    varies = dims_of_values(body, extents.form)
    if varies[body[index][1][0]]:
        loop = loop_of("select", {}, dtype)
        return _workers(0, 5 + 6 + loop.total(n, dtype, target), target, loop.basis)
    size = itemsize(dtype)
    each = {1: 66 + -(-17 * n // 4), 2: 30 + 4 * n, 4: 10 + 5 + 4 * n + 3, 8: 10 + 5 + 8 * n + 3}[size]
    return _workers(0, each, target, Basis.ASSUMED if size == 8 else Basis.DOCUMENTED)


def _binary(body: Body, index: int, extents: Extents, target: Target) -> Cycles:
    """Return the cycles of a function of two operands, by how the smaller one is broadcast."""
    cycles = _binary_loops(body, index, extents, target)
    if body[index][0] != "divide_by_inverse":
        return cycles
    dtype = body_dtypes(body, extents.operand_dtypes)[body[index][1][1]]
    divisors = extents.product(sorted(dims_of_values(body, extents.form)[body[index][1][1]]))
    loop = INVERSE[dtype] if dtype in INVERSE else derived_loop(INVERSE, dtype)
    inverse = _workers(20, 17 + loop.total(_share(divisors, target), dtype, target), target, loop.basis)
    return Cycles(cycles.value + inverse.value, Basis.weakest((cycles.basis, loop.basis)), cycles.source)


def _binary_loops(body: Body, index: int, extents: Extents, target: Target) -> Cycles:
    """Return the cycles of the loops over all elements."""
    name, arguments, attrs = body[index]
    dtype = body_dtypes(body, extents.operand_dtypes)[arguments[0]]
    varies = dims_of_values(body, extents.form)
    order = [d for d in extents.form.results[0].dims if extents.form.dims[d].size > 1]
    whole = frozenset(order)
    lhs, rhs = (varies[a] for a in arguments)
    supervisor = target.supervisor_vertex_overhead_cycles
    n = _share(extents.results, target)
    small = rhs if lhs == whole else lhs if rhs == whole else None
    if small == whole:
        loop = loop_of(name, dict(attrs), dtype)
        frame = 29 if itemsize(dtype) == 4 else 26
        return _workers(supervisor, frame + loop.total(n, dtype, target), target, loop.basis)
    scalar = loop_of(name, dict(attrs), dtype, scalar=True)
    if small is not None and not small:
        return _workers(supervisor, 20 + scalar.total(n, dtype, target), target, scalar.basis)
    if small is not None and small == frozenset(order[: len(small)]):
        return _vector_outer(scalar, order, len(small), dtype, extents, target)
    if small is not None and small == frozenset(order[len(order) - len(small) :]):
        return _vector_inner(name, dict(attrs), order, len(order) - len(small), dtype, extents, target)
    return _fused(body, [index], (len(extents.operand_dtypes) + index,), extents, target)


def _vector_outer(
    scalar: Loop, order: list[int], cut: int, dtype: str, extents: Extents, target: Target
) -> Cycles:
    """One value of the small operand for every row: workers share rows or columns, whichever is faster."""
    rows, columns = extents.product(order[:cut]), extents.product(order[cut:])
    aligned = np.where(columns % target.vector_width(dtype) == 0, 7, 25)
    by_row = _share(rows, target) * (aligned + scalar.total(columns, dtype, target))
    by_column = rows * (aligned + scalar.total(_share(columns, target), dtype, target))
    supervisor = target.supervisor_vertex_overhead_cycles
    return _workers(supervisor, 15 + np.minimum(by_row, by_column), target, scalar.basis)


def _vector_inner(
    name: str, attrs: dict[str, Any], order: list[int], cut: int, dtype: str, extents: Extents, target: Target
) -> Cycles:
    """The small operand is a row added to every row: a bias.

    Float add, subtract and multiply have a vertex of their own, which goes through the rows element by element; other
    functions take the rows one by one through the tensor-tensor loop (ASSUMED). So do these where that takes less, as of few
    long rows: a vertex of two dimensions whose second operand is the same row each time, ``5 + sum(29 + loop)`` slots.
    """
    blocks, length = _share(extents.product(order[:cut]), target), extents.product(order[cut:])
    if name in ("add", "subtract", "multiply") and dtype in ("float32", "float16"):
        if dtype == "float32":
            core = 1 + 5 + length * (3 + 2 * blocks + 5) + 1
        else:
            vectors = -(-length // 8) * (8 + 2 * np.maximum(blocks - 1, 0) + 7) + 10
            core = where(length % 8 == 0, vectors, 9 * length * blocks)
        loop, rows = loop_of(name, attrs, dtype), extents.product(order[:cut])
        share = _share(rows * length, target)
        pieces = np.minimum(_share(rows, target) + (rows % target.workers_per_tile > 0), rows)
        by_rows = 5 + 29 * pieces + loop.total(share, dtype, target)
        return _workers(13, np.minimum(26 + 17 + core, by_rows), target, Basis.DOCUMENTED)
    loop = loop_of(name, attrs, dtype)
    slots = 29 + blocks * (7 + loop.total(length, dtype, target))
    return _workers(target.supervisor_vertex_overhead_cycles, slots, target, Basis.ASSUMED)


def _fused(body: Body, work: list[int], outputs: tuple[int, ...], extents: Extents, target: Target) -> Cycles:
    """Return the cycles of a fused expression: loads, the arithmetic of every function, stores.

    A tensor plus a scaled one has a vertex of its own.
    """
    dtypes = body_dtypes(body, extents.operand_dtypes)
    if not _is_compiled(target) and is_scaled_add(
        body, work, outputs, dtypes, dims_of_values(body, extents.form)
    ):
        n = _share(extents.results, target)
        return scaled_add_cycles(n, dtypes[outputs[0]], body[work[1]][0] == "subtract", target)
    frame = np.asarray(_FUSED_FRAME + 4 * (len(extents.operand_dtypes) + len(outputs)))
    slots = frame + load_slots(body, extents, target) + body_slots(body, work, extents, target)
    n = _share(extents.results, target)
    for dtype in extents.result_dtypes:
        slots = slots + -(-n * itemsize(dtype) // target.data_path_bytes) * _store_slots(target)
    if _is_compiled(target) and extents.result_dtypes:
        slots = slots + -(-n * itemsize(extents.result_dtypes[0]) // target.data_path_bytes) * BRANCH_SLOTS
    return _workers(target.supervisor_vertex_overhead_cycles, slots, target, Basis.ASSUMED)


def _is_compiled(target: Target) -> bool:
    """Return whether a machine stands for code compiled from C++: none of PopLibs' loops, which make several accesses at once."""
    return target.max_accesses_per_instruction == 1


def _store_slots(target: Target) -> int:
    """Return the slots of a store: what is narrower than a word is read, merged and stored."""
    return 1 if target.data_path_bytes >= target.atomic_store_bytes else MERGED_STORE_SLOTS


def load_slots(body: Body, extents: Extents, target: Target) -> Amount:
    """Return the slots in which one worker loads its share of the operands an expression uses.

    One access per 64 bits of what varies along the innermost dimension, one per row of what does not.
    """
    varies = dims_of_values((), extents.form)
    domain = [d for d, dim in enumerate(extents.form.dims) if dim.size > 1]
    innermost = _innermost(extents.form)
    used = {a for _, arguments, _ in body for a in arguments}
    total: Amount = 0
    for k, dtype in enumerate(extents.operand_dtypes):
        if k not in used or not varies[k]:
            continue
        if innermost in varies[k]:
            total = total + -(
                -_share(extents.product(domain), target) * itemsize(dtype) // target.data_path_bytes
            )
        else:
            total = total + _share(extents.product([d for d in domain if d != innermost]), target)
    return total


def _innermost(form: OpForm) -> int | None:
    """Return the domain dimension along which the workers' inner loop runs."""
    long = [d for d in form.results[0].dims if form.dims[d].size > 1] if form.results else []
    reduced = [d for d in form.reduced if form.dims[d].size > 1]
    return reduced[-1] if reduced else long[-1] if long else None


def body_slots(body: Body, work: list[int], extents: Extents, target: Target) -> Amount:
    """Return the slots of an expression's arithmetic on one worker's share, without loads and stores."""
    dtypes = body_dtypes(body, extents.operand_dtypes)
    varies = dims_of_values(body, extents.form)
    first = len(extents.operand_dtypes)
    total: Amount = 0
    for i in work:
        name, arguments, attrs = body[i]
        n = _share(extents.product(sorted(varies[first + i])), target)
        kind = dtypes[arguments[-1]] if arguments else dtypes[first + i]
        scalar = len(arguments) == 2 and not varies[arguments[1]]
        total = total + loop_of(name, dict(attrs), kind, scalar).inner(n, kind, target)
    return total
