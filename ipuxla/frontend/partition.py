"""A module for many devices to the program of one, by XLA's own partitioner, and how its arguments and results are sharded.

The module is JAX's, of a traced function, or anyone's, as text or bytes with the shardings that it says itself.

What a sharding means (propagation, halos, which collectives, sizes that do not divide) is XLA's. A module that is
written by hand for one device throughout, one ``shard_map`` over all axes, needs no partitioner: its body is the
program, for any number of devices.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ipuxla.errors import InvalidOption, Unsupported
from ipuxla.frontend import _jax_compat as compat
from ipuxla.frontend._jax_compat import mlir
from ipuxla.frontend._jax_compat.clients import MAX_DEVICES
from ipuxla.frontend._jax_compat.shardy import with_shardings
from ipuxla.frontend.collectives import COLLECTIVES
from ipuxla.frontend.locations import read_location
from ipuxla.frontend.shardings import Shardings
from ipuxla.frontend.untrusted import require_shallow
from ipuxla.sharding import ArraySharding, Digits, Mesh, Placement, digits_of_axes
from tiles import isolated


class Partitioned(NamedTuple):
    """One device's program, an MLIR module of StableHLO, and how its arguments and results are sharded.

    Args:
      module: of one device.
      placement: of arguments and results on the devices.
      argument_shapes: of the whole arguments.
      is_whole: whether the program was written as that of all devices throughout, so that all its collectives are the
        partitioner's and what decides in it is the same on every device.
    """

    module: mlir.Module
    placement: Placement
    argument_shapes: tuple[tuple[int, ...], ...]
    is_whole: bool = False


Free = tuple[Sequence[bool], Sequence[bool]]
"""Which arguments, and which results, XLA may choose the sharding of."""


def partition(module: mlir.Module, shardings: Shardings, donated: Sequence[int] = ()) -> Partitioned:
    """Return the program of one device.

    Args:
      module: an MLIR module of StableHLO for the devices of a mesh; it may be consumed.
      shardings: the mesh, and what was said of arguments and results.
      donated: arguments to mark as donated.

    Raises:
      Unsupported: more devices than XLA partitions for, or XLA refuses the module.
    """
    free = [s is None for s in shardings.inputs], [s is None for s in shardings.outputs]
    return _partition(module, shardings.axes, free, donated)


def partition_said(
    module: mlir.Source,
    mesh: Mesh,
    inputs: Sequence[Sequence[Sequence[str]]],
    donated: Sequence[int] = (),
    untrusted: bool = False,
) -> Partitioned:
    """Return the program of one device of a module that says nothing of devices itself.

    Args:
      module: an MLIR module of StableHLO, text or bytes.
      mesh: names and sizes of the axes.
      inputs: for each argument, for each of its dimensions, the names of the axes that shard it.
      donated: arguments to mark as donated.
      untrusted: whether text or bytes are read and partitioned in a child process.

    Raises:
      InvalidOption: the module exchanges something among the one device that it is for.
      Unsupported: more devices than XLA partitions for, or XLA refuses the module.
    """
    if untrusted and isinstance(module, str | bytes):
        said = {"mesh": mesh, "inputs": inputs, "donated": list(donated)}
        found = _partition_apart(module, said)
        assert found is not None
        return found
    said = {number: tuple(map(tuple, dimensions)) for number, dimensions in enumerate(inputs)}
    made = with_shardings(module, mesh, said)
    exchange = compat.find_operation(made, frozenset(COLLECTIVES))
    if exchange is not None:  # XLA would take its groups for those of the mesh
        raise InvalidOption(
            f"the program exchanges something among the one device that it is written for ({exchange.name}), and is to be shared out",
            location=str(read_location(exchange.location)) or None,
            got=", ".join(f"{name}={size}" for name, size in mesh),
            try_='shard="mesh: one IPU", or a function written for the mesh',
        )
    free = [False] * len(said), [True] * len(compat.shapes_of_main(made)[1])
    return _partition(made, mesh, free, donated)


def partition_source(source: str | bytes, untrusted: bool = False) -> Partitioned | None:
    """Return the program of one device of a module that is written for several together; None for any other.

    A module is that if it says of some value how devices hold it (Shardy's dialect, what jax.export makes of it, or
    GSPMD's marks) and its mesh, or ``mhlo.num_partitions``, is of several. A module that is one device's program as it
    stands, whatever its collectives, is none.

    Args:
      source: text, bytecode or a portable artifact.
      untrusted: whether it is read and partitioned in a child process, see ``untrusted.read_apart``.

    Raises:
      InvalidOption: two meshes in one module.
      Unsupported: more devices than XLA partitions for, replicas of several partitions, or XLA refuses the module.
    """
    blob = _as_bytes(source)
    if not any(mark in blob for mark in _MARKS):
        return None
    return _partition_apart(source, {}) if untrusted else _partition_source(source)


def _as_bytes(source: str | bytes) -> bytes:
    return source.encode(errors="surrogatepass") if isinstance(source, str) else source


def _partition_apart(source: str | bytes, said: Mapping[str, object]) -> Partitioned | None:
    """Return the answer of a child process: of ``partition_said`` where shardings are given, else of ``_partition_source``."""
    blob = base64.b64encode(_as_bytes(source)).decode()
    request = {"is_text": isinstance(source, str), "source": blob, **said}
    try:
        function, data = f"{__name__}:partition_for_another", json.dumps(request).encode()
        answer = json.loads(isolated.call(function, data, processor_limit_s=isolated.PARTITIONER_LIMIT_S))
    except ValueError as error:
        raise _refused(error, "another sharding; if the module is your own, untrusted=False") from error
    if answer is None:
        return None
    if "refused" in answer:
        raise _REFUSALS[answer["refused"]](answer["message"])
    module = compat.module_of_bytecode(base64.b64decode(answer["module"]))
    shapes = tuple(map(tuple, answer["argument_shapes"]))
    return Partitioned(module, Placement.from_data(answer["placement"]), shapes, answer["is_whole"])


def partition_for_another(request: bytes) -> bytes:
    """Answer ``partition_source``, or ``partition_said``, in a child process."""
    asked = json.loads(request)
    blob = base64.b64decode(asked["source"])
    source = blob.decode() if asked["is_text"] else blob
    try:
        if "mesh" in asked:
            mesh = tuple((name, size) for name, size in asked["mesh"])
            found = partition_said(source, mesh, asked["inputs"], asked["donated"])
        else:
            found = _partition_source(source)
    except tuple(_REFUSALS.values()) as error:
        return json.dumps({"refused": type(error).__name__, "message": str(error)}).encode()
    if found is None:
        return b"null"
    answer = {
        "module": base64.b64encode(compat.module_bytecode(found.module)).decode(),
        "placement": found.placement.to_data(),
        "argument_shapes": found.argument_shapes,
        "is_whole": found.is_whole,
    }
    return json.dumps(answer).encode()


_MARKS = (b"sdy", b"mhlo.sharding", b"SPMDFullToShardShape")
"""What the text or bytes of a module with shardings hold; one without is not read twice."""
_TRANSFERS = frozenset({"stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send", "stablehlo.recv"})
_REFUSALS = {kind.__name__: kind for kind in (InvalidOption, Unsupported)}


def _partition_source(source: str | bytes) -> Partitioned | None:
    try:
        require_shallow(source)
    except ValueError:
        return None  # told where the module is imported
    try:
        found = compat.read_for_devices(source)
    except (ValueError, RuntimeError) as error:
        raise _refused(error, "a function @main of tensors") from error
    if found is None:
        return None
    mesh, *others = found.meshes
    if others:
        raise InvalidOption(
            "one module is written for two meshes",
            expected=_shown(mesh),
            got=_shown(others[0]),
            try_="one mesh with the axes of both",
        )
    if found.num_replicas > 1:
        raise Unsupported(
            f"a module of {found.num_replicas:,} replicas with shardings over the partitions of each",
            expected="mhlo.num_replicas = 1",
            try_="one mesh with an axis for the replicas",
        )
    transfer = compat.find_operation(found.module, _TRANSFERS)
    if transfer is not None:
        raise Unsupported(
            f"{transfer.name} in a program of several IPUs: each of them would exchange its own part with the host",
            location=str(read_location(transfer.location)) or None,
            expected="arguments and results only",
            try_="take the value as an argument, or return it",
        )
    return _partition(found.module, mesh, found.free, found.donated)


def _partition(module: mlir.Module, mesh: Mesh, free: Free, donated: Sequence[int]) -> Partitioned:
    axes = digits_of_axes(mesh)
    try:
        argument_shapes, shapes = compat.shapes_of_main(module)
    except ValueError as error:
        raise _refused(error, "arguments and results that are tensors") from error
    manual = compat.manual_body(module, [name for name, _ in mesh])
    if manual is not None:
        local, *dimensions = manual
        inputs, outputs = (
            tuple(
                ArraySharding(tuple(tuple(axes[name] for name in names) for names in each)) for each in role
            )
            for role in dimensions
        )
        return Partitioned(local, Placement(mesh, inputs, outputs, shapes), argument_shapes)
    num_devices = math.prod(size for _, size in mesh)
    if num_devices > MAX_DEVICES:
        raise Unsupported(
            f"a program of {num_devices:,} devices is partitioned by XLA, which does so for {MAX_DEVICES:,} at most",
            try_="write it for one device: jax.shard_map over all axes of the mesh, around the whole function",
        )
    ranks = [len(shape) for shape in argument_shapes], [len(shape) for shape in shapes]
    is_whole = compat.find_operation(module, frozenset(COLLECTIVES)) is None
    try:
        ready = compat.with_whole_dimensions(compat.with_plain_indices(module), mesh)
        local, *texts = compat.partitioned_module(ready, num_devices, free)
        inputs, outputs = (
            tuple(_sharding(text, rank, mesh) for text, rank in zip(*role, strict=True))
            for role in zip(texts, ranks, strict=True)
        )
    except (ValueError, RuntimeError) as error:  # bindings raise RuntimeError at names that are not UTF-8
        raise _refused(error, "another sharding, or jax.shard_map around what it refuses") from error
    if donated:
        compat.mark_donated(local, donated)
    return Partitioned(local, Placement(mesh, inputs, outputs, shapes), argument_shapes, is_whole)


def _refused(error: Exception, try_: str) -> Unsupported:
    return Unsupported(f"XLA's partitioner refuses the program: {error}", try_=try_)


def _shown(mesh: Mesh) -> str:
    return ", ".join(f"{name}={size}" for name, size in mesh)


def _sharding(text: str, rank: int, mesh: Mesh) -> ArraySharding:
    """Return a sharding in XLA's text as digits of a device's number.

    Raises:
      ValueError: it cuts by no digits.
    """
    parts, devices = compat.tiles_of(text, rank)
    if math.prod(parts) == 1:
        return ArraySharding(((),) * rank)
    places = np.indices(devices.shape).reshape(rank + 1, -1)
    by_device = places[:, np.argsort(devices.reshape(-1), kind="stable")]
    return ArraySharding(tuple(_digits(place, mesh) for place in by_device[:rank]))


def _digits(place: np.ndarray, mesh: Mesh) -> Digits:
    """Return the digits of a device's number that make up its place along a dimension, int64 ``[devices]``."""
    whole = [digit for digit in digits_of_axes(mesh).values() if digit[0] > 1]
    prime = [part for digit in whole for part in _prime_digits(*digit)]
    numbers = np.arange(len(place))
    for digits in (whole, prime):
        weights = [int(place[stride]) for _, stride in digits]
        value = sum(
            (
                numbers // stride % size * weight
                for (size, stride), weight in zip(digits, weights, strict=True)
            ),
            np.zeros_like(place),
        )
        if (value == place).all():
            ordered = sorted(zip(weights, digits, strict=True), reverse=True)
            return tuple(digit for weight, digit in ordered if weight)
    raise ValueError("a sharding that cuts across the axes of the mesh")


def _prime_digits(size: int, stride: int) -> list[tuple[int, int]]:
    """Return a digit as digits of prime sizes, the slowest first."""
    found: list[tuple[int, int]] = []
    factor = 2
    while size > 1:
        if size % factor:
            factor += 1
            continue
        found.append((factor, stride))
        size, stride = size // factor, stride * factor
    return found[::-1]
