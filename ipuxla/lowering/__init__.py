"""HLO modules onto tile graphs: one rule per op class, one file per family."""

from __future__ import annotations

from hlo_passes.ir import Module
from hlo_passes.passes import with_whole_scopes
from ipuxla.lowering import (
    bitcasts,
    calls,
    codelet_calls,
    contraction,
    control,
    convolution,
    folding,
    gather_scatter,
    indexing,
    linalg,
    mapping,
    movement,
    neural,
    random,
    regular,
    scan,
    sorting,
    transfers,
)
from ipuxla.lowering.errors import UnsupportedLowering
from ipuxla.lowering.registry import RULES, Lowering, dtype_of
from ipuxla.lowering.transfers import streams_of
from tiles.graph import Graph
from tiles.target import Target

__all__ = ["RULES", "UnsupportedLowering", "lower_module", "streams_of"]

assert (
    bitcasts
    and calls
    and codelet_calls
    and contraction
    and control
    and convolution
    and folding
    and gather_scatter
    and indexing
    and linalg
    and mapping
    and movement
    and neural
    and random
    and regular
    and scan
    and sorting
    and transfers
)  # for their rules


def lower_module(module: Module, target: Target) -> Graph:
    """Return the graph of an optimized module's entry computation, whose operations are yet to be planned.

    Args:
      module: an optimized module.
      target: the machine.

    Raises:
      UnsupportedLowering: an op without a lowering, or a stream of several types; names the user's source line.
    """
    module = with_whole_scopes(module)
    graph = Graph(target, module.name)
    entry = module.entry_computation
    arguments = []
    for parameter in entry.parameters:
        name = parameter.name.removeprefix("%")
        arguments.append(graph.add_input(parameter.type.shape, dtype_of(parameter.type), name))
    graph.donated = module.donated
    graph.streams.update(streams_of(module))
    lowering = Lowering(module, graph, entry, graph.program)
    results = movement.lower_computation(lowering, entry, arguments)
    graph.outputs = [tensor.name for tensor in results]
    return graph
