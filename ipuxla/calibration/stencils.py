"""Convolutions and stencils over images, and lattices."""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from ipuxla.calibration.figures import ALL, COMPUTE, EXCHANGE, NOTHING, REARRANGE, SYNC, Figure
from ipuxla.calibration.parameters import MissingParameter, NotModelled
from ipuxla.calibration.records import Record
from ipuxla.calibration.work import Counted, Work, compiled, compiled_from_c, machine, shaped, work_of
from tiles.compiler import Executable
from tiles.numerics.dtypes import itemsize
from tiles.target import LinkPhase, System, Target, exchange_phase, find_machine

GLOBAL = "global exchange"
"""The part of a step that crosses links."""

PARTS = (
    ("global exchange", (GLOBAL,)),
    ("halo exchange", (EXCHANGE,)),
    ("exchange", (EXCHANGE,)),
    ("pre rearrange", (REARRANGE,)),
    ("post rearrange", (REARRANGE,)),
    ("sync", (SYNC,)),
    ("compute", (COMPUTE,)),
)
"""Which part of a step a measurement is of, by the publication's words."""

D2Q9 = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))
D2Q9_WEIGHTS = (4 / 9, *[1 / 9] * 4, *[1 / 36] * 4)


@dataclass(frozen=True)
class Split:
    """An image on a grid of IPUs: what each has, and what it exchanges with its neighbours every step.

    Args:
      height: rows of an IPU's part.
      width: columns of it.
      channels: of a pixel.
      phase: the exchange of edges over the links, with its sync; None on one IPU.
    """

    height: int
    width: int
    channels: int
    phase: LinkPhase | None


