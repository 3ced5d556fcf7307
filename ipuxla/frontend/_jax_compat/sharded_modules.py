"""StableHLO modules that say shardings."""

# pyright: reportPrivateImportUsage=false
# (private names are this module's purpose)

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax._src.interpreters import mlir as _mlir
from jax._src.lib.mlir import passmanager as _passmanager
from jax._src.lib.mlir.dialects import func as _func
from jax._src.lib.mlir.dialects import hlo as _hlo
from jax._src.lib.mlir.dialects import sdy as _sdy
from jaxlib import _hlo as _hlo_bindings  # pyright: ignore[reportAttributeAccessIssue]

from ipuxla.frontend._jax_compat.lowering import module_bytecode
from ipuxla.frontend._jax_compat.reading import parsed_module


class WrittenForDevices(NamedTuple):
    """A module that says shardings, and what it says.

    Args:
      module: an MLIR module.
      meshes: names and sizes of the axes of each mesh of several devices, each different one once.
      num_replicas: of all partitions.
      free: which arguments, and which results, it leaves to the compiler to cut.
      donated: arguments that it marks as donated.
    """

    module: Any
    meshes: tuple[tuple[tuple[str, int], ...], ...]
    num_replicas: int
    free: tuple[list[bool], list[bool]]
    donated: tuple[int, ...]


def read_for_devices(source: str | bytes) -> WrittenForDevices | None:
    """Return a module that is written for several devices together by shardings; None for others.

    Hides Shardy's dialect, its attributes for exported modules, and those of GSPMD before it.

    Raises:
      ValueError: ``main`` is missing, or takes or returns something else than tensors.
    """
    context = _mlir.make_ir_context()
    with context:
        try:
            module = parsed_module(context, source)
            if "xla.sdy.meshes" in module.operation.attributes.get("mhlo.frontend_attributes", ()):
                _passmanager.PassManager.parse(_ROUND_TRIP).run(module.operation)
            _passmanager.PassManager.parse("builtin.module(sdy-lift-inlined-meshes)").run(module.operation)
        except (_mlir.ir.MLIRError, ValueError):
            return None  # what is wrong with it is told where it is read
        if not says_shardings(module.operation):
            return None
        attributes = module.operation.attributes
        replicas, partitions = (
            attributes[key].value if key in attributes else 1
            for key in ("mhlo.num_replicas", "mhlo.num_partitions")
        )
        meshes = _meshes_of_module(module)
        if not meshes and not any(op.operation.name == "sdy.mesh" for op in module.body.operations):
            meshes = ((("partition", partitions),),) if partitions > 1 else ()
        if not meshes:
            return None
        main = next((op for op in module.body.operations if _symbol(op) == "main"), None)
        if main is None:
            raise ValueError("a module with shardings has a function @main")
        type_ = main.attributes["function_type"].value
        said = [
            list(main.attributes[role]) if role in main.attributes else [()] * len(types)
            for role, types in (("arg_attrs", type_.inputs), ("res_attrs", type_.results))
        ]
        inputs, outputs = ([not any(k in each for k in _SAID) for each in side] for side in said)
        marks = ("jax.buffer_donor", "tf.aliasing_output")
        donated = tuple(n for n, each in enumerate(said[0]) if any(mark in each for mark in marks))
        return WrittenForDevices(module, meshes, replicas, (inputs, outputs), donated)


_SAID = ("sdy.sharding", "mhlo.sharding")
_ROUND_TRIP = "builtin.module(xla-sdy-round-trip-import-shardy-attrs)"
_MARKS_OF_SHARDINGS = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.FuncResultSharding"}
)


def says_shardings(module: Any) -> bool:
    """Whether an MLIR operation, a module, says of any value how devices hold it. Hides Shardy and GSPMD."""
    found: list[bool] = []

    def visit(op: Any) -> Any:
        attributes = op.attributes
        is_said = op.name.startswith("sdy.") and op.name != "sdy.mesh"
        is_said = is_said or any(key in attributes for key in _SAID)
        if op.name == "stablehlo.custom_call":
            is_said = is_said or attributes["call_target_name"].value in _MARKS_OF_SHARDINGS
        for role in ("arg_attrs", "res_attrs"):
            if op.name == "func.func" and role in attributes:
                is_said = is_said or any(key in each for each in attributes[role] for key in _SAID)
        if is_said:
            found.append(True)
            return _mlir.ir.WalkResult.INTERRUPT
        return _mlir.ir.WalkResult.ADVANCE

    module.walk(visit)
    return bool(found)


