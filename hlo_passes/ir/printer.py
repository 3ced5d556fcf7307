"""Print modules in this package's textual form, MLIR-like with one instruction a line.

The text is exact: ``parser.parse_module`` reads it back to the same module, constants to the bit. Attributes
come from the dataclass fields of the operation; a field equal to its default is left out.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import numpy as np

from hlo_passes.ir.location import UNKNOWN, Location
from hlo_passes.ir.module import Computation, Instruction, Module
from hlo_passes.ir.op import Attribute, Op, Structured, attribute_fields
from hlo_passes.ir.types import TensorType, dtype_name

MAX_PRINTED_ELEMENTS = 16
"""Arrays with more elements than this print as the hexadecimal of their bytes."""

_PLAIN = re.compile(r"[\w.$-]+")


def print_module(module: Module) -> str:
    """Return the text of a module."""
    donated = f" donated({', '.join(map(str, module.donated))})" if module.donated else ""
    axes = ", ".join(f"{json.dumps(name)} = {size}" for name, size in module.mesh)
    mesh = f" mesh({axes})" if module.mesh else ""
    lines = [f"module {symbol(module.name)} entry {symbol(module.entry)}{donated}{mesh} {{"]
    for computation in module.computations:
        lines += _computation_lines(computation, "  ")
    lines.append("}")
    return "\n".join(lines) + "\n"


def print_computation(computation: Computation) -> str:
    """Return the text of one computation."""
    return "\n".join(_computation_lines(computation, "")) + "\n"


def print_instruction(instruction: Instruction) -> str:
    """Return the text of one instruction; over several lines when it carries regions."""
    return "\n".join(_instruction_lines(instruction, ""))


def print_header(computation: Computation) -> str:
    """Return the first line of a computation without its opening brace."""
    parameters = ", ".join(f"{value}: {value.type}" for value in computation.parameters)
    return f"{symbol(computation.name)}({parameters})"


def symbol(name: str) -> str:
    """Return ``@name``, quoted when the name is not a plain word."""
    return f"@{name}" if _PLAIN.fullmatch(name) else f"@{json.dumps(name)}"


def _computation_lines(computation: Computation, indent: str) -> list[str]:
    lines = [f"{indent}{print_header(computation)} {{"]
    for instruction in computation.instructions:
        lines += _instruction_lines(instruction, indent + "  ")
    results = ", ".join(map(str, computation.results))
    lines.append(f"{indent}  return {results}".rstrip())
    lines.append(f"{indent}}}")
    return lines


def _instruction_lines(instruction: Instruction, indent: str) -> list[str]:
    results = ", ".join(value.name for value in instruction.results)
    head = f"{indent}{results}{' = ' if results else ''}{instruction.op.name}"
    head += f"({', '.join(value.name for value in instruction.operands)}){_attributes(instruction.op)}"
    types = ", ".join(str(value.type) for value in instruction.results)
    tail = f"{' : ' if types else ''}{types}{_location(instruction.location)}"
    if not instruction.regions:
        return [head + tail]
    lines = [f"{head} ["]
    for region in instruction.regions:
        lines += _computation_lines(region, indent + "  ")
    lines.append(f"{indent}]{tail}")
    return lines


def _location(location: Location) -> str:
    if location == UNKNOWN:
        return ""
    column = f":{location.column}" if location.column else ""
    parts = [f"{json.dumps(location.file)}:{location.line}{column}"]
    parts += [json.dumps(location.function)] if location.function else []
    parts += ["provisional"] if location.is_provisional else []
    parts += [f"in {json.dumps(location.scope)}"] if location.scope else []
    parts += [f"[{', '.join(location.transforms)}]"] if location.transforms else []
    return f" loc({' '.join(parts)})"


def _attributes(op: Op) -> str:
    text = _fields(op)
    return f" {{{text}}}" if text else ""


def _fields(value: Structured) -> str:
    shown: list[str] = []
    for field in attribute_fields(type(value)):
        current = getattr(value, field.name)
        if not _is_default(field, current):
            shown.append(f"{field.name} = {print_attribute(current)}")
    return ", ".join(shown)


def _is_default(field: dataclasses.Field[Any], current: object) -> bool:
    default = field.default
    return default is not dataclasses.MISSING and type(default) is type(current) and default == current


def print_attribute(value: Attribute) -> str:
    """Return the text of one attribute value.

    Raises:
      TypeError: the value's class has no textual form.
    """
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _float(value)
        case str():
            return json.dumps(value)
        case tuple():
            return f"[{', '.join(map(print_attribute, value))}]"
        case TensorType():
            return str(value)
        case np.ndarray():
            return print_array(value)
        case _ if dataclasses.is_dataclass(value):
            return f"#{type(value).__name__}<{_fields(value)}>"
        case _:
            raise TypeError(f"attribute {value!r} of type {type(value).__name__} has no textual form")


def _float(value: float) -> str:
    return (
        repr(value) if math.isfinite(value) else ("nan" if value != value else "inf" if value > 0 else "-inf")
    )


def print_array(array: np.ndarray) -> str:
    """Return ``dense<values : tensor<...>>``; NaNs as bits, big arrays as the hexadecimal of their bytes."""
    array = np.asarray(array)
    type_ = TensorType(array.shape, dtype_name(array.dtype))
    if array.size > MAX_PRINTED_ELEMENTS:
        return f'dense<"0x{np.ascontiguousarray(array).tobytes().hex()}" : {type_}>'
    return f"dense<{_elements(array)} : {type_}>"


def _elements(array: np.ndarray) -> str:
    if array.ndim == 0:
        return element_text(array[()])
    return f"[{', '.join(_elements(part) for part in array)}]"


def element_text(element: Any) -> str:
    """Return the shortest text that reads back to exactly this numpy scalar."""
    if element.dtype == np.bool_:
        return "true" if element else "false"
    if element.dtype.kind in "iu":
        return str(int(element))
    if element.dtype.kind == "c":
        return f"({element_text(element.real)}, {element_text(element.imag)})"
    with np.errstate(invalid="ignore"):  # a signalling NaN is a value like any other
        return _float_text(element)


def _float_text(element: Any) -> str:
    if np.isinf(element):
        return "inf" if element > 0 else "-inf"
    wide = element.astype(np.float32) if element.dtype.itemsize < 4 else element
    magnitude = abs(float(wide))
    if magnitude == 0 or 1e-4 <= magnitude < 1e16:
        short = np.format_float_positional(wide, unique=True, trim="0")
    else:
        short = np.format_float_scientific(wide, unique=True, trim="-", exp_digits=1)
    if np.array(float(short)).astype(element.dtype).tobytes() == element.tobytes():
        return short
    return f"0x{element.tobytes()[::-1].hex()}"
