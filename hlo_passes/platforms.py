"""Where JAX computes what passes evaluate."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import jax

_jax = cast(Any, jax)


def default_platform() -> str:
    """Return the platform of the device on which JAX computes unless it is told another: "cpu", "gpu", ..."""
    device = _jax.config.jax_default_device
    if device is None:
        return jax.default_backend()
    return device if isinstance(device, str) else device.platform


def on_cpu() -> AbstractContextManager[Any]:
    """Have JAX compute on a CPU, where it has one: constants have the same bits then, whatever accelerator there is."""
    if default_platform() == "cpu":
        return nullcontext()
    try:
        return _jax.default_device(_jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS names others alone
        return nullcontext()
