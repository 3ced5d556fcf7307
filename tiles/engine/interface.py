"""What every engine offers, and the words between callers' arrays and engines' arrays."""

from __future__ import annotations

import abc
import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TextIO

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from tiles._jax_compat import Datum, Function
from tiles.cached import cached_property
from tiles.compiler import AbortStep, ErrorStep, Executable, PrintStep, VertexGroup
from tiles.compiler.control import Composite, Part, nodes_of
from tiles.compiler.control_flow import decided_by_floats, items_needed
from tiles.engine.trace import Print, Trace, lines_of
from tiles.errors import InvalidArguments, InvalidExecutable, ProgramAborted, Unsupported
from tiles.graph import Collective, RemoteBuffer, Stream
from tiles.numerics.dtypes import is_float, itemsize, to_jax, unsigned_of
from tiles.numerics.ring import ring, to_ring

FLOAT, RING = "float", "ring"


class Engine(abc.ABC):
    """Runs one program. What engines of a kind can do is said by their class.

    Args:
      arithmetic: "float", or "ring" for exact modular arithmetic on words.

    Attributes:
      name: of the kind of engine.
      is_traceable: whether an outer JAX transformation may trace a run; the others step on the host.
      counts_steps: whether traces say how often every superstep ran.
      spreads_replicas: whether it takes JAX devices, over which it spreads the replicas.
    """

    name: ClassVar[str]
    is_traceable: ClassVar[bool] = False
    counts_steps: ClassVar[bool] = True
    spreads_replicas: ClassVar[bool] = False

    def __init__(self, arithmetic: str = FLOAT) -> None:
        """Keep the arithmetic; subclasses prepare what they run."""
        self.arithmetic = arithmetic

    @abc.abstractmethod
    def run(
        self, *inputs: Datum, streams: Mapping[str, Datum] | None = None
    ) -> tuple[list[jax.Array], Trace]:
        """Run once: flat inputs in the program's order to flat outputs and the trace.

        Args:
          *inputs: arrays of the inputs' shapes and dtypes.
          streams: by name of every host-to-device stream its items, ``[items, *shape]``. What device-to-host
            streams received is in the trace.

        Raises:
          InvalidArguments: streams that the program does not have, or too few items.
          ProgramAborted: the program stopped itself.
        """

    @property
    @abc.abstractmethod
    def needs_host(self) -> bool:
        """Whether a run is more than a function of arrays: it repeats the decisions of another, prints, or may stop."""

    @property
    def compiler_options(self) -> dict[str, Any] | None:
        """How XLA compiles what it traces; None: as JAX does."""
        return None

    def trace(self, *inputs: Datum) -> Sequence[jax.Array]:
        """Return the outputs as a JAX-traceable function of the inputs.

        Raises:
          Unsupported: engines of this kind step on the host, or this program needs it.
        """
        raise Unsupported(f"engine {self.name!r} steps on the host, and JAX cannot trace it")


