"""Live ranges, storage reuse, donation and interference on computations small enough to do by hand."""

import itertools

import pytest

from hlo_passes.ir import Module, Value, parse_computation, parse_module
from hlo_passes.passes import analyze, optimize
from hlo_passes.passes.buffers import LiveRange, temporary_bytes
from hlo_passes.passes.schedule import SCHEDULERS

CHAIN = """@main(%x: tensor<8xf32>, %y: tensor<8xf32>) {
  %a = stablehlo.add(%x, %y) : tensor<8xf32>
  %b = stablehlo.tanh(%a) : tensor<8xf32>
  %c = stablehlo.multiply(%a, %b) : tensor<8xf32>
  %d = stablehlo.reverse(%c) {dimensions = [0]} : tensor<8xf32>
  return %d
}
"""


def names(pairs) -> dict[str, str]:
    return {str(key): str(value) for key, value in pairs.items()}


def value(computation, name: str) -> Value:
    return next(v for v in analyze(computation).ranges if v.name == name)


def test_live_ranges():
    found = analyze(parse_computation(CHAIN), donated=(1,))
    assert {str(v): tuple(r) for v, r in found.ranges.items()} == {
        "%x": (-1, 4),  # the caller's, so it stays
        "%y": (-1, 0),  # donated, so it ends where it is read last
        "%a": (0, 2),
        "%b": (1, 2),
        "%c": (2, 3),
        "%d": (3, 4),
    }


def test_an_elementwise_result_takes_the_place_of_an_operand_that_ends():
    found = analyze(parse_computation(CHAIN), donated=(1,))
    assert names(found.reuses) == {
        "%a": "%y",
        "%c": "%a",
    }  # %b: %a is read again; %d: a reverse is not in place
    assert analyze(parse_computation(CHAIN)).reuses.keys() == {
        Value("%c", value(parse_computation(CHAIN), "%c").type)
    }


def test_live_bytes_and_peak():
    found = analyze(parse_computation(CHAIN), donated=(1,))
    # x y | x a b | x a b | x c d: a is written over y, c over a
    assert found.live_bytes == (64, 96, 96, 96)
    assert (found.peak_bytes, found.peak_position) == (96, 1)
    assert analyze(parse_computation(CHAIN)).peak_bytes == 128


def test_interference_is_overlap_in_storage_apart():
    computation = parse_computation(CHAIN)
    found = analyze(computation, donated=(1,))
    a, b, c, d, x, y = (value(computation, f"%{n}") for n in "abcdxy")
    assert found.owner(c) == y and found.owner(b) == b
    assert found.interfere(a, b) and found.interfere(c, d) and found.interfere(x, d)
    assert not found.interfere(a, c) and not found.interfere(y, a) and not found.interfere(b, d)
    assert LiveRange(0, 2).overlaps(LiveRange(2, 3)) and not LiveRange(0, 1).overlaps(LiveRange(2, 3))


def test_a_donated_parameter_goes_to_the_result_computed_in_its_place_else_to_a_later_one():
    text = """@main(%p: tensor<4xf32>, %q: tensor<4xf32>, %r: tensor<4xf32>, %g: tensor<4xf32>) {
  %a = stablehlo.reverse(%q) {dimensions = [0]} : tensor<4xf32>
  %b = stablehlo.subtract(%p, %g) : tensor<4xf32>
  %c = stablehlo.reverse(%g) {dimensions = [0]} : tensor<4xf32>
  %d = stablehlo.add(%r, %c) : tensor<4xf32>
  %e = stablehlo.reverse(%d) {dimensions = [0]} : tensor<4xf32>
  %f = stablehlo.add(%r, %e) : tensor<4xf32>
  return %c, %b, %a, %f
}"""
    found = analyze(parse_computation(text), donated=(0, 1, 2))
    # p: its place is taken by b. q: a is made while q is read, c after it. r: f is written over it.
    assert found.donations == {0: 1, 1: 0, 2: 3}


def test_a_donated_parameter_that_is_a_result_stays_where_it_is():
    found = analyze(
        parse_computation("@main(%p: tensor<4xf32>, %q: tensor<4xf32>) {\n return %q, %p\n}"), (0, 1)
    )
    assert found.donations == {0: 1, 1: 0}


