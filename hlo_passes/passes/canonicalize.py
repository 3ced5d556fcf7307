"""Bring every operation to one form, and drop what does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Module
from hlo_passes.passes.base import Pass, map_module
from hlo_passes.passes.patterns import PATTERNS
from hlo_passes.passes.rewriter import Rewriter


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Apply the patterns of ``passes.patterns`` until none applies; what becomes unused is for ``dce``."""

    name: ClassVar[str] = "canonicalize"

    def run(self, module: Module) -> Module:
        """Return the module rewritten; itself when no pattern applies."""
        return map_module(module, lambda computation: Rewriter(computation, PATTERNS).run())
