"""A sweep over JAX's public API: what everyday code and libraries on top of JAX call.

``python -m tests.sweep`` runs it and writes ``results.md``; ``tests/system/test_sweep.py`` runs the same cases as tests.
"""

from tests.sweep import (
    array_functions,
    calling,
    control,
    lax_functions,
    library_inference,
    library_networks,
    library_sequences,
    library_training,
    linear_algebra,
    network_functions,
    random_functions,
    scipy_functions,
    transformations,
)
from tests.sweep.cases import CASES, Case

MODULES = (
    array_functions,
    lax_functions,
    network_functions,
    random_functions,
    linear_algebra,
    scipy_functions,
    control,
    transformations,
    calling,
    library_inference,
    library_networks,
    library_sequences,
    library_training,
)
"""Where the cases are listed."""

__all__ = ["CASES", "MODULES", "Case"]
