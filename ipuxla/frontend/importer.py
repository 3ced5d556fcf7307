"""StableHLO, as text, bytecode, portable artifact or MLIR module, to this project's HLO IR.

jaxlib's MLIR parses, verifies, expands composites and legalizes CHLO; left for here is reading each operation
once. Calls stay calls. The user's source lines and the names he gave to parts of the program are kept.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from hlo_passes import ops
from hlo_passes.errors import MalformedStableHLO, UnsupportedOp, UnsupportedType
from hlo_passes.ir import (
    UNKNOWN,
    Computation,
    Instruction,
    Location,
    Module,
    Op,
    TensorType,
    Value,
    placed,
)
from hlo_passes.passes import inline_where
from ipuxla._jax_compat import Function
from ipuxla.frontend import elements, narrow
from ipuxla.frontend._jax_compat import device_counts, mlir, mlir_ir, read_stablehlo, says_shardings
from ipuxla.frontend.attributes import text as _text
from ipuxla.frontend.collectives import Devices, Mesh
from ipuxla.frontend.complex_order import ordered_reader
from ipuxla.frontend.constants import array_of
from ipuxla.frontend.legalization import LEGALIZED
from ipuxla.frontend.locations import read_location
from ipuxla.frontend.nested import Operand, Types, arranged, flat
from ipuxla.frontend.readers import PLAIN, READERS
from ipuxla.frontend.transfers import TRANSFERS
from ipuxla.frontend.untrusted import answer, may_end_the_process, read_apart, require_shallow

MAX_RANK = 30
"""Dimensions of a tensor: NumPy arrays have 64, and hold a tensor's parts by cell and by element."""
MAX_BYTES = 1 << 50
"""Of a tensor: sizes of what is computed from it stay within 64 bits."""
MAX_CALLS = 100
"""Functions that call one another; passes follow calls by calling themselves."""

_WITH_SHAPE_OPERANDS = (
    *("real_dynamic_slice", "dynamic_broadcast_in_dim", "dynamic_conv", "dynamic_gather", "dynamic_iota"),
    *("dynamic_pad", "dynamic_reshape"),
)
_HINTS = {
    **dict.fromkeys(_WITH_SHAPE_OPERANDS, "shape operands that are constants"),
    "set_dimension_size": "a size that is a constant",
}
_DEFAULT_HINT = "elementwise operations, broadcasts, reshapes, slices, reductions and dot_general instead"


def import_stablehlo(
    source: mlir.Source, name: str | None = None, untrusted: bool = False, mesh: Mesh = ()
) -> Module:
    """Return the HLO module of a StableHLO program.

    Args:
      source: StableHLO text, or ``bytes`` of MLIR bytecode or a portable artifact, or an MLIR module,
        which is left as it is.
      name: name of the module; by default its own.
      untrusted: whether text or bytes are read in a child process first: on some bytes, jaxlib's reader ends the process.
      mesh: axes of the devices that run it, each a partition; by default as many as the module itself names.

    Returns:
      A module of the functions that ``main`` (or the only public function) reaches, ``main`` first.

    Raises:
      MalformedStableHLO: the source is no valid StableHLO module.
      UnsupportedOp: an operation, or an option of one, is outside the supported set.
      UnsupportedType: a type is dynamic or otherwise outside the IR's.
    """
    try:
        require_shallow(source)
        untrusted = untrusted or may_end_the_process(source)
        return _import(source, name, untrusted, mesh)
    except (ValueError, RuntimeError) as error:  # bindings raise RuntimeError at texts that are not UTF-8
        what = "it nests too deep to follow" if isinstance(error, RecursionError) else error
        raise MalformedStableHLO(
            f"not a valid StableHLO module: {what}\n"
            "  expected: text, bytecode or a portable artifact, as jax.export and stablehlo-translate write\n"
            "  try: check the place named above, or export the module again"
        ) from None


