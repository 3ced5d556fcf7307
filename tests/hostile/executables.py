"""Saved programs changed at random: in their bytes, or in their data, sealed again as if nobody had."""

from __future__ import annotations

import copy
import functools
import json
import pathlib
import random
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ipuxla
from ipuxla import runtime
from ipuxla.errors import InvalidExecutable, Unsupported
from tests.hostile.modules import PROGRAMS, SHARDED, SYSTEM, TARGET, changed_bytes
from tests.unit.tiles.executable_programs import PROGRAMS as GRAPHS
from tests.unit.tiles.test_executable_damages import replicating, sorting
from tests.unit.tiles.test_remote_buffers import accumulating
from tests.unit.tiles.test_steps import stopping, undefining
from tiles.compiler import compile_graph, load_executable
from tiles.compiler.executable import MAGIC
from tiles.engine import make_engine
from tiles.engine.agreement import certify
from tiles.errors import IpuError
from tiles.files import sealed
from tiles.target import Target

Data = dict[str, Any]


@functools.cache
def programs() -> tuple[tuple[Data, Data], ...]:
    """Return headers of saved programs and the data of their executables."""
    keys = (lambda k: {"u": jax.random.uniform(k, (4,)), "k": [k]}, jax.eval_shape(lambda: jax.random.key(0)))
    found = []
    alone = ((TARGET, drawn) for drawn in (*PROGRAMS.values(), keys))
    for target, (function, *arguments) in (*alone, *((SYSTEM, drawn) for drawn in SHARDED.values())):
        program = ipuxla.jit(function, target=target).lower(*arguments).compile()
        header, body = runtime._split(program._to_bytes(), "")
        found.append((header, json.loads(body[body.index(b"\n", len(MAGIC)) :])))
    return tuple(found)


@functools.cache
def executables() -> tuple[Data, ...]:
    """Return the data of executables with every kind of step and codelet."""
    graphs = {**GRAPHS, "accumulating": accumulating, "stopping": stopping, "undefining": undefining}
    graphs |= {"sorting": sorting, "replicating": replicating}
    target = Target.named("gc200").replace(num_tiles=16)
    return tuple(compile_graph(graph(target)).to_data() for graph in graphs.values())


VALUES = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    10**9,
    2**31,
    2**63,
    10**30,
    1e30,
    -1.5,
    "",
    "x",
    "..",
    [],
    {},
    [[]],
    [0],
    "é" * 50,
]


def paths(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every item inside plain data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return ([at] if at else []) + [path for key, item in items for path in paths(item, (*at, key))]


def change(data: Data, rng: random.Random) -> bool:
    """Change one item of plain data, and return whether more can be changed: nobody walks data that nest too deep."""
    ways = paths(data)
    *way, last = rng.choice(ways)
    place: Any = functools.reduce(lambda inner, key: inner[key], way, data)
    kind, depth = rng.randrange(8), 0
    if kind == 0:
        del place[last]
    elif kind == 1 and isinstance(place, list):
        place.insert(last, copy.deepcopy(rng.choice(place)))
    elif kind == 2:
        other: Any = functools.reduce(lambda inner, key: inner[key], rng.choice(ways), data)
        place[last] = copy.deepcopy(other)
    elif kind == 3:
        depth = rng.choice((2, 50, 390, 900, 20_000))
        place[last] = functools.reduce(lambda inner, _: [inner], range(depth), 0)
    elif kind in (4, 5) and isinstance(place[last], int) and not isinstance(place[last], bool):
        place[last] += rng.choice((-8, -4, -1, 1, 4, 8, place[last], 10**6, 10**9))
    elif isinstance(place[last], str) and kind in (4, 5):
        place[last] = rng.choice([v for v in _texts(data) if v] or ["x"])
    else:
        place[last] = rng.choice(VALUES)
    return depth < 100


def changes(data: Data, rng: random.Random) -> None:
    """Change one to three items of plain data."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        if not change(data, rng):
            return


def _texts(data: Any) -> list[str]:
    if isinstance(data, str):
        return [data]
    items = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return [text for item in items for text in _texts(item)]


def run(seed: int, number: int) -> str:
    """Load, certify and call what a number's changes made of a program; return what came of it.

    Raises:
      Exception: one without a name of ours.
    """
    rng = random.Random(f"{seed}, {number}")
    try:
        if rng.random() < 0.5:
            return _whole_program(rng)
        data = copy.deepcopy(rng.choice(executables()))
        changes(data, rng)
        executable = load_executable(sealed(MAGIC, _text(data)))
        certify(executable)
        return _run(executable, rng)
    except InvalidExecutable:
        return "InvalidExecutable"


def _text(data: Any) -> bytes:
    """Return JSON, however deep it nests: Python's own writer calls itself."""
    if isinstance(data, dict):
        return b"{%s}" % b",".join(
            b"%s:%s" % (json.dumps(k).encode(), _text(v)) for k, v in sorted(data.items())
        )
    if isinstance(data, list):
        depth, inner = 0, data
        while isinstance(inner, list) and len(inner) == 1:
            depth, inner = depth + 1, inner[0]
        if depth:
            return b"[" * depth + _text(inner) + b"]" * depth
        return b"[%s]" % b",".join(map(_text, data))
    return json.dumps(data, allow_nan=True).encode()


def _whole_program(rng: random.Random) -> str:
    header, data = copy.deepcopy(rng.choice(programs()))
    changes(header if rng.random() < 0.6 else data, rng)
    text = _text(header)
    blob = sealed(runtime._MAGIC, len(text).to_bytes(8, "little") + text + sealed(MAGIC, _text(data)))
    if rng.random() < 0.1:
        blob = changed_bytes(blob, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "program")
        path.write_bytes(blob)
        try:
            program = ipuxla.load(path)
        except Unsupported:
            return "Unsupported"  # engine hlo
    program.certify()
    leaves = [_drawn(leaf, rng) for leaf in program.signature.inputs]
    args, kwargs = leaves, {}
    if program.signature.in_tree is not None:
        args, kwargs = jax.tree.unflatten(program.signature.in_tree, leaves)
    repr(program), program.as_text(), program.cost_analysis(), program.memory_analysis()
    try:
        program(*args, **kwargs)
        program(*args[:-1])
    except IpuError as error:
        return f"loaded, {type(error).__name__}"
    return "loaded"


def _drawn(leaf: Any, rng: random.Random) -> Any:
    if leaf.key is not None:
        return jax.random.split(jax.random.key(rng.randrange(9), impl=leaf.key), leaf.shape or 1).reshape(
            leaf.shape
        )
    return jnp.asarray(np.random.default_rng(0).integers(0, 3, leaf.shape).astype(leaf.np_dtype))


def _run(executable: Any, rng: random.Random) -> str:
    inputs = [executable.variables[name] for name in executable.inputs]
    if sum(int(np.prod(v.shape)) for v in executable.variables.values()) > 1 << 20 or executable.streams:
        return "certified"
    replicas = () if not executable.replicas.axes else (executable.replicas.count,)
    each = [replicas if axes else () for axes in executable.differs_along] or [()] * len(inputs)
    if replicas and replicas[0] > 64:
        return "certified"
    arrays = [np.ones((*own, *v.shape), v.dtype) for own, v in zip(each, inputs, strict=True)]
    try:
        make_engine(executable, rng.choice(("fast", "literal", "vertex"))).run(*arrays)
    except IpuError as error:
        return f"certified, {type(error).__name__}"
    return "certified and run"
