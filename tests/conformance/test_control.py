"""Calls, composites, tuples and fusions."""

import numpy as np

from hlo_passes.ir import (
    Builder,
    Module,
    TensorType,
    evaluate_module,
    parse_module,
    print_module,
    verify,
)
from hlo_passes.ops import Add, CodeletCall, Divide, Exponential, Fusion, Nonlinearity, RowFunction
from ipuxla.frontend.importer import import_stablehlo


def test_call_runs_another_function(conforms):
    text = """module {
      func.func @main(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<f32>) {
        %0:2 = call @both(%x) : (tensor<3xf32>) -> (tensor<3xf32>, tensor<f32>)
        %1 = call @twice(%0#0) : (tensor<3xf32>) -> tensor<3xf32>
        return %1, %0#1 : tensor<3xf32>, tensor<f32>
      }
      func.func private @both(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<f32>) {
        %c = stablehlo.constant dense<4.0> : tensor<f32>
        %0 = call @twice(%x) : (tensor<3xf32>) -> tensor<3xf32>
        return %0, %c : tensor<3xf32>, tensor<f32>
      }
      func.func private @twice(%x: tensor<3xf32>) -> tensor<3xf32> {
        %0 = stablehlo.add %x, %x : tensor<3xf32>
        return %0 : tensor<3xf32>
      }
    }"""
    conforms(text, np.array([1, 2, 3], np.float32))
    assert [computation.name for computation in import_stablehlo(text).computations] == [
        "main",
        "both",
        "twice",
    ]


def test_composite_becomes_a_call_of_its_decomposition(conforms):
    text = """module {
      func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
        %0 = stablehlo.composite "mine.double" %x {decomposition = @impl} : (tensor<3xf32>) -> tensor<3xf32>
        return %0 : tensor<3xf32>
      }
      func.func private @impl(%x: tensor<3xf32>) -> tensor<3xf32> {
        %0 = stablehlo.add %x, %x : tensor<3xf32>
        return %0 : tensor<3xf32>
      }
    }"""
    conforms(text, np.array([1, 2, 3], np.float32))


def test_tuples_are_flattened(evaluates_to):
    inner, outer = "tuple<tensor<2xf32>>", "tuple<tensor<i32>, tuple<tensor<2xf32>>>"
    text = f"""func.func @main(%x: tensor<2xf32>, %y: tensor<i32>) -> {outer} {{
      %0 = stablehlo.tuple %x : {inner}
      %1 = stablehlo.tuple %y, %0 : {outer}
      %2 = stablehlo.get_tuple_element %1[1] : ({outer}) -> {inner}
      %3 = stablehlo.get_tuple_element %1[0] : ({outer}) -> tensor<i32>
      %4 = stablehlo.tuple %3, %2 : {outer}
      return %4 : {outer}
    }}"""
    x, y = np.array([1, 2], np.float32), np.int32(7)
    evaluates_to(text, [x, y], [y, x])


def test_fusion_runs_its_region():
    type_ = TensorType((3,), "f32")
    body = Builder("body")
    x, y = body.parameter(type_), body.parameter(type_)
    region = body.build(body.add(Exponential(), body.add(Add(), x, y)))
    main = Builder("main")
    arguments = main.parameter(type_), main.parameter(type_)
    module = Module("m", (main.build(main.add(Fusion("loop"), *arguments, regions=[region])),), "main")
    verify(module)
    a, b = np.array([0, 1, 2], np.float32), np.array([1, 0, -2], np.float32)
    np.testing.assert_allclose(evaluate_module(module, a, b)[0], np.exp(a + b), rtol=1e-6)


def test_named_functions_run_their_region():
    """hlo.nonlinearity and hlo.row_function mean what their regions say, whatever they are called."""
    type_ = TensorType((2, 3), "f32")
    body = Builder("body")
    x = body.parameter(type_)
    region = body.build(body.add(Divide(), body.add(Exponential(), x), x))
    a = np.array([[1, 2, 4], [-1, 0.5, 3]], np.float32)
    for op in (Nonlinearity("popnn.relu"), RowFunction("popnn.softmax", (1,))):
        main = Builder("main")
        module = Module("m", (main.build(main.add(op, main.parameter(type_), regions=[region])),), "main")
        verify(module)
        again = parse_module(print_module(module))
        assert print_module(again) == print_module(module)
        np.testing.assert_allclose(evaluate_module(again, a)[0], np.exp(a) / a, rtol=1e-6)


def test_a_call_of_a_codelet_runs_its_function_at_every_point():
    """hlo.codelet means its function, at every point that its form says."""
    body = Builder("scaled")
    window, factor = body.parameter(TensorType((2, 3), "f32")), body.parameter(TensorType((2, 3), "f32"))
    region = body.build(body.add(Add(), window, factor))
    main = Builder("main")
    x, y = main.parameter(TensorType((5, 3), "f32")), main.parameter(TensorType((2, 3), "f32"))
    call = CodeletCall("scaled", "x[2*i + :2, :], y[:, :] -> z[:, i, :]", cycles=7, parts=(2,), tiles=(0, 1))
    module = Module("m", (main.build(main.add(call, x, y, regions=[region])),), "main")
    verify(module)
    again = parse_module(print_module(module))
    assert print_module(again) == print_module(module)
    a, b = np.arange(15, dtype=np.float32).reshape(5, 3), np.ones((2, 3), np.float32)
    want = np.stack([a[0:2] + b, a[2:4] + b], axis=1)
    np.testing.assert_array_equal(evaluate_module(again, a, b)[0], want)
