"""Kernels of one tile, streams through its memory, exchange phases and syncs."""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp

from ipuxla._jax_compat import Function
from ipuxla.calibration.figures import COMPUTE, EXCHANGE, REARRANGE, SYNC, Figure, figure
from ipuxla.calibration.parameters import DTYPES, NotModelled
from ipuxla.calibration.records import Record
from ipuxla.calibration.stencils import part_of_a_step
from ipuxla.calibration.work import (
    Work,
    compiled,
    compiled_from_c,
    compiled_graph,
    machine,
    shaped,
    work_of,
)
from ipuxla.codelets import codelet
from tiles.compiler import Executable
from tiles.graph import AxisSplit, Graph, Layout, Site, linear_layout, whole
from tiles.numerics.dtypes import itemsize
from tiles.plan.transpose_cycles import rearrange_cycles
from tiles.poplibs import poprand, poputil
from tiles.poplibs.poplin.partials import add_partials
from tiles.poplibs.popops.reduce import combine_form
from tiles.target import Basis, Target

WHOLE_KERNEL = (COMPUTE, REARRANGE)
STREAM_SHARE = 0.4
"""Share of the memory that the arrays of a stream benchmark fill, where a record does not state their length."""


def scalar(target: Target, dtype: str) -> Target:
    """Return a machine whose loads and floating-point instructions take one element at a time.

    That is what a compiler makes of a plain loop in C++ without vector types.
    """
    return compiled_from_c(target, float_vector_width=1, half_vector_width=1, data_path_bytes=itemsize(dtype))


def _on_a_tile(record: Record, function: Function, *arguments: jax.ShapeDtypeStruct, built: str) -> Work:
    executable = compiled(function, machine(record, num_tiles=1), *arguments)
    return work_of(record, executable, f"{built} on one tile", WHOLE_KERNEL)


def elementwise(record: Record) -> Work:
    """Return an elementwise kernel on one tile; which one, the record's name says.

    What others wrote by hand is a codelet of its own: code of the function that the record names, and not popnn's or
    popops' vertex for it, which may compute it another way.
    """
    n, dtype = record.params.integer("n"), record.params.dtype()
    x, one = shaped((n,), dtype), shaped((), dtype)
    words = f"{record.id} {record.what}".lower()
    function, arguments, built = _elementwise_function(words, x, one)
    if "hand-written" in words:
        operands = ", ".join(f"x{k}[i]" if a.shape else f"x{k}" for k, a in enumerate(arguments))
        function, built = (
            codelet(f"{operands} -> y[i]", name="hand_written")(function),
            f"{built}, a codelet,",
        )
    return _on_a_tile(record, function, *arguments, built=built)


def _elementwise_function(
    words: str, x: jax.ShapeDtypeStruct, one: jax.ShapeDtypeStruct
) -> tuple[Function, tuple[jax.ShapeDtypeStruct, ...], str]:
    """Return the function that a record's words name, its arguments, and what it is called."""
    if "gelu" in words:
        return partial(jax.nn.gelu, approximate="erf" not in words), (x,), "gelu"
    if "row update" in words or "row_update" in words:
        return lambda a, w, v: a - (w * w) * v, (x, one, x), "x -= w * w * v"
    if re.search(r"scaled.?add|axpy", words):
        return lambda a, b: a + 0.5 * b, (x, x), "a + 0.5 b"
    for functions, arguments in ((_UNARY, (x,)), (_BINARY, (x, x))):
        for name, function in functions.items():
            if re.search(rf"\b{name}\b", words.replace("_", " ")):
                return function, arguments, name
    raise NotModelled("neither its name nor its text says which function it is")


_UNARY = {
    "exp": jnp.exp,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "relu": jax.nn.relu,
    "sqrt": jnp.sqrt,
    "rsqrt": jax.lax.rsqrt,
    "log": jnp.log,
    "scale": lambda a: a * jnp.asarray(0.5, a.dtype),
}
_BINARY = {
    "multiply": jnp.multiply,
    "mul": jnp.multiply,
    "subtract": jnp.subtract,
    "sub": jnp.subtract,
    "divide": jnp.divide,
    "div": jnp.divide,
    "max": jnp.maximum,
    "add": jnp.add,
}


