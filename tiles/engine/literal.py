"""The literal and vertex engines: the machine's memory and exchange, word by word.

One array ``[tiles, words]`` holds every tile's memory at the allocated addresses. An exchange reads parts
where the source lives and writes slices where the vertices read them. The literal engine then assembles
operands from the tiles' own memory, checks that copies agree word for word, runs the whole-array form and
stores every part; the vertex engine runs the codelet cell by cell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiles.compiler import CopyStep, Executable, ExecuteStep, VertexGroup
from tiles.compiler.tree import Path, children, count_steps, dynamic_parts
from tiles.engine import memory
from tiles.engine.compilation import SMALL_BYTES, quickly
from tiles.engine.fast import as_trips, record_decisions
from tiles.engine.interface import FLOAT, Engine, check_inputs
from tiles.engine.trace import Trace
from tiles.engine.whole import whole
from tiles.errors import InvalidExecutable
from tiles.graph import Cell
from tiles.graph.cells import extent_classes, slice_extents
from tiles.numerics.dtypes import word_count
from tiles.numerics.ring import to_ring
from tiles.plan import Slices, operand_slices

STEPS_AT_ONCE = 16
"""A small memory is cheap to copy, so steps share programs: compiling 16 together takes half the time."""


class LiteralEngine(Engine):
    """See the module's text."""

    name = "literal"

    def __init__(self, executable: Executable, arithmetic: str = FLOAT) -> None:
        """Prepare; each step's functions compile when it first runs."""
        super().__init__(executable, arithmetic)
        self.begin, end = executable.data_range
        self.words = max(1, -(-(end - self.begin) // 4))
        self._functions: dict[Any, Callable[..., Any]] = {}
        self._memory: jax.Array | None = None
        self._agreements: list[tuple[int, Any]] = []
        self._recorded: Iterator[int] | None = None
        self._trips: dict[Path, Any] = {}

    def run(self, *inputs: Any) -> tuple[list[jax.Array], Trace]:
        """Run once; see ``Engine.run``.

        Raises:
          InvalidExecutable: copies of an operand differ between tiles.
        """
        exe = self.executable
        check_inputs(exe, inputs)
        recorded = np.asarray(record_decisions(exe, *inputs)) if self.replays else None
        self._recorded = None if recorded is None else iter(recorded)
        with jax.enable_x64(True):
            state = self._poisoned()
            given = dict(zip(exe.inputs, inputs, strict=True))
            given |= {v.name: v.value for v in exe.variables.values() if v.value is not None}
            for chunk in _chunks(list(given), len(given) if self._is_small else 1):
                values = [self.enter(name, given[name]) for name in chunk]
                state = self._function("load", chunk, donate=True)(state, values)
            self._trips = {
                p: 0 if t[0] == "while" else [0] * len(children(t)) for p, t in dynamic_parts(exe.program)
            }
            state = self._run(exe.program, (), state)
            outputs = list(self._function("outputs", exe.outputs)(state))
        self._memory = state
        self._require_agreement()
        trips = {path: as_trips(counted) for path, counted in self._trips.items()}
        return outputs, Trace(count_steps(exe, trips), self.name, self.arithmetic, trips)

    def _poisoned(self) -> jax.Array:
        """Return a memory full of a pattern nobody wrote; the last run's is overwritten, which spares its pages."""
        self._agreements = []
        last, self._memory = self._memory, None
        if last is None:
            return jnp.full((self.executable.target.num_tiles, self.words), memory.POISON, jnp.uint32)
        return _poison(last)

    def _run(self, tree: Any, path: Path, state: jax.Array) -> jax.Array:
        """Run a part of the program and count the trips of loops and branches in it."""
        if isinstance(tree, int):
            return self._straight([tree], state)
        if tree[0] == "while":
            return self._while(tree, path, state)
        if tree[0] == "switch":
            return self._switch(tree, path, state)
        for _ in range(tree[1] if tree[0] == "repeat" else 1):
            for is_step, parts in itertools.groupby(children(tree), lambda part: isinstance(part[1], int)):
                if is_step:
                    state = self._straight([step for _, step in parts], state)
                else:
                    for position, inner in parts:
                        state = self._run(inner, (*path, position), state)
        return state

    def _while(self, tree: Any, path: Path, state: jax.Array) -> jax.Array:
        _, condition, predicate, body = tree
        state = self._run(condition, (*path, 1), state)
        while self._decide(predicate, state):
            self._trips[path] += 1
            state = self._run(condition, (*path, 1), self._run(body, (*path, 3), state))
        return state

    def _switch(self, tree: Any, path: Path, state: jax.Array) -> jax.Array:
        branches = children(tree)
        index = self._decide(tree[1], state)
        index = index if 0 <= index < len(branches) else len(branches) - 1
        self._trips[path][index] += 1
        position, branch = branches[index]
        return self._run(branch, (*path, position), state)

    def _decide(self, name: str, state: jax.Array) -> int:
        """Return a predicate or the number of a branch: as computed, or as the float run decided."""
        if self._recorded is not None:
            return int(next(self._recorded))
        return int(self._function("read", name)(state).reshape(()))

    def _straight(self, numbers: list[int], state: jax.Array) -> jax.Array:
        """Run steps one after another: a small memory many steps at a time, a large one phase by phase."""
        for chunk in _chunks(numbers, STEPS_AT_ONCE if self._is_small else 1):
            if self._is_small:
                state, agree = self._function("steps", chunk, donate=True)(state)
            else:
                state, agree = self._step(chunk[0], state, self._compiled)
            self._agreements += zip(chunk, agree if self._is_small else (agree,), strict=True)
        return state

    @property
    def _state_bytes(self) -> int:
        return self.executable.target.num_tiles * self.words * 4

    @property
    def _is_small(self) -> bool:
        """Whether the memory of all tiles is cheap to copy."""
        return self._state_bytes <= SMALL_BYTES

    def _steps(self, numbers: tuple[int, ...], state: jax.Array) -> tuple[jax.Array, list[Any]]:
        """Run several steps in one program."""
        agree = []
        for number in numbers:
            state, same = self._step(number, state, self._traced)
            agree.append(same)
        return state, agree

    def _step(self, number: int, state: jax.Array, call: Callable[..., Any]) -> tuple[jax.Array, Any]:
        """Run one step: ``call(kind, number, *arrays)`` runs one of its functions."""
        step = self.executable.steps[number]
        if isinstance(step, CopyStep):
            return call("store_copy", number, state, call("copy", number, state)), None
        if any(operand.buffer for group in step.groups for operand in group.operands):
            state = call("store_exchange", number, state, call("exchange", number, state))
        agree = call("agreement", number, state) if self._has_copies(number) else None
        if any(group.codelet.is_contraction for group in step.groups):
            results = call("evaluate", number, call("assemble", number, state))
        else:
            results = call("compute", number, state)
        return call("store_compute", number, state, results), agree

    def _compiled(self, kind: str, number: int, *arrays: Any) -> Any:
        """Run one function in a program of its own; stores write the memory in place.

        In one program XLA would compute every copy of a repeated slice anew, and feed contractions with operands
        it has not laid out for them. What does not depend on each other may run side by side.
        """
        return self._function(kind, number, donate=kind.startswith("store"))(*arrays)

    def _traced(self, kind: str, number: int, *arrays: Any) -> Any:
        """Trace one function as part of a larger program: few compilations, for memories small enough to copy."""
        return getattr(self, f"_{kind}")(number, *arrays)

    def _require_agreement(self) -> None:
        """Raise InvalidExecutable if copies of an operand differed in any step; asked once, after the run."""
        for number, agree in self._agreements:
            if agree is None or np.all(agree):
                continue
            names = [
                group.operands[k].variable
                for group in self._groups(number)
                for k in range(len(group.operands))
            ]
            bad = ", ".join(name for name, ok in zip(names, np.asarray(agree), strict=True) if not ok)
            step = self.executable.steps[number].name
            raise InvalidExecutable(f"step {step}: copies of {bad} differ between tiles")

    def _function(self, kind: str, key: Any, donate: bool = False) -> Callable[..., Any]:
        """Return the jitted function of one step or variable, made once."""
        if (kind, key) not in self._functions:
            function = partial(getattr(self, f"_{kind}"), key)
            self._functions[kind, key] = jax.jit(
                function,
                donate_argnums=(0,) if donate else (),
                compiler_options=quickly(self._state_bytes, rounds=self.arithmetic == FLOAT),
            )
        return self._functions[kind, key]

    def _word(self, address: int) -> int:
        return (address - self.begin) // 4

    def _read(self, name: str, state: jax.Array) -> jax.Array:
        v = self.executable.variables[name]
        return memory.read_tensor(
            state, v.layout, self._word(self.executable.address(name)), self.carried_name(v.dtype)
        )

    def _parts(self, name: str, value: jax.Array) -> jax.Array:
        """Return a variable's parts as words in tile order."""
        layout = self.executable.variables[name].layout
        return memory.of_layout(layout).arrange(memory.as_words(memory.cut(value, layout)))

    def _keep(self, name: str, state: jax.Array, parts: jax.Array) -> jax.Array:
        layout = self.executable.variables[name].layout
        return memory.of_layout(layout).store(state, self._word(self.executable.address(name)), parts)

    def _load(self, names: tuple[str, ...], state: jax.Array, values: list[jax.Array]) -> jax.Array:
        for name, value in zip(names, values, strict=True):
            state = self._keep(name, state, self._parts(name, value))
        return state

    def _outputs(self, names: tuple[str, ...], state: jax.Array) -> list[jax.Array]:
        return [self._read(name, state) for name in names]

    def _copy(self, number: int, state: jax.Array) -> jax.Array:
        step = self.executable.steps[number]
        assert isinstance(step, CopyStep)
        sources = [self._read(name, state) for name in step.sources]
        shape = self.executable.variables[step.destination].shape
        value = sources[0].reshape(shape) if step.axis is None else jnp.concatenate(sources, axis=step.axis)
        return self._parts(step.destination, value)

    def _store_copy(self, number: int, state: jax.Array, parts: jax.Array) -> jax.Array:
        step = self.executable.steps[number]
        assert isinstance(step, CopyStep)
        return self._keep(step.destination, state, parts)

    def _slices(self, group: VertexGroup, k: int) -> Slices:
        return operand_slices(
            group.form, group.plan, k, self.executable.variables[group.operands[k].variable].shape
        )

    def _fill(self, group: VertexGroup, k: int) -> jax.Array | None:
        fill = group.form.operands[k].fill
        if fill is None:
            return None
        dtype = self.executable.variables[group.operands[k].variable].dtype
        value = jnp.asarray(fill, dtype)
        return to_ring(value) if self.arithmetic != FLOAT else value

    def _groups(self, number: int) -> tuple[VertexGroup, ...]:
        step = self.executable.steps[number]
        assert isinstance(step, ExecuteStep)
        return step.groups

    def _exchange(self, number: int, state: jax.Array) -> list[jax.Array]:
        """Return, in words, every slice that is not in place, read from where its source lies."""
        arriving = []
        for group in self._groups(number):
            place = memory.placement(group.plan.splits, group.plan.base)
            for k, operand in enumerate(group.operands):
                if operand.buffer:
                    slices = memory.disperse(
                        self._read(operand.variable, state), self._slices(group, k), self._fill(group, k)
                    )
                    arriving.append(place.arrange(memory.as_words(slices)))
        return arriving

    def _store_exchange(self, number: int, state: jax.Array, arriving: list[jax.Array]) -> jax.Array:
        """Write arriving slices to the receive buffers of every cell's tile."""
        words = iter(arriving)
        for group in self._groups(number):
            place = memory.placement(group.plan.splits, group.plan.base)
            for operand in group.operands:
                if operand.buffer:
                    state = place.store(
                        state, self._word(self.executable.buffers[operand.buffer].address), next(words)
                    )
        return state

    def _operand_at(self, group: VertexGroup, k: int) -> tuple[int, str, int]:
        """Return word address, carried dtype and elements per cell of what a group finds for operand k."""
        operand, exe = group.operands[k], self.executable
        address = exe.buffers[operand.buffer].address if operand.buffer else exe.address(operand.variable)
        dtype = self.carried_name(exe.variables[operand.variable].dtype)
        return self._word(address), dtype, math.prod(self._slices(group, k).extents)

    def _compute(self, number: int, state: jax.Array) -> list[jax.Array]:
        """Return the results' parts, in words and tile order."""
        return self._evaluate(number, self._assemble(number, state))

    def _assemble(self, number: int, state: jax.Array) -> list[list[jax.Array]]:
        """Return every group's operands from the tiles' own memory."""
        return [
            [self._operand(group, k, state) for k in range(len(group.operands))]
            for group in self._groups(number)
        ]

    def _evaluate(self, number: int, held: list[list[jax.Array]]) -> list[jax.Array]:
        """Return the parts of every result, in words and tile order."""
        return [
            parts
            for group, operands in zip(self._groups(number), held, strict=True)
            for parts in self._vertices(group, operands)
        ]

    def _store_compute(self, number: int, state: jax.Array, results: list[jax.Array]) -> jax.Array:
        parts = iter(results)
        for group in self._groups(number):
            for name in group.results:
                state = self._keep(name, state, next(parts))
        return state

    def _vertices(self, group: VertexGroup, operands: list[jax.Array]) -> list[jax.Array]:
        """Return the parts of every result of a group from what ``_operand`` gave."""
        results = self.arithmetic_of(lambda *xs: whole(group, xs), self.operand_dtypes(group))(*operands)
        return [self._parts(name, x) for name, x in zip(group.results, results, strict=True)]

    def _operand(self, group: VertexGroup, k: int, state: jax.Array) -> jax.Array:
        """Return operand k put together from the tiles' own memory."""
        slices = self._slices(group, k)
        return memory.collect(self._held(group, k, state, memory.repeated_dims(slices)), slices)

    def _held(
        self, group: VertexGroup, k: int, state: jax.Array, drop: frozenset[int] = frozenset()
    ) -> jax.Array:
        """Return what the cells of a group find on their own tiles: ``[*grid, elements]``, see ``Placement.load``."""
        word, dtype, count = self._operand_at(group, k)
        place = memory.placement(group.plan.splits, group.plan.base)
        return memory.to_elements(place.load(state, word, word_count(dtype, count), drop), dtype, count)

    def _has_copies(self, number: int) -> bool:
        """Return whether any element of a step's operands lies on several tiles, so that copies could differ."""
        slices = [
            self._slices(group, k) for group in self._groups(number) for k in range(len(group.operands))
        ]
        return any(s.replication > 1 or not memory.is_cut_once(s) for s in slices)

    def _agreement(self, number: int, state: jax.Array) -> jax.Array:
        """Return, per operand of a step, whether all copies of it agree."""
        groups = self._groups(number)
        return jnp.stack(
            [self._agrees(group, k, state) for group in groups for k in range(len(group.operands))]
        )

    def _agrees(self, group: VertexGroup, k: int, state: jax.Array) -> jax.Array:
        slices = self._slices(group, k)
        word, dtype, count = self._operand_at(group, k)
        place = memory.placement(group.plan.splits, group.plan.base)
        repeated = memory.repeated_dims(slices)
        agree = jnp.bool_(True)
        if slices.replication > 1 and count:
            agree = memory.replicas_agree(state, place, word, word_count(dtype, count), repeated)
        if not memory.is_cut_once(slices):
            held = self._held(group, k, state, repeated)
            agree &= memory.slices_agree(held, memory.collect(held, slices), slices, self._fill(group, k))
        return agree


class VertexEngine(LiteralEngine):
    """The same memory; codelets run one vertex at a time, vectorized over the vertices of equal extents."""

    name = "vertex"

    def _vertices(self, group: VertexGroup, operands: list[jax.Array]) -> list[jax.Array]:
        grid = group.plan.grid
        out: list[Any] = [None] * len(group.results)
        for block in itertools.product(*map(extent_classes, group.plan.splits)):
            results = self._block(group, block, operands)
            for i, (x, name) in enumerate(zip(results, group.results, strict=True)):
                if out[i] is None:
                    dtype = self.carried(self.executable.variables[name].dtype)
                    out[i] = jnp.zeros((*grid, *self._part_extents(group, i)), dtype)
                cells = tuple(slice(a, b) for a, b, _ in block)
                out[i] = out[i].at[(*cells, *(slice(0, n) for n in x.shape[len(grid) :]))].set(x)
        return [self._result_parts(group, i, x) for i, x in enumerate(out)]

    def _operand(self, group: VertexGroup, k: int, state: jax.Array) -> jax.Array:
        """Return what every cell finds on its own tile for operand k: ``[*grid, *extents]``."""
        return self._held(group, k, state).reshape(*group.plan.grid, *self._slices(group, k).extents)

    def _has_copies(self, number: int) -> bool:
        """Return False: every vertex computes with its own copy, so differing ones differ in results."""
        return False

    @staticmethod
    def _part_extents(group: VertexGroup, i: int) -> tuple[int, ...]:
        return tuple(
            min(group.plan.splits[d].grain, max(group.plan.splits[d].size, 0))
            for d in group.form.results[i].dims
        )

    def _block(
        self, group: VertexGroup, block: tuple[tuple[int, int, int], ...], held: list[jax.Array]
    ) -> list[jax.Array]:
        """Run the vertices of one block of the grid, all of equal extents; results ``[*block, *part]``."""
        form, grid = group.form, group.plan.grid
        sizes = tuple(extent for _, _, extent in block)
        counts = [b - a for a, b, _ in block]
        operands = []
        for k, x in enumerate(held):
            extents = slice_extents(form.operands[k], sizes)
            index = (*(slice(a, b) for a, b, _ in block), *(slice(0, n) for n in extents))
            operands.append(x[index].reshape(math.prod(counts), *extents))
        starts = np.meshgrid(
            *[s.lo[a:b] for s, (a, b, _) in zip(group.plan.splits, block, strict=True)], indexing="ij"
        )
        origins = jnp.asarray(
            np.stack([s.reshape(-1) for s in starts], axis=1) if starts else np.zeros((1, 0)), jnp.int32
        )

        def vertex(origin: jax.Array, *slices: jax.Array) -> tuple[jax.Array, ...]:
            cell = Cell(form, sizes, tuple(origin[d] for d in range(len(sizes))), (None,) * len(sizes))
            return group.codelet.compute(cell, *slices)

        results = self.arithmetic_of(jax.vmap(vertex), ["int32", *self.operand_dtypes(group)])(
            origins, *operands
        )
        return (
            [r.reshape(*counts, *r.shape[1:]) for r in results]
            if grid
            else [r.reshape(r.shape[1:]) for r in results]
        )

    def _result_parts(self, group: VertexGroup, i: int, x: jax.Array) -> jax.Array:
        """Bring ``[*grid, *part]`` to the result's parts, as words in tile order."""
        layout = self.executable.variables[group.results[i]].layout
        rank = len(group.plan.grid)
        leading = [*group.plan.split_reductions(group.form), *group.form.results[i].dims]
        rest = [d for d in range(rank) if d not in leading]
        x = x.transpose([*rest, *leading, *range(rank, x.ndim)]).reshape(*layout.grid, -1)
        return memory.of_layout(layout).arrange(memory.as_words(x))


@partial(jax.jit, donate_argnums=0, keep_unused=True)
def _poison(state: jax.Array) -> jax.Array:
    return jnp.full_like(state, memory.POISON)


def _chunks(items: Sequence[Any], size: int) -> list[tuple[Any, ...]]:
    return [tuple(items[i : i + size]) for i in range(0, len(items), max(1, size))]
