"""A process that has only imported the package knows every codelet that an executable may name."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil
import tiles
from tiles.graph import CODELETS
known = set(CODELETS)
for module in pkgutil.walk_packages(tiles.__path__, "tiles."):
    importlib.import_module(module.name)
print(sorted(set(CODELETS) - known))
"""


def test_importing_the_package_registers_every_codelet() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