def reduction(record: Record) -> Work:
    """Return a sum of partials, or of rows, on one tile."""
    p = record.params
    n, partials, dtype = p.integer("n"), p.raw("partials"), p.dtype()
    if partials is None or not str(partials).isdigit():
        rows = p.integer("rows", 1)
        x = shaped((rows, n), dtype)
        return _on_a_tile(record, lambda a: jnp.sum(a, axis=1), x, built="sum of rows")
    target, count = machine(record, num_tiles=1), int(partials)
    graph = Graph(target)
    x = graph.add_input((count, n), dtype, "partials")
    codelet = add_partials(dtype, dtype)
    graph.outputs.append(
        poputil.place(Site(graph, "add"), codelet, combine_form((count, n)), [x], (dtype,))[0].name
    )
    return work_of(record, compiled_graph(graph), "partials added on one tile", WHOLE_KERNEL)


def cast(record: Record) -> Work:
    """Return a cast on one tile: from the stated dtype to that the record's name ends at."""
    n, source = record.params.integer("n"), record.params.dtype()
    words = f"{record.id} {record.what}".lower()
    to = record.params.dtype("to") if record.params.has("to") else ""
    if not to:
        order = re.findall(r"fp8|f8|fp16|f16|half|fp32|f32|float|int8|quarter", words)
        others = [dtype for dtype in map(DTYPES.__getitem__, order) if dtype != source]
        to = others[0] if others else ("float8_e4m3fnuz" if itemsize(source) == 2 else "float16")
    return _on_a_tile(record, lambda a: a.astype(to), shaped((n,), source), built=f"cast to {to}")


def norm(record: Record) -> Work:
    """Return a normalization of rows on one tile, or only their moments."""
    p = record.params
    rows, n, dtype = p.integer("rows", 1), p.integer("n"), p.dtype()
    x = shaped((rows, n), dtype)
    words = f"{record.id} {record.what}".lower()
    if "moment" in words or "statistics only" in words:
        return _on_a_tile(record, _moments, x, built="mean and variance of rows")
    scale = shaped((n,), dtype)
    return _on_a_tile(record, layer_norm, x, scale, scale, built="layer norm")


def _moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    wide = x.astype(jnp.float32)
    return wide.mean(-1), wide.var(-1)


def layer_norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    """Return rows of mean 0 and variance 1, scaled and shifted; statistics in float32."""
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(wide.var(-1, keepdims=True) + 1e-6)
    return normal.astype(x.dtype) * scale + shift


def convolved(
    x: jax.Array, kernel: jax.Array, stride: int = 1, *, padding: str = "SAME", groups: int = 1
) -> jax.Array:
    """Return images ``[batch, height, width, channels]`` convolved with ``[taps, taps, channels / groups, outputs]``."""
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=numbers, feature_group_count=groups
    )


def softmax(record: Record) -> Work:
    """Return a softmax of rows, on one tile or, if the record says on how many, on all."""
    p = record.params
    rows, columns, dtype = p.integer("rows", 1), p.integer("cols" if p.has("cols") else "n"), p.dtype()
    x = shaped((rows, columns), dtype)
    if not p.has("tiles"):
        return _on_a_tile(record, jax.nn.softmax, x, built="softmax")
    executable = compiled(jax.nn.softmax, machine(record), x)
    return work_of(record, executable, "softmax", (COMPUTE,))


def random_numbers(record: Record) -> Work:
    """Return random numbers of the machine's own generator, as poprand draws them: on all tiles, or on one."""
    p, words = record.params, f"{record.id} {record.what} {record.params.text('distribution')}".lower()
    distribution = next((name for name in ("normal", "bits", "integer") if name in words), "uniform")
    distribution = "bits" if distribution == "integer" else distribution
    dtype = "uint32" if distribution == "bits" else p.dtype(default="float32")
    target = (
        machine(record, num_tiles=1) if p.text("tiles") == "1" or "one tile" in words else machine(record)
    )
    n = p.integer("n", int(target.memory_bytes * STREAM_SHARE / 3 / itemsize(dtype)))
    graph = Graph(target)
    seed = graph.add_input((2,), "uint64", "seed")
    graph.outputs.append(poprand.machine_random(graph, seed, (n,), dtype, distribution).name)
    executable = compiled_graph(graph)
    size = float(n * itemsize(dtype))
    found = figure(executable, (COMPUTE,))
    return Work(found, target.clock_hz, f"{n:,} {distribution} numbers", size_bytes=size, items=float(n))


# ---- memory


