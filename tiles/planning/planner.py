"""The planner: from a recorded graph to one whose operations are compute sets and whose tensors have layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tiles.graph import ACROSS, Graph, Plan
from tiles.planning.policy import Policy
from tiles.planning.programs import plan_program, spliced
from tiles.planning.state import Planning


@dataclass(frozen=True)
class Planner:
    """Plans operations in program order, each as is cheapest given where its operands lie.

    Args:
      policy: what plans are chosen by.
      pins: plans pinned to steps, by the steps' names; the others are searched.
    """

    policy: Policy = field(default_factory=Policy)
    pins: Mapping[str, Plan] = field(default_factory=dict[str, Plan])

    def plan(self, graph: Graph) -> Graph:
        """Return a planned graph for a recorded one, which stays as it is; one that is planned already is returned.

        Raises:
          InvalidPlan: a pinned plan, or a builder's, does not fit its operation.
        """
        if graph.is_planned:
            return graph
        planning = Planning(graph, self.policy, self.pins)
        plan_program(planning, graph.program, planning.graph.program)
        planned = planning.finish()
        planned.program = spliced(planned.program)
        planned.functions = {name: spliced(body) for name, body in planned.functions.items()}
        return across(planning)


def across(planning: Planning) -> Graph:
    """Return the planned graph with the tiles of all IPUs of a replica counted together, in layouts and in plans."""
    graph = planning.graph
    graph.is_planned = True
    if graph.ipus_per_replica == 1:
        return graph
    for name, made in graph.compute_sets.items():
        groups = (
            replace(group, plan=planning.lifted(group.plan, graph.tensors[group.results[0]].ipu))
            for group in made.vertices
        )
        graph.compute_sets[name] = replace(made, vertices=tuple(groups))
    for name, tensor in graph.tensors.items():
        assert tensor.layout is not None
        graph.tensors[name] = replace(tensor, layout=planning.lifted(tensor.layout, tensor.ipu), ipu=ACROSS)
    return graph
