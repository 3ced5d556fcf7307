"""The importer: every form of input, locations, donation, and errors that name the line."""

import io
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hlo_passes.errors import MalformedStableHLO, UnsupportedOp, UnsupportedType
from hlo_passes.ir import canonical_names, evaluate_module, print_module, verify
from hlo_passes.ops import Add, Call, Constant, DotGeneral, Tanh
from ipuxla.frontend.importer import import_stablehlo

TEXT = """module @tiny {
  func.func @main(%x: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %x, %y : tensor<2xf32> loc("model.py":7:3)
    %1 = chlo.square %0 : tensor<2xf32> -> tensor<2xf32>
    return %1 : tensor<2xf32>
  }
}"""
X, Y = np.array([1, 2], np.float32), np.array([3, -4], np.float32)


def _module():
    text = TEXT.replace(
        "chlo.square %0 : tensor<2xf32> -> tensor<2xf32>", "stablehlo.multiply %0, %0 : tensor<2xf32>"
    )
    with mlir.make_ir_context():
        return ir.Module.parse(text)


def _bytecode():
    buffer = io.BytesIO()
    _module().operation.write_bytecode(buffer)
    return buffer.getvalue()


def _artifact():
    return stablehlo.serialize_portable_artifact(_module(), stablehlo.get_minimum_version())