STREAMS = {
    "copy": (2, 0),
    "mul": (2, 1),
    "scale": (2, 1),
    "add": (3, 1),
    "triad": (3, 2),
    "dot": (2, 2),
    "nstream": (4, 2),
    "init": (1, 0),
}
"""Arrays that pass through memory, and floating-point operations an element, by kernel (BabelStream's counts)."""
COPIED = ("mul", "scale", "add", "triad")
"""Kernels that BabelStream's port to PopLibs makes of a function and a Copy: triad copies b to a, then adds c in place.

Others copy a result to where it belongs (PoplarStream.cpp of the port; popops has no function of three tensors).
"""


def memory_stream(record: Record) -> Work:
    """Return a kernel of BabelStream over arrays that fill the tiles, or the machine's load latency."""
    p = record.params
    if "latency" in record.metric:
        target = machine(record)
        cycles = float(target.memory_latency_cycles)
        basis = {str(target.basis("memory_latency_cycles")[0]): cycles}
        return Work(Figure(cycles, 0.95 * cycles, 1.05 * cycles, basis), target.clock_hz, "latency of a load")
    kernel = p.text("kernel")
    kernel = kernel or next((k for k in STREAMS if k in record.what.lower().split()), "")
    if kernel not in STREAMS:
        raise NotModelled(f"no stream kernel {kernel or 'is stated'}")
    dtype = p.dtype()
    target = machine(record)
    is_plain_code = "naive" in p.text("implementation")
    arrays, flops = STREAMS[kernel]
    each = int(target.memory_bytes * STREAM_SHARE / 3 / itemsize(dtype))
    n = p.integer("n", each // target.num_tiles * target.num_tiles)
    found = figure(_stream(kernel, n, dtype, scalar(target, dtype) if is_plain_code else target))
    built = f"{kernel} of {n:,} elements" + (", one element at a time" if is_plain_code else "")
    if kernel in COPIED and "vendor" in p.text("implementation"):
        found, built = found + figure(_stream("copy", n, dtype, target)), f"{built}, and a copy"
    size = float(arrays * n * itemsize(dtype))
    return Work(found, target.clock_hz, built, flops=float(flops * n), size_bytes=size)


def _stream(kernel: str, n: int, dtype: str, target: Target) -> Executable:
    if kernel in ("copy", "init"):
        graph = Graph(target)
        layout = linear_layout((n,), dtype, target.num_tiles)
        x = graph.set_layout(graph.add_input((n,), dtype, "a").name, layout)
        graph.outputs.append(poputil.copy(graph, x, layout).name)
        return compiled_graph(graph)
    x = shaped((n,), dtype)
    functions = {
        "mul": lambda a: jnp.asarray(0.4, a.dtype) * a,
        "scale": lambda a: jnp.asarray(0.4, a.dtype) * a,
        "add": lambda a, b: a + b,
        "triad": lambda a, b: a + jnp.asarray(0.4, a.dtype) * b,
        "dot": lambda a, b: jnp.sum(a * b),
        "nstream": lambda a, b, c: a + b + jnp.asarray(0.4, a.dtype) * c,
    }
    operands = {"mul": 1, "scale": 1, "nstream": 3}.get(kernel, 2)
    return compiled(functions[kernel], target, *[x] * operands)


def copy(record: Record) -> Work:
    """Return a copy inside tiles: contiguous bytes, a small one, a strided one, or that of a stencil's step."""
    p, words = record.params, record.what.lower()
    if p.has("image"):
        return part_of_a_step(record)
    target = machine(record)
    if p.has("bytes") or "small" in words:
        size = p.integer("bytes", 4)
        executable = _move(machine(record, num_tiles=1), size // 4, own=True)
        return work_of(
            record, executable, f"copy of {size:,} bytes on one tile", WHOLE_KERNEL, size_bytes=size
        )
    if "strided" in p.text("kind") and "probability matrix" in words:
        dtype = p.dtype()
        per_tile = -(-16 * 729 * 729 * itemsize(dtype) // target.num_tiles)
        cycles = float(rearrange_cycles(per_tile, itemsize(dtype), target))
        found = Figure(cycles, 0.5 * cycles, 2.2 * cycles, {str(Basis.FITTED): cycles})
        return Work(found, target.clock_hz, f"rearrangement of {per_tile:,} bytes a tile, element by element")
    raise NotModelled("the record does not state what is copied")


def _move(target: Target, words: int, *, own: bool) -> Executable:
    """Return a copy of words from the first tile to itself or to the second one."""
    graph = Graph(target)
    here, there = (Layout((AxisSplit(words, words, ((1, 1),)),), tile) for tile in (0, 0 if own else 1))
    x = graph.set_layout(graph.add_input((words,), "float32", "x").name, here)
    graph.outputs.append(poputil.copy(graph, x, there).name)
    return compiled_graph(graph)


# ---- exchange and sync


def exchange(record: Record) -> Work:
    """Return an exchange phase: of a stencil's step, of scores to rows, a schedule of stated length, a rate."""
    p, words = record.params, record.what.lower()
    if p.has("image"):
        return part_of_a_step(record)
    target = machine(record)
    if p.has("scheduled_cycles"):
        executable = _move(target, p.integer("scheduled_cycles"), own=False)
        return work_of(record, executable, "a schedule of the stated length", (EXCHANGE, SYNC))
    shape = re.search(r"(\d+)x(\d+)x(\d+)", words)
    if shape and "rows" in words:
        heads, rows, columns = (int(size) for size in shape.groups())
        return _to_rows(record, heads, rows, columns, target)
    if record.metric == "bandwidth" and "per-tile" in words:
        count = 16_384
        executable = _move(target, count, own=False)
        return Work(
            figure(executable, (EXCHANGE,)), target.clock_hz, "64 KiB to one tile", size_bytes=4.0 * count
        )
    if "congestion" in record.id or "full load" in words:
        return _under_load(record, target)
    raise NotModelled("the record does not state what is exchanged")


def _to_rows(record: Record, heads: int, rows: int, columns: int, target: Target) -> Work:
    """Return the exchange of matrices that lie in blocks, as a product leaves them, to whole rows."""
    dtype = record.params.dtype()
    per_head = target.num_tiles // heads
    down = max(1, min(round(per_head**0.5 / 4), rows))
    across = per_head // down
    high, wide = -(-rows // down), -(-columns // across)
    blocks = Layout(
        (
            AxisSplit(heads, 1, ((heads, down * across),)),
            AxisSplit(rows, high, ((-(-rows // high), across),)),
            AxisSplit(columns, wide, ((-(-columns // wide), 1),)),
        )
    )
    graph = Graph(target)
    x = graph.set_layout(graph.add_input((heads, rows, columns), dtype, "scores").name, blocks)
    each = -(-heads * rows // target.num_tiles)
    by_rows = Layout((AxisSplit(heads * rows, each, ((-(-heads * rows // each), 1),)), whole(columns)))
    flat = poputil.reshape(graph, x, (heads * rows, columns))
    graph.set_layout(flat.name, by_rows)
    graph.outputs.append(flat.name)
    executable = compiled_graph(graph)
    return work_of(record, executable, f"blocks of {high} x {wide} to {each} rows a tile", (EXCHANGE,))


def _under_load(record: Record, target: Target) -> Work:
    """Return how much longer an exchange takes when all tiles take part, over two of them."""
    words = 64
    alone = figure(_move(target, words, own=False), (EXCHANGE,)).cycles
    graph = Graph(target)
    tiles = target.num_tiles // 2 * 2
    forth = Layout((AxisSplit(tiles, 1, ((tiles, 1),)), whole(words)))
    swapped = Layout((AxisSplit(tiles, 1, ((tiles // 2, 1), (2, tiles // 2))), whole(words)))
    x = graph.set_layout(graph.add_input((tiles, words), "float32", "x").name, forth)
    graph.outputs.append(poputil.copy(graph, x, swapped).name)
    loaded = figure(compiled_graph(graph), (EXCHANGE,))
    ratio = loaded.cycles / alone
    found = Figure(
        ratio, loaded.low / alone, loaded.high / alone, {b: c / alone for b, c in loaded.basis_cycles.items()}
    )
    return Work(found, target.clock_hz, "all tiles exchange, over two of them", is_plain=True)


def sync(record: Record) -> Work:
    """Return a sync: of a stencil's step, or what an exchange phase takes beyond its schedule."""
    if record.params.has("image"):
        return part_of_a_step(record)
    if "phase" in record.id or "phase" in record.what:
        target = machine(record)
        words = 64
        found = figure(_move(target, words, own=False), (EXCHANGE, SYNC))
        less = 1 - words / found.cycles
        beyond = found.times(less)
        return Work(beyond, target.clock_hz, "an exchange phase less its words")
    target = machine(record)
    found = figure(_move(target, 1, own=False), (SYNC,))
    return Work(found, target.clock_hz, "the sync of an exchange")
