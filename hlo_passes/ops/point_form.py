"""Forms: which part of every operand one point of an index domain reads, and which part of every result it writes.

A form is a line of text::

    x[i + :3, :], w[:3] -> y[i, :]

Between brackets stands an entry per axis. Names are indices: those that index a result are the points of the domain,
the others are summed over (or combined otherwise). An index may be scaled and shifted (``2*i + k + 1``). ``:3`` is a
window of three elements, ``2*:3`` one whose elements lie two apart, ``:`` a whole axis; these reach the function as axes
of its arguments, and axes of its results are ``:`` in the form. A result is indexed by every point once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from hlo_passes.errors import MalformedForm

COMBINERS: dict[str, Callable[..., Array]] = {"add": jnp.sum, "mul": jnp.prod, "max": jnp.max, "min": jnp.min}
"""What contributions of several points to one result may be combined by."""

_TENSOR = re.compile(r"\s*(?:[A-Za-z_]\w*)?\s*\[([^\[\]]*)\]\s*")
_TERM = re.compile(r"(?:(\d+)\s*\*\s*)?(?:([A-Za-z_]\w*)|:(\d+))|(\d+)")


@dataclass(frozen=True)
class Axis:
    """What a point reads of one axis of an operand: ``offset + sum(coefficient * index) + dilation * (0 .. window - 1)``.

    Args:
      terms: names of indices with their coefficients, at least 1.
      offset: index of the first element at point 0.
      window: elements; None where a point reads one and the function's argument has no such axis; 0 for the whole axis.
      dilation: from one element of the window to the next.
    """

    terms: tuple[tuple[str, int], ...] = ()
    offset: int = 0
    window: int | None = None
    dilation: int = 1

    @property
    def is_index(self) -> bool:
        """Whether an index stands on the axis by itself."""
        return self == Axis(self.terms) and [c for _, c in self.terms] == [1]

    def span(self, sizes: Mapping[str, int], length: int) -> int:
        """Return how many elements of the axis, of ``length``, are covered by points of these ``sizes``."""
        if self.window == 0:
            return length
        reach = sum(c * (sizes[name] - 1) for name, c in self.terms)
        return reach + self.dilation * ((self.window or 1) - 1) + 1

    def __str__(self) -> str:
        """Return the entry as forms have it."""
        if self.window == 0:
            return ":"
        parts = [name if c == 1 else f"{c}*{name}" for name, c in self.terms]
        if self.window is not None:
            parts.append(f":{self.window}" if self.dilation == 1 else f"{self.dilation}*:{self.window}")
        return " + ".join([*parts, *([str(self.offset)] if self.offset or not parts else [])])


Tensor = tuple[Axis, ...]


@dataclass(frozen=True)
class PointForm:
    """Which parts of its operands and results a point has; see the module's text."""

    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]

    @classmethod
    @functools.lru_cache(maxsize=256)
    def parse(cls, text: str) -> PointForm:
        """Read a form.

        Raises:
          MalformedForm: it says why.
        """
        sides = text.split("->")
        if len(sides) != 2:
            raise MalformedForm(text, "one -> between operands and results")
        operands, results = (_tensors(text, side) for side in sides)
        form = cls(operands, results)
        form._check(text)
        return form

    def _check(self, text: str) -> None:
        points, read = self.points, {name for t in self.operands for axis in t for name, _ in axis.terms}
        if not self.results:
            raise MalformedForm(text, "at least one result")
        for tensor in self.operands:
            names = [name for axis in tensor for name, _ in axis.terms]
            if len(set(names)) != len(names):
                raise MalformedForm(text, "every index at most once in an operand")
        for tensor in self.results:
            names = [name for axis in tensor for name, _ in axis.terms]
            is_plain = all(axis.is_index or axis == Axis(window=0) for axis in tensor)
            if not is_plain or len(set(names)) != len(names):
                raise MalformedForm(text, "axes of a result that are : or an index by itself, each once")
            if set(names) != set(points):
                raise MalformedForm(text, f"the indices {', '.join(points)} in every result")
        if missing := [name for name in points if name not in read]:
            raise MalformedForm(text, f"{missing[0]} in an operand, which says how many points there are")

    @functools.cached_property
    def points(self) -> tuple[str, ...]:
        """Indices of the results, in the order of the first."""
        return tuple(name for axis in self.results[0] for name, _ in axis.terms) if self.results else ()

    @functools.cached_property
    def combined(self) -> tuple[str, ...]:
        """Indices whose points contribute to one result."""
        names = dict.fromkeys(name for t in self.operands for axis in t for name, _ in axis.terms)
        return tuple(name for name in names if name not in self.points)

    def sizes(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """Return how many values every index takes.

        An index that stands by itself on an axis takes one for each of its elements; of the others, as many as fit.

        Raises:
          MalformedForm: shapes contradict each other, or the form.
        """
        text = str(self)
        if [len(shape) for shape in shapes] != [len(t) for t in self.operands]:
            ranks = ", ".join(str(len(t)) for t in self.operands)
            raise MalformedForm(text, f"arrays of rank {ranks}", ", ".join(str(tuple(s)) for s in shapes))
        axes = [
            (axis, length)
            for tensor, shape in zip(self.operands, shapes, strict=True)
            for axis, length in zip(tensor, shape, strict=True)
        ]
        sizes: dict[str, int] = {}
        for axis, length in axes:
            if axis.is_index and sizes.setdefault(axis.terms[0][0], length) != length:
                name = axis.terms[0][0]
                raise MalformedForm(text, f"one extent for {name}", f"{sizes[name]} and {length}")
        indices = self.points + self.combined
        for _ in indices:  # each round settles at least one index more, if any can be
            most: dict[str, int] = {}
            for axis, length in axes:
                unknown = [term for term in axis.terms if term[0] not in sizes]
                if len(unknown) == 1:
                    name, coefficient = unknown[0]
                    left = length - axis.offset - axis.span(sizes | {name: 1}, length)
                    most[name] = max(0, min(most.get(name, left // coefficient + 1), left // coefficient + 1))
            sizes |= most
        for name in indices:
            if name not in sizes:
                raise MalformedForm(text, f"an axis that says how many values {name} takes")
        for axis, length in axes:
            end = axis.offset + axis.span(sizes, length)
            if end > length and all(sizes[name] for name, _ in axis.terms):
                raise MalformedForm(text, f"{axis} inside its axis", f"{end} elements of {length}")
        return sizes

    def slice_shape(self, k: int, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what a point reads of operand k."""
        return tuple(
            n if axis.window == 0 else axis.window
            for axis, n in zip(self.operands[k], shape, strict=True)
            if axis.window is not None
        )

    def result_shape(self, k: int, sizes: Mapping[str, int], part: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of result k, of which a point writes ``part``.

        Raises:
          MalformedForm: the part is of another rank.
        """
        wholes = sum(axis.window == 0 for axis in self.results[k])
        if len(part) != wholes:
            raise MalformedForm(
                str(self), f"{wholes} axes of what a point writes to result {k}", str(tuple(part))
            )
        inner = iter(part)
        return tuple(next(inner) if axis.window == 0 else sizes[axis.terms[0][0]] for axis in self.results[k])

    def batched(self, operands: Sequence[bool]) -> PointForm:
        """Return the form with a further index before the axes of some operands and of all results."""
        taken = {*self.points, *self.combined}
        name = next(n for n in (f"batch{k or ''}" for k in range(len(taken) + 1)) if n not in taken)
        axis = Axis(((name, 1),))
        return PointForm(
            tuple((axis, *t) if has else t for t, has in zip(self.operands, operands, strict=True)),
            tuple((axis, *t) for t in self.results),
        )

    def with_whole(self, ranks: Sequence[int]) -> PointForm:
        """Return the form with further operands, of some ranks, that every point reads whole."""
        more = tuple((Axis(window=0),) * rank for rank in ranks)
        return PointForm((*self.operands, *more), self.results)

    def __str__(self) -> str:
        """Return the form in one spelling."""
        sides = (
            ", ".join(f"[{', '.join(map(str, t))}]" for t in side) for side in (self.operands, self.results)
        )
        return " -> ".join(sides)


def _tensors(text: str, side: str) -> tuple[Tensor, ...]:
    """Read the operands or the results of a form."""
    if not side.strip():
        return ()
    if not re.fullmatch(f"{_TENSOR.pattern}(?:,{_TENSOR.pattern})*", side):
        raise MalformedForm(text, "arrays as x[i, :], divided by commas", side.strip())
    entries = [found[1].split(",") if found[1].strip() else [] for found in _TENSOR.finditer(side)]
    return tuple(tuple(_axis(text, entry.strip()) for entry in tensor) for tensor in entries)


def _axis(text: str, entry: str) -> Axis:
    """Read one axis."""
    if entry == ":":
        return Axis(window=0)
    terms: list[tuple[str, int]] = []
    offset, window, dilation = 0, None, 1
    for part in entry.split("+"):
        found = _TERM.fullmatch(part.strip())
        if found is None or (found[1] is not None and int(found[1]) < 1) or (found[3] and int(found[3]) < 1):
            raise MalformedForm(text, "an axis as :, i, 2*i + k + 1, i + :3 or 2*:3", entry)
        if found[4] is not None:
            offset += int(found[4])
        elif found[3] is not None and window is None:
            window, dilation = int(found[3]), int(found[1] or 1)
        elif found[2] is not None:
            terms.append((found[2], int(found[1] or 1)))
        else:
            raise MalformedForm(text, "one window on an axis", entry)
    return Axis(tuple(terms), offset, window, dilation)


# ---- the function at all points


def at_points(
    form: PointForm,
    sizes: Mapping[str, int],
    function: Callable[..., Sequence[Array]],
    operands: Sequence[Array],
    combiner: str,
    kept: Callable[[Array], Array] | None = None,
) -> tuple[Array, ...]:
    """Return the results of a function at all points.

    Args:
      form: what a point reads and writes.
      sizes: how many values every index takes.
      function: of what one point reads of every operand, to what it writes of every result.
      operands: what these points read of the operands: axes begin with the first element read.
      combiner: see ``COMBINERS``; "" where every result is one point's.
      kept: of contributions ``[*points, *combined, ...]``, to those that count; the others neutral. All count by default.
    """
    order = (*form.points, *form.combined)
    views = [_view(tensor, sizes, x, order) for tensor, x in zip(form.operands, operands, strict=True)]
    mapped = function
    for name in reversed(order):
        axes = tuple(0 if name in names else None for names, _ in views)
        mapped = jax.vmap(mapped, in_axes=axes)
    results: list[Array] = []
    for tensor, result in zip(form.results, mapped(*(x for _, x in views)), strict=True):
        folded = tuple(range(len(form.points), len(order)))
        if folded:
            result = result if kept is None else kept(result)
            result = COMBINERS[combiner](result, axis=folded).astype(result.dtype)
        wholes = iter(range(len(form.points), result.ndim))
        axes = [next(wholes) if axis.window == 0 else form.points.index(axis.terms[0][0]) for axis in tensor]
        results.append(result.transpose(axes))
    return tuple(results)


def _view(
    tensor: Tensor, sizes: Mapping[str, int], x: Array, order: Sequence[str]
) -> tuple[frozenset[str], Array]:
    """Return an operand with an axis per index that it has, in this order, then those of windows; and its indices."""
    labels: list[str | None] = []
    for axis in tensor:
        position = len(labels)
        terms: list[tuple[str | None, int, int]] = [(name, sizes[name], c) for name, c in axis.terms]
        if axis.window is not None:
            terms.append((None, axis.window or x.shape[position], axis.dilation))
        if not terms:
            x = lax.squeeze(lax.slice_in_dim(x, 0, 1, axis=position), (position,))
            continue
        terms.sort(key=lambda term: -term[1])  # the fewest slices: the longest index goes along in one
        x = _spread(x, position, [(n, step) for _, n, step in terms])
        labels += [name for name, _, _ in terms]
    indices = [labels.index(name) for name in order if name in labels]
    return frozenset(n for n in labels if n is not None), x.transpose(
        [*indices, *(p for p, name in enumerate(labels) if name is None)]
    )


def _spread(x: Array, axis: int, terms: Sequence[tuple[int, int]]) -> Array:
    """Return ``x`` with an axis per term in the place of one: element ``sum(step * index)`` at each index."""
    *others, (count, step) = terms
    if not others:
        return lax.slice_in_dim(x, 0, max(0, (count - 1) * step + 1), step, axis)
    span = sum(s * (n - 1) for n, s in others) + 1
    parts = [
        _spread(lax.slice_in_dim(x, k * step, k * step + span, axis=axis), axis, others) for k in range(count)
    ]
    return jnp.stack(parts, axis + len(others))


def read_by_points(form: PointForm, sizes: Mapping[str, int], operands: Sequence[Array]) -> list[Array]:
    """Return what points of these sizes, from the first one on, read of whole operands."""
    found: list[Array] = []
    for tensor, x in zip(form.operands, operands, strict=True):
        spans = [axis.span(sizes, n) for axis, n in zip(tensor, x.shape, strict=True)]
        offsets = [axis.offset for axis in tensor]
        found.append(lax.slice(x, offsets, [o + s for o, s in zip(offsets, spans, strict=True)]))
    return found
