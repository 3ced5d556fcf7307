"""Graph: tensors, compute sets of vertices, and the program that runs them.

Builders record operations in it; planning (``tiles.planning``) makes of it a graph whose tensors have layouts and whose
program runs compute sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from tiles.errors import InvalidGraph, InvalidPlan, Unsupported
from tiles.graph.codelet import Codelet
from tiles.graph.domain import OpForm, Plan
from tiles.graph.layout import Layout
from tiles.graph.program import Alternative, Choice, Operation, Reshape, Sequence
from tiles.graph.replicas import Replicas
from tiles.numerics.dtypes import itemsize
from tiles.target import System, Target, known_systems

ACROSS = -1
"""The place of what counts the tiles of all IPUs of a replica: an IPU's number x tiles per IPU + its tile."""
INPUT, CONSTANT, TEMPORARY, VARIABLE = "input", "constant", "temporary", "variable"


@dataclass(frozen=True)
class Tensor:
    """A variable of the graph.

    Args:
      name: unique in its graph.
      shape: logical shape; with a split reduction behind it, the leading axis counts partials.
      dtype: numpy-style name.
      layout: where its parts live; None until planning says, which keeps what a builder has said.
      kind: input, constant, temporary, or variable: written by copies, placed by its first reader as an input is.
      value: the value of a constant.
      location: the user's source line.
      view_of: name of the tensor whose elements this one has in another shape, or ""; in a planned graph it names
        the same memory.
      ipu: the IPU of the replica that it lies on, whose tiles its layout counts; ``ACROSS``: the layout counts the tiles
        of all, as in a planned graph; None: that of its first reader.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: Layout | None = None
    kind: str = TEMPORARY
    value: np.ndarray | None = field(default=None, compare=False, repr=False)
    location: str = ""
    view_of: str = ""
    ipu: int | None = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements, without padding."""
        return int(np.prod(self.shape, dtype=np.int64)) * itemsize(self.dtype)


