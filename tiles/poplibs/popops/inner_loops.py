"""Inner loops of the elementwise functions: a worker's issue slots, by function and dtype.

Entries are those of the public PopLibs sources; what they do not cover is derived by the rules of
``derived_loop`` and says ASSUMED.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tiles.numerics.dtypes import is_float, itemsize
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.expression import FUNCTIONS, NAMED, Attrs, Body, body_dtypes
from tiles.target import Basis, Target

SOURCE = "graphcore/poplibs lib/popops/popopsCycleEstimators.cpp and ExprOpUtil cycle tables"
LIBRARY = (
    SOURCE
    + "; sine and cosine of float32 are the C library's, in PopLibs' simulator 2,300 slots on average for arguments in "
    "-pi..pi (popopsCycleEstimators.hpp, which warns that they depend hugely on the data) and 3,600 in its older table, "
    "before it kept to that range; halves have vertices of their own"
)
"""What PopLibs says of functions whose time depends on their arguments.

Float sine and cosine call ``sinf`` and ``cosf`` (elemwiseUnaryCodelets.cpp), which no float64 unit helps: 2,300 is the
common way, without the reduction of large arguments. The simulation is no silicon and the arguments of a program are
not in that range, so the figures count as FITTED. Nothing in PopLibs or its XLA backend computes both at once.
"""
LOAD_STORE_LOOP = 4  # load, store and loop decision that PopLibs adds to entries of the arithmetic alone


@dataclass(frozen=True)
class Loop:
    """An inner loop of one worker.

    Args:
      slots: issue slots of one iteration, without ``extra``.
      elements: elements of one iteration; None is as many as one 64-bit access holds.
      extra: slots that one iteration takes for loads, the store and the loop.
      basis: how far to trust it.
      source: where the entry is from.
    """

    slots: int
    elements: int | None = None
    extra: int = 0
    basis: Basis = Basis.DOCUMENTED
    source: str = SOURCE

    def width(self, dtype: str, target: Target) -> int:
        """Elements of one iteration."""
        return target.vector_width(dtype) if self.elements is None else self.elements

    def total(self, n: Amount, dtype: str, target: Target) -> Amount:
        """Return the slots that ``n`` elements of ``dtype`` take, loads and stores included."""
        return -(-np.asarray(n) // self.width(dtype, target)) * (self.slots + self.extra)

    def inner(self, n: Amount, dtype: str, target: Target) -> Amount:
        """Return the slots of the arithmetic alone.

        Entries that count everything give up one load and one store per iteration, as those of a fused
        expression are made once for all its functions.
        """
        arithmetic = self.slots if self.extra else max(1, self.slots - 2)
        return -(-np.asarray(n) // self.width(dtype, target)) * arithmetic


def per(slots: int, elements: int = 1) -> Loop:
    """Return a loop of so many slots per so many elements, everything included."""
    return Loop(slots, elements)


def one(slots: int) -> Loop:
    """Return a loop over single elements whose entry is the arithmetic alone."""
    return Loop(slots, 1, LOAD_STORE_LOOP)


def vector(slots: int) -> Loop:
    """Return a loop over 64-bit vectors whose entry is the arithmetic alone."""
    return Loop(slots, None, LOAD_STORE_LOOP)


def _simulated(loop: Loop) -> Loop:
    """Return a loop of a library call whose time depends on its arguments; see ``LIBRARY``."""
    return replace(loop, basis=Basis.FITTED, source=LIBRARY)


def _assembly(extra: int) -> Loop:
    """Return the hand-written float add, subtract and multiply: one slot per vector and its accesses."""
    return Loop(1, None, extra)


def _types(f32: Loop, f16: Loop, **more: Loop) -> dict[str, Loop]:
    return {"float32": f32, "float16": f16, **more}


def _integers(i32: Loop, u32: Loop | None = None, **more: Loop) -> dict[str, Loop]:
    return {"int32": i32, "uint32": i32 if u32 is None else u32, **more}


def _both64(loop: Loop) -> dict[str, Loop]:
    return {"int64": loop, "uint64": loop}


def _both16(loop: Loop) -> dict[str, Loop]:
    return {"int16": loop, "uint16": loop}


UNARY: dict[str, dict[str, Loop]] = {
    "abs": _types(one(1), one(1), int32=one(2), int64=one(10)),
    "cbrt": _types(vector(27), vector(17)),
    "ceil": _types(vector(2), vector(2)),
    "cosine": _types(_simulated(one(2300)), per(25)),
    "count_leading_zeros": _integers(one(1)),
    "exponential": _types(per(6, 2), per(4, 4)),
    "exponential_minus_one": _types(one(4), vector(5)),
    "floor": _types(vector(2), vector(2)),
    "is_finite": _types(vector(5), vector(5)),
    "log": _types(per(12, 2), per(4, 4)),
    "log_plus_one": _types(vector(18), vector(18)),
    "logistic": _types(per(12, 2), per(6, 4)),
    "negate": _types(per(2, 2), per(2, 4), int32=one(2), int64=one(5)),
    "not": _integers(vector(1), **_both64(vector(3)), **_both16(per(2, 4)), bool=one(17)),
    "popcnt": _integers(one(1)),
    "round_nearest_afz": _types(vector(2), vector(2)),
    "round_nearest_even": _types(vector(2), vector(2)),
    "rsqrt": _types(per(8, 2), per(19, 4)),
    "sign": _types(vector(5), vector(5), int32=one(5)),
    "sine": _types(_simulated(one(2300)), per(25)),
    "sqrt": _types(per(10, 2), per(23, 4)),
    "tan": _types(_simulated(per(5100)), _simulated(per(5700))),
    "tanh": _types(per(12, 2), per(4, 4)),
}
"""Out of place. Source: lib/popops/popopsCycleEstimators.{cpp,hpp}."""

_BITWISE = {**_integers(per(7)), **_both64(per(9)), "bool": per(5, 4)}
_SHIFT = _integers(per(7), **_both64(per(18)))
_ORDER = _types(per(14, 4), per(9, 4))

BINARY: dict[str, dict[str, Loop]] = {
    "add": _types(_assembly(2), _assembly(2), **_integers(per(7)), **_both64(per(11))),
    "subtract": _types(_assembly(2), _assembly(2), **_integers(per(7)), **_both64(per(11))),
    "multiply": _types(_assembly(2), _assembly(2), **_integers(per(7)), **_both64(per(30))),
    "divide": _types(
        per(10, 2), per(21, 4), **_integers(per(277), per(265)), int64=per(130), uint64=per(115)
    ),
    "divide_by_inverse": _types(_assembly(2), _assembly(2)),
    "maximum": _types(per(3, 2), per(4, 4), **_integers(per(7), per(8)), int64=per(15), uint64=per(13)),
    "minimum": _types(per(3, 2), per(4, 4), **_integers(per(7), per(8)), int64=per(15), uint64=per(13)),
    "power": _types(per(312), per(325), int32=per(32)),
    "remainder": _types(
        per(133, 2), per(300, 4), **_integers(per(292), per(282)), int64=per(166), uint64=per(149)
    ),
    "atan2": _types(per(272, 2), per(578, 4)),
    "and": {**_BITWISE, **_both16(per(3, 4))},
    "or": {**_BITWISE, **_both16(per(3, 4))},
    "xor": {**_BITWISE, **_both16(per(5, 2))},
    "shift_left": _SHIFT,
    "shift_right_logical": {**_SHIFT, **_both64(per(6))},
    "shift_right_arithmetic": {**_SHIFT, **_both64(per(19))},
    "compare:EQ": {
        **_ORDER,
        **_integers(per(22, 4)),
        **_both64(per(48, 4)),
        **_both16(per(22, 4)),
        "bool": per(6, 4),
    },
    "compare:NE": _types(
        per(20, 4),
        per(11, 4),
        **_integers(per(22, 4)),
        **_both64(per(48, 4)),
        **_both16(per(22, 4)),
        bool=per(5, 4),
    ),
    "compare:GT": {**_ORDER, **_integers(per(22, 4)), **_both64(per(56, 4)), "bool": per(31, 4)},
    "compare:LT": {**_ORDER, **_integers(per(22, 4)), **_both64(per(56, 4)), "bool": per(28, 4)},
    "compare:GE": {**_ORDER, **_integers(per(26, 4)), **_both64(per(62, 4)), "bool": per(28, 4)},
    "compare:LE": {**_ORDER, **_integers(per(26, 4)), **_both64(per(62, 4)), "bool": per(28, 4)},
}
"""Two tensors, out of place. Source: the same, binary table."""

_BITWISE_SCALAR = {**_integers(per(6)), **_both64(per(7)), "bool": per(4, 4)}
_SHIFT_SCALAR = _integers(per(6), **_both64(per(16)))
_ORDER_SCALAR = _types(per(12, 4), per(8, 4))

BROADCAST: dict[str, dict[str, Loop]] = {
    "add": _types(_assembly(1), _assembly(1), **_integers(per(6)), **_both64(per(9))),
    "subtract": _types(_assembly(1), _assembly(1), **_integers(per(6)), **_both64(per(9))),
    "multiply": _types(_assembly(1), _assembly(1), **_integers(per(6)), **_both64(per(26))),
    "divide": _types(per(6, 2), per(8, 2), **_integers(per(277), per(260)), int64=per(103), uint64=per(148)),
    "divide_by_inverse": _types(_assembly(1), _assembly(1)),
    "maximum": _types(per(3, 2), per(3, 4), **_integers(per(6), per(7)), int64=per(14), uint64=per(11)),
    "minimum": _types(per(3, 2), per(3, 4), **_integers(per(6), per(8)), int64=per(14), uint64=per(13)),
    "power": _types(per(312), per(325), int32=per(32)),
    "remainder": _types(
        per(93, 2), per(225, 4), **_integers(per(280), per(267)), int64=per(137), uint64=per(178)
    ),
    "atan2": _types(per(272, 2), per(578, 4)),
    "and": {**_BITWISE_SCALAR, **_both16(per(2, 4))},
    "or": {**_BITWISE_SCALAR, **_both16(per(2, 4))},
    "xor": {**_BITWISE_SCALAR, **_both16(per(4, 2))},
    "shift_left": _SHIFT_SCALAR,
    "shift_right_logical": {**_SHIFT_SCALAR, **_both64(per(5))},
    "shift_right_arithmetic": {**_SHIFT_SCALAR, **_both64(per(17))},
    "compare:EQ": {
        **_ORDER_SCALAR,
        **_integers(per(16, 4)),
        **_both64(per(32, 4)),
        **_both16(per(16, 4)),
        "bool": per(14, 4),
    },
    "compare:NE": _types(
        per(18, 4),
        per(10, 4),
        **_integers(per(16, 4)),
        **_both64(per(32, 4)),
        **_both16(per(16, 4)),
        bool=per(4, 4),
    ),
    "compare:GT": {**_ORDER_SCALAR, **_integers(per(16, 4)), **_both64(per(38, 4)), "bool": per(12, 4)},
    "compare:LT": {**_ORDER_SCALAR, **_integers(per(16, 4)), **_both64(per(38, 4)), "bool": per(16, 4)},
    "compare:GE": {**_ORDER_SCALAR, **_integers(per(20, 4)), **_both64(per(50, 4)), "bool": per(12, 4)},
    "compare:LE": {**_ORDER_SCALAR, **_integers(per(20, 4)), **_both64(per(50, 4)), "bool": per(16, 4)},
}
"""A tensor and a scalar (or one scalar per row), out of place. Source: the same, broadcast table."""

INVERSE = _types(per(6, 2), per(15, 4))
"""1/x. Source: the same, unary table."""

OTHER: dict[str, dict[str, Loop]] = {
    "select": {name: per(5) for name in ("float32", "float16", "int32", "uint32", "bool")},
    "clamp": _types(Loop(2), Loop(2), **_integers(per(7))),
    "convert": {},
    "bitcast_convert": {},
    "reduce_precision": {
        "float32": Loop(6, None, LOAD_STORE_LOOP, Basis.ASSUMED),
        "float16": Loop(6, None, LOAD_STORE_LOOP, Basis.ASSUMED),
    },
}


GELU = "graphcore/poplibs lib/popnn/codelets/asm/NonLinearity{1D,Loop,GradLoop}_gelu.S: slots of the loops"


def _gelu(slots: int) -> Loop:
    """Return a loop of popnn's assembly for gelu."""
    return Loop(slots, source=GELU)


