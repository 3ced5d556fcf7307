"""What lowering may rely on in a fusion, checked on its text's structure alone."""

from __future__ import annotations

from hlo_passes.ir import Instruction, Module
from hlo_passes.ops import (
    BitcastConvert,
    BroadcastInDim,
    Constant,
    DotGeneral,
    Fusion,
    Iota,
    Pad,
    Reduce,
    Reshape,
    Reverse,
    Slice,
    Transpose,
    simple_combiner,
)
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes import Fuse, index_maps

MOVEMENT = (BroadcastInDim, Transpose, Slice, Reverse, Reshape, Pad, Iota, Constant)


def check_fusions(module: Module, max_ops: int = 4 * Fuse().max_ops) -> int:
    """Check every fusion of a module; return how many there are."""
    count = 0
    for instruction in module.walk():
        if isinstance(instruction.op, Fusion):
            check_fusion(instruction, max_ops)
            count += 1
    return count


def check_fusion(fusion: Instruction, max_ops: int) -> None:
    assert isinstance(fusion.op, Fusion)
    (region,) = fusion.regions
    root = region.results[0]
    assert len(region.results) == 1 or fusion.op.kind == "loop"
    assert {result.type.shape for result in region.results} == {root.type.shape}
    assert 1 < len(region.instructions) <= max_ops + 1
    last = region.producers[root]
    read = {v for i in region.instructions for v in i.operands} | set(region.results)
    assert read.issuperset(region.parameters), "a parameter that nothing reads"
    special = [
        i
        for i in region.instructions
        if isinstance(i.op, Reduce if fusion.op.kind == "input" else DotGeneral)
    ]
    match fusion.op.kind:
        case "loop":
            injective = region.instructions
            assert len(index_maps(region)) <= len(region.parameters), "a parameter read through two maps"
        case "input":
            (reduce,) = special
            operand, initial = reduce.operands
            assert reduce is last and simple_combiner(reduce.regions[0]) is not None
            made = region.producers.get(initial)
            assert initial in region.parameters or (made is not None and isinstance(made.op, Constant))
            injective = tuple(i for i in region.instructions if i is not reduce)
            assert operand.type.dtype == reduce.result.type.dtype
        case "output":
            (dot,) = special
            assert set(dot.operands) <= set(region.parameters)
            assert dot is not last and dot.result.type.shape == root.type.shape
            injective = tuple(i for i in region.instructions if i is not dot)
            for i in injective:
                assert isinstance(i.op, (Elementwise, BroadcastInDim, Constant, Iota, Reshape))
                assert not isinstance(i.op, Elementwise) or i.result.type.shape == root.type.shape
        case kind:
            raise AssertionError(f"unknown kind {kind}")
    for i in injective:
        _check_injective(i, region)


def _check_injective(instruction: Instruction, region) -> None:
    op = instruction.op
    assert isinstance(op, (Elementwise, *MOVEMENT)), op
    if isinstance(op, Constant):
        assert op.is_splat
    if isinstance(op, (Reshape, BitcastConvert)):
        shapes = (instruction.operands[0].type.shape, instruction.result.type.shape)
        assert len({tuple(n for n in shape if n != 1) for shape in shapes}) == 1
    if isinstance(op, Pad):
        operand, value = instruction.operands
        assert operand in region.parameters and isinstance(region.producers[value].op, Constant)
        assert not any(op.interior) and min((*op.low, *op.high)) >= 0
