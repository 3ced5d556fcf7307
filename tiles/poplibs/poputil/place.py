"""Record an operation: the one way from (codelet, form, operands) to the graph; every primitive goes through it."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tiles.graph import Codelet, Graph, Operation, OpForm, Plan, Site, Tensor, site_of


def place(
    where: Graph | Site,
    codelet: Codelet,
    form: OpForm,
    operands: Seq[Tensor],
    result_dtypes: tuple[str, ...],
    plan: Plan | None = None,
) -> tuple[Tensor, ...]:
    """Add one operation to the graph and return its results, which planning will place.

    Args:
      where: graph, or site in it, to add to.
      codelet: what each vertex computes.
      form: domain and indexing maps.
      operands: tensors of the graph.
      result_dtypes: dtype of every result.
      plan: use this plan instead of one that is searched.

    Raises:
      InvalidPlan: the given plan does not fit.
      InvalidGraph: operands do not fit the form.
    """
    site = site_of(where, codelet.name.rpartition(".")[2])
    names = tuple(t.name for t in operands)
    operation = Operation(site.name, codelet, form, names, (), site.location, plan)
    return site.graph.add_operation(operation, result_dtypes, site.program)