def find_operation(module: Any, names: frozenset[str]) -> Any:
    """Return the first operation of a name in an MLIR module, or None."""
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name not in names:
            return _mlir.ir.WalkResult.ADVANCE
        found.append(op)
        return _mlir.ir.WalkResult.INTERRUPT

    module.operation.walk(visit)
    return found[0] if found else None


def _meshes_of_module(module: Any) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Return names and sizes of the axes of each mesh of several devices, each different one once."""
    found: dict[tuple[tuple[str, int], ...], None] = {}
    for view in module.body.operations:
        if view.operation.name == "sdy.mesh":
            axes = map(_sdy.MeshAxisAttr, _sdy.MeshAttr(view.operation.attributes["mesh"]).axes)
            found[tuple((axis.name, axis.size) for axis in axes)] = None
    return tuple(axes for axes in found if math.prod(size for _, size in axes) > 1)


def module_of_bytecode(bytecode: bytes) -> Any:
    """Return an MLIR module in a context of its own."""
    with _mlir.make_ir_context():
        return _mlir.ir.Module.parse(bytecode)


def separate_shardings(sharding: str) -> list[str]:
    """Return the shardings of a tuple's members, or the one that is none of a tuple. Hides ``HloSharding``."""
    found = _hlo_bindings.HloSharding.from_string(sharding)
    members = found.tuple_elements() if sharding.startswith("{{") else [found]
    return [str(member) for member in members]


def manual_body(module: Any, axes: Sequence[str]) -> tuple[Any, list[Any], list[Any]] | None:
    """Return the body of a module that is one ``shard_map`` over all axes, as a module of its own; None for others.

    Hides Shardy's ``manual_computation``.

    Args:
      module: an MLIR module.
      axes: names of all axes of its mesh.

    Returns:
      A module, and the dimension shardings of its arguments and of its results, a tuple of names of axes for each
      dimension. It shares nothing with the one given.
    """
    ir = _mlir.ir
    if not any(op.operation.name == "sdy.manual_computation" for op in main_of(module).regions[0].blocks[0]):
        return None
    with module.context:
        module = ir.Module.parse(module_bytecode(module))  # what is taken out of a module is gone there
    blocks = module.body.operations
    main = main_of(module)
    meshes = {_symbol(op): op for op in blocks if op.operation.name == "sdy.mesh"}
    operations = list(main.regions[0].blocks[0].operations)
    if len(operations) != 2 or operations[0].operation.name != "sdy.manual_computation":
        return None
    manual, end = (op.operation for op in operations)
    arguments = list(main.regions[0].blocks[0].arguments)
    if list(manual.operands) != arguments or list(end.operands) != list(manual.results):
        return None
    shardings: list[list[Any]] = []
    for role, key in (("in_shardings", "arg_attrs"), ("out_shardings", "res_attrs")):
        found = list(_sdy.TensorShardingPerValueAttr(manual.attributes[role]).shardings)
        said: Any = main.attributes[key] if key in main.attributes else [()] * len(found)
        given = [attrs["sdy.sharding"] if "sdy.sharding" in attrs else None for attrs in said]
        own = [_axes_of_dimensions(each) for each in found]
        if any(g is not None and _axes_of_dimensions(g) != o for g, o in zip(given, own, strict=True)):
            return None
        if any(each is None for each in own):
            return None
        shardings.append(own)
    manual_axes = re.findall(r'"([^"]*)"', str(manual.attributes["manual_axes"]))
    if set(manual_axes) != set(axes) or len(meshes) != 1:
        return None
    (mesh,) = meshes.values()
    if list(_sdy.MeshAttr(mesh.attributes["mesh"]).device_ids):
        return None  # devices in an order of their own, which XLA knows to follow
    block = manual.regions[0].blocks[0]
    last = list(block.operations)[-1].operation
    with module.context, ir.Location.unknown():
        results = [value.type for value in last.operands]
        function = ir.FunctionType.get([argument.type for argument in block.arguments], results)
        with last.location, ir.InsertionPoint(last):
            _func.ReturnOp(list(last.operands))
        last.erase()
        with main.location, ir.InsertionPoint(main.operation):
            made = _func.FuncOp("main_of_one", function)
        block.append_to(made.regions[0])
        made.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [_without_sharding(attrs) for attrs in main.arg_attrs]
        )
        main.operation.erase()
        mesh.operation.erase()
        made.attributes["sym_name"] = ir.StringAttr.get("main")
    return module, shardings[0], shardings[1]


