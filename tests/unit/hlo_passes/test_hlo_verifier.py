"""The verifier: one invalid module per rule, each error with the instruction and its line."""

import dataclasses

import pytest

from hlo_passes.errors import VerificationError
from hlo_passes.ir import Module, Value, parse_module, verify

VALID = """module @m entry @main donated(1) {
  @main(%x: tensor<2xf32>, %y: tensor<2xf32>) {
    %a = stablehlo.add(%x, %y) : tensor<2xf32> loc("model.py":5)
    %b = func.call(%a) {callee = "f"} : tensor<2xf32> loc("model.py":6)
    %s = stablehlo.constant() {value = dense<0.0 : tensor<f32>>} : tensor<f32>
    %r = stablehlo.reduce(%b, %s) {dimensions = [0]} [
      @add(%p: tensor<f32>, %q: tensor<f32>) {
        %t = stablehlo.add(%p, %q) : tensor<f32>
        return %t
      }
    ] : tensor<f32> loc("model.py":7)
    return %r
  }
  @f(%x: tensor<2xf32>) {
    %0 = stablehlo.negate(%x) : tensor<2xf32>
    return %0
  }
}
"""


def test_valid_module_passes():
    verify(parse_module(VALID))


INVALID = [
    (
        "%y) : tensor<2xf32>",
        "%y) : tensor<3xf32>",
        "result types are tensor<3xf32>, the operation gives tensor<2xf32>",
    ),
    ("%y: tensor<2xf32>", "%y: tensor<3xf32>", "stablehlo.add breaks C1"),
    ('callee = "f"', 'callee = "g"', "@g is not a computation of the module"),
    (
        "@f(%x: tensor<2xf32>)",
        "@f(%x: tensor<2xf32>, %y: tensor<i32>)",
        "@f has type (tensor<2xf32>, tensor<i32>)",
    ),
    ("%0 = stablehlo.negate(%x)", '%0 = func.call(%x) {callee = "f"}', "call each other in a cycle: f -> f"),
    ("donated(1)", "donated(2)", "donated parameter 2 is outside 0..1"),
    ("entry @main", "entry @start", "entry @start is not among main, f"),
    ("@f(%x", "@main(%x", "computation @main is defined twice"),
    ("{dimensions = [0]}", "{dimensions = [1]}", "stablehlo.reduce breaks C4"),
    (
        "@add(%p: tensor<f32>, %q: tensor<f32>)",
        "@add(%p: tensor<f32>, %q: tensor<i32>)",
        "stablehlo.add breaks C1",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), INVALID, ids=range(len(INVALID)))
def test_invalid_module_is_refused(old, new, message):
    assert old in VALID
    with pytest.raises(VerificationError) as caught:
        verify(parse_module(VALID.replace(old, new, 1)))
    assert message in str(caught.value)


def test_error_shows_instruction_and_line():
    with pytest.raises(VerificationError) as caught:
        verify(parse_module(VALID.replace('callee = "f"', 'callee = "g"')))
    assert caught.value.instruction == '%b = func.call(%a) {callee = "g"} : tensor<2xf32> loc("model.py":6)'
    assert "from: model.py:6" in str(caught.value)


def _with_main(change):
    module = parse_module(VALID)
    return dataclasses.replace(
        module, computations=(change(module.entry_computation), *module.computations[1:])
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: dataclasses.replace(c, instructions=c.instructions[::-1]),
            "%b is used before it is defined",
        ),
        (
            lambda c: dataclasses.replace(c, instructions=c.instructions + c.instructions[:1]),
            "%a is defined twice",
        ),
        (
            lambda c: dataclasses.replace(c, results=(Value("%zz", c.results[0].type),)),
            "%zz is used before it is defined",
        ),
        (
            lambda c: dataclasses.replace(c, results=(Value("%a", c.results[0].type),)),
            "%a is used as tensor<f32> but",
        ),
        (
            lambda c: dataclasses.replace(
                c, instructions=(*c.instructions[:-1], dataclasses.replace(c.instructions[-1], regions=()))
            ),
            "expected 1 regions, got 0",
        ),
    ],
)
def test_what_no_text_can_say_is_refused_too(change, message):
    with pytest.raises(VerificationError) as caught:
        verify(_with_main(change))
    assert message in str(caught.value)


def test_regions_are_closed():
    with pytest.raises(Exception, match="a value defined above"):
        parse_module(VALID.replace("stablehlo.add(%p, %q)", "stablehlo.add(%p, %s)"))


def test_empty_module_is_refused():
    with pytest.raises(VerificationError, match="no computations"):
        verify(Module("m", (), "main"))
