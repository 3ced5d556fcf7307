"""Exchanges with the host onto copies of streams and prints: an array of an item is an item of its own stream."""

from __future__ import annotations

import numpy as np

from hlo_passes.ir import Instruction, Module, TensorType
from hlo_passes.ops import HostTransfer, Infeed, Outfeed, Print, Recv, Send, Stop
from ipuxla.lowering.control import materialized
from ipuxla.lowering.errors import UnsupportedLowering
from ipuxla.lowering.registry import Lowering, dtype_of, lowers, where
from tiles.graph import CopyFromStream, CopyToStream, ErrorProgram, PrintTensor, Stream, Tensor, read_message


def streams_of(module: Module) -> dict[str, Stream]:
    """Return the streams of a module by name, in the order its entry first mentions them.

    Raises:
      UnsupportedLowering: items of one stream differ in type, or go both ways.
    """
    found: dict[str, Stream] = {}
    for instruction in module.entry_computation.walk():
        op = instruction.op
        if not isinstance(op, HostTransfer):
            continue
        values = instruction.operands if op.to_host else instruction.results
        for name, value in zip(op.streams(len(values)), values, strict=True):
            stream = Stream(name, dtype_of(value.type), value.type.shape, op.to_host, where(instruction))
            known = found.setdefault(name, stream)
            if (known.dtype, known.shape, known.to_host) != (stream.dtype, stream.shape, stream.to_host):
                raise UnsupportedLowering(
                    f"stream {name} moves items of one type one way",
                    location=stream.location or None,
                    expected=_described(known),
                    got=_described(stream),
                    try_="another infeed_config, outfeed_config or channel for the other items",
                )
    return found


def _described(stream: Stream) -> str:
    way = "to the host" if stream.to_host else "from the host"
    line = f", {stream.location}" if stream.location else ""
    return f"{stream.dtype}{list(stream.shape)} {way}{line}"


@lowers(Infeed, Recv)
def lower_from_host(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Copy the next item of every result's stream into a tensor, placed by its first reader."""
    assert isinstance(instruction.op, HostTransfer)
    location, made = where(instruction), list[Tensor]()
    names = instruction.op.streams(len(instruction.results))
    for name, value in zip(names, instruction.results, strict=True):
        tensor = lowering.graph.add_variable(*_type(value.type), name, location)
        lowering.program.add(CopyFromStream(name, tensor.name, location))
        made.append(tensor)
    return tuple(made)


@lowers(Outfeed, Send)
def lower_to_host(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Copy every operand to its stream."""
    assert isinstance(instruction.op, HostTransfer)
    names = instruction.op.streams(len(instruction.operands))
    for name, value in zip(names, instruction.operands, strict=True):
        lowering.program.add(CopyToStream(materialized(lowering, value).name, name, where(instruction)))
    return ()


@lowers(Print)
def lower_print(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Print every operand, one after another; a line that shows none prints a tensor without elements."""
    assert isinstance(instruction.op, Print)
    location, text = where(instruction), instruction.op.message
    tensors = [materialized(lowering, value) for value in instruction.operands]
    if not tensors:
        tensors = [lowering.graph.add_constant(np.zeros(0, np.bool_), "bool", "nothing", location)]
    title = read_message(text).template
    for part, tensor in enumerate(tensors):
        lowering.program.add(PrintTensor(tensor.name, title, location, text, part))
    return ()


@lowers(Stop)
def lower_stop(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Stop the run with the operand."""
    assert isinstance(instruction.op, Stop)
    (value,) = instruction.operands
    stop = ErrorProgram(materialized(lowering, value).name, instruction.op.message, where(instruction))
    lowering.program.add(stop)
    return ()


def _type(type_: TensorType) -> tuple[tuple[int, ...], str]:
    return type_.shape, dtype_of(type_)
