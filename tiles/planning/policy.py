"""What plans are chosen by beside cycles: room for temporaries, and what a byte of exchange code is worth."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tiles.errors import InvalidPlan
from tiles.plan import CODE_PRICE, MEMORY_PROPORTION

HELD_SHARE = 0.25
"""Of a tile's memory: what of operands that lie nowhere yet a plan may bring there, unless no plan keeps to it."""


@dataclass(frozen=True)
class Policy:
    """How plans are chosen.

    Args:
      memory_proportions: by operation, the share of a tile's memory that its temporaries may take, where it is not
        ``MEMORY_PROPORTION``.
      code_price: cycles that a byte of exchange code on the fullest tile is worth.
      held_share: share of a tile's memory that what an operation is the first to read may take there, if its plan may be
        another; see ``holds_operands``.

    Raises:
      InvalidPlan: a share that is none, or a price below zero.
    """

    memory_proportions: Mapping[str, float] = field(default_factory=dict[str, float])
    code_price: float = CODE_PRICE
    held_share: float = HELD_SHARE

    def __post_init__(self) -> None:
        """Check shares and price."""
        shares = {f"memory_proportions[{name!r}]": share for name, share in self.memory_proportions.items()}
        for what, share in {**shares, "held_share": self.held_share}.items():
            if not 0 <= share <= 1:
                raise InvalidPlan(f"policy: {what} is no share", expected="0 to 1", got=f"{share:g}")
        if not 0 <= self.code_price < math.inf:
            raise InvalidPlan(
                "policy: code_price is no price",
                expected="cycles for a byte, 0 or more",
                got=f"{self.code_price:g}",
            )

    def memory_proportion(self, label: str) -> float:
        """Return the share of a tile's memory that the temporaries of a step's operation may take."""
        return self.memory_proportions.get(operation_of(label), MEMORY_PROPORTION)


def operation_of(label: str) -> str:
    """Return the operation that a step belongs to: ``dot.1`` of ``dot.1.partials``, ``dot.1.turn.2.combine``..."""
    return re.sub(r"(\.partials|\.combine\d*|\.order\d+|\.turn(\.\d+)?)+$", "", label)
