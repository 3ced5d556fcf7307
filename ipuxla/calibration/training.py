"""Training on many IPUs: replicas of a network, each a pipeline of some IPUs.

What an IPU computes for some samples (forward, back, sums of gradients) is compiled for one IPU; an update of the weights
begins when enough of them have been through, with the sum of all replicas' gradients over the links, as ``gcl`` adds them.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from ipuxla._jax_compat import Function, Tree
from ipuxla.calibration.figures import ALL, NOTHING, Figure, figure
from ipuxla.calibration.networks import Encoder, Network, network_of, run_blocks
from ipuxla.calibration.parameters import NotModelled
from ipuxla.calibration.records import Record
from ipuxla.calibration.stencils import of_phase
from ipuxla.calibration.work import Work, compiled, compiled_graph, machine
from tiles.graph import Graph
from tiles.numerics.dtypes import itemsize
from tiles.poplibs import gcl
from tiles.target import System, Target, exchange_phase, find_machine

Blocks = tuple[int, int]
"""The first of the blocks of a stage, and the first behind them."""


@dataclass(frozen=True)
class Pipeline:
    """How a replica lies on IPUs.

    Args:
      ipus: of a replica, a stage on each.
      stages: the blocks of those stages of which one takes longest: of layers that are alike, of the stage with most of them.
      samples: that go through at once.
    """

    ipus: int
    stages: tuple[Blocks, ...]
    samples: int


def _alike(ipus: int, blocks: int, samples: int) -> Pipeline:
    return Pipeline(ipus, ((0, blocks),), samples)


WHOLE = 1 << 30
"""Behind the last block of any network."""

KNOWN: tuple[tuple[tuple[str, ...], Pipeline], ...] = (
    (("bert-large", "squad"), _alike(8, 4, 4)),
    (("bert-large", "seq 128", "tensorflow2"), _alike(4, 7, 4)),
    (("bert-large", "seq 128"), _alike(4, 7, 8)),
    (("bert-large",), _alike(4, 7, 2)),
    (("bert-base", "squad"), _alike(2, 6, 2)),
    (("bert-base", "seq 128"), _alike(4, 4, 32)),
    (("bert-base",), _alike(4, 4, 8)),
    (("vit", "pre-training"), _alike(4, 3, 8)),
    (("vit",), _alike(4, 3, 17)),
    (("resnet",), _alike(1, WHOLE, 8)),
    (("efficientnet-b4", "g16"), Pipeline(2, ((0, 11), (11, WHOLE)), 3)),
    (("swin-tiny",), Pipeline(4, ((0, 2), (2, 5), (5, 10), (10, WHOLE)), 4)),
    (("conformer-medium",), Pipeline(4, ((0, 3), (3, 7), (7, 12)), 4)),
)
"""Pipelines by words that are in what a record says, as their authors' configurations state them.

Source: github.com/graphcore/examples (nlp/bert/popart/configs, nlp/bert/tensorflow2/configs, vision/vit/pytorch/configs.yml,
vision/swin/pytorch's configurations, speech/conformer/pytorch/configs/train.yaml,
vision/cnns/tensorflow1/training/configs.yml). Of a ResNet-50, ``resnet50_gn_16ipus`` there has
8 images at once; MLPerf's have 16 to 22, for which the program as it is compiled here finds no room. What an encoder has beside
its layers (embeddings, heads, a conformer's decoder) lies on IPUs with fewer layers and is left out.
"""
PACKED = {128: 65536 / 54784, 384: 16384 / 9600, 512: 2.0}
"""Sequences on average in a pack of so many tokens: the samples of an update without packing over those with it, in the
configurations of ``KNOWN``; of 512 tokens as MLPerf's program states it (github.com/mlcommons/training_results_v2.0,
Graphcore/benchmarks/bert/implementations/paddlepaddle/run_mlperf_POD16.sh, ``avg_seq_per_pack``)."""
HELD = 0.5
"""Share of the memory up to which weights and the sums of their gradients take it where no source says how a network is split."""


def training(record: Record) -> Work:
    """Return one update of a network's weights, with as many samples as the record states."""
    p, target = record.params, machine(record)
    words = f"{p.text('model')} {record.what} {p.text('stack')}".lower()
    network = network_of(record)
    pipeline = _pipeline(record, words, network, target)
    if record.ipus % pipeline.ipus:
        raise NotModelled(f"{record.ipus} IPUs are no whole number of replicas of {pipeline.ipus}")
    replicas, samples = record.ipus // pipeline.ipus, pipeline.samples
    rounds = max(1, round(_update(record, samples) / (samples * replicas)))
    network = replace(network, batch=samples)
    stages = [Stage(network, blocks, pipeline.ipus > 1) for blocks in pipeline.stages]
    step, update = max((_step(stage, target) for stage in stages), key=lambda found: found.cycles), NOTHING
    if record.ipus > 1:
        system = find_machine(f"{record.target} x {record.ipus}")
        if not isinstance(system, System):
            raise NotModelled(f"no system of {record.ipus} {record.target} is known")
        # What comes from the host does not cross the links; layers that are alike send on what they are given.
        received = [stage.given for stage in stages if stage.blocks[0] > 0 or len(stages) == 1]
        sent = max(given.size * given.dtype.itemsize for given in received)
        summed = max((stage.weights for stage in stages), key=lambda found: found[1])
        step, update = step + _sent(sent, pipeline, system), _summed(*summed, pipeline, system)
    # The last sample is through the pipeline when each other stage has had it.
    whole = step.times(rounds + pipeline.ipus - 1) + update
    built = f"{replicas} x {pipeline.ipus} IPUs, {samples} samples at once, {rounds:,} times an update"
    if record.unit.startswith(("it/s", "steps/s")):
        return Work(whole, target.clock_hz, built, items=1.0)
    packed = PACKED.get(network.tokens, 1.0) if isinstance(network, Encoder) and "packed" in words else 1.0
    return Work(whole, target.clock_hz, built, items=rounds * samples * replicas * packed)