class MachineEngine(Engine):
    """Runs one executable, on the tiles of a machine.

    Inputs of a program with replicas are ``[replicas, *shape]`` unless they are the same on all; outputs are
    ``[replicas, *shape]``.

    Args:
      executable: what to run.
      arithmetic: "float" or "ring".

    Attributes:
      replays: whether loops and branches repeat the decisions of a float run, since they depend on floats.
      print_to: where what programs print is written as text, beside the trace: a file such as ``sys.stderr``, or
        None. Source: Poplar's ``Engine::setPrintTensorStream``.
      remote: rows of every remote buffer, ``[repeats, *shape]`` as the engine carries them; kept between runs. Runs of
        one engine that has such buffers, or tile memory, come one after another, from whatever threads.
    """

    print_to: TextIO | None = None

    def __init__(self, executable: Executable, arithmetic: str = FLOAT) -> None:
        """Keep the executable; subclasses prepare what they run."""
        super().__init__(arithmetic)
        self.executable = executable
        self.replays = arithmetic == RING and decided_by_floats(executable)
        if self.replays and executable.replicas.axes:
            raise Unsupported(
                "replicas whose control depends on floats do not run in the ring: their decisions may differ",
                try_='arithmetic="float"',
            )
        self._one_at_a_time = threading.RLock()  # for what an engine keeps from one run to the next
        floats = self._empty_rows(to_jax) if self.replays else None
        self._kept_rows = self._empty_rows(self.stored_dtype), floats

    @cached_property
    def value_bytes(self) -> int:
        """Bytes of all variables, each counted once however many tiles hold copies."""
        own = [v for v in self.executable.variables.values() if not v.view_of]
        return sum(math.prod(v.shape) * itemsize(v.dtype) for v in own)

    def _empty_rows(self, dtype: Callable[[str], Any]) -> dict[str, Any]:
        buffers = self.executable.remote_buffers.values()
        return {r.name: np.zeros((r.repeats, *r.shape), dtype(r.dtype)) for r in buffers}

    @property
    def needs_host(self) -> bool:
        """Whether a run is more than a function of arrays: it repeats the decisions of another, prints, or may stop."""
        kinds = (PrintStep, AbortStep, ErrorStep)
        return self.replays or any(isinstance(step, kinds) for step in self.executable.steps)

    @property
    def remote(self) -> dict[str, Any]:
        """Rows of every remote buffer as the last run that ended well left them."""
        return self._kept_rows[0]

    @property
    def remote_floats(self) -> dict[str, Any] | None:
        """The same of the runs with floats whose decisions are repeated, None without such."""
        return self._kept_rows[1]

    def _keep_rows(self, remote: Mapping[str, Datum], floats: Mapping[str, Any] | None) -> None:
        """Keep rows for the next run, both kinds at once: an interruption must not part them."""
        self._kept_rows = dict(remote), None if floats is None else dict(floats)

    def copy_to_remote_buffer(self, name: str, value: Datum, row: int | None = None) -> None:
        """Write a remote buffer from the host: all rows, ``[repeats, *shape]``, or one. It starts as zeros.

        Source: Poplar's ``Engine::copyToRemoteBuffer``.

        Raises:
          InvalidArguments: there is no such buffer or row, or the value is of another shape or dtype.
        """
        buffer, value = self._remote_buffer(name, row), np.asarray(value)
        shape = (buffer.repeats, *buffer.shape) if row is None else buffer.shape
        if value.shape != shape or value.dtype != to_jax(buffer.dtype):
            raise InvalidArguments(
                f"remote buffer {name} is given something else than rows",
                location=buffer.location or None,
                expected=f"{buffer.dtype}{list(shape)}",
                got=f"{value.dtype}{list(value.shape)}",
            )
        where = slice(None) if row is None else row
        with self._one_at_a_time, jax.enable_x64(True):
            floats = self.remote_floats
            rows = _with_rows(self.remote, name, where, self.enter_items(name, jnp.asarray(value)))
            self._keep_rows(rows, None if floats is None else _with_rows(floats, name, where, value))

    def copy_from_remote_buffer(self, name: str, row: int | None = None) -> np.ndarray:
        """Return a remote buffer's rows, ``[repeats, *shape]``, or one row; in the ring, words.

        Source: Poplar's ``Engine::copyFromRemoteBuffer``.

        Raises:
          InvalidArguments: there is no such buffer or row.
        """
        self._remote_buffer(name, row)
        rows = np.array(self.remote[name])
        return rows if row is None else rows[row]

    def _remote_buffer(self, name: str, row: int | None) -> RemoteBuffer:
        buffers = self.executable.remote_buffers
        if name not in buffers or not (row is None or 0 <= row < buffers[name].repeats):
            have = ", ".join(f"{r.name} of {r.repeats} rows" for r in buffers.values())
            got = name if row is None else f"{name}, row {row}"
            what = f"{self.executable.name} has no such remote buffer, or row of it"
            raise InvalidArguments(what, expected=have or "none", got=got)
        return buffers[name]

    def show(self, prints: Sequence[Print], first: int = 0) -> None:
        """Write what a program printed, from a certain print on, where it is wanted.

        Messages go to ``sys.stdout`` where nothing else is said, as those of ``jax.debug.print`` do.
        """
        if self.print_to is None and not any(p.message for p in prints[first:]):
            return
        for line, is_message in lines_of(prints, self.arithmetic, first):
            if is_message or self.print_to is not None:
                print(line, file=self.print_to or sys.stdout)

    def stored_dtype(self, dtype: str) -> Any:
        """Return the dtype in which this engine stores elements of ``dtype``."""
        return unsigned_of(dtype) if self.arithmetic == RING and is_float(dtype) else to_jax(dtype)

    def stored_dtype_name(self, dtype: str) -> str:
        """Return the name of the dtype in which this engine stores elements of ``dtype``."""
        return jnp.dtype(self.stored_dtype(dtype)).name

    def enter(self, name: str, value: Datum) -> jax.Array:
        """Return an input (or constant) as the engine carries it, after checking shape and dtype.

        In ring arithmetic the words that a program gives are taken as they are: they are an argument of the next.

        Raises:
          InvalidExecutable: another shape or dtype than the variable's.
        """
        return jnp.asarray(self.entered(name, value))

    def entered(self, name: str, value: Any) -> Any:
        """Return what ``enter`` does; of an array of NumPy's one of NumPy's, since JAX compiles how it takes one over."""
        variable = self.executable.variables[name]
        array: Any = value
        if not isinstance(value, np.ndarray):
            array = jnp.asarray(value)
        if array.shape == variable.shape and array.dtype == self.stored_dtype(variable.dtype):
            return array
        if array.shape != variable.shape or array.dtype != to_jax(variable.dtype):
            raise InvalidExecutable(
                f"input {name} is {variable.dtype}{list(variable.shape)}, got {array.dtype}{list(array.shape)}"
            )
        # Of a constant 0, 1, 2, ... of 8-bit floats XLA:CPU (jaxlib 0.10.2) makes a count that it cannot compile.
        return to_ring(array)

    def enter_items(self, name: str, items: jax.Array) -> jax.Array:
        """Return the items of a stream as the engine carries them."""
        return to_ring(items) if self.arithmetic == RING else items

    def arithmetic_of(self, function: Function, dtypes: Sequence[str]) -> Function:
        """Return ``function``, whose arguments have ``dtypes``, in the engine's arithmetic."""
        return ring(function, tuple(dtypes)) if self.arithmetic == RING else function

    def operand_dtypes(self, group: VertexGroup) -> list[str]:
        """Return the dtype names of a group's operands."""
        return [self.executable.variables[operand.variable].dtype for operand in group.operands]


