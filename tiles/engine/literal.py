"""The literal and vertex engines: the machine's memory and exchange, word by word.

One array ``[tiles, words]`` holds every tile's memory at the allocated addresses. An exchange reads parts
where the source lives and writes slices where the vertices read them. The literal engine then assembles
operands from the tiles' own memory, checks that copies agree word for word, runs the whole-array form and
stores every part; the vertex engine runs the codelet cell by cell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiles.compiler import CopyStep, Executable, ExecuteStep, VertexGroup
from tiles.engine import memory
from tiles.engine.interface import FLOAT, Engine, check_inputs
from tiles.engine.trace import Trace
from tiles.engine.whole import whole
from tiles.errors import InvalidExecutable
from tiles.graph import Cell
from tiles.numerics.dtypes import word_count
from tiles.numerics.ring import to_ring
from tiles.plan import Slices, operand_slices


class LiteralEngine(Engine):
    """See the module's text."""

    name = "literal"

    def __init__(self, executable: Executable, arithmetic: str = FLOAT) -> None:
        """Prepare; each step's functions compile when it first runs."""
        super().__init__(executable, arithmetic)
        self.begin, end = executable.data_range
        self.words = max(1, -(-(end - self.begin) // 4))
        self._functions: dict[Any, Callable[..., Any]] = {}

    def run(self, *inputs: Any) -> tuple[list[jax.Array], Trace]:
        """Run once; see ``Engine.run``.

        Raises:
          InvalidExecutable: copies of an operand differ between tiles.
        """
        exe = self.executable
        check_inputs(exe, inputs)
        with jax.enable_x64(True):
            state = jnp.full((exe.target.num_tiles, self.words), memory.POISON, jnp.uint32)
            given = dict(zip(exe.inputs, inputs, strict=True))
            given |= {v.name: v.value for v in exe.variables.values() if v.value is not None}
            for name, value in given.items():
                state = self._function("load", name, donate=True)(state, self.enter(name, value))
            counts = [0] * len(exe.steps)
            state = self._run(exe.program, state, counts)
            outputs = [self._function("read", name)(state) for name in exe.outputs]
        return outputs, Trace(tuple(counts), self.name, self.arithmetic)

    def _run(self, tree: Any, state: jax.Array, counts: list[int]) -> jax.Array:
        if isinstance(tree, int):
            counts[tree] += 1
            return self._step(tree, state)
        kind, *rest = tree
        if kind == "sequence":
            for step in rest:
                state = self._run(step, state, counts)
        elif kind == "repeat":
            for _ in range(rest[0]):
                state = self._run(rest[1], state, counts)
        elif kind == "while":
            state = self._run(rest[0], state, counts)
            while bool(self._function("read", rest[1])(state).reshape(())):
                state = self._run(rest[0], self._run(rest[2], state, counts), counts)
        else:
            index = int(self._function("read", rest[0])(state).reshape(()))
            branches = rest[1:]
            state = self._run(branches[index if 0 <= index < len(branches) else -1], state, counts)
        return state

    def _step(self, number: int, state: jax.Array) -> jax.Array:
        step = self.executable.steps[number]
        if isinstance(step, CopyStep):
            return self._function("copy", number, donate=True)(state)
        if any(operand.buffer for group in step.groups for operand in group.operands):
            state = self._function("exchange", number, donate=True)(state)
        state, agree = self._function("compute", number, donate=True)(state)
        if agree is not None and not bool(jnp.all(agree)):
            bad = self._disagreeing(step, np.asarray(agree))
            raise InvalidExecutable(f"step {step.name}: copies of {bad} differ between tiles")
        return state

    @staticmethod
    def _disagreeing(step: ExecuteStep, agree: np.ndarray) -> str:
        names = [o.variable for group in step.groups for o in group.operands]
        return ", ".join(name for name, ok in zip(names, agree, strict=True) if not ok)

    def _function(self, kind: str, key: Any, donate: bool = False) -> Callable[..., Any]:
        """Return the jitted function of one step or variable, made once."""
        if (kind, key) not in self._functions:
            function = partial(getattr(self, f"_{kind}"), key)
            self._functions[kind, key] = jax.jit(function, donate_argnums=(0,) if donate else ())
        return self._functions[kind, key]

    def _word(self, address: int) -> int:
        return (address - self.begin) // 4

    def _read(self, name: str, state: jax.Array) -> jax.Array:
        v = self.executable.variables[name]
        word = self._word(self.executable.address(name))
        rows = memory.read_rows(state, v.layout.tiles, word, self.carried_name(v.dtype), math.prod(v.layout.part_shape))
        return memory.join_parts(rows, v.layout)

    def _load(self, name: str, state: jax.Array, value: jax.Array) -> jax.Array:
        layout = self.executable.variables[name].layout
        if not math.prod(layout.part_shape):
            return state
        word = self._word(self.executable.address(name))
        return memory.write_rows(state, layout.tiles, word, memory.cut_parts(value, layout))

    def _copy(self, number: int, state: jax.Array) -> jax.Array:
        step = self.executable.steps[number]
        assert isinstance(step, CopyStep)
        sources = [self._read(name, state) for name in step.sources]
        shape = self.executable.variables[step.destination].shape
        value = sources[0].reshape(shape) if step.axis is None else jnp.concatenate(sources, axis=step.axis)
        return self._load(step.destination, state, value)

    def _slices(self, group: VertexGroup, k: int) -> Slices:
        return operand_slices(group.form, group.plan, k, self.executable.variables[group.operands[k].variable].shape)

    def _fill(self, group: VertexGroup, k: int) -> jax.Array | None:
        fill = group.form.operands[k].fill
        if fill is None:
            return None
        dtype = self.executable.variables[group.operands[k].variable].dtype
        value = jnp.asarray(fill, dtype)
        return to_ring(value) if self.arithmetic != FLOAT else value

    def _exchange(self, number: int, state: jax.Array) -> jax.Array:
        """Bring every slice that is not in place to its receive buffer: all reads, then all writes."""
        step = self.executable.steps[number]
        assert isinstance(step, ExecuteStep)
        arriving = []
        for group in step.groups:
            for k, operand in enumerate(group.operands):
                if operand.buffer:
                    slices = self._slices(group, k)
                    rows = memory.disperse(self._read(operand.variable, state), slices, self._fill(group, k))
                    arriving.append((slices.tiles, self.executable.buffers[operand.buffer].address, rows))
        for tiles, address, rows in arriving:
            state = memory.write_rows(state, tiles, self._word(address), rows)
        return state

    def _operand_rows(self, group: VertexGroup, k: int, state: jax.Array) -> jax.Array:
        """Return what every cell of a group finds on its own tile for operand k: ``[cells, elements]``."""
        operand = group.operands[k]
        exe = self.executable
        address = exe.buffers[operand.buffer].address if operand.buffer else exe.address(operand.variable)
        dtype = self.carried_name(exe.variables[operand.variable].dtype)
        return memory.read_rows(state, group.plan.tiles, self._word(address), dtype, math.prod(self._slices(group, k).extents))

    def _compute(self, number: int, state: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        step = self.executable.steps[number]
        assert isinstance(step, ExecuteStep)
        done, agree = [], []
        for group in step.groups:
            rows = [self._operand_rows(group, k, state) for k in range(len(group.operands))]
            results, same = self._evaluate(group, rows)
            done.append((group, results))
            agree += same
        for group, results in done:
            for name, parts in zip(group.results, results, strict=True):
                layout = self.executable.variables[name].layout
                state = memory.write_rows(state, layout.tiles, self._word(self.executable.address(name)), parts)
        return state, jnp.stack(agree) if agree else None

    def _evaluate(self, group: VertexGroup, rows: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        """Return result rows per result, and per operand whether its copies agree."""
        operands, agree = [], []
        for k, held in enumerate(rows):
            slices = self._slices(group, k)
            x = memory.collect(held, slices)
            same = memory.replicas_agree(held, x, slices, self._fill(group, k)) if memory.has_replicas(slices) else jnp.bool_(True)
            operands.append(x)
            agree.append(same)
        results = self.arithmetic_of(lambda *xs: whole(group, xs), self.operand_dtypes(group))(*operands)
        layouts = [self.executable.variables[name].layout for name in group.results]
        return [memory.cut_parts(x, layout) for x, layout in zip(results, layouts, strict=True)], agree


class VertexEngine(LiteralEngine):
    """The same memory; codelets run one vertex at a time, vectorized over the vertices of equal extents."""

    name = "vertex"

    def _evaluate(self, group: VertexGroup, rows: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        grid = group.plan.grid
        held = [x.reshape(*grid, *self._slices(group, k).extents) for k, x in enumerate(rows)]
        layouts = [self.executable.variables[name].layout for name in group.results]
        out: list[Any] = [None] * len(group.results)
        for block in itertools.product(*(_classes(split) for split in group.plan.splits)):
            results = self._block(group, block, held)
            for i, (x, name) in enumerate(zip(results, group.results, strict=True)):
                part = self._part_extents(group, i)
                if out[i] is None:
                    out[i] = jnp.zeros((*grid, *part), self.carried(self.executable.variables[name].dtype))
                cells = tuple(slice(a, b) for a, b, _ in block)
                out[i] = out[i].at[(*cells, *(slice(0, n) for n in x.shape[len(grid) :]))].set(x)
        return [self._result_rows(group, i, x, layout) for i, (x, layout) in enumerate(zip(out, layouts, strict=True))], []

    @staticmethod
    def _part_extents(group: VertexGroup, i: int) -> tuple[int, ...]:
        return tuple(min(group.plan.splits[d].grain, max(group.plan.splits[d].size, 0)) for d in group.form.results[i].dims)

    def _block(self, group: VertexGroup, block: tuple[tuple[int, int, int], ...], held: list[jax.Array]) -> list[jax.Array]:
        """Run the vertices of one block of the grid, all of equal extents; results ``[*block, *part]``."""
        form, grid = group.form, group.plan.grid
        sizes = tuple(extent for _, _, extent in block)
        counts = [b - a for a, b, _ in block]
        operands = []
        for k, x in enumerate(held):
            extents = [_extent(axis.terms, sizes) for axis in form.operands[k].axes]
            index = (*(slice(a, b) for a, b, _ in block), *(slice(0, n) for n in extents))
            operands.append(x[index].reshape(-1, *extents))
        starts = np.meshgrid(*[s.lo[a:b] for s, (a, b, _) in zip(group.plan.splits, block, strict=True)], indexing="ij")
        origins = jnp.asarray(np.stack([s.reshape(-1) for s in starts], axis=1) if starts else np.zeros((1, 0)), jnp.int32)

        def vertex(origin: jax.Array, *slices: jax.Array) -> tuple[jax.Array, ...]:
            cell = Cell(form, sizes, tuple(origin[d] for d in range(len(sizes))), (None,) * len(sizes))
            return group.codelet.compute(cell, *slices)

        results = self.arithmetic_of(jax.vmap(vertex), ["int32", *self.operand_dtypes(group)])(origins, *operands)
        return [r.reshape(*counts, *r.shape[1:]) for r in results] if grid else [r.reshape(r.shape[1:]) for r in results]

    @staticmethod
    def _result_rows(group: VertexGroup, i: int, x: jax.Array, layout: Any) -> jax.Array:
        """Bring ``[*grid, *part]`` to rows in the order of the result layout's parts."""
        dims = group.form.results[i].dims
        rank = len(group.plan.grid)
        split = group.plan.split_reductions(group.form)
        leading = [*split, *dims]
        rest = [d for d in range(rank) if d not in leading]
        x = x.transpose([*rest, *leading, *range(rank, x.ndim)])
        return x.reshape(layout.tiles.size, -1)


def _classes(split: Any) -> list[tuple[int, int, int]]:
    """Return ``(first part, end, extent)`` for the full parts and the short last one."""
    parts, short = split.parts, int(split.hi[-1] - split.lo[-1])
    full = min(split.grain, max(split.size, 0))
    if short == full:
        return [(0, parts, full)]
    return ([(0, parts - 1, full)] if parts > 1 else []) + [(parts - 1, parts, short)]


def _extent(terms: tuple[tuple[int, int], ...], sizes: tuple[int, ...]) -> int:
    if len(terms) == 1:
        return sizes[terms[0][0]]
    return 1 + sum(abs(c) * (sizes[d] - 1) for d, c in terms)


