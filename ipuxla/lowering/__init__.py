"""HLO modules onto tile graphs: one rule per op class, one file per family."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_passes.ir import Module
from hlo_passes.passes import with_whole_scopes
from ipuxla.lowering import (
    bitcasts,
    calls,
    codelet_calls,
    collectives,
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
from ipuxla.lowering.collectives import joining
from ipuxla.lowering.errors import UnsupportedLowering
from ipuxla.lowering.registry import RULES, Lowering, dtype_of
from ipuxla.lowering.transfers import streams_of
from ipuxla.sharding import ArraySharding
from tiles.graph import Graph, Tensor
from tiles.target import System, Target

__all__ = ["RULES", "UnsupportedLowering", "joining", "lower_module", "streams_of"]

assert (
    bitcasts
    and calls
    and collectives
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


def lower_module(module: Module, target: Target | System, inputs: Sequence[ArraySharding] = ()) -> Graph:
    """Return the graph of an optimized module's entry computation, whose operations are yet to be planned.

    Args:
      module: an optimized module.
      target: the machine; a system for a module of many devices, each of which is a replica then.
      inputs: how parameters are sharded, which says between which devices they differ; if empty, between all.

    Raises:
      UnsupportedLowering: an op without a lowering, or a stream of several types; names the user's source line.
    """
    module = with_whole_scopes(module)
    graph = Graph(target, module.name)
    entry = module.entry_computation
    axes = collectives.replica_axes(module) if module.mesh else ()
    folded = collectives.folded_axes(module, axes, target) if isinstance(target, System) else ()
    whole = collectives.axes_of_parts(module) if axes != tuple(module.mesh) else {}
    for axis, size in axes:
        graph.replicate(axis, size, folded=axis in folded, part_of=whole.get(axis, ""))
    arguments: list[Tensor] = []
    for number, parameter in enumerate(entry.parameters):
        name, kind = parameter.name.removeprefix("%"), dtype_of(parameter.type)
        differs = inputs[number].axes(axes) if inputs else graph.replicas.names
        same = tuple(axis for axis, _ in axes if axis not in differs)
        arguments.append(graph.add_input(parameter.type.shape, kind, name, same_along=same))
    graph.donated = module.donated
    graph.streams.update(streams_of(module))
    lowering = Lowering(module, graph, entry, graph.program)
    results = movement.lower_computation(lowering, entry, arguments)
    graph.outputs = [tensor.name for tensor in results]
    return graph
