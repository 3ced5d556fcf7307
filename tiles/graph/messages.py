"""Lines of text made of printed tensors: the format as data, which a file may hold from anywhere, and its reading.

A message is what ``str.format`` makes of a template and of arguments that hold the values of several tensors, printed
one after another. It is text in the program (JSON), so a saved program shows what the traced function said, and calls
nothing: fields of the template reach elements and a few attributes of arrays, no others.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from tiles._jax_compat import Datum
from tiles.cached import cached_property
from tiles.files import is_a, is_dict, is_list, is_row, is_tuple, read_json

ATTRIBUTES = frozenset(
    {"T", "dtype", "imag", "itemsize", "nbytes", "ndim", "real", "shape", "size", "weak_type"}
)
"""What a field of a template may read of an array."""
MAX_DIGITS = 4
"""Of a number in a format specification: a width of more makes texts that only fill memory."""
OPTIONS: Mapping[str, tuple[type, ...]] = {
    "edgeitems": (int,),
    "floatmode": (str,),
    "infstr": (str,),
    "linewidth": (int,),
    "nanstr": (str,),
    "precision": (int, type(None)),
    "sign": (str,),
    "suppress": (bool,),
    "threshold": (int,),
}
"""NumPy's options of printing that a message states, and their types."""
_KEYS = {
    "template": str,
    "arguments": list,
    "keywords": dict,
    "dtypes": list,
    "options": dict,
    "ordered": bool,
}
_FIELD = re.compile(r"[^.\[\]{}]*(?:\.(?:" + "|".join(sorted(ATTRIBUTES)) + r")|\[[^\]{}]+\])*")
_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_IDENTIFIER = re.compile(r"\w+")


class Text(str):
    """What is no array and known when a program is made: a text that is shown in its quotes only if it had some."""

    shown: str

    def __new__(cls, text: str, shown: str) -> Text:
        """Hold what ``str`` and ``repr`` of the object gave."""
        made = super().__new__(cls, text)
        made.shown = shown
        return made

    def __repr__(self) -> str:
        """Return what ``repr`` of the object gave."""
        return self.shown


@dataclass(frozen=True)
class Value:
    """The place of a printed value among the arguments: the ``number``-th of a message's values."""

    number: int


@dataclass(frozen=True)
class Record:
    """The place of a named tuple: it is shown as ``name(field=..., ...)``."""

    name: str
    fields: tuple[tuple[str, object], ...]

    def __repr__(self) -> str:
        """Show it as Python shows named tuples."""
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.fields)})"


@dataclass(frozen=True)
class Message:
    """A line of text made of values that are printed one after another.

    Args:
      template: ``str.format``'s.
      arguments: those by position: ``Value``, ``Text``, ``None``, or lists, tuples, dictionaries and ``Record`` of such.
      keywords: those by name.
      dtypes: element type of every value; one of a complex type is two tensors, its real and its imaginary part.
      options: NumPy's options of printing, by name, those that are not here as they are when it is shown.
      ordered: whether JAX promises its place among others. Programs for an IPU print all in order; as part of an outer
        ``jax.jit`` those of several programs keep their order only so.
    """

    template: str
    arguments: tuple[object, ...]
    keywords: Mapping[str, object]
    dtypes: tuple[str, ...]
    options: Mapping[str, Any]
    ordered: bool = False

    @cached_property
    def count(self) -> int:
        """How many tensors it shows; at least one, which has no elements where it shows nothing."""
        return max(1, sum(1 + _is_complex(dtype) for dtype in self.dtypes))

    def to_text(self) -> str:
        """Return it as JSON; the same message gives the same text."""
        data = {
            "template": self.template,
            "arguments": [_to_data(argument) for argument in self.arguments],
            "keywords": {name: _to_data(argument) for name, argument in self.keywords.items()},
            "dtypes": list(self.dtypes),
            "options": dict(self.options),
            "ordered": self.ordered,
        }
        return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)

    def format(self, tensors: Sequence[Datum]) -> str:
        """Return the line for the values of its tensors.

        Raises:
          ValueError: the template does not fit them.
        """
        with jax.enable_x64(True), jax.ensure_compile_time_eval():  # whatever is traced around
            values: list[jax.Array] = []
            remaining = iter(tensors)
            for dtype in self.dtypes:
                parts = [np.asarray(next(remaining)) for _ in range(1 + _is_complex(dtype))]
                value = parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]
                values.append(jnp.asarray(value.astype(jnp.dtype(dtype))))
            arguments = [_filled(argument, values) for argument in self.arguments]
            keywords = {name: _filled(argument, values) for name, argument in self.keywords.items()}
            options = np.printoptions(**self.options) if self.options else contextlib.nullcontext()
            try:
                with options:
                    return _Formatter().vformat(self.template, arguments, keywords)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise ValueError(
                    f"the format {self.template!r} does not fit its arguments: {error}"
                ) from error

    def words(self, tensors: Sequence[Datum]) -> str:
        """Return a line of the template and of the tensors as they are, which in the ring no template fits."""
        shown = ", ".join(np.array2string(np.asarray(x), separator=", ") for x in tensors)
        return f"{self.template}: {shown}" if self.dtypes else self.template


