"""The literal and vertex engines: the machine's memory and exchange, word by word.

One array ``[tiles, words]`` on the host holds every tile's memory at the allocated addresses. An exchange reads
parts where the source lives and writes slices where the vertices read them. The literal engine then assembles
operands from the tiles' own memory, checks that copies agree word for word, runs the whole-array form and
stores every part; the vertex engine runs the codelet cell by cell. Only codelets are compiled.
"""

from __future__ import annotations

import bisect
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from tiles._jax_compat import Datum, Function, device_put
from tiles.codelets.cells import extent_classes, slice_extents
from tiles.compiler import (
    AbortStep,
    BetweenStep,
    CopyStep,
    ErrorStep,
    Executable,
    ExecuteStep,
    IndexStep,
    PrintStep,
    RemoteStep,
    StreamStep,
    SyncStep,
    UndefStep,
    VariableCopy,
    VertexGroup,
)
from tiles.compiler.control import Composite, Node, Part, Path, Repeat, Switch, While, decided_parts, steps_of
from tiles.compiler.control_flow import count_steps
from tiles.engine.fast import as_trips, record_run
from tiles.engine.interface import (
    FLOAT,
    MachineEngine,
    aborted,
    check_inputs,
    check_streams,
    differing,
    expecting_equal,
    out_of_items,
    unequal,
)
from tiles.engine.memory import POISON, Stored, TileMemory, Workspace
from tiles.engine.operands import StoredOperand
from tiles.engine.supersteps import Agreement, Collected, Exchange
from tiles.engine.trace import Print, Trace
from tiles.engine.vertices import cell_function, whole_function
from tiles.errors import InvalidArguments, InvalidExecutable
from tiles.graph import Collective, Layout, Replicas
from tiles.numerics.dtypes import WORD_BYTES, to_jax
from tiles.numerics.ring import to_ring
from tiles.plan import operand_slices
from tiles.platforms import on_cpu


