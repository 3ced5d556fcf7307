"""The fast engine: logical arrays, every compute set in its whole-array form, one traceable function.

What parallel splits and exchange do not change is not emulated; split reductions are kept as partials,
or added part by part, so sums round as the plan says. Loops and branches are those of every traced engine.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tiles._jax_compat import Datum, DTypeLike, Function, jit, optimization_barrier, with_sharding_constraint
from tiles.cached import cached_property
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
from tiles.compiler.control import Call, Composite, Part, Path, Repeat, Sequence, While, nodes_of, steps_of
from tiles.compiler.control_flow import count_steps, items_needed, may_halt, written_in
from tiles.compiler.steps import StepRecord
from tiles.compiler.wellformed import root_of
from tiles.compiler.wellformed_steps import read_by
from tiles.engine.compilation import WORTH_KEEPING, apart, computed_first, emitted_quickly, quickly
from tiles.engine.interface import (
    FLOAT,
    RING,
    check_inputs,
    check_streams,
    differing,
    expecting_equal,
    unequal,
    unequal_name,
)
from tiles.engine.replicated import REPLICA, compared, few_at_once, moved, over_replicas, replica_index
from tiles.engine.streams import (
    Capacity,
    Streams,
    collect,
    halting_error,
    in_order,
    initial_capacity,
    prints_of,
    remote_rows,
    sent_by,
)
from tiles.engine.trace import Print, Trace
from tiles.engine.traced import Env, State, TracedEngine
from tiles.engine.whole import (
    BLOCK_BYTES,
    is_laid_out,
    lay_out,
    partials_bytes,
    read_by_all_blocks,
    summed,
    unsplit,
    whole,
)
from tiles.errors import InvalidArguments, ProgramAborted, Unsupported
from tiles.files import is_list
from tiles.graph import Collective, Extents, along, identity_map
from tiles.numerics.decisions import Decisions, Recording, Replay, record
from tiles.numerics.dtypes import is_narrow_float, to_jax
from tiles.numerics.total_order import concatenated
from tiles.platforms import where_arrays_are

COMPUTING = (ExecuteStep, CopyStep, UndefStep, SyncStep)
"""Steps that neither ask which replica they run on nor exchange values with others or the host."""
WORTH_ADDING = 1 << 15
"""Elements of one partial of a contraction, on all replicas, from which on partials are added block by block."""
REPEATED_CYCLES = 64
"""Cycles of a tile per element from which on a value that several steps read is computed once (a tangent: 30)."""


class FastEngine(TracedEngine):
    """See the module's text. ``strict=False`` lets XLA fuse partials with their combination, and takes contractions whole.

    Replicas are spread over ``devices``, as many on each, where any are given: what differs between replicas is there
    alone, and XLA moves what collectives bring. Their order of additions stays; a product of matrices may be rounded as
    XLA rounds one of another size. In the ring every bit is that of one device.
    """

    name = "fast"
    is_traceable = True
    spreads_replicas = True

    def __init__(
        self,
        executable: Executable,
        arithmetic: str = FLOAT,
        strict: bool = True,
        devices: Seq[object] = (),
    ) -> None:
        """Prepare the jitted function; it compiles at the first run.

        Raises:
          InvalidArguments: devices that do not divide the replicas, or one twice.
        """
        super().__init__(executable, arithmetic)
        self.strict = strict
        self._spread = None
        if devices:
            if executable.replicas.count % len(devices) or len(set(devices)) != len(devices):
                raise InvalidArguments(
                    f"{executable.replicas.count} replicas cannot be spread evenly over {len(devices)} devices",
                    expected="different devices, in a number that divides the replicas",
                )
            self._spread = NamedSharding(Mesh(np.array(devices), ("devices",)), PartitionSpec("devices"))
        options = self.compiler_options
        self._jitted: Function = jit(self._called, compiler_options=options, static_argnames="capacity")
        self._replayed: Function = jit(
            self._call_replaying, compiler_options=options, static_argnames="capacity"
        )
        self._recording: Function = jit(self._call_recording, static_argnums=0, compiler_options=options)

    @property
    def compiler_options(self) -> dict[str, bool | int] | None:
        """XLA's: a program in the ring is run to be compared, seldom more than once."""
        if self.arithmetic == RING:
            return quickly(self.value_bytes, rounds=False)
        return None if self._has_narrow_floats or self._pads_in_loops else emitted_quickly()

    @cached_property
    def _has_narrow_floats(self) -> bool:
        dtypes = {variable.dtype for variable in self.executable.variables.values()}
        return any(is_narrow_float(to_jax(dtype)) for dtype in dtypes)

    @cached_property
    def _pads_in_loops(self) -> bool:
        """Whether a loop's body joins arrays, or reads beyond the ends of one."""
        exe = self.executable
        loops = (node for node in nodes_of(exe.program) if isinstance(node, (Repeat, While)))
        return any(_pads(exe.steps[number]) for loop in loops for number in steps_of(loop))

    def run(
        self, *inputs: Datum, streams: Mapping[str, Datum] | None = None
    ) -> tuple[list[jax.Array], Trace]:
        """Run once; see ``Engine.run``."""
        exe = self.executable
        check_inputs(exe, inputs)
        given = check_streams(exe, streams)
        with (
            where_arrays_are(inputs),
            self._one_at_a_time if exe.remote_buffers else contextlib.nullcontext(),
        ):
            return self._run_once(inputs, given)

    def _run_once(
        self, inputs: tuple[Datum, ...], given: Mapping[str, Datum]
    ) -> tuple[list[jax.Array], Trace]:
        """Run with inputs and items that were checked."""
        exe = self.executable
        error, floats = partial(halting_error, exe, given), self.remote_floats
        run: Function = self._jitted
        with jax.enable_x64(True):
            items = {name: jnp.asarray(x) for name, x in given.items()}
            if floats is not None:
                recorded, floats = record_run(exe, *inputs, streams=given, remote=floats)
                run = partial(self._replayed, recorded)
            run = partial(run, *inputs, items=items, remote=self.remote)
            prints, capacity = prints_of(exe), initial_capacity(exe)
            try:
                (outputs, trips, unequal_on), received = collect(
                    exe.streams, capacity, lambda capacity: run(capacity=capacity), error, tuple(prints)
                )
            except ProgramAborted as stopped:
                self.show(stopped.prints)
                raise
        for group in expecting_equal(exe, exe.program):
            replicas = np.flatnonzero(np.asarray(unequal_on[group.results[0]]))
            if replicas.size:
                raise unequal(exe, group, int(replicas[0]))
        self._keep_rows(received.remote, floats)
        counted = {path: as_trips(np.asarray(trip).tolist()) for path, trip in trips.items()}
        counts, shown = count_steps(exe, counted), in_order(prints, received)
        self.show(shown)
        return list(outputs), Trace(counts, self.name, self.arithmetic, counted, received.streams, shown)

    def trace(self, *inputs: Datum) -> list[jax.Array]:
        """Return the outputs as a JAX-traceable function of the inputs; see ``trace_streams``."""
        return self.trace_streams({}, *inputs)[0]

    def trace_streams(
        self, streams: Mapping[str, Datum], *inputs: Datum
    ) -> tuple[list[jax.Array], dict[str, jax.Array]]:
        """Return outputs, and by name what device-to-host streams received, traceable by JAX.

        Raises:
          Unsupported: a program whose control depends on floats, under ring arithmetic: it runs twice, and
            the host hands the decisions over; or one that moves a number of items that depends on data, that
            may stop itself, or that has remote buffers.
        """
        exe = self.executable
        check_inputs(exe, inputs)
        given, needed = check_streams(exe, streams), items_needed(exe)
        if any(isinstance(step, (AbortStep, ErrorStep)) for step in exe.steps):
            raise Unsupported(
                "a program that may stop itself cannot be part of jax.jit", try_="call run() outside jax.jit"
            )
        if exe.remote_buffers:
            raise Unsupported(
                "a program with remote buffers, which it keeps between runs, cannot be part of jax.jit",
                try_="call run() outside jax.jit",
            )
        if None in needed.values():
            raise Unsupported(
                "a program whose streams move a number of items that depends on data cannot be part of jax.jit",
                try_="call run() outside jax.jit",
            )
        if self.replays:
            raise Unsupported(
                "a program whose control depends on floats cannot be part of an outer jax.jit in the ring",
                try_="call it outside jax.jit",
            )
        with jax.enable_x64(True):
            items = {name: jnp.asarray(x) for name, x in given.items()}
            (outputs, *_), sent = self._called(
                *inputs, items=items, capacity=initial_capacity(exe), remote={}, show=self.show
            )
            return list(outputs), sent_by(exe, sent)

    def record(
        self, *inputs: Datum, streams: Mapping[str, Datum] | None = None, remote: Env
    ) -> tuple[jax.Array, Env]:
        """Run with floats; return the decisions of loops and branches, ``int32[any]``, and rows of remote buffers."""
        after: list[Env] = []

        def run(capacity: int) -> Datum:
            state, rows = self._recording(capacity, *inputs, items=items, remote=remote)
            after.append(rows)
            return state

        with jax.enable_x64(True):
            items = {name: jnp.asarray(x) for name, x in (streams or {}).items()}
            return record(run), after[-1]

    def _call_recording(self, capacity: int, *inputs: Datum, items: Env, remote: Env) -> Datum:
        decisions = Recording(capacity)
        _, left = self._call(*inputs, decisions=decisions, items=items, remote=remote)
        return decisions.state, remote_rows(left)

    def _call_replaying(
        self, recorded: jax.Array, *inputs: Datum, items: Env, capacity: Capacity, remote: Env
    ) -> Datum:
        return self._call(*inputs, decisions=Replay(recorded), items=items, capacity=capacity, remote=remote)

    def _called(
        self,
        *inputs: Datum,
        items: Env,
        capacity: Capacity = (),
        remote: Env,
        show: Callable[[list[Print]], None] | None = None,
    ) -> Datum:
        """Return what ``_call`` does; of replicas, outputs ``[replicas, *shape]`` and the most trips of any."""
        exe = self.executable
        if not exe.replicas.axes:
            return self._call(*inputs, items=items, capacity=capacity, remote=remote, show=show)
        each = differing(exe)

        def one(number: jax.Array, *own: Datum) -> Datum:
            results, _ = self._call(*own, items={}, remote={}, replica=number)
            return results

        in_axes = (0, *(0 if i in each else None for i in range(len(inputs))))
        numbers = jnp.arange(exe.replicas.count, dtype=jnp.int32)
        given = [self._on_devices(x) if i in each else jnp.asarray(x) for i, x in enumerate(inputs)]
        outputs, trips, unequal_on = jax.vmap(one, in_axes=in_axes)(self._on_devices(numbers), *given)
        outputs = tuple(map(self._on_devices, outputs))
        return (outputs, {path: trip.max(axis=0) for path, trip in trips.items()}, unequal_on), {}

    def _on_devices(self, x: Datum) -> jax.Array:
        """Return an array over all replicas, spread over the devices where there are several."""
        x = jnp.asarray(x)
        return x if self._spread is None else with_sharding_constraint(x, self._spread)

    def _call(
        self,
        *inputs: Datum,
        decisions: Decisions | None = None,
        items: Env,
        capacity: Capacity = (),
        remote: Env,
        show: Callable[[list[Print]], None] | None = None,
        replica: jax.Array | None = None,
    ) -> tuple[tuple[tuple[jax.Array, ...], dict[Path, Datum], dict[str, jax.Array]], dict[str, Datum]]:
        """Return what the program gives, and streams.

        Outputs, by path how often every loop's body and branch ran that depends on data, and by name whether a value that
        is to be equal on all replicas was not.
        """
        exe = self.executable
        given = dict(zip(exe.inputs, inputs, strict=True))
        given |= {v.name: v.value for v in exe.variables.values() if v.value is not None}
        env: Env = {name: _unfolded(self.enter(name, value)) for name, value in given.items()}
        if replica is not None:
            env[REPLICA] = replica
        env |= {unequal_name(w.results[0]): jnp.zeros((), bool) for w in expecting_equal(exe, exe.program)}
        entered = {name: self.enter_items(name, x) for name, x in items.items()}
        dtypes = {name: self.stored_dtype(s.dtype) for name, s in exe.streams.items()}
        streams = Streams(exe.streams, may_halt(exe, exe.program), entered, dtypes, capacity)
        streams.add_remote({name: jnp.asarray(rows) for name, rows in remote.items()})
        streams.add_steps(self._read_by(PrintStep), self._read_by(ErrorStep))
        if show is not None and prints_of(exe):
            streams.show_at_once(show)
        state = State(env, {}, decisions or Decisions(), streams)
        self._run(exe.program, (), state)
        compared = [whole.results[0] for whole in expecting_equal(exe, exe.program)]
        unequal_on = {name: env[unequal_name(name)] for name in compared}
        return (tuple(self._read(env, name) for name in exe.outputs), state.trips, unequal_on), streams.state

    def _read_by(self, kind: type[PrintStep | ErrorStep]) -> dict[int, tuple[tuple[int, ...], DTypeLike]]:
        """Return shape and carried dtype of the variable of every step of a kind, by number."""
        exe = self.executable
        read = {n: exe.variables[s.variable] for n, s in enumerate(exe.steps) if isinstance(s, kind)}
        return {number: (v.shape, self.stored_dtype(v.dtype)) for number, v in read.items()}

    def _step(self, number: int, state: State) -> None:
        step, env, streams = self.executable.steps[number], state.env, state.streams
        replicas = self.executable.replicas
        match step:
            case ExecuteStep():
                for group in step.groups:
                    self._vertices(group, env)
            case CopyStep():
                env.update({copy.destination: self._copy(copy, env) for copy in step.copies})
            case BetweenStep():
                send = partial(moved, replicas, step.axes, step.exchanges)
                sent = [self._read(env, name) for name in step.reads]
                (env[step.destination],) = over_replicas(replicas, send, env[REPLICA], *sent)
            case IndexStep():
                env[step.variable] = replica_index(replicas, step.axes, env[REPLICA])
            case StreamStep(to_host=True):
                streams.send(step.stream, self._read(env, step.variable))
            case StreamStep():
                env[step.variable] = streams.take(step.stream)
            case RemoteStep():
                self._remote(step, state)
            case AbortStep():
                stops = state.decisions.take(self._read(env, step.predicate).reshape(()))
                streams.halt(stops, number + 1)
            case ErrorStep():
                streams.stop_with(number, self._read(env, step.variable))
            case PrintStep():
                value = self._read(env, step.variable)
                if not streams.tell(Print(step.title, value, step.message, step.part)):
                    streams.show(number, value)
            case UndefStep() | SyncStep():  # nothing reads what is undefined, as was proved
                pass

    def _computes_only(self, part: Part) -> bool:
        if isinstance(part, int):
            return isinstance(self.executable.steps[part], COMPUTING)
        if isinstance(part, Composite):
            return not isinstance(self.executable.composites[part.number].codelet, Collective)
        return isinstance(part, (Sequence, Call)) and all(map(self._computes_only, part.parts))

    def _composite(self, number: int, state: State) -> None:
        whole = self.executable.composites[number]
        if isinstance(whole.codelet, Collective):
            self._collective(whole, whole.codelet, state.env)
        else:
            self._vertices(whole, state.env)

    def _collective(self, group: VertexGroup, codelet: Collective, env: Env) -> None:
        """Run a collective of all replicas in one piece."""
        replicas = self.executable.replicas
        if codelet.expects_equal:
            function = partial(compared, replicas, codelet.axes)
            x, name = self._read(env, group.operands[0].variable), unequal_name(group.results[0])
            env[group.results[0]], differs = over_replicas(replicas, function, env[REPLICA], x)
            env[name] = env[name] | differs
            return
        function = self.arithmetic_of(partial(codelet.together, replicas), self.operand_dtypes(group))
        operands = [self._read(env, operand.variable) for operand in group.operands]
        if codelet.is_alike and replicas.size(codelet.axes) == replicas.count:
            function = partial(_of_any, function)
        if codelet.combines:
            function = apart(function, replicas.count * sum(x.size for x in operands))
        results = over_replicas(replicas, function, env[REPLICA], *operands)
        env.update(zip(group.results, results, strict=True))

    def _remote(self, step: RemoteStep, state: State) -> None:
        rows = self._read(state.env, step.rows) if step.rows else jnp.zeros((), jnp.int32)
        if step.to_remote:
            state.streams.write_rows(step.buffer, rows, self._read(state.env, step.variable))
        else:
            state.env[step.variable] = state.streams.read_rows(step.buffer, rows)

    def _vertices(self, group: VertexGroup, env: Env) -> None:
        if len(group.operands) == 1 and _sum_name(group.operands[0].variable) in env:
            env[group.results[0]] = env.pop(_sum_name(group.operands[0].variable))
            return
        laid_out = [k for k in range(len(group.operands)) if _laid_out_name(group, k) in env]
        operands = [
            env[_laid_out_name(group, k)] if k in laid_out else self._read(env, o.variable)
            for k, o in enumerate(group.operands)
        ]
        if group.codelet.replaces_elements:
            may_overwrite = group.codelet.may_overwrite
            operands = [x if may_overwrite(k) else computed_first(x) for k, x in enumerate(operands)]
        if group.results[0] in self._added_at_once and not laid_out:
            function = partial(self._summed if self.strict else unsplit, group)
            function = apart(function, math.prod(group.form.shape))
            env[_sum_name(group.results[0])] = function(*operands)
            return
        function = self.arithmetic_of(partial(_whole, group, laid_out), self.operand_dtypes(group))
        if _folds(group):
            function = apart(function, sum(x.size for x in operands))
        elif self._is_repeated_work(group):
            function = apart(function, math.prod(group.form.shape))
        results = function(*operands)
        if self.strict and group.plan.split_reductions(group.form):
            results = optimization_barrier(results)
        env.update(zip(group.results, results, strict=True))

    def _summed(self, group: VertexGroup, *operands: jax.Array) -> jax.Array:
        if self._spread is not None:  # of replicas on several devices some are computed at a time as it is
            return summed(group, *operands, by_blocks=False)
        if self.executable.replicas.count == 1:
            return summed(group, *operands)
        prepare = {k: partial(lay_out, group, k) for k in read_by_all_blocks(group)}

        def function(*operands: jax.Array, prepared: Seq[int] = ()) -> jax.Array:
            return summed(group, *operands, laid_out=prepared)

        return few_at_once(function, partials_bytes(group), BLOCK_BYTES, prepare)(*operands)

    def _is_repeated_work(self, group: VertexGroup) -> bool:
        """Whether XLA would compute much anew for every reader of a group's results, by the machine's own cycles."""
        exe, sizes = self.executable, tuple(np.array([n]) for n in group.form.shape)
        if math.prod(group.form.shape) < WORTH_KEEPING or group.form.reduced:
            return False
        if max(self._readers[root_of(exe, result)] for result in group.results) < 2:
            return False
        dtypes = tuple(exe.variables[result].dtype for result in group.results)
        extents = Extents(group.form, sizes, tuple(self.operand_dtypes(group)), dtypes)
        cycles = float(np.max(group.codelet.cycles(extents, exe.target).value))
        return cycles > REPEATED_CYCLES * math.prod(group.form.shape)

    @cached_property
    def _added_at_once(self) -> frozenset[str]:
        """Partials of contractions that nothing reads but a sum of all, further on in the same sequence of steps.

        In float32 adding a block's after they are computed gives the order of the vertex that adds them up, and takes a cache's
        memory for them: 16 replicas of a transformer's block of 256 x 128 take half of the time. Where the plan's order need not
        be kept, they are computed as one.
        """
        exe = self.executable
        if self.arithmetic == RING:
            return frozenset()
        found: set[str] = set()
        for node in nodes_of(exe.program):
            open_ones: dict[str, VertexGroup] = {}
            for part in node.parts if isinstance(node, Sequence) else ():
                step = exe.steps[part] if isinstance(part, int) else None
                if not isinstance(step, ExecuteStep):
                    open_ones = {} if step is None else open_ones
                    continue
                for group in step.groups:
                    name = group.operands[0].variable if len(group.operands) == 1 else ""
                    if name in open_ones and _sums_leading(group, math.prod(exe.variables[name].shape[1:])):
                        found.add(name)
                    if self._may_be_added(group):
                        open_ones[group.results[0]] = group
        return frozenset(found)

    def _may_be_added(self, group: VertexGroup) -> bool:
        exe, name = self.executable, group.results[0]
        v = exe.variables[name]
        return (
            group.codelet.is_contraction
            and len(group.results) == 1
            and len(group.plan.split_reductions(group.form)) == 1
            and v.dtype == "float32"
            and (not self.strict or math.prod(v.shape[1:]) * exe.replicas.count >= WORTH_ADDING)
            and self._readers[root_of(exe, name)] == 1
            and root_of(exe, name) == name
            and name not in {root_of(exe, output) for output in exe.outputs}
        )

    @cached_property
    def _readers(self) -> Counter[str]:
        """How many steps, or groups of vertices of a step, read each variable that is no view."""
        exe, found = self.executable, Counter[str]()
        for step in exe.steps:
            several = [read_by(step)]
            if isinstance(step, ExecuteStep):
                several = [tuple(o.variable for o in group.operands) for group in step.groups]
            for names in several:
                found.update({root_of(exe, name) for name in names})
        return found

    def _before(self, loop: Repeat | While, env: Env) -> Env:
        """Return what contractions of a loop read that it does not change, cut into parts once and for all trips.

        XLA hoists no layout out of a loop: 23 products of a matrix with a vector take 0.48 ms instead of 0.15.
        """
        written, numbers = written_in(self.executable, loop), set(steps_of(loop))
        groups = [group for number, group in self.executable.groups() if number in numbers]
        found: Env = {}
        for group in groups:
            if not group.codelet.is_contraction or not is_laid_out(group):
                continue
            for k, dtype in enumerate(self.operand_dtypes(group)):
                name = group.operands[k].variable
                root = root_of(self.executable, name)
                if root in env and root not in written:
                    laying = self.arithmetic_of(partial(_laid, group, k), [dtype])
                    (found[_laid_out_name(group, k)],) = laying(self._read(env, name))
        return found

    def _copy(self, step: VariableCopy, env: Env) -> jax.Array:
        sources = [self._read(env, name) for name in step.sources]
        if step.axis is None:
            return sources[0].reshape(self.executable.variables[step.destination].shape)
        return concatenated(sources, step.axis)


