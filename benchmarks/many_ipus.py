"""Many IPUs: collectives by size, algorithm and system, a data-parallel step on 1 to 16 IPUs, beside published figures.

python -m benchmarks.many_ipus

Nothing is fitted to the published figures. Cycles are those of compiled programs; no host clock is read but for the
growth with replicas.
"""

from __future__ import annotations

import math
import pathlib
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import jax
import numpy as np
from absl import app
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import ipuxla
from benchmarks.timing import machine, table, write_result
from ipuxla.experiments.models import MODELS
from tests import transformer
from tiles import Executable, Graph, certify, compile_graph, gcl, poplin, popops, poputil
from tiles.errors import InvalidGraph
from tiles.report import cost_analysis, memory_analysis
from tiles.target import System, find_machine

SIZES = (2_000, 200_000, 6_000_000)
"""Bytes of an operand."""
SYSTEMS = (
    ("c2_card", 2),
    ("dss8440", 16),
    ("m2000", 4),
    ("pod16", 16),
    ("pod64", 64),
    ("bow_pod64", 64),
    ("pod128", 128),
)
PUBLISHED = (
    ("6 MB over 16 GC2, PopLibs' ring", 498_363, "dss8440", 16, 6_000_000, "two_rings"),
    ("small (1K, unit not given), 16 GC2", 81_640, "dss8440", 16, 2_000, "ring"),
    ("small (128K, unit not given), 16 GC2", 96_788, "dss8440", 16, 256_000, "ring"),
)
"""What, cycles, system, replicas, bytes, algorithm.

Source: commit messages of github.com/graphcore/poplibs (c866d315, 8839d23a); halves, the tool ``replicated_collectives``.
"""


