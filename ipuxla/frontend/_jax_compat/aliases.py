"""What JAX calls its types."""

# pyright: reportPrivateImportUsage=false
# (private names are this module's purpose)

from __future__ import annotations

from jax._src import core as _core
from jax._src import pjit as _pjit
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import partial_eval as _pe
from jax.extend import core as _extend_core

# From JAX 0.11 on this is the type of all jaxprs, which hold their constants; 0.12 has this name of it alone.
ClosedJaxpr = _extend_core.ClosedJaxpr
AxisData = _batching.AxisData
Equation = _core.JaxprEqn
JitWrapped = _pjit.JitWrapped
JaxprTrace = _pe.JaxprTrace
JaxprTracer = _pe.JaxprTracer
LoweringContext = _mlir.LoweringRuleContext
ShapedArray = _core.ShapedArray
Zero = _ad.Zero
jaxpr_as_fun = _core.jaxpr_as_fun
