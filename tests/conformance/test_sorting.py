"""``sort`` by keys that are recognized, by any other comparator, and of several arrays together."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from hlo_passes.ir import Builder, Module, TensorType, evaluate_module, verify
from hlo_passes.ops import SortKey, TopK, sort_keys
from ipuxla.frontend.importer import import_stablehlo
from tests.conformance.conftest import assert_equal, parsed_again

X = np.array([[3, -0.0, np.nan, 0, -np.inf, 7, 3, 1], [1, 2, 3, -np.nan, 5, -6, np.inf, 8]], np.float32)
N = np.array([[3, 1, 2, 3, 1, 3, 0, 2], [5, 4, 4, 3, -1, 0, 0, 9]], np.int32)
P = np.arange(16, dtype=np.int32).reshape(2, 8)


def _text(body, types=("f32",), dimension=1, shape="2x8"):
    tensors = [f"tensor<{shape}x{t}>" for t in types]
    names = [f"%x{n}" for n in range(len(types))]
    arguments = ", ".join(f"{name}: {t}" for name, t in zip(names, tensors, strict=True))
    pairs = ", ".join(f"%a{n}: tensor<{t}>, %b{n}: tensor<{t}>" for n, t in enumerate(types))
    results = [f"%0#{n}" for n in range(len(types))] if len(types) > 1 else ["%0"]
    count = f":{len(types)}" if len(types) > 1 else ""
    out = ", ".join(tensors)
    return f"""func.func @main({arguments}) -> ({out}) {{
      %0{count} = "stablehlo.sort"({", ".join(names)}) ({{
        ^bb0({pairs}):
          {body}
          stablehlo.return %r : tensor<i1>
      }}) {{dimension = {dimension} : i64, is_stable = true}} : ({out}) -> ({out})
      return {", ".join(results)} : {out}
    }}"""


def _compare(direction, kind="FLOAT", n=0, dtype="f32"):
    types = f"(tensor<{dtype}>, tensor<{dtype}>) -> tensor<i1>"
    return f"stablehlo.compare {direction}, %a{n}, %b{n}, {kind} : {types}"


def _keys(text):
    return sort_keys(import_stablehlo(text).entry_computation.instructions[-1].regions[0])


@pytest.mark.parametrize("dimension", [0, 1, -1])
@pytest.mark.parametrize("direction", ["LT", "GT"])
def test_by_one_key(direction, dimension, conforms):
    text = _text(f"%r = {_compare(direction)}", dimension=dimension)
    conforms(text, np.where(np.isnan(X), 4, X))
    assert _keys(text) == (SortKey(0, direction == "GT", False),)


@pytest.mark.parametrize("direction", ["LT", "GT"])
def test_total_order(direction, evaluates_to):
    text = _text(f"%r = {_compare(direction, 'TOTALORDER')}")
    assert _keys(text) == (SortKey(0, direction == "GT", True),)
    words = X.view(np.int32)
    order = np.argsort(words ^ ((words >> 31) & 0x7FFFFFFF), axis=1, kind="stable")
    ascending = np.take_along_axis(X, order, axis=1)
    expected = ascending if direction == "LT" else ascending[:, ::-1]
    evaluates_to(text, [X], [expected])


def test_several_arrays_by_two_keys(conforms):
    body = f"""%l = {_compare("LT", "SIGNED", 0, "i32")}
      %e = {_compare("EQ", "SIGNED", 0, "i32")}
      %g = {_compare("GT", "FLOAT", 1, "f32")}
      %m = stablehlo.and %e, %g : tensor<i1>
      %r = stablehlo.or %m, %l : tensor<i1>"""
    text = _text(body, ("i32", "f32", "i32"))
    assert _keys(text) == (SortKey(0, False, False), SortKey(1, True, False))
    conforms(text, N, np.where(np.isnan(X), 4, X), P)


def test_equal_elements_keep_their_order(conforms):
    conforms(_text(f"%r = {_compare('GT', 'SIGNED', 0, 'i32')}", ("i32", "i32")), N, P)


ABSOLUTE = """%p = stablehlo.abs %a0 : tensor<f32>
  %q = stablehlo.abs %b0 : tensor<f32>
  %r = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>"""


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_any_comparator_runs_in_a_network(size, conforms):
    text = _text(ABSOLUTE, ("f32", "i32"), shape=f"2x{size}")
    assert _keys(text) is None
    conforms(text, (N - 2).astype(np.float32)[:, :size], P[:, :size])


@pytest.mark.parametrize("num_keys", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8, np.bool_])
def test_what_jax_writes_is_recognized(num_keys, dtype, evaluates_to):
    values = X if np.dtype(dtype).kind == "f" else N % 3
    arrays = values.astype(dtype), values[::-1].astype(dtype), P
    sort = jax.jit(lambda *xs: lax.sort(xs, num_keys=num_keys))
    text = sort.lower(*arrays).as_text()
    assert _keys(text) == tuple(SortKey(n, False, False) for n in range(num_keys))
    evaluates_to(text, arrays, [jnp.asarray(x) for x in sort(*arrays)])


def test_top_k_is_a_sort_in_total_order():
    text = jax.jit(lambda x: lax.top_k(x, 3)).lower(X).as_text()
    (sort,) = (i for i in import_stablehlo(text).walk() if i.op.name == "stablehlo.sort")
    assert sort_keys(sort.regions[0]) == (SortKey(0, True, True),)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8])
@pytest.mark.parametrize("k", [0, 1, 5, 8])
def test_selecting_is_sorting_and_slicing(k, dtype):
    x = (X if np.dtype(dtype).kind == "f" else N % 5).astype(dtype)
    main = Builder("main")
    results = main.emit(TopK(k, 1), main.parameter(TensorType.of(x)))
    module = parsed_again(Module("m", (main.build(*results),), "main"))
    verify(module)
    found = [np.asarray(y) for y in evaluate_module(module, x)]
    assert_equal(found, [np.asarray(y) for y in jax.jit(lax.top_k, static_argnums=1)(x, k)], 0)


@pytest.mark.parametrize("is_total", [False, True])
@pytest.mark.parametrize("is_descending", [False, True])
def test_selecting_in_any_order(is_descending, is_total):
    columns = X.view(np.int32) if is_total else np.where(np.isnan(X), np.inf, X)
    columns = columns ^ ((columns >> 31) & 0x7FFFFFFF) if is_total else columns
    order = np.argsort(-columns if is_descending else columns, axis=0, kind="stable")[:1]
    found = TopK(1, 0, is_descending, is_total).evaluate(jnp.asarray(X))
    np.testing.assert_array_equal(found[1], order)
    np.testing.assert_array_equal(found[0], np.take_along_axis(X, order, 0))


@pytest.mark.parametrize("engine", ["fast", "literal", "hlo"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float16"])
def test_nans_of_any_bits_are_in_order_and_kept(dtype, engine, gc200):
    """By their words: the greatest are in IEEE's total order, a sort has NaN last and equal ones as they came."""
    width = jnp.dtype(dtype).itemsize
    quiet, sign = {"bfloat16": 0x7FC0, "float8_e5m2": 0x7E, "float16": 0x7E00}[dtype], 1 << 8 * width - 1
    one = quiet >> 1
    words = np.array(
        [quiet + 1, quiet, one + 1, quiet | sign, one, quiet + 1 | sign, quiet + 1] * 3, f"u{width}"
    )
    signed = words.astype(np.int64)
    signed = np.where(signed & sign, -1 - (signed & ~sign), signed)
    greatest = np.argsort(-signed, kind="stable")
    sorted_ = np.argsort(np.where(words & quiet == quiet, 1 << 40, signed), kind="stable")

    @functools.partial(ipuxla.jit, target=gc200.replace(num_tiles=8), engine=engine)
    def function(x):
        positions = lax.iota(np.int32, x.size)
        return *lax.top_k(x, x.size), *lax.sort((x, positions), num_keys=1)

    values, places, in_order, positions = map(np.asarray, function(words.view(jnp.dtype(dtype))))
    np.testing.assert_array_equal(places, greatest)
    np.testing.assert_array_equal(values.view(words.dtype), words[greatest])
    np.testing.assert_array_equal(positions, sorted_)
    np.testing.assert_array_equal(in_order.view(words.dtype), words[sorted_])
