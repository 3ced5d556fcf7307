"""All functions of the packages that keep what they returned."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import types
from typing import Any

import hlo_passes
import ipuxla
import tiles

PACKAGES = (ipuxla, hlo_passes, tiles)


def modules() -> list[types.ModuleType]:
    """Return all modules of the packages, imported."""
    for package in PACKAGES:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    names = {package.__name__ for package in PACKAGES}
    return [module for name, module in sys.modules.items() if name.split(".")[0] in names]


def is_cached(value: Any) -> bool:
    return callable(value) and hasattr(value, "cache_info") and hasattr(value, "__wrapped__")


def clear() -> None:
    """Forget what planning and lowering found so far."""
    for module in modules():
        for value in list(vars(module).values()):
            if is_cached(value) and "JAX" not in repr(value) and value.__module__.startswith("tiles.plan"):
                value.cache_clear()
