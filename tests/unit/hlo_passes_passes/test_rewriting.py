"""Names and source lines that survive rewriting, and control flow that passes look into."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_passes.ir import (
    DTYPES,
    Builder,
    Module,
    TensorType,
    evaluate_module,
    parse_computation,
    parse_module,
    print_instruction,
    print_module,
)
from hlo_passes.ops import Constant, Divide, Maximum, Minimum, Power, Remainder
from hlo_passes.passes import optimize, with_whole_scopes
from ipuxla.frontend.importer import import_stablehlo


def optimized(text: str, pipeline: str):
    computation = parse_computation(text)
    return optimize(Module("m", (computation,), computation.name), pipeline).entry_computation


def test_a_replacement_keeps_name_and_line():
    entry = optimized(
        """@main(%x: tensor<2x3xf32>) {
      %r = stablehlo.reshape(%x) {shape = [6]} : tensor<6xf32> loc("model.py":1)
      %s = stablehlo.reshape(%r) {shape = [3, 2]} : tensor<3x2xf32> loc("model.py":2)
      return %s
    }""",
        "canonicalize,dce",
    )
    (instruction,) = entry.instructions
    assert instruction.result.name == "%s" and str(instruction.location) == "model.py:2"


def test_a_product_merged_with_its_transpose_keeps_its_own_line():
    numbers = "#DotDimensionNumbers<lhs_contracting = [1], rhs_contracting = [0]>"
    entry = optimized(
        f"""@main(%x: tensor<2x3xf32>, %y: tensor<3x4xf32>) {{
      %d = stablehlo.dot_general(%x, %y) {{dimension_numbers = {numbers}, dtype = "f32"}}
        : tensor<2x4xf32> loc("m.py":1)
      %t = stablehlo.transpose(%d) {{permutation = [1, 0]}} : tensor<4x2xf32> loc("m.py":2)
      %e = stablehlo.exponential(%t) : tensor<4x2xf32> loc("m.py":3)
      return %e
    }}""",
        "canonicalize,dce,fuse",
    )
    (fusion,) = entry.instructions
    assert [str(i.location) for i in fusion.regions[0].instructions] == ["m.py:1", "m.py:3"]
    assert str(fusion.location) == "m.py:1" and fusion.result.name == "%e"


def test_a_fusion_holds_few_powers():
    """Each is a routine of hundreds of instructions, and what one keeps while the others run has to be spilled."""

    def zeta(x):
        return sum(jnp.power(x + n, -x) for n in range(10))

    module = import_stablehlo(jax.jit(zeta).lower(jnp.ones(6)).as_text())
    entry = optimize(module, "canonicalize,cse,dce,fuse").entry_computation
    powers = [
        sum(isinstance(inner.op, Power) for region in i.regions for inner in region.instructions)
        for i in entry.instructions
    ]
    assert sum(powers) == 10 and max(powers) <= 4


def test_inlined_operations_without_a_line_get_the_calls():
    module = parse_module("""module @m entry @main {
  @main(%x: tensor<4xf32>) {
    %a = func.call(%x) {callee = "f"} : tensor<4xf32> loc("model.py":9)
    return %a
  }
  @f(%x: tensor<4xf32>) {
    %0 = stablehlo.tanh(%x) : tensor<4xf32>
    %1 = stablehlo.abs(%0) : tensor<4xf32> loc("helper.py":2)
    return %1
  }
}""")
    entry = optimize(module, "inline").entry_computation
    assert [str(i.location) for i in entry.instructions] == ["model.py:9", "helper.py:2"]


NESTED = """module @m entry @main {
  @main(%x: tensor<4xf32>) {
    %a = func.call(%x) {callee = "f"} : tensor<4xf32> loc("model.py":9 in "Net/Block_0" [jvp])
    %b = func.call(%a) {callee = "f"} : tensor<4xf32> loc("model.py":10 in "Net/Block_1" [transpose])
    return %b
  }
  @f(%x: tensor<4xf32>) {
    %0 = func.call(%x) {callee = "g"} : tensor<4xf32> loc("layer.py":2 in "Dense_0" [vmap])
    return %0
  }
  @g(%x: tensor<4xf32>) {
    %0 = stablehlo.map(%x) {dimensions = [0]} [
      @region0(%arg0: tensor<f32>) {
        %0 = stablehlo.abs(%arg0) : tensor<f32> loc("abs.py":1)
        return %0
      }
    ] : tensor<4xf32> loc("map.py":1 in "act" [jvp])
    %1 = stablehlo.abs(%0) : tensor<4xf32>
    return %1
  }
}"""


def test_scopes_of_what_is_inlined_go_on_from_the_calls():
    entry = optimize(parse_module(NESTED), "inline").entry_computation
    assert [str(i.location) for i in entry.walk()] == [
        "map.py:1 in Net/Block_0/Dense_0/act [jvp, vmap]",
        "abs.py:1 in Net/Block_0/Dense_0 [jvp, vmap]",
        "layer.py:2 in Net/Block_0/Dense_0 [jvp, vmap]",
        "map.py:1 in Net/Block_1/Dense_0/act [transpose, vmap]",
        "abs.py:1 in Net/Block_1/Dense_0 [transpose, vmap]",
        "layer.py:2 in Net/Block_1/Dense_0 [transpose, vmap]",
    ]


def test_scopes_of_what_stays_a_function_are_what_its_calls_agree_on():
    whole = with_whole_scopes(parse_module(NESTED))
    assert [str(i.location) for i in whole.computation("g").walk()] == [
        "map.py:1 in Net/Block_*/Dense_0/act [vmap, jvp]",
        "abs.py:1 in Net/Block_*/Dense_0 [vmap]",
        "layer.py:2 in Net/Block_*/Dense_0 [vmap]",
    ]
    assert whole.entry_computation is not None and "Block_0" in str(
        whole.entry_computation.instructions[0].location
    )


def test_untouched_instructions_stay_the_same_objects():
    text = """@main(%x: tensor<4xf32>) {
      %a = stablehlo.tanh(%x) : tensor<4xf32>
      %b = stablehlo.negate(%a) : tensor<4xf32>
      %c = stablehlo.negate(%b) : tensor<4xf32>
      return %c
    }"""
    computation = parse_computation(text)
    entry = optimize(Module("m", (computation,), "main"), "canonicalize,dce").entry_computation
    assert entry.instructions == (computation.instructions[0],)
    assert print_instruction(entry.instructions[0]).startswith("%a = ")


def test_the_body_of_a_reduction_stays_as_it_is():
    text = """@main(%x: tensor<4xi32>, %v: tensor<i32>) {
      %a = stablehlo.reduce(%x, %v) {dimensions = [0]} [
        @r(%p: tensor<i32>, %q: tensor<i32>) {
          %o = stablehlo.constant() {value = dense<1 : tensor<i32>>} : tensor<i32>
          %m = stablehlo.multiply(%p, %o) : tensor<i32>
          %s = stablehlo.add(%m, %q) : tensor<i32>
          return %s
        }
      ] : tensor<i32>
      return %a
    }"""
    computation = parse_computation(text)
    module = Module("m", (computation,), "main")
    assert optimize(module, "canonicalize,fold-constants,cse,dce,fuse,dce") is module


@pytest.mark.parametrize("dtype", [name for name, kind in DTYPES.items() if kind.kind == "float"])
def test_limits_of_a_type_are_neutral_to_maxima_and_nan_is_not(dtype: str) -> None:
    """What has no infinity turns one into NaN: a maximum with that is NaN, and no maximum with the least number."""
    np_dtype = DTYPES[dtype].np_dtype
    x = np.array([1, 2, 0.5, 4], np_dtype)
    for constant in (-np.inf, np.inf, np.nan, jnp.finfo(np_dtype).min, jnp.finfo(np_dtype).max, 1.0):
        builder = Builder("main")
        given = builder.parameter(TensorType((4,), dtype))
        other = builder.add(Constant.splat(np.array(constant).astype(np_dtype), given.type))
        results = builder.add(Maximum(), given, other), builder.add(Minimum(), other, given)
        module = Module("m", (builder.build(*results),), "main")
        with jax.enable_x64(True):
            found, want = (evaluate_module(m, x) for m in (optimize(module, "canonicalize,dce"), module))
        for one, another in zip(found, want, strict=True):
            one, another = np.asarray(one), np.asarray(another)
            same = (one == another) | (np.isnan(one) & np.isnan(another))
            assert np.all(same), constant


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64"])
def test_division_by_powers_of_two_takes_none(dtype: str) -> None:
    """Quotients and remainders round to zero, also those of the least and the greatest number."""
    np_dtype = DTYPES[dtype].np_dtype
    limits = np.iinfo(np_dtype)
    near = [
        limits.min,
        limits.min + 1,
        limits.max // 2,
        limits.max - 1,
        limits.max,
        0,
        1,
        2,
        5,
        63,
        64,
        65,
        100,
    ]
    near += [] if limits.min == 0 else [-1, -2, -5, -63, -64, -65, -100]
    x = np.array(near, np_dtype)
    powers = [1 << k for k in range(1, limits.bits) if 1 << k <= limits.max]
    lines = []
    for number, power in enumerate(powers):
        lines += [
            f"%c{number} = stablehlo.constant() {{value = dense<{power} : tensor<{dtype}>>}} : tensor<{x.size}x{dtype}>",
            f"%q{number} = stablehlo.divide(%x, %c{number}) : tensor<{x.size}x{dtype}>",
            f"%r{number} = stablehlo.remainder(%x, %c{number}) : tensor<{x.size}x{dtype}>",
        ]
    results = ", ".join(f"%{kind}{number}" for number in range(len(powers)) for kind in "qr")
    body = "\n".join(lines)
    entry = optimized(
        f"@main(%x: tensor<{x.size}x{dtype}>) {{\n{body}\nreturn {results}\n}}",
        "canonicalize,integer-quotients,cse,dce",
    )
    assert not any(isinstance(i.op, Divide | Remainder) for i in entry.instructions)
    with jax.enable_x64(True):
        found = evaluate_module(Module("m", (entry,), entry.name), x)
    for number, power in enumerate(powers):
        exact = [int(v) for v in x]
        quotients = [abs(v) // power * (-1 if v < 0 else 1) for v in exact]
        want = quotients, [v - power * q for v, q in zip(exact, quotients, strict=True)]
        for got, expected in zip(found[2 * number : 2 * number + 2], want, strict=True):
            np.testing.assert_array_equal(np.asarray(got), np.array(expected, np_dtype), err_msg=str(power))


def test_an_unsigned_number_is_not_negative() -> None:
    entry = optimized(
        """@main(%x: tensor<4xui32>) {
      %c = stablehlo.constant() {value = dense<0 : tensor<ui32>>} : tensor<4xui32>
      %less = stablehlo.compare(%x, %c) {direction = "LT"} : tensor<4xi1>
      %not = stablehlo.compare(%x, %c) {direction = "GE"} : tensor<4xi1>
      %more = stablehlo.compare(%x, %c) {direction = "GT"} : tensor<4xi1>
      return %less, %not, %more
    }""",
        "canonicalize,dce",
    )
    ops = [type(i.op).__name__ for i in entry.instructions]
    assert ops.count("Compare") == 1 and ops.count("Constant") == 3


AT_RAW = np.array([0.0, -0.0, np.nan, -np.inf, 3.5, -2.0, 1e-3, 100.0] * 4)
UPDATES = {
    "set": lambda x, at, v: x.at[at].set(v),
    "add": lambda x, at, v: x.at[at].add(v),
    "subtract": lambda x, at, v: x.at[at].subtract(v),
    "multiply": lambda x, at, v: x.at[at].multiply(v),
}


def scatters_of(function, *arguments) -> tuple[Module, list[str]]:
    """Return a function's module as JAX lowers it, optimized, and the names of what updates in it."""
    lowered = jax.jit(function).lower(*arguments)
    module = optimize(import_stablehlo(lowered.compiler_ir("stablehlo")))
    text = print_module(module)
    return module, [name for name in ("stablehlo.scatter", "stablehlo.dynamic_update_slice") if name in text]


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
def test_a_window_at_a_known_place_is_updated_element_by_element(update: str, dtype: str) -> None:
    """Bit for bit, zeros of either sign and NaN included."""
    raw = AT_RAW if dtype.startswith("float") else np.arange(32)
    x, v = raw.reshape(4, 8).astype(dtype), raw[::-1][:12].reshape(2, 6).astype(dtype)
    place = np.s_[1:3, :6]

    def function(x, v):
        return UPDATES[update](x, place, v)

    module, left = scatters_of(function, x, v)
    assert left == []
    (got,) = evaluate_module(module, x, v)
    want = np.asarray(function(jnp.asarray(x), jnp.asarray(v)))
    np.testing.assert_array_equal(np.asarray(got).view(np.uint8), want.view(np.uint8))


