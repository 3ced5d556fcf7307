"""How many examples property tests draw: what the profile in force says, by what an example costs.

Tests state no numbers. The profiles are in ``conftest``: ``dev`` (few and always the same), ``ci`` (as many, from a seed that
is drawn and printed), ``explore`` (``HYPOTHESIS_EXAMPLES`` of them).
"""

from __future__ import annotations

import math
from typing import Any

from hypothesis import settings

SEQUENCE, PROGRAM, PLAN, TABLE = 0.1, 0.3, 1.5, 5.0
"""Shares of a profile's examples: for several programs in a row (10 s each), a program on several engines (1 s), what is
built and compiled but not run (50 ms), and arithmetic alone. A test that says nothing draws as many as the profile says."""


def examples(share: float) -> int:
    """Return how many examples a test draws whose examples cost so much."""
    return math.ceil(share * settings().max_examples)


def budget(share: float, **others: Any) -> settings:
    """Return the settings of a test whose examples cost so much; a decorator, as hypothesis' own."""
    return settings(max_examples=examples(share), **others)
