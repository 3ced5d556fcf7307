"""Functions of engines compiled many at a time.

XLA takes some 25 ms of a processor for a computation of a few elements, and 4 ms for one more in the same module. A drawn
program has fifty, each run once: they share modules here, unchanged, and each is run alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import ipuxla
from tiles.codelets.cells import extent_classes, slice_extents
from tiles.compiler import ExecuteStep, VertexGroup
from tiles.engine import memory
from tiles.engine.literal import LiteralEngine
from tiles.engine.tile import TileEngine
from tiles.engine.vertices import cell_form, whole_form

QUICKLY: dict[str, bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""How XLA compiles what runs once on a few elements: half of the time that it takes by default."""
SHARING = 24
"""Functions of a module: each call runs all of them, on zeros but for one."""


def take_little_scratch() -> None:
    """Have engines take scratch memory for small arrays: 16 MiB of zeros for each are a tenth of a program's time."""
    memory.SCRATCH_BYTES = 1 << 16


def run_traced(programs: Sequence[ipuxla.Compiled], arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Return the results of programs on the same arguments, all from one computation."""

    def together(*leaves: Any) -> list[list[Any]]:
        return [program.trace(*leaves) for program in programs]

    with jax.enable_x64(True):
        found = jax.jit(together, compiler_options=QUICKLY)(*arrays)
        return [[np.asarray(x) for x in results] for results in found]


def share_modules(engines: Sequence[LiteralEngine]) -> None:
    """Have engines compile the codelets of their groups together, at the first call of any.

    Args:
      engines: literal, vertex or tile, of one executable, in any arithmetic.
    """
    shared: dict[Any, tuple[Callable[..., Any], list[Any]]] = {}
    users: list[tuple[LiteralEngine, Any, Any]] = []
    for engine in engines:
        forms = _FORMS[engine.name]
        for step in engine.executable.steps:
            for group in step.groups if isinstance(step, ExecuteStep) else ():
                for place, key, function, zeros in forms(engine, group):
                    shared.setdefault(key, (function, zeros))
                    users.append((engine, place, key))
    functions: dict[Any, Callable[..., Any]] = {}
    for first in range(0, len(shared), SHARING):
        keys = list(shared)[first : first + SHARING]
        module = _Module([shared[key] for key in keys])
        functions.update((key, module.function(place)) for place, key in enumerate(keys))
    for engine, place, key in users:
        engine._functions[place] = functions[key]


Form = tuple[Any, Any, Callable[..., Any], list[Any]]
"""Where an engine keeps a function, what says whether two are the same, the function, and arguments for it."""


def _whole_forms(engine: LiteralEngine, group: VertexGroup) -> Iterator[Form]:
    """Yield what the literal engine calls for a group."""
    variables, dtypes = engine.executable.variables, tuple(engine.operand_dtypes(group))
    shapes = [variables[operand.variable].shape for operand in group.operands]
    key = group.codelet, group.form, group.plan.splits, dtypes, engine.arithmetic
    yield id(group), key, whole_form(group, dtypes, engine.arithmetic), _zeros(engine, shapes, dtypes)


def _cell_forms(engine: LiteralEngine, group: VertexGroup) -> Iterator[Form]:
    """Yield what the vertex engine calls for a group: one function for the cells of each kind."""
    dtypes = tuple(engine.operand_dtypes(group))
    for block in itertools.product(*map(extent_classes, group.plan.splits)):
        sizes = tuple(extent for _, _, extent in block)
        count = math.prod(end - first for first, end, _ in block)
        shapes = [(count, *slice_extents(operand, sizes)) for operand in group.form.operands]
        key = group.codelet, group.form, sizes, count, dtypes, engine.arithmetic
        zeros = [np.zeros((count, len(sizes)), np.int32), *_zeros(engine, shapes, dtypes)]
        yield (id(group), sizes), key, cell_form(group, sizes, dtypes, engine.arithmetic), zeros


def _forms_without_code(engine: LiteralEngine, group: VertexGroup) -> Iterator[Form]:
    """Yield what engine ``tile`` calls for a group: nothing for what runs by code."""
    assert isinstance(engine, TileEngine)
    vertices = engine._by_code(group)
    if vertices is None:
        yield from _whole_forms(engine, group)
    elif not vertices.has_code.all():
        yield from _cell_forms(engine, group)


def _zeros(
    engine: LiteralEngine, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]
) -> list[np.ndarray]:
    return [np.zeros(shape, engine.carried(d)) for shape, d in zip(shapes, dtypes, strict=True)]


_FORMS = {"literal": _whole_forms, "vertex": _cell_forms, "tile": _forms_without_code}


class _Module:
    """Functions with arguments for each, in one computation."""

    def __init__(self, parts: Sequence[tuple[Callable[..., Any], list[Any]]]) -> None:
        self._parts = parts
        counts = [len(zeros) for _, zeros in parts]
        self._first = list(itertools.accumulate(counts, initial=0))
        self._zeros = list(itertools.chain.from_iterable(zeros for _, zeros in parts))
        self._compiled = jax.jit(self._all, compiler_options=QUICKLY)

    def _all(self, *operands: Any) -> list[Any]:
        spans = itertools.pairwise(self._first)
        return [
            function(*operands[start:stop])
            for (function, _), (start, stop) in zip(self._parts, spans, strict=True)
        ]

    def function(self, place: int) -> Callable[..., Any]:
        """Return one of the functions alone."""
        start, stop = self._first[place], self._first[place + 1]

        def run(*operands: Any) -> Any:
            return self._compiled(*self._zeros[:start], *operands, *self._zeros[stop:])[place]

        return run
