"""Calls onto functions of the graph: a body is placed once, arguments are copied in and results out."""

from __future__ import annotations

import math
from dataclasses import replace

from hlo_passes.ir import Computation, Instruction
from hlo_passes.ops import Call
from ipuxla.lowering.movement import lower_computation
from ipuxla.lowering.registry import Function, Lowering, lowers, where
from tiles.graph import Call as ProgramCall
from tiles.graph import Copy, Sequence, Tensor


@lowers(Call)
def lower_call(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Call a function of the graph: its body is placed once, arguments are copied in and results out.

    A callee that the module calls once is placed where it is called.
    """
    assert isinstance(instruction.op, Call)
    name = instruction.op.callee
    callee = lowering.module.computation(name)
    arguments = [lowering.tensor(v) for v in instruction.operands]
    if lowering.call_counts[name] == 1:
        return lower_computation(lowering, callee, arguments)
    function = lowering.functions.get(name) or _function(lowering, callee, arguments)
    lowering.functions[name] = function
    location = where(instruction)
    for argument, parameter in zip(arguments, function.parameters, strict=True):
        _copy_into(lowering, argument, parameter, location)
    lowering.program.add(ProgramCall(name))
    results: list[Tensor] = []
    for result in function.results:
        copy = lowering.graph.add_tensor(result.shape, result.dtype, f"{name}.result", location=location)
        _copy_into(lowering, result, copy, location)
        results.append(copy)
    return tuple(results)


def _function(lowering: Lowering, callee: Computation, arguments: list[Tensor]) -> Function:
    """Place a callee's body once, on parameters of its own."""
    graph, body = lowering.graph, Sequence()
    parameters = tuple(graph.add_variable(t.shape, t.dtype, f"{callee.name}.parameter") for t in arguments)
    results = lower_computation(replace(lowering, program=body), callee, list(parameters))
    graph.functions[callee.name] = body
    return Function(parameters, results)


def _copy_into(lowering: Lowering, source: Tensor, destination: Tensor, location: str) -> None:
    if math.prod(source.shape):
        lowering.program.add(Copy(destination.name, (source.name,), None, location))
