"""Transfers with the host: items of streams and what is printed, one at every execution, in program order.

Tokens are not values here: what they order is ordered as the program is written, which every order that the
specification allows includes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jax import Array

from hlo_passes.ir.interpreter import Decisions
from hlo_passes.ir.op import Op
from hlo_passes.ir.types import TensorType


@dataclass(frozen=True)
class HostTransfer(Op):
    """What transfers have in common; not an operation itself.

    Class attributes:
      to_host: whether items go to the host.
    """

    has_effect: ClassVar[bool] = True
    is_transfer: ClassVar[bool] = True
    to_host: ClassVar[bool]

    @property
    def stream(self) -> str:
        """Name of the stream that an item of one array belongs to."""
        raise NotImplementedError(f"{type(self).__name__}.stream")

    def streams(self, count: int) -> tuple[str, ...]:
        """Return the names of the streams of an item of ``count`` arrays: one for each array."""
        return (self.stream,) if count == 1 else tuple(f"{self.stream}.{k}" for k in range(count))


@dataclass(frozen=True)
class _FromHost(HostTransfer):
    """Give the arrays of the next item."""

    to_host: ClassVar[bool] = False
    types: tuple[TensorType, ...]

    def exchange(self, host: Decisions, *operands: Array) -> tuple[Array, ...]:
        """Take the next item of every array's stream."""
        names = self.streams(len(self.types))
        return tuple(host.receive(name, t) for name, t in zip(names, self.types, strict=True))


@dataclass(frozen=True)
class _ToHost(HostTransfer):
    """Send the operands as the next item."""

    to_host: ClassVar[bool] = True

    def exchange(self, host: Decisions, *operands: Array) -> tuple[Array, ...]:
        """Append every operand to its stream."""
        for name, value in zip(self.streams(len(operands)), operands, strict=True):
            host.send(name, value)
        return ()


@dataclass(frozen=True)
class Infeed(_FromHost):
    """Read the next item of the infeed that ``infeed_config`` names. Spec: StableHLO "infeed", constraint C1."""

    name: ClassVar[str] = "stablehlo.infeed"
    types: tuple[TensorType, ...]
    infeed_config: str = ""

    @property
    def stream(self) -> str:
        """The configuration, which is text of any kind; ``infeed`` if it is empty."""
        return self.infeed_config or "infeed"

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return ``types``."""
        self.require_arity(operands, 0)
        self.require("C1", len(self.types) > 0, "an infeed has at least one result")
        return self.types


@dataclass(frozen=True)
class Outfeed(_ToHost):
    """Append the operands to the outfeed that ``outfeed_config`` names. Spec: StableHLO "outfeed"."""

    name: ClassVar[str] = "stablehlo.outfeed"
    outfeed_config: str = ""

    @property
    def stream(self) -> str:
        """The configuration, which is text of any kind; ``outfeed`` if it is empty."""
        return self.outfeed_config or "outfeed"

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return nothing."""
        return ()


@dataclass(frozen=True)
class Recv(_FromHost):
    """Receive the next item of a channel from the host. Spec: StableHLO "recv", constraints C5 and C6.

    One device has no other to receive from: a transfer is always the host's.
    """

    name: ClassVar[str] = "stablehlo.recv"
    types: tuple[TensorType, ...]
    channel_id: int
    channel_type: str = "HOST_TO_DEVICE"

    @property
    def stream(self) -> str:
        """``recv.`` and the channel's number."""
        return f"recv.{self.channel_id}"

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return ``types``."""
        self.require_arity(operands, 0)
        is_host = self.channel_type == "HOST_TO_DEVICE"
        self.require("C5", is_host, lambda: f"expected channel type HOST_TO_DEVICE, got {self.channel_type}")
        self.require("C6", len(self.types) > 0, "a recv has at least one result")
        return self.types


@dataclass(frozen=True)
class Send(_ToHost):
    """Send the operands to the host on a channel. Spec: StableHLO "send", constraint C5.

    One device has no other to send to: a transfer is always the host's.
    """

    name: ClassVar[str] = "stablehlo.send"
    channel_id: int
    channel_type: str = "DEVICE_TO_HOST"

    @property
    def stream(self) -> str:
        """``send.`` and the channel's number."""
        return f"send.{self.channel_id}"

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return nothing."""
        is_host = self.channel_type == "DEVICE_TO_HOST"
        self.require("C5", is_host, lambda: f"expected channel type DEVICE_TO_HOST, got {self.channel_type}")
        return ()


@dataclass(frozen=True)
class Stop(Op):
    """End the program, which says ``message`` and hands its operand to the host. Spec: none in StableHLO.

    Where nothing can end there, in a run that is traced, what follows is computed and not used.
    """

    name: ClassVar[str] = "hlo.stop"
    has_effect: ClassVar[bool] = True
    is_transfer: ClassVar[bool] = True
    message: str

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return nothing. Constraint: C1 the operand is not complex."""
        self.require_arity(operands, 1)
        self.require("C1", not operands[0].is_complex, "the operand is not complex")
        return ()

    def exchange(self, host: Decisions, *operands: Array) -> tuple[Array, ...]:
        """Hand message and operand to the host."""
        host.stop(self.message, *operands)
        return ()


@dataclass(frozen=True)
class Print(Op):
    """Show the operands on the host as the line of text that ``message`` makes of them.

    Spec: none in StableHLO; JAX's ``debug_print``. ``message`` is data that this package does not read. Operands
    are not complex. A line without operands is one, too.
    """

    name: ClassVar[str] = "hlo.print"
    has_effect: ClassVar[bool] = True
    is_transfer: ClassVar[bool] = True
    message: str

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return nothing. Constraint: C1 no operand is complex."""
        is_real = not any(operand.is_complex for operand in operands)
        self.require("C1", is_real, "a complex value is printed as its real and its imaginary part")
        return ()

    def exchange(self, host: Decisions, *operands: Array) -> tuple[Array, ...]:
        """Hand message and operands to the host."""
        host.show(self.message, operands)
        return ()
