"""StableHLO operations that are read as others, or as nothing: one machine, no tokens, shapes known.

Each reader of ``LEGALIZED`` is handed a scope to emit into, the MLIR operation and its operands (values, or
nested lists of them for tuples; a token is an empty list), and returns the operation's results.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import dataclasses
import functools
import string
from collections.abc import Callable, Sequence
from typing import Protocol

import jax
from jax import lax

from hlo_passes import ops
from hlo_passes.ir import Builder, Computation, Location, Op, TensorType, Value
from ipuxla._jax_compat import Function
from ipuxla.errors import InvalidCodelet
from ipuxla.frontend import checks, collectives, printing
from ipuxla.frontend._jax_compat import LU_COMPOSITE, QR_COMPOSITE, mlir, mlir_ir
from ipuxla.frontend.attributes import integer, text
from ipuxla.frontend.library_calls import Options, routine_of
from ipuxla.frontend.nested import Operand, plain
from tiles.graph import read_message


class Scope(collectives.Scope, Protocol):
    """Where operations are read to."""

    def emit_all(
        self, op: Op, operands: Sequence[Value], location: Location, regions: Sequence[Computation] = ()
    ) -> tuple[Value, ...]:
        """Append an operation with any number of results."""
        ...

    def function(self, name: str, location: Location) -> Computation:
        """Return a function of the module, to be a region."""
        ...

    def traced(
        self,
        function: Function,
        operands: Sequence[Value],
        types: Sequence[TensorType],
        location: Location,
    ) -> Sequence[Value]:
        """Append what a JAX function does to arrays; its results have these types."""
        ...


Reader = Callable[[Scope, mlir.Operation, Sequence[Operand], Location], Sequence[Operand]]

MARKERS = frozenset(
    {
        *("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint"),
        *(
            "annotate_device_placement",
            "MoveToHost",
            "MoveToDevice",
            "PipelineStageStart",
            "PipelineStageEnd",
        ),
        *("xla.sdy.FuncResultSharding", "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"),
    }
)
"""Custom calls that return their operands and tell other compilers where to put them."""
CODELET = "ipuxla.codelet"
"""The custom call of a user's codelet."""