FORMS = {
    "text": lambda: TEXT,
    "text as bytes": lambda: TEXT.encode(),
    "module": _module,
    "bytecode": _bytecode,
    "portable artifact": _artifact,
    "jax.export": lambda: export.export(jax.jit(lambda x, y: (x + y) ** 2))(X, Y).mlir_module_serialized,
    "lowered": lambda: jax.jit(lambda x, y: (x + y) ** 2).lower(X, Y).compiler_ir("stablehlo"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_input_gives_the_program(form):
    module = import_stablehlo(FORMS[form]())
    verify(module)
    np.testing.assert_array_equal(evaluate_module(module, X, Y)[0], (X + Y) ** 2)


def test_names_donation_and_the_location_of_the_text():
    module = import_stablehlo(TEXT)
    assert (module.name, module.entry, module.donated) == ("tiny", "main", (0,))
    assert import_stablehlo(TEXT, name="other").name == "other"
    locations = [str(instruction.location) for instruction in module.entry_computation.instructions]
    assert locations == ["model.py:7", "<stablehlo>:4"]


def test_values_are_numbered_canonically():
    module = import_stablehlo(TEXT)
    assert print_module(module) == print_module(canonical_names(module))


def test_a_module_is_left_as_it_was():
    module = jax.jit(jax.scipy.special.erf).lower(X).compiler_ir("stablehlo")
    before = str(module)
    assert "chlo.erf" in before
    import_stablehlo(module)
    assert str(module) == before


def test_donated_arguments_of_jax():
    lowered = jax.jit(lambda x, y: (x.sum(), y * 2), donate_argnums=(1,)).lower(X, Y)
    assert import_stablehlo(lowered.compiler_ir("stablehlo")).donated == (1,)


def _inner(x):
    return jnp.tanh(x)  # the line that locations must name


def test_location_is_the_innermost_line_of_the_user():
    def outer(x):
        return _inner(x) + 1

    module = import_stablehlo(jax.jit(outer).lower(X).compiler_ir("stablehlo"))
    found = {type(i.op): i.location for i in module.walk()}
    line = _inner.__code__.co_firstlineno
    assert (found[Tanh].file, found[Tanh].line, found[Tanh].function) == (__file__, line + 1, "_inner")
    assert found[Add].line == outer.__code__.co_firstlineno + 1


def test_library_functions_are_located_where_the_user_calls_them():
    def f(x):
        y = jax.nn.log_softmax(x)
        return y

    module = import_stablehlo(jax.jit(f).lower(X).compiler_ir("stablehlo"))
    lines = {(i.location.file, i.location.line) for i in module.walk()}
    assert any(isinstance(i.op, Call) for i in module.walk())
    assert lines == {(__file__, f.__code__.co_firstlineno + 1)}


def test_splat_constants_stay_one_element():
    module = import_stablehlo(
        jax.jit(lambda x: x + jnp.full((512, 512), 3.0)).lower(X[:1]).compiler_ir("stablehlo")
    )
    constants = [i.op for i in module.walk() if isinstance(i.op, Constant)]
    assert constants and all(constant.is_splat and constant.value.size == 1 for constant in constants)


def test_dot_keeps_the_type_it_accumulates_in():
    half = X.astype(np.float16)
    f = jax.jit(lambda a, b: jax.lax.dot(a, b, preferred_element_type=jnp.float32))
    module = import_stablehlo(f.lower(half, half).compiler_ir("stablehlo"))
    assert [i.op.dtype for i in module.walk() if isinstance(i.op, DotGeneral)] == ["f32"]


def test_deprecated_operations_are_rewritten():
    module = import_stablehlo("""func.func @f(%a: tensor<2x3xf32>, %b: tensor<3x2xf32>) -> tensor<2x2xf32> {
      %0 = stablehlo.dot %a, %b : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>
      return %0 : tensor<2x2xf32>
    }""")
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(evaluate_module(module, a, b)[0], a @ b)


def test_unsupported_operation_names_itself_the_line_and_a_way_out():
    def f(x):
        return jax.pure_callback(np.sin, x, x)

    with pytest.raises(UnsupportedOp) as caught:
        import_stablehlo(jax.jit(f).lower(X).compiler_ir("stablehlo"))
    assert caught.value.op_name == "stablehlo.custom_call @xla_ffi_python_cpu_callback"
    assert f"from: {__file__}:{f.__code__.co_firstlineno + 1}" in str(caught.value)
    assert "try: " in str(caught.value)


def test_custom_call_names_its_target():
    text = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.custom_call @lapack(%x) : (tensor<2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }"""
    with pytest.raises(UnsupportedOp, match=r"stablehlo.custom_call @lapack(.|\n)*<stablehlo>:2"):
        import_stablehlo(text)


def test_result_accuracy():
    """Functions have one accuracy; what asks for another one is refused."""
    text = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.exponential %x {
        result_accuracy = #stablehlo.result_accuracy<mode = #stablehlo.result_accuracy_mode<HIGHEST>>
      } : tensor<2xf32>
      return %0 : tensor<2xf32>
    }"""
    np.testing.assert_allclose(evaluate_module(import_stablehlo(text), X)[0], np.exp(X), rtol=1e-6)
    text = text.replace("<mode =", "<atol = 0.0, rtol = 0.0, ulps = 1, mode =").replace(
        "HIGHEST", "TOLERANCE"
    )
    with pytest.raises(UnsupportedOp, match="result_accuracy"):
        import_stablehlo(text)


@pytest.mark.parametrize("type_", ["tensor<?xf32>", "tensor<2xtf32>"])
def test_unsupported_type_names_itself_and_the_line(type_):
    text = f"func.func @main(%x: {type_}) -> {type_} {{ return %x : {type_} }}"
    with pytest.raises(UnsupportedType, match=r"expected: (.|\n)*from: <stablehlo>:1"):
        import_stablehlo(text)


MALFORMED = {
    "func.func @main( {": r'"-":1:17: expected',
    "hello": r"custom op 'hello' is unknown",
    "func.func private @a() { return }\nfunc.func private @b() { return }": "one public function, got none",
    "func.func @main(%x: tensor<2xf32>) {\n %0 = stablehlo.foo %x : tensor<2xf32>\n}": r'"-":2:7',
    "func.func @main(%x: tensor<2xf32>) -> i32 {\n return %x : tensor<2xf32>\n}": r'"-":2:2: type of return',
    b"ML\xefRgarbage": "bytecode",
    b"ML\xefR\rStableHLO_v1.0.0\x00\x01garbage": "not a valid StableHLO module",
    b"\xff\xfe\x00": "not a valid StableHLO module",
}


@pytest.mark.parametrize("source", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_input_is_one_clear_error(source, capfd):
    with pytest.raises(MalformedStableHLO, match=MALFORMED[source]) as caught:
        import_stablehlo(source)
    assert "try:" in str(caught.value)
    assert capfd.readouterr().err == ""


def test_import_of_thousands_of_operations_is_linear():
    count = 3000
    body = "".join(f"%{n + 1} = stablehlo.add %{n}, %{n} : tensor<2xf32>\n" for n in range(count))
    text = (
        f"func.func @main(%0: tensor<2xf32>) -> tensor<2xf32> {{\n{body} return %{count} : tensor<2xf32> }}"
    )
    start = time.perf_counter()
    module = import_stablehlo(text)
    assert len(module.entry_computation.instructions) == count
    assert time.perf_counter() - start < 5  # 0.05 s is usual; a quadratic importer takes far longer


def test_what_has_no_line_of_its_own_comes_from_the_call():
    """Functions two calls deep, whose operations name no line, as those that JAX's own functions make."""
    text = """module {
  func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    %0 = func.call @outer(%x) : (tensor<2xf32>) -> tensor<2xf32> loc("model.py":7:3)
    return %0 : tensor<2xf32>
  }
  func.func private @outer(%x: tensor<2xf32>) -> tensor<2xf32> {
    %0 = func.call @inner(%x) : (tensor<2xf32>) -> tensor<2xf32> loc(unknown)
    return %0 : tensor<2xf32> loc(unknown)
  } loc(unknown)
  func.func private @inner(%x: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.custom_call @solve(%x) : (tensor<2xf32>) -> tensor<2xf32> loc(unknown)
    return %0 : tensor<2xf32> loc(unknown)
  } loc(unknown)
}"""
    with pytest.raises(UnsupportedOp, match=r"from: model\.py:7"):
        import_stablehlo(text)


def test_a_reduction_may_read_a_constant_from_outside(conforms):
    text = """func.func @main(%a: tensor<5xf32>, %i: tensor<f32>) -> tensor<f32> {
      %c = stablehlo.constant dense<2.0> : tensor<f32>
      %0 = "stablehlo.reduce"(%a, %i) <{dimensions = array<i64: 0>}> ({
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %m = stablehlo.minimum %y, %c : tensor<f32>
          %r = stablehlo.maximum %x, %m : tensor<f32>
          stablehlo.return %r : tensor<f32>
      }) : (tensor<5xf32>, tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32>
    }"""
    conforms(text, np.array([1, 5, -3, 2, 0], np.float32), np.float32(-9))


@pytest.mark.parametrize("element", ["ui64", "i64"])
@pytest.mark.parametrize("value", ["7", "[7, 9]"])
def test_64_bit_constants_are_of_the_types_that_jax_knows(element, value):
    """MLIR's buffers are of ``unsigned long long``, whose scalars no function of JAX takes. Fuzzing found it."""
    text = f"""func.func @main() -> tensor<2x{element}> {{
      %0 = stablehlo.constant dense<{value}> : tensor<2x{element}>
      return %0 : tensor<2x{element}>
    }}"""
    instructions = import_stablehlo(text).entry_computation.instructions
    (constant,) = [each for each in instructions if isinstance(each.op, Constant)]
    held = np.asarray(constant.op.value)
    assert held.dtype.char == np.dtype("uint64" if element == "ui64" else "int64").char
    with jax.enable_x64(True):
        assert jax.jit(lambda x: x + x)(held.reshape(-1)[0]) == 14
