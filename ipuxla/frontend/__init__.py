"""JAX functions and StableHLO modules in; ``hlo_passes.ir`` modules out."""

from pathlib import Path

from ipuxla.frontend import _jax_compat

# Source locations in programs are the user's: leave this package's own frames out, as JAX leaves out its own.
_jax_compat.hide_frames(f"{Path(__file__).parents[1]}/")