def _pads(step: StepRecord) -> bool:
    """Return whether a step joins arrays, or reads beyond the ends of one."""
    match step:
        case ExecuteStep():
            return any(m.fill is not None for group in step.groups for m in group.form.operands)
        case CopyStep():
            return any(copy.axis is not None and len(copy.sources) > 1 for copy in step.copies)
        case _:
            return False


def _of_any(function: Callable[..., tuple[jax.Array, ...]], *operands: jax.Array) -> tuple[jax.Array, ...]:
    """Return one replica's results of a function of all, which are those of every replica."""
    return tuple(x[:1] for x in function(*operands))


def _folds(group: VertexGroup) -> bool:
    """Whether a group folds values, not products; what only moves them reduces dimensions in form alone."""
    codelet = group.codelet
    return bool(group.form.reduced) and not (codelet.is_contraction or codelet.only_moves)


def record_run(
    executable: Executable, *inputs: Datum, streams: Mapping[str, Datum] | None = None, remote: Env
) -> tuple[jax.Array, Env]:
    """Return what loops and branches decide in a run with floats, in order, for engines that repeat it.

    Args:
      executable: the program.
      *inputs: its inputs.
      streams: items.
      remote: rows of its remote buffers before; those afterwards are returned, too.
    """
    if executable not in _RECORDERS:
        _RECORDERS[executable] = FastEngine(executable, FLOAT)
    return _RECORDERS[executable].record(*inputs, streams=streams, remote=remote)


