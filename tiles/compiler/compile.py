"""Graph + Program + Target -> Executable: order, lifetimes, sharing of storage, addresses."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from tiles.codelets import export_codelet, is_exported
from tiles.compiler.control import Part, Sequence
from tiles.compiler.costs import exchange_code_sizes, own_exchange_code, scratch_bytes, variant_bytes
from tiles.compiler.executable import Buffer, Executable, Variable
from tiles.compiler.grouping import SHARE, grouped
from tiles.compiler.host import host_requests
from tiles.compiler.memory import Request, allocate, tile_ranges
from tiles.compiler.oom import out_of_memory, shortage
from tiles.compiler.order import Copies, NumberedStep, Order, live_range
from tiles.compiler.proof_flow import prove_flow
from tiles.compiler.proof_replicas import prove_replicas
from tiles.compiler.sharing import shared_programs
from tiles.compiler.steps import (
    HOST_STEPS,
    AbortStep,
    BetweenStep,
    CopyStep,
    ErrorStep,
    ExecuteStep,
    IndexStep,
    Operand,
    PrintStep,
    RemoteStep,
    StepRecord,
    StreamStep,
    SyncStep,
    UndefStep,
    VariableCopy,
    VertexGroup,
)
from tiles.compiler.storages import Storages
from tiles.errors import InvalidExecutable, InvalidGraph, IpuError, Unsupported
from tiles.graph import (
    CONSTANT,
    AbortOnCondition,
    Codelet,
    ComputeSet,
    Copy,
    CopyBetween,
    CopyFromRemote,
    CopyFromStream,
    CopyToRemote,
    CopyToStream,
    ErrorProgram,
    Graph,
    Layout,
    OpForm,
    Plan,
    PrintTensor,
    Sync,
    Vertices,
    WriteReplicaIndex,
    WriteUndef,
)
from tiles.graph.layout import align_up, ceil_div, mask_of
from tiles.numerics.dtypes import itemsize
from tiles.plan import is_resident, operand_slices, staging_bytes
from tiles.planning import Planner


def compile_graph(graph: Graph, check_memory: bool = True, planner: Planner | None = None) -> Executable:
    """Compile a graph and its program.

    Args:
      graph: tensors, operations or compute sets, program; inputs and outputs listed in it. It stays as it is.
      check_memory: raise when a tile's memory does not hold the program; else the executable is marked.
      planner: plans what is not planned yet; the default one if none is given.

    Raises:
      InvalidPlan: a plan that a builder or the planner pins does not fit its operation.
      OutOfTileMemory: the program does not fit; the error carries the executable for its report.
      InvalidGraph: a step names something that does not exist, or reads what another left undefined.
    """
    planner = planner or Planner()
    order = Order(planner.plan(graph))
    tree, graph = order.program(), order.graph
    order.pin()
    used = order.used()
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in used}
    storages = Storages.shared(order, tensors)
    executable = _grouped_to_fit(tree, order, storages)
    _require_defined(executable)
    _require_remote_memory(executable)
    _require_replicable(executable)
    if not executable.fits and check_memory:
        raise out_of_memory(executable)
    return executable


def _grouped_to_fit(tree: Sequence, order: Order, storages: Storages) -> Executable:
    """Return the program with steps joined; where it does not fit by little, so that memory need not grow."""
    data, _ = _requests(order, storages)
    spare = int(SHARE * order.graph.target.bytes_per_tile)
    given = order, storages, data
    executable = _allocated(*grouped(tree, *given, spare), storages)
    if executable.fits or shortage(executable).excess_bytes > spare:
        return executable
    thrifty = _allocated(*grouped(tree, *given, 0), storages)
    return thrifty if thrifty.fits else executable


def _allocated(tree: Part, order: Order, storages: Storages) -> Executable:
    """Return an executable of numbered steps with an address for every buffer."""
    graph = order.graph
    requests, groups_buffers = _requests(order, storages)
    steps = tuple(_record(graph, step, groups_buffers, number) for number, step in enumerate(order.steps))
    composites = tuple(_group(graph, whole, {}, -1) for whole in order.composites)
    fixed = graph, storages, steps, (tree, composites)
    draft = _assemble(*fixed, requests, {r.name: 0 for r in requests}, True)
    own, keys = own_exchange_code(draft)
    shared = shared_programs(keys)
    draft = replace(draft, shared_exchange=shared)
    requests = [*requests, *_overheads(graph, draft), *_exchange_code(draft, own)]
    addresses, fits = allocate(requests, graph.target)
    return replace(_assemble(*fixed, requests, addresses, fits), shared_exchange=shared)


def _require_remote_memory(executable: Executable) -> None:
    """Raise InvalidGraph where remote buffers need more memory than there is beside the IPU, where that is known."""
    room = executable.target.streaming_memory_bytes
    need = sum(buffer.size_bytes for buffer in executable.remote_buffers.values())
    if room is not None and need > room:
        raise InvalidGraph(
            f"{executable.name} keeps more in remote buffers than the machine has beside its IPUs",
            expected=f"at most {room:,} B",
            got=f"{need:,} B",
        )


EVEN = "an exchange that every member of a group reaches, as often as the others"
DECIDE_ALIKE = (
    "decide by a value that is equal on all of them, such as the maximum of the condition over the axis "
    "(jax.lax.pmax), or exchange outside and choose between the results"
)
"""What an exchange must be that some replicas might never reach, and how to get there."""


def _require_replicable(executable: Executable) -> None:
    """Refuse replicas that exchange values with the host while they run, or that may wait for each other for ever.

    Raises:
      Unsupported: a step that exchanges values with the host, or stops the run.
      InvalidGraph: an exchange under a condition that may differ between those that take part.
    """
    if not executable.replicas.axes:
        return
    for step in executable.steps:
        if isinstance(step, (*HOST_STEPS, AbortStep, ErrorStep)):
            raise Unsupported(
                f"step {step.name} of {executable.replicas.count} replicas exchanges values with the host, or may stop the run",
                location=step.location or None,
                expected="inputs and outputs only",
                try_="take the value out as an output of the program",
            )
    try:
        prove_replicas(executable)
    except InvalidExecutable as error:
        raise InvalidGraph(
            error.what,
            location=error.location,
            expected=EVEN,
            try_=DECIDE_ALIKE,
        ) from error


def _require_defined(executable: Executable) -> None:
    """Raise InvalidGraph where a program reads what it left undefined."""
    if not any(isinstance(step, UndefStep) for step in executable.steps):
        return
    try:
        prove_flow(executable)
    except InvalidExecutable as error:
        raise InvalidGraph(error.what, location=error.location) from error


def _requests(order: Order, storages: Storages) -> tuple[list[Request], dict[tuple[int, str, int], str]]:
    """Return the buffers of data: storages, and what each vertex group receives."""
    tensors = storages.tensors
    requests: list[Request] = []
    for base, names in storages.members().items():
        start, end = live_range(order.graph, order, names, len(order.steps))
        end = max([end, *(number for name in names for number in order.undefined.get(name, ()))])
        mask, size = 0, 0
        for name in names:
            layout = tensors[name].layout
            assert layout is not None
            mask |= layout.tile_mask
            size = max(size, layout.part_bytes(tensors[name].dtype))
        category = "constant" if tensors[base].kind == CONSTANT else "variable"
        requests.append(Request(base, category, size, mask, start, end, location=tensors[base].location))
    received: dict[tuple[int, str, int], str] = {}
    for number, (_, step) in enumerate(order.steps):
        if not isinstance(step, ComputeSet):
            continue
        for group in step.vertices:
            for k, name in enumerate(group.operands):
                t = tensors[name]
                assert t.layout is not None
                size = _message_bytes(group.form, group.plan, k, t.shape, t.dtype, t.layout)
                if size is None:
                    continue
                buffer = f"{group.name}.in{k}"
                received[number, group.name, k] = buffer
                requests.append(
                    Request(
                        buffer, "message", size, group.plan.tile_mask, number, number, location=group.location
                    )
                )
    return requests, received


@lru_cache(maxsize=4096)
def _message_bytes(
    form: OpForm, plan: Plan, k: int, shape: tuple[int, ...], dtype: str, layout: Layout
) -> int | None:
    """Return the bytes of the buffer in which a tile receives operand k, None where it is read in place."""
    if is_resident(form, plan, k, layout):
        return None
    slices = operand_slices(form, plan, k, shape)
    return slices.stored_bytes(itemsize(dtype)) + staging_bytes(layout, form, plan, k, dtype)


def _record(
    graph: Graph, entry: tuple[str, NumberedStep], received: dict[tuple[int, str, int], str], number: int
) -> StepRecord:
    name, step = entry
    match step:
        case Copy():
            return CopyStep(name, (_copy(step),))
        case Copies():
            return CopyStep(name, tuple(map(_copy, step.copies)))
        case CopyBetween():
            return BetweenStep(
                name, step.source, step.destination, step.axes, step.permutations, step.location, step.stage
            )
        case WriteReplicaIndex():
            return IndexStep(name, step.destination, step.axes, step.location)
        case CopyFromStream():
            return StreamStep(name, step.stream, step.destination, False, step.location)
        case CopyToStream():
            return StreamStep(name, step.stream, step.source, True, step.location)
        case CopyFromRemote():
            return RemoteStep(name, step.buffer, step.destination, False, step.rows, step.location)
        case CopyToRemote():
            return RemoteStep(name, step.buffer, step.source, True, step.rows, step.location)
        case AbortOnCondition():
            return AbortStep(name, step.predicate, step.message, step.location)
        case ErrorProgram():
            return ErrorStep(name, step.tensor, step.message, step.location)
        case PrintTensor():
            title = step.title or step.tensor
            return PrintStep(name, step.tensor, title, step.location, step.message, step.part)
        case WriteUndef():
            return UndefStep(name, step.tensor, step.location)
        case Sync():
            return SyncStep(name, step.external, step.location)
        case ComputeSet():
            return ExecuteStep(name, tuple(_group(graph, g, received, number) for g in step.vertices))


def _copy(step: Copy) -> VariableCopy:
    return VariableCopy(step.destination, step.sources, step.axis, step.location)


def _group(graph: Graph, g: Vertices, received: dict[tuple[int, str, int], str], number: int) -> VertexGroup:
    operands = tuple(Operand(o, received.get((number, g.name, k), "")) for k, o in enumerate(g.operands))
    return VertexGroup(g.name, _codelet(graph, g), g.form, g.plan, operands, g.results, g.location)


def _codelet(graph: Graph, g: Vertices) -> Codelet:
    """Return what the executable holds of a codelet: itself, or compiled code where it is a user's."""
    if not is_exported(g.codelet):
        return g.codelet
    dtypes = [tuple(graph.tensors[name].dtype for name in names) for names in (g.operands, g.results)]
    try:
        return export_codelet(g.codelet, g.form, g.plan, *dtypes, graph.target)
    except IpuError as error:
        raise error.at(g.location or None) from error.__cause__


