"""StableHLO's exchanges with the host. Their tokens are dropped: they keep the order of the program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from hlo_passes import ops
from hlo_passes.ir import Location, Value
from ipuxla.frontend import narrow
from ipuxla.frontend._jax_compat import mlir
from ipuxla.frontend.attributes import flag, text
from ipuxla.frontend.legalization import Reader, Scope
from ipuxla.frontend.nested import Operand

_CHANNEL = re.compile(r"handle\s*=\s*(-?\d+)\s*,\s*type\s*=\s*(\d+)")
_KINDS = {1: "DEVICE_TO_DEVICE", 2: "DEVICE_TO_HOST", 3: "HOST_TO_DEVICE"}
"""Types of channels by their numbers in ``#stablehlo.channel_handle``."""


class _Channel(NamedTuple):
    channel_id: int
    channel_type: str


def _channel(scope: Scope, op: mlir.Operation, location: Location) -> _Channel:
    """Return the channel of a transfer with the host."""
    found = _CHANNEL.search(str(op.attributes["channel_handle"]))
    assert found is not None, op
    number, kind = map(int, found.groups())
    if not flag(op, "is_host_transfer") or _KINDS.get(kind) == "DEVICE_TO_DEVICE":
        raise scope.unsupported(op, location, "a host transfer: one device has no other to exchange with")
    return _Channel(number, _KINDS.get(kind, str(kind)))


def _values(scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location) -> list[Value]:
    """Return the operands that are no tokens; of types that a stream holds as they are."""
    for value in (*op.operands, *op.results):
        if narrow.narrow_element(str(value.type)) is not None:
            raise scope.unsupported(op, location, f"items of a type of whole bytes, unlike {value.type}")
        if "complex" in str(value.type):
            raise scope.unsupported(op, location, "two items: the real and the imaginary part")
    return [operand for operand in operands if isinstance(operand, Value)]


def _send(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    values = _values(scope, op, operands, location)
    made = ops.Send(*_channel(scope, op, location))
    return [list(scope.emit_all(made, values, location)) if values else []]


def _outfeed(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    values = _values(scope, op, operands, location)
    made = ops.Outfeed(text(op, "outfeed_config"))
    return [list(scope.emit_all(made, values, location)) if values else []]


def _recv(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    _values(scope, op, operands, location)
    types = tuple(scope.result_types(op, location))
    made = ops.Recv(types, *_channel(scope, op, location))
    return [*(scope.emit_all(made, (), location) if types else ()), []]


def _infeed(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    _values(scope, op, operands, location)
    types = tuple(scope.result_types(op, location))
    made = ops.Infeed(types, text(op, "infeed_config"))
    return [*(scope.emit_all(made, (), location) if types else ()), []]


TRANSFERS: dict[str, Reader] = {
    ops.Infeed.name: _infeed,
    ops.Outfeed.name: _outfeed,
    ops.Recv.name: _recv,
    ops.Send.name: _send,
}
