"""Compile JAX functions for Graphcore IPUs and run them on emulated ones.

    @ipuxla.jit(target="gc200")
    def step(params, batch): ...

``jit`` and ``compile_stablehlo`` make programs; ``load`` reads a saved one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipuxla.api import compile_stablehlo, jit
    from ipuxla.codelets import codelet, installed_codelets, tile_map
    from ipuxla.meshes import mesh, pmap
    from ipuxla.runtime import Compiled, load
    from ipuxla.stages import Lowered
    from tiles.target import System, Target

__version__ = "0.1.0"

__all__ = [
    "Compiled",
    "Lowered",
    "System",
    "Target",
    "__version__",
    "codelet",
    "compile_stablehlo",
    "installed_codelets",
    "jit",
    "load",
    "mesh",
    "pmap",
    "tile_map",
]

# Names are imported when first used. A saved program must load and run where the frontend, the lowering and the HLO
# passes cannot be imported (that is how one knows that results come from the executable alone), and the command line
# must be able to say that it was interrupted before JAX is imported.
_HOMES = {
    "Compiled": "ipuxla.runtime",
    "Lowered": "ipuxla.stages",
    "System": "tiles.target",
    "Target": "tiles.target",
    "codelet": "ipuxla.codelets",
    "compile_stablehlo": "ipuxla.api",
    "installed_codelets": "ipuxla.codelets",
    "jit": "ipuxla.api",
    "load": "ipuxla.runtime",
    "mesh": "ipuxla.meshes",
    "pmap": "ipuxla.meshes",
    "tile_map": "ipuxla.codelets",
}


def __getattr__(name: str) -> object:
    """Import what a public name stands for when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