NONLINEARITIES: dict[str, dict[str, Loop]] = {
    "popnn.relu": _types(Loop(1), Loop(1)),
    "popnn.tanh": _types(Loop(10), Loop(2)),
    "popnn.sigmoid": _types(Loop(10), Loop(4)),
    "popnn.silu": _types(Loop(11), Loop(5)),
    "popnn.gelu": _types(_gelu(21), _gelu(8)),
    "popnn.gelu_erf": _types(per(22), per(16)),
    "popnn.relu_gradient": _types(Loop(3), Loop(3)),
    "popnn.tanh_gradient": _types(Loop(3), Loop(3)),
    "popnn.sigmoid_gradient": _types(Loop(3), Loop(3)),
    "popnn.silu_gradient": _types(Loop(15), Loop(9)),
    "popnn.gelu_gradient": _types(_gelu(28), _gelu(17)),
    "popnn.gelu_erf_gradient": _types(
        Loop(30, None, 0, Basis.ASSUMED), Loop(15, None, 0, Basis.ASSUMED)
    ),  # PopLibs has a placeholder: that of the function itself
}
"""popnn's non-linearities, slots per 64-bit vector. Source: lib/popnn/PerformanceEstimation.hpp.

Not so gelu: that file's 10 and 5 slots, of the function as of its gradient, are marked there as not verified, and fewer
than the tanh of a vector alone takes. The loops of its assembly say what they take: 13 bundles for two floats and 8 for
four halves, of the gradient 16 and 15, with tanh at 5 and 1 slots and exp at 3 and 2. Gelu by erf is popops' unary
function, an element at a time (popopsCycleEstimators.cpp); popnn's own entry is a placeholder.
"""


