"""Record an operation: the one way from (codelet, form, operands) to the graph; every primitive goes through it."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tiles.graph import Codelet, Graph, Operation, OpForm, Plan, Sequence, Tensor


def place(
    graph: Graph,
    codelet: Codelet,
    form: OpForm,
    operands: Seq[Tensor],
    result_dtypes: tuple[str, ...],
    name: str,
    location: str = "",
    plan: Plan | None = None,
    program: Sequence | None = None,
) -> tuple[Tensor, ...]:
    """Add one operation to the graph and return its results, which planning will place.

    Args:
      graph: where to add it.
      codelet: what each vertex computes.
      form: domain and indexing maps.
      operands: tensors of the graph.
      result_dtypes: dtype of every result.
      name: label of the step, made unique; a plan pinned to that step is used.
      location: the user's source line.
      plan: use this plan instead of one that is searched.
      program: sequence to append to; the graph's main program by default.

    Raises:
      InvalidPlan: the given plan does not fit.
      InvalidGraph: operands do not fit the form.
    """
    program = graph.program if program is None else program
    names = tuple(t.name for t in operands)
    operation = Operation(name, codelet, form, names, (), location, plan)
    return graph.add_operation(operation, result_dtypes, program)