def _overheads(graph: Graph, draft: Executable) -> list[Request]:
    """Return the buffers that are neither data nor exchange code: vertex state and scratch, code, control code, stacks."""
    target, last = graph.target, len(draft.steps)
    every = (1 << target.num_tiles) - 1
    requests: list[Request] = []
    code: dict[str, tuple[int, int]] = {}
    for number, group in draft.groups():
        scratch = scratch_bytes(draft, group)
        if scratch:
            name, mask = f"{group.name}.scratch", group.plan.tile_mask
            requests.append(
                Request(name, "vertexScratch", scratch, mask, number, number, location=group.location)
            )
        state = group.codelet.state_bytes(group.form, target)
        requests.append(
            Request(
                f"{group.name}.state",
                "vertexInstanceState",
                state,
                group.plan.tile_mask,
                -1,
                last,
                location=group.location,
            )
        )
        mask, size = code.get(group.codelet.label, (0, 0))
        code[group.codelet.label] = (mask | group.plan.tile_mask, max(size, variant_bytes(draft, group)))
    requests += host_requests(draft)
    for label, (mask, size) in code.items():
        requests.append(Request(f"code {label}", "vertexCode", size, mask, -1, last, executable=True))
    control = target.control_code_bytes_per_step * max(1, last)
    requests.append(Request("control code", "controlCode", control, every, -1, last, executable=True))
    stacks = target.supervisor_stack_bytes + target.workers_per_tile * target.worker_stack_bytes
    requests.append(Request("stacks", "stack", stacks, every, -1, last))
    return requests


