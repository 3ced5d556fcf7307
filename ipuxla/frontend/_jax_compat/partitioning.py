"""One device's program of a module for many."""

# pyright: standard, reportPrivateImportUsage=false
# (private names are this module's purpose)

from __future__ import annotations

import itertools
import pathlib
import re
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax._src import compiler as _compiler
from jax._src.interpreters import mlir as _mlir
from jax._src.lib import _jax as _jaxlib
from jax._src.lib import xla_client as _xla_client
from jaxlib import _hlo as _hlo_bindings  # pyright: ignore[reportAttributeAccessIssue]

from ipuxla.frontend._jax_compat.clients import cpu_client
from ipuxla.frontend._jax_compat.edge_padding import pad_at_edges
from ipuxla.frontend._jax_compat.sharded_modules import main_of, separate_shardings
from ipuxla.frontend._jax_compat.walking import operations


def partitioned_module(
    module: Any, num_devices: int, free: tuple[Sequence[bool], Sequence[bool]]
) -> tuple[Any, list[str], list[str]]:
    """Have XLA's partitioner make the program of one device. Hides clients, compile options, dumps and protos.

    A CPU client with as many devices as needed is made in this process, and compiles the module, which it dumps behind
    the pass that partitions. Nothing runs, and nothing becomes code: the module has another result, of a custom call that
    nobody implements, which ends the compilation before that, and loops are not fused for it. Partitioning a training step
    of twelve transformer layers takes a fifth of compiling it.

    Args:
      module: an MLIR module of StableHLO with shardings.
      num_devices: devices of its mesh.
      free: which arguments, and which results, XLA may choose the sharding of.

    Returns:
      An MLIR module, and as XLA's text the sharding of each argument and of each result.

    Raises:
      ValueError: XLA refuses it; the message is one line.
    """
    _require_survivable(module)
    options = _compiler.get_compile_options(
        num_replicas=1,
        num_partitions=num_devices,
        device_assignment=np.arange(num_devices).reshape(1, num_devices),
    )
    build = options.executable_build_options
    build.use_shardy_partitioner = True
    build.allow_spmd_sharding_propagation_to_parameters = list(free[0])
    build.allow_spmd_sharding_propagation_to_output = [*free[1], False]
    with tempfile.TemporaryDirectory() as folder:
        options.env_option_overrides = [
            ("xla_dump_to", folder),
            ("xla_dump_hlo_as_proto", True),
            ("xla_dump_hlo_pass_re", "spmd-partitioning"),
            ("xla_backend_optimization_level", 0),
            ("xla_disable_hlo_passes", "fusion"),  # comes behind partitioning alone
        ]
        ending = _ending(module)
        pad_at_edges(ending)
        bytecode = _mlir.module_to_bytecode(ending)
        if (
            b"mhlo.sharding" in bytecode
        ):  # GSPMD's marks, with which XLA ends the process that reads others (jaxlib 0.11)
            options.env_option_overrides = [
                *options.env_option_overrides,
                ("xla_enable_hlo_sharding_v3", False),
            ]
        failure = None
        try:
            client = cpu_client(num_devices)
            devices = _xla_client.DeviceList(tuple(client.devices()))
            client.compile_and_load(bytecode, devices, options)
        except (RuntimeError, ValueError) as error:  # what comes behind partitioning is of no interest
            failure = error
        dumps = [path for path in pathlib.Path(folder).iterdir() if _PARTITIONED.search(path.name)]
        if len(dumps) != 1:
            raise ValueError(_one_line(str(failure or "no program came back")))
        proto = _first_field(dumps[0].read_bytes())
    bytecode = _jaxlib.mlir.hlo_to_stablehlo(proto)
    context = _mlir.make_ir_context()
    with context:
        local = _mlir.ir.Module.parse(bytecode)
    _without_ending(local)
    _write_groups(local, _groups_along_meshes(proto))
    attributes: Any = local.operation.attributes
    said = "mhlo.spmd_parameters_shardings"  # which is not there where there are no arguments
    inputs = [each.value for each in attributes[said]] if said in attributes else []
    return local, inputs, separate_shardings(attributes["mhlo.spmd_output_sharding"].value)[:-1]


