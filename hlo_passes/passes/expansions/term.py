"""Write computations as formulas: values with operators, broadcast as numpy does.

A ``Term`` is a value of a computation under construction; what is done to it is appended to the builder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_passes import ops
from hlo_passes.ir import Builder, Computation, Op, TensorType, Value

Number = float | int | bool


@dataclass(frozen=True, eq=False)
class Term:
    """A value of the computation that ``builder`` builds. Numbers beside terms take the term's type."""

    builder: Builder
    value: Value

    @property
    def type(self) -> TensorType:
        """Its type."""
        return self.value.type

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.value.type.shape

    def apply(self, op: Op, *others: Term, regions: Sequence[Computation] = ()) -> Term:
        """Append an operation with one result, of this term and others."""
        values = (other.value for other in others)
        return Term(self.builder, self.builder.add(op, self.value, *values, regions=regions))

    # --- arithmetic

    def __add__(self, other: Term | Number) -> Term:
        """Add elementwise."""
        return self._paired(ops.Add(), other)

    def __sub__(self, other: Term | Number) -> Term:
        """Subtract elementwise."""
        return self._paired(ops.Subtract(), other)

    def __mul__(self, other: Term | Number) -> Term:
        """Multiply elementwise."""
        return self._paired(ops.Multiply(), other)

    def __truediv__(self, other: Term | Number) -> Term:
        """Divide elementwise."""
        return self._paired(ops.Divide(), other)

    def __radd__(self, other: Number) -> Term:
        """Add elementwise to a number."""
        return self.constant(other) + self

    def __rsub__(self, other: Number) -> Term:
        """Subtract elementwise from a number."""
        return self.constant(other) - self

    def __rmul__(self, other: Number) -> Term:
        """Multiply a number elementwise."""
        return self.constant(other) * self

    def __rtruediv__(self, other: Number) -> Term:
        """Divide a number elementwise."""
        return self.constant(other) / self

    def __neg__(self) -> Term:
        """Negate."""
        return self.apply(ops.Negate())

    def __abs__(self) -> Term:
        """Take magnitudes."""
        return self.apply(ops.Abs())

    def maximum(self, other: Term | Number) -> Term:
        """Take the larger elements."""
        return self._paired(ops.Maximum(), other)

    def minimum(self, other: Term | Number) -> Term:
        """Take the smaller elements."""
        return self._paired(ops.Minimum(), other)

    def atan2(self, other: Term | Number) -> Term:
        """Take the angles of points (other, self)."""
        return self._paired(ops.Atan2(), other)

    def __or__(self, other: Term | Number) -> Term:
        """Combine bits by "or"."""
        return self._paired(ops.Or(), other)

    def __and__(self, other: Term | Number) -> Term:
        """Combine bits by "and"."""
        return self._paired(ops.And(), other)

    def compare(self, direction: str, other: Term | Number) -> Term:
        """Compare elementwise: EQ, NE, LT, LE, GT or GE."""
        return self._paired(ops.Compare(direction), other)

    def choose(self, on_true: Term | Number, on_false: Term | Number) -> Term:
        """Select elementwise by this predicate; a number takes the type of the other choice, a term."""
        given = next(choice for choice in (on_true, on_false) if isinstance(choice, Term))
        chosen, other = (c if isinstance(c, Term) else given.constant(c) for c in (on_true, on_false))
        shape = np.broadcast_shapes(self.shape, chosen.shape, other.shape)
        return self.broadcast(shape).apply(ops.Select(), chosen.broadcast(shape), other.broadcast(shape))

    def convert(self, dtype: str) -> Term:
        """Convert elements."""
        return self if dtype == self.type.dtype else self.apply(ops.Convert(dtype))

    def _paired(self, op: Op, other: Term | Number) -> Term:
        right = other if isinstance(other, Term) else self.constant(other)
        shape = np.broadcast_shapes(self.shape, right.shape)
        return self.broadcast(shape).apply(op, right.broadcast(shape))

    # --- elements that are not computed

    def constant(self, element: Number, type_: TensorType | None = None) -> Term:
        """Return a constant of this term's type, or another."""
        return Term(self.builder, self.builder.add(ops.Constant.splat(element, type_ or self.type)))

    def array(self, array: np.ndarray) -> Term:
        """Return a constant array, rounded to this term's element type."""
        return Term(self.builder, self.builder.add(ops.Constant.of(array, self.type.dtype)))

    def iota(self, axis: int) -> Term:
        """Return the index along an axis (-1 is the last one): ``[n, 1, ...]`` in i32, to broadcast."""
        axis %= len(self.shape)
        type_ = TensorType((self.shape[axis],), "i32")
        counts = Term(self.builder, self.builder.add(ops.Iota(type_, 0)))
        return counts.reshape(tuple(n if d == axis else 1 for d, n in enumerate(self.shape)))

    # --- movement

    def broadcast(self, shape: tuple[int, ...]) -> Term:
        """Repeat along leading axes and those of size 1, as numpy does."""
        if shape == self.shape:
            return self
        return self.apply(ops.BroadcastInDim(shape, tuple(range(len(shape) - len(self.shape), len(shape)))))

    def reshape(self, shape: tuple[int, ...]) -> Term:
        """Give the elements another shape."""
        return self if shape == self.shape else self.apply(ops.Reshape(shape))

    def permuted(self, permutation: Sequence[int]) -> Term:
        """Reorder the axes: result axis ``d`` is this term's ``permutation[d]``."""
        is_identity = list(permutation) == list(range(len(self.shape)))
        return self if is_identity else self.apply(ops.Transpose(tuple(permutation)))

    def transposed(self) -> Term:
        """Exchange the last two axes."""
        rank = len(self.shape)
        return self.apply(ops.Transpose((*range(rank - 2), rank - 1, rank - 2)))

    def reversed(self, *axes: int) -> Term:
        """Read backwards along axes (-1 is the last one)."""
        return self.apply(ops.Reverse(tuple(sorted(axis % len(self.shape) for axis in axes))))

    def padded(self, sizes: tuple[int, ...]) -> Term:
        """Append zeros until the last axes have these sizes."""
        rank = len(self.shape)
        missing = (new - n for new, n in zip(sizes, self.shape[rank - len(sizes) :], strict=True))
        high = (0,) * (rank - len(sizes)) + tuple(missing)
        if not any(high):
            return self
        zero = self.constant(0, self.type.with_shape(()))
        return self.apply(ops.Pad((0,) * rank, high, (0,) * rank), zero)

    def leading(self, sizes: tuple[int, ...]) -> Term:
        """Take the first elements along the last axes."""
        limit = (*self.shape[: len(self.shape) - len(sizes)], *sizes)
        if limit == self.shape:
            return self
        return self.apply(ops.Slice((0,) * len(limit), limit, (1,) * len(limit)))

    def element(self, *indices: int) -> Term:
        """Take one index along each of the last axes, which stay, with size 1."""
        rank = len(self.shape)
        whole = rank - len(indices)
        places = [index % n for index, n in zip(indices, self.shape[whole:], strict=True)]
        limit = (*self.shape[:whole], *(place + 1 for place in places))
        return self.apply(ops.Slice((0,) * whole + tuple(places), limit, (1,) * rank))

    def at(self, axis: int, index: int) -> Term:
        """Take one index along an axis (-1 is the last one), which stays, with size 1."""
        rank = len(self.shape)
        chosen = axis % rank
        start = tuple(index if d == chosen else 0 for d in range(rank))
        limit = tuple(index + 1 if d == chosen else n for d, n in enumerate(self.shape))
        return self.apply(ops.Slice(start, limit, (1,) * rank))

    def joined(self, axis: int, *others: Term) -> Term:
        """Put others behind this term along an axis (-1 is the last one)."""
        return self.apply(ops.Concatenate(axis % len(self.shape)), *others)

    def window(self, starts: Sequence[Term | int], sizes: tuple[int, ...]) -> Term:
        """Take a slice of the last axes at scalar offsets; other axes are taken whole."""
        whole = self.shape[: len(self.shape) - len(sizes)]
        return self.apply(ops.DynamicSlice((*whole, *sizes)), *self._offsets(starts))

    def updated(self, update: Term, starts: Sequence[Term | int]) -> Term:
        """Replace a slice of the last axes at scalar offsets."""
        return self.apply(ops.DynamicUpdateSlice(), update, *self._offsets(starts))

    def _offsets(self, starts: Sequence[Term | int]) -> list[Term]:
        index = TensorType((), "i32")
        zeros = [0] * (len(self.shape) - len(starts))
        return [s if isinstance(s, Term) else self.constant(s, index) for s in (*zeros, *starts)]

    # --- many elements

    def sum(self, axes: Sequence[int]) -> Term:
        """Add up elements along axes, which go."""
        scalar = self.type.with_shape(())
        body = Builder("add")
        x, y = body.parameter(scalar), body.parameter(scalar)
        region = body.build(body.add(ops.Add(), x, y))
        return self.apply(ops.Reduce(tuple(axes)), self.constant(0, scalar), regions=[region])

    def matmul(self, other: Term, transpose: bool = False) -> Term:
        """Multiply batches of matrices, the second one transposed if asked, in full precision."""
        rank = len(self.shape)
        batch = tuple(range(rank - 2))
        numbers = ops.DotDimensionNumbers(batch, batch, (rank - 1,), (rank - 1 if transpose else rank - 2,))
        return self.apply(ops.DotGeneral(numbers, self.type.dtype, ("HIGHEST", "HIGHEST")), other)


def repeat(
    count: int,
    body: Callable[[Term, Sequence[Term], Sequence[Term]], Sequence[Term]],
    carried: Sequence[Term],
    invariants: Sequence[Term] = (),
) -> list[Term]:
    """Replace ``carried`` ``count`` times by ``body(round number, carried, invariants)``."""
    builder = carried[0].builder
    region = Builder("body")
    index = TensorType((), "i32")
    number, *inner = (
        Term(region, region.parameter(type_)) for type_ in (index, *(t.type for t in (*carried, *invariants)))
    )
    results = body(number, inner[: len(carried)], inner[len(carried) :])
    computation = region.build((number + 1).value, *(result.value for result in results))
    first = carried[0].constant(0, index)
    operands = (term.value for term in (first, *carried, *invariants))
    loop = ops.Repeat(count, len(invariants))
    made = builder.emit(loop, *operands, regions=[computation])
    return [Term(builder, value) for value in made[1:]]