def record_decisions(
    executable: Executable, *inputs: Datum, streams: Mapping[str, Datum] | None = None
) -> jax.Array:
    """Return what loops and branches of a program without remote buffers decide; see ``record_run``."""
    return record_run(executable, *inputs, streams=streams, remote={})[0]


_RECORDERS: weakref.WeakKeyDictionary[Executable, FastEngine] = weakref.WeakKeyDictionary()


def _unfolded(x: jax.Array) -> jax.Array:
    """Return a value that XLA takes for unknown, though a constant may stand behind it.

    XLA's constant folder (jaxlib 0.10.2) evaluates a bitcast whose operand and result differ in layout by copying
    bytes: in a loop, the bits of a constant that was transposed outside come back untransposed.
    """
    return optimization_barrier(x) if x.ndim else x


def as_trips(counted: Datum) -> Datum:
    """Return trips of a loop, or of every branch, as a trace holds them."""
    return tuple(counted) if is_list(counted) else counted


def _laid(group: VertexGroup, k: int, x: jax.Array) -> tuple[jax.Array, ...]:
    return (lay_out(group, k, x),)


def _whole(group: VertexGroup, laid_out: list[int], *operands: jax.Array) -> tuple[jax.Array, ...]:
    return whole(group, operands, laid_out)


def _sums_leading(group: VertexGroup, elements: int) -> bool:
    """Whether a group adds up its operand's leading axis, and leaves the other elements where they are."""
    form, rank = group.form, len(group.form.shape)
    return (
        group.codelet.is_plain_sum
        and not group.plan.split_reductions(form)
        and form.reduced == (0,)
        and math.prod(form.shape[1:]) == elements
        and form.operands[0].axes == identity_map(rank).axes
        and form.results[0].axes == tuple(along(d) for d in range(1, rank))
    )


def _sum_name(partials: str) -> str:
    """Return under which name, no variable's, the sum of partials is found that are nowhere themselves."""
    return f"{partials} added up"


def _laid_out_name(group: VertexGroup, k: int) -> str:
    """Return under which name, no variable's, a loop's body finds operand k of a contraction laid out."""
    return f"{group.results[0]} reads {k}"
