"""Read the textual form that ``printer`` writes.

Result types are read, not inferred, so that an invalid module can be written down and shown to the verifier.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from hlo_passes.errors import HloError
from hlo_passes.ir.lexer import Lexer, Token
from hlo_passes.ir.location import UNKNOWN, Location
from hlo_passes.ir.module import Computation, Instruction, Module, Value
from hlo_passes.ir.op import ATTRIBUTES, OPS, Attribute, Op, attribute_fields, result_type_field
from hlo_passes.ir.types import TensorType

_T = TypeVar("_T")

Nested: TypeAlias = str | Sequence["Nested"]
"""Texts of elements, nested as a constant's brackets are."""

_INTEGER = re.compile(r"-?\d+")


def parse_module(text: str) -> Module:
    """Return the module that ``text`` describes; it is not verified.

    Raises:
      ParseError: the text is not in the printer's form; line, column, what was expected and got.
    """
    return _Parser(text).module()


def parse_computation(text: str) -> Computation:
    """Return the computation that ``text`` describes. Raises as ``parse_module`` does."""
    parser = _Parser(text)
    computation = parser.computation()
    parser.end()
    return computation


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.lexer = Lexer(text)

    def end(self) -> None:
        self.lexer.take("end", "the end of the text")

    def module(self) -> Module:
        lexer = self.lexer
        lexer.mark("module")
        name = lexer.symbol()
        lexer.mark("entry")
        entry = lexer.symbol()
        donated = ()
        if lexer.accept("donated"):
            lexer.mark("(")
            donated = self.list(")", lexer.integer)
        mesh = ()
        if lexer.accept("mesh"):
            lexer.mark("(")
            mesh = self.list(")", self.axis)
        lexer.mark("{")
        computations: list[Computation] = []
        while not lexer.accept("}"):
            computations.append(self.computation())
        self.end()
        return Module(name, tuple(computations), entry, donated, mesh=mesh)

    def axis(self) -> tuple[str, int]:
        name = self.lexer.string()
        self.lexer.mark("=")
        return name, self.lexer.integer()

    def computation(self) -> Computation:
        lexer = self.lexer
        name = lexer.symbol()
        values: dict[str, Value] = {}
        lexer.mark("(")
        parameters = self.list(")", lambda: self.parameter(values))
        lexer.mark("{")
        instructions: list[Instruction] = []
        while not lexer.accept("return"):
            instructions.append(self.instruction(values))
        results = [] if lexer.sees("}") else [self.use(values)]
        while not lexer.sees("}"):
            lexer.mark(",")
            results.append(self.use(values))
        lexer.mark("}")
        return Computation(name, parameters, tuple(instructions), tuple(results))

    def parameter(self, values: dict[str, Value]) -> Value:
        name = self.new_name(values)
        self.lexer.mark(":")
        values[name] = Value(name, self.type())
        return values[name]

    def new_name(self, values: dict[str, Value]) -> str:
        token = self.lexer.take("value", "a value name such as %0, or return")
        if token.text in values:
            self.lexer.fail("a name not defined before", token)
        return token.text

    def use(self, values: dict[str, Value]) -> Value:
        token = self.lexer.take("value", "a value such as %0")
        if token.text not in values:
            self.lexer.fail("a value defined above", token)
        return values[token.text]

    def instruction(self, values: dict[str, Value]) -> Instruction:
        lexer = self.lexer
        names: list[str] = []
        if lexer.next.kind == "value":
            names.append(self.new_name(values))
            while lexer.accept(","):
                names.append(self.new_name(values))
            lexer.mark("=")
        op_token = lexer.take("word", "an operation, a value name or return")
        cls = OPS.get(op_token.text)
        if cls is None:
            lexer.fail("a known operation", op_token)
        lexer.mark("(")
        operands = self.list(")", lambda: self.use(values))
        fields = self.fields(cls, "}") if lexer.accept("{") else {}
        regions = self.regions() if lexer.accept("[") else ()
        types = self.result_types(len(names))
        location = self.location() if lexer.accept("loc") else UNKNOWN
        op = self.make(cls, self.with_result_types(cls, fields, types), op_token)
        results = tuple(Value(name, type_) for name, type_ in zip(names, types, strict=True))
        values.update((value.name, value) for value in results)
        return Instruction(op, operands, results, regions, location)

    def regions(self) -> tuple[Computation, ...]:
        found: list[Computation] = []
        while not self.lexer.accept("]"):
            found.append(self.computation())
        return tuple(found)

    def result_types(self, count: int) -> tuple[TensorType, ...]:
        types: list[TensorType] = []
        for number in range(count):
            self.lexer.mark("," if number else ":")
            types.append(self.type())
        return tuple(types)

    @staticmethod
    def with_result_types(
        op: type[Op], fields: dict[str, Attribute], types: tuple[TensorType, ...]
    ) -> dict[str, Attribute]:
        match result_type_field(op):
            case "types":
                return {**fields, "types": types}
            case "type" if types:
                return {**fields, "type": types[0]}
            case _:
                return fields

    def make(self, cls: type[Any], fields: dict[str, Attribute], where: Token) -> Any:
        """Build an operation or attribute, turning what its constructor refuses into a positioned error."""
        for field in dataclasses.fields(cls):
            no_default = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if no_default and field.name not in fields:
                self.lexer.fail(f"attribute {field.name!r} of {where.text}", where)
        try:
            return cls(**fields)
        except (HloError, ValueError, TypeError) as error:
            self.lexer.fail(f"valid attributes ({error})", where)

    def fields(self, cls: type[Any], closing: str) -> dict[str, Attribute]:
        known = {field.name for field in attribute_fields(cls)}
        found: dict[str, Attribute] = {}

        def one() -> None:
            token = self.lexer.take("word", "an attribute name")
            if token.text not in known or token.text in found:
                self.lexer.fail(f"one of {', '.join(sorted(known)) or 'no attributes'}, each once", token)
            self.lexer.mark("=")
            found[token.text] = self.attribute()

        self.list(closing, one)
        return found

    def list(self, closing: str, one: Callable[[], _T]) -> tuple[_T, ...]:
        """Read ``one`` after another, separated by commas, up to and with ``closing``."""
        items: list[_T] = []
        while not self.lexer.accept(closing):
            if items:
                self.lexer.mark(",")
            items.append(one())
        return tuple(items)

    def type(self) -> TensorType:
        token = self.lexer.take("type", "a type such as tensor<2x3xf32>")
        try:
            return TensorType.parse(token.text)
        except HloError:
            self.lexer.fail("a supported type such as tensor<2x3xf32>", token)

    def attribute(self) -> Attribute:
        lexer = self.lexer
        token = lexer.next
        match token.kind:
            case "number":
                lexer.take("number", "a number")
                return int(token.text) if _INTEGER.fullmatch(token.text) else float(token.text)
            case "string":
                return lexer.string()
            case "type":
                return self.type()
            case "attribute":
                return self.structured()
            case _:
                pass
        if lexer.accept("["):
            return self.list("]", self.attribute)
        if lexer.accept("dense"):
            return self.array()
        for word, value in (("true", True), ("false", False), ("none", None)):
            if lexer.accept(word):
                return value
        return lexer.fail("an attribute value")

    def structured(self) -> Attribute:
        token = self.lexer.take("attribute", "an attribute")
        cls = ATTRIBUTES.get(token.text[1:])
        if cls is None:
            self.lexer.fail("a known attribute class", token)
        self.lexer.mark("<")
        return self.make(cls, self.fields(cls, ">"), token)

    def array(self) -> np.ndarray:
        self.lexer.mark("<")
        start = self.lexer.next
        values = self.lexer.string() if start.kind == "string" else self.elements()
        self.lexer.mark(":")
        type_ = self.type()
        self.lexer.mark(">")
        try:
            with np.errstate(over="raise", invalid="ignore"):
                return _array(values, type_)
        except (ValueError, ArithmeticError, TypeError, KeyError):
            self.lexer.fail(f"elements that make up {type_}", start)

    def elements(self) -> Nested:
        """Read nested element texts; they get their type later."""
        if self.lexer.accept("["):
            return list(self.list("]", self.elements))
        for word in ("true", "false"):
            if self.lexer.accept(word):
                return word
        if self.lexer.accept("("):
            return " ".join(self.list(")", lambda: self.lexer.take("number", "a part of an element").text))
        return self.lexer.take("number", "an element").text

    def location(self) -> Location:
        lexer = self.lexer
        lexer.mark("(")
        file = lexer.string("a quoted file name")
        lexer.mark(":")
        line = lexer.integer("a line number")
        column = lexer.integer("a column number") if lexer.accept(":") else 0
        function = lexer.string() if lexer.next.kind == "string" else ""
        is_provisional = lexer.accept("provisional")
        scope = lexer.string("a quoted scope") if lexer.accept("in") else ""
        transforms = self.list("]", self.transform) if lexer.accept("[") else ()
        lexer.mark(")")
        return Location(file, line, column, function, scope, transforms, is_provisional)

    def transform(self) -> str:
        return self.lexer.take("word", "the name of a transform").text


