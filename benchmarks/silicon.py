"""Estimated cycles beside published measurements on silicon: how far to trust the numbers.

python -m benchmarks.silicon

The measurements (``benchmarks/data/published.json``) are not used to fit anything: vertex cycles and the
exchange follow the formulas named in ``tiles``.
"""

from __future__ import annotations

import json
import math
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app

import ipuxla
from benchmarks import siglip
from benchmarks.timing import table, write_result
from ipuxla.calibration.products import by_poplibs
from tiles.compiler import Executable, step_costs
from tiles.graph import AxisSplit, Extents, Layout, whole
from tiles.plan import exchange_cycles, reshape_traffic
from tiles.plan.transpose_cycles import rearrange_cycles
from tiles.poplibs import poplin
from tiles.poplibs.forms import dot_form
from tiles.report import cost_analysis
from tiles.target import Target

PUBLISHED = pathlib.Path(__file__).parent / "data" / "published.json"
CLOCK = Target.named("bow").clock_hz
"""The publication of the dense matmuls states no clock. At a GC200's 1.33 GHz the large ones would leave no time for
exchange (see the table's text), so a Bow's is taken."""
PARTIALS = {"float32": ("float32",), "float16": ("float32", "float16")}
"""The benchmark's program takes either type of partials for halves and the publication does not say which it took."""


def published() -> list[dict[str, Any]]:
    """Return the measurements: shape, dtype, cycles or TFLOP/s, source."""
    return json.loads(PUBLISHED.read_text())


def vertex_cycles(entry: dict[str, Any]) -> int:
    """Return the estimate for a matmul that one tile computes alone, its operands in place."""
    m, k, n, dtype = entry["m"], entry["k"], entry["n"], entry["dtype"]
    form = dot_form((m, k), (k, n), (), (), (1,), (0,))
    codelet = poplin.matmul_codelet(dtype, dtype, "float32", "amp")
    sizes = tuple(np.array([dim.size]) for dim in form.dims)
    extents = Extents(form, sizes, (dtype, dtype), ("float32",))
    return int(np.max(codelet.cycles(extents, Target.named(entry["target"])).value))


def matmul(entry: dict[str, Any], target: Target, partials: str) -> Executable:
    """Return a matmul on a whole IPU as PopLibs computes it, compiled with partials of the given type."""
    m, k, n, dtype = entry["m"], entry["k"], entry["n"], entry["dtype"]
    return by_poplibs(target, m, k, n, dtype, partials=partials, batch=entry.get("batch", 1))


def on_a_tile(entries: Sequence[dict[str, Any]]) -> str:
    """Return the table of single-tile measurements."""
    rows = []
    for entry in entries:
        ours = vertex_cycles(entry)
        shape = f"{entry['m']} x {entry['k']} x {entry['n']}"
        rows.append(
            [shape, entry["dtype"], f"{entry['cycles']:,.0f}", f"{ours:,}", f"{ours / entry['cycles']:.2f}"]
        )
    return table(["m x k x n", "dtype", "measured cycles", "estimated", "ratio"], rows)


def on_a_device(entries: Sequence[dict[str, Any]]) -> str:
    """Return the table of whole-IPU measurements, and how the ratios spread."""
    rows, ratios, inside = [], {}, {}
    for entry in sorted(entries, key=lambda e: (e["dtype"], e["k"], e["n"])):
        m, k, n, dtype = entry["m"], entry["k"], entry["n"], entry["dtype"]
        measured = 2 * m * k * n / (entry["tflops"] * 1e12) * CLOCK
        for partials in PARTIALS[dtype]:
            cost = cost_analysis(matmul(entry, Target.named("gc200"), partials))
            low, high = cost["cycles_range"]
            key = f"{dtype}, partials {partials}"
            ratios.setdefault(key, []).append(cost["cycles"] / measured)
            inside.setdefault(key, []).append(low <= measured <= high)
            ours = f"{cost['cycles']:,}"
            rows.append(
                [f"{m} x {k} x {n}", key, f"{measured:,.0f}", ours, f"{cost['cycles'] / measured:.2f}"]
            )
    head = ["m x k x n", "dtype", "measured cycles", "estimated", "ratio"]
    return f"{table(head, rows)}\n\n{spread(ratios, inside)}"


def spread(ratios: dict[str, list[float]], inside: dict[str, list[bool]]) -> str:
    """Return geometric mean and middle of the ratios, and how often the reported range held the measurement."""
    rows = []
    for key, values in ratios.items():
        mean = math.exp(statistics.fmean(math.log(v) for v in values))
        low, _, high = statistics.quantiles(values, n=4)
        held = f"{sum(inside[key])} of {len(values)}"
        rows.append([key, f"{mean:.2f}", f"{low:.2f} to {high:.2f}", held])
    return table(["dtype", "geometric mean", "middle half", "inside `cycles_range`"], rows)


def compute_set(entry: dict[str, Any]) -> int:
    """Return the compute cycles of the first stage of a matmul: the products, not the addition of partials."""
    executable = matmul(entry, Target.named(entry["target"]), "float16")
    return step_costs(executable)[0].compute_cycles


def scaled_add(entry: dict[str, Any]) -> int:
    """Return the compute cycles of ``a + 0.5 b`` on one tile."""
    x = jax.ShapeDtypeStruct((entry["n"],), entry["dtype"])
    target = Target.named(entry["target"]).replace(num_tiles=1)
    compiled = ipuxla.jit(lambda a, b: a + 0.5 * b, target=target).lower(x, x).compile()
    return compiled.cost_analysis()["compute_cycles"]


