"""StableHLO modules that say shardings."""

# pyright: standard, reportPrivateImportUsage=false
# (private names are this module's purpose)

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax._src.interpreters import mlir as _mlir
from jax._src.lib.mlir import passmanager as _passmanager
from jax._src.lib.mlir.dialects import func as _func
from jax._src.lib.mlir.dialects import hlo as _hlo
from jax._src.lib.mlir.dialects import sdy as _sdy
from jaxlib import _hlo as _hlo_bindings  # pyright: ignore[reportAttributeAccessIssue]

from ipuxla.frontend._jax_compat.lowering import module_bytecode
from ipuxla.frontend._jax_compat.reading import parsed_module
from ipuxla.frontend._jax_compat.walking import operations


class WrittenForDevices(NamedTuple):
    """A module that says shardings, and what it says.

    Args:
      module: an MLIR module.
      meshes: names and sizes of the axes of each mesh of several devices, each different one once.
      num_replicas: of all partitions.
      free: which arguments, and which results, it leaves to the compiler to shard.
      donated: arguments that it marks as donated.
    """

    module: Any
    meshes: tuple[tuple[tuple[str, int], ...], ...]
    num_replicas: int
    free: tuple[list[bool], list[bool]]
    donated: tuple[int, ...]


def device_counts(module: Any) -> tuple[int, int]:
    """Return how many replicas, and partitions of each, an operation ``builtin.module`` says that it is for; 1 if nothing.

    Raises:
      ValueError: what it says is no such number.
    """
    counts: list[int] = []
    for key in ("mhlo.num_replicas", "mhlo.num_partitions"):
        said = module.attributes[key] if key in module.attributes else None
        count = 1 if said is None else getattr(said, "value", None)
        if type(count) is not int or count < 1:
            raise ValueError(f"{key} = {str(said)[:100]} is no number of devices")
        counts.append(count)
    return counts[0], counts[1]


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
        try:
            replicas, partitions = device_counts(module.operation)
        except ValueError:
            return None  # told where it is imported
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
    for op in operations(module):
        attributes = op.attributes
        is_said = op.name.startswith("sdy.") and op.name != "sdy.mesh"
        is_said = is_said or any(key in attributes for key in _SAID)
        if op.name == "stablehlo.custom_call":
            is_said = is_said or attributes["call_target_name"].value in _MARKS_OF_SHARDINGS
        for role in ("arg_attrs", "res_attrs"):
            if op.name == "func.func" and role in attributes:
                is_said = is_said or any(key in each for each in attributes[role] for key in _SAID)
        if is_said:
            return True
    return False


def find_operation(module: Any, names: frozenset[str]) -> Any:
    """Return the first operation of a name in an MLIR module, or None."""
    return next((op for op in operations(module) if op.name in names), None)


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
    if set(manual_axes) != set(axes) or len({str(mesh.attributes["mesh"]) for mesh in meshes.values()}) != 1:
        return None
    mesh, *others = meshes.values()  # what groups say of the mesh may have a name of its own
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
        if not others and not _groups_name_meshes(module):
            mesh.operation.erase()
        made.attributes["sym_name"] = ir.StringAttr.get("main")
    return module, shardings[0], shardings[1]


def _groups_name_meshes(module: Any) -> bool:
    """Whether groups of devices are said by axes of a mesh that has a name, as JAX does from 0.11 on."""
    groups = (
        op.attributes["replica_groups"] for op in operations(module) if "replica_groups" in op.attributes
    )
    return any("mesh = @" in str(each) for each in groups)


def with_plain_indices(module: Any) -> Any:
    """Return a module whose gathers and scatters have indices of a type with which XLA's partitioner does not end the process.

    The partitioner (jaxlib 0.10.2) has checks that fail: of a gather with indices of 8 bits, and of a scatter with any but
    int32 where a size does not divide, as in the gradient of a sort; so does ``jax.jit`` on several devices. An index that
    int32 does not hold lies outside of every array, and so does what it is converted to.

    Args:
      module: an MLIR module; it is left as it is.
    """
    ir = _mlir.ir
    if not _misread(module):
        return module
    with module.context:
        module = ir.Module.parse(module_bytecode(module))
        for op, number in _misread(module):
            with op.location, ir.InsertionPoint(op):
                op.operands[number] = _as_int32(op.operands[number])
    return module


def _misread(module: Any) -> list[tuple[Any, int]]:
    """Return the gathers and scatters of a module that the partitioner may end at, and which operand is their indices."""
    found: list[tuple[Any, int]] = []
    for op in _operations(module, ("stablehlo.gather", "stablehlo.scatter")):
        number = len(op.operands) // 2
        element = _mlir.ir.RankedTensorType(op.operands[number].type).element_type
        plain = "i32", "ui32", "i64", "ui64"
        if str(element) not in (plain if op.name == "stablehlo.gather" else plain[:1]):
            found.append((op, number))
    return found