def _resident_bytes() -> int:
    """Return how much of the host's memory those of replicas may take where nobody says: half of it."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


@dataclass
class _Run:
    """What one call of ``LiteralEngine.run`` owns of one replica; nothing outlives the call but its memory and its rows.

    Args:
      replica: its number.
      memory: the tiles' words.
      given: items of streams from the host, and those that are still to come, by stream.
      sent: items of streams to the host so far, by stream.
      rows: of remote buffers, by name.
      recorded: decisions of a run with floats that are still to be repeated, or None.
      trips: of loops and branches so far, by their place in the program.
      printed: what was printed so far.
      holds: the variable that was last written in each storage.
    """

    replica: int
    memory: TileMemory
    given: Mapping[str, tuple[Datum, Iterator[Datum]]]
    sent: Mapping[str, list[np.ndarray]]
    rows: dict[str, np.ndarray]
    recorded: Iterator[int] | None
    trips: dict[Path, Datum]
    printed: list[Print] = field(default_factory=list[Print])
    holds: dict[str, str] = field(default_factory=dict[str, str])


class LiteralEngine(MachineEngine):
    """See the module's text. It has one memory: calls from several threads run one after another.

    Between exchanges replicas run one after another. Where their memories together are more than ``resident_bytes`` they
    lie in files, and the host holds those of one wave of replicas at a time.

    Raises:
      InvalidArguments: no room for those files, or less than a byte.
    """

    name = "literal"

    def __init__(
        self, executable: Executable, arithmetic: str = FLOAT, resident_bytes: int | None = None
    ) -> None:
        """Prepare; codelets compile when their step first runs."""
        super().__init__(executable, arithmetic)
        if resident_bytes is not None and resident_bytes < 1:
            raise InvalidArguments(f"replicas cannot share {resident_bytes} B", expected="1 or more")
        self._resident_bytes = resident_bytes
        spans = executable.data_spans or ((0, 0),)
        self._firsts = [first for first, _ in spans]
        sizes = [-(-(end - first) // WORD_BYTES) for first, end in spans]
        self._begins = list(itertools.accumulate(sizes, initial=0))
        self.words = max(1, self._begins[-1])
        self._memory: list[TileMemory] | None = None
        self._wave = executable.replicas.count
        self._sources: dict[int, list[np.ndarray]] = {}
        self._meeting: dict[int, bool] = {}
        self._operands: dict[int, list[list[StoredOperand]]] = {}
        self._functions: dict[int | tuple[int, tuple[int, ...]], Function] = {}

    def run(
        self, *inputs: Datum, streams: Mapping[str, Datum] | None = None
    ) -> tuple[list[jax.Array], Trace]:
        """Run once; see ``Engine.run``.

        Raises:
          InvalidExecutable: copies of an operand differ between tiles.
        """
        exe = self.executable
        check_inputs(exe, inputs)
        items = check_streams(exe, streams)
        with self._one_at_a_time, jax.enable_x64(True):
            with on_cpu():  # memory is the host's, and steps are many and small
                runs, floats = self._run_on(inputs, items)
            outputs = [device_put(self._output(name, runs)) for name in exe.outputs]
            self._memory = [run.memory for run in runs]
            self._keep_rows(runs[0].rows, floats)
        trips = {path: _most([run.trips[path] for run in runs]) for path in runs[0].trips}
        sent = {name: self._stacked(name, items) for name, items in runs[0].sent.items()}
        counts = count_steps(exe, trips)
        return outputs, Trace(counts, self.name, self.arithmetic, trips, sent, tuple(runs[0].printed))

    def _run_on(
        self, inputs: tuple[Datum, ...], items: Mapping[str, Datum]
    ) -> tuple[list[_Run], dict[str, Datum] | None]:
        """Return the runs of all replicas on inputs and items, and what a float run before left in remote buffers."""
        exe, recorded, floats = self.executable, None, self.remote_floats
        if floats is not None:
            decisions, floats = record_run(exe, *inputs, streams=items, remote=floats)
            recorded = iter(np.asarray(decisions))
        runs = self._begun(items, recorded)
        each, constants = set(differing(exe)), [v for v in exe.variables.values() if v.value is not None]
        for run in self._one_by_one(runs):
            for i, (name, value) in enumerate(zip(exe.inputs, inputs, strict=True)):
                own = value[run.replica] if i in each else value
                self._keep(name, run, np.asarray(self.entered(name, own)))
            for v in constants:
                self._keep(v.name, run, np.asarray(self.entered(v.name, v.value)))
        self._run(exe.program, (), runs)
        return runs, floats

    def _output(self, name: str, runs: list[_Run]) -> np.ndarray:
        """Return an output, of replicas ``[replicas, *shape]``."""
        values = [self._read(name, run.memory) for run in self._one_by_one(runs)]
        return np.stack(values) if self.executable.replicas.axes else values[0]

    def _begun(self, items: Mapping[str, Datum], recorded: Iterator[int] | None) -> list[_Run]:
        """Return for every replica a run that has done nothing yet. The engine has no memory until they give it back."""
        exe = self.executable
        memories, self._memory = self._prepared(), None
        return [
            _Run(
                replica=replica,
                memory=memory,
                given={name: (given, iter(given)) for name, given in items.items()},
                sent={name: [] for name, stream in exe.streams.items() if stream.to_host},
                rows={name: np.array(rows) for name, rows in self.remote.items()},
                recorded=recorded,
                trips={
                    path: 0 if isinstance(part, While) else [0] * len(part.branches)
                    for path, part in decided_parts(exe.program)
                },
            )
            for replica, memory in enumerate(memories)
        ]

    def _prepared(self) -> list[TileMemory]:
        """Return the memory of the last run that ended well, or one in which nobody has written, for every replica.

        Without decisions every run reads and writes the same words in the same order, so what a run reads unwritten the
        first one has read as poison; poison before every run took 8 % of an MLP step's processor time. Where loops or
        branches depend on data, every run begins with poison.
        """
        exe, memories = self.executable, self._memory
        if memories is None:
            count, size = exe.replicas.count, exe.target.num_tiles * self.words * WORD_BYTES
            resident = _resident_bytes() if self._resident_bytes is None else self._resident_bytes
            in_files = count > 1 and count * size > resident
            self._wave = max(1, resident // size) if in_files else count
            workspace = Workspace()
            memories = [
                TileMemory(exe.target.num_tiles, self.words, workspace, in_files) for _ in range(count)
            ]
        if self._memory is None or list(decided_parts(exe.program)):
            for number, memory in enumerate(memories):
                memory.poison()
                self._leave(memories, number)
        return memories

    def _leave(self, memories: Sequence[TileMemory], number: int) -> None:
        """Forget the memories of a wave of replicas after the last one of it."""
        if self._wave < len(memories) and ((number + 1) % self._wave == 0 or number + 1 == len(memories)):
            for memory in memories[number // self._wave * self._wave : number + 1]:
                memory.forget()

    def _one_by_one(self, runs: Sequence[_Run]) -> Iterator[_Run]:
        """Yield replicas one after another, and forget the memories of every wave when it is through."""
        for number, run in enumerate(runs):
            yield run
            self._leave([each.memory for each in runs], number)

    def _stacked(self, name: str, items: list[np.ndarray]) -> np.ndarray:
        stream = self.executable.streams[name]
        empty = np.zeros((0, *stream.shape), self.stored_dtype(stream.dtype))
        return np.stack(items) if items else empty

    # ---- control

    def _run(self, part: Part, path: Path, runs: list[_Run]) -> None:
        """Run a part of the program on some replicas, and count the trips of loops and branches in it."""
        match part:
            case int():
                self._step(part, runs)
            case While():
                self._while(part, path, runs)
            case Switch():
                self._switch(part, path, runs)
            case Composite():
                self._run_parts(part, path, runs)
                for whole in expecting_equal(self.executable, part):
                    self._require_equal(whole, runs)
            case _:
                for _ in range(part.count if isinstance(part, Repeat) else 1):
                    self._run_parts(part, path, runs)

    def _run_parts(self, part: Node, path: Path, runs: list[_Run]) -> None:
        """Run the parts of a node: those between exchanges with others by one replica after another."""
        numbered = enumerate(part.parts)
        for meet, several in itertools.groupby(numbered, lambda numbered: self._is_meeting(numbered[1])):
            together = list(several)
            groups = [runs] if meet or len(runs) == 1 else ([run] for run in self._one_by_one(runs))
            for group in groups:
                for position, inner in together:
                    self._run(inner, (*path, position), group)

    def _is_meeting(self, part: Part) -> bool:
        """Return whether replicas exchange or compare anything in a part."""
        steps = self.executable.steps
        if isinstance(part, int):
            return isinstance(steps[part], BetweenStep)
        if id(part) not in self._meeting:
            sends = any(isinstance(steps[number], BetweenStep) for number in steps_of(part))
            self._meeting[id(part)] = sends or bool(expecting_equal(self.executable, part))
        return self._meeting[id(part)]

    def _require_equal(self, whole: VertexGroup, runs: list[_Run]) -> None:
        """Raise InvalidExecutable where members of a group hold different words of what the program says is equal on all."""
        assert isinstance(whole.codelet, Collective)
        firsts, words = self.executable.replicas.firsts(whole.codelet.axes), dict[int, bytes]()
        for run in self._one_by_one(runs):
            own = self._read(whole.results[0], run.memory).tobytes()
            if words.setdefault(int(firsts[run.replica]), own) != own:
                raise unequal(self.executable, whole, run.replica)

    def _while(self, loop: While, path: Path, runs: list[_Run]) -> None:
        """Run a loop until no replica goes on; those that have left it wait."""
        self._run(loop.condition, (*path, 0), runs)
        while runs := [run for run in runs if bool(self._decide(loop.predicate, run)) is loop.goes_on]:
            for run in runs:
                run.trips[path] += 1
            self._run(loop.body, (*path, 1), runs)
            self._run(loop.condition, (*path, 0), runs)

    def _switch(self, switch: Switch, path: Path, runs: list[_Run]) -> None:
        """Run every branch on the replicas that take it."""
        last = len(switch.branches) - 1
        found = [self._decide(switch.index, run) for run in runs]
        taken = [index if 0 <= index <= last else last for index in found]
        for index in sorted(set(taken)):
            chosen = [run for run, own in zip(runs, taken, strict=True) if own == index]
            for run in chosen:
                run.trips[path][index] += 1
            self._run(switch.branches[index], (*path, index), chosen)

    def _decide(self, name: str, run: _Run) -> int:
        """Return a predicate or the number of a branch: as computed, or as the float run decided."""
        if run.recorded is not None:
            return int(next(run.recorded))
        return int(self._read(name, run.memory).reshape(()))

    # ---- steps: everything is read before anything is written

    def _step(self, number: int, runs: list[_Run]) -> None:
        """Run one step on some replicas."""
        step = self.executable.steps[number]
        if isinstance(step, BetweenStep):
            self._between(number, step, runs)
            return
        for run in self._one_by_one(runs) if len(runs) > 1 else runs:
            self._step_alone(number, run)

    def _between(self, number: int, step: BetweenStep, runs: list[_Run]) -> None:
        """Move words between the memories of replicas; whole groups take part.

        Raises:
          InvalidExecutable: a replica waits for one that does not take part, or is in another stage.
        """
        replicas = self.executable.replicas
        if number not in self._sources:
            self._sources[number] = [_sources(replicas.destinations(step.axes, p)) for p in step.permutations]
        present = np.zeros(replicas.count, bool)
        present[[run.replica for run in runs]] = True
        if not _are_groups(replicas, step.axes, present):
            raise InvalidExecutable(
                f"step {step.name}: replicas {np.flatnonzero(present).tolist()} wait for others of their groups"
            )
        sources = self._sources[number]
        if step.stage:
            stages = {int(self._read(step.stage, run.memory).reshape(())) for run in runs}
            if len(stages) > 1:
                raise InvalidExecutable(f"step {step.name}: replicas are in stages {sorted(stages)} at once")
            sources = [sources[min(stages.pop(), len(sources) - 1)]]
        sent: dict[int, np.ndarray] = {}
        by_replica = {run.replica: run for run in runs}
        for run in self._one_by_one(runs):  # what is sent stays where it lies: it is another variable
            arrived = np.zeros(
                self.executable.variables[step.source].shape,
                self.stored_dtype(self.executable.variables[step.source].dtype),
            )
            rows = len(arrived) // len(sources) if len(sources) > 1 else 0
            for k, comes_from in enumerate(sources):
                source = int(comes_from[run.replica])
                where = slice(k * rows, (k + 1) * rows) if rows else ...
                if source < 0:
                    continue
                if source not in sent:
                    if self._wave < replicas.count:
                        sent.clear()
                    sent[source] = self._read(step.source, by_replica[source].memory)
                arrived[where] = sent[source][where]
            self._keep(step.destination, run, arrived)
        for run in runs if self._wave < replicas.count else ():
            run.memory.forget()

    def _step_alone(self, number: int, run: _Run) -> None:
        """Run one step that no other replica takes part in."""
        step = self.executable.steps[number]
        match step:
            case IndexStep():
                place = self.executable.replicas.place(step.axes)[run.replica]
                self._keep(step.variable, run, np.asarray(place, np.uint32))
            case ExecuteStep():
                self._execute(number, step, run)
            case CopyStep():
                for copy, value in [(copy, self._copied(copy, run.memory)) for copy in step.copies]:
                    self._keep(copy.destination, run, value)
            case StreamStep():
                self._stream(step, run)
            case RemoteStep():
                self._remote(step, run)
            case AbortStep():
                if self._decide(step.predicate, run):
                    raise aborted(step, None, run.printed)
            case ErrorStep():
                raise aborted(step, self._read(step.variable, run.memory), run.printed)
            case PrintStep():
                value = self._read(step.variable, run.memory)
                run.printed.append(Print(step.title, value, step.message, step.part))
                self.show(run.printed, first=len(run.printed) - 1)
            case UndefStep():
                self._undefine(number, step.variable, run)
            case SyncStep() | BetweenStep():
                pass

    def _undefine(self, number: int, name: str, run: _Run) -> None:
        """Poison a variable's elements, unless their memory holds something else by now."""
        variable = self.executable.variables[name]
        buffer = self.executable.buffers[variable.storage]
        if run.holds.get(variable.storage) == name and buffer.start <= number <= buffer.end:
            value = np.empty(variable.shape, self.stored_dtype(variable.dtype))
            pattern = np.frombuffer(np.uint32(POISON).tobytes(), np.uint8)
            self._keep(name, run, np.resize(pattern, value.nbytes).view(value.dtype).reshape(value.shape))

    def _remote(self, step: RemoteStep, run: _Run) -> None:
        """Copy rows of a remote buffer; of equal ones that are written the last stays."""
        rows = run.rows[step.buffer]
        given = self._read(step.rows, run.memory) if step.rows else np.zeros((), np.int32)
        places = np.clip(given.astype(np.int64), 0, rows.shape[0] - 1)
        if not step.to_remote:
            self._keep(step.variable, run, rows[places])
            return
        value = self._read(step.variable, run.memory).reshape((places.size, *rows.shape[1:]))
        last = {int(place): k for k, place in enumerate(places.reshape(-1))}
        rows[list(last)] = value[list(last.values())]

    def _execute(self, number: int, step: ExecuteStep, run: _Run) -> None:
        """Run a superstep: its groups exchange together, those of a stage compute and store together."""
        self._exchange(number, run.memory)
        first = 0
        for groups in step.stages:
            self._stage(number, slice(first, first + len(groups)), groups, run)
            first += len(groups)

    def _stage(self, number: int, which: slice, groups: Sequence[VertexGroup], run: _Run) -> None:
        """Run groups of which none reads in place what another one of them writes."""
        operands = self._operands_of(number, which, run.memory)
        results = [self._vertices(group, read) for group, read in zip(groups, operands, strict=True)]
        self._require_agreement(number, which, run.memory)  # beside the computation
        results = [[np.asarray(x) for x in arrays] for arrays in results]
        for group, arrays in zip(groups, results, strict=True):
            for i, x in enumerate(arrays):
                self._store_result(group, i, run, x)

    def _stream(self, step: StreamStep, run: _Run) -> None:
        """Exchange one item with the host."""
        if step.to_host:
            run.sent[step.stream].append(self._read(step.variable, run.memory))
            return
        items, following = run.given[step.stream]
        item = next(following, None)
        if item is None:
            raise out_of_items(self.executable.streams[step.stream], len(items))
        self._keep(step.variable, run, np.asarray(self.enter(step.variable, item)))

    def _copied(self, step: VariableCopy, state: TileMemory) -> np.ndarray:
        sources = [self._read(name, state) for name in step.sources]
        if step.axis is not None:
            return np.concatenate(sources, axis=step.axis)
        return sources[0].reshape(self.executable.variables[step.destination].shape)

    def _exchange(self, number: int, state: TileMemory) -> None:
        """Write every slice that is not in place to its buffer on every cell's tile, read where its source lies."""
        state.kept(("exchange", number), lambda: Exchange(state, self._all_stored(number))).run()

    def _operands_of(self, number: int, which: slice, state: TileMemory) -> list[list[np.ndarray]]:
        """Return the operands of some groups of a step, put together from the tiles' own memory."""
        key = ("operands", number, which.start)
        return state.kept(key, lambda: Collected(state, self._stored(number)[which])).read()

    def _require_agreement(self, number: int, which: slice, state: TileMemory) -> None:
        """Raise InvalidExecutable if copies of an operand differ."""
        key = ("agreement", number, which.start)
        names = state.kept(key, lambda: Agreement(state, self._all_stored(number, which))).differing()
        if names:
            step = self.executable.steps[number]
            raise InvalidExecutable(f"step {step.name}: copies of {', '.join(names)} differ between tiles")

    # ---- variables

    def _word(self, address: int) -> int:
        """Return where an address lies in the engine's memory, which has no words where the executable has no data."""
        span = max(bisect.bisect_right(self._firsts, address) - 1, 0)
        return self._begins[span] + (address - self._firsts[span]) // WORD_BYTES

    def _tensor(self, name: str, state: TileMemory) -> Stored:
        """Return where a variable lives."""

        def found() -> Stored:
            v = self.executable.variables[name]
            return state.tensor(
                v.layout, self._word(self.executable.address(name)), self.stored_dtype_name(v.dtype)
            )

        return state.kept(name, found)

    def _read(self, name: str, state: TileMemory) -> np.ndarray:
        """Return a variable, in an array of its own."""
        return self._tensor(name, state).read()

    def _keep(self, name: str, run: _Run, value: np.ndarray) -> None:
        """Write a variable's parts where they live."""
        run.holds[self.executable.variables[name].storage] = name
        self._tensor(name, run.memory).write(value)

    # ---- operands

    def _stored(self, number: int) -> list[list[StoredOperand]]:
        """Return the operands of every group of a step, derived once."""
        if number not in self._operands:
            step = self.executable.steps[number]
            assert isinstance(step, ExecuteStep)
            groups = step.groups
            self._operands[number] = [[self._derived(g, k) for k in range(len(g.operands))] for g in groups]
        return self._operands[number]

    def _all_stored(self, number: int, which: slice = slice(None)) -> list[StoredOperand]:
        return list(itertools.chain.from_iterable(self._stored(number)[which]))

    def _derived(self, group: VertexGroup, k: int) -> StoredOperand:
        operand, index_map, exe = group.operands[k], group.form.operands[k], self.executable
        variable = exe.variables[operand.variable]
        address = exe.buffers[operand.buffer].address if operand.buffer else exe.address(operand.variable)
        fill = None
        if index_map.fill is not None:
            fill = np.asarray(index_map.fill, to_jax(variable.dtype))
            fill = fill if self.arithmetic == FLOAT else np.asarray(to_ring(fill))
        return StoredOperand(
            variable=operand.variable,
            layout=variable.layout,
            source=self._word(exe.address(operand.variable)),
            is_received=bool(operand.buffer),
            splits=group.plan.splits,
            base=group.plan.base,
            slices=operand_slices(group.form, group.plan, k, variable.shape),
            word=self._word(address),
            dtype=self.stored_dtype_name(variable.dtype),
            fill=fill,
        )

    # ---- vertices

    def _vertices(self, group: VertexGroup, operands: list[np.ndarray]) -> list[Datum]:
        """Return the results of a group, whole, from what ``_operands_of`` gave."""
        key = id(group)
        if key not in self._functions:
            dtypes = tuple(self.operand_dtypes(group))
            self._functions[key] = whole_function(group, dtypes, self.arithmetic, self.value_bytes)
        return list(self._functions[key](*operands))

    def _store_result(self, group: VertexGroup, i: int, run: _Run, result: np.ndarray) -> None:
        """Write a group's result, as ``_vertices`` gave it, where its parts live."""
        self._keep(group.results[i], run, result)


