"""StableHLO as text and bytecode, and the attributes of its operations."""

# pyright: standard, reportPrivateImportUsage=false
# (private names are this module's purpose)

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from jax._src.interpreters import mlir as _mlir
from jax._src.lib.mlir import passmanager as _passmanager
from jax._src.lib.mlir.dialects import func as _func
from jax._src.lib.mlir.dialects import hlo as _hlo

from ipuxla.frontend._jax_compat.walking import operations

mlir_ir = _mlir.ir

_PORTABLE_ARTIFACT = re.compile(rb"ML\xefR.StableHLO_v", re.DOTALL)
LU_COMPOSITE, QR_COMPOSITE = "ipuxla.lu", "ipuxla.qr"
"""Composites that are read as operations of their own, factorizations; others are calls of what they are made of."""
_LEGALIZATION = (
    f"builtin.module(func.func(stablehlo-legalize-composite-to-call{{except={LU_COMPOSITE},{QR_COMPOSITE}}}),"
    "func.func(chlo-legalize-to-stablehlo,stablehlo-legalize-deprecated-ops{fail-on-unused=false}))"
)
_DEQUANTIZATION = (
    "builtin.module(func.func(stablehlo-legalize-quantized-op-to-qdq,stablehlo-legalize-quant-to-math,"
    "chlo-legalize-to-stablehlo))"
)
_NEEDS_QUANT = "builtin.module(vhlo-legalize-to-stablehlo)"
"""Passes that make MLIR load its dialect of quantized types, of which jaxlib gives no other way in."""
_REFINEMENT = (
    "builtin.module(func.func(stablehlo-canonicalize-dynamism),stablehlo-refine-shapes,"
    "func.func(stablehlo-canonicalize-dynamism))"
)
_SHAPE_OPERANDS: dict[str, tuple[int, ...]] = {
    "stablehlo.dynamic_broadcast_in_dim": (1,),
    "stablehlo.dynamic_conv": (2,),
    "stablehlo.dynamic_gather": (2,),
    "stablehlo.dynamic_iota": (0,),
    "stablehlo.dynamic_pad": (2, 3, 4),
    "stablehlo.dynamic_reshape": (1,),
    "stablehlo.real_dynamic_slice": (1, 2, 3),
}
"""Which operands of an operation say sizes."""
_WHOLE_NUMBERS = re.compile(r"tensor<(\d+x)*u?i\d+>")


@functools.cache
def _register_passes() -> None:
    _hlo.register_stablehlo_passes()


def read_stablehlo(source: Any, refine: bool = False, dequantize: bool = False) -> Any:
    """Return a StableHLO module's operation, CHLO legalized. Hides contexts, passes and bytecode.

    Args:
      source: text, MLIR bytecode or a portable artifact; or an MLIR module, which is copied first.
      refine: whether to derive static shapes of what follows from the types of arguments and from constants.
      dequantize: whether to write operations on quantized types with integers and floats.

    Raises:
      ValueError: MLIR refuses it; the message is one line with the position in the text.
    """
    _register_passes()
    context = source.context if hasattr(source, "context") else _mlir.make_ir_context()
    messages: list[str] = []

    def keep(diagnostic: Any) -> bool:
        try:
            messages.append(f"{str(diagnostic.location)[4:-1]}: {diagnostic.message}")
        except (RuntimeError, ValueError):  # bytes that are no text, from a module that was damaged
            messages.append("the module names something with bytes that are no text")
        return True

    with context:
        handler: Any = context.attach_diagnostic_handler(keep)
        try:
            module = _read_module(context, source)
            _widen_functions(module)
            wanted = ((_LEGALIZATION, True), (_DEQUANTIZATION, dequantize), (_REFINEMENT, refine))
            for passes in (text for text, is_wanted in wanted if is_wanted):
                _passmanager.PassManager.parse(passes).run(module)
            while refine and _fold_shapes(module):
                _passmanager.PassManager.parse(_REFINEMENT).run(module)
        except (_mlir.ir.MLIRError, ValueError) as error:
            found = [f"{str(d.location)[4:-1]}: {d.message}" for d in getattr(error, "error_diagnostics", ())]
            raise ValueError(" ".join((found + messages or [str(error)])[0].split())) from None
        finally:
            handler.detach()
    return module


def _read_module(context: Any, source: Any) -> Any:
    if hasattr(source, "context"):
        return source.operation.clone(ip=False).operation
    return parsed_module(context, source).operation


def parsed_module(context: Any, source: str | bytes) -> Any:
    """Return an MLIR module of text, bytecode or a portable artifact, as it stands."""
    if ("quant" in source) if isinstance(source, str) else (b"quant" in source):
        _passmanager.PassManager.parse(_NEEDS_QUANT).run(_mlir.ir.Module.parse("module {}").operation)
    if isinstance(source, bytes) and _PORTABLE_ARTIFACT.match(source):
        return _hlo.deserialize_portable_artifact(context, source)
    return _mlir.ir.Module.parse(source)


def _widen_functions(module: Any) -> None:
    """Have CHLO's elementwise functions of floats of 8 bits and fewer computed in f32, and rounded once.

    MLIR's formulas for some of them, such as erf, begin at 16 bits.
    """
    ir = _mlir.ir
    found: list[Any] = []
    for op in operations(module):
        if op.name.startswith("chlo.") and not len(op.regions):
            types = {each.type for each in (*op.operands, *op.results)}
            if len(types) == 1 and re.search(r"f[468]E\w+>$", str(*types)):
                found.append(op)
    for op in found:
        narrow = op.results[0].type
        with op.location, ir.InsertionPoint(op):
            wide = ir.RankedTensorType.get(narrow.shape, ir.F32Type.get())
            operands = [_hlo.convert(wide, operand) for operand in op.operands]
            attributes = {named.name: named.attr for named in op.attributes}
            made = ir.Operation.create(op.name, [wide] * len(op.results), operands, attributes)
            for old, new in zip(op.results, made.results, strict=True):
                old.replace_all_uses_with(_hlo.convert(narrow, new))
        op.erase()