def test_updates_that_stay() -> None:
    """A window that is little of a tensor, one that reaches over its end, and one at a place that is not known."""
    x, v = np.zeros((40, 8), np.float32), np.ones((2, 8), np.float32)
    rows = jax.lax.ScatterDimensionNumbers((0, 1), (), (0,))
    for function, *arguments in (
        (lambda x, v: x.at[3:5].set(v), x, v),
        (lambda x, v: jax.lax.scatter(x[:4], np.array([3]), v, rows, mode="drop"), x, v),
        (lambda x, v, at: jax.lax.dynamic_update_slice(x[:4], v, (at, 0)), x, v, np.int32(1)),
    ):
        module, left = scatters_of(function, *arguments)
        (got,) = evaluate_module(module, *map(np.asarray, arguments))
        np.testing.assert_array_equal(got, jax.jit(function)(*arguments))
        assert left


@pytest.mark.parametrize(
    ("offsets", "dtype"), [((1, 2), np.int32), ((-3, 9), np.int32), ((2, 0), np.uint8), ((9, 8), np.uint8)]
)
def test_a_slice_read_at_known_offsets_is_a_plain_one(offsets, dtype) -> None:
    """Moved inside as the operation has it; JAX's own functions write it so, where an index is a Python number."""
    x = np.arange(60.0, dtype=np.float32).reshape(5, 12)
    offsets = np.array(offsets).astype(dtype)

    def function(x):
        place = [jnp.asarray(offset) for offset in offsets]
        one = jax.lax.dynamic_slice(x, place, (2, 5), allow_negative_indices=False)
        return one, jax.lax.dynamic_slice_in_dim(x, place[1], 7, 1), jax.lax.dynamic_index_in_dim(x, 3, 0)

    module = optimize(import_stablehlo(jax.jit(function).lower(x).compiler_ir("stablehlo")))
    assert "dynamic_slice" not in print_module(module)
    for got, want in zip(evaluate_module(module, x), jax.jit(function)(x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_slice_whose_offset_is_known_along_some_dimensions_stays() -> None:
    x = np.arange(60.0, dtype=np.float32).reshape(5, 12)

    def function(x, i):
        return jax.lax.dynamic_slice(x, (i, 0), (2, 12)), jax.lax.dynamic_slice(x, (1, i), (2, 5))

    module = optimize(import_stablehlo(jax.jit(function).lower(x, np.int32(1)).compiler_ir("stablehlo")))
    assert print_module(module).count("dynamic_slice(") == 2
    for i in (0, 2, 40):
        for got, want in zip(evaluate_module(module, x, np.int32(i)), jax.jit(function)(x, i), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_slice_at_known_offsets_is_moved_inside() -> None:
    x, v = np.arange(12.0, dtype=np.float32).reshape(3, 4), -np.ones((2, 3), np.float32)

    def function(x, v):
        return jax.lax.dynamic_update_slice(x, v, (np.int32(2), np.int32(-7)))

    module, left = scatters_of(function, x, v)
    (got,) = evaluate_module(module, x, v)
    assert left == []
    np.testing.assert_array_equal(got, function(x, v))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.int32(77), "uint8"),
        (np.full(3, -2, np.int64), "int32"),
        (np.float32(7.7), "uint16"),
        (np.full((2, 4), 9, np.uint8), "int32"),
    ],
)
def test_bits_of_a_constant_are_folded_part_by_part(value, dtype):
    """One element stands for a constant that is alike everywhere, but not for the narrower ones that its bits make up."""
    with jax.enable_x64(True):
        lowered = jax.jit(lambda: jax.lax.bitcast_convert_type(jnp.asarray(value), dtype)).lower()
        module = import_stablehlo(lowered.as_text())
        done = optimize(module, "fold-constants{floats=true},dce")
        (result,) = evaluate_module(done)
        want = jax.lax.bitcast_convert_type(value, jnp.dtype(dtype))
    np.testing.assert_array_equal(result, want)
    assert [type(each.op) for each in done.entry_computation.instructions] == [Constant]


