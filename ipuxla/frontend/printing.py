"""``jax.debug.print`` as data: the format and where its values stand, of which a program keeps a text and no function.

What is no array (texts, types) is known when the function is traced and becomes part of the text.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from ipuxla._jax_compat import Params, tree_unflatten
from ipuxla.frontend._jax_compat import ShapedArray
from tiles.graph import Message, read_message
from tiles.graph.messages import OPTIONS, Record, Text, Value

TARGET = "ipuxla.print"
"""Name of the custom call that prints its operands; its configuration is a ``Message``."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SHOWN_ELEMENTS = 2048
"""Elements of an array that a format is tried on before there are values; larger ones are tried with their rank."""


def message_of(types: Sequence[ShapedArray], params: Params) -> str:
    """Return the message of an equation of ``debug_print`` as text.

    Args:
      types: abstract values of its operands.
      params: its parameters.

    Raises:
      ValueError: it shows what cannot be kept as data, or its format does not fit its arguments; says what and what to
        try.
    """
    if params["logging_record"] is not None:
        raise ValueError("jax.debug.log writes to a logger of the host; jax.debug.print shows the same")
    for type_ in types:
        if not (jnp.issubdtype(type_.dtype, np.number) or type_.dtype == bool):
            raise ValueError(f"it shows {type_.dtype} values; show jax.random.key_data of a key")
    arguments, keywords = _arguments(types, params)
    template, options = params["fmt"], _options(dict(params["np_printoptions"]))
    if not params["has_placeholders"] and not keywords:  # as JAX: the text, then the arguments
        shown = "".join(f" {{{k}}}" for k in range(len(arguments)))
        template, options = template.replace("{", "{{").replace("}", "}}") + shown, {}
    made = Message(
        template, arguments, keywords, tuple(type_.dtype.name for type_ in types), options, params["ordered"]
    )
    made.format(list(_samples(types)))
    text = made.to_text()
    read_message(text)  # what a file could not hold
    return text


def _arguments(types: Sequence[ShapedArray], params: Params) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return positional and keyword arguments, values standing for the operands."""
    fixed, numbers = dict(params["static_args"]), iter(range(len(types)))
    count = len(types) + len(fixed)
    leaves = [_text(fixed[k]) if k in fixed else Value(next(numbers)) for k in range(count)]
    args, kwargs = tree_unflatten(params["in_tree"], leaves)
    return tuple(map(_plain, args)), {name: _plain(value) for name, value in kwargs.items()}


def _text(value: object) -> Text:
    text, shown = str(value), repr(value)
    if _ADDRESS.search(text + shown):
        raise ValueError(f"it shows a {type(value).__name__}, whose text says where in memory it lies")
    return Text(text, shown)


def _plain(argument: object) -> object:
    """Return an argument built of what a message can hold."""
    if argument is None or isinstance(argument, (Text, Value)):
        return argument
    if type(argument) is list:
        return [_plain(each) for each in argument]
    if type(argument) is tuple:
        return tuple(map(_plain, argument))
    if type(argument) is dict:
        return {_text(key): _plain(value) for key, value in argument.items()}
    if isinstance(argument, tuple) and hasattr(argument, "_fields"):
        names: tuple[str, ...] = argument._fields  # pyright: ignore[reportAttributeAccessIssue]
        return Record(type(argument).__name__, tuple(zip(names, map(_plain, argument), strict=True)))
    raise ValueError(
        f"it shows a {type(argument).__name__}, which the host would have to build; show its leaves"
    )


def _options(given: Mapping[str, object]) -> dict[str, object]:
    """Return NumPy's options of printing as data; those that say nothing are left out."""
    options = {name: value for name, value in given.items() if value is not None and value is not False}
    if "suppress" in given:
        options["suppress"] = bool(given["suppress"])
    if options.get("threshold") == np.inf:
        options["threshold"] = np.iinfo(np.int64).max
    for name, value in options.items():
        if type(value) not in OPTIONS.get(name, ()):
            raise ValueError(f"np.printoptions has {name}={value!r}, which cannot be kept as data")
    return options


def _samples(types: Sequence[ShapedArray]) -> Sequence[np.ndarray]:
    """Return tensors as a program would print them, of zeros."""
    found: list[np.ndarray] = []
    for type_ in types:
        shape = type_.shape if type_.size <= _SHOWN_ELEMENTS else tuple(min(n, 2) for n in type_.shape)
        parts = 2 if jnp.issubdtype(type_.dtype, np.complexfloating) else 1
        found += [np.zeros(shape, np.float32)] * parts
    return found