def softmax(entry: dict[str, Any]) -> int:
    """Return the compute cycles of a softmax as popnn composes it: times the reciprocal of the sum, all in halves."""

    def popnn(x: jax.Array) -> jax.Array:
        e = jnp.exp(x - jnp.max(x, axis=-1, keepdims=True))
        total = jax.lax.reduce(e, jnp.zeros((), e.dtype), jax.lax.add, (1,))[:, None]
        return e * (1 / total)

    x = jax.ShapeDtypeStruct((entry["m"], entry["n"]), entry["dtype"])
    compiled = ipuxla.jit(popnn, target=Target.named(entry["target"])).lower(x).compile()
    return compiled.cost_analysis()["compute_cycles"]


def score_exchange(entry: dict[str, Any]) -> int:
    """Return the exchange of attention scores from blocks of 365 x 16 to eight whole rows a tile, without its sync."""
    split = AxisSplit(16, 1, ((16, 92),)), AxisSplit(729, 365, ((2, 46),)), AxisSplit(729, 16, ((46, 1),))
    rows = Layout((AxisSplit(16 * 729, 8, ((1458, 1),)), whole(729)))
    target = Target.named(entry["target"])
    return exchange_cycles(reshape_traffic(Layout(split), rows, entry["dtype"], target), target).value


def whole_layer(entry: dict[str, Any]) -> int:
    """Return the cycles of a transformer layer."""
    lowered = ipuxla.jit(siglip.layer, target=Target.named(entry["target"])).lower(*siglip.shapes())
    return lowered.compile().cost_analysis()["cycles"]


def mlp_block(entry: dict[str, Any]) -> int:
    """Return the cycles of the layer's MLP."""
    x, params = siglip.shapes()
    lowered = ipuxla.jit(siglip.mlp, target=Target.named(entry["target"])).lower(
        x, params["up"], params["down"]
    )
    return lowered.compile().cost_analysis()["cycles"]


def device(entry: dict[str, Any]) -> int:
    """Return the cycles of a matmul on the whole machine."""
    return cost_analysis(matmul(entry, Target.named(entry["target"]), "float32"))["cycles"]


def rearrangement(entry: dict[str, Any]) -> int:
    """Return the cycles of rearranging bytes of a tile half by half."""
    return int(rearrange_cycles(entry["n"], 2, Target.named(entry["target"])))


PARTS: dict[str, Callable[[dict[str, Any]], int]] = {
    "compute set of a matmul": compute_set,
    "scaled add on a tile": scaled_add,
    "softmax compute sets": softmax,
    "exchange": score_exchange,
    "rearrangement inside a tile": rearrangement,
    "best dense matmul": device,
    "transformer layer": whole_layer,
    "MLP block": mlp_block,
}
"""How measurements of parts of programs are estimated, by kind."""


def of_parts(entries: Sequence[dict[str, Any]]) -> str:
    """Return the table of measured parts of programs."""
    rows = []
    for entry in entries:
        ours, measured = PARTS[entry["kind"]](entry), entry["cycles"]
        shape = " x ".join(str(entry[key]) for key in ("batch", "m", "k", "n") if key in entry)
        what = [entry["kind"], shape, entry["dtype"], entry["target"]]
        rows.append([*what, f"{measured:,}", f"{ours:,}", f"{ours / measured:.2f}"])
    return table(["what", "size", "dtype", "target", "measured cycles", "estimated", "ratio"], rows)


TEXT = """# Estimates beside silicon

Ratios above 1: we estimate more cycles than were measured. Nothing here was fitted to these figures.

## One tile: float16 matmul on the AMP units

{tiles}

## Parts of programs

Compute sets are those of the SDK's plan on silicon and of our own here, so plans are compared too, and ours contain what their
operands take to be turned. The scaled additions
contain the cycle counter's own part, some 75 cycles. Softmax is written as popnn composes it; JAX's own divides, which takes
twice as long. Poplar turns attention scores by strided copies (129,219 cycles of each layer), our planner by exchange and
blocks; the estimate of the rearrangement is for element by element. The layer and the MLP are whole programs with exchange.

{parts}

## A whole IPU: dense matmul

Read off a published plot (3 %). Its clock is not stated: at a GC200's 1.33 GHz, 4096 x 4096 x 2048 in float16 would have
left 45,000 cycles for everything but products at peak rate, and no cut of it over the tiles moves its operands and partials
in less than 75,000; so cycles are at a Bow's 1.85 GHz. Nor is the type of partials for float16: the benchmark's program takes
either.

{devices}

With few columns against the 4096 x 4096 matrix, silicon pays one pass of the units per column and block of that matrix
(4 cycles in float16, 8 in float32): it holds the large matrix as weights. `poplin::matMul` makes its left operand the weights
of a convolution (lib/poplin/MatMul.cpp), and exchanges the operands only where that saves more than bringing both into another
order (lib/poplin/ConvModel.cpp); so do these rows. Our own planner streams the large matrix instead, in half the cycles. What is
left in float32 is 0.2 to 0.25 cycles per byte of the matrix on a tile. With float32 partials, large float16 products come out
1.2 to 1.3 times too long, with float16 partials within 15 %.

## Sources

{sources}
"""


def main(argv: Sequence[str]) -> None:
    """Compare, print, and write ``benchmarks/results/silicon.md``."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    entries = published()
    text = TEXT.format(
        tiles=on_a_tile([e for e in entries if e["kind"] == "matmul on every tile"]),
        parts=of_parts([e for e in entries if e["kind"] in PARTS]),
        devices=on_a_device([e for e in entries if e["kind"] == "matmul on a whole IPU"]),
        sources="\n".join(f"- {source}" for source in sorted({entry["source"] for entry in entries})),
    )
    print(text)
    print(f"written: {write_result('silicon', text)}")


if __name__ == "__main__":
    app.run(main)