def _import(source: mlir.Source, name: str | None, untrusted: bool = False, mesh: Mesh = ()) -> Module:
    """Import as it stands; what that refuses for its types, once more after MLIR wrote it without these.

    Not at once: deriving shapes moves and merges constants, and layers that were alike in the text no longer are.
    """
    options: dict[str, bool] = {}
    while True:
        try:
            return _Importer(_read(source, options, untrusted), mesh).module(name)
        except (UnsupportedType, UnsupportedOp) as error:
            found = {
                "dequantize": "!quant" in str(error),
                "refine": "dynamic" in str(error) or "?" in str(error),
            }
            new = {option: True for option, is_needed in found.items() if is_needed and option not in options}
            if not new:
                raise
            options |= new


def read_for_another(request: bytes) -> bytes:
    """Read and import a module for the process that asked, see ``untrusted.read_apart``."""
    return answer(request, lambda module: _Importer(module).module(None))


def _read(source: mlir.Source, options: dict[str, bool], untrusted: bool) -> mlir.Operation:
    try:
        return read_stablehlo(
            read_apart(source, options) if untrusted and isinstance(source, str | bytes) else source,
            **options,
        )
    except ValueError as error:
        if "dequantize" not in options:
            raise
        raise UnsupportedType(
            f"an operation on quantized types has no form in integers and floats: {error}\n"
            "  expected: operations that the specification defines by dequantizing, computing and quantizing\n"
            "  try: uniform_dequantize before it and uniform_quantize behind it"
        ) from None


