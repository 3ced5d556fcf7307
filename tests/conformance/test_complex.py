"""Operations on complex numbers against the reference interpreter, which takes and gives their parts here."""

import numpy as np
import pytest

from hlo_passes.errors import UnsupportedOp
from hlo_passes.ir import evaluate_module
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo

X = np.array([1 + 2j, -0.5 + 0.25j, 3 - 4j, -2 - 1j, -0.25 + 0.5j, -1.5 + 0.75j], np.complex128)
Y = np.array([2 - 1j, 0.5 + 0.5j, -1 + 3j, 1.5, -2j, 0.25 + 1j], np.complex128)
CLOSE = 2e-6
UNARY = """abs cosine exponential exponential_minus_one log log_plus_one logistic negate rsqrt sign sine sqrt tan
tanh""".split()
BINARY = "add subtract multiply divide power atan2".split()


def _text(op, count, part="f32", result="complex"):
    """Return a module that joins parts, applies an operation, and gives the parts of what it gives."""
    real, whole = f"tensor<6x{part}>", f"tensor<6xcomplex<{part}>>"
    out = {"complex": whole, "real": real, "i1": "tensor<6xi1>"}[result]
    parameters = ", ".join(f"%r{n}: {real}, %i{n}: {real}" for n in range(count))
    lines = [f"%z{n} = stablehlo.complex %r{n}, %i{n} : {whole}" for n in range(count)]
    names = ", ".join(f"%z{n}" for n in range(count))
    lines.append(f"%0 = {op.replace('$', names)} : ({', '.join([whole] * count)}) -> {out}")
    if result == "complex":
        lines += [f"%{p} = stablehlo.{p} %0 : ({whole}) -> {real}" for p in ("real", "imag")]
        lines.append(f"return %real, %imag : {real}, {real}")
        out = f"({real}, {real})"
    else:
        lines.append(f"return %0 : {out}")
    return f"func.func @main({parameters}) -> {out} {{ {chr(10).join(lines)} }}"


def _parts(dtype, *arrays):
    return [half.astype(dtype) for array in arrays for half in (array.real, array.imag)]


@pytest.mark.parametrize("part", ["f32", "f64"])
@pytest.mark.parametrize("op", UNARY)
def test_functions(op, part, conforms):
    text = _text(f'"stablehlo.{op}"($)', 1, part, "real" if op == "abs" else "complex")
    conforms(text, *_parts({"f32": "f4", "f64": "f8"}[part], X), rtol=CLOSE)


@pytest.mark.parametrize("op", BINARY)
def test_functions_of_two(op, conforms):
    conforms(_text(f'"stablehlo.{op}"($)', 2), *_parts("f4", X, Y), rtol=CLOSE)


@pytest.mark.parametrize("direction", ["EQ", "NE"])
def test_equality(direction, conforms):
    half = np.where(np.arange(6) % 2, X, Y)
    text = _text(f"stablehlo.compare {direction}, $, FLOAT", 2, result="i1")
    conforms(text, *_parts("f4", X, half))


TIED = np.where(np.arange(6) % 2, X, X.real + 1j * Y.imag)
"""As ``X``, but for the imaginary parts of every other element."""