def _require_survivable(module: Any) -> None:
    """Raise ValueError where XLA (jaxlib 0.10.2) would end the process: at sums of bfloat16 by hand over some axes only."""
    for op in operations(module):
        if op.name not in _REDUCTIONS or "bf16" not in str(op.results[0].type):
            continue
        around = op
        while around is not None and around.name != "sdy.manual_computation":
            parent = around.parent
            around = parent.operation if parent is not None else None
        if around is None:
            continue
        axes = re.findall(r'"([^"]+)"', str(around.attributes["manual_axes"]))
        meshes = [str(each.attributes["mesh"]) for each in operations(module) if each.name == "sdy.mesh"]
        sizes = dict(re.findall(r'"([^"]+)"=(\d+)', " ".join(meshes)))
        if any(int(size) > 1 for name, size in sizes.items() if name not in axes):
            raise ValueError(
                "its partitioner ends the process at a reduction of bfloat16 between devices in a shard_map over some axes of "
                "the mesh; reduce in float32 or float16, or map over all axes"
            )


def _ending(module: Any) -> Any:
    """Return a copy of a module with another result, the last one: of a custom call that no compiler implements."""
    ir = _mlir.ir
    copy = ir.Module.parse(_mlir.module_to_bytecode(module), module.context)
    with copy.context, ir.Location.unknown():
        main = main_of(copy)
        returned = _returned(main)
        with ir.InsertionPoint(returned):
            call = ir.Operation.create(
                "stablehlo.custom_call",
                results=[ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))],
                attributes={"call_target_name": ir.StringAttr.get(_ENDING)},
            )
            ir.Operation.create("func.return", operands=[*returned.operands, call.results[0]])
        returned.erase()
        _set_results(main, [*main.type.results, call.results[0].type], lambda attributes: [*attributes, {}])
    return copy


def _without_ending(module: Any) -> None:
    """Take the result of ``_ending`` out of a module."""
    ir = _mlir.ir
    with module.context, ir.Location.unknown():
        main = main_of(module)
        returned = _returned(main)
        *results, last = returned.operands
        with ir.InsertionPoint(returned):
            ir.Operation.create("func.return", operands=results)
        returned.erase()
        last.owner.erase()
        _set_results(main, main.type.results[:-1], lambda attributes: attributes[:-1])


def _returned(function: Any) -> Any:
    block = function.regions[0].blocks[0]
    return block.operations[len(block.operations) - 1].operation


def _set_results(function: Any, types: Sequence[Any], attributes: Any) -> None:
    """Set a function's types of results, and their attributes to what a function makes of them where there are any."""
    ir = _mlir.ir
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(function.type.inputs, types))
    if "res_attrs" in function.attributes:
        old = [{each.name: each.attr for each in one} for one in function.attributes["res_attrs"]]
        new = [ir.DictAttr.get(each) for each in attributes(old)]
        function.attributes["res_attrs"] = ir.ArrayAttr.get(new)


def _one_line(message: str) -> str:
    """Return what XLA says in one line; of an error in a function that it called back, that function's own."""
    first, *others = message.strip().splitlines()
    if not first.endswith(_TRACEBACK):
        return first[:400]
    frames = list(itertools.takewhile(lambda line: line.startswith(" "), others))
    said = "".join(others[len(frames) : len(frames) + 1])
    places = re.findall(r'File "([^"]+)", line (\d+)', "\n".join(frames))
    return said[:400] + (f" (from {':'.join(places[-1])})" if places else "")


_TRACEBACK = "Traceback (most recent call last):"
_MESH_GROUPS = re.compile(
    r"channel_id=(\d+), replica_groups=mesh\[([^]]*)\](?:, device_ids=\(([^()]*(?:\([^()]*\))?)\))? \{([^}]*)\}"
)


