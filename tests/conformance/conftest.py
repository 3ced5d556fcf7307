"""The witness for operations' meanings: StableHLO's reference interpreter, written from the specification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hlo_passes.ir import Module, TensorType, evaluate_module, parse_module, print_module, verify
from ipuxla.frontend import _jax_compat as compat
from ipuxla.frontend.importer import import_stablehlo


def attribute_text(array: np.ndarray) -> str:
    """Return MLIR's text of an array, to the bit."""
    type_ = TensorType.of(array)
    if not array.size:
        return f"dense<> : {type_}"
    if type_.is_bool:
        text = str(array.tolist()).replace("T", "t").replace("F", "f")
        return f"dense<{text}> : {type_}"
    return f'dense<"0x{array.tobytes().hex()}"> : {type_}'


def reference(text: str, *arrays: np.ndarray) -> list[np.ndarray]:
    """Run ``main`` in the StableHLO reference interpreter; bfloat16 may be no argument or result."""
    module = compat.read_stablehlo(text)
    with module.context, ir.Location.unknown():
        arguments = [ir.Attribute.parse(attribute_text(array)) for array in arrays]
        results = stablehlo.eval_module(ir.Module.parse(str(module)), arguments)
        return [np.array(result).reshape(TensorType.parse(str(result.type)).shape) for result in results]


def parsed_again(module: Module) -> Module:
    """Return the module after a round trip through its text: every case covers printer and parser too."""
    text = print_module(module)
    again = parse_module(text)
    assert print_module(again) == text
    return again


def evaluated(text: str, *arrays: np.ndarray) -> list[np.ndarray]:
    """Import, verify and evaluate StableHLO text."""
    module = parsed_again(import_stablehlo(text))
    verify(module)
    return [np.asarray(result) for result in evaluate_module(module, *arrays)]


def assert_equal(got: Sequence[np.ndarray], expected: Sequence[np.ndarray], rtol: float) -> None:
    """Compare results: integers, booleans, infinities and places of NaN exactly, floats within ``rtol``."""
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        if mine.dtype.kind in "biu" or rtol == 0:
            np.testing.assert_array_equal(mine, theirs)
            if mine.dtype.kind == "f":
                np.testing.assert_array_equal(np.signbit(mine[mine == 0]), np.signbit(theirs[theirs == 0]))
        else:
            np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=rtol * 1e-2)


@pytest.fixture
def conforms() -> Callable[..., None]:
    """``conforms(text, *arrays, rtol=0)``: our evaluation of ``text`` equals the reference interpreter's."""

    def check(text: str, *arrays: Any, rtol: float = 0) -> None:
        arrays = tuple(np.asarray(array) for array in arrays)
        assert_equal(evaluated(text, *arrays), reference(text, *arrays), rtol)

    return check


@pytest.fixture
def evaluates_to() -> Callable[..., None]:
    """``evaluates_to(text, arrays, expected)``, exactly: for what the specification leaves to XLA."""

    def check(text: str, arrays: Sequence[Any], expected: Sequence[Any]) -> None:
        assert_equal(evaluated(text, *map(np.asarray, arrays)), [np.asarray(array) for array in expected], 0)

    return check