ORDER = {"LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal}


@pytest.mark.parametrize("direction", ORDER)
def test_order_goes_by_real_parts_then_imaginary_ones(direction, evaluates_to):
    """NumPy's order; the reference interpreter ends the process."""
    text = _text(f"stablehlo.compare {direction}, $, FLOAT", 2, result="i1")
    for other in (TIED, Y):
        evaluates_to(text, _parts("f4", X, other), [ORDER[direction](X, other)])


@pytest.mark.parametrize("op", ["maximum", "minimum", "clamp"])
def test_what_follows_the_order(op, evaluates_to):
    given = [X, TIED, Y][: 3 if op == "clamp" else 2]
    function = {"maximum": np.maximum, "minimum": np.minimum, "clamp": lambda a, x, b: np.clip(x, a, b)}[op]
    text = _text(f'"stablehlo.{op}"($)', len(given))
    evaluates_to(text, _parts("f4", *given), _parts("f4", function(*given)))


def test_a_remainder_is_a_named_error():
    with pytest.raises(UnsupportedOp, match=r"(?s)remainder.*elements that are not complex"):
        import_stablehlo(_text('"stablehlo.remainder"($)', 2))


def test_movement_and_selection(conforms):
    text = """func.func @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>, %p: tensor<3x2xi1>)
        -> (tensor<3x2xf32>, tensor<3x2xf32>) {
      %0 = stablehlo.complex %a, %b : tensor<2x3xcomplex<f32>>
      %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<2x3xcomplex<f32>>) -> tensor<3x2xcomplex<f32>>
      %2 = stablehlo.constant dense<[[(1.5, -2.0), (0.0, 0x7F800000)]]> : tensor<1x2xcomplex<f32>>
      %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<1x2xcomplex<f32>>) -> tensor<3x2xcomplex<f32>>
      %4 = stablehlo.select %p, %1, %3 : tensor<3x2xi1>, tensor<3x2xcomplex<f32>>
      %5 = stablehlo.real %4 : (tensor<3x2xcomplex<f32>>) -> tensor<3x2xf32>
      %6 = stablehlo.imag %4 : (tensor<3x2xcomplex<f32>>) -> tensor<3x2xf32>
      return %5, %6 : tensor<3x2xf32>, tensor<3x2xf32>
    }"""
    real, imag = (np.arange(6, dtype=np.float32).reshape(2, 3) * k for k in (1, -2))
    conforms(text, real, imag, np.array([[True, False]] * 3))


def test_parts_of_real_numbers(conforms):
    text = """func.func @main(%a: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
      %0 = stablehlo.real %a : (tensor<3xf32>) -> tensor<3xf32>
      %1 = stablehlo.imag %a : (tensor<3xf32>) -> tensor<3xf32>
      return %0, %1 : tensor<3xf32>, tensor<3xf32>
    }"""
    conforms(text, np.array([1.5, -2.0, 0.0], np.float32))


CONVERSIONS = {
    "complex<f32> complex<f64>": "complex",
    "f32 complex<f32>": "complex",
    "i32 complex<f64>": "complex",
    "complex<f32> f64": "real",
    "complex<f64> i32": "real",
    "complex<f32> i1": "real",
}


@pytest.mark.parametrize("case", CONVERSIONS)
def test_conversion(case, evaluates_to):
    """Complex numbers lose what the result cannot hold; the reference interpreter has no such conversions."""
    old, new = case.split()
    names = {"complex<f32>": "complex64", "complex<f64>": "complex128", "i32": "int32", "i1": "bool"}
    names |= {"f32": "float32", "f64": "float64"}
    array = np.array([1.5 - 2j, 0, 0.25j, -3.75])
    array = array.astype(names[old]) if "complex" in old else np.real(array).astype(names[old])
    real = array if new in ("i1", "complex<f32>", "complex<f64>") else np.real(array)
    text = f"""func.func @main(%a: tensor<4x{old}>) -> tensor<4x{new}> {{
      %0 = stablehlo.convert %a : (tensor<4x{old}>) -> tensor<4x{new}>
      return %0 : tensor<4x{new}>
    }}"""
    evaluates_to(text, [array], [real.astype(names[new])])


def test_bits():
    x = np.array([1 + 2j, -3.25 + 1e-300j, 0], np.complex128)
    halves = x.view(np.complex64).reshape(3, 2)
    text = """func.func @main(%x: tensor<3xcomplex<f64>>, %y: tensor<3x2xcomplex<f32>>)
        -> (tensor<3x2xcomplex<f32>>, tensor<3xcomplex<f64>>) {
      %0 = stablehlo.bitcast_convert %x : (tensor<3xcomplex<f64>>) -> tensor<3x2xcomplex<f32>>
      %1 = stablehlo.bitcast_convert %y : (tensor<3x2xcomplex<f32>>) -> tensor<3xcomplex<f64>>
      return %0, %1 : tensor<3x2xcomplex<f32>>, tensor<3xcomplex<f64>>
    }"""
    module = import_stablehlo(text)
    mine = [np.asarray(array) for array in evaluate_module(module, x, halves)]
    parts = evaluate_module(optimize(module), x.real, x.imag, halves.real, halves.imag)
    parts = [np.asarray(part) for part in parts]
    in_parts = [parts[n] + parts[n].dtype.type(1) * 1j * parts[n + 1] for n in (0, 2)]
    for got in (mine, in_parts):
        assert (np.asarray(got[0]).tobytes(), np.asarray(got[1]).tobytes()) == (halves.tobytes(), x.tobytes())
