"""Predicted cycles over what no plan can do without: square matmuls, and the convolutions of ResNet-50 with gradients.

python -m benchmarks.plans

The roofline is products at peak rate on all tiles. The bound adds what has to be exchanged. A cell that forms V products
of operands and results, of which it holds a, b and c elements, has ``(taps a) b c >= V**2`` (Loomis and Whitney's
inequality; an input element meets every tap of a kernel), so that on the fullest tile ``a + b + c >= 3 (V**2 / taps) **
(1/3)``. What lies on the tile already is at most its share of them all. The rest is received, or sent as partials, at no
more than 8 bytes a cycle, which tiles that share a bus reach. Compute and exchange do not overlap, so both add up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from absl import app

import ipuxla
from benchmarks.timing import table, write_result
from tiles.numerics.dtypes import itemsize
from tiles.plan.superstep import entry_cycles
from tiles.poplibs.poplin.matmul_cycles import Shape, amp_cycles
from tiles.target import Target

SIZES = (256, 512, 1024, 2048, 4096, 8192)
DTYPES = ("float16", "float32")
BATCH = 4
STAGES = ((56, 64, 3), (28, 128, 4), (14, 256, 6), (7, 512, 3))
"""Height of the field, channels of the narrow convolutions, and blocks, by stage."""
BUS_BYTES = 8


@dataclass(frozen=True)
class Convolution:
    """A convolution of ResNet-50 with padding that keeps the field: input size, channels, kernel, stride."""

    side: int
    inputs: int
    outputs: int
    kernel: int
    stride: int

    def __str__(self) -> str:
        """Return it as one word."""
        return (
            f"{self.side}x{self.side}x{self.inputs} {self.kernel}x{self.kernel}/{self.stride} {self.outputs}"
        )


def resnet50() -> list[Convolution]:
    """Return the distinct convolutions of ResNet-50 (version 1.5: the 3 x 3 one has the stride)."""
    found = [Convolution(224, 3, 64, 7, 2)]
    inputs, side = 64, 56
    for field, narrow, blocks in STAGES:
        for block in range(blocks):
            stride = side // field
            found += [Convolution(side, inputs, narrow, 1, 1), Convolution(side, narrow, narrow, 3, stride)]
            found.append(Convolution(field, narrow, 4 * narrow, 1, 1))
            if not block:
                found.append(Convolution(side, inputs, 4 * narrow, 1, stride))
            inputs, side = 4 * narrow, field
    return list(dict.fromkeys(found))


def lower_bound(
    products: int, sizes: Sequence[int], taps: int, dtype: str, target: Target
) -> tuple[float, float]:
    """Return the roofline and the bound, in cycles.

    Args:
      products: multiply-adds.
      sizes: elements of the operands and of the result.
      taps: of the kernel that an input element meets.
      dtype: of all of them.
      target: the machine.
    """
    volume = products / target.num_tiles
    compute = volume / target.macs_per_cycle(dtype)
    needed = 3 * (volume * volume / taps) ** (1 / 3)
    moved = max(0.0, needed - sum(sizes) / target.num_tiles) * itemsize(dtype)
    return compute, compute + moved / BUS_BYTES


def vertex_bound(size: int, dtype: str, target: Target) -> float:
    """Return the bound of a square matmul by vertices on the units, in cycles; products are added in float32.

    Vertices share positions out to workers and take whole sets of output channels, so that cycles only change at multiples
    of them; what is exchanged is counted at the smallest extents that take as long.
    """
    workers, units = target.workers_per_tile, target.conv_units(dtype, "float32")
    rows = np.arange(workers, size + workers, workers)[:, None]
    columns = np.arange(units, size + units, units)[None, :]
    volume = size**3 / target.num_tiles
    depth = np.ceil(volume / (np.minimum(rows, size) * np.minimum(columns, size)))
    one, depth = np.ones_like(depth), np.maximum(depth, 1)
    vertex = amp_cycles(Shape(one, rows, columns, depth, depth, False), dtype, "float32", target)
    few_rows, few_columns = rows - workers + 1, columns - units + 1
    needed = (few_rows + few_columns) * depth * itemsize(dtype)
    partials = np.where(
        depth < size, few_rows * few_columns * itemsize("float32") / 2, 0
    )  # of two parts, one leaves
    held = 3 * size * size * itemsize(dtype) / target.num_tiles
    moved = np.maximum(needed + partials - held, 0) / BUS_BYTES
    phases = 1 + (depth < size)
    entering = phases * entry_cycles(target)
    return float(np.min(np.where(depth <= size, vertex + moved + entering, np.inf)))


def cycles(function: Callable[..., jax.Array], target: Target, *arguments: jax.ShapeDtypeStruct) -> int:
    """Return the predicted cycles of a function."""
    lowered = ipuxla.jit(function, target=target, check_memory=False).lower(*arguments)
    return lowered.compile().cost_analysis()["cycles"]


def matmuls(target: Target) -> list[list[str]]:
    """Return a row for every size and dtype: figures over roofline and bound, and whether it fits."""
    rows = []
    for dtype in DTYPES:
        for size in SIZES:
            x = jax.ShapeDtypeStruct((size, size), dtype)
            compiled = ipuxla.jit(jnp.matmul, target=target, check_memory=False).lower(x, x).compile()
            found, fits = compiled.cost_analysis()["cycles"], compiled.memory_analysis()["fits"]
            roof, bound = lower_bound(size**3, [size * size] * 3, 1, dtype, target)
            over = f"{found / vertex_bound(size, dtype, target):.2f}"
            rows.append([*_row(f"{size}", dtype, "", found, roof, bound), over, "yes" if fits else "no"])
    return rows


def convolutions(target: Target) -> list[list[str]]:
    """Return a row for every convolution, dtype and direction."""
    rows = []
    for each in resnet50():
        for dtype in DTYPES:
            x = jax.ShapeDtypeStruct((BATCH, each.side, each.side, each.inputs), dtype)
            w = jax.ShapeDtypeStruct((each.kernel, each.kernel, each.inputs, each.outputs), dtype)
            field = -(-each.side // each.stride)
            g = jax.ShapeDtypeStruct((BATCH, field, field, each.outputs), dtype)
            products = BATCH * field * field * each.kernel**2 * each.inputs * each.outputs
            sizes = [math.prod(a.shape) for a in (x, w, g)]
            roof, bound = lower_bound(products, sizes, each.kernel**2, dtype, target)
            forward = _convolve(each.stride)
            directions: dict[str, tuple[Callable[..., jax.Array], tuple[jax.ShapeDtypeStruct, ...]]] = {
                "forward": (forward, (x, w)),
                "input": (_input_gradient(forward, x), (w, g)),
                "kernel": (_kernel_gradient(forward, w), (x, g)),
            }
            for name, (function, arguments) in directions.items():
                rows.append(_row(str(each), dtype, name, cycles(function, target, *arguments), roof, bound))
    return rows


def _convolve(stride: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lambda x, w: jax.lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=numbers
    )


def _input_gradient(
    forward: Callable[[jax.Array, jax.Array], jax.Array], x: jax.ShapeDtypeStruct
) -> Callable[..., jax.Array]:
    return lambda w, g: jax.linear_transpose(lambda a: forward(a, w), x)(g)[0]


def _kernel_gradient(
    forward: Callable[[jax.Array, jax.Array], jax.Array], w: jax.ShapeDtypeStruct
) -> Callable[..., jax.Array]:
    return lambda x, g: jax.linear_transpose(lambda b: forward(x, b), w)(g)[0]


def _row(what: str, dtype: str, direction: str, found: int, roof: float, bound: float) -> list[str]:
    over = [f"{found:,}", f"{found / roof:.2f}", f"{found / bound:.2f}"]
    return [what, dtype, *([direction] if direction else []), *over]


def middles(rows: Sequence[Sequence[str]], column: int) -> str:
    """Return median and largest ratio over the bound by dtype, as a sentence."""
    said = []
    for dtype in DTYPES:
        ratios = [float(row[column]) for row in rows if row[1] == dtype]
        said.append(f"{dtype} {statistics.median(ratios):.2f} at the median, {max(ratios):.2f} at most")
    return "; ".join(said)


TEXT = """# Predicted cycles over what no plan can do without

On {target}; benchmarks/plans.py says how the bound is proved.

## Square matmuls

Over the bound: {matmul_middles}. Over the bound with vertices: {vertex_middles}.

{matmuls}

## Convolutions of ResNet-50, batch {batch}

Over the bound: {convolution_middles}.

{convolutions}
"""


def main(argv: Sequence[str]) -> None:
    """Compile, print, and write ``benchmarks/results/plans.md``."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    target = Target.named("gc200")
    products, windows = matmuls(target), convolutions(target)
    text = TEXT.format(
        target=target.name,
        batch=BATCH,
        matmul_middles=middles(products, 4),
        vertex_middles=middles(products, 5),
        convolution_middles=middles(windows, 5),
        matmuls=table(
            ["size", "dtype", "cycles", "over roofline", "over bound", "with vertices", "fits"], products
        ),
        convolutions=table(
            ["input, kernel/stride, outputs", "dtype", "direction", "cycles", "over roofline", "over bound"],
            windows,
        ),
    )
    print(text)
    print(f"written: {write_result('plans', text)}")


if __name__ == "__main__":
    app.run(main)
