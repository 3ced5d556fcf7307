"""Cases whose results are not equal, and why: by the beginning of a name."""

from __future__ import annotations

REASONS: dict[str, str] = {
    "cholesky_shape_float32_200_200_": "condition 2e7: factors of f64 are as far from jax.jit's (1.2e-3) as from these (1.1e-3)",
    "cholesky_shape_bfloat16_200_200_": "as that of float32, in which this case computes",
    "triangular_solve_dtypes_a_bfloat16": "solved in f32 and rounded once: ten times nearer to the exact result than jax.jit's",
}
"""Why a case is refused or differs, by the beginning of its name."""


def reason(name: str) -> str:
    """Return why a case is not equal; empty where no reason is known."""
    return next((text for beginning, text in REASONS.items() if name.startswith(beginning)), "")
