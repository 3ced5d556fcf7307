"""What caches of a process hold: nothing that one caller could change for another."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr

import ipuxla
from tests.caches import is_cached, modules
from tiles.compiler import costs
from tiles.target import Target

SMALL = Target.named("gc200").replace(num_tiles=16)
PLAIN = (type(None), bool, int, float, complex, str, bytes, enum.Enum, type, range, np.dtype, np.generic)
CALLED = (types.FunctionType, types.BuiltinFunctionType, functools.partial, type(jax.jit(jnp.sin)))


def changeable(value: Any, path: str = "") -> Iterator[str]:
    """Yield the places in a value that its holder could change."""
    if isinstance(value, (*PLAIN, *CALLED, ThreadPoolExecutor)):
        return
    if isinstance(value, np.ndarray):
        if value.flags.writeable and value.size:
            yield f"{path}: array"
    elif isinstance(value, tuple | frozenset):
        for number, item in enumerate(value):
            yield from changeable(item, f"{path}[{number}]")
    elif isinstance(value, types.MappingProxyType):
        for key, item in value.items():
            yield from changeable(item, f"{path}[{key!r}]")
    elif isinstance(value, ClosedJaxpr):  # equations are JAX's, which shares them too
        yield from changeable(tuple(value.consts), f"{path}.consts")
    elif dataclasses.is_dataclass(value) and type(value).__dataclass_params__.frozen:  # pyright: ignore[reportAttributeAccessIssue]
        for name, item in vars(value).items():
            yield from changeable(item, f"{path}.{name}")
    else:
        yield f"{path}: {type(value).__name__}"


@pytest.fixture
def returned(monkeypatch) -> dict[str, list[Any]]:
    """Everything that cached functions of the packages return from now on, by the functions' names."""
    results: dict[str, list[Any]] = {}
    watched: dict[int, Callable[..., Any]] = {}

    def watch(function: Any) -> Callable[..., Any]:
        name = f"{function.__module__}.{function.__qualname__}"

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            results.setdefault(name, []).append(result)
            return result

        return call

    for module in modules():
        for name, value in list(vars(module).items()):
            if is_cached(value):
                watched.setdefault(id(value), watch(value))
                monkeypatch.setattr(module, name, watched[id(value)])
    assert len(watched) > 30
    return results


def network(x, w, image, index):
    h = jax.nn.softmax(jnp.tanh(x @ w) @ w.T)
    dimensions = ("NHWC", "HWIO", "NHWC")
    features = jax.lax.conv_general_dilated(
        image, jnp.ones((3, 3, 4, 8)), (1, 1), "SAME", dimension_numbers=dimensions
    )
    spectrum = jnp.fft.fft(h[:4, :12]).real
    looked_up = w[index] * jnp.sort(h[0])[0]
    return h.sum(axis=0), features.max(axis=(1, 2)), spectrum, looked_up


def test_what_caches_hold_cannot_be_changed(returned):
    arguments = (jnp.ones((32, 24)), jnp.ones((24, 24)), jnp.ones((2, 8, 8, 4)), jnp.arange(3))
    compiled = ipuxla.jit(network, target=SMALL).lower(*arguments).compile()
    for engine in ("fast", "literal", "vertex"):
        ipuxla.jit(network, target=SMALL, engine=engine)(*arguments)
    compiled.certify()
    compiled.profile(*arguments)
    returned["step costs"] = [costs.step_costs(compiled.executable)]
    found = {
        name: sorted({where for value in values for where in changeable(value)})
        for name, values in returned.items()
    }
    assert not {name: places[:5] for name, places in found.items() if places}