class _Importer:
    """Reads one MLIR module; remembers types, locations and constants, which MLIR shares too."""

    def __init__(self, module: mlir.Operation, mesh: Mesh = ()) -> None:
        self._module = module
        self.devices = _devices(module, mesh)
        self.meshes: dict[str, mlir.Operation] = {}
        self._functions: dict[str, mlir.Operation] = {}
        self._types: dict[mlir.Type, Types] = {}
        self._locations: dict[object, Location] = {}
        self._constants: dict[mlir.Attribute | str, ops.Constant] = {}
        self._words: dict[mlir.Attribute, str] = {}
        self.has_narrow = False
        self.streams: Iterator[int] = itertools.count()

    def module(self, name: str | None) -> Module:
        for view in self._module.regions[0].blocks[0].operations:
            op = view.operation
            if op.name == "func.func":
                self._functions[op.attributes["sym_name"].value] = op
            elif op.name == "sdy.mesh":  # it only names devices
                self.meshes[op.attributes["sym_name"].value] = op
            else:
                raise self.unsupported(
                    op, self.location(op, UNKNOWN), "only functions at the top of the module"
                )
        entry = self._entry()
        order, computations, called_at = [entry], list[Computation](), {entry: UNKNOWN}
        for function in order:
            computations.append(self.function(function, called_at[function]))
            for instruction in computations[-1].walk():
                found = [callee for callee in instruction.op.callees if callee not in called_at]
                order += found
                called_at.update(dict.fromkeys(found, instruction.location))
        _require_no_recursion(computations)
        own = _text(self._module, "sym_name") or "module"
        donated, declared = self._donated(entry), self._declared(entry)
        module = Module(name or own, tuple(computations), entry, donated, declared, self.devices.mesh)
        return _with_effects_in_place(module)

    def _declared(self, entry: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return element types of the entry's arguments and results, where some are not what holds them."""
        if not self.has_narrow:
            return ((), ())
        type_ = self._functions[entry].attributes["function_type"].value

        def listed(types: Sequence[mlir.Type]) -> tuple[str, ...]:
            return tuple(
                narrow.narrow_element(str(each)) or leaf.dtype
                for each in types
                for leaf in flat(self.type(each, UNKNOWN))
            )

        return listed(type_.inputs), listed(type_.results)

    def _entry(self) -> str:
        if "main" in self._functions:
            return "main"
        public = [name for name, op in self._functions.items() if _text(op, "sym_visibility") != "private"]
        if len(public) != 1:
            found = ", ".join(public) or "none"
            raise ValueError(f"expected a function @main or one public function, got {found}")
        return public[0]

    def _donated(self, entry: str) -> tuple[int, ...]:
        found: list[int] = []
        for position, each in enumerate(self._functions[entry].attributes.get("arg_attrs") or ()):
            if "jax.buffer_donor" in each or "tf.aliasing_output" in each:
                found.append(position)
        return tuple(found)

    def function(self, name: str, called_at: Location) -> Computation:
        """Read a function; what has no line of its own is said to come from where it is first called.

        That is provisional, as its own line is where it is a library's: inlining knows each call's. Scopes in it
        are as they are: they go on from any call's.
        """
        op = self._functions[name]
        where = self.location(op, called_at).without_scope()
        where = dataclasses.replace(where, is_provisional=where.is_known)
        blocks = list(op.regions[0].blocks)
        if len(blocks) != 1:
            raise self.unsupported(op, where, f"a body of one block for @{name}")
        return _Block(self, name, where).read(blocks[0])

    def operation(self, op: mlir.Operation, results: list[TensorType], location: Location) -> Op:
        kind = op.name
        plain = PLAIN.get(kind)
        if plain is not None:
            accuracy = str(op.attributes["result_accuracy"]) if "result_accuracy" in op.attributes else ""
            if "TOLERANCE" in accuracy:  # functions here have one accuracy, which DEFAULT and HIGHEST ask for
                raise self.unsupported(op, location, "result_accuracy of mode DEFAULT or HIGHEST")
            return plain
        reader = READERS.get(kind)
        if reader is None:
            raise self.unsupported(op, location, _HINTS.get(kind.removeprefix("stablehlo."), _DEFAULT_HINT))
        return reader(self, op, results)

    def unsupported(self, op: mlir.Operation, location: Location, hint: str) -> UnsupportedOp:
        target = f" @{op.attributes['call_target_name'].value}" if op.name == "stablehlo.custom_call" else ""
        return UnsupportedOp(op.name + target, str(location), hint)

    def type(self, type_: mlir.Type, where: Location) -> Types:
        """Return a ``TensorType``, or a list of such for a tuple, an empty one for a token."""
        found = self._types.get(type_)
        if found is None:
            try:
                found = self._read_type(type_, where)
            except UnsupportedType as error:
                raise UnsupportedType(f"{error}\n  from: {where}") from None
            self._types[type_] = found
        return found

    def _read_type(self, type_: mlir.Type, where: Location) -> Types:
        if isinstance(type_, mlir_ir.TupleType):
            return [self.type(type_.get_type(number), where) for number in range(type_.num_types)]
        text = str(type_)
        if narrow.narrow_element(text) is not None:
            self.has_narrow = True
            return narrow.stored_type(text)
        return [] if text == "!stablehlo.token" else _of_bearable_size(TensorType.parse(text))

    def location(self, op: mlir.Operation, otherwise: Location) -> Location:
        location = op.location
        key = location.attr
        found = self._locations.get(key)
        if found is None:
            found = self._locations[key] = read_location(location, of_hlo=bool(self.devices.mesh))
        return found.or_line_of(otherwise)

    def constant(self, attribute: mlir.Attribute | str, type_: TensorType) -> ops.Constant:
        found = self._constants.get(attribute)
        if found is None:
            found = self._constants[attribute] = ops.Constant(array_of(attribute, type_), type_)
        return found

    def word(self, op: mlir.Operation, name: str) -> str:
        """Return the keyword of an enumeration, ``#stablehlo<... LT>``; empty when it is absent."""
        attributes = op.attributes
        return self.keyword(attributes[name]) if name in attributes else ""

    def keyword(self, attribute: mlir.Attribute) -> str:
        found = self._words.get(attribute)
        if found is None:
            found = self._words[attribute] = str(attribute).rsplit(" ", 1)[-1].rstrip(">")
        return found


class _Block:
    """Reads the block of a function or region; ``where`` is for operations without a line of their own.

    A region may read values of the blocks around it (``outer``). Ours are closed: each such value becomes an
    operand, ``captured``, shared by all regions of the operation, and a parameter; in a region that is applied to
    elements a constant becomes one of its own.
    """

    def __init__(
        self,
        importer: _Importer,
        name: str,
        where: Location,
        outer: _Block | None = None,
        captured: dict[Value, int] | None = None,
        is_of_elements: bool = False,
    ) -> None:
        self.importer = importer
        self.name = name
        self.where = where
        self.outer = outer
        self.captured = {} if captured is None else captured
        self.is_of_elements = is_of_elements
        self.num_arguments = 0
        self.env: dict[mlir.Value, Operand] = {}  # MLIR value: a Value, or nested lists of them for a tuple
        self.instructions: list[Instruction] = []
        self.num_results = 0

    def read(self, block: mlir.Block) -> Computation:
        parameters: list[Value] = []
        for argument in block.arguments:
            shape = self.importer.type(argument.type, self.where)
            values = [Value(f"%arg{n}", t) for n, t in enumerate(flat(shape), len(parameters))]
            parameters += values
            self.env[argument] = arranged(shape, iter(values))
        self.num_arguments = len(parameters)
        for view in block.operations:
            op = view.operation
            location = self.importer.location(op, self.where)
            operands = self.operands(op, location)
            if op.name in _RETURNS:
                return Computation(
                    self.name, tuple(parameters), tuple(self.instructions), tuple(flat(operands))
                )
            reader = LEGALIZED.get(op.name) or TRANSFERS.get(op.name)
            reader = reader or ordered_reader(op, operands, self.importer.word)
            if reader is not None:
                made = reader(self, op, operands, location)
                self.env.update(zip(op.results, made, strict=True))
            else:
                self.instruction(op, tuple(flat(operands)), location)
        raise ValueError(f"@{self.name} does not return")

    def operands(self, op: mlir.Operation, location: Location) -> list[Operand]:
        env = self.env
        try:
            return [env[operand] if operand in env else self.capture(operand) for operand in op.operands]
        except KeyError:
            hint = "a region that reads only its own arguments"
            raise self.importer.unsupported(op, location, hint) from None

    def capture(self, operand: mlir.Value) -> Operand:
        """Return a value of a block around as a parameter of this one; a constant becomes one of its own.

        Raises:
          KeyError: no block around defines it.
        """
        outer = self.outer
        if outer is None:
            raise KeyError(operand)
        if self.is_of_elements and getattr(operand.owner, "name", "") == "stablehlo.constant":
            self.instruction(operand.owner, (), self.where)
            return self.env[operand]
        found = outer.env[operand] if operand in outer.env else outer.capture(operand)
        parameters = [self.parameter(value) for value in flat(found)]
        self.env[operand] = arranged(found, iter(parameters))
        return self.env[operand]

    def parameter(self, value: Value) -> Value:
        """Return the parameter that stands for a captured value."""
        number = self.captured.setdefault(value, len(self.captured))
        return Value(f"%arg{self.num_arguments + number}", value.type)

    def closed_regions(
        self, op: mlir.Operation, location: Location, of_elements: bool = False
    ) -> tuple[tuple[Value, ...], tuple[Computation, ...]]:
        """Return what the regions of an operation read from here, and the regions, which all take it."""
        captured: dict[Value, int] = {}
        blocks = [
            _Block(self.importer, f"region{number}", location, self, captured, of_elements)
            for number in range(len(op.regions))
        ]
        read = [b.read(region.blocks[0]) for b, region in zip(blocks, op.regions, strict=True)]
        closed = (
            dataclasses.replace(body, parameters=(*body.parameters, *map(block.parameter, captured)))
            for block, body in zip(blocks, read, strict=True)
        )
        return tuple(captured), tuple(closed)

    def instruction(self, op: mlir.Operation, operands: tuple[Value, ...], location: Location) -> None:
        importer, results = self.importer, list(op.results)
        shapes = [importer.type(result.type, location) for result in results]
        types = flat(shapes)
        if op.name in _CONTROL:
            captured, regions = self.closed_regions(op, location)
            made, operands = _CONTROL[op.name](len(captured)), (*operands, *captured)
        else:
            made, regions = importer.operation(op, types, location), ()
            if isinstance(made, ops.Elementwise) and any(
                v.type.is_complex and v.type.dtype not in made.accepts for v in operands
            ):
                raise self.unsupported(op, location, "elements that are not complex")
        if isinstance(made, ops.DotGeneral):
            operands = self.of_one_type(operands, types[0], location)
        if op.name not in _CONTROL and len(op.regions):
            values = self.on_elements(op, made, operands, types, location)
        elif importer.has_narrow or isinstance(made, ops.BitcastConvert):
            values = self.narrowed(op, made, operands, types, location, regions)
        else:
            values = self.append(made, operands, types, location, regions)
        remaining = iter(values)
        for result, shape in zip(results, shapes, strict=True):
            self.env[result] = arranged(shape, remaining)

    def of_one_type(
        self, operands: tuple[Value, ...], result: TensorType, location: Location
    ) -> tuple[Value, ...]:
        """Return a contraction's operands converted to its result's type (floats: f32 at least) if theirs differ."""
        if len({value.type.dtype for value in operands}) == 1:
            return operands
        dtype = "f32" if result.is_float and result.bits < 32 else result.dtype
        return tuple(
            value if value.type.dtype == dtype else self.emit(ops.Convert(dtype), [value], location)
            for value in operands
        )

    def on_elements(
        self,
        op: mlir.Operation,
        made: Op,
        operands: Sequence[Value],
        types: Sequence[TensorType],
        location: Location,
    ) -> Sequence[Value]:
        """Append an operation whose regions are applied to elements, written out where they are no expressions."""
        captured, regions = self.element_regions(op, location)
        is_complex_pooling = isinstance(made, ops.SelectAndScatter) and types[0].is_complex
        if elements.is_expression(regions) and not captured and not is_complex_pooling:
            return self.append(made, operands, types, location, regions)
        source = elements.written_out(made, [v.type for v in operands], [v.type for v in captured], regions)
        return self.inlined(source, (*operands, *captured), location)

    def element_regions(
        self, op: mlir.Operation, location: Location
    ) -> tuple[tuple[Value, ...], tuple[Computation, ...]]:
        """Return what regions that are applied to elements read from here, and the regions, without calls."""
        captured, regions = self.closed_regions(op, location, of_elements=True)
        function = functools.partial(self.importer.function, called_at=location)
        regions = tuple(elements.without_calls(region, function) for region in regions)
        if any(region.has_effect for region in regions):
            hint = "a region of elements that exchanges nothing with the host or other devices"
            raise self.unsupported(op, location, hint)
        return captured, regions

    def traced(
        self,
        function: Function,
        operands: Sequence[Value],
        types: Sequence[TensorType],
        location: Location,
    ) -> Sequence[Value]:
        """Append what a JAX function does to arrays.

        Raises:
          ValueError: its results are not of these types.
        """
        source = elements.traced(function, [value.type for value in operands])
        values = self.inlined(source, operands, location)
        if [value.type for value in values] != list(types):
            raise ValueError(f"results {', '.join(str(value.type) for value in values)}")
        return values

    def inlined(self, source: mlir.Source, arguments: Sequence[Value], location: Location) -> Sequence[Value]:
        """Append what an MLIR module's function computes."""
        computation = placed(elements.flattened(_import(source, None)), location)
        env = dict(zip(computation.parameters, arguments, strict=True))
        for i in computation.instructions:
            read, results = [env[v] for v in i.operands], [v.type for v in i.results]
            env.update(zip(i.results, self.append(i.op, read, results, location, i.regions), strict=True))
        return [env[v] for v in computation.results]

    def narrowed(
        self,
        op: mlir.Operation,
        made: Op,
        operands: Sequence[Value],
        types: Sequence[TensorType],
        location: Location,
        regions: Sequence[Computation] = (),
    ) -> Sequence[Value]:
        """Append an operation that may be of integers narrower than what holds them."""

        def emit(extra: Op, *values: Value, regions: Sequence[Computation] = ()) -> Value:
            return self.emit(extra, values, location, regions)

        found = [narrow.narrow_element(str(value.type)) for value in (*op.operands, *op.results)]
        if isinstance(made, ops.BitcastConvert):
            source, target = (f or t.dtype for f, t in zip(found, (operands[0].type, *types), strict=True))
            if any(found) or (source == "i1") != (target == "i1"):
                return [narrow.repacked(source, target, operands[0], emit)]
        if isinstance(made, ops.Convert) and found[-1] in narrow.FORMATS:  # rounded once, from what it was
            return [narrow.rounded(found[-1], operands[0], emit)]
        if op.name in narrow.READS_BITS and found[0]:
            operands = [narrow.masked(found[0], value, emit) for value in operands]
        values = self.append(made, operands, types, location, regions)
        if not found[-1]:
            return values
        of_float = bool(operands) and operands[0].type.is_inexact
        return [*values[:-1], narrow.settled(made, found[-1], values[-1], of_float, emit)]

    def append(
        self,
        op: Op,
        operands: Sequence[Value],
        types: Sequence[TensorType],
        location: Location,
        regions: Sequence[Computation] = (),
    ) -> tuple[Value, ...]:
        values = tuple(Value(f"%{number}", t) for number, t in enumerate(types, self.num_results))
        self.num_results += len(values)
        self.instructions.append(Instruction(op, tuple(operands), values, tuple(regions), location))
        return values

    def emit(
        self, op: Op, operands: Sequence[Value], location: Location, regions: Sequence[Computation] = ()
    ) -> Value:
        return self.emit_all(op, operands, location, regions)[0]

    def emit_all(
        self, op: Op, operands: Sequence[Value], location: Location, regions: Sequence[Computation] = ()
    ) -> tuple[Value, ...]:
        types = op.infer(*(value.type for value in operands), regions=regions)
        return self.append(op, operands, types, location, regions)

    @property
    def devices(self) -> Devices:
        return self.importer.devices

    def mesh_named(self, name: str) -> mlir.Operation:
        return self.importer.meshes[name]

    def function(self, name: str, location: Location) -> Computation:
        return self.importer.function(name, location)

    def result_types(self, op: mlir.Operation, location: Location) -> list[TensorType]:
        return flat([self.importer.type(result.type, location) for result in op.results])

    def unsupported(self, op: mlir.Operation, location: Location, hint: str) -> UnsupportedOp:
        return self.importer.unsupported(op, location, hint)


def _of_bearable_size(type_: TensorType) -> TensorType:
    """Return a type whose dimensions and bytes arrays can count.

    Raises:
      UnsupportedType: there are too many.
    """
    if type_.rank > MAX_RANK or type_.size_bytes >= MAX_BYTES:
        shown = f"a tensor of rank {type_.rank}" if type_.rank > MAX_RANK else f"{type_}"
        raise UnsupportedType(
            f"{shown} is beyond every machine\n  expected: at most {MAX_RANK} dimensions and {MAX_BYTES:,} bytes\n"
            "  try: reshape away dimensions of size 1, or compute in parts"
        )
    return type_


def _require_no_recursion(computations: Sequence[Computation]) -> None:
    """Raise ValueError if functions call each other in a circle, or one another too deep to follow."""
    callees = {c.name: {callee for i in c.walk() for callee in i.op.callees} for c in computations}
    depth, level = 0, set(callees)
    while level:  # what only functions of earlier rounds are called by leaves in each round
        called = {callee for name in level for callee in callees[name]} & level
        if called == level:
            raise ValueError(f"functions call each other in a circle: {', '.join(sorted(called)[:5])}")
        depth, level = depth + 1, called
    if depth > MAX_CALLS:
        raise ValueError(f"functions call one another {depth} deep, {MAX_CALLS} at most are read")


def _devices(module: mlir.Operation, mesh: Mesh) -> Devices:
    """Return the devices of a mesh, all partitions, or those that a module itself says it is written for."""
    if mesh:
        return Devices(1, math.prod(size for _, size in mesh), mesh)
    replicas, partitions = device_counts(module)
    has_mesh = any(view.operation.name == "sdy.mesh" for view in module.regions[0].blocks[0].operations)
    if has_mesh and says_shardings(module):
        return Devices()  # written for all devices together: ``partition_source`` is asked first
    axes = (("replica", replicas), ("partition", partitions))
    return Devices(replicas, partitions, tuple(axis for axis in axes if axis[1] > 1))


def _with_effects_in_place(module: Module) -> Module:
    """Return the module with what exchanges items with the host, or with devices, written out where it is called."""
    if not any(instruction.op.has_effect for instruction in module.walk()):
        return module
    written_out = inline_where(module, lambda callee: callee.has_effect)
    kept = tuple(c for c in written_out.computations if c.name == module.entry or not c.has_effect)
    return dataclasses.replace(written_out, computations=kept)


_RETURNS = frozenset({"func.return", "stablehlo.return"})

_CONTROL: dict[str, Callable[[int], Op]] = {
    "stablehlo.while": ops.While,
    "stablehlo.case": lambda captured: ops.Case(),
    "stablehlo.if": lambda captured: ops.If(),
}
"""Loops and branches, made from the number of values that their regions read from outside."""