def with_whole_kernels(module: Any, num_devices: int) -> Any:
    """Return a module whose dilated kernels of convolutions are cut along no dimension that devices do not divide.

    A gradient by a kernel is a convolution by the output's gradient, dilated by the stride. Where devices hold unequal
    numbers of its rows, XLA's partitioner (jaxlib 0.10.2) gives wrong values: 6 rows over 3 devices by a stride of 3,
    beside the same XLA on one device. Hides Shardy's constraints. A module that marks shardings as GSPMD did, without a
    mesh, is left as it is.
    """
    ir, found = _mlir.ir, list[int]()

    def visit(op: Any) -> Any:
        if op.name == "stablehlo.convolution":
            number[0] += 1
            if _uneven_kernel_dimensions(op, num_devices):
                found.append(number[0])
        return ir.WalkResult.ADVANCE

    number = [-1]
    module.operation.walk(visit)
    names = [_symbol(op) for op in module.body.operations if op.operation.name == "sdy.mesh"]
    if not found or len(names) != 1:
        return module
    with module.context:
        module = ir.Module.parse(module_bytecode(module))
    convolutions: list[Any] = []

    def collect(op: Any) -> Any:
        if op.name == "stablehlo.convolution":
            convolutions.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    with module.context:
        for op in (convolutions[n].operation for n in found):
            whole, kernel = _uneven_kernel_dimensions(op, num_devices), op.operands[1]
            rank = ir.RankedTensorType(kernel.type).rank
            dimensions = [_sdy.DimensionShardingAttr.get([], d in whole) for d in range(rank)]
            sharding = _sdy.TensorShardingAttr.get(names[0], dimensions)
            with op.location, ir.InsertionPoint(op):
                op.operands[1] = _sdy.ShardingConstraintOp(kernel, sharding).result
    return module


def _uneven_kernel_dimensions(op: Any, num_devices: int) -> list[int]:
    """Return the dimensions of a convolution's kernel that are dilated and that devices do not divide."""
    if "rhs_dilation" not in op.attributes:
        return []
    shape = _mlir.ir.RankedTensorType(op.operands[1].type).shape
    spatial = _hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"]).kernel_spatial_dimensions
    dilation = list(_mlir.ir.DenseI64ArrayAttr(op.attributes["rhs_dilation"]))
    return [d for d, step in zip(spatial, dilation, strict=True) if step > 1 and shape[d] % num_devices]


Shapes = tuple[tuple[int, ...], ...]


def shapes_of_main(module: Any) -> tuple[Shapes, Shapes]:
    """Return the shapes of the arguments and of the results of ``main``.

    Raises:
      ValueError: one is no tensor.
    """
    type_ = main_of(module).attributes["function_type"].value
    inputs, outputs = (tuple(map(_mlir.ir.RankedTensorType, role)) for role in (type_.inputs, type_.results))
    return tuple(tuple(each.shape) for each in inputs), tuple(tuple(each.shape) for each in outputs)


def main_of(module: Any) -> Any:
    """Return the entry function of a module."""
    return next(op for op in module.body.operations if _symbol(op) == "main")


def _symbol(op: Any) -> str:
    return op.attributes["sym_name"].value if "sym_name" in op.attributes else ""


def _without_sharding(attributes: Any) -> Any:
    return _mlir.ir.DictAttr.get({each.name: each.attr for each in attributes if each.name != "sdy.sharding"})


def _axes_of_dimensions(sharding: Any) -> tuple[tuple[str, ...], ...] | None:
    """Return the names of the axes that cut each dimension; None where parts of axes do, or what is undecided."""
    dimensions = _sdy.TensorShardingAttr(sharding).dimension_shardings
    found: list[tuple[str, ...]] = []
    for dimension in map(_sdy.DimensionShardingAttr, dimensions):
        axes = [_sdy.AxisRefAttr(axis) for axis in dimension.axes]
        if not dimension.is_closed or any(axis.sub_axis_info is not None for axis in axes):
            return None
        found.append(tuple(axis.name for axis in axes))
    return tuple(found)