@functools.lru_cache(maxsize=1024)
def read_message(text: str) -> Message:
    """Return the message of a text that ``to_text`` made.

    Raises:
      ValueError: it is no such text, or its template reaches for what it must not.
    """
    data = read_json(text.encode())
    if not is_dict(data) or data.keys() != _KEYS.keys():
        raise ValueError(f"a message says {', '.join(_KEYS)}")
    for key, kind in _KEYS.items():
        if type(data[key]) is not kind:
            raise ValueError(f"{key} of a message is no {kind.__name__}")
    dtypes: tuple[str, ...] = tuple(data["dtypes"])
    options: dict[str, Any] = data["options"]
    for dtype in dtypes:
        if not (is_a(dtype, str) and _is_number(dtype)):
            raise ValueError(f"{dtype!r} is no element type of numbers")
    for name, value in options.items():
        if type(value) not in OPTIONS.get(name, ()):
            raise ValueError(f"{name}={value!r} is no option of printing")
    with np.printoptions(**options):  # which refuses what NumPy does not know
        pass
    arguments = tuple(_from_data(argument, len(dtypes)) for argument in data["arguments"])
    keywords = {name: _from_data(argument, len(dtypes)) for name, argument in data["keywords"].items()}
    _check_template(data["template"])
    return Message(data["template"], arguments, keywords, dtypes, options, data["ordered"])


def _is_number(dtype: str) -> bool:
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        return False
    return found.name == dtype and (dtype == "bool" or jnp.issubdtype(found, jnp.number))


def _is_complex(dtype: str) -> bool:
    return jnp.issubdtype(jnp.dtype(dtype), jnp.complexfloating)


# ---- arguments as data


def _to_data(argument: object) -> object:
    match argument:
        case None:
            return None
        case Value(number):
            return {"value": number}
        case Text():
            return {"text": [str.__str__(argument), argument.shown]}
        case Record(name, fields):
            return {"record": [name, [[field, _to_data(value)] for field, value in fields]]}
        case _ if is_row(argument):
            return {type(argument).__name__: [_to_data(entry) for entry in argument]}
        case _ if is_dict(argument):
            return {"dict": [[_to_data(key), _to_data(value)] for key, value in argument.items()]}
        case _:
            raise ValueError(f"a {type(argument).__name__} cannot be told as data")


def _from_data(data: object, count: int) -> Any:
    if data is None:
        return None
    if not is_dict(data) or len(data) != 1:
        _refuse(data)
    ((kind, held),) = data.items()
    if kind == "value" and type(held) is int and 0 <= held < count:
        return Value(held)
    if not is_list(held):
        _refuse(data)
    if kind == "text" and [type(entry) for entry in held] == [str, str]:
        return Text(*held)
    if kind == "record" and [type(entry) for entry in held] == [str, list]:
        pairs = [_pair(entry) for entry in held[1]]
        names = [held[0], *(name for name, _ in pairs)]
        if all(isinstance(name, str) and _IDENTIFIER.fullmatch(name) for name in names):
            return Record(held[0], tuple((name, _from_data(value, count)) for name, value in pairs))
    if kind == "dict":
        pairs = [_pair(entry) for entry in held]
        keys = [_from_data(key, count) for key, _ in pairs]
        if all(isinstance(key, Text) for key in keys):
            return {key: _from_data(value, count) for key, (_, value) in zip(keys, pairs, strict=True)}
    if kind in ("list", "tuple"):
        entries = [_from_data(entry, count) for entry in held]
        return entries if kind == "list" else tuple(entries)
    return _refuse(data)


def _pair(entry: object) -> list[Any]:
    return entry if is_list(entry) and len(entry) == 2 else _refuse(entry)


def _refuse(data: object) -> NoReturn:
    raise ValueError(f"{str(data)[:60]} is no argument of a message")


def _filled(argument: Any, values: Sequence[Datum]) -> Any:
    """Return an argument with values in their places."""
    match argument:
        case Value(number):
            return values[number]
        case Record(name, fields):
            return Record(name, tuple((field, _filled(value, values)) for field, value in fields))
        case _ if is_list(argument):
            return [_filled(entry, values) for entry in argument]
        case _ if is_tuple(argument):
            return tuple(_filled(entry, values) for entry in argument)
        case _ if is_dict(argument):
            return {key: _filled(value, values) for key, value in argument.items()}
        case _:
            return argument


# ---- templates


class _Formatter(string.Formatter):
    """``str.format`` that reaches for no more than elements and ``ATTRIBUTES``, and writes no endless texts."""

    def get_field(self, field_name: str, args: Sequence[Datum], kwargs: Mapping[str, Datum]) -> Any:
        if not _FIELD.fullmatch(field_name):
            raise ValueError(
                f"field {{{field_name}}} reads something else than elements or {', '.join(sorted(ATTRIBUTES))}"
            )
        return super().get_field(field_name, args, kwargs)

    def format_field(self, value: Any, format_spec: str) -> Any:
        if _LONG_NUMBER.search(format_spec):
            raise ValueError(f"{format_spec!r} is wider than {MAX_DIGITS} digits say")
        return super().format_field(value, format_spec)


def _check_template(template: str) -> None:
    """Refuse a template whose fields are not ``_Formatter``'s, as far as they are known without values."""
    for _, field, spec, _ in string.Formatter().parse(template):
        if field is not None:
            if not _FIELD.fullmatch(field):
                raise ValueError(f"field {{{field}}} of a message reads more than a field may")
            _check_template(spec or "")
