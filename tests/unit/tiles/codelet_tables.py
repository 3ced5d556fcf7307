"""Every typed codelet variant: function x dtype x access form, generated from the tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tiles.graph import Codelet, Cycles, Extents, IndexMap, OpForm, along, identity_map
from tiles.poplibs.forms import broadcast_map, dot_form, map_form, placed_map, reduce_form, transpose_map
from tiles.poplibs.poplin.matmul import MatMul, accumulator_of
from tiles.poplibs.poplin.matmul_cycles import methods_for
from tiles.poplibs.popops.expression import DIRECTIONS, FUNCTIONS, Body, Function, body_dtypes, kind_of
from tiles.poplibs.popops.map import Map
from tiles.poplibs.popops.reduce import OPERATIONS, reduce_codelet
from tiles.target import Target

DTYPES = (
    *("float32", "float16", "bfloat16", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
)
SHAPE = (12, 32)
"""Domain of the sample form of a variant."""


@dataclass(frozen=True)
class Variant:
    """A typed codelet in one access form.

    Args:
      access: how operands are read: "1D", "tensor", "scalar", "outer", "inner", "contiguous", "strided", ...
      codelet: the codelet.
      form: a small form of that kind.
      operand_dtypes: dtypes of the operands.
      result_dtypes: dtypes of the results.
    """

    access: str
    codelet: Codelet
    form: OpForm
    operand_dtypes: tuple[str, ...]
    result_dtypes: tuple[str, ...]

    @property
    def label(self) -> str:
        """Vertex type and access form."""
        return f"{self.codelet.label} {self.access}"

    def cycles(self, target: Target) -> Cycles:
        """Return the duration of one vertex that computes the whole sample form."""
        sizes = tuple(np.array([n]) for n in self.form.shape)
        return self.codelet.cycles(Extents(self.form, sizes, self.operand_dtypes, self.result_dtypes), target)


def variants(target: Target) -> tuple[Variant, ...]:
    """Return every typed codelet variant that ``target`` has."""
    sources = (_elementwise(), _conversions(), _movement(), _reductions(), _contractions(target))
    return tuple(itertools.chain(*sources))


def _attributes(function: Function) -> list[tuple[tuple[str, object], ...]]:
    """Return sample attributes, one set per variant of a function."""
    if function.name == "compare":
        return [(("direction", d),) for d in DIRECTIONS]
    if function.name == "reduce_precision":
        return [(("exponent_bits", 5), ("mantissa_bits", 10))]
    return [()]


def _accesses(arity: int) -> list[tuple[str, list[IndexMap]]]:
    """Return the access forms of a function of one or two operands."""
    full = identity_map(2)
    if arity != 2:
        return [("1D", [full] * arity)]
    rest = {
        "tensor": full,
        "scalar": broadcast_map((), SHAPE),
        "outer": placed_map(SHAPE[:1], (0,), SHAPE),
        "inner": broadcast_map(SHAPE[1:], SHAPE),
    }
    return [(access, [full, index_map]) for access, index_map in rest.items()]


def _elementwise() -> Iterator[Variant]:
    for function in FUNCTIONS.values():
        if function.is_source or function.attributes[:1] == ("dtype",):
            continue
        for dtype, attrs in itertools.product(DTYPES, _attributes(function)):
            if kind_of(dtype) not in function.accepts:
                continue
            operands = (dtype,) * function.arity
            if function.name == "select":
                operands = ("bool", dtype, dtype)
            body = ((function.name, tuple(range(function.arity)), attrs),)
            for access, maps in _accesses(function.arity):
                yield _variant(access, body, operands, map_form(SHAPE, maps))
    scalar = [broadcast_map((), SHAPE), identity_map(2), identity_map(2)]
    for dtype in DTYPES:
        yield _variant(
            "scalar", (("select", (0, 1, 2), ()),), ("bool", dtype, dtype), map_form(SHAPE, scalar)
        )


def _variant(access: str, body: Body, operands: tuple[str, ...], form: OpForm) -> Variant:
    results = (body_dtypes(body, operands)[-1],)
    outputs = (len(operands) + len(body) - 1,)
    return Variant(access, Map(body, outputs, operands, results), form, operands, results)


def _conversions() -> Iterator[Variant]:
    form = map_form(SHAPE, [identity_map(2)])
    for source, result in itertools.permutations(DTYPES, 2):
        yield _variant("1D", (("convert", (0,), (("dtype", result),)),), (source,), form)


def _movement() -> Iterator[Variant]:
    moves = {
        "copy": map_form(SHAPE, [identity_map(2)]),
        "transpose": map_form(SHAPE, [transpose_map((1, 0))]),
        "repeat": map_form(SHAPE, [placed_map(SHAPE[:1], (0,), SHAPE)]),
        "gather": map_form((4, *SHAPE), [IndexMap((along(2), along(1), along(0)))]),
    }
    for dtype, (access, form) in itertools.product(DTYPES, moves.items()):
        yield _variant(access, (), (dtype,), form)
    for dtype in DTYPES:
        value = 1.0 if kind_of(dtype) == "F" else 1
        yield _variant(
            "1D", (("constant", (), (("value", value), ("dtype", dtype))),), (), map_form(SHAPE, [])
        )
        if dtype != "bool":
            yield _variant("1D", (("iota", (), (("dim", 1), ("dtype", dtype))),), (), map_form(SHAPE, []))


def _reductions() -> Iterator[Variant]:
    forms = {
        "contiguous": reduce_form(SHAPE, (1,)),
        "strided": reduce_form(SHAPE, (0,)),
        "general": reduce_form((4, 6, 8), (0, 2)),
        "all": reduce_form(SHAPE, (0, 1)),
    }
    for operation, dtype in itertools.product(OPERATIONS, DTYPES):
        if operation in ("and", "or", "xor") and kind_of(dtype) == "F":
            continue
        codelet = reduce_codelet(operation, dtype)
        if codelet.operation == operation:
            for access, form in forms.items():
                yield Variant(access, codelet, form, (dtype,), (dtype,))


def _contractions(target: Target) -> Iterator[Variant]:
    forms = {
        "matmul": dot_form((12, 32), (32, 16), (), (), (1,), (0,)),
        "outer": dot_form((12, 1), (1, 16), (), (), (1,), (0,)),
        "depthwise": dot_form((64, 9), (64, 9), (0,), (0,), (1,), (1,)),
    }
    for dtype, (access, form) in itertools.product(DTYPES, forms.items()):
        sizes = tuple(np.array([n]) for n in form.shape)
        accumulate = accumulator_of(dtype)
        for method in methods_for(accumulate, Extents(form, sizes, (dtype, dtype), (dtype,)), target):
            for out in dict.fromkeys((dtype, accumulate)):
                codelet = MatMul((dtype, dtype), accumulate, out, method)
                yield Variant(access, codelet, form, (dtype, dtype), (out,))