def _array(values: Nested, type_: TensorType) -> np.ndarray:
    if isinstance(values, str) and values.startswith("0x") and type_.rank:
        return np.frombuffer(bytes.fromhex(values[2:]), type_.np_dtype).reshape(type_.shape)
    flat = [_element(text, type_.np_dtype) for text in _flatten(values)]
    return np.array(flat, type_.np_dtype).reshape(_shape(values, type_)).reshape(type_.shape)


def _flatten(values: Nested) -> list[str]:
    return [values] if isinstance(values, str) else [text for part in values for text in _flatten(part)]


def _shape(values: Nested, type_: TensorType) -> tuple[int, ...]:
    """Return the shape of the nesting; below an empty list, the type's."""
    shape: tuple[int, ...] = ()
    while not isinstance(values, str):
        shape += (len(values),)
        if not values:
            return shape + type_.shape[len(shape) :]
        values = values[0]
    if shape != type_.shape:
        raise ValueError(f"nesting {shape} is not {type_.shape}")
    return shape


def _element(text: str, dtype: np.dtype) -> Any:
    if dtype == np.bool_:
        return {"true": True, "false": False}[text]
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        real, imag = (_element(each, part) for each in text.split(" "))
        return np.array([real, imag], part).view(dtype)[0]
    if text.startswith("0x"):
        return np.frombuffer(bytes.fromhex(text[2:])[::-1], dtype)[0]
    return int(text) if dtype.kind in "iu" else np.array(float(text)).astype(dtype)[()]