@dataclass(frozen=True)
class Stream:
    """A sequence of items between host and device, in Poplar a FIFO; every copy step moves the next one.

    Args:
      name: unique in its graph.
      dtype: numpy-style name.
      shape: shape of an item.
      to_host: whether items go from the device to the host.
      location: the user's source line.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    to_host: bool
    location: str = ""

    @property
    def item_bytes(self) -> int:
        """Bytes of one item."""
        return math.prod(self.shape) * itemsize(self.dtype)


@dataclass(frozen=True)
class RemoteBuffer:
    """Rows in memory beside the IPU, which steps of a program copy from and to; it keeps them between runs.

    Args:
      name: unique in its graph.
      dtype: numpy-style name.
      shape: shape of a row.
      repeats: number of rows.
      location: the user's source line.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    repeats: int = 1
    location: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows."""
        return self.repeats * math.prod(self.shape) * itemsize(self.dtype)


@dataclass(frozen=True)
class Vertices:
    """All vertices of one planned operation: one per cell of the plan, each on its own tile.

    Args:
      name: label for reports.
      codelet: what each vertex computes.
      form: the operation.
      plan: how its domain is cut.
      operands: tensor names.
      results: tensor names.
      location: the user's source line.
    """

    name: str
    codelet: Codelet
    form: OpForm
    plan: Plan
    operands: tuple[str, ...]
    results: tuple[str, ...]
    location: str = ""


@dataclass(frozen=True)
class ComputeSet:
    """Vertices that run in one superstep; those on one tile one after another, of whatever codelets, in any order."""

    name: str
    vertices: tuple[Vertices, ...]


class Graph:
    """Tensors, compute sets and functions for one target, and the main program.

    Building never computes anything; ``tiles.compile_graph`` makes an Executable of it. With replicas, all of it is
    that of one replica, and every replica runs it. A replica of several IPUs is a virtual graph: what is built ``with
    graph.on(ipu):`` lies there, and what is not on IPU 0.

    Attributes:
      system: the IPUs that replicas run on and the links between them; None for one IPU.
      replicas: named axes of replicas; see ``replicate``.
      same_on_all: inputs of which all replicas are given the same value; see ``add_input``.
      same_along: axes of inputs along which replicas are given the same value; see ``add_input``.
    """

    def __init__(self, target: Target | System, name: str = "main", *, ipus_per_replica: int = 1) -> None:
        """Start an empty graph for a chip, or for a system of several.

        Args:
          target: the chip or system.
          name: of the program.
          ipus_per_replica: IPUs that the program, or each of its replicas, runs on; see ``on``.

        Raises:
          Unsupported: a target of several IPUs without links.
          InvalidGraph: more IPUs than there are.
        """
        self.system = target if isinstance(target, System) else None
        target = target.chip if isinstance(target, System) else target
        if target.num_ipus > 1:
            raise Unsupported(
                f"target {target.name!r} has {target.num_ipus} IPUs without links: "
                "what crosses between them would be priced as exchange on one chip",
                expected=f"one IPU, or a system: {', '.join(known_systems())}",
                try_=f"target.replace(num_ipus=1), which has {target.tiles_per_ipu} tiles",
            )
        self.chip = target
        self.name = name
        self.tensors: dict[str, Tensor] = {}
        self.compute_sets: dict[str, ComputeSet] = {}
        self.functions: dict[str, Sequence] = {}
        self.streams: dict[str, Stream] = {}
        self.remote_buffers: dict[str, RemoteBuffer] = {}
        self.program = Sequence()
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.donated: tuple[int, ...] = ()
        self.replicas = self._fitting(Replicas(ipus_each=ipus_per_replica))
        self.same_on_all: set[str] = set()
        self.same_along: dict[str, tuple[str, ...]] = {}
        self.is_planned = False
        self._taken: dict[str, dict[str, int]] = {}
        self._place: int | None = None

    @property
    def ipus_per_replica(self) -> int:
        """IPUs that each replica runs on."""
        return self.replicas.ipus_each

    @property
    def ipu(self) -> int:
        """The IPU that builders place on at present; ``ACROSS`` where they count the tiles of all."""
        return self._place or 0

    @property
    def target(self) -> Target:
        """The tiles that builders have: those of one IPU, or ``across`` the IPUs of a replica, and when planned, of all."""
        return self.replica_target if self._place == ACROSS or self.is_planned else self.chip

    @property
    def replica_target(self) -> Target:
        """All tiles of a replica."""
        return self.chip if self.system is None else self.system.several(self.ipus_per_replica)

    @contextmanager
    def on(self, ipu: int) -> Generator[None]:
        """Place what is built meanwhile on an IPU of the replica: Poplar's virtual graph.

        Tiles are counted from that IPU's first one, in layouts and plans that builders give, too. An operand that lies on
        another IPU is copied first, over the links. Inputs, variables and constants that are added outside lie on the IPU
        of their first reader; all else that is built outside lies on IPU 0.

        Args:
          ipu: from 0 to ``ipus_per_replica`` - 1.

        Raises:
          InvalidGraph: there is no such IPU.
        """
        if type(ipu) is not int or not 0 <= ipu < self.ipus_per_replica:
            raise InvalidGraph(
                f"a graph of {self.ipus_per_replica} IPUs per replica has no IPU {ipu!r}",
                expected=f"0 to {self.ipus_per_replica - 1}",
                try_="Graph(system, ipus_per_replica=...)",
            )
        with self.at(ipu):
            yield

    @contextmanager
    def across(self) -> Generator[None]:
        """Count the tiles of all IPUs of the replica meanwhile: for layouts and plans over several, made by hand.

        What is not given a plan is planned as if all tiles were those of one chip; what crosses links is priced as such.
        """
        with self.at(ACROSS if self.ipus_per_replica > 1 else 0):
            yield

    @contextmanager
    def at(self, place: int | None) -> Generator[None]:
        """Place what is built meanwhile on an IPU or across all; None: where builders place otherwise."""
        before, self._place = self._place, place
        try:
            yield
        finally:
            self._place = before

    def _fitting(self, replicas: Replicas) -> Replicas:
        """Return the replicas.

        Raises:
          InvalidGraph: no system, or more IPUs than it has.
        """
        if self.system is None and (replicas.axes or replicas.ipus_each > 1):
            raise InvalidGraph(
                f"the graph is for one {self.chip.name}; replicas need several and the links between them",
                expected=f"Graph(find_system(name)) with one of {', '.join(known_systems())}",
            )
        if self.system is not None and replicas.num_ipus > self.system.num_ipus:
            raise InvalidGraph(
                f"{replicas.count} replicas ({replicas}) do not fit on {self.system.name}",
                expected=f"at most {self.system.num_ipus // replicas.ipus_each}",
            )
        return replicas

    def successor(self) -> Graph:
        """Return an empty graph with this one's target, replicas, streams and remote buffers; its new names are new here too."""
        graph = Graph(self.system or self.chip, self.name)
        graph._place = self._place
        graph.replicas, graph.same_on_all = self.replicas, set(self.same_on_all)
        graph.same_along = dict(self.same_along)
        graph.streams, graph.remote_buffers = dict(self.streams), dict(self.remote_buffers)
        graph._taken = {space: dict(taken) for space, taken in self._taken.items()}
        return graph

    def replicate(self, axis: str, size: int, *, folded: bool = False, part_of: str = "") -> None:
        """Run the program on ``size`` times as many IPUs, which are told apart along an axis of that name.

        Replicas are numbered over the axes in row-major order, the first axis the slowest; replica r runs on IPU r, one of
        several IPUs on the r-th group of so many. Along
        a ``folded`` axis, place p is on the p-th IPU of a folded ring, 0 2 4 ... 5 3 1: neighbours are few links apart.
        Messages name an axis by what it is ``part_of``, if it is.

        Raises:
          InvalidGraph: an axis of that name is there, a size below 1, no system, or more replicas than it has IPUs.
        """
        also = (*self.replicas.folded, axis) if folded else self.replicas.folded
        axes = (*self.replicas.axes, (axis, size))
        parts = (*self.replicas.parts, (axis, part_of)) if part_of else self.replicas.parts
        self.replicas = self._fitting(replace(self.replicas, axes=axes, folded=also, parts=parts))

    def unique(self, stem: str, space: str = "tensor") -> str:
        """Return ``stem`` or ``stem.1``, ``stem.2``... whichever is free among names of that kind; deterministic."""
        taken = self._taken.setdefault(space, {})
        count = taken.get(stem, 0)
        taken[stem] = count + 1
        return stem if count == 0 else self.unique(f"{stem}.{count}", space)

    def add_tensor(
        self,
        shape: tuple[int, ...],
        dtype: str,
        name: str = "t",
        layout: Layout | None = None,
        kind: str = TEMPORARY,
        value: np.ndarray | None = None,
        location: str = "",
    ) -> Tensor:
        """Add a variable; its name is made unique.

        Raises:
          InvalidGraph: the layout is for another shape, or a constant has no value.
        """
        itemsize(dtype)
        if layout is not None and layout.shape != tuple(shape):
            raise InvalidGraph(f"tensor {name} has shape {tuple(shape)}, its layout is for {layout.shape}")
        if kind == CONSTANT and value is None:
            raise InvalidGraph(f"constant {name} has no value")
        is_free = self._place is None and layout is None and kind != TEMPORARY and self.ipus_per_replica > 1
        tensor = Tensor(
            self.unique(name),
            tuple(map(int, shape)),
            dtype,
            layout,
            kind,
            value,
            location,
            ipu=None if is_free else self.ipu,
        )
        self.tensors[tensor.name] = tensor
        if kind == INPUT:
            self.inputs.append(tensor.name)
        return tensor

    def add_input(
        self,
        shape: tuple[int, ...],
        dtype: str,
        name: str = "arg",
        location: str = "",
        same_on_all: bool = False,
        same_along: tuple[str, ...] = (),
    ) -> Tensor:
        """Add an input; unless it is given a layout the first operation that reads it says where it lies.

        Args:
          shape: of one replica's value.
          dtype: numpy-style name.
          name: made unique.
          location: the user's source line.
          same_on_all: whether a run is given one value for all replicas; else one for each, in front of the shape.
          same_along: axes of replicas along which those for each are the same; all axes are ``same_on_all``.

        Raises:
          InvalidGraph: an axis that is not there.
        """
        if same_along:
            same_on_all |= len(self.replicas.require(same_along)) == len(self.replicas.axes)
        tensor = self.add_tensor(shape, dtype, name, kind=INPUT, location=location)
        if same_on_all:
            self.same_on_all.add(tensor.name)
        elif same_along:
            self.same_along[tensor.name] = tuple(same_along)
        return tensor

    def differs_along(self, name: str) -> tuple[str, ...]:
        """Return the axes along which replicas may be given different values of an input, in the replicas' order."""
        if name in self.same_on_all:
            return ()
        same = self.same_along.get(name, ())
        return tuple(axis for axis in self.replicas.names if axis not in same)

    def add_variable(self, shape: tuple[int, ...], dtype: str, name: str = "v", location: str = "") -> Tensor:
        """Add a tensor that copies or streams write; it is placed by the first operation that reads it."""
        return self.add_tensor(shape, dtype, name, kind=VARIABLE, location=location)

    def add_constant(
        self, value: np.ndarray, dtype: str, name: str = "constant", location: str = ""
    ) -> Tensor:
        """Add a constant held in tile memory."""
        return self.add_tensor(value.shape, dtype, name, kind=CONSTANT, value=value, location=location)

    def add_host_to_device_stream(
        self, name: str, dtype: str, shape: tuple[int, ...], location: str = ""
    ) -> Stream:
        """Add a stream whose items a program's ``CopyFromStream`` steps read, and a run is given.

        Source: Poplar's ``Graph::addHostToDeviceFIFO``.
        """
        return self._add_stream(name, dtype, shape, False, location)

    def add_device_to_host_stream(
        self, name: str, dtype: str, shape: tuple[int, ...], location: str = ""
    ) -> Stream:
        """Add a stream to which a program's ``CopyToStream`` steps send items, which a run gives back.

        Source: Poplar's ``Graph::addDeviceToHostFIFO``.
        """
        return self._add_stream(name, dtype, shape, True, location)

    def _add_stream(
        self, name: str, dtype: str, shape: tuple[int, ...], to_host: bool, location: str
    ) -> Stream:
        itemsize(dtype)
        if name in self.streams:
            raise InvalidGraph(f"the graph has a stream {name} already", location=location or None)
        self.streams[name] = Stream(name, dtype, tuple(map(int, shape)), to_host, location)
        return self.streams[name]

    def add_remote_buffer(
        self, name: str, dtype: str, shape: tuple[int, ...], repeats: int = 1, location: str = ""
    ) -> RemoteBuffer:
        """Add rows of memory beside the IPU, for a program's ``CopyFromRemote`` and ``CopyToRemote`` steps.

        Source: Poplar's ``Graph::addRemoteBuffer``.
        """
        itemsize(dtype)
        if name in self.remote_buffers or repeats < 1:
            what = f"{repeats} rows" if repeats < 1 else "another of that name"
            raise InvalidGraph(
                f"the graph cannot have remote buffer {name}: {what}", location=location or None
            )
        self.remote_buffers[name] = RemoteBuffer(name, dtype, tuple(map(int, shape)), repeats, location)
        return self.remote_buffers[name]

    def add_reshape(
        self,
        tensor: Tensor,
        shape: tuple[int, ...],
        program: Sequence,
        name: str = "reshape",
        location: str = "",
    ) -> Tensor:
        """Add a tensor with the elements of another one in a new shape, and the step that makes it.

        Raises:
          InvalidGraph: another number of elements.
        """
        shape = tuple(int(n) for n in shape)
        if math.prod(shape) != math.prod(tensor.shape):
            raise InvalidGraph(
                f"{tensor.name} of shape {tensor.shape} has {math.prod(tensor.shape)} elements, "
                f"{shape} {math.prod(shape)}",
                location=location or None,
            )
        made = Tensor(
            self.unique(name),
            shape,
            tensor.dtype,
            location=location,
            view_of=self.tensors[tensor.name].name,
            ipu=self.ipu,
        )
        self.tensors[made.name] = made
        program.add(Reshape(made.name, tensor.name, location))
        return made

    def add_operation(
        self,
        operation: Operation,
        result_dtypes: tuple[str, ...],
        program: Sequence,
    ) -> tuple[Tensor, ...]:
        """Record an operation, named uniquely, and return its results, which planning will place.

        Args:
          operation: what to compute; its results are named here.
          result_dtypes: dtype of every result.
          program: sequence to append to. Results without elements take no step.

        Raises:
          InvalidGraph: other numbers of operands or results than the form has, or an unknown tensor.
          InvalidPlan: a plan that does not fit the form or the target.
        """
        form, label = operation.form, self.unique(operation.name, "step")
        numbers = len(operation.operands), len(result_dtypes)
        if numbers != (len(form.operands), len(form.results)):
            raise InvalidGraph(
                f"{label} has other numbers of operands and results than its form",
                location=operation.location or None,
                expected=f"{len(form.operands)} and {len(form.results)}",
                got=f"{numbers[0]} and {numbers[1]}",
            )
        for name in operation.operands:
            if name not in self.tensors:
                raise InvalidGraph(f"{label} names tensor {name!r}, which the graph does not have")
        if operation.plan is not None:
            require_fits(operation.plan, form, operation.codelet, self.target, label, operation.location)
        results = tuple(
            self.add_tensor(
                form.result_shape(k), dtype, f"{label}:{k}" if k else label, location=operation.location
            )
            for k, dtype in enumerate(result_dtypes)
        )
        if math.prod(d.size for d in form.dims if not d.is_reduced):
            names = tuple(t.name for t in results)
            program.add(replace(operation, name=label, results=names, ipu=self.ipu))
        return results

    def add_choice(
        self,
        name: str,
        ways: Iterable[Callable[[Sequence], tuple[Tensor, ...]]],
        program: Sequence,
        location: str = "",
        share: float = 1.0,
    ) -> tuple[Tensor, ...]:
        """Record several ways to compute the same, of which planning takes the cheapest, and return the results.

        Args:
          name: what is computed.
          ways: each adds steps to the sequence it is given and returns their results. Labels of steps are unique
            within a way, and after all of them.
          program: sequence to append to.
          location: the user's source line.
          share: of what the first way costs, what another one costs at most to be taken.

        Raises:
          InvalidGraph: the ways give other shapes or dtypes.
        """
        before = dict(self._taken.get("step", {}))
        after = dict(before)
        found: list[tuple[Alternative, tuple[Tensor, ...]]] = []
        for way in ways:
            self._taken["step"] = dict(before)
            body = Sequence()
            results = way(body)
            found.append((Alternative(body, tuple(t.name for t in results)), results))
            after |= {label: max(n, after.get(label, 0)) for label, n in self._taken["step"].items()}
        self._taken["step"] = after
        types = [tuple((t.shape, t.dtype) for t in results) for _, results in found]
        if any(other != types[0] for other in types[1:]):
            raise InvalidGraph(f"the ways to compute {name} give different results: {types}")
        results = tuple(self.add_tensor(*each, name, location=location) for each in types[0])
        alternatives = tuple(alternative for alternative, _ in found)
        program.add(Choice(name, alternatives, tuple(t.name for t in results), location, share))
        return results

    def storage(self, name: str) -> str:
        """Return the tensor whose memory a tensor names, or may name once planned: itself unless it is a reshape."""
        while self.tensors[name].view_of:
            name = self.tensors[name].view_of
        return name

    def set_layout(self, name: str, layout: Layout) -> Tensor:
        """Place a tensor that has no layout yet (or move one before anything uses it).

        The layout counts the tiles of the IPU that the tensor lies on, or if it lies on none yet of that which builders
        place on.
        """
        tensor = self.tensors[name]
        if layout.shape != tensor.shape:
            raise InvalidGraph(f"tensor {name} has shape {tensor.shape}, the layout is for {layout.shape}")
        ipu = self.ipu if tensor.ipu is None else tensor.ipu
        self.tensors[name] = replace(tensor, layout=layout, ipu=ipu)
        return self.tensors[name]

    def add_compute_set(self, name: str, *vertices: Vertices) -> ComputeSet:
        """Add a compute set after checking shapes and layouts of its vertices.

        Raises:
          InvalidGraph: an unknown tensor, a result whose layout is not the plan's, or vertices that read what others
            of the set write.
          InvalidPlan: a plan that does not fit its form or the target.
        """
        written: dict[str, str] = {}
        for group in vertices:
            self._check_vertices(group)
            for result in group.results:
                if result in written:
                    raise InvalidGraph(
                        f"{group.name} and {written[result]} both write {result} in compute set {name}"
                    )
                written[result] = group.name
        for group in vertices:
            for operand in group.operands:
                if written.get(operand, group.name) != group.name:
                    raise InvalidGraph(
                        f"{group.name} reads {operand}, which {written[operand]} writes in compute set {name}"
                    )
        compute_set = ComputeSet(self.unique(name, "compute set"), tuple(vertices))
        self.compute_sets[compute_set.name] = compute_set
        return compute_set

    def _check_vertices(self, group: Vertices) -> None:
        group.plan.check(group.form, self.target.num_tiles)
        if len(group.operands) != len(group.form.operands) or len(group.results) != len(group.form.results):
            raise InvalidGraph(
                f"{group.name} has {len(group.operands)} operands and {len(group.results)} results, its form other numbers"
            )
        for name in (*group.operands, *group.results):
            if name not in self.tensors:
                raise InvalidGraph(f"{group.name} names tensor {name!r}, which the graph does not have")
        for k, name in enumerate(group.results):
            expected = group.plan.result_layout(group.form, k)
            if self.tensors[name].layout != expected:
                raise InvalidGraph(
                    f"{group.name} writes {name} as {expected}, its layout is {self.tensors[name].layout}"
                )


def require_fits(
    plan: Plan, form: OpForm, codelet: Codelet, target: Target, label: str, location: str = ""
) -> None:
    """Raise InvalidPlan, which names step and line, where a plan does not fit, or splits what cannot be computed apart."""
    try:
        plan.check(form, target.num_tiles)
        for d, split in enumerate(plan.splits):
            if split.is_split and not codelet.may_split(form, d):
                raise InvalidPlan(
                    f"the plan cuts dimension {form.dims[d].name} of {form.dims[d].size} into {split.parts} "
                    f"parts, which {codelet.label} cannot compute apart"
                )
    except InvalidPlan as error:
        raise error.at(f"step {label}" + (f", {location}" if location else "")) from None
