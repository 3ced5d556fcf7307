"""Where JAX computes, which decides what XLA is told and what it can be asked for.

JAX's default device may be an accelerator, and arrays may be committed to a device of another platform.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import jax
from jax.extend import backend

_jax = cast(Any, jax)


def default_platform() -> str:
    """Return the platform of the device on which JAX computes unless it is told another: "cpu", "gpu", ..."""
    device = _jax.config.jax_default_device
    if device is None:
        return jax.default_backend()
    return device if isinstance(device, str) else device.platform


def on_cpu() -> AbstractContextManager[Any]:
    """Have JAX compute on a CPU, where it has one: many small steps on the host's memory are slow elsewhere."""
    if default_platform() == "cpu":
        return nullcontext()
    try:
        return _jax.default_device(_jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS names others alone
        return nullcontext()


def where_arrays_are(arrays: Iterable[Any]) -> AbstractContextManager[Any]:
    """Make the device that arrays are committed to JAX's default, where that is on another platform.

    ``jax.jit`` computes there whatever the default is. But what engines trace depends on the platform, and they ask for the default's.
    """
    for x in arrays if _has_several_platforms() else ():
        if isinstance(x, jax.Array) and not isinstance(x, _jax.core.Tracer) and x.committed:
            device = min(x.devices(), key=lambda device: device.id)
            if device.platform != default_platform():
                return _jax.default_device(device)
    return nullcontext()


@functools.cache
def _has_several_platforms() -> bool:
    return len(cast(Any, backend).backends()) > 1
