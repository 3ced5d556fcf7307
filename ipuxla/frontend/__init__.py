"""JAX functions and StableHLO modules in; ``hlo_passes.ir`` modules out."""

from pathlib import Path

from ipuxla.frontend import _jax_compat

# Source locations in programs are the user's: leave this package's own frames out, as JAX leaves out its own.
# The experiments are a user's code that happens to live here.
for _part in sorted(Path(__file__).parents[1].iterdir()):
    if _part.name != "experiments":
        _jax_compat.hide_frames(str(_part))
