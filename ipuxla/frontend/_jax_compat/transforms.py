"""Jaxpr to jaxpr; each result is remembered per jaxpr, so that it is compiled once."""

# pyright: standard, reportPrivateImportUsage=false
# (private names are this module's purpose)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax._src import core as _core
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _pe
from jax._src.state import discharge as _discharge
from jax._src.state import types as _state
from jax._src.util import weakref_lru_cache as _weakref_lru_cache

from ipuxla.frontend._jax_compat.aliases import ClosedJaxpr, Zero


@_weakref_lru_cache
def without_refs(jaxpr: ClosedJaxpr) -> tuple[ClosedJaxpr, tuple[int, ...], tuple[jax.Ref, ...]]:
    """Return a jaxpr with its Refs as values passed on. Hides ``discharge_state``.

    Returns:
      The jaxpr, whose results are followed by the last value of each Ref that it is given; the positions of those among
      its arguments, which are values now; and the Refs that the function closed over, which are its first arguments.
    """
    jaxpr, closed_over = _with_refs_as_arguments(jaxpr)
    given = tuple(n for n, aval in enumerate(jaxpr.in_avals) if isinstance(aval, _state.AbstractRef))
    if not given and not any(isinstance(e, _core.InternalMutableArrayEffect) for e in jaxpr.effects):
        return jaxpr, given, closed_over
    pure = _discharge.discharge_state(jaxpr)
    said = jaxpr.jaxpr.debug_info
    paths = said.safe_result_paths(len(jaxpr.out_avals))
    said = said._replace(result_paths=(*paths, *[""] * len(given)))
    return pure.replace(jaxpr=pure.jaxpr.replace(debug_info=said)), given, closed_over


def _with_refs_as_arguments(jaxpr: ClosedJaxpr) -> tuple[ClosedJaxpr, tuple[jax.Ref, ...]]:
    """Return a jaxpr whose first arguments are the Refs among its constants, and these."""
    inner, consts = jaxpr.jaxpr, jaxpr.consts
    pairs = list(zip(inner.constvars, consts, strict=True))
    refs = [(variable, const) for variable, const in pairs if isinstance(const, jax.Ref)]
    if not refs:
        return jaxpr, ()
    kept = [pair for pair in pairs if not isinstance(pair[1], jax.Ref)]
    names = inner.debug_info.safe_arg_names(len(inner.invars))
    opened = inner.replace(
        constvars=[variable for variable, _ in kept],
        invars=[*(variable for variable, _ in refs), *inner.invars],
        debug_info=inner.debug_info._replace(arg_names=(*[""] * len(refs), *names)),
    )
    return jaxpr.replace(jaxpr=opened, consts=[const for _, const in kept]), tuple(ref for _, ref in refs)


def jvp_jaxpr(jaxpr: ClosedJaxpr, nonzeros: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """Return primals and tangents as one jaxpr, and which results have a tangent. Hides ``ad.jvp_jaxpr``."""
    return _ad.jvp_jaxpr(jaxpr, tuple(nonzeros), instantiate=False)


def partial_eval_jaxpr(
    jaxpr: ClosedJaxpr, unknowns: Sequence[bool]
) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool], list[int | None]]:
    """Split a jaxpr by which arguments are known. Hides ``pe.partial_eval_jaxpr_nounits_fwd``.

    Returns:
      The known part: known results, then residuals; the unknown part: residuals, then unknown arguments;
      which results are unknown; and for each residual the position, among constants and known arguments, of
      the value it repeats, or None where the known part returns it.
    """
    known, unknown, out_unknowns, _, repeats = _pe.partial_eval_jaxpr_nounits_fwd(
        jaxpr, tuple(unknowns), False
    )
    return known, unknown, out_unknowns, repeats


def drop_repeats(
    jaxpr: ClosedJaxpr, num_outputs: int
) -> tuple[ClosedJaxpr, list[int | None], list[int | None]]:
    """Drop results that repeat an argument, and those after ``num_outputs`` that repeat an earlier result.

    Hides jaxpr variables and ``pe._jaxpr_forwarding``.

    Returns:
      The smaller jaxpr; for each old result the argument it repeats, or None; and for each result left by
      that the earlier one, so counted, that it repeats, or None.
    """
    from_inputs = _pe._jaxpr_forwarding(jaxpr.jaxpr)
    jaxpr = _pe.prune_closed_jaxpr_outputs(jaxpr, [source is None for source in from_inputs])
    num_outputs = sum(source is None for source in from_inputs[:num_outputs])
    first = {id(variable): position for position, variable in enumerate(jaxpr.jaxpr.outvars[:num_outputs])}
    from_outputs = [None] * num_outputs + [first.get(id(v)) for v in jaxpr.jaxpr.outvars[num_outputs:]]
    return _pe.prune_closed_jaxpr_outputs(jaxpr, [p is None for p in from_outputs]), from_inputs, from_outputs


@_weakref_lru_cache
def transpose_jaxpr(
    jaxpr: ClosedJaxpr, is_linear: tuple[bool, ...], is_zero: tuple[bool, ...]
) -> tuple[ClosedJaxpr, list[bool]]:
    """Transpose a jaxpr that is linear in some arguments. Hides ``ad.backward_pass``.

    Args:
      jaxpr: the function.
      is_linear: which arguments it is linear in; the others are residuals.
      is_zero: which results have a symbolic zero as cotangent; those are no arguments of the transpose.

    Returns:
      A jaxpr from residuals and cotangents to the nonzero cotangents of the linear arguments, and which of
      these arguments have a nonzero one.
    """
    nonzero: list[bool] = []

    def transposed(residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        values, given = iter(residuals), iter(cotangents)
        primals = [
            _ad.UndefinedPrimal(aval.to_ct_aval()) if linear else next(values)
            for aval, linear in zip(jaxpr.in_avals, is_linear, strict=True)
        ]
        cts = [
            Zero(aval.to_ct_aval()) if zero else next(given)
            for aval, zero in zip(jaxpr.out_avals, is_zero, strict=True)
        ]
        results = _ad.backward_pass(jaxpr.jaxpr, False, jaxpr.consts, primals, cts)
        results = [ct for ct, linear in zip(results, is_linear, strict=True) if linear]
        nonzero[:] = [type(ct) is not Zero for ct in results]
        return [ct for ct in results if type(ct) is not Zero]

    residuals = [aval for aval, linear in zip(jaxpr.in_avals, is_linear, strict=True) if not linear]
    cotangents = [aval.to_ct_aval() for aval, zero in zip(jaxpr.out_avals, is_zero, strict=True) if not zero]
    return jax.make_jaxpr(transposed)(residuals, cotangents), nonzero


def batch_jaxpr(jaxpr: ClosedJaxpr, axis: Any, dims: Sequence[Any]) -> tuple[ClosedJaxpr, Sequence[Any]]:
    """Return a jaxpr over a batch, and each result's batch dimension or None. Hides ``batch_jaxpr2``."""
    return _batching.batch_jaxpr2(jaxpr, axis, tuple(dims))


@_weakref_lru_cache
def dce_jaxpr(jaxpr: ClosedJaxpr, is_used: tuple[bool, ...]) -> tuple[ClosedJaxpr, list[bool]]:
    """Keep the used results, and return which arguments they need. Hides ``pe.dce_jaxpr``."""
    smaller, used_inputs = _pe.dce_jaxpr(jaxpr.jaxpr, is_used)
    return ClosedJaxpr(smaller, jaxpr.consts), used_inputs
