"""Exporting codelets: a user's codelet compiled for every cell that engines will call it with."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from tiles._jax_compat import Function
from tiles.codelets.calls import CompiledCall
from tiles.codelets.cells import CellCall, cell_calls, cell_sizes
from tiles.codelets.exported import ExportedCodelet, Figures, call_signature, exported_dtype
from tiles.codelets.modules import Module, compiled
from tiles.errors import InvalidGraph, IpuError, NoTileCode, OutOfRegisters, Unsupported
from tiles.graph.codelet import Cell, Codelet, Extents
from tiles.graph.domain import OpForm, Plan
from tiles.numerics.dtypes import to_jax
from tiles.numerics.ring import ring
from tiles.target import Target


def is_exported(codelet: Codelet) -> bool:
    """Return whether executables must carry a codelet, since it is not one of this package's own."""
    return type(codelet).__module__.partition(".")[0] != __name__.partition(".")[0]


@functools.lru_cache(maxsize=1024)
def export_codelet(
    codelet: Codelet,
    form: OpForm,
    plan: Plan,
    operands: tuple[str, ...],
    results: tuple[str, ...],
    target: Target,
) -> ExportedCodelet:
    """Compile a codelet for every cell of a planned operation, and note its figures.

    Args:
      codelet: anyone's.
      form: the operation.
      plan: how it is cut.
      operands: dtypes of the operands.
      results: dtypes of the results.
      target: the machine.

    Raises:
      InvalidGraph: the codelet fails, or gives results of other shapes or dtypes.
      Unsupported: it calls something that cannot be written as StableHLO.
    """
    sizes = list(dict.fromkeys([*cell_sizes(plan), tuple(form.shape)]))
    columns = tuple(np.array(column, np.int64) for column in zip(*sizes, strict=True))
    extents = Extents(form, columns, operands, results)
    cycles = codelet.cycles(extents, target)
    figures = [
        _whole_numbers(values, len(sizes))
        for values in (cycles.value, codelet.flops(extents), codelet.variant_scratch_bytes(extents, target))
    ]
    runs, no_code = _own_code(codelet, extents, target)
    return ExportedCodelet(
        name=codelet.name,
        version=codelet.version,
        shown=codelet.label,
        is_contraction=codelet.is_contraction,
        vectorizes_windows=codelet.vectorizes_windows,
        is_pointwise=codelet.is_pointwise,
        may_cut=tuple(d for d in range(len(form.dims)) if codelet.may_split(form, d)),
        overwrites=tuple(k for k in range(len(form.operands)) if codelet.may_overwrite(k)),
        state=int(codelet.state_bytes(form, target)),
        code=int(codelet.variant_bytes(extents, target)),
        basis=cycles.basis,
        source=cycles.source,
        figures=tuple(Figures(*row) for row in zip(sizes, *figures, strict=True)),
        calls=tuple(
            _compiled(codelet, form, call, operands, results) for call in cell_calls(codelet, form, plan)
        ),
        runs=runs,
        no_code=no_code,
    )


def _own_code(codelet: Codelet, extents: Extents, target: Target) -> tuple[Codelet | None, str]:
    """Return the codelet of this package whose code vertices run, and why they run none."""
    try:
        return codelet.own_code(extents, target), ""
    except (NoTileCode, OutOfRegisters) as error:
        return None, error.what


def _whole_numbers(values: Any, count: int) -> list[int]:
    """Return figures of every cell, rounded up."""
    return [int(n) for n in np.ceil(np.broadcast_to(np.asarray(values, np.float64), (count,)))]


def _compiled(
    codelet: Codelet, form: OpForm, call: CellCall, operands: tuple[str, ...], results: tuple[str, ...]
) -> CompiledCall:
    function = _function(codelet, form, call)
    arguments, expected = call_signature(form, call, operands, results)
    floats = _made(codelet, call, function, arguments)
    if (found := floats.signature[1]) != expected:
        raise InvalidGraph(
            f"codelet {codelet.name} gives results of other shapes or dtypes for cells of {call.sizes}",
            expected=expected,
            got=found,
        )
    dtypes = tuple(dtype for _, dtype in arguments)
    words = [(shape, exported_dtype(dtype, True)) for shape, dtype in arguments]
    try:
        return CompiledCall(call, floats, _made(codelet, call, ring(function, dtypes), words))
    except Unsupported:
        return CompiledCall(call, floats, None)


def _function(codelet: Codelet, form: OpForm, call: CellCall) -> Function:
    """Return the codelet as a function of what a call's arguments are."""

    def one(origin: jax.Array, *rest: jax.Array) -> tuple[jax.Array, ...]:
        limits: list[Any] = [None] * len(call.sizes)
        for position, d in enumerate(call.limited):
            limits[d] = rest[0][position]
        place = tuple(origin[d] for d in range(len(call.sizes)))
        cell = Cell(form, call.sizes, place, tuple(limits))
        return tuple(codelet.compute(cell, *rest[bool(call.limited) :]))

    function = one
    for _, varies in reversed(call.levels):
        function = jax.vmap(function, in_axes=tuple(0 if v else None for v in varies))
    return function


def _made(codelet: Codelet, call: CellCall, function: Function, arguments: Any) -> Module:
    types = [jax.ShapeDtypeStruct(shape, to_jax(dtype)) for shape, dtype in arguments]
    try:
        return compiled(function, types)
    except IpuError:
        raise
    except NotImplementedError as error:
        raise Unsupported(f"codelet {codelet.name} cannot be written as StableHLO: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise InvalidGraph(f"codelet {codelet.name} fails on cells of {call.sizes}: {reason}") from error