class VertexEngine(LiteralEngine):
    """The same memory; codelets run one vertex at a time, vectorized over the vertices of equal extents."""

    name = "vertex"

    def _vertices(self, group: VertexGroup, operands: list[np.ndarray]) -> list[Datum]:
        """Return the parts of every result, ``[*layout's grid, *part]``."""
        grid = group.plan.grid
        variables = self.executable.variables
        out = [
            np.zeros((*grid, *self._part_extents(group, i)), self.stored_dtype(variables[name].dtype))
            for i, name in enumerate(group.results)
        ]
        for block in itertools.product(*map(extent_classes, group.plan.splits)):
            cells = tuple(slice(a, b) for a, b, _ in block)
            for parts, x in zip(out, self._block(group, block, operands), strict=True):
                parts[(*cells, *(slice(0, n) for n in x.shape[len(grid) :]))] = x
        return [self._result_parts(group, i, x) for i, x in enumerate(out)]

    def _operands_of(self, number: int, which: slice, state: TileMemory) -> list[list[np.ndarray]]:
        """Return what every cell finds on its own tile for the operands of some groups: ``[*grid, *extents]``."""
        return [
            [self._found_cells(held, (number, group, k), state) for k, held in enumerate(operands)]
            for group, operands in enumerate(self._stored(number)[which], which.start)
        ]

    def _found_cells(self, held: StoredOperand, key: tuple[int, int, int], state: TileMemory) -> np.ndarray:
        return state.kept(key, lambda: held.cells(state)).read()

    def _require_agreement(self, number: int, which: slice, state: TileMemory) -> None:
        """Accept any copies: every vertex computes with its own, so differing ones differ in results."""

    def _store_result(self, group: VertexGroup, i: int, run: _Run, result: np.ndarray) -> None:
        name = group.results[i]
        layout, memory = self.executable.variables[name].layout, run.memory
        run.holds[self.executable.variables[name].storage] = name
        parts = memory.kept(("parts", name), lambda: self._parts(name, layout, memory))
        parts.write(result)

    def _parts(self, name: str, layout: Layout, state: TileMemory) -> Stored:
        """Return a variable's parts, the short ones as long as others, as a tensor ``[*grid, *part]``."""
        word = self._word(self.executable.address(name))
        return state.parts(layout, word, self.stored_dtype_name(self.executable.variables[name].dtype))

    @staticmethod
    def _part_extents(group: VertexGroup, i: int) -> tuple[int, ...]:
        return tuple(
            min(group.plan.splits[d].grain, max(group.plan.splits[d].size, 0))
            for d in group.form.results[i].dims
        )

    def _block(
        self, group: VertexGroup, block: tuple[tuple[int, int, int], ...], held: list[np.ndarray]
    ) -> list[np.ndarray]:
        """Run the vertices of one block of the grid, all of equal extents; results ``[*block, *part]``."""
        form = group.form
        sizes = tuple(extent for _, _, extent in block)
        counts = [b - a for a, b, _ in block]
        operands: list[np.ndarray] = []
        for k, x in enumerate(held):
            extents = slice_extents(form.operands[k], sizes)
            index = (*(slice(a, b) for a, b, _ in block), *(slice(0, n) for n in extents))
            operands.append(x[(*index, ...)].reshape(math.prod(counts), *extents))
        starts = np.meshgrid(
            *[s.lo[a:b] for s, (a, b, _) in zip(group.plan.splits, block, strict=True)], indexing="ij"
        )
        origins = np.stack([s.reshape(-1) for s in starts], axis=1) if starts else np.zeros((1, 0))
        first = tuple(a for a, _, _ in block)
        results = self._computed(group, first, sizes, origins.astype(np.int32), operands)
        return [np.asarray(r).reshape((*counts, *r.shape[1:])) for r in results]

    def _computed(
        self,
        group: VertexGroup,
        first: tuple[int, ...],
        sizes: tuple[int, ...],
        origins: np.ndarray,
        operands: list[np.ndarray],
    ) -> Sequence[Datum]:
        """Return the results of cells of equal extents, ``[cells, *extents]`` each; ``first`` is the first one's place."""
        del first
        key = id(group), sizes
        if key not in self._functions:
            dtypes = tuple(self.operand_dtypes(group))
            self._functions[key] = cell_function(group, sizes, dtypes, self.arithmetic, self.value_bytes)
        return self._functions[key](origins, *operands)

    def _result_parts(self, group: VertexGroup, i: int, x: np.ndarray) -> np.ndarray:
        """Bring ``[*grid, *part]`` to the result's parts, ``[*layout's grid, *part]``."""
        layout = self.executable.variables[group.results[i]].layout
        rank = len(group.plan.grid)
        leading = [*group.plan.split_reductions(group.form), *group.form.results[i].dims]
        rest = [d for d in range(rank) if d not in leading]
        return x.transpose([*rest, *leading, *range(rank, x.ndim)]).reshape(
            (*layout.grid, *layout.part_shape)
        )


def _sources(destinations: np.ndarray) -> np.ndarray:
    """Return which replica sends to each, -1 for none, given where each sends; int64 ``[replicas]`` both."""
    found = np.full(destinations.shape, -1, np.int64)
    sends = np.flatnonzero(destinations >= 0)
    found[destinations[sends]] = sends
    return found


def _are_groups(replicas: Replicas, axes: tuple[str, ...], present: np.ndarray) -> bool:
    """Whether of every group along some axes all replicas are there or none; ``present`` is bool ``[replicas]``."""
    sizes = [size for _, size in replicas.axes]
    inner = tuple(replicas.leading(axes)[: len(axes)])
    there = present.reshape(sizes)
    return bool((there.all(axis=inner) == there.any(axis=inner)).all())


def _most(trips: list[Datum]) -> Datum:
    """Return the trips of a loop, or of every branch: of replicas, the most that any of them made."""
    return as_trips(np.max(np.array(trips), axis=0).tolist())