@pytest.mark.parametrize(("factor", "is_small"), [(40, True), (2**31, False), (2**63 + 5, False)])
def test_counters_are_counted_in_the_bits_that_are_kept(factor, is_small):
    """What is above 32 bits is zero where no counter reaches them; the lower half wraps round as it does in 64 bits."""
    from jax import lax

    def halves():
        rows, columns = (lax.broadcasted_iota(np.uint64, (7, 5), d) for d in range(2))
        count = rows * np.uint64(factor) + columns
        upper = lax.shift_right_logical(count, np.full((7, 5), 32, np.uint64))
        return count.astype(np.uint32), upper.astype(np.uint32), rows.astype(np.int32)

    with jax.enable_x64(True):
        module = import_stablehlo(jax.jit(halves).lower().compiler_ir("stablehlo"))
    found = optimize(module, "canonicalize,dce")
    text = print_module(found)
    assert ("shift_right_logical" in text) is not is_small
    rows = np.indices((7, 5))[0]
    counts = [[(int(r) * factor + int(c)) % 2**64 for c in range(5)] for r in range(7)]
    expected = [[[count % 2**32 for count in row] for row in counts]]
    expected += [[[count >> 32 for count in row] for row in counts], rows]
    for result, wanted in zip(evaluate_module(found), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(result).astype(np.int64), wanted)
