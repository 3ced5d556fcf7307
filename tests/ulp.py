"""How far apart the engines' floats are, codelet by codelet: generated cases, measured in ULPs.

``python -m tests.ulp 20`` prints the table of ``docs/numerics.md`` from twenty cases of every kind and type. What is
measured is a difference between two engines, not an error: the exact result is not involved.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from tests.flow import ENGINES, run
from tests.random_plans import random_planner
from tiles.compiler import compile_graph
from tiles.graph import Graph, Tensor
from tiles.numerics.dtypes import to_jax
from tiles.numerics.tolerance import ulp_distance
from tiles.poplibs import poplin, popops, poputil
from tiles.poplibs.popops import arg, call
from tiles.poplibs.popops.expression import FUNCTIONS
from tiles.target import Target

DTYPES = ("float32", "float64", "float16", "bfloat16")
TRANSCENDENTAL = (
    *("cbrt", "cosine", "exponential", "exponential_minus_one", "log", "log_plus_one", "logistic"),
    *("rsqrt", "sine", "tan", "tanh", "atan2", "power"),
)
NOT_ROUNDED = (
    "convert",
    "bitcast_convert",
    "compare",
    "select",
    "is_finite",
    "reduce_precision",
    "iota",
    "constant",
)
POSITIVE = ("log", "log_plus_one", "sqrt", "rsqrt", "power")
"""Functions whose first operand is made positive."""


@dataclass(frozen=True)
class Case:
    """Something to compute, and what a difference in its result is measured in.

    Args:
      result: the tensor.
      magnitude: what one ULP is taken at, float64 of the result's shape; None takes it at the result itself.
      terms: how many values are added; the figure is divided by the root of it.
    """

    result: Tensor
    magnitude: np.ndarray | None = None
    terms: int = 1


Arrays = dict[str, np.ndarray]
Build = Callable[[Graph, dict[str, Tensor], Arrays], Iterator[Case]]
"""Adds cases to a graph: inputs ``x``, ``y``, ``z`` and ``p`` (positive) are ``[rows, n]``, so is ``n`` (about 1);
``w`` is ``[n, 24]``. The last argument holds their values."""

KINDS: dict[str, Build] = {}


def _kind(name: str) -> Callable[[Build], Build]:
    def keep(build: Build) -> Build:
        KINDS[name] = build
        return build

    return keep


@_kind("movement, selection, comparison, conversion")
def _movement(graph: Graph, t: dict[str, Tensor], v: Arrays) -> Iterator[Case]:
    rows, columns = v["x"].shape
    yield Case(popops.transpose(graph, t["x"], (1, 0)))
    yield Case(popops.reverse(graph, t["x"], (0,)))
    yield Case(popops.slice(graph, t["x"], (1, 0), (rows, columns), (2, 3)))
    yield Case(popops.pad(graph, t["x"], (1, 0), (0, 2), value=0.5))
    yield Case(poputil.reshape(graph, t["x"], (columns, rows)))
    yield Case(poputil.concatenate(graph, [t["x"], t["y"]], 1))
    yield Case(popops.select(graph, popops.lt(graph, t["x"], t["y"]), t["x"], t["y"]))
    yield Case(popops.cast(graph, t["x"], "float16" if t["x"].dtype != "float16" else "float32"))


def _functions(names: list[str]) -> Build:
    """Evaluate functions side by side in one step, which compiles faster than a step for each."""

    def build(graph: Graph, t: dict[str, Tensor], v: Arrays) -> Iterator[Case]:
        firsts = [3 if name in POSITIVE else 0 for name in names]
        calls = [
            call(n, *map(arg, (k, 1, 2)[: FUNCTIONS[n].arity])) for n, k in zip(names, firsts, strict=True)
        ]
        yield from map(Case, popops.map_many(graph, calls, [t[name] for name in "xyzp"]))

    return build


_ROUNDED = [name for name, f in FUNCTIONS.items() if "F" in f.accepts and name not in NOT_ROUNDED]
_kind("Map of one function, arithmetic")(_functions([n for n in _ROUNDED if n not in TRANSCENDENTAL]))
_kind("Map of one function, transcendental")(_functions(list(TRANSCENDENTAL)))


@_kind("Map of an expression")
def _expressions(graph: Graph, t: dict[str, Tensor], v: Arrays) -> Iterator[Case]:
    x, y, z = (np.abs(v[name]) for name in "xyz")
    a, b, c = arg(0), arg(1), arg(2)
    operands = [t["x"], t["y"], t["z"]]
    for expression, magnitude in (
        (a * b + c, x * y + z),
        (a + b - c, x + y + z),
        (a * b * c, x * y * z),
        (call("tanh", a) * b + c, y + z),
        (a / (call("abs", b) + 1.0) + c, x + z),
    ):
        yield Case(popops.map(graph, expression, operands), magnitude)


@_kind("a Map of a product and a Map that adds to it")
def _steps(graph: Graph, t: dict[str, Tensor], v: Arrays) -> Iterator[Case]:
    x, y, z = (np.abs(v[name]) for name in "xyz")
    yield Case(popops.add(graph, popops.mul(graph, t["x"], t["y"]), t["z"]), x * y + z)
    yield Case(popops.sub(graph, t["z"], popops.mul(graph, t["x"], t["y"])), x * y + z)


@_kind("Reduce, max and min")
def _extremes(graph: Graph, t: dict[str, Tensor], v: Arrays) -> Iterator[Case]:
    yield Case(popops.reduce(graph, t["x"], (1,), "max"))
    yield Case(popops.reduce(graph, t["x"], (0,), "min"))


@_kind("Reduce, add")
def _sums(graph: Graph, t: dict[str, Tensor], v: Arrays) -> Iterator[Case]:
    for name, dims in itertools.product("xp", ((1,), (0,), (0, 1))):
        terms = int(np.prod([v[name].shape[d] for d in dims]))
        yield Case(popops.reduce(graph, t[name], dims), np.abs(v[name]).sum(dims), terms)
    squares = popops.map_reduce(graph, arg(0) * arg(1), [t["x"], t["y"]], (1,))
    yield Case(squares, np.abs(v["x"] * v["y"]).sum(1), v["x"].shape[1])


@_kind("Reduce, mul")
def _products(graph: Graph, t: dict[str, Tensor], v: Arrays) -> Iterator[Case]:
    near_one = popops.slice(graph, t["n"], (0, 0), (v["n"].shape[0], 48))
    yield Case(popops.reduce(graph, near_one, (1,), "mul"), v["n"][:, :48].prod(1), 48)


@_kind("MatMul")
def _contractions(graph: Graph, t: dict[str, Tensor], v: Arrays) -> Iterator[Case]:
    n = v["x"].shape[1]
    for name in "xp":
        yield Case(poplin.matmul(graph, t[name], t["w"]), np.abs(v[name]) @ np.abs(v["w"]), n)
    gram = poplin.dot_general(graph, t["x"], t["y"], (((1,), (1,)), ((), ())))
    yield Case(gram, np.abs(v["x"]) @ np.abs(v["y"]).T, n)
    batch = poplin.dot_general(graph, t["x"], t["y"], (((1,), (1,)), ((0,), (0,))))
    yield Case(batch, np.abs(v["x"] * v["y"]).sum(1), n)


def measure(kind: str, dtype: str, seed: int) -> float:
    """Return the largest difference between two engines in the cases of a kind, in the kind's unit.

    Args:
      kind: a key of ``KINDS``.
      dtype: of the operands.
      seed: of operands, sizes and plans; an even one leaves plans to the planner.
    """
    rng = np.random.default_rng(seed)
    arrays = _arrays(rng, dtype)
    graph = Graph(Target.named("gc200").replace(num_tiles=int(rng.integers(8, 65))))
    inputs = _Inputs(graph, arrays, dtype)
    exact = {name: x.astype(np.float64) for name, x in arrays.items()}
    cases = list(KINDS[kind](graph, inputs, exact))
    graph.outputs = [case.result.name for case in cases]
    with random_planner(seed) if seed % 2 else contextlib.nullcontext():
        executable = compile_graph(graph, check_memory=False)
    found = [run(executable, engine, [arrays[name] for name in graph.inputs]) for engine in ENGINES]
    return max(
        _distance(one, other, case)
        for results in itertools.combinations(found, 2)
        for one, other, case in zip(*results, cases, strict=True)
    )


class _Inputs(dict[str, Tensor]):
    """The inputs of a graph, each added when it is first asked for: engines load what there is."""

    def __init__(self, graph: Graph, arrays: Arrays, dtype: str) -> None:
        super().__init__()
        self.make = lambda name: graph.add_input(arrays[name].shape, dtype, name)

    def __missing__(self, name: str) -> Tensor:
        self[name] = self.make(name)
        return self[name]


def _arrays(rng: np.random.Generator, dtype: str) -> Arrays:
    rows, n = int(rng.integers(5, 30)), int(rng.choice([33, 64, 301, 1000]))
    wide = [rng.standard_normal((rows, n)) * np.exp(rng.uniform(-2, 2, (rows, n))) for _ in range(3)]
    arrays = dict(zip("xyz", wide, strict=True))
    arrays |= {
        "p": np.abs(wide[0]) + 1e-3,
        "w": rng.standard_normal((n, 24)),
        "n": np.exp(rng.uniform(-0.2, 0.2, (rows, n))),
    }
    return {name: x.astype(to_jax(dtype)) for name, x in arrays.items()}


def _distance(one: np.ndarray, other: np.ndarray, case: Case) -> float:
    if case.magnitude is None:
        return (
            float(ulp_distance(one, other).max(initial=0))
            if one.dtype.kind not in "biu"
            else float((one != other).any())
        )
    limits = jnp.finfo(one.dtype)
    magnitude = np.maximum(case.magnitude, float(limits.tiny))
    ulp = 2.0 ** np.floor(np.log2(magnitude)) * float(limits.eps)
    apart = np.abs(one.astype(np.float64) - other.astype(np.float64)) / ulp
    return float(apart.max(initial=0)) / case.terms**0.5


def main(arguments: list[str]) -> None:
    """Print the measured table."""
    count = int(arguments[0]) if arguments else 10
    print("| codelet | " + " | ".join(DTYPES) + " |")
    for kind in KINDS:
        found = [max(measure(kind, dtype, seed) for seed in range(count)) for dtype in DTYPES]
        print(f"| {kind} | " + " | ".join(f"{x:.2g}" for x in found) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
