"""Bring every operation to one form, and drop what does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.patterns import PATTERNS
from hlo_passes.passes.rewriter import Rewriter


@dataclass(frozen=True)
class Canonicalize(LocalPass):
    """Apply the patterns of ``passes.patterns`` until none applies; what becomes unused is for ``dce``."""

    name: ClassVar[str] = "canonicalize"

    def change(self, computation: Computation) -> Computation:
        """Return the computation rewritten; itself when no pattern applies."""
        return Rewriter(computation, PATTERNS).run()