def _as_int32(indices: Any) -> Any:
    """Return integers as int32; those beyond its range, which no array reaches, as its largest or as -1."""
    ir = _mlir.ir
    given = ir.RankedTensorType(indices.type)
    element = ir.IntegerType(given.element_type)
    if element.width > 16:
        indices = _hlo.MinOp(indices, _splat(given, (1 << 31) - 1)).result
        if not element.is_unsigned:
            indices = _hlo.MaxOp(indices, _splat(given, -1)).result
    return _hlo.ConvertOp(
        ir.RankedTensorType.get(given.shape, ir.IntegerType.get_signless(32)), indices
    ).result


def _splat(type_: Any, value: int) -> Any:
    ir = _mlir.ir
    attribute = ir.DenseElementsAttr.get_splat(type_, ir.IntegerAttr.get(type_.element_type, value))
    return _hlo.ConstantOp(attribute).result


def with_whole_dimensions(module: Any, mesh: Sequence[tuple[str, int]]) -> Any:
    """Return a module whose convolutions are sharded along no dimensions where XLA's partitioner errs.

    The partitioner (jaxlib 0.10.2) adds the parts of a sum over sharded rows of an image, as in a gradient by a kernel, over
    all devices, also those that hold the same; so does ``jax.jit`` on several devices. It errs, too, where features are sharded
    beside rows, and where rows of a dilated kernel are held in unequal numbers. Shardy's propagation
    says which convolutions are sharded so; constraints make these dimensions whole. Hides Shardy. A module without one mesh
    that it names (marks of GSPMD) stays as it is.

    Args:
      module: an MLIR module.
      mesh: names and sizes of its mesh's axes.

    Raises:
      ValueError: constraints do not help.
    """
    ir = _mlir.ir
    names = [_symbol(op) for op in module.body.operations if op.operation.name == "sdy.mesh"]
    if len(names) != 1 or not _convolutions(module):
        return module
    for _ in range(_ROUNDS):
        found = _misread_dimensions(module, mesh)
        if not any(map(any, found)):
            return module
        with module.context:
            module = ir.Module.parse(module_bytecode(module))
            for op, whole in zip(_convolutions(module), found, strict=True):
                _constrain(op, whole, names[0])
    raise ValueError("a convolution whose rows are sharded along some axes of the mesh, which it gets wrong")


_ROUNDS = 4
"""How often constraints are added: what one changes may bring another convolution's rows to be sharded."""


def _constrain(op: Any, whole: Wholes, mesh: str) -> None:
    """Put constraints around a convolution: behind both operands and its result."""
    ir, result = _mlir.ir, op.results[0]
    for number, (value, dimensions) in enumerate(zip((*op.operands, result), whole, strict=True)):
        if not dimensions:
            continue
        rank = ir.RankedTensorType(value.type).rank
        dimensions_said = [_sdy.DimensionShardingAttr.get([], d in dimensions) for d in range(rank)]
        sharding = _sdy.TensorShardingAttr.get(mesh, dimensions_said)
        place = ir.InsertionPoint(op) if number < 2 else ir.InsertionPoint.after(op)
        with op.location, place:
            constraint = _sdy.ShardingConstraintOp(value, sharding)
        if number < 2:
            op.operands[number] = constraint.result
        else:
            value.replace_all_uses_except(constraint.result, constraint.operation)


Wholes = tuple[list[int], list[int], list[int]]
"""Dimensions of a convolution's operands and of its result."""


def _convolutions(module: Any) -> list[Any]:
    """Return the convolutions of a module, in order."""
    return _operations(module, ("stablehlo.convolution",))


def _operations(module: Any, names: Sequence[str]) -> list[Any]:
    """Return the operations of some names of a module, in order."""
    return [op for op in operations(module) if op.name in names]


def _misread_dimensions(module: Any, mesh: Sequence[tuple[str, int]]) -> list[Wholes]:
    """Return for each convolution the dimensions that have to be whole."""
    ir = _mlir.ir
    with module.context:
        copy = ir.Module.parse(module_bytecode(module))
        convolutions = _convolutions(copy)
        for number, op in enumerate(convolutions):  # so that equal ones stay two
            op.attributes[_NUMBER] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
        try:
            _passmanager.PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(copy.operation)
        except ir.MLIRError as error:
            raise ValueError(f"Shardy refuses the program: {str(error).splitlines()[0][:200]}") from None
    sizes, found = dict(mesh), list[Wholes]([([], [], [])] * len(convolutions))
    for op in _convolutions(copy):
        found[op.attributes[_NUMBER].value] = _misread_dimensions_of(op, sizes)
    return found


_NUMBER = "ipuxla.number"


