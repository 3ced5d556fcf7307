"""Predicted cycles over what no plan can do without: square matmuls, and the convolutions of ResNet-50 with gradients.

python -m benchmarks.plans

The roofline is products at peak rate on all tiles. The first bound adds what has to be exchanged. A cell that forms V
products of operands and results, of which it holds a, b and c elements, has ``(taps a) b c >= V**2`` (Loomis and
Whitney's inequality; an input element meets every tap of a kernel), so that on the fullest tile ``a + b + c >= 3 (V**2 /
taps) ** (1/3)``. What lies on the tile already is at most its share of them all. The rest is received, or sent as
partials, at no more than 8 bytes a cycle, which tiles that share a bus reach. Compute and exchange do not overlap, so
both add up.

The second bound holds for what the machine has: ``vertex_bound`` takes every way to cut a product into one box of rows,
columns and depth a tile, with PopLibs' own cycles for the vertex, and the least that can cross tiles before and after
it. A convolution is the product that its windows would make if they were laid out, of which an image element is read
once for all the taps that it meets.
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
from tiles.graph import Extents
from tiles.numerics.dtypes import itemsize
from tiles.plan.superstep import entry_cycles
from tiles.poplibs.forms import dot_form
from tiles.poplibs.poplin.matmul import matmul_codelet
from tiles.target import Target

SIZES = (256, 512, 1024, 2048, 4096, 8192)
DTYPES = ("float16", "float32")
BATCH = 4
STAGES = ((56, 64, 3), (28, 128, 4), (14, 256, 6), (7, 512, 3))
"""Height of the field, channels of the narrow convolutions, and blocks, by stage."""
BUS_BYTES = 8


@dataclass(frozen=True)
class Product:
    """A product of matrices, by its extents.

    Args:
      rows: of the left operand and of the result.
      columns: of the right operand and of the result.
      depth: what is summed over.
      operand_elements: of both operands as they lie.
      left_reuse: elements of the left operand that are one element as it lies, at most.
      right_reuse: the same of the right one.
    """

    rows: int
    columns: int
    depth: int
    operand_elements: int
    left_reuse: int = 1
    right_reuse: int = 1

    @property
    def transposed(self) -> Product:
        """The same product with its operands exchanged."""
        return Product(
            self.columns, self.rows, self.depth, self.operand_elements, self.right_reuse, self.left_reuse
        )


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

    def product(self, direction: str) -> Product:
        """Return the product that a direction is: forward, or the gradient of its input or kernel."""
        field, taps = -(-self.side // self.stride), self.kernel**2
        outputs = BATCH * field**2
        kernel = taps * self.inputs * self.outputs
        if direction == "forward":
            met = (-(-self.kernel // self.stride)) ** 2
            elements = BATCH * self.side**2 * self.inputs + kernel
            return Product(outputs, self.outputs, taps * self.inputs, elements, left_reuse=met)
        if (
            direction == "input"
        ):  # with a stride, a tap meets only some of the image, as many elements as there are outputs
            elements = outputs * self.outputs + kernel
            return Product(outputs, self.inputs, taps * self.outputs, elements, left_reuse=taps)
        met = (-(-self.kernel // self.stride)) ** 2
        elements = BATCH * self.side**2 * self.inputs + outputs * self.outputs
        return Product(taps * self.inputs, self.outputs, outputs, elements, left_reuse=met)


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


def vertex_bound(product: Product, dtype: str, target: Target) -> float:
    """Return what a product takes at least where every tile has a box of it, in cycles; sums are float32.

    Of all ways to cut rows, columns and depth into no more boxes than there are tiles, the best; and of either operand as
    the weights. A tile then takes at least:

    - its vertex, by PopLibs' formula, with weights loaded panel by panel and workers that share rows;
    - what it reads and does not hold. Operands lie evenly. Two tiles of a bus read the same of one operand at most (else
      their boxes were one), which then arrives over both lanes, at twice the rate of the other;
    - where the depth is cut in p, ``1 - 1 / p`` of its partials, sent over its lane, and all of them read once more, 64
      bits a cycle;
    - entering each exchange phase, and its sync.

    Args:
      product: what is multiplied.
      dtype: of operands and result.
      target: the machine.
    """
    return min(_box_bound(each, dtype, target) for each in (product, product.transposed))


def _box_bound(product: Product, dtype: str, target: Target) -> float:
    """Return ``vertex_bound`` with the right operand as the weights, unless that is slower."""
    rows, columns, depth = product.rows, product.columns, product.depth
    tiles = target.num_tiles
    parts = np.meshgrid(*(np.arange(1, min(n, tiles) + 1) for n in (columns, depth)), indexing="ij")
    across, deep = (each[parts[0] * parts[1] <= tiles] for each in parts)
    down = np.minimum(tiles // (across * deep), rows)
    box = tuple(-(-n // each) for n, each in ((rows, down), (columns, across), (depth, deep)))
    form = dot_form((rows, depth), (depth, columns), (), (), (1,), (0,))
    whole = matmul_codelet(dtype, dtype)
    partial, partial_dtypes = whole.partial()
    vertex, of_partials = (
        np.asarray(codelet.cycles(Extents(form, box, (dtype, dtype), results), target).value, np.float64)
        for codelet, results in ((whole, (dtype,)), (partial, partial_dtypes))
    )
    is_cut = deep > 1
    left, right = box[0] * box[2] / product.left_reuse, box[1] * box[2] / product.right_reuse
    arriving = left + right - np.maximum(left, right) / 2 - product.operand_elements / tiles
    arriving = np.maximum(arriving, 0) * itemsize(dtype)
    partials = box[0] * box[1] * itemsize(partial_dtypes[0]) * is_cut
    lane = target.exchange_bytes_per_cycle
    phases = entry_cycles(target) * ((arriving > 0) + is_cut.astype(int))
    moved = arriving / lane + partials * (1 - 1 / deep) / lane + partials / target.data_path_bytes
    return float(np.min(np.where(is_cut, of_partials, vertex) + moved + phases))


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
            product = Product(size, size, size, 2 * size * size)
            bounds = bound, vertex_bound(product, dtype, target)
            rows.append([*_row(f"{size}", dtype, "", found, roof, bounds), "yes" if fits else "no"])
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
                bounds = bound, vertex_bound(each.product(name), dtype, target)
                found = cycles(function, target, *arguments)
                rows.append(_row(str(each), dtype, name, found, roof, bounds))
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


def _row(
    what: str, dtype: str, direction: str, found: int, roof: float, bounds: Sequence[float]
) -> list[str]:
    over = [f"{found:,}", *(f"{found / least:.2f}" for least in (roof, *bounds))]
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

Over the bound with vertices: {matmul_vertex_middles}. Over the first bound: {matmul_middles}.

{matmuls}

## Convolutions of ResNet-50, batch {batch}

Over the bound with vertices: {convolution_vertex_middles}. Over the first bound: {convolution_middles}.

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
        matmul_vertex_middles=middles(products, 5),
        convolution_middles=middles(windows, 5),
        convolution_vertex_middles=middles(windows, 6),
        matmuls=table(
            ["size", "dtype", "cycles", "over roofline", "first bound", "with vertices", "fits"], products
        ),
        convolutions=table(
            [
                "input, kernel/stride, outputs",
                "dtype",
                "direction",
                "cycles",
                "over roofline",
                "first bound",
                "with vertices",
            ],
            windows,
        ),
    )
    print(text)
    print(f"written: {write_result('plans', text)}")


if __name__ == "__main__":
    app.run(main)
