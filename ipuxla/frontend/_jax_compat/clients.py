"""XLA's clients of CPU devices that nothing runs on."""

# pyright: standard, reportPrivateImportUsage=false
# (private names are this module's purpose)

from __future__ import annotations

import functools
from typing import Any

from jax._src.lib import xla_client as _xla_client

MAX_DEVICES = 2048
"""The most devices for which XLA's CPU client partitions (jaxlib 0.10.2: 4,096 are refused)."""


@functools.lru_cache(maxsize=4)
def cpu_client(num_devices: int) -> Any:
    """Return a client of so many devices, made in this process."""
    return _xla_client.make_cpu_client(num_devices=num_devices)
