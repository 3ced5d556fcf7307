"""Builder, rebuilding, uses and renaming."""

import pytest

from hlo_passes.errors import ConstraintViolation
from hlo_passes.ir import (
    Builder,
    Location,
    Module,
    TensorType,
    Value,
    canonical_computation,
    canonical_names,
    map_computations,
    parse_computation,
    print_computation,
    print_module,
    rebuild,
    replace_values,
    use_counts,
    users,
    value_names,
    verify_computation,
)
from hlo_passes.ops import Add, Constant, Multiply, Negate, OptimizationBarrier

F = TensorType((3,), "f32")

TEXT = """@main(%x: tensor<3xf32>, %y: tensor<3xf32>) {
  %a = stablehlo.add(%x, %y) : tensor<3xf32> loc("m.py":1)
  %b = stablehlo.negate(%a) : tensor<3xf32> loc("m.py":2)
  %c = stablehlo.multiply(%b, %b) : tensor<3xf32> loc("m.py":3)
  return %c, %b
}
"""


def test_builder_infers_types_and_numbers_values():
    builder = Builder("main")
    x = builder.parameter(F)
    y = builder.add(Add(), x, x, location=Location("m.py", 3))
    p, q = builder.add(OptimizationBarrier(), x, y)
    computation = builder.build(q, p)
    assert print_computation(computation) == (
        "@main(%arg0: tensor<3xf32>) {\n"
        '  %0 = stablehlo.add(%arg0, %arg0) : tensor<3xf32> loc("m.py":3)\n'
        "  %1, %2 = stablehlo.optimization_barrier(%arg0, %0) : tensor<3xf32>, tensor<3xf32>\n"
        "  return %2, %1\n"
        "}\n"
    )


def test_builder_refuses_wrong_operands():
    builder = Builder("main")
    x = builder.parameter(F)
    with pytest.raises(ConstraintViolation, match="C1"):
        builder.add(Add(), x, builder.parameter(TensorType((4,), "f32")))


def test_values_compare_by_name():
    assert Value("%0", F) == Value("%0", F.with_dtype("i8")) and Value("%0", F) != Value("%1", F)


def test_rebuild_that_keeps_everything_changes_nothing():
    computation = parse_computation(TEXT)
    assert print_computation(rebuild(computation, lambda *_: None)) == TEXT


def test_rebuild_replaces_an_instruction_and_leaves_other_names():
    def double_instead_of_negate(instruction, operands, builder):
        if not isinstance(instruction.op, Negate):
            return None
        two = builder.add(Constant.splat(2, F), location=instruction.location)
        return builder.add(Multiply(), two, *operands, location=instruction.location)

    changed = rebuild(parse_computation(TEXT), double_instead_of_negate)
    verify_computation(changed)
    assert print_computation(changed) == TEXT.replace(
        '  %b = stablehlo.negate(%a) : tensor<3xf32> loc("m.py":2)\n',
        '  %0 = stablehlo.constant() {value = dense<2.0 : tensor<f32>>} : tensor<3xf32> loc("m.py":2)\n'
        '  %1 = stablehlo.multiply(%0, %a) : tensor<3xf32> loc("m.py":2)\n',
    ).replace("(%b, %b)", "(%1, %1)").replace("return %c, %b", "return %c, %1")


def test_rebuild_may_forward_an_operand_or_drop_an_unused_result():
    def forward(instruction, operands, builder):
        return operands[0] if isinstance(instruction.op, Negate) else None

    assert "negate" not in print_computation(rebuild(parse_computation(TEXT), forward))
    with pytest.raises(KeyError):
        rebuild(
            parse_computation(TEXT),
            lambda instruction, *_: () if isinstance(instruction.op, Negate) else None,
        )


def test_uses():
    computation = parse_computation(TEXT)
    x, y = computation.parameters
    a, b, c = (instruction.result for instruction in computation.instructions)
    assert [len(users(computation)[value]) for value in (x, y, a, b, c)] == [1, 1, 1, 2, 0]
    assert [use_counts(computation)[value] for value in (x, y, a, b, c)] == [1, 1, 1, 3, 1]
    assert computation.producers[b].op == Negate() and x not in computation.producers
    assert value_names(computation) == {"%x", "%y", "%a", "%b", "%c"}


def test_replace_values_reaches_results():
    computation = parse_computation(TEXT)
    a, b, _ = (instruction.result for instruction in computation.instructions)
    changed = replace_values(computation, {b: a})
    assert changed.results[1] == a and changed.instructions[2].operands == (a, a)


def test_inline_renames_only_what_clashes():
    builder = Builder("outer")
    a = builder.parameter(F, "%a")
    results = builder.inline(parse_computation(TEXT), a, a)
    assert [value.name for value in results] == ["%c", "%b"]
    assert builder.instructions[0].result.name == "%0"
    verify_computation(builder.build(*results))


def test_canonical_text_is_the_same_for_renamed_computations():
    renamed = TEXT.replace("%a", "%zz").replace("%x", "%first").replace("%c", "%77")
    first, second = (canonical_computation(parse_computation(text)) for text in (TEXT, renamed))
    assert print_computation(first) == print_computation(second)
    assert [value.name for value in first.parameters] == ["%arg0", "%arg1"]


def test_canonical_names_of_a_module_are_stable():
    module = Module("m", (parse_computation(TEXT),), "main")
    once = canonical_names(module)
    assert print_module(canonical_names(once)) == print_module(once)
    assert print_module(map_computations(once, lambda computation: computation)) == print_module(once)
    with pytest.raises(KeyError):
        module.computation("other")
