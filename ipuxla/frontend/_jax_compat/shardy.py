"""Shardy, and MLIR modules that say shardings: every private name of jaxlib's bindings that choosing shardings needs.

What a sharding makes of a program comes back as plain data, ``LocalProgram``.
"""

# pyright: standard, reportPrivateImportUsage=false
# (private names are this module's purpose)

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax._src.interpreters import mlir as _mlir
from jax._src.lib.mlir import passmanager as _passmanager
from jax._src.lib.mlir.dialects import sdy as _sdy

from ipuxla.frontend._jax_compat.lowering import module_bytecode
from ipuxla.frontend._jax_compat.reading import conv_dimensions, dot_dimensions, parsed_module
from ipuxla.frontend._jax_compat.sharded_modules import main_of
from ipuxla.frontend._jax_compat.walking import operations
from ipuxla.sharding import Mesh

ArrayAxes = tuple[tuple[str, ...], ...]
"""For each dimension of an array the names of the axes of a mesh that shard it."""

_PASSES = (
    "builtin.module(sdy-propagation-pipeline,sdy-export-pipeline{enable-insert-explicit-collectives=true})"
)
_ELEMENT_BYTES = {"i1": 1, "f32": 4, "f64": 8, "f16": 2, "bf16": 2, "complex<f32>": 8, "complex<f64>": 16}


class Work(NamedTuple):
    """One operation of one device's program.

    Args:
      name: of the MLIR operation.
      uses: numbers of the values that it takes.
      makes: numbers of its results.
      macs: multiply-accumulates on one device.
      axes: of a collective, name and number of members along each axis.
      callee: the function that it calls, or "".
      blocks: its regions that are programs: conditions and bodies of loops, branches.
      trips: how often they run, where a constant says so, else 1.
    """

    name: str
    uses: tuple[int, ...]
    makes: tuple[int, ...]
    macs: int = 0
    axes: tuple[tuple[str, int], ...] = ()
    callee: str = ""
    blocks: tuple[Block, ...] = ()
    trips: int = 1


class Block(NamedTuple):
    """Operations in order, with the numbers of the values that come in and go out."""

    arguments: tuple[int, ...]
    works: tuple[Work, ...]
    results: tuple[int, ...]


class LocalProgram(NamedTuple):
    """What one device computes and holds, as far as shardings say it.

    Args:
      functions: by name; ``main`` is the program.
      shapes: of the part of each value that one device holds.
      types: element types of the values, as MLIR writes them.
      inputs: how each argument of ``main`` is sharded.
    """

    functions: Mapping[str, Block]
    shapes: Sequence[tuple[int, ...]]
    types: Sequence[str]
    inputs: tuple[ArrayAxes, ...]

    @property
    def names(self) -> frozenset[str]:
        """Names of all operations, those of loops and branches included."""
        found, left = set[str](), list(self.functions.values())
        while left:
            for work in left.pop().works:
                found.add(work.name)
                left += work.blocks
        return frozenset(found)

    def size_bytes(self, value: int) -> int:
        """Return the bytes of a value on one device."""
        return math.prod(self.shapes[value]) * element_bytes(self.types[value])


def element_bytes(type_: str) -> int:
    """Return the bytes of an element of an MLIR type."""
    known = _ELEMENT_BYTES.get(type_)
    if known is not None:
        return known
    digits = re.search(r"\d+", type_)
    return max(1, int(digits[0]) // 8) if digits else 4


def argument_types(source: Any) -> list[tuple[tuple[int, ...], str]]:
    """Return shape and element type of each argument of ``main``.

    Args:
      source: an MLIR module, text or bytes.
    """
    with _mlir.make_ir_context():
        module = _parsed(source)
        types = main_of(module).attributes["function_type"].value.inputs
        tensors = map(_mlir.ir.RankedTensorType, types)
        return [(tuple(each.shape), str(each.element_type)) for each in tensors]


def count_operations(source: Any) -> int:
    """Return how many operations a module has."""
    with _mlir.make_ir_context():
        return sum(1 for _ in operations(_parsed(source)))


def with_shardings(source: Any, mesh: Mesh, said: Mapping[int, ArrayAxes], is_open: bool = False) -> Any:
    """Return a module for the devices of a mesh together, which says how some of its arguments are sharded.

    Args:
      source: an MLIR module, text or bytes, of one device.
      mesh: names and sizes of axes.
      said: by argument of ``main``.
      is_open: whether propagation may shard them further.
    """
    ir = _mlir.ir
    with _mlir.make_ir_context(), ir.Location.unknown():
        module = _parsed(source)
        taken = {op.attributes["sym_name"].value for op in module.body.operations}
        name = next(
            name for name in ("mesh", *(f"mesh_{n}" for n in range(len(taken) + 1))) if name not in taken
        )
        main = main_of(module)
        axes = ", ".join(f'"{axis}"={size}' for axis, size in mesh)
        with ir.InsertionPoint.at_block_begin(module.body):
            _sdy.MeshOp(name, ir.Attribute.parse(f"#sdy.mesh<[{axes}]>"))
        count = len(main.attributes["function_type"].value.inputs)
        given: Any = main.attributes["arg_attrs"] if "arg_attrs" in main.attributes else [()] * count
        attributes = [{each.name: each.attr for each in own} for own in given]
        for number, dimensions in said.items():
            attributes[number]["sdy.sharding"] = ir.Attribute.parse(_sharding_text(name, dimensions, is_open))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(own) for own in attributes])
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), math.prod(size for _, size in mesh))
        module.operation.attributes["mhlo.num_partitions"] = number
    return module