def all_reduce(system: System, count: int, size_bytes: int, algorithm: str | None = None) -> Executable:
    """Return an all-reduce of halves over ``count`` replicas."""
    graph = Graph(system)
    graph.replicate("data", count)
    x = graph.add_input((size_bytes // 2,), "float16", "x")
    graph.outputs.append(gcl.all_reduce(graph, x, "data", algorithm=algorithm).name)
    return compile_graph(graph)


def collectives() -> str:
    """Return the table of all-reduces."""
    rows = []
    for name, count in SYSTEMS:
        for size in SIZES:
            cells = []
            for algorithm in gcl.ALGORITHMS:
                try:
                    cells.append(
                        f"{cost_analysis(all_reduce(find_system(name), count, size, algorithm))['cycles']:,}"
                    )
                except InvalidGraph:  # the algorithm does not fit the group
                    cells.append("-")
            chosen = all_reduce(find_system(name), count, size)
            label = chosen.composites[0].codelet.label.split(",")[1].rstrip(">")
            figures = cost_analysis(chosen)
            micro = chosen.target.seconds(figures["cycles"]) * 1e6
            assumed = figures["basis_shares"]["ASSUMED"]
            rows.append([name, f"{count}", f"{size:,}", *cells, label, f"{micro:,.1f}", f"{assumed:.0%}"])
    header = ["system", "IPUs", "bytes", *gcl.ALGORITHMS, "taken", "us", "ASSUMED"]
    return table(header, rows)


def find_system(name: str) -> System:
    """Return a system by name."""
    found = find_machine(name)
    assert isinstance(found, System)
    return found


def beside() -> str:
    """Return published cycles beside ours."""
    rows = []
    for what, published, name, count, size, algorithm in PUBLISHED:
        ours = cost_analysis(all_reduce(find_system(name), count, size, algorithm))["cycles"]
        rows.append([what, algorithm, f"{published:,}", f"{ours:,}", f"{ours / published:.2f}"])
    return table(["all-reduce", "ours by", "published", "ours", "ratio"], rows)


def data_parallel(count: int, rows: int, width: int = 768) -> Executable:
    """Return a training step of two dense layers in halves, ``rows`` samples each replica, gradients summed."""
    graph = Graph(find_system("dss8440"))
    if count > 1:
        graph.replicate("data", count)
    x = graph.add_input((rows, width), "float16", "x")
    weights = [graph.add_input((width, width), "float16", f"w{i}", same_on_all=count > 1) for i in range(2)]
    hidden = popops.max(graph, poplin.matmul(graph, x, weights[0]), 0.0)
    out = poplin.matmul(graph, hidden, weights[1])
    into_hidden = poplin.matmul(graph, out, popops.transpose(graph, weights[1], [1, 0]))
    pairs = ((x, into_hidden), (hidden, out))
    gradients = [poplin.matmul(graph, popops.transpose(graph, a, [1, 0]), b) for a, b in pairs]
    size = width * width
    flat = poputil.concatenate(graph, [poputil.reshape(graph, g, (size,)) for g in gradients])
    total = gcl.all_reduce(graph, flat, "data") if count > 1 else flat
    for number, weight in enumerate(weights):
        part = popops.slice(graph, total, [number * size], [(number + 1) * size])
        step = popops.mul(graph, poputil.reshape(graph, part, (width, width)), 0.01)
        graph.outputs.append(popops.sub(graph, weight, step).name)
    return compile_graph(graph)


def tensor_parallel(count: int, rows: int = 512, width: int = 768) -> Executable:
    """Return a training step of two dense layers in halves: columns of the first and rows of the second on each replica.

    Partial results and partial gradients of the input are summed; weights and their gradients stay where they are.
    """
    graph = Graph(find_system("dss8440"))
    if count > 1:
        graph.replicate("model", count)
    own = width * 4 // count
    x = graph.add_input((rows, width), "float16", "x", same_on_all=count > 1)
    first, second = (graph.add_input(shape, "float16") for shape in ((width, own), (own, width)))
    hidden = popops.max(graph, poplin.matmul(graph, x, first), 0.0)
    partial = poplin.matmul(graph, hidden, second)
    out = gcl.all_reduce(graph, partial, "model") if count > 1 else partial
    into_hidden = poplin.matmul(graph, out, popops.transpose(graph, second, [1, 0]))
    into_x = poplin.matmul(graph, into_hidden, popops.transpose(graph, first, [1, 0]))
    if count > 1:
        into_x = gcl.all_reduce(graph, into_x, "model")
    graph.outputs.append(into_x.name)
    for weight, a, b in ((first, x, into_hidden), (second, hidden, out)):
        gradient = poplin.matmul(graph, popops.transpose(graph, a, [1, 0]), b)
        graph.outputs.append(popops.sub(graph, weight, popops.mul(graph, gradient, 0.01)).name)
    return compile_graph(graph)


def tensor_scaling() -> str:
    """Return the table of a tensor-parallel step."""
    rows, first = [], 0
    for count in (1, 2, 4, 8, 16):
        executable = tensor_parallel(count)
        figures = cost_analysis(executable)
        first = first or figures["cycles"]
        peak = memory_analysis(executable)["peak_bytes"]
        cells = [
            f"{count}",
            f"{figures['cycles']:,}",
            f"{figures['link_cycles']:,}",
            f"{first / figures['cycles']:.2f}",
        ]
        rows.append([*cells, f"{peak:,}"])
    return table(["IPUs", "cycles", "of links", "faster than one", "peak B of a tile"], rows)


def scaling() -> str:
    """Return the table of a data-parallel step."""
    rows, first = [], 0.0
    for count in (1, 2, 4, 8, 16):
        weak, strong = (cost_analysis(data_parallel(count, n)) for n in (512, 512 * 16 // count))
        samples = count * 512 / weak["seconds"]
        first = first or samples
        cells = [f"{count}", f"{weak['cycles']:,}", f"{weak['link_cycles']:,}", f"{samples:,.0f}"]
        rows.append([*cells, f"{samples / first / count:.2f}", f"{strong['cycles']:,}"])
    return table(["IPUs", "cycles", "of links", "samples/s", "of linear", "cycles, 8192 samples"], rows)


def growth() -> str:
    """Return what a program costs the compiler by the number of its replicas."""
    rows = []
    system = find_system("pod64 x 1024")
    certify(all_reduce(system, 2, 1_000_000))  # what is compiled once in a process
    for size in (1_000_000, 4_000):
        for count in (2, 1024, 65_536):
            all_reduce(system, count, size)  # routes are kept
            start = time.process_time()
            executable = all_reduce(system, count, size)
            compiled = time.process_time()
            certify(executable)
            done = time.process_time()
            seconds = [f"{compiled - start:.2f}", f"{done - compiled:.2f}"]
            figures = [f"{len(executable.to_bytes()):,}", f"{len(executable.steps)}"]
            rows.append([f"{size:,}", f"{count:,}", *seconds, *figures])
    return table(["bytes", "replicas", "compile s", "certify s", "file bytes", "steps"], rows)


def step_figures(name: str, count: int) -> list[str]:
    """Return what a data-parallel step over ``count`` replicas costs the compiler, in a process of its own.

    Weights are whole on every IPU, and JAX sums their gradients; routes are followed for the first time.
    """
    step, (params, *data) = STEPS[name]()
    mesh = AbstractMesh((count,), ("data",), axis_types=(AxisType.Auto,))
    local = jax.shard_map(
        lambda p, *own: step(p, *(x[0] for x in own)),
        mesh=mesh,
        in_specs=(PartitionSpec(), *[PartitionSpec("data")] * len(data)),
        out_specs=PartitionSpec(),
    )
    shapes = [jax.ShapeDtypeStruct((count, *x.shape), x.dtype) for x in data]
    ipuxla.jit(lambda x: x + 1, target="gc200").lower(
        jax.ShapeDtypeStruct((4,), "float32")
    ).compile().certify()
    start = time.process_time()
    compiled = ipuxla.jit(local, target="pod64 x 1024").lower(params, *shapes).compile(engine="fast")
    done = time.process_time()
    compiled.certify()
    certified, executable = time.process_time(), compiled.executable
    megabytes = peak_megabytes()
    seconds = [f"{done - start:.2f}", f"{certified - done:.2f}"]
    figures = [f"{len(executable.to_bytes()):,}", f"{len(executable.steps)}", f"{megabytes:,.0f}"]
    return [name, f"{count:,}", *seconds, *figures, f"{cost_analysis(executable)['cycles']:,}"]


def peak_megabytes() -> float:
    """Return the most memory that the process held at once: Linux's figure of its own pages, not its parent's."""
    found = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else math.nan


def digits_step() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a step of the digits' multilayer perceptron, 8 samples."""
    loss, params = MODELS["mlp"].loss, MODELS["mlp"].init(jax.random.key(0), (64, 128, 10))
    data = np.ones((8, 64), np.float32), np.zeros(8, np.int32)
    return _descent(loss), (params, *data)


def network_step() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a step of a transformer of four layers, 128 wide, on 64 tokens."""
    params = transformer.parameters(4, 128, 64, 256)
    return _descent(transformer.loss), (params, *[np.zeros(64, np.int32)] * 2)


def _descent(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, *data: Any) -> Any:
        gradients = jax.grad(loss)(params, *data)  # of what is the same on all: summed over all
        return jax.tree.map(lambda p, g: p - 0.01 / jax.lax.axis_size("data") * g, params, gradients)

    return step


STEPS = {"digits": digits_step, "transformer": network_step}


def growth_of_steps() -> str:
    """Return what data-parallel steps cost the compiler by the number of their replicas."""
    rows = []
    for name in STEPS:
        for count in (2, 1024, 64_000, 65_536):
            with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
                rows.append(fresh.submit(step_figures, name, count).result())
    head = ["step", "replicas", "compile s", "certify s", "file bytes", "steps", "MB of process", "cycles"]
    return table(head, rows)


def main(argv: Sequence[str]) -> None:
    """Measure, print, and write ``benchmarks/results/many_ipus.md``."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    text = f"""# Many IPUs

## All-reduce of halves: cycles by algorithm

{collectives()}

ASSUMED: the share of the cycles that rests on no source; latency of links is the most of it.

## Beside published figures (nothing is fitted to them)

{beside()}

## A data-parallel step of two dense layers of 768 on `dss8440`, 512 samples an IPU

{scaling()}

## A tensor-parallel step of two dense layers, 768 to 3,072 to 768, on `dss8440`, 512 samples

{tensor_scaling()}

## What replicas cost the compiler: all-reduces of 1 MB and of 4 kB on `pod64 x 1024`

{machine()}. Routes of permutations are followed once in a process, about 0.01 s each for 65,536 IPUs, and not in the table.

{growth()}

## What replicas cost the compiler: data-parallel steps on `pod64 x 1024`

Each in a process of its own, routes followed for the first time. The digits' MLP on 8 samples; a transformer of
four layers, 128 wide, on 64 tokens.

{growth_of_steps()}
"""
    print(text)
    print(f"written: {write_result('many_ipus', text)}")


if __name__ == "__main__":
    app.run(main)