def test_a_loop_fusion_works_in_place_on_what_it_reads_at_its_own_index():
    text = """@main(%x: tensor<4xf32>, %y: tensor<4xf32>) {
  %a = stablehlo.reverse(%x) {dimensions = [0]} : tensor<4xf32>
  %b = stablehlo.reverse(%y) {dimensions = [0]} : tensor<4xf32>
  %c = hlo.fusion(%a, %b, %a) {kind = "loop"} [
    @f(%p: tensor<4xf32>, %q: tensor<4xf32>, %r: tensor<4xf32>) {
      %0 = stablehlo.add(%p, %q) : tensor<4xf32>
      %1 = stablehlo.reverse(%r) {dimensions = [0]} : tensor<4xf32>
      %2 = stablehlo.add(%0, %1) : tensor<4xf32>
      return %2
    }
  ] : tensor<4xf32>
  return %c
}"""
    assert names(analyze(parse_computation(text)).reuses) == {"%c": "%b"}


def test_constants_keep_their_storage():
    text = """@main(%x: tensor<4xf32>) {
  %a = stablehlo.constant() {value = dense<1.0 : tensor<f32>>} : tensor<4xf32>
  %b = stablehlo.add(%a, %x) : tensor<4xf32>
  return %b
}"""
    assert analyze(parse_computation(text)).reuses == {}


def test_calls_need_what_their_callee_needs():
    module = parse_module("""module @m entry @main {
  @main(%x: tensor<8xf32>) {
    %a = func.call(%x) {callee = "f"} : tensor<1xf32>
    return %a
  }
  @f(%x: tensor<8xf32>) {
    %a = stablehlo.broadcast_in_dim(%x) {shape = [100, 8], broadcast_dimensions = [1]} : tensor<100x8xf32>
    %b = stablehlo.slice(%a) {start = [0, 0], limit = [1, 1], strides = [1, 1]} : tensor<1x1xf32>
    %c = stablehlo.reshape(%b) {shape = [1]} : tensor<1xf32>
    return %c
  }
}""")
    needed = temporary_bytes(module)
    assert needed == {"f": 3200, "main": 3200}
    assert analyze(module.entry_computation, (), needed).peak_bytes == 32 + 4 + 3200


# ---- orders

BRANCHES = """@main(%x: tensor<4xf32>) {
  %a = stablehlo.broadcast_in_dim(%x) {shape = [9, 4], broadcast_dimensions = [1]} : tensor<9x4xf32>
  %b = stablehlo.broadcast_in_dim(%x) {shape = [5, 4], broadcast_dimensions = [1]} : tensor<5x4xf32>
  %c = stablehlo.slice(%a) {start = [0, 0], limit = [2, 4], strides = [1, 1]} : tensor<2x4xf32>
  %d = stablehlo.concatenate(%b, %b) {dimension = 0} : tensor<10x4xf32>
  %e = stablehlo.slice(%d) {start = [0, 0], limit = [2, 4], strides = [1, 1]} : tensor<2x4xf32>
  %f = stablehlo.reverse(%c) {dimensions = [1]} : tensor<2x4xf32>
  %g = stablehlo.add(%e, %f) : tensor<2x4xf32>
  return %g
}"""


def orders(computation):
    """Return the peak of every order in which operands come before their readers."""
    peaks = []
    for order in itertools.permutations(computation.instructions):
        seen = set(computation.parameters)
        for instruction in order:
            if not seen.issuperset(instruction.operands):
                break
            seen.update(instruction.results)
        else:
            changed = type(computation)(computation.name, computation.parameters, order, computation.results)
            peaks.append(analyze(changed).peak_bytes)
    return peaks


def test_schedule_finds_the_least_peak_of_all_orders():
    computation = parse_computation(BRANCHES)
    peaks = orders(computation)
    scheduled = optimize(Module("m", (computation,), "main"), "schedule").entry_computation
    assert min(peaks) < analyze(computation).peak_bytes
    assert analyze(scheduled).peak_bytes == min(peaks)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_keeps_operands_before_readers(name):
    computation = parse_computation(BRANCHES.replace("return %g", "return %g, %x, %b"))
    order = SCHEDULERS[name](computation)
    assert sorted(order) == list(range(len(computation.instructions)))
    seen = set(computation.parameters)
    for position in order:
        assert seen.issuperset(computation.instructions[position].operands)
        seen.update(computation.instructions[position].results)