def _custom_call(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    """Read a call; one that came back from XLA has its results as one tuple."""
    made = _called(scope, op, operands, location)
    is_tuple = len(op.results) == 1 and isinstance(op.results[0].type, mlir_ir.TupleType)
    return [list(made)] if is_tuple else made


def _called(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    target = text(op, "call_target_name")
    if target in ("shape_assertion", "xla.sdy.ShardingGroup") and not len(op.results):
        return []  # jax.export's check of what is static here; which values are to lie alike
    if target == printing.TARGET and not len(op.results):
        return _print(scope, op, operands, location)
    if target == checks.TARGET and len(operands) <= 1:
        return _stop(scope, op, operands, location)
    types = [operand.type for operand in operands if isinstance(operand, Value)]
    if target in MARKERS and types == scope.result_types(op, location):
        return operands
    if target in SELECTIONS:
        return SELECTIONS[target](scope, op, operands, location)
    if target == CODELET:
        return _codelet(scope, op, operands, location)
    routine = routine_of(target)
    if routine is not None:
        types = scope.result_types(op, location)
        try:
            called = functools.partial(routine, _options(op), types)
            return scope.traced(called, plain(operands), types, location)
        except (TypeError, ValueError, LookupError) as error:
            hint = f"operands, options and results as JAX writes them: {str(error).partition(chr(10))[0]}"
            raise scope.unsupported(op, location, hint) from None
    raise scope.unsupported(op, location, "call no library routine or host callback inside the function")


def _composite(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    """Read one of the composites that are not calls of what they are made of: factorizations."""
    made = {LU_COMPOSITE: ops.Lu(), QR_COMPOSITE: ops.Qr()}[text(op, "name")]
    types = [operand.type for operand in operands if isinstance(operand, Value)]
    if len(types) != len(operands) or scope.result_types(op, location) != list(made.infer(*types)):
        raise scope.unsupported(op, location, f"operands and results of {made.name}")
    return scope.emit_all(made, plain(operands), location)


def _codelet(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    """A user's codelet; see ``codelet_call``, which writes such calls."""
    options = _options(op)
    try:
        (called,) = op.attributes["called_computations"]
        parts, tiles = (tuple(map(int, filter(None, options[key].split(",")))) for key in ("parts", "tiles"))
        made = ops.CodeletCall(
            options["label"], options["form"], options["combiner"], int(options["cycles"]), parts, tiles
        )
    except (KeyError, ValueError, AttributeError):
        raise scope.unsupported(op, location, "options as ipuxla.codelet writes them") from None
    function = scope.function(called.value, location)
    if function.has_effect:
        raise InvalidCodelet(
            f"codelet {made.label} exchanges items with the host or with other devices",
            location=str(location),
            expected="a function of what one point reads",
            try_="print or check outside of it",
        )
    return scope.emit_all(made, plain(operands), location, [function])


def _print(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    """What ``jax.debug.print`` shows, in the order of the program."""
    message = text(op, "backend_config")
    try:
        known = read_message(message)
    except (ValueError, RecursionError) as error:
        raise scope.unsupported(op, location, f"a message as its configuration: {error}") from None
    count = known.count if known.dtypes else 0
    values = [operand for operand in operands if isinstance(operand, Value)]
    if not count == len(operands) == len(values):
        raise scope.unsupported(op, location, f"{count} operands, as its message says")
    scope.emit_all(ops.Print(message), values, location)
    return []


def _stop(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    """A run-time check that failed, or, without an operand, what only follows one; what they return is never read."""
    types = scope.result_types(op, location)
    if operands:
        stop = operands[0]
        if not isinstance(stop, Value) or stop.type.is_complex:
            raise scope.unsupported(op, location, "one operand, which is not complex")
        scope.emit_all(ops.Stop(text(op, "backend_config")), [stop], location)
    return [scope.emit(ops.Constant.splat(0, type_), (), location) for type_ in types]


def _options(op: mlir.Operation) -> Options:
    """Return what a custom call's configuration says; a text that is no dictionary under the empty name."""
    named = [op.attributes[n] for n in ("mhlo.backend_config", "backend_config") if n in op.attributes]
    for found in named:
        if isinstance(found, mlir_ir.DictAttr):
            return {entry.name: mlir.value_of(entry.attr) for entry in mlir.entries(found)}
    texts = [found.value for found in named if isinstance(found, mlir_ir.StringAttr)]
    return {"": texts[0]} if texts else {}


# ---- selections that have no operation of their own in StableHLO


def _top_k(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    """The first elements of rows in total order, as CHLO's operation of that name; k is known from the results."""
    operand, *_ = plain(operands)
    values, _ = scope.result_types(op, location)
    options = op.attributes["mhlo.attributes"] if "mhlo.attributes" in op.attributes else op.attributes
    is_descending = "largest" not in options or bool(options["largest"].value)
    dimension = operand.type.rank - 1
    selected = ops.TopK(values.shape[dimension], dimension, is_descending)
    return scope.emit_all(selected, [operand], location)


def _approximate_top_k(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    """Nothing is missed here: rows are sorted by the comparing function, and as many taken as are asked for.

    Equal elements come in order of their positions. Floats that are compared by < or > alone are taken in total
    order, as by XLA's own selection; its sort, which it falls back on, leaves open what stands where among equals.
    """
    named = [op.attributes[n] for n in ("mhlo.backend_config", "backend_config") if n in op.attributes]
    found = [options for options in named if isinstance(options, mlir_ir.DictAttr)]
    if not found or "reduction_dim" not in found[0]:
        raise scope.unsupported(op, location, "a backend_config that names its reduction_dim")
    comparator = _in_total_order(scope.function(op.attributes["called_computations"][0].value, location))
    sort = ops.Sort(mlir.value_of(found[0]["reduction_dim"]), True)
    ordered = scope.emit_all(sort, plain(operands[: len(operands) // 2]), location, [comparator])
    return [
        scope.emit(ops.Slice((0,) * type_.rank, type_.shape, (1,) * type_.rank), [value], location)
        for value, type_ in zip(ordered, scope.result_types(op, location), strict=True)
    ]


def _in_total_order(comparator: Computation) -> Computation:
    """Return a comparator of one comparison of floats as one in total order; any other as it is."""
    keys = ops.sort_keys(comparator)
    if keys is None or len(keys) != 1 or not comparator.parameters[2 * keys[0].operand].type.is_float:
        return comparator
    made = tuple(
        dataclasses.replace(i, op=ops.Compare(i.op.direction, "TOTALORDER"))
        if isinstance(i.op, ops.Compare)
        else i
        for i in comparator.instructions
    )
    is_plain = len(made) == 1
    return dataclasses.replace(comparator, instructions=made) if is_plain else comparator


SELECTIONS: dict[str, Reader] = {
    "mhlo.topk": _top_k,
    "TopK": _top_k,
    "stablehlo.dynamic_top_k": _top_k,
    "ApproxTopK": _approximate_top_k,
}
"""Custom calls by which XLA's frontends ask for the greatest elements of rows."""


def _unchanged(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    return operands


def _token(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> list[Operand]:
    return [[]]


def _tuple(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> list[Operand]:
    return [list(operands)]


def _tuple_element(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    (elements,) = operands
    assert isinstance(elements, list), op
    return [elements[integer(op, "index")]]


def _erf(x: jax.Array) -> tuple[jax.Array]:
    return (lax.erf(x),)


def _error_function(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    """XLA's own operation, written as JAX's of that name is."""
    types = scope.result_types(op, location)
    return scope.traced(_erf, plain(operands), types, location)


def _dimension_size(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    (type_,) = scope.result_types(op, location)
    (operand,) = plain(operands)
    size = operand.type.shape[integer(op, "dimension")]
    return [scope.emit(ops.Constant.splat(size, type_), (), location)]


# ---- operations that StableHLO keeps for old programs


def _torch_index_select(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    """Rows of the operand along ``dim``, by a gather whose leading dimensions go together."""
    operand, index = plain(operands)
    axis, batch = integer(op, "dim"), integer(op, "batch_dims")
    added = index.type.rank - batch
    rank = operand.type.rank
    numbers = ops.GatherDimensionNumbers(
        offset_dims=(*range(batch, axis), *range(axis + added, rank - 1 + added)),
        collapsed_slice_dims=(axis,),
        operand_batching_dims=tuple(range(batch)),
        start_indices_batching_dims=tuple(range(batch)),
        start_index_map=(axis,),
        index_vector_dim=index.type.rank,
    )
    sizes = tuple(1 if d == axis or d < batch else n for d, n in enumerate(operand.type.shape))
    return [scope.emit(ops.Gather(numbers, sizes, False), [operand, index], location)]


def _einsum(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    """A contraction: indices of one operand alone that the result lacks are summed first."""
    config = text(op, "einsum_config")
    inputs, _, output = config.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) == 1:
        terms = ["", *terms]
    terms = [_spelled(term, value.type.rank) for term, value in zip(terms, plain(operands), strict=True)]
    output = _spelled(output, scope.result_types(op, location)[0].rank)
    if any(len(set(term)) != len(term) for term in (*terms, output)):
        raise scope.unsupported(op, location, f"an einsum that takes no diagonal, unlike {config!r}")
    values: list[Value] = []
    for number, (term, value) in enumerate(zip(terms, plain(operands), strict=True)):
        kept = "".join(i for i in term if i in output or i in terms[1 - number])
        values.append(_summed(scope, value, [term.index(i) for i in term if i not in kept], location))
        terms[number] = kept
    lhs, rhs = terms
    batch = [i for i in lhs if i in rhs and i in output]
    contracted = [i for i in lhs if i in rhs and i not in output]
    numbers = ops.DotDimensionNumbers(
        *(tuple(term.index(i) for i in batch) for term in terms),
        *(tuple(term.index(i) for i in contracted) for term in terms),
    )
    made = scope.emit(ops.DotGeneral(numbers, values[0].type.dtype), values, location)
    order = [*batch, *(i for i in lhs + rhs if i not in batch + contracted)]
    permutation = tuple(order.index(i) for i in output)
    return [scope.emit(ops.Transpose(permutation), [made], location)]


def _spelled(term: str, rank: int) -> str:
    """Return one letter per dimension; the last ones of an ellipsis are the same in every term."""
    missing = rank - len(term.replace("...", ""))
    return term.replace("...", string.punctuation[len(string.punctuation) - missing :] if missing else "")


def _summed(scope: Scope, value: Value, axes: Sequence[int], location: Location) -> Value:
    if not axes:
        return value
    scalar = value.type.with_shape(())
    body = Builder("add")
    x, y = body.parameter(scalar), body.parameter(scalar)
    region = body.build(body.add(ops.Add(), x, y))
    zero = scope.emit(ops.Constant.splat(0, scalar), (), location)
    return scope.emit(ops.Reduce(tuple(axes)), [value, zero], location, [region])


LEGALIZED: dict[str, Reader] = {
    **collectives.COLLECTIVES,
    "stablehlo.tuple": _tuple,
    "stablehlo.get_tuple_element": _tuple_element,
    "stablehlo.after_all": _token,
    "stablehlo.create_token": _token,
    "stablehlo.composite": _composite,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.get_dimension_size": _dimension_size,
    "sdy.sharding_constraint": _unchanged,
    "mhlo.copy": _unchanged,
    "mhlo.erf": _error_function,
    "mhlo.topk": _top_k,
    "stablehlo.torch_index_select": _torch_index_select,
    "stablehlo.einsum": _einsum,
}