def key_of(name: str, attrs: Mapping[str, Any]) -> str:
    """Return the table key of a function: a comparison's direction belongs to it."""
    return f"compare:{attrs['direction']}" if name == "compare" else name


def loop_of(name: str, attrs: Mapping[str, Any], dtype: str, scalar: bool = False) -> Loop:
    """Return the inner loop of a function on operands of ``dtype``.

    Args:
      name: the function.
      attrs: its attributes.
      dtype: dtype of its operands (of the values chosen, for select).
      scalar: whether the second operand is one value for a whole row.
    """
    key = key_of(name, attrs)
    if name in ("convert", "bitcast_convert"):
        return _conversion_loop(dtype, attrs["dtype"])
    if name in NAMED:
        entries = NONLINEARITIES[attrs["kind"]]
        is_exact = attrs["kind"] == "popnn.relu"
        loop = entries[dtype] if dtype in entries else derived_loop(entries, dtype, is_exact=is_exact)
        return replace(loop, basis=Basis.ASSUMED) if attrs.get("is_approximate") else loop
    if FUNCTIONS[name].is_source:
        return Loop(1, None)
    table = (
        BROADCAST
        if scalar and key in BROADCAST
        else BINARY
        if key in BINARY
        else UNARY
        if key in UNARY
        else OTHER
    )
    entries = table[key]
    return entries[dtype] if dtype in entries else derived_loop(entries, dtype, is_exact=name in _EXACT)


