"""Compile JAX functions for Graphcore IPUs and run them on emulated ones.

    @ipuxla.jit(target="gc200")
    def step(params, batch): ...

``jit`` and ``compile_stablehlo`` make programs; ``load`` reads a saved one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ipuxla.runtime import Compiled, load
from tiles.target import Target

if TYPE_CHECKING:
    from ipuxla.api import compile_stablehlo, jit
    from ipuxla.stages import Lowered

__all__ = ["Compiled", "Lowered", "Target", "compile_stablehlo", "jit", "load"]

# A saved program must load and run where the frontend, the lowering and the HLO passes cannot be imported
# (that is how one knows that results come from the executable alone), so the names that need those are
# imported when first used.
_COMPILER_SIDE = {"jit": "ipuxla.api", "compile_stablehlo": "ipuxla.api", "Lowered": "ipuxla.stages"}


def __getattr__(name: str) -> Any:
    """Import the compiler side of the package when one of its names is first used."""
    if name not in _COMPILER_SIDE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_COMPILER_SIDE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
