"""Functions of engines compiled many at a time.

XLA takes some 25 ms of a processor for a computation of a few elements, and 4 ms for one more in the same module. A drawn
program has a hundred, each run once: they share modules here, unchanged, and each is run alone. Half of them are computations
that a program before had, too: a codelet, its form and its extents. Those are kept, as the engines keep theirs. A codelet is traced
once for both arithmetics, whose words are derived from that trace.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np

import ipuxla
from ipuxla.frontend._jax_compat import jaxpr_as_fun
from ipuxla.hlo_engine import HloEngine
from tiles._jax_compat import OLDER_EMITTERS
from tiles.codelets.cells import extent_classes, slice_extents
from tiles.compiler import ExecuteStep, VertexGroup
from tiles.engine import FLOAT, RING, FastEngine, memory
from tiles.engine.literal import LiteralEngine
from tiles.engine.tile import TileEngine
from tiles.engine.vertices import cell_form, kept_splits, whole_form
from tiles.numerics.dtypes import to_jax
from tiles.numerics.ring import ring

QUICKLY: dict[str, bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    **OLDER_EMITTERS,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""How XLA compiles what runs once on a few elements: half of the time that it takes by default."""
SHARING = 24
"""Functions of a module: each call runs all of them, on zeros but for one."""
KEPT = 8192
"""Functions kept for programs to come; the one longest unused goes first."""


def take_little_scratch() -> None:
    """Have engines take scratch memory for small arrays: 16 MiB of zeros for each are a tenth of a program's time."""
    memory.SCRATCH_BYTES = 1 << 16


def collect_seldom() -> None:
    """Have Python look for cycles of garbage a hundredth as often: JAX's traces are none, and looking takes 8 % of the time."""
    gc.set_threshold(100_000, 20, 20)


def run_traced(programs: Sequence[ipuxla.Compiled], arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Return the results of programs on the same arguments, all from one computation."""

    def together(*leaves: Any) -> list[list[Any]]:
        return [program.trace(*leaves) for program in programs]

    with jax.enable_x64(True):
        found = jax.jit(together, compiler_options=QUICKLY)(*arrays)
        return [[np.asarray(x) for x in results] for results in found]


@contextlib.contextmanager
def quickly_compiled() -> Iterator[None]:
    """Have engines fast and hlo compile what they do not share, such as runs that record decisions, as what is shared."""
    options = property(lambda _: QUICKLY)
    with (
        mock.patch.object(FastEngine, "compiler_options", options),
        mock.patch.object(HloEngine, "compiler_options", options),
    ):
        yield


def share_modules(engines: Sequence[LiteralEngine]) -> None:
    """Have engines compile the codelets of their groups together, at the first call of any.

    Args:
      engines: literal, vertex or tile, of one executable, in any arithmetic.
    """
    fresh: dict[Hashable, tuple[Callable[..., Any], list[Any]]] = {}
    users: list[tuple[LiteralEngine, Any, Hashable, int]] = []
    for engine in engines:
        forms = _FORMS[engine.name]
        for step in engine.executable.steps:
            for group in step.groups if isinstance(step, ExecuteStep) else ():
                for place, key, function, zeros, cells in forms(engine, group):
                    users.append((engine, place, key, cells))
                    if key in _FUNCTIONS:
                        _FUNCTIONS.move_to_end(key)
                    elif key not in fresh:
                        fresh[key] = function(), zeros
    for first in range(0, len(fresh), SHARING):
        keys = list(fresh)[first : first + SHARING]
        module = _Module([fresh[key] for key in keys])
        _FUNCTIONS.update((key, module.function(place)) for place, key in enumerate(keys))
    for engine, place, key, cells in users:
        engine._functions[place] = _of_fewer(_FUNCTIONS[key], cells) if cells else _FUNCTIONS[key]
    while len(_FUNCTIONS) > KEPT:
        _FUNCTIONS.popitem(last=False)


_FUNCTIONS: OrderedDict[Hashable, Callable[..., Any]] = OrderedDict()
_TRACES: OrderedDict[Hashable, Callable[..., Any]] = OrderedDict()

Form = tuple[Any, Hashable, Callable[[], Callable[..., Any]], list[Any], int]
"""Where an engine keeps a function, what says whether two are the same, what makes the function, arguments for it, and how many
cells the engine calls it for, if it is one of cells: made for the next power of two, so that more of them are the same."""


def _whole_forms(engine: LiteralEngine, group: VertexGroup) -> Iterator[Form]:
    """Yield what the literal engine calls for a group."""
    variables, dtypes = engine.executable.variables, tuple(engine.operand_dtypes(group))
    shapes = [variables[operand.variable].shape for operand in group.operands]
    key = group.codelet, group.form, kept_splits(group), tuple(shapes), dtypes

    def function() -> Callable[..., Any]:
        return _in_arithmetic(key, whole_form(group, dtypes, FLOAT), shapes, dtypes, engine.arithmetic)

    yield id(group), (key, engine.arithmetic), function, _zeros(engine, shapes, dtypes), 0


def _cell_forms(engine: LiteralEngine, group: VertexGroup) -> Iterator[Form]:
    """Yield what the vertex engine calls for a group: one function for the cells of each kind."""
    dtypes = tuple(engine.operand_dtypes(group))
    for block in itertools.product(*map(extent_classes, group.plan.splits)):
        sizes = tuple(extent for _, _, extent in block)
        cells = math.prod(end - first for first, end, _ in block)
        count = 1 << (cells - 1).bit_length()
        shapes = [(count, *slice_extents(operand, sizes)) for operand in group.form.operands]
        key = group.codelet, group.form, sizes, count, dtypes

        all_shapes, all_dtypes = [(count, len(sizes)), *shapes], ("int32", *dtypes)

        def function(key: Hashable = key, sizes: Any = sizes, shapes: Any = all_shapes) -> Callable[..., Any]:
            form = cell_form(group, sizes, dtypes, FLOAT)
            return _in_arithmetic(key, form, shapes, ("int32", *dtypes), engine.arithmetic)

        zeros = _zeros(engine, all_shapes, all_dtypes)
        yield (id(group), sizes), (key, engine.arithmetic), function, zeros, cells


def _of_fewer(function: Callable[..., Any], cells: int) -> Callable[..., Any]:
    """Return a function of a power of two of cells for fewer, the first of which is repeated."""
    missing = (1 << (cells - 1).bit_length()) - cells
    if not missing:
        return function

    def run(*operands: np.ndarray) -> list[Any]:
        filled = [np.concatenate([x, np.repeat(x[:1], missing, axis=0)]) for x in operands]
        return [np.asarray(result)[:cells] for result in function(*filled)]

    return run


def _in_arithmetic(
    key: Hashable,
    form: Callable[..., Any],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    arithmetic: str,
) -> Callable[..., Any]:
    """Return a form in an arithmetic, from a trace of it that both share."""
    if key not in _TRACES:
        arguments = [jax.ShapeDtypeStruct(shape, to_jax(d)) for shape, d in zip(shapes, dtypes, strict=True)]
        with jax.enable_x64(True):
            _TRACES[key] = jaxpr_as_fun(jax.make_jaxpr(form)(*arguments))
        if len(_TRACES) > KEPT:
            _TRACES.popitem(last=False)
    return ring(_TRACES[key], dtypes) if arithmetic == RING else _TRACES[key]


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
    return [np.zeros(shape, engine.stored_dtype(d)) for shape, d in zip(shapes, dtypes, strict=True)]


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
