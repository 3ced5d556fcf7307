"""Sort: several arrays by one comparing region; and the first elements of such an order.

A comparator that orders by keys one after the other, as JAX writes it, is recognized and sorts by
``lax.sort``; any other runs in a sorting network. Both are stable, so the result is the same by either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_passes._jax_compat import broadcasted_iota, fori_loop
from hlo_passes.ir.interpreter import Closure, as_closure, as_computation
from hlo_passes.ir.module import Computation
from hlo_passes.ir.op import Op
from hlo_passes.ir.types import TensorType
from hlo_passes.ops.data_movement import Constant
from hlo_passes.ops.elementwise import Compare, total_order_key

Tree: TypeAlias = tuple[Any, ...]
"""A region's value: ``("arg", operand, side)``, ``("constant", op)`` or ``(op, *operands)``."""


class SortKey(NamedTuple):
    """One key of a lexicographic order.

    Args:
      operand: which array it compares.
      is_descending: whether greater elements come first.
      is_total: whether floats are ordered by sign and bits (-NaN < -inf < -0 < 0 < inf < NaN); else zeros
        are equal, and so are NaNs, before that.
    """

    operand: int
    is_descending: bool
    is_total: bool


def sort_keys(region: Computation | Closure) -> tuple[SortKey, ...] | None:
    """Return the keys that a comparator orders by, the first one first; None when it is of another form."""
    body = as_computation(region)
    trees: dict[Any, Tree] = {p: ("arg", n // 2, n % 2) for n, p in enumerate(body.parameters)}
    for instruction in body.instructions:
        if instruction.regions or len(instruction.results) != 1:
            return None
        op = instruction.op
        leaf = ("constant", op) if isinstance(op, Constant) else None
        trees[instruction.result] = leaf or (op, *(trees[v] for v in instruction.operands))
    return _lexicographic(trees[body.results[0]])


def _lexicographic(tree: Tree) -> tuple[SortKey, ...] | None:
    """Match ``before(k)``, or ``before(k) or (same(k) and rest)`` in any order of operands."""
    key = _ordered(tree)
    if key is not None:
        return (key,)
    if _name(tree) != "stablehlo.or":
        return None
    for first, rest in (tree[1:], tree[:0:-1]):
        key = _ordered(first)
        if key is None or _name(rest) != "stablehlo.and":
            continue
        for same, others in (rest[1:], rest[:0:-1]):
            remaining = (
                _lexicographic(others) if _compared(same, ("EQ",)) == (key.operand, key.is_total) else None
            )
            if remaining is not None:
                return (key, *remaining)
    return None


def _name(tree: Tree) -> str:
    return tree[0].name if isinstance(tree[0], Op) else ""


def _ordered(tree: Tree) -> SortKey | None:
    """Match a comparison of an element with the other one of its array by < or >."""
    found = _compared(tree, ("LT", "GT"))
    if found is None:
        return None
    is_swapped = _side(tree[1]) == 1
    return SortKey(found[0], (tree[0].direction == "GT") != is_swapped, found[1])


def _compared(tree: Tree, directions: tuple[str, ...]) -> tuple[int, bool] | None:
    """Return which array a comparison of its two elements is of, and whether in total order."""
    op = tree[0]
    if not isinstance(op, Compare) or op.direction not in directions:
        return None
    left, right = (_canonical(side) for side in tree[1:])
    if left is None or right is None or left[0] != right[0] or left[2] != right[2] or left[1] == right[1]:
        return None
    is_total_order = op.compare_type == "TOTALORDER"
    return left[0], is_total_order and not left[2]


def _side(tree: Tree) -> int:
    found = _canonical(tree)
    assert found is not None
    return found[1]


def _canonical(tree: Tree) -> tuple[int, int, bool] | None:
    """Return operand and side of an argument, and whether zeros and NaN were first made one of each."""
    if tree[0] == "arg":
        return tree[1], tree[2], False
    if _name(tree) != "stablehlo.select":
        return None
    _, is_nan, nan, rest = tree
    if _name(rest) != "stablehlo.select" or not _is_constant(nan, np.isnan):
        return None
    _, is_zero, zero, argument = rest
    if argument[0] != "arg" or not _is_constant(zero, lambda x: x == 0 and not np.signbit(x)):
        return None
    compares_nan = _is_compare(is_nan, "NE", argument, lambda other: other == argument)
    compares_zero = _is_compare(is_zero, "EQ", argument, lambda other: _is_constant(other, lambda x: x == 0))
    return (argument[1], argument[2], True) if compares_nan and compares_zero else None


def _is_compare(tree: Tree, direction: str, argument: Tree, is_other: Callable[[Tree], bool]) -> bool:
    op = tree[0]
    is_plain = isinstance(op, Compare) and op.direction == direction and op.compare_type != "TOTALORDER"
    return is_plain and tree[1] == argument and is_other(tree[2])


def _is_constant(tree: Tree, holds: Callable[[Any], Any]) -> bool:
    if tree[0] != "constant" or not tree[1].is_splat or not tree[1].type.is_float:
        return False
    return bool(holds(tree[1].value.astype(np.float64)))


@dataclass(frozen=True)
class Sort(Op):
    """Sort the operands together along ``dimension`` such that the region holds between neighbours.

    Spec: StableHLO "sort", constraints C1-C5. Equal elements keep their order whether or not ``is_stable``.
    """

    name: ClassVar[str] = "stablehlo.sort"
    num_regions: ClassVar[int] = 1
    dimension: int = -1
    is_stable: bool = False

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the operands' types."""
        self.require("C1", bool(operands), "no operands")
        first = operands[0]
        for operand in operands:
            self.require("C3", operand.shape == first.shape, f"shapes of {first} and {operand} differ")
        inside = -first.rank <= self.dimension < first.rank
        self.require("C4", inside, lambda: f"dimension {self.dimension} is not a dimension of {first}")
        expected = tuple(t.with_shape(()) for t in operands for _ in range(2))
        self.require("C5", len(regions) == 1, lambda: f"expected 1 region, got {len(regions)}")
        body = as_computation(regions[0])
        typed = body.parameter_types == expected and body.result_types == (TensorType((), "i1"),)
        self.require("C5", typed, lambda: f"the region does not compare {', '.join(map(str, expected))}")
        return operands

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Sort by recognized keys, or by a network of the region's comparisons."""
        keys = sort_keys(regions[0])
        axis = self.dimension % operands[0].ndim
        if keys is not None:
            return sorted_by_keys(operands, keys, axis)
        body = as_closure(regions[0])

        def before(a: Sequence[Array], b: Sequence[Array]) -> Array:
            flat = [x.reshape(-1) for pair in zip(a, b, strict=True) for x in pair]
            return jax.vmap(body)(*flat)[0].reshape(a[0].shape)

        return sorted_by_network(operands, before, axis)


@dataclass(frozen=True)
class TopK(Op):
    """Return the first ``k`` elements along ``dimension`` in a stable order, and their positions there (i32).

    Spec: the first ``k`` results of a StableHLO "sort" of the operand and of an i32 iota along ``dimension`` by
    the key that ``is_descending`` and ``is_total`` state (see ``SortKey``); constraints C1 (``dimension`` is one
    of the operand's), C2 (``k`` is from 0 to its size), C3 (positions fit in i32), I1 (elements have an order).
    With both flags, the defaults, it is CHLO's "top_k".
    """

    name: ClassVar[str] = "hlo.top_k"
    k: int
    dimension: int
    is_descending: bool = True
    is_total: bool = True

    @property
    def key(self) -> SortKey:
        """The order of elements."""
        return SortKey(0, self.is_descending, self.is_total)

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's type with ``k`` elements along the dimension, and the same of i32."""
        self.require_arity(operands, 1)
        (operand,) = operands
        self.require("I1", not operand.is_complex, lambda: f"elements of {operand} have no order")
        inside = 0 <= self.dimension < operand.rank
        self.require("C1", inside, lambda: f"dimension {self.dimension} is not a dimension of {operand}")
        size = operand.shape[self.dimension]
        self.require("C2", 0 <= self.k <= size, lambda: f"{self.k} elements of {size}")
        self.require("C3", size <= np.iinfo(np.int32).max, lambda: f"positions in {size} elements")
        shape = (*operand.shape[: self.dimension], self.k, *operand.shape[self.dimension + 1 :])
        return operand.with_shape(shape), TensorType(shape, "i32")

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Sort all elements with their positions and keep the first ones."""
        (x,) = operands
        position = broadcasted_iota(np.int32, x.shape, self.dimension)
        found = sorted_by_keys((x, position), (self.key,), self.dimension)
        return tuple(lax.slice_in_dim(y, 0, self.k, axis=self.dimension) for y in found)


def sorted_by_keys(operands: Sequence[Array], keys: Sequence[SortKey], axis: int) -> tuple[Array, ...]:
    """Return arrays sorted together along ``axis`` by keys, equal elements in their old order; every bit stays as it is.

    XLA:CPU sorts narrow floats as wider ones, which loses the bits of a NaN, so floats are sorted as their words.
    """
    columns = [_key_column(operands[key.operand], key) for key in keys]
    words = [_words(x) for x in operands]
    found = lax.sort([*columns, *words], axis, True, len(columns))[len(columns) :]
    return tuple(
        y if y.dtype == x.dtype else lax.bitcast_convert_type(y, x.dtype)
        for x, y in zip(operands, found, strict=True)
    )


def _words(x: Array) -> Array:
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return lax.bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}")) if is_float else x


def _key_column(x: Array, key: SortKey) -> Array:
    """Return integers that order ascending as the key orders ``x``."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        if not key.is_total:
            x = lax.select(x == 0, lax.full_like(x, 0), x)
            x = lax.select(x != x, lax.full_like(x, np.nan), x)
        x = total_order_key(x)
    return ~x if key.is_descending else x


def sorted_by_network(
    operands: Sequence[Array], before: Callable[[Sequence[Array], Sequence[Array]], Array], axis: int
) -> tuple[Array, ...]:
    """Return arrays sorted along ``axis`` by a bitonic network; positions decide between equal elements.

    Every block ascends: its first step compares with the mirror image in the block.

    Args:
      operands: arrays of one shape.
      before: whether the first elements must come before the second ones, elementwise.
      axis: the dimension to sort.
    """
    size = operands[0].shape[axis]
    width = 1 << max(0, size - 1).bit_length()
    moved = [jnp.moveaxis(x, axis, -1) for x in operands]
    padded = [
        lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 1) + [(0, width - size, 0)]) for x in moved
    ]
    position = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), padded[0].shape)
    blocks = [2 << i for i in range(width.bit_length() - 1)]
    steps = [m for n in blocks for m in (n - 1, *(n >> j for j in range(2, n.bit_length())))]
    if not steps:
        return tuple(operands)
    table = jnp.array(steps, jnp.int32)
    lane = jnp.arange(width, dtype=jnp.int32)

    def precedes(a: Sequence[Array], b: Sequence[Array]) -> Array:
        earlier = before(a[:-1], b[:-1]) | (~before(b[:-1], a[:-1]) & (a[-1] < b[-1]))
        return (a[-1] < size) & ((b[-1] >= size) | earlier)

    def step(number: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        partner = lane ^ table[number]
        others = [jnp.take(x, partner, axis=-1, mode="clip") for x in state]
        takes = (lane < partner) == precedes(others, state)
        return tuple(jnp.where(takes, other, x) for x, other in zip(state, others, strict=True))

    result = fori_loop(0, len(steps), step, (*padded, position))
    return tuple(jnp.moveaxis(x[..., :size], -1, axis) for x in result[:-1])
