"""Replicas spread over several JAX devices by the fast engine: in the ring, and of what is exchanged, the bits of one."""

import json
import os
import subprocess
import sys

import jax
import pytest

from tests.replicas import replicated
from tiles import compile_graph, gcl, make_engine
from tiles.errors import InvalidArguments

PROGRAM = """
import json
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import ipuxla
from tests.replicas import drawn, replicated
from tiles import compile_graph, gcl, make_engine, popops
from tiles.graph import Shift

graph = replicated(("data", 4), ("model", 2))
weight = graph.add_input((6, 5), "float32", "weight", same_on_all=True)
x = graph.add_input((6, 5), "float32", "x")
ring = gcl.all_reduce(graph, x, "data", algorithm="two_rings")
halves = gcl.all_reduce(graph, popops.mul(graph, x, weight), ("data", "model"), algorithm="halving_doubling")
moved = gcl.permute(graph, x, "data", Shift(1))
graph.outputs += [t.name for t in (ring, halves, moved, popops.sub(graph, weight, halves))]
executable = compile_graph(graph)
rng = np.random.default_rng(0)
inputs = drawn(rng, (6, 5), "float32"), drawn(rng, (8, 6, 5), "float32")
one, _ = make_engine(executable).run(*inputs)
spread, _ = make_engine(executable, devices=jax.devices()).run(*inputs)
mesh = jax.sharding.AbstractMesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
cut = NamedSharding(mesh, P("data"))
def step(x, w):
    y = jnp.tanh(x @ w)
    return y, y.sum(0)
options = {"target": "dss8440", "in_shardings": (cut, NamedSharding(mesh, P()))}
arguments = drawn(rng, (16, 5), "float32"), drawn(rng, (5, 3), "float32")
alone = ipuxla.jit(step, **options)(*arguments)
jitted = ipuxla.jit(step, **options, devices=jax.devices())
compiled = jitted.lower(*arguments).compile()
compiled.save("program.ipuxla")
again = ipuxla.load("program.ipuxla", devices=jax.devices()[:2])
near = [
    float(abs(np.asarray(x) - np.asarray(y)).max()) < 1e-6
    for found in (jitted(*arguments), jax.jit(jitted)(*arguments), again(*arguments))
    for x, y in zip(found, alone)
]
ring = {**options, "arithmetic": "ring"}
words = [ipuxla.jit(step, **ring, devices=given)(*arguments) for given in ((), jax.devices()[1:3])]
one += words[0]
spread += words[1]
refused = {}
for what, call in {
    "engine": lambda: ipuxla.jit(step, **options, engine="literal", devices=jax.devices()),
    "devices": lambda: ipuxla.jit(step, **options, devices=["cpu"]),
    "number": lambda: ipuxla.jit(step, **options, devices=jax.devices()[:3])(*arguments),
}.items():
    try:
        call()
    except ipuxla.errors.IpuError as error:
        refused[what] = type(error).__name__
print(json.dumps({
    "refused": refused,
    "near": near,
    "equal": [np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(one, spread)],
    "shapes": [list(x.addressable_shards[0].data.shape) for x in spread[:4]],
    "devices": [len(x.sharding.device_set) for x in spread],
}))
"""


def test_replicas_on_several_devices_give_the_bits_of_one(tmp_path):
    flags = "--xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": os.getcwd()},
        check=True,
        cwd=tmp_path,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    refused = {"engine": "InvalidOption", "devices": "InvalidOption", "number": "InvalidArguments"}
    assert told == {
        "refused": refused,
        "near": [True] * 6,
        "equal": [True] * 6,
        "shapes": [[2, 6, 5]] * 4,
        "devices": [4] * 4 + [2] * 2,
    }


def test_devices_divide_the_replicas():
    graph = replicated(("data", 3))
    x = graph.add_input((4,), "float32", "x")
    graph.outputs.append(gcl.all_reduce(graph, x, "data").name)
    executable = compile_graph(graph)
    with pytest.raises(InvalidArguments, match="3 replicas cannot be spread evenly over 2 devices"):
        make_engine(executable, devices=[jax.devices()[0]] * 2)
    with pytest.raises(InvalidArguments, match="'literal' does not spread"):
        make_engine(executable, "literal", devices=jax.devices()[:1])