def _misread_dimensions_of(op: Any, sizes: Mapping[str, int]) -> Wholes:
    """Return the dimensions of a convolution, after propagation, that have to be whole."""
    numbers = _hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    rows, kernel_rows = list(numbers.input_spatial_dimensions), list(numbers.kernel_spatial_dimensions)
    left, right, out = (_parts(value, sizes) for value in (*op.operands, op.results[0]))
    shape = _mlir.ir.RankedTensorType(op.operands[1].type).shape
    if all(left[d] == 1 for d in rows) and all(right[d] == 1 for d in kernel_rows):
        return [], [], []
    features, out_features = numbers.input_feature_dimension, numbers.output_feature_dimension
    if any(right[d] > 1 for d in kernel_rows) or _is_larger_than_its_result(op):
        # A gradient by a kernel, whose features are the batch: right where all devices sum as many rows of both.
        is_shared = math.prod(left[d] for d in (*rows, features)) < math.prod(sizes.values())
        is_alike = [left[d] for d in rows] == [right[d] for d in kernel_rows]
        is_even = all(shape[d] % right[d] == 0 for d in kernel_rows)
        if is_shared or not (is_alike and is_even):
            return rows, kernel_rows, list(numbers.output_spatial_dimensions)
        return [], [], []
    if left[features] > 1 or out[out_features] > 1 or math.prod(right) > 1:
        return [features], list(range(len(right))), [out_features]
    return [], [], []


def _is_larger_than_its_result(op: Any) -> bool:
    """Whether a convolution's kernel with its dilation is larger than what comes of it."""
    numbers = _hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    kernel_rows, out_rows = (
        list(each) for each in (numbers.kernel_spatial_dimensions, numbers.output_spatial_dimensions)
    )
    steps = [1] * len(kernel_rows)
    if "rhs_dilation" in op.attributes:
        steps = list(_mlir.ir.DenseI64ArrayAttr(op.attributes["rhs_dilation"]))
    kernel, out = (_mlir.ir.RankedTensorType(v.type).shape for v in (op.operands[1], op.results[0]))
    sizes = zip(kernel_rows, out_rows, steps, strict=True)
    return any((kernel[k] - 1) * step + 1 > out[o] for k, o, step in sizes)


def _parts(value: Any, sizes: Mapping[str, int]) -> list[int]:
    """Return into how many parts each dimension of a value is sharded."""
    rank = _mlir.ir.RankedTensorType(value.type).rank
    sharding = _sharding_of(value)
    if sharding is None:
        return [1] * rank
    dimensions = map(_sdy.DimensionShardingAttr, _sdy.TensorShardingAttr(sharding).dimension_shardings)
    found: list[int] = []
    for dimension in dimensions:
        axes = map(_sdy.AxisRefAttr, dimension.axes)
        found.append(math.prod(_axis_size(axis, sizes) for axis in axes))
    return found or [1] * rank


def _axis_size(axis: Any, sizes: Mapping[str, int]) -> int:
    part = axis.sub_axis_info
    return sizes[axis.name] if part is None else _sdy.SubAxisInfoAttr(part).size


def _sharding_of(value: Any) -> Any:
    """Return what propagation says of a value: an attribute of what makes it, or of what its block belongs to."""
    ir = _mlir.ir
    if isinstance(value.owner, ir.Block):
        owner, number = value.owner.owner.operation, ir.BlockArgument(value).arg_number
        if owner.name == "func.func":
            said: Any = owner.attributes["arg_attrs"] if "arg_attrs" in owner.attributes else ()
            return (
                said[number]["sdy.sharding"]
                if number < len(said) and "sdy.sharding" in said[number]
                else None
            )
        key = "in_shardings" if owner.name == "sdy.manual_computation" else "sdy.sharding"
    else:
        owner, number = value.owner.operation, ir.OpResult(value).result_number
        if owner.name == "sdy.sharding_constraint":
            return owner.attributes["sharding"]
        key = "out_shardings" if owner.name == "sdy.manual_computation" else "sdy.sharding"
    if key not in owner.attributes:
        return None
    shardings = list(_sdy.TensorShardingPerValueAttr(owner.attributes[key]).shardings)
    return shardings[number] if number < len(shardings) else None


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
    """Return the names of the axes that shard each dimension; None where parts of axes do, or what is undecided."""
    dimensions = _sdy.TensorShardingAttr(sharding).dimension_shardings
    found: list[tuple[str, ...]] = []
    for dimension in map(_sdy.DimensionShardingAttr, dimensions):
        axes = [_sdy.AxisRefAttr(axis) for axis in dimension.axes]
        if not dimension.is_closed or any(axis.sub_axis_info is not None for axis in axes):
            return None
        found.append(tuple(axis.name for axis in axes))
    return tuple(found)