def split(record: Record, dtype: str) -> Split:
    """Return how a record's image lies on its IPUs: the grid of IPUs whose parts have the shortest edges.

    Edges go from every IPU to its neighbours once a step, as grids are split by hand; corners are left out.
    """
    (height, width, channels), ipus = _image(record), record.ipus
    if ipus == 1:
        return Split(height, width, channels, None)
    is_part = record.params.has("pixels_per_ipu")
    grids = [(down, ipus // down) for down in range(1, ipus + 1) if ipus % down == 0]
    if is_part:
        down, across = min(grids, key=lambda g: (g[0] - 1) * width * g[1] + (g[1] - 1) * height * g[0])
        own = height, width
    else:
        down, across = min(grids, key=lambda g: (g[0] - 1) * width + (g[1] - 1) * height)
        own = -(-height // down), -(-width // across)
    edges = np.zeros((ipus, ipus), np.int64)
    size = itemsize(dtype) * channels
    for number in range(ipus):
        row, column = divmod(number, across)
        if row + 1 < down:
            edges[number, number + across] = edges[number + across, number] = own[1] * size
        if column + 1 < across:
            edges[number, number + 1] = edges[number + 1, number] = own[0] * size
    system = find_machine(f"{record.target} x {ipus}")
    if not isinstance(system, System):
        raise NotModelled(f"no system of {ipus} {record.target} is known")
    return Split(*own, channels, exchange_phase(system, edges))


LINK_BAND = (0.4, 2.5)
"""Least and most of what phases between IPUs take, over the estimate: the latency of links is ASSUMED or FITTED."""


def of_phase(phase: LinkPhase | None, parts: tuple[str, ...]) -> Figure:
    """Return the figure of parts of an exchange between IPUs: its sync, or its transfer and latency."""
    if phase is None:
        return NOTHING
    if phase.cycles is None or phase.sync.cycles is None:
        raise NotModelled("the latency of the links is not known")
    sync, whole = float(phase.sync.cycles), float(phase.cycles)
    cycles = {SYNC: sync, GLOBAL: whole - sync, ALL: whole}
    bases = {SYNC: phase.sync.basis, GLOBAL: phase.latency_basis, ALL: phase.latency_basis}
    total = NOTHING
    for part in parts:
        if part in cycles:
            low, high = LINK_BAND
            value = cycles[part]
            total = total + Figure(value, low * value, high * value, {str(bases[part]): value})
    return total


def one_ipu(record: Record) -> None:
    """Refuse a program of several IPUs: sources say neither its pipeline nor its batches."""
    if record.ipus > 1:
        raise NotModelled(f"its split over {record.ipus} IPUs is not stated")


def blur(x: jax.Array) -> jax.Array:
    """Return a Gaussian blur of every channel of ``[height, width, channels]``; zeros lie outside."""
    height, width, _ = x.shape
    padded = jnp.pad(x, ((1, 1), (1, 1), (0, 0)))

    def at(down: int, right: int) -> jax.Array:
        return padded[1 + down : 1 + down + height, 1 + right : 1 + right + width]

    corners = at(-1, -1) + at(-1, 1) + at(1, -1) + at(1, 1)
    sides = at(0, 1) + at(0, -1) + at(1, 0) + at(-1, 0)
    return (corners + 4 * at(0, 0) + 2 * sides) * jnp.asarray(1 / 16, x.dtype)


def repeated(step: Callable[[jax.Array], jax.Array], times: int) -> Callable[[jax.Array], jax.Array]:
    """Return a function that applies a step several times."""
    return lambda x: jax.lax.fori_loop(0, times, lambda i, y: step(y), x)


def _image(record: Record) -> tuple[int, int, int]:
    """Return height, width and channels of a record's image, which is told width by height."""
    sizes = record.params.shape("image")
    if len(sizes) not in (2, 3):
        raise MissingParameter(f"parameter image is no image: {'x'.join(map(str, sizes))}")
    width, height, channels = (*sizes, 4)[:3]
    if record.params.has("bytes_per_cell"):
        channels = record.params.integer("bytes_per_cell") // 2 // 4  # in and out, of four bytes each
    return height, width, channels


def _variant(record: Record) -> tuple[str, Target]:
    """Return dtype and machine of a variant written in C++: "float" takes one element at a time, others vectors."""
    variant = record.params.text("variant", "float")
    if variant not in ("float", "float2", "half", "half2", "half4"):
        raise MissingParameter(f"unknown variant {variant!r}")
    dtype = "float16" if variant.startswith("half") else "float32"
    width = int(variant[-1]) if variant[-1].isdigit() else 1
    field = "half_vector_width" if dtype == "float16" else "float_vector_width"
    access = width * itemsize(dtype)
    return dtype, compiled_from_c(machine(record), **{field: width, "data_path_bytes": access})


def _blurred(record: Record, times: int) -> tuple[Executable, LinkPhase | None]:
    dtype, target = _variant(record)
    parts = split(record, dtype)
    image = shaped((parts.height, parts.width, parts.channels), dtype)
    return compiled(repeated(blur, times), target, image), parts.phase


def part_of_a_step(record: Record) -> Work:
    """Return a part of one step of the stencil: what a tile does on average."""
    words = record.what.lower()
    parts = next((parts for name, parts in PARTS if name in words), None)
    if parts is None:
        raise NotModelled("the record does not say which part of a step it is of")
    executable, phase = _blurred(record, 2)
    on_chip = tuple(part for part in parts if part != GLOBAL)
    work = work_of(record, executable, f"{' and '.join(parts)} of a step of the stencil", on_chip)
    return Work(work.figure.times(0.5) + of_phase(phase, parts), work.clock_hz, work.built)


def stencil(record: Record) -> Work:
    """Return a stencil: all its steps, a part of one, or its rate of floating-point operations."""
    p = record.params
    if p.has("flops_per_cell"):
        return _lattice(record)
    if p.has("flop_per_byte") and "blur" in record.what.lower():
        return _blur_rate(record)
    if p.has("per"):
        return part_of_a_step(record)
    times = p.integer("iterations") if p.has("iterations") else 2 * p.integer("n")
    executable, phase = _blurred(record, times)
    height, width, _ = _image(record)
    work = work_of(
        record, executable, f"{times} steps of the stencil", (ALL,), items=float(times * height * width)
    )
    return replace(work, figure=work.figure + of_phase(phase, (ALL,)).times(times))


def between_ipus(record: Record) -> Work:
    """Return what several IPUs do: a stencil, a part of its step, or the latency or rate of a link."""
    if record.params.has("image"):
        return stencil(record)
    machine_name = f"{record.target} x {max(record.ipus, 2)}"
    system = find_machine(machine_name)
    if not isinstance(system, System) or record.metric not in ("latency", "bandwidth"):
        raise NotModelled("the record does not state what is exchanged")
    size = np.zeros((system.num_ipus, system.num_ipus), np.int64)
    size[0, 1] = 4 if record.metric == "latency" else 2**24
    phase = exchange_phase(system, size)
    found = of_phase(phase, (GLOBAL,))
    return Work(
        found, phase.clock_hz, f"{int(size[0, 1]):,} bytes to a neighbour", size_bytes=float(size[0, 1])
    )


def _blur_rate(record: Record) -> Work:
    """Return the blur's rate on an image that fills the machine's tiles to a tenth: vertices only."""
    target = machine(record)
    side = int((target.memory_bytes / 10 / 16) ** 0.5)
    executable = compiled(blur, compiled_from_c(target), shaped((side, side, 4), "float32"))
    flops = 11.0 * side * side * 4
    return work_of(record, executable, f"the blur of {side} x {side} pixels", (COMPUTE,), flops=flops)


def lattice_step(f: jax.Array) -> jax.Array:
    """Return a D2Q9 lattice ``[9, height, width]`` after streaming and relaxing to equilibrium."""
    moved = [jnp.roll(f[i], (dy, dx), (0, 1)) for i, (dx, dy) in enumerate(D2Q9)]
    density = sum(moved[1:], moved[0])
    across = sum(dx * m for (dx, _), m in zip(D2Q9, moved, strict=True) if dx) / density
    down = sum(dy * m for (_, dy), m in zip(D2Q9, moved, strict=True) if dy) / density
    square = 1.5 * (across * across + down * down)
    relaxed = []
    for (dx, dy), weight, m in zip(D2Q9, D2Q9_WEIGHTS, moved, strict=True):
        along = 3.0 * (dx * across + dy * down)
        equal = (
            weight * density * (1.0 + along + 0.5 * along * along - square)
            if (dx or dy)
            else (weight * density * (1.0 - square))
        )
        relaxed.append(m + 1.2 * (equal - m))
    return jnp.stack(relaxed)


def _lattice(record: Record) -> Work:
    one_ipu(record)
    p = record.params
    height, width = p.shape("grid")[:2] if p.has("grid") else (1024, 1024)
    executable = compiled(
        lattice_step, compiled_from_c(machine(record)), shaped((9, height, width), "float32")
    )
    cells = float(height * width)
    known: Counted = {"flops": p.real("flops_per_cell") * cells, "items": cells}
    if p.has("bytes_per_cell"):
        known["size_bytes"] = p.real("bytes_per_cell") * cells
    parts = (COMPUTE,) if "compute" in record.what.lower() else (ALL,)
    return work_of(record, executable, f"a step of a {height} x {width} lattice", parts, **known)


def convolution(record: Record) -> Work:
    """Return repeated convolutions of an image with a kernel for every channel, or with all channels."""
    p = record.params
    high, wide = (*p.shape("kernel"), 1)[:2]
    dtype, times = p.dtype(), p.integer("iterations", 1)
    parts = split(record, dtype)
    height, width, channels = parts.height, parts.width, parts.channels
    groups = p.integer("groups", channels if "groups" in record.what.lower() else 1)
    outputs = p.integer("out_channels", channels)

    def step(x: jax.Array) -> jax.Array:
        kernel = jnp.full((high, wide, channels // groups, outputs), 1 / (high * wide), dtype)
        return jax.lax.conv_general_dilated(
            x[None],
            kernel,
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )[0]

    executable = compiled(repeated(step, times), machine(record), shaped((height, width, channels), dtype))
    flops = 2.0 * times * height * width * high * wide * channels // groups * outputs
    work = work_of(
        record, executable, f"{times} convolutions", (ALL,), flops=flops * record.ipus, items=float(times)
    )
    return replace(work, figure=work.figure + of_phase(parts.phase, (ALL,)).times(times))