def _fold_shapes(module: Any) -> bool:
    """Replace shape operands that depend on constants alone by constants; return whether there were any.

    What MLIR's own passes fold is little: no iota, for one. jaxlib's StableHLO interpreter does it.
    """
    ir = _mlir.ir
    found: list[tuple[Any, int]] = []
    for op in operations(module):
        for number in _SHAPE_OPERANDS.get(op.name, ()):
            if getattr(op.operands[number].owner, "name", "") != "stablehlo.constant":
                found.append((op, number))
    has_changed = False
    for op, number in found:
        value = op.operands[number]
        cone = _constant_cone(value)
        if cone is None:
            continue
        with ir.Location.unknown(), ir.InsertionPoint(op):
            op.operands[number] = _hlo.constant(_evaluated(cone, value))
        has_changed = True
    return has_changed


def _constant_cone(value: Any) -> list[Any] | None:
    """Return the operations on integers that give a value, in order; None where it depends on anything else."""
    cone: dict[Any, None] = {}
    stack = [(value.owner, False)]
    while stack:
        op, is_ready = stack.pop()
        if op in cone:
            continue
        if is_ready:
            cone[op] = None
            continue
        if isinstance(op, _mlir.ir.Block) or not op.name.startswith("stablehlo.") or len(op.regions):
            return None
        types = [str(each.type) for each in (*op.operands, *op.results)]
        if not all(map(_WHOLE_NUMBERS.fullmatch, types)) or op.name == "stablehlo.custom_call":
            return None
        stack.append((op, True))
        stack += [(operand.owner, False) for operand in op.operands]
    return list(cone)


def _evaluated(cone: Sequence[Any], value: Any) -> Any:
    """Return the attribute of the value that operations without arguments give."""
    ir = _mlir.ir
    with ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            main = _func.FuncOp("main", ([], [value.type]))
        made: dict[Any, Any] = {}
        with ir.InsertionPoint(main.add_entry_block()):
            for op in cone:
                clone = op.clone()
                for number, operand in enumerate(op.operands):
                    clone.operands[number] = made[operand]
                made.update(zip(op.results, clone.results, strict=True))
            _func.ReturnOp([made[value]])
        (result,) = _hlo.eval_module(module, [])
    return result


def dot_dimensions(attribute: Any) -> tuple[tuple[int, ...], ...]:
    """Return batching dimensions of lhs and rhs, then contracting ones. Hides ``DotDimensionNumbers``."""
    numbers = _hlo.DotDimensionNumbers(attribute)
    return (
        tuple(numbers.lhs_batching_dimensions),
        tuple(numbers.rhs_batching_dimensions),
        tuple(numbers.lhs_contracting_dimensions),
        tuple(numbers.rhs_contracting_dimensions),
    )


def conv_dimensions(attribute: Any) -> dict[str, Any]:
    """Return a convolution's dimension numbers by field. Hides ``ConvDimensionNumbers``."""
    numbers = _hlo.ConvDimensionNumbers(attribute)
    single = ("input_batch", "input_feature", "kernel_input_feature", "kernel_output_feature")
    single += ("output_batch", "output_feature")
    spatial = ("input_spatial", "kernel_spatial", "output_spatial")
    return {
        **{name: getattr(numbers, f"{name}_dimension") for name in single},
        **{name: tuple(getattr(numbers, f"{name}_dimensions")) for name in spatial},
    }


def dot_algorithm(attribute: Any) -> dict[str, Any]:
    """Return the fields of a dot algorithm, its types as text. Hides ``DotAlgorithm``."""
    algorithm = _hlo.DotAlgorithm(attribute)
    types = ("lhs_precision_type", "rhs_precision_type", "accumulation_type")
    counts = ("lhs_component_count", "rhs_component_count", "num_primitive_operations")
    return {
        **{name: str(getattr(algorithm, name)) for name in types},
        **{name: getattr(algorithm, name) for name in counts},
        "allow_imprecise_accumulation": algorithm.allow_imprecise_accumulation,
    }


def gather_dimensions(attribute: Any) -> dict[str, Any]:
    """Return a gather's dimension numbers by their names. Hides ``GatherDimensionNumbers``."""
    numbers = _hlo.GatherDimensionNumbers(attribute)
    lists = (
        "offset_dims",
        "collapsed_slice_dims",
        "operand_batching_dims",
        "start_indices_batching_dims",
        "start_index_map",
    )
    return {
        **{name: tuple(getattr(numbers, name)) for name in lists},
        "index_vector_dim": numbers.index_vector_dim,
    }


def scatter_dimensions(attribute: Any) -> dict[str, Any]:
    """Return a scatter's dimension numbers by the specification's names. Hides ``ScatterDimensionNumbers``."""
    numbers = _hlo.ScatterDimensionNumbers(attribute)
    return {
        "update_window_dims": tuple(numbers.update_window_dims),
        "inserted_window_dims": tuple(numbers.inserted_window_dims),
        "input_batching_dims": tuple(numbers.input_batching_dims),
        "scatter_indices_batching_dims": tuple(numbers.scatter_indices_batching_dims),
        "scatter_dims_to_operand_dims": tuple(numbers.scattered_dims_to_operand_dims),
        "index_vector_dim": numbers.index_vector_dim,
    }
