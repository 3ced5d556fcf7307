"""``stablehlo.map`` against the reference interpreter, and as operations on whole arrays."""

import numpy as np
import pytest

from hlo_passes.ir import evaluate_module
from hlo_passes.ops import MapElements
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo

EXPRESSION = """%c = stablehlo.constant dense<2> : tensor<i32>
      %m = stablehlo.multiply %x, %c : tensor<i32>
      %r = stablehlo.compare LT, %m, %y : (tensor<i32>, tensor<i32>) -> tensor<i1>"""
LOOP = """%r = "stablehlo.if"(%p) ({
        stablehlo.return %p : tensor<i1>
      }, {
        stablehlo.return %p : tensor<i1>
      }) : (tensor<i1>) -> tensor<i1>"""


def _text(shape, body):
    sizes = "".join(f"{n}x" for n in shape)
    dimensions = f": {', '.join(map(str, range(len(shape))))}" if shape else ""
    given, made = f"tensor<{sizes}i32>", f"tensor<{sizes}i1>"
    return f"""func.func @main(%a: {given}, %b: {given}) -> {made} {{
      %0 = "stablehlo.map"(%a, %b) <{{dimensions = array<i64{dimensions}>}}> ({{
        ^bb0(%x: tensor<i32>, %y: tensor<i32>):
          {body}
          stablehlo.return %r : tensor<i1>
      }}) : ({given}, {given}) -> {made}
      return %0 : {made}
    }}"""


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0, 4)])
def test_map(shape, conforms):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 10, shape, dtype=np.int32) for _ in range(2))
    text = _text(shape, EXPRESSION)
    conforms(text, a, b)
    module = optimize(import_stablehlo(text))
    assert not any(isinstance(i.op, MapElements) for i in module.walk())
    np.testing.assert_array_equal(evaluate_module(module, a, b)[0], 2 * a < b)