def _with_rows(remote: Mapping[str, Datum], name: str, where: Any, value: Datum) -> dict[str, Any]:
    """Return the rows of remote buffers with some of one buffer's replaced."""
    rows = np.array(remote[name])
    rows[where] = np.asarray(value)
    return {**remote, name: rows}


def check_streams(executable: Executable, streams: Mapping[str, Datum] | None) -> dict[str, Any]:
    """Return the items of every host-to-device stream, after checking names, shapes, dtypes and numbers.

    Raises:
      InvalidArguments: something does not fit; a program whose number of items depends on data may still run out.
    """
    return check_items(executable.name, executable.streams, items_needed(executable), streams)


def check_items(
    program: str,
    declared: Mapping[str, Stream],
    needed: Mapping[str, int | None],
    streams: Mapping[str, Datum] | None,
) -> dict[str, Any]:
    """Return the items of host-to-device streams, as ``check_streams`` does, of streams that are declared.

    Args:
      program: its name.
      declared: its streams.
      needed: how many items of each it reads, None or nothing where that is not known.
      streams: what is given.
    """
    given = dict(streams or {})
    wanted = {name: s for name, s in declared.items() if not s.to_host}
    if given.keys() != wanted.keys():
        raise InvalidArguments(
            f"the host-to-device streams of {program} are others than those given",
            expected=", ".join(wanted) or "none",
            got=", ".join(given) or "none",
            try_="run(*inputs, streams={name: items}) with an array [items, *shape] for each",
        )
    for name, stream in wanted.items():
        shape, dtype = np.shape(given[name]), getattr(given[name], "dtype", None)
        if shape[1:] != stream.shape or not shape or dtype != to_jax(stream.dtype):
            raise InvalidArguments(
                f"stream {name} is given something else than items",
                location=stream.location or None,
                expected=f"{stream.dtype}[items, {', '.join(map(str, stream.shape))}]",
                got=f"{dtype}{list(shape)}",
            )
        need = needed.get(name)
        if need is not None and shape[0] < need:
            raise out_of_items(stream, shape[0], need)
    return given


def out_of_items(stream: Stream, given: int, need: int | None = None) -> InvalidArguments:
    """Return the error of a program that reads more items of a stream than it is given."""
    return InvalidArguments(
        f"stream {stream.name} runs out of items",
        location=stream.location or None,
        expected="more items" if need is None else f"{need} items",
        got=f"{given}",
    )


