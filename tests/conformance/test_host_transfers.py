"""Infeed, outfeed, send and recv: items of streams in program order, on every engine, through every pass."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import ipuxla
from hlo_passes.errors import EvaluationError, UnsupportedOp, VerificationError
from hlo_passes.ir import evaluate_module, parse_module, print_module, verify
from hlo_passes.passes import PASSES
from ipuxla.errors import WrongArguments
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.lowering import UnsupportedLowering
from tests.unit.tiles.test_report_profile import check as follows_schema
from tiles.errors import InvalidArguments, Unsupported
from tiles.numerics.ring import to_ring
from tiles.report import profile_schema
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=16)
ENGINES = ("hlo", "fast", "literal", "vertex")

NEXT = """
func.func private @next(%t: !stablehlo.token) -> (tensor<4xf32>, !stablehlo.token) {
  %r:2 = "stablehlo.infeed"(%t) {infeed_config = "data", layout = [[0]]}
    : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)
  return %r#0, %r#1 : tensor<4xf32>, !stablehlo.token
}"""

LOOP = f"""
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> (tensor<4xf32>, tensor<i32>) {{
  %t = stablehlo.create_token : !stablehlo.token
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %w:3 = stablehlo.while(%i = %zero, %s = %x, %k = %t) : tensor<i32>, tensor<4xf32>, !stablehlo.token
  cond {{
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }} do {{
    %r:2 = func.call @next(%k) : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)
    %a = stablehlo.add %s, %r#0 : tensor<4xf32>
    %o = "stablehlo.outfeed"(%a, %i, %r#1) {{outfeed_config = "log"}}
      : (tensor<4xf32>, tensor<i32>, !stablehlo.token) -> !stablehlo.token
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %a, %o : tensor<i32>, tensor<4xf32>, !stablehlo.token
  }}
  %y:2 = func.call @next(%w#2) : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)
  %s2 = "stablehlo.send"(%y#0, %y#1)
    {{channel_handle = #stablehlo.channel_handle<handle = 5, type = 2>, is_host_transfer = true}}
    : (tensor<4xf32>, !stablehlo.token) -> !stablehlo.token
  %q:2 = "stablehlo.recv"(%s2)
    {{channel_handle = #stablehlo.channel_handle<handle = 6, type = 3>, is_host_transfer = true}}
    : (!stablehlo.token) -> (tensor<i32>, !stablehlo.token)
  return %w#1, %q#0 : tensor<4xf32>, tensor<i32>
}}{NEXT}"""

DATA = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
START = np.ones(4, np.float32)


def _words(array: np.ndarray, arithmetic: str) -> np.ndarray:
    with jax.enable_x64(True):
        return array if arithmetic == "float" else np.asarray(to_ring(array))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("arithmetic", ["float", "ring"])
def test_infeed_outfeed_send_and_recv_in_loops_and_functions(
    engine: str, arithmetic: str, tmp_path: Any
) -> None:
    compiled = ipuxla.compile_stablehlo(LOOP, TARGET, engine=engine, arithmetic=arithmetic)
    if engine == "literal":
        compiled.certify()
        compiled.save(tmp_path / "loop.ipuxla")
        compiled = ipuxla.load(tmp_path / "loop.ipuxla")
    assert [s.name for s in compiled.streams.values() if not s.to_host] == ["data", "recv.6"]
    streams = {"data": DATA, "recv.6": np.array([42], np.int32)}
    (total, answer), received = compiled(START, np.int32(3), streams=streams)
    sums, total_by_hand = [], _words(START, arithmetic)
    for item in _words(DATA, arithmetic)[:3]:
        total_by_hand = total_by_hand + item
        sums.append(total_by_hand)
    assert received.keys() == {"log.0", "log.1", "send.5"} and answer == 42
    np.testing.assert_array_equal(received["log.0"], np.stack(sums))
    np.testing.assert_array_equal(received["log.1"], [0, 1, 2])
    np.testing.assert_array_equal(received["send.5"], _words(DATA, arithmetic)[3:4])
    np.testing.assert_array_equal(total, sums[-1])
    if engine == "fast":
        data = compiled.profile(START, np.int32(3), streams=streams).data
        follows_schema(data, profile_schema(), profile_schema())
        moved = {s["name"]: s["items"] for s in data["execution"]["streams"]}
        assert moved == {"data": 4, "log.0": 3, "log.1": 3, "send.5": 1, "recv.6": 1}


TEMPTING = """
func.func @main(%x: tensor<2xf32>, %p: tensor<i1>) -> tensor<2xf32> {
  %t = stablehlo.create_token : !stablehlo.token
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %unread:2 = "stablehlo.infeed"(%t) {infeed_config = ""} : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)
  %equal:2 = "stablehlo.infeed"(%t) {infeed_config = ""} : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)
  %again:2 = "stablehlo.infeed"(%t) {infeed_config = ""} : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)
  %d = stablehlo.subtract %equal#0, %again#0 : tensor<2xf32>
  %b = "stablehlo.if"(%p) ({
    %o = "stablehlo.outfeed"(%d, %t) {outfeed_config = ""} : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token
    stablehlo.return %x : tensor<2xf32>
  }, {
    %r:2 = "stablehlo.infeed"(%t) {infeed_config = ""} : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)
    stablehlo.return %x : tensor<2xf32>
  }) : (tensor<i1>) -> tensor<2xf32>
  %w:2 = stablehlo.while(%i = %zero, %u = %x) : tensor<i32>, tensor<2xf32>
  cond {
    %c:2 = "stablehlo.infeed"(%t) {infeed_config = "condition"}
      : (!stablehlo.token) -> (tensor<i32>, !stablehlo.token)
    %q = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %q : tensor<i1>
  } do {
    %o1 = "stablehlo.outfeed"(%x, %t) {outfeed_config = ""} : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token
    %v = stablehlo.add %u, %x : tensor<2xf32>
    %o2 = "stablehlo.outfeed"(%v, %t) {outfeed_config = ""} : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %v : tensor<i32>, tensor<2xf32>
  }
  %n:2 = "stablehlo.infeed"(%t) {infeed_config = ""} : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)
  %o3 = "stablehlo.outfeed"(%zero, %t) {outfeed_config = "last"} : (tensor<i32>, !stablehlo.token) -> !stablehlo.token
  return %n#0 : tensor<2xf32>
}"""


def _tempting(predicate: bool, **options: Any) -> None:
    """Run what passes would drop, merge, move or fold if transfers had no effect, against what it says."""
    compiled = ipuxla.compile_stablehlo(TEMPTING, TARGET, **options)
    items = np.arange(10, dtype=np.float32).reshape(5, 2) ** 2
    x = np.array([3, -5], np.float32)
    streams = {"infeed": items, "condition": np.zeros(3, np.int32)}
    (result,), received = compiled(x, np.bool_(predicate), streams=streams)
    np.testing.assert_array_equal(result, items[3 if predicate else 4])
    sent = [items[1] - items[2]] * predicate + [x, 2 * x, x, 3 * x]
    np.testing.assert_array_equal(received["outfeed"], np.stack(sent))
    np.testing.assert_array_equal(received["last"], [0])
    if "passes" in options:
        return
    with pytest.raises(InvalidArguments, match="stream condition runs out of items"):
        compiled(x, np.bool_(predicate), streams=streams | {"condition": np.zeros(2, np.int32)})


@pytest.mark.parametrize("passes", [None, "", *PASSES])
def test_no_pass_drops_merges_moves_or_folds_a_transfer(passes: str | None) -> None:
    _tempting(True, engine="hlo", passes=passes)
    if passes is None:
        _tempting(False, engine="hlo")


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_engines_keep_the_order_of_transfers(engine: str) -> None:
    _tempting(True, engine=engine)
    _tempting(False, engine=engine)


SENTINEL = """
func.func @main() -> tensor<f32> {
  %t = stablehlo.create_token : !stablehlo.token
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %w:2 = stablehlo.while(%s = %zero, %x = %zero) : tensor<f32>, tensor<f32>
  cond {
    %p = stablehlo.compare GE, %x, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %r:2 = "stablehlo.infeed"(%t) : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %a = stablehlo.add %s, %r#0 : tensor<f32>
    %o = "stablehlo.outfeed"(%a, %t) : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    stablehlo.return %a, %r#0 : tensor<f32>, tensor<f32>
  }
  return %w#0 : tensor<f32>
}"""


@pytest.mark.parametrize("engine", ENGINES)
def test_items_that_decide_do_so_as_floats_in_the_ring_too(engine: str) -> None:
    items = np.array([*range(1, 81), -1, 7], np.float32)
    for arithmetic in ("float", "ring"):
        run = ipuxla.compile_stablehlo(SENTINEL, TARGET, engine=engine, arithmetic=arithmetic)
        (total,), received = run(streams={"infeed": items})
        given = _words(items[:81], arithmetic)
        np.testing.assert_array_equal(received["outfeed"], np.cumsum(given, dtype=given.dtype))
        np.testing.assert_array_equal(total, given.sum(dtype=given.dtype))
        with pytest.raises(InvalidArguments, match="stream infeed runs out of items") as caught:
            run(streams={"infeed": items[:9]})
        assert caught.value.location == "<stablehlo>:10"


def _transfer(op: str, result: str = "tensor<2xf32>") -> str:
    return f"""func.func @main(%x: tensor<2xf32>, %y: tensor<2xcomplex<f32>>) -> tensor<2xf32> {{
      %t = stablehlo.create_token : !stablehlo.token
      {op}
      return %x : tensor<2xf32>
    }}"""


CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, is_host_transfer = false"
REFUSED = {
    "send to a device": (
        f'%s = "stablehlo.send"(%x, %t) {{{CHANNEL}}} : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token',
        "one device has no other",
    ),
    "recv from a device": (
        f'%r:2 = "stablehlo.recv"(%t) {{{CHANNEL}}} : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)',
        "one device has no other",
    ),
    "complex items": (
        '%s = "stablehlo.outfeed"(%y, %t) : (tensor<2xcomplex<f32>>, !stablehlo.token) -> !stablehlo.token',
        "the real and the imaginary part",
    ),
    "items of parts of bytes": (
        '%r:2 = "stablehlo.infeed"(%t) : (!stablehlo.token) -> (tensor<2xui4>, !stablehlo.token)',
        "whole bytes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_stream_can_carry_is_refused(case: str) -> None:
    op, words = REFUSED[case]
    with pytest.raises(UnsupportedOp, match=words) as caught:
        import_stablehlo(_transfer(op))
    assert "<stablehlo>:3" in str(caught.value)


def test_a_stream_has_one_type_and_one_direction() -> None:
    infeed = '"stablehlo.infeed"(%t) {infeed_config = "a"} : (!stablehlo.token) -> '
    two = (
        f"%r:2 = {infeed}(tensor<2xf32>, !stablehlo.token)\n%q:2 = {infeed}(tensor<3xf32>, !stablehlo.token)"
    )
    out = '%o = "stablehlo.outfeed"(%x, %t) {outfeed_config = "a"} : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token'
    both = f"%r:2 = {infeed}(tensor<2xf32>, !stablehlo.token)\n{out}"
    for op in (two, both):
        text = _transfer(op).replace(", %y: tensor<2xcomplex<f32>>", "")
        for engine in ("fast", "hlo"):
            with pytest.raises(UnsupportedLowering, match="stream a moves items of one type one way"):
                ipuxla.compile_stablehlo(text, TARGET, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_items_without_elements_and_transfers_of_nothing(engine: str) -> None:
    text = """func.func @main() -> tensor<0x3xf32> {
      %t = stablehlo.create_token : !stablehlo.token
      %r:2 = "stablehlo.infeed"(%t) : (!stablehlo.token) -> (tensor<0x3xf32>, !stablehlo.token)
      %n = "stablehlo.infeed"(%r#1) : (!stablehlo.token) -> !stablehlo.token
      %o = "stablehlo.outfeed"(%n) {outfeed_config = "none"} : (!stablehlo.token) -> !stablehlo.token
      %s = "stablehlo.outfeed"(%r#0, %o) : (tensor<0x3xf32>, !stablehlo.token) -> !stablehlo.token
      return %r#0 : tensor<0x3xf32>
    }"""
    compiled = ipuxla.compile_stablehlo(text, TARGET, engine=engine)
    (result,), received = compiled(streams={"infeed": np.zeros((2, 0, 3), np.float32)})
    assert result.shape == (0, 3) and {k: v.shape for k, v in received.items()} == {"outfeed": (1, 0, 3)}


@pytest.mark.parametrize("engine", ["hlo", "fast"])
def test_calls_that_do_not_fit_are_named(engine: str) -> None:
    compiled = ipuxla.compile_stablehlo(LOOP, TARGET, engine=engine)
    with pytest.raises(InvalidArguments, match="are others than those given"):
        compiled(START, np.int32(3))
    with pytest.raises(InvalidArguments, match=r"stream data(.|\n)*float32\[items, 4\](.|\n)*float32\[5\]"):
        compiled(START, np.int32(3), streams={"data": DATA[:, 0], "recv.6": np.zeros(1, np.int32)})
    with pytest.raises(InvalidArguments, match="stream data runs out of items"):
        compiled(START, np.int32(9), streams={"data": DATA, "recv.6": np.zeros(1, np.int32)})
    with pytest.raises(
        Unsupported, match=r"exchanges items with the host: data, log\.0, log\.1, send\.5, recv\.6"
    ):
        compiled.run(START, np.int32(3))
    with pytest.raises(WrongArguments):
        compiled(START, streams={})


def test_transfers_in_the_ir() -> None:
    module = import_stablehlo(LOOP)
    verify(module)
    assert [c.name for c in module.computations] == ["main"]  # what transfers stands where it is called
    assert print_module(parse_module(print_module(module))) == print_module(module)
    with pytest.raises(EvaluationError, match="is read where there is no host"):
        evaluate_module(module, START, np.int32(3))
    text = """module @m entry @main {
      @main() {
        %0 = func.call() {callee = "f"} : tensor<2xf32>
        return %0
      }
      @f() {
        %0 = stablehlo.infeed() : tensor<2xf32>
        return %0
      }
    }
    """
    with pytest.raises(VerificationError, match="stands where it is called"):
        verify(parse_module(text))
    text = """module @m entry @main {
      @main(%x: tensor<4xf32>, %i: tensor<f32>) {
        %0 = stablehlo.reduce(%x, %i) {dimensions = [0]} [
          @add(%a: tensor<f32>, %b: tensor<f32>) {
            %c = stablehlo.infeed() : tensor<f32>
            return %c
          }
        ] : tensor<f32>
        return %0
      }
    }
    """
    with pytest.raises(VerificationError, match="region of elements exchanges"):
        verify(parse_module(text))
