"""What JAX calls its types."""

# pyright: reportPrivateImportUsage=false
# (private names are this module's purpose)

from __future__ import annotations

from jax._src import core as _core
from jax._src.interpreters import ad as _ad
from jax.extend import core as _extend_core

# From JAX 0.11 on this is the type of all jaxprs, which hold their constants; 0.12 has this name of it alone.
ClosedJaxpr = _extend_core.ClosedJaxpr
Equation = _core.JaxprEqn
ShapedArray = _core.ShapedArray
Zero = _ad.Zero
jaxpr_as_fun = _core.jaxpr_as_fun
