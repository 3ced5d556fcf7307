"""A planned operation's vertices, added to the graph with the tensors that they write."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import replace

from tiles.graph import Codelet, Execute, Layout, OpForm, Plan, Tensor, Vertices
from tiles.plan import is_resident, preferred_layout
from tiles.planning.state import PlannedSite, Planning
from tiles.poplibs.popops.map import rearranging


def emit(
    site: PlannedSite,
    codelet: Codelet,
    form: OpForm,
    plan: Plan,
    operands: Seq[Tensor],
    dtypes: tuple[str, ...],
    results: Seq[str] = (),
) -> tuple[Tensor, ...]:
    """Add one compute set and return what it writes.

    Args:
      site: where, and its name.
      codelet: what each vertex computes.
      form: domain and indexing maps.
      plan: how the domain is split.
      operands: tensors of the planned graph; those that lie nowhere yet lie as the plan reads them most locally.
      dtypes: dtypes of the results.
      results: names of the recorded tensors to write; new ones, named after the site, by default.
    """
    planning = site.planning
    settle(planning, form, plan, operands)
    graph = planning.graph
    written: list[Tensor] = []
    for k, dtype in enumerate(dtypes):
        layout = plan.result_layout(form, k)
        name = f"{site.label}:{k}" if k else site.label
        written.append(
            planning.place(results[k], layout)
            if results
            else graph.add_tensor(layout.shape, dtype, name, layout, location=site.location)
        )
    names = tuple(t.name for t in operands), tuple(t.name for t in written)
    compute_set = graph.add_compute_set(
        site.label, Vertices(site.label, codelet, form, plan, *names, site.location)
    )
    site.program.add(Execute(compute_set.name))
    return tuple(written)


def settle(planning: Planning, form: OpForm, plan: Plan, operands: Seq[Tensor]) -> None:
    """Give every operand that has no layout yet the one ``plan`` reads most locally.

    What all cells read lies as well on other tiles, if it is small. A single element always goes elsewhere: a loop's counter is
    then not counted up after what reads it, on one of the tiles that do.
    """
    target = planning.graph.target
    for k, tensor in enumerate(operands):
        if planning.graph.tensors[tensor.name].layout is None:
            layout = preferred_layout(form, plan, k, tensor.shape, tensor.dtype, target)
            if not is_resident(form, plan, k, layout):
                last = int(layout.tiles.max()) - layout.base + 1
                if (
                    last * 4 <= target.num_tiles
                    and layout.base + last < target.num_tiles
                    and (layout.base == 0 or last == 1)
                ):
                    layout = replace(layout, base=planning.rotated_base(last, math.prod(tensor.shape)))
            planning.place(tensor.name, layout)


def copied_into_order(site: PlannedSite, x: Tensor, layout: Layout) -> Tensor:
    """Copy a tensor to where, and into the order in which, an operation reads it."""
    form, codelet = rearranging(x.shape, x.dtype)
    plan = Plan(layout.axes, layout.base, layout.arrangement)
    return emit(site, codelet, form, plan, [x], (x.dtype,))[0]