def calls_library(body: Body, operand_dtypes: tuple[str, ...]) -> bool:
    """Return whether an expression has a function that PopLibs computes by C++, which code of ours is not."""
    return bool(library_rows(body, operand_dtypes))


def library_rows(body: Body, operand_dtypes: tuple[str, ...]) -> list[int]:
    """Return the rows of an expression, by number, that PopLibs computes by C++ of its own."""
    dtypes = body_dtypes(body, operand_dtypes)
    first = len(operand_dtypes)
    return [
        i
        for i, (name, arguments, attrs) in enumerate(body)
        if is_of_library(name, attrs, dtypes[arguments[0]] if arguments else dtypes[first + i])
    ]


def is_of_library(name: str, attrs: Attrs, dtype: str) -> bool:
    """Return whether PopLibs computes a function of a dtype by C++ of its own way, which code of ours is not.

    The C library's are among them, powers too, whose time does not vary, and gelu by erf: PopLibs states 16 and 22 slots
    an element for its approximation, where the expression that programs write takes both sides of an ``erfc``.
    """
    if (name == "power" and is_float(dtype)) or dict(attrs).get("kind") == "popnn.gelu_erf":
        return True
    return loop_of(name, dict(attrs), dtype).source == LIBRARY


def _conversion_loop(source: str, target: str) -> Loop:
    """Return the loop of a conversion: a 64-bit path between floats, one element per 2 slots otherwise.

    PopLibs has no bfloat16. To widen one takes a slot, to round to one six: what our tile code takes (ASSUMED inside a
    vertex of its own).
    """
    if (source, target) == ("bfloat16", "float32"):
        return Loop(4, 4, 0, Basis.ASSUMED)
    if "bfloat16" in (source, target):
        return Loop(6 if source == "float32" else 7, 1, 0, Basis.ASSUMED)
    if source == target or (source == "float32" and target == "float16"):
        return Loop(2, 4)
    if source == "float16" and target == "float32":
        return Loop(1, 2)
    wide = max(itemsize(source), itemsize(target)) == 8
    return Loop(10 if wide else 2, 1, 0, Basis.ASSUMED if wide else Basis.DOCUMENTED)