def _sharding_text(mesh: str, dimensions: ArrayAxes, is_open: bool) -> str:
    def entry(names: Sequence[str]) -> str:
        return "{" + ", ".join([*(f'"{name}"' for name in names), *(["?"] if is_open else [])]) + "}"

    return f"#sdy.sharding<@{mesh}, [{', '.join(map(entry, dimensions))}]>"


def propagated(source: Any, mesh: Mesh, said: Mapping[int, ArrayAxes]) -> LocalProgram:
    """Return what one device of a mesh computes where arguments are sharded so, by Shardy's propagation.

    Args:
      source: an MLIR module, text or bytes, of one device.
      mesh: names and sizes of axes.
      said: how some arguments of ``main`` are sharded; the others follow.

    Raises:
      ValueError: Shardy refuses it.
    """
    module = with_shardings(source, mesh, said, is_open=True)
    with module.context:
        try:
            _passmanager.PassManager.parse(_PASSES).run(module.operation)
        except (_mlir.ir.MLIRError, RuntimeError) as error:
            raise ValueError(f"Shardy refuses the program: {str(error).splitlines()[0][:200]}") from None
        return _Reader(mesh).program(module)


class _Reader:
    """An MLIR module after propagation to plain data."""

    def __init__(self, mesh: Mesh) -> None:
        self.sizes = dict(mesh)
        self.numbers: dict[Any, int] = {}
        self.shapes: list[tuple[int, ...]] = []
        self.types: list[str] = []
        self._shardings = functools.lru_cache(maxsize=None)(self._read_shardings)
        self._tensor = functools.lru_cache(maxsize=None)(_tensor_of)

    def program(self, module: Any) -> LocalProgram:
        functions, inputs = dict[str, Block](), tuple[ArrayAxes, ...]()
        for view in module.body.operations:
            op = view.operation
            if op.name != "func.func":
                continue
            block = op.regions[0].blocks[0]
            said: Any = (
                op.attributes["arg_attrs"] if "arg_attrs" in op.attributes else [()] * len(block.arguments)
            )
            texts = [str(each["sdy.sharding"]) if "sdy.sharding" in each else "" for each in said]
            shardings = [(self._shardings(text) or ((),))[0] if text else () for text in texts]
            arguments = tuple(
                self._add(value, sharding) for value, sharding in zip(block.arguments, shardings, strict=True)
            )
            name = op.attributes["sym_name"].value
            functions[name] = self._block(block, arguments)
            if name == "main":
                inputs = tuple(
                    tuple(tuple(axis for axis, _ in dim) for dim in sharding)
                    or ((),) * len(self.shapes[number])
                    for sharding, number in zip(shardings, arguments, strict=True)
                )
        return LocalProgram(functions, self.shapes, self.types, inputs)

    def _read_shardings(self, text: str) -> tuple[tuple[tuple[tuple[str, int], ...], ...], ...]:
        """Return for each value, for each dimension, name and size of the axes, or parts of them, that shard it."""
        found = []
        for dimensions in _SHARDING.findall(text):
            found.append(
                tuple(
                    tuple((name, int(part or self.sizes[name])) for name, part in _AXIS.findall(entry))
                    for entry in _DIMENSION.findall(dimensions)
                )
            )
        return tuple(found)

    def _add(self, value: Any, sharding: Sequence[Sequence[tuple[str, int]]] = ()) -> int:
        shape, type_ = self._tensor(str(value.type))
        parts = [math.prod(size for _, size in dim) for dim in sharding] or [1] * len(shape)
        number = self.numbers[value] = len(self.shapes)
        self.shapes.append(tuple(-(-size // part) for size, part in zip(shape, parts, strict=False)))
        self.types.append(type_)
        return number

    def _number(self, value: Any) -> int:
        found = self.numbers.get(value)
        return self._add(value) if found is None else found

    def _block(self, block: Any, arguments: tuple[int, ...]) -> Block:
        *operations, last = (view.operation for view in block.operations)
        works = tuple(self._work(op) for op in operations)
        return Block(arguments, works, tuple(map(self._number, last.operands)))

    def _work(self, op: Any) -> Work:
        name, attributes = op.name, op.attributes
        said = "sdy.sharding" if "sdy.sharding" in attributes else "out_sharding"
        shardings = self._shardings(str(attributes[said])) if said in attributes else ()
        results = list(op.results)
        padded = [*shardings, *[()] * (len(results) - len(shardings))]
        uses = tuple(map(self._number, op.operands))
        makes = tuple(self._add(value, sharding) for value, sharding in zip(results, padded, strict=False))
        if name.startswith("sdy."):
            return Work(name, uses, makes, axes=self._axes_of(op) if name in COLLECTIVES else ())
        if name in ("func.call", "stablehlo.composite"):
            key = "callee" if name == "func.call" else "decomposition"
            return Work(name, uses, makes, callee=attributes[key].value)
        if name == "stablehlo.dot_general":
            contracted = dot_dimensions(attributes["dot_dimension_numbers"])[2]
            inner = math.prod(self.shapes[uses[0]][dim] for dim in contracted)
            return Work(name, uses, makes, macs=inner * math.prod(self.shapes[makes[0]]))
        if name == "stablehlo.convolution":
            kernel = self.shapes[uses[1]]
            features = kernel[conv_dimensions(attributes["dimension_numbers"])["kernel_output_feature"]]
            inner = math.prod(kernel) // max(1, features)
            return Work(name, uses, makes, macs=inner * math.prod(self.shapes[makes[0]]))
        if name == "stablehlo.while":
            blocks = [region.blocks[0] for region in op.regions]
            for block in blocks:
                for value, sharding in zip(block.arguments, padded, strict=False):
                    self._add(value, sharding)
            made = tuple(
                self._block(block, tuple(self.numbers[value] for value in block.arguments))
                for block in blocks
            )
            return Work(name, uses, makes, blocks=made, trips=_trips(op))
        if name in ("stablehlo.case", "stablehlo.if"):
            return Work(name, uses, makes, blocks=tuple(self._block(r.blocks[0], ()) for r in op.regions))
        return Work(name, uses, makes)

    def _axes_of(self, op: Any) -> tuple[tuple[str, int], ...]:
        said = " ".join(str(each) for key, each in _named(op.attributes) if key != "out_sharding")
        return tuple((name, int(part or self.sizes[name])) for name, part in _AXIS.findall(said))


COLLECTIVES = {
    "sdy.all_reduce": "all_reduce",
    "sdy.reduce_scatter": "reduce_scatter",
    "sdy.all_gather": "all_gather",
    "sdy.all_to_all": "all_to_all",
    "sdy.collective_permute": "permute",
    "sdy.sharded_to_unreduced": "",
}
"""By operation of Shardy the collective that it becomes; others move nothing between devices."""
# A sharding names its mesh, or writes it out (from jaxlib 0.11 on): <@mesh, [{"x"}, {}]>, <mesh<["x"=2]>, [{"x"}, {}]>.
_SHARDING = re.compile(r"<(?:@\w+|mesh<[^>]*>), \[((?:\{[^}]*\}(?:p\d+)?(?:, )?)*)\]")
_DIMENSION = re.compile(r"\{([^}]*)\}")
_AXIS = re.compile(r'"([^"]+)"(?!=)(?::\(\d+\)(\d+))?')


def _named(attributes: Any) -> list[tuple[str, Any]]:
    return [
        (each, attributes[each]) if isinstance(each, str) else (each.name, each.attr) for each in attributes
    ]


def _tensor_of(text: str) -> tuple[tuple[int, ...], str]:
    """Return shape and element type of ``tensor<4x8xf32>``; no shape of what is no tensor."""
    found = re.fullmatch(r"tensor<((?:\d+x)*)([^,>]+(?:<[^>]*>)?)(?:,.*)?>", text)
    if found is None:
        return (), "i32"
    return tuple(int(size) for size in found[1].split("x")[:-1]), found[2]


def _trips(loop: Any) -> int:
    """Return the constant that a loop's counter is compared with; 1 where there is none."""
    condition = loop.regions[0].blocks[0]
    for view in condition.operations:
        if view.operation.name != "stablehlo.compare":
            continue
        for value in view.operation.operands:
            owner = value.owner
            is_made = hasattr(owner, "name") and owner.name in ("sdy.constant", "stablehlo.constant")
            found = re.search(r"dense<(\d+)>", str(owner.attributes["value"])) if is_made else None
            if found:
                return max(1, int(found[1]))
    return 1


def _parsed(source: Any) -> Any:
    """Return a module of its own in the present context."""
    if not isinstance(source, str | bytes):
        source = module_bytecode(source)
    return parsed_module(_mlir.ir.Context.current, source)
