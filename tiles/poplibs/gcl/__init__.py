"""gcl: collectives between replicas, as Graphcore's communication library has them.

``Graph.replicate`` names the axes; see ``tiles.graph.Replicas``.
"""

from tiles.graph import Pairs, PartialSwap, Shift, Swap
from tiles.poplibs.gcl.choice import latency_bytes, predicted_cycles
from tiles.poplibs.gcl.codelets import (
    ALGORITHMS,
    AllGather,
    AllReduce,
    AllToAll,
    AssumeEqualAcrossReplicas,
    Broadcast,
    ReduceScatter,
)
from tiles.poplibs.gcl.collectives import (
    all_gather,
    all_reduce,
    all_reduce_several,
    all_to_all,
    assume_equal_across_replicas,
    broadcast,
    permute,
    reduce_scatter,
    replica_index,
)

__all__ = [
    "ALGORITHMS",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "AssumeEqualAcrossReplicas",
    "Broadcast",
    "Pairs",
    "PartialSwap",
    "ReduceScatter",
    "Shift",
    "Swap",
    "all_gather",
    "all_reduce",
    "all_reduce_several",
    "all_to_all",
    "assume_equal_across_replicas",
    "broadcast",
    "latency_bytes",
    "permute",
    "predicted_cycles",
    "reduce_scatter",
    "replica_index",
]