_EXACT = frozenset(
    "negate abs maximum minimum clamp sign select compare is_finite floor ceil round_nearest_even round_nearest_afz".split()
)
"""Functions of which a bfloat16 that is widened gives one, or a boolean: nothing is rounded."""
WIDENED, ROUNDED = 2, 6
"""Slots in which our tile code widens two bfloat16, and rounds one; see ``tiles/elements/bfloat16.py``."""


def derived_loop(entries: Mapping[str, Loop], dtype: str, *, is_exact: bool = False) -> Loop:
    """Return a loop for a dtype that PopLibs has no entry for (basis ASSUMED).

    * bfloat16: widened to float32, computed, and rounded back where that is not exact: what our tile code takes where there is some.
    * 8-bit floats: 4 slots an element more.
    * float64: emulated in integers, 20 times the float32 loop per element and 30 slots of unpacking.
    * 64-bit integers: four times the 32-bit loop.
    * 8- and 16-bit integers, booleans: the 32-bit loop and one slot to extend the sign.
    """
    if is_float(dtype):
        base = entries.get("float32") or entries["int32"]
        each = -(-(base.slots + base.extra) // (base.elements or 2))
        if itemsize(dtype) == 8:
            return Loop(20 * each + 30, 1, 0, Basis.ASSUMED)
        more = WIDENED + (0 if is_exact else ROUNDED) if dtype == "bfloat16" else 4
        return Loop(each + more, 1, 0, Basis.ASSUMED)
    nearest = "uint32" if dtype.startswith("uint") or dtype == "bool" else "int32"
    base = entries.get(nearest) or entries.get("int32") or entries["float32"]
    each = -(-(base.slots + base.extra) // (base.elements or 2))
    return Loop(4 * each if itemsize(dtype) == 8 else each + 1, 1, 0, Basis.ASSUMED)
