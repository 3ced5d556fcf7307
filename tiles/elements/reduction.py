"""A cell's reduction: its jaxpr cut before and after the one equation that folds a dimension."""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.core import Jaxpr

from tiles._jax_compat import Atom, ClosedJaxpr, Datum, Equation
from tiles.elements.select import Equations
from tiles.errors import NoTileCode
from tiles.numerics.accumulate import accumulate_p

KINDS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and",
    "reduce_or": "or",
    "reduce_xor": "xor",
}


WIDENING = ("convert_element_type", accumulate_p.name)


@dataclass(frozen=True)
class Reduction:
    """A jaxpr cut at its one reduction.

    Attributes:
      before: functions of elements, with ``consts``; its one result is reduced.
      after: functions of the reduced value.
      kind: what folds, one of ``KINDS``.
      over_rows: whether rows are folded; else the elements of each row.
      dtype: of what is reduced.
      result_dtype: of what the reduction gives; sums of halves may be float32.
    """

    before: Equations
    consts: list[Datum]
    after: Equations
    kind: str
    over_rows: bool
    dtype: str
    result_dtype: str


def find_reduction(jaxpr: ClosedJaxpr) -> Reduction | None:
    """Return a jaxpr's reduction; None where it has none.

    Raises:
      NoTileCode: several reductions, or one over something else than one of two dimensions.
    """
    inner: Jaxpr = jaxpr.jaxpr
    places = [k for k, eqn in enumerate(inner.eqns) if eqn.primitive.name.startswith("reduce_")]
    places = [k for k in places if inner.eqns[k].primitive.name != "reduce_precision"]
    if not places:
        return None
    at = places[0]
    eqn: Equation = inner.eqns[at]
    shape = eqn.invars[0].aval.shape
    axes = eqn.params.get("axes", ())
    if len(places) > 1 or eqn.primitive.name not in KINDS or len(shape) != 2 or len(axes) != 1:
        raise NoTileCode(
            f"{eqn.primitive.name} of axes {axes} of {shape}",
            expected=f"one of {', '.join(KINDS)} over one of two dimensions",
        )
    reduced: Atom = eqn.invars[0]
    cut = at
    last: Equation = inner.eqns[at - 1] if at else None
    if last is not None and _widens_halves(last, reduced, KINDS[eqn.primitive.name]):
        reduced, cut = last.invars[0], at - 1  # the machine's accumulators add halves in f32 as they are
    return Reduction(
        Equations(inner.constvars, inner.invars, [reduced], inner.eqns[:cut]),
        list(jaxpr.consts),
        Equations([], [eqn.outvars[0]], inner.outvars, inner.eqns[at + 1 :]),
        KINDS[eqn.primitive.name],
        axes == (0,),
        reduced.aval.dtype.name,
        eqn.invars[0].aval.dtype.name,
    )


def _widens_halves(eqn: Equation, reduced: Atom, kind: str) -> bool:
    """Return whether an equation only widens halves that are then summed."""
    is_conversion = eqn.primitive.name in WIDENING and eqn.outvars[0] is reduced
    return kind == "add" and is_conversion and eqn.invars[0].aval.dtype.name == "float16"
