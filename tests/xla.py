"""XLA for CPU as a witness of StableHLO text: what the specification leaves open, it decides."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax._src import config
from jax._src.compiler import get_compile_options
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jaxlib import lapack

from ipuxla.frontend import _jax_compat as compat

lapack._lapack.initialize()
"""Before a module's text calls LAPACK: JAX does so when it lowers such a call itself, and else the process ends."""


def compiled(text: str, options: Mapping[str, bool | int] | None = None) -> Callable[..., list[np.ndarray]]:
    """Return a module's text as XLA compiles it for one device: a function of its arguments.

    Args:
      text: StableHLO.
      options: of XLA, by name; its own by default.
    """
    device = jax.devices("cpu")[0]
    module = compat.read_stablehlo(text)
    with module.context, jax.enable_x64(True):
        given: Any = dict(options or {})
        settings = get_compile_options(1, 1, env_options_overrides=given)
        devices = xla_client.DeviceList((device,))
        program = device.client.compile_and_load(ir.Module.parse(str(module)), devices, settings)

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        with jax.enable_x64(True):
            results = program.execute_sharded([jax.device_put(array, device) for array in arrays])
            return [np.asarray(result[0]) for result in results.disassemble_into_single_device_arrays()]

    return run


def evaluate(text: str, *arrays: np.ndarray) -> list[np.ndarray]:
    """Compile a module's text with XLA and run it on one device."""
    return compiled(text)(*arrays)


@functools.cache
def _cpu_client() -> Any:
    return xla_client.make_cpu_client(num_devices=16)


def cpu_devices(count: int) -> list[Any]:
    """Return virtual CPU devices, 16 at most, of a client of their own: this process's devices stay as they are."""
    return _cpu_client().devices()[:count]


def groups_as_tables() -> contextlib.AbstractContextManager[Any]:
    """Have JAX list the devices of collectives, as it does until 0.10; later it names axes of the mesh."""
    named = getattr(config, "use_rgv3", None)
    return contextlib.nullcontext() if named is None else named(False)
