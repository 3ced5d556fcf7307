"""Parameters of a record: the one place that knows how publications spell sizes and dtypes."""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

DTYPES = {
    "f32": "float32",
    "fp32": "float32",
    "float": "float32",
    "float32": "float32",
    "float2": "float32",
    "single": "float32",
    "32.32": "float32",
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
    "half2": "float16",
    "half4": "float16",
    "float16": "float16",
    "16.16": "float16",
    "16.32": "float16",
    "f8": "float8_e4m3fnuz",
    "fp8": "float8_e4m3fnuz",
    "quarter": "float8_e4m3fnuz",
    "f143": "float8_e4m3fnuz",
    "f8_e4m3": "float8_e4m3fnuz",
    "f152": "float8_e5m2fnuz",
    "f8_e5m2": "float8_e5m2fnuz",
    "s32": "int32",
    "i32": "int32",
    "int32": "int32",
    "int": "int32",
    "u32": "uint32",
    "uint32": "uint32",
    "s8": "int8",
    "int8": "int8",
}
"""Dtypes by spelling, lower case."""

NAMES = {
    "m": ("m", "M"),
    "k": ("k", "K"),
    "n": ("n", "N"),
    "hidden": ("H", "mlp", "hidden"),
    "batch": ("batch", "micro_batch", "batch_size", "b"),
    "rows": ("rows",),
    "cols": ("cols", "columns"),
    "dtype": ("dtype", "precision", "type", "data_type"),
    "partials": ("partials", "partials_dtype", "partialsType"),
    "image": ("image", "grid", "pixels_per_ipu", "block"),
    "kernel": ("kernel", "filter"),
    "block": ("block", "block_size", "blocksize"),
    "tokens": ("tokens", "seq", "seq_len", "sequence", "ctx"),
    "heads": ("heads",),
    "width": ("width", "d_model", "hidden_size"),
    "layers": ("layers",),
    "ipus": ("ipus", "num_ipus"),
    "replicas": ("replicas", "replication_factor"),
    "global_batch": ("global_batch", "global_batch_size"),
    "tiles": ("tiles", "num_tiles"),
    "iterations": ("iterations", "iters", "steps"),
}
"""What a parameter is called in records, by our name for it; any other has the name that it has."""


class NotModelled(Exception):
    """A measurement whose program cannot be built from what the record and its source state; one line of reason."""


class MissingParameter(Exception):
    """A parameter that the program needs and the record does not state; the message is one line."""


@dataclass(frozen=True)
class Parameters:
    """The parameters of a record, as its file spells them."""

    given: Mapping[str, str | float]

    @staticmethod
    def fault(given: Mapping[str, object]) -> str | None:
        """Return what is wrong with parameters whatever the program, None if nothing is."""
        for name, value in given.items():
            if not isinstance(name, str) or isinstance(value, (dict, list)) or value is None:
                return f"parameter {name!r} is neither a number nor a text: {value!r}"
            if isinstance(value, (int, float)) and not isinstance(value, bool) and not value > 0:
                return f"parameter {name!r} is not positive: {value!r}"
        for alias in NAMES["dtype"]:
            if alias in given and str(given[alias]).lower() not in DTYPES:
                return f"unknown dtype {given[alias]!r} of parameter {alias!r}"
        return None

    def raw(self, name: str) -> str | float | None:
        """Return a parameter as spelled, None if the record does not state it."""
        return next((self.given[alias] for alias in NAMES.get(name, (name,)) if alias in self.given), None)

    def has(self, *names: str) -> bool:
        """Return whether all of some parameters are stated."""
        return all(self.raw(name) is not None for name in names)

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a whole number.

        Raises:
          MissingParameter: it is not stated and has no default, or is no whole number.
        """
        value = self.raw(name)
        if value is None:
            if default is None:
                raise MissingParameter(f"lacks parameter {name}")
            return default
        try:
            number = float(str(value).replace(",", ""))
        except ValueError:
            raise MissingParameter(f"parameter {name} is no number: {value!r}") from None
        if number != int(number):
            raise MissingParameter(f"parameter {name} is no whole number: {value!r}")
        return int(number)

    def real(self, name: str) -> float:
        """Return a number.

        Raises:
          MissingParameter: it is not stated, or is no number.
        """
        value = self.raw(name)
        try:
            return float(str(value))
        except ValueError:
            raise MissingParameter(
                f"lacks parameter {name}" if value is None else f"{name} is {value!r}"
            ) from None

    def text(self, name: str, default: str = "") -> str:
        """Return a text, lower case."""
        value = self.raw(name)
        return default if value is None else str(value).lower()

    def dtype(self, name: str = "dtype", default: str | None = None) -> str:
        """Return a dtype, in NumPy's spelling.

        Raises:
          MissingParameter: it is not stated and has no default, or is none.
        """
        value = self.raw(name)
        if value is None:
            if default is None:
                raise MissingParameter(f"lacks parameter {name}")
            return default
        if str(value).lower() not in DTYPES:
            raise MissingParameter(f"unknown dtype {value!r}")
        return DTYPES[str(value).lower()]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a shape such as 2200x1122x4.

        Raises:
          MissingParameter: it is not stated, or is none.
        """
        value = self.raw(name)
        if value is None:
            raise MissingParameter(f"lacks parameter {name}")
        if not re.fullmatch(r"\d+(\s*[x\u00d7*]\s*\d+)*", str(value)):
            raise MissingParameter(f"parameter {name} is no shape: {value!r}")
        return tuple(int(size) for size in re.findall(r"\d+", str(value)))