EXCHANGE_CODE_SIZES = 64
"""Sizes of exchange code that are told apart: each tile has room for its own, in whole steps of the largest's share."""


def _exchange_code(draft: Executable, own: list[np.ndarray]) -> list[Request]:
    """Return the buffers of exchange code; every tile holds what it needs itself, and lies in one of them."""
    sizes = exchange_code_sizes(draft, own)
    unit = align_up(ceil_div(int(sizes.max(initial=0)), EXCHANGE_CODE_SIZES), 8)
    if not unit:
        return []
    classes = ceil_div(sizes, unit)
    return [
        Request(
            f"exchange code {number}",
            "internalExchangeCode",
            number * unit,
            mask_of(np.flatnonzero(classes == number)),
            -1,
            len(draft.steps),
            executable=True,
        )
        for number in np.unique(classes).tolist()
        if number
    ]


def _assemble(
    graph: Graph,
    storages: Storages,
    steps: tuple[StepRecord, ...],
    program: tuple[Part, tuple[VertexGroup, ...]],
    requests: list[Request],
    addresses: dict[str, int],
    fits: bool,
) -> Executable:
    tree, composites = program
    variables: dict[str, Variable] = {}
    for name, t in storages.tensors.items():
        assert t.layout is not None
        variables[name] = Variable(
            name, t.shape, t.dtype, t.layout, storages.of(name), t.kind, t.location, t.view_of, t.value
        )
    buffers = {
        r.name: Buffer(
            r.name,
            r.category,
            addresses[r.name],
            r.size_bytes,
            tile_ranges(r.mask),
            r.start,
            r.end,
            r.location,
        )
        for r in requests
    }
    return Executable(
        graph.name,
        graph.target,
        variables,
        buffers,
        steps,
        tree,
        tuple(graph.inputs),
        tuple(graph.outputs),
        graph.donated,
        fits,
        composites,
        dict(graph.streams),
        dict(graph.remote_buffers),
        system=graph.system,
        replicas=graph.replicas,
        differs_along=() if graph.system is None else tuple(map(graph.differs_along, graph.inputs)),
    )