def aborted(step: AbortStep | ErrorStep, value: np.ndarray | None, prints: Sequence[Print]) -> ProgramAborted:
    """Return the error of a program that stopped its own run, with the value that it names and what it printed."""
    if isinstance(step, ErrorStep):
        what, notes = step.message or "the program stopped", (str(Print(step.variable, np.asarray(value))),)
    else:
        what, notes = step.message or f"the program stopped, since {step.predicate} is true", ()
    error = ProgramAborted(what, location=step.location or None, notes=notes)
    error.value, error.prints = value, tuple(prints)
    return error


def check_inputs(executable: Executable, inputs: Sequence[Datum]) -> None:
    """Raise InvalidExecutable unless there are as many inputs as the executable takes, each with a value per replica.

    Values must be the same along axes along which the executable says so, on which its certificate rests; this is not
    checked while JAX traces them.
    """
    if len(inputs) != len(executable.inputs):
        raise InvalidExecutable(f"{executable.name} takes {len(executable.inputs)} inputs, got {len(inputs)}")
    for i in differing(executable):
        shape, name = np.shape(inputs[i]), executable.inputs[i]
        expected = (executable.replicas.count, *executable.variables[name].shape)
        if shape != expected:
            raise InvalidExecutable(
                f"input {name} of {executable.replicas} replicas is {list(expected)}, got {list(shape)}"
            )
        same = [axis for axis in executable.replicas.names if axis not in executable.differs_along[i]]
        if same and not isinstance(inputs[i], Tracer):
            _check_same(executable, i, np.asarray(inputs[i]), same)


def _check_same(executable: Executable, i: int, value: np.ndarray, same: Sequence[str]) -> None:
    """Raise InvalidExecutable unless the bytes of an input, ``[replicas, *shape]``, are the same along some axes."""
    if not value.size:
        return
    names, sizes = executable.replicas.names, [size for _, size in executable.replicas.axes]
    width = next(n for n in (8, 4, 2, 1) if value.nbytes // len(value) % n == 0)
    found = np.ascontiguousarray(value).reshape(-1).view(f"u{width}").reshape(*sizes, -1)
    for axis in same:
        if not (found == found.take([0], names.index(axis))).all():
            raise InvalidExecutable(
                f"input {executable.inputs[i]} differs between replicas along {executable.replicas.shown((axis,))}",
                expected=f"values that differ along {executable.replicas.shown(executable.differs_along[i])} only",
            )


def expecting_equal(executable: Executable, part: Part) -> list[VertexGroup]:
    """Return the composites in a part of the program whose operands must be equal on all members of a group."""
    wholes = {number: whole for number, whole in enumerate(executable.composites) if _expects_equal(whole)}
    if not wholes:  # of nearly all programs, whose trees may be large
        return []
    numbers = dict.fromkeys(node.number for node in nodes_of(part) if isinstance(node, Composite))
    return [wholes[number] for number in numbers if number in wholes]


def _expects_equal(whole: VertexGroup) -> bool:
    return isinstance(whole.codelet, Collective) and whole.codelet.expects_equal


def unequal_name(name: str) -> str:
    """Return under which name, no variable's, an engine notes that a value which is to be equal on all replicas was not."""
    return f"{name} is unequal"


def unequal(executable: Executable, whole: VertexGroup, replica: int) -> InvalidExecutable:
    """Return the error of a replica whose value is not that of its group's first member, as the program says it is."""
    assert isinstance(whole.codelet, Collective)
    first = int(executable.replicas.firsts(whole.codelet.axes)[replica])
    along = executable.replicas.shown(whole.codelet.axes)
    return InvalidExecutable(
        f"{whole.operands[0].variable} is not equal on all replicas along {along}, as the program says",
        location=whole.location or None,
        expected="the same words on all",
        got=f"others on replica {replica} than on {first}",
        try_="gcl.all_reduce or gcl.broadcast, which make a value equal",
    )


def differing(executable: Executable) -> tuple[int, ...]:
    """Return the positions of inputs that are given a value for each replica, in front of their shape."""
    if not executable.replicas.axes:
        return ()
    return tuple(i for i, axes in enumerate(executable.differs_along) if axes)
