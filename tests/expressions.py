"""Evaluate expressions by plain numpy indexing, apart from how anything in the project reads a map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hlo_passes.ir import OPS, Computation, dtype_name, evaluate_computation
from hlo_passes.passes import ParameterMap, expressions


def evaluate_expression(region: Computation, arrays: Sequence[Any]) -> list[np.ndarray]:
    """Return the results of an injective computation, from its rows and maps at every point of its domain."""
    rows, maps, outputs = expressions(region)
    domain = region.results[0].type.shape
    with jax.enable_x64(True):
        values = [_read(np.asarray(arrays[m.parameter]), m, domain) for m in maps]
        for row in rows:
            values.append(_row(row.function, [values[k] for k in row.arguments], row.attributes, domain))
    return [values[k] for k in outputs]


def evaluate_region(region: Computation, arrays: Sequence[Any]) -> list[np.ndarray]:
    """Return the results of a computation, evaluated operation by operation."""
    with jax.enable_x64(True):
        return [np.asarray(x) for x in evaluate_computation(region, *map(jax.numpy.asarray, arrays))]


def _read(array: np.ndarray, m: ParameterMap, domain: tuple[int, ...]) -> np.ndarray:
    grid = np.indices(domain)
    index = [np.full(domain, offset) if dim is None else c * grid[dim] + offset for dim, c, offset in m.axes]
    inside = np.ones(domain, bool)
    for position, size in zip(index, array.shape, strict=True):
        inside &= (position >= 0) & (position < size)
    if m.fill is None:
        assert inside.all(), "an index lies outside a parameter without a fill value"
    clipped = tuple(np.clip(i, 0, size - 1) for i, size in zip(index, array.shape, strict=True))
    return np.where(inside, array[clipped], np.asarray(m.fill or 0).astype(array.dtype)).astype(array.dtype)


def _row(
    function: str, operands: list[Any], attributes: dict[str, Any], domain: tuple[int, ...]
) -> np.ndarray:
    if function == "constant":
        return np.broadcast_to(_scalar(attributes["value"], np.dtype(attributes["dtype"])), domain)
    if function == "iota":
        return np.indices(domain)[attributes["dim"]].astype(np.dtype(attributes["dtype"]))
    if "body" in attributes:  # a named function: the rows that it stands for
        values = list(operands)
        for name, arguments, given in attributes["body"]:
            values.append(_row(name, [values[k] for k in arguments], dict(given), domain))
        return values[-1]
    if "dtype" in attributes:
        attributes = {**attributes, "dtype": dtype_name(attributes["dtype"])}
    op = OPS[f"stablehlo.{function}"](**attributes)
    (result,) = op.evaluate(*map(jax.numpy.asarray, operands))
    return np.asarray(result)


def _scalar(value: Any, dtype: np.dtype) -> np.ndarray:
    if isinstance(value, str):
        return np.array(int(value, 16), f"u{dtype.itemsize}").view(dtype)
    return np.array(value).astype(dtype)
