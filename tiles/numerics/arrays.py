"""NumPy's functions of what may be a number or an array: with one type, where NumPy's overloads leave none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

where: Callable[[Any, Any, Any], np.ndarray] = np.where
"""``np.where`` of a condition and two alternatives."""
