"""The call of a user's codelet as a JAX primitive, ``ipu_codelet``.

For an IPU it becomes one custom call, whose options are read back by the importer; anywhere else the function at every
point. Its derivative is that of the function, ``vmap`` adds an index.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from hlo_passes import ops
from hlo_passes.ops.point_form import at_points, read_by_points
from ipuxla._jax_compat import ClosedJaxpr, Datum, Params
from ipuxla.frontend import _jax_compat as compat
from ipuxla.frontend.legalization import CODELET
from ipuxla.frontend.lower import PLATFORM


@dataclass(frozen=True)
class Codelet:
    """What is called, beside its arguments.

    Args:
      label: its name.
      form: what a point reads and writes.
      combiner: how contributions of several points to a result are combined, or "".
      cycles: of one point on one worker; 0 where that is to be estimated.
      parts: how many parts every index is split into; none where that is planned.
      tiles: the first tile, and from one part's tile to the next.
    """

    label: str
    form: ops.PointForm
    combiner: str = ""
    cycles: int = 0
    parts: tuple[int, ...] = ()
    tiles: tuple[int, ...] = ()


def call(codelet: Codelet, jaxpr: ClosedJaxpr, *operands: Datum) -> list[jax.Array]:
    """Call a codelet.

    Args:
      codelet: what is called.
      jaxpr: a closed jaxpr without constants: what one point reads to what it writes.
      *operands: arrays or tracers.
    """
    return ipu_codelet_p.bind(*operands, codelet=codelet, jaxpr=jaxpr)


def _inline(*operands: Datum, codelet: Codelet, jaxpr: ClosedJaxpr) -> tuple[jax.Array, ...]:
    operands = tuple(jnp.asarray(x) for x in operands)
    sizes = codelet.form.sizes([x.shape for x in operands])
    read = read_by_points(codelet.form, sizes, operands)
    return at_points(codelet.form, sizes, compat.jaxpr_as_fun(jaxpr), read, codelet.combiner)


def _types(*avals: compat.ShapedArray, codelet: Codelet, jaxpr: ClosedJaxpr) -> list[compat.ShapedArray]:
    sizes = codelet.form.sizes([aval.shape for aval in avals])
    return [
        compat.ShapedArray(codelet.form.result_shape(k, sizes, part.shape), part.dtype)
        for k, part in enumerate(jaxpr.out_avals)
    ]


def _jvp(
    primals: Sequence[Datum], tangents: Sequence[Datum], *, codelet: Codelet, jaxpr: ClosedJaxpr
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The results are the codelet's; tangents, which JAX differentiates, the function's at every point."""
    given = [compat.instantiated(t) for t in tangents]
    _, derived = jax.jvp(lambda *xs: _inline(*xs, codelet=codelet, jaxpr=jaxpr), tuple(primals), tuple(given))
    return call(codelet, jaxpr, *primals), list(derived)


def _batch(
    arguments: Sequence[Datum], dims: Sequence[int | None], *, codelet: Codelet, jaxpr: ClosedJaxpr
) -> tuple[list[jax.Array], list[int]]:
    has = [isinstance(d, int) for d in dims]
    moved = [jnp.moveaxis(x, d, 0) if isinstance(d, int) else x for x, d in zip(arguments, dims, strict=True)]
    parts = (1, *codelet.parts) if codelet.parts else ()
    derived = Codelet(
        codelet.label, codelet.form.batched(has), codelet.combiner, codelet.cycles, parts, codelet.tiles
    )
    results = call(derived, jaxpr, *moved)
    return results, [0] * len(results)


def _as_call(params: Params) -> tuple[str, str, ClosedJaxpr, dict[str, str]]:
    codelet: Codelet = params["codelet"]
    options = {
        "label": codelet.label,
        "form": str(codelet.form),
        "combiner": codelet.combiner,
        "cycles": str(codelet.cycles),
        "parts": ",".join(map(str, codelet.parts)),
        "tiles": ",".join(map(str, codelet.tiles)),
    }
    return CODELET, codelet.label, params["jaxpr"], options


ipu_codelet_p = compat.leaf_primitive(
    "ipu_codelet", inline=_inline, jvp=_jvp, batch=_batch, types=_types, platform=PLATFORM, call=_as_call
)