def _groups_along_meshes(proto: bytes) -> dict[int, np.ndarray]:
    """Return the groups of collectives that XLA says by axes of a mesh, int64 ``[groups, members]``, by channel.

    Its conversion to StableHLO (jaxlib 0.10.2) drops the order of the devices in a mesh. Hides ``HloModule``.
    """
    text = _hlo_bindings.HloModule.from_serialized_hlo_module_proto(proto).to_string()
    found: dict[int, np.ndarray] = {}
    for channel, axes, order, wanted in _MESH_GROUPS.findall(text):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
        devices = _device_order(order, int(np.prod(list(sizes.values()), dtype=np.int64)))
        found[int(channel)] = _groups_along(devices, sizes, wanted)
    return found


def _device_order(text: str, count: int) -> np.ndarray:
    """Return the devices of a mesh in order, from a list or the transposition of a numbering (``[2,4]T(1,0)``)."""
    transposed = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text.strip())
    if transposed is None:
        listed = [int(number) for number in re.findall(r"\d+", text)]
        return np.array(listed or range(count), np.int64)
    dims, permutation = ([int(n) for n in (part or "").split(",") if n] for part in transposed.groups())
    numbers = np.arange(count).reshape(dims)
    return numbers.transpose(permutation or range(len(dims))).reshape(-1)


def _groups_along(devices: np.ndarray, sizes: dict[str, int], wanted: str) -> np.ndarray:
    """Return the groups of devices along axes of a mesh or parts of them (``'a':(2)4``: 4, within 2 slower ones)."""
    places = dict(zip(sizes, np.indices(tuple(sizes.values())).reshape(len(sizes), -1), strict=True))
    within, others = np.zeros(len(devices), np.int64), np.arange(len(devices))
    strides = np.cumprod([1, *list(sizes.values())[::-1]])[-2::-1]
    stride_of = dict(zip(sizes, map(int, strides), strict=True))
    members = 1
    for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", wanted):
        part = int(size) if size else sizes[name]
        inner = sizes[name] // (int(before or 1) * part)
        digit = places[name] // inner % part
        within, others = within * part + digit, others - digit * inner * stride_of[name]
        members *= part
    return devices[np.lexsort([within, others])].reshape(-1, members)


def _write_groups(module: Any, groups: dict[int, np.ndarray]) -> None:
    """Write groups as tables into the collectives of a module, by channel."""
    ir = _mlir.ir
    if not groups:
        return
    with module.context:
        for op in operations(module):
            if "channel_handle" in op.attributes and "replica_groups" in op.attributes:
                channel = int(re.findall(r"handle = (\d+)", str(op.attributes["channel_handle"]))[0])
                if channel in groups:
                    op.attributes["replica_groups"] = ir.DenseIntElementsAttr.get(groups[channel])  # pyright: ignore


_REDUCTIONS = frozenset({"stablehlo.all_reduce", "stablehlo.reduce_scatter"})
_ENDING = "ipuxla.ends_here"
_PARTITIONED = re.compile(r"after_spmd-partitioning.*\.hlo\.pb$")


def _first_field(proto: bytes) -> bytes:
    """Return the first field of a message, which is length-delimited: of an HloProto its module."""
    length, shift, start = 0, 0, 1
    while True:
        byte = proto[start]
        length |= (byte & 127) << shift
        shift, start = shift + 7, start + 1
        if not byte & 128:
            return proto[start : start + length]


def tiles_of(sharding: str, rank: int) -> tuple[tuple[int, ...], np.ndarray]:
    """Return into how many parts a sharding splits each dimension, and the devices of the parts ``[*parts, copies]``.

    Hides ``HloSharding``.

    Raises:
      ValueError: it is none that splits arrays, such as one that keeps an array on one device.
    """
    found = _hlo_bindings.HloSharding.from_string(sharding)
    if found.is_replicated():
        return (1,) * rank, np.zeros(0, np.int64)
    if not found.is_tiled():
        raise ValueError(f"a sharding that is no tiling: {sharding}")
    dims = tuple(found.tile_assignment_dimensions())
    devices = np.array(found.tile_assignment_devices(), np.int64).reshape(*dims[:rank], -1)
    return dims[:rank], devices