def _update(record: Record, samples: int) -> int:
    """Return how many samples there are between two updates; a batch of several IPUs is that unless it says that it goes through at once."""
    p = record.params
    if p.has("global_batch"):
        return p.integer("global_batch")
    if record.ipus == 1:
        return samples
    if p.has("batch") and not p.has("micro_batch"):
        return p.integer("batch")
    raise NotModelled("how many samples are between two updates of the weights is not stated")


def _pipeline(record: Record, words: str, network: Network, target: Target) -> Pipeline:
    """Return how a replica lies on IPUs: as the record states, else as is known, else on the fewest with room for weights and sums."""
    p = record.params
    known = next((found for said, found in KNOWN if all(word in words for word in said)), None)
    if (
        known is not None
        and isinstance(network, Encoder)
        and known.ipus * known.stages[0][1] < network.layers
    ):
        known = None  # another size of it
    if record.ipus == 1:
        ipus = 1
    elif p.has("replicas"):
        ipus = max(1, record.ipus // p.integer("replicas"))
    elif known is not None:
        ipus = known.ipus
    else:
        dtype, weights = _weights([parameters for parameters, _ in network.blocks()])
        held = 2 * weights * itemsize(dtype)
        ipus = next(n for n in (1 << k for k in range(32)) if held <= n * HELD * target.memory_bytes)
    samples = p.integer("micro_batch", 1 if known is None else known.samples)
    if record.ipus == 1:
        samples = p.integer("batch", samples)
    if known is not None and known.ipus == ipus:
        return replace(known, samples=samples)
    if ipus == 1:
        return _alike(1, WHOLE, samples)
    if not isinstance(network, Encoder):
        raise NotModelled(f"how its layers are split over {ipus} IPUs is not known")
    return _alike(ipus, -(-network.layers // ipus), samples)


def _weights(parameters: Sequence[Tree]) -> tuple[str, int]:
    """Return what most of some weights are, and how many of that would take as many bytes as all."""
    leaves = jax.tree.leaves(parameters)
    size_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    dtype = max(leaves, key=lambda leaf: math.prod(leaf.shape)).dtype
    return str(dtype), -(-size_bytes // dtype.itemsize)


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline.

    Args:
      network: with as many samples as go through at once.
      blocks: which of its blocks it has.
      is_pipelined: whether it is one of several.
    """

    network: Network
    blocks: Blocks
    is_pipelined: bool

    @property
    def parts(self) -> list[tuple[Tree, Function]]:
        """Parameters and function of each of its blocks."""
        first, end = self.blocks
        return self.network.blocks()[first:end]

    @property
    def given(self) -> jax.ShapeDtypeStruct:
        """What the blocks before it make of the samples."""
        before = self.network.blocks()[: self.blocks[0]]
        parameters, functions = [p for p, _ in before], [f for _, f in before]
        return jax.eval_shape(functools.partial(run_blocks, functions), parameters, self.network.given)

    @property
    def weights(self) -> tuple[str, int]:
        """Their dtype, and how many."""
        return _weights([parameters for parameters, _ in self.parts])

    def step(self) -> tuple[Function, tuple[Tree, ...]]:
        """Return what it computes for the samples that go through at once, and its arguments, as shapes.

        These are its parameters, the sums of their gradients, samples, and gradients of what it makes of them. It returns the new
        sums and, in a pipeline, gradients of the samples; there it keeps what samples bring to each block and computes what is
        inside again on the way back.
        """
        functions = [jax.checkpoint(f) if self.is_pipelined else f for _, f in self.parts]
        parameters, run = [p for p, _ in self.parts], functools.partial(run_blocks, functions)

        def step(parameters: Tree, sums: Tree, x: jax.Array, up: jax.Array) -> tuple[Tree, jax.Array | None]:
            if self.is_pipelined:
                gradients, down = jax.vjp(run, parameters, x)[1](up)
            else:
                (gradients,), down = jax.vjp(lambda given: run(given, x), parameters)[1](up), None
            return jax.tree.map(jnp.add, sums, gradients), down

        return step, (parameters, parameters, self.given, jax.eval_shape(run, parameters, self.given))


@functools.cache
def _step(stage: Stage, target: Target) -> Figure:
    step, arguments = stage.step()
    return figure(compiled(step, target, *arguments, donated=(1,)), (ALL,))


def _sent(size_bytes: int, pipeline: Pipeline, system: System) -> Figure:
    """Return what all pipelines' stages send to each other at a time: results to the next, gradients to the one before."""
    if pipeline.ipus == 1:
        return NOTHING
    first = np.arange(system.num_ipus - 1)
    first = first[(first + 1) % pipeline.ipus > 0]
    edges = np.zeros((system.num_ipus, system.num_ipus), np.int64)
    edges[first, first + 1] = edges[first + 1, first] = size_bytes
    return of_phase(exchange_phase(system, edges), (ALL,))


def _summed(dtype: str, weights: int, pipeline: Pipeline, system: System) -> Figure:
    """Return the sum of a stage's gradients over all replicas."""
    replicas = system.num_ipus // pipeline.ipus
    if replicas == 1:
        return NOTHING
    graph = Graph(system)
    graph.replicate("data", replicas)
    if pipeline.ipus > 1:
        graph.replicate("stage", pipeline.ipus)
    sums = graph.add_input((weights,), dtype, "sums")
    graph.outputs.append(gcl.all_reduce(graph, sums, "data").name)
    return figure(compiled_graph(graph), (ALL,))
