"""Transforms along the last dimension as contractions of real tensors.

A signal of complex numbers is one tensor ``[..., 2, n]``, parts before elements, so that a transform is one
contraction over parts and elements with a matrix ``[2, n, 2, n]``. A signal that comes in as two tensors, or as
a real one, is contracted part by part in the first stage; nothing is copied to join the parts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hlo_passes import ops
from hlo_passes.passes.expansions.term import Term
from hlo_passes.passes.fourier import factors
from hlo_passes.passes.fourier.factors import Dense, Split

MAX_FACTORS = 1 << 16
"""Most turning factors held as a constant; more are computed where they are used."""


@dataclass(frozen=True)
class Signal:
    """Tensors of signals.

    Args:
      terms: one tensor ``[..., 2, n]`` where ``is_joined``; else ``[..., n]``, the real and, if there is one,
        the imaginary part.
      is_joined: whether the parts are one tensor.
    """

    terms: tuple[Term, ...]
    is_joined: bool = False

    @property
    def lead(self) -> tuple[int, ...]:
        """Sizes of the dimensions in front of parts and elements."""
        shape = self.terms[0].shape
        return shape[:-2] if self.is_joined else shape[:-1]

    @property
    def length(self) -> int:
        """Elements of a signal."""
        return self.terms[0].shape[-1]

    def map(self, change: Callable[[Term], Term]) -> Signal:
        """Return the signal with each tensor changed."""
        return dataclasses.replace(self, terms=tuple(map(change, self.terms)))


Form = Literal["joined", "apart", "real"]
"""Results as one tensor of both parts, a tensor for each, or the real one alone."""


@dataclass(frozen=True)
class Transform:
    """What is wanted of a transform along the last dimension.

    Args:
      length: n, of the whole signal; elements beyond those of a shorter tensor are 0.
      sign: -1, or 1 for the inverse.
      scale: what to multiply results by.
      outputs: how many results from the first on are wanted.
      form: which parts of them are wanted, and how.
    """

    length: int
    sign: int
    scale: float
    outputs: int
    form: Form = "joined"


def transformed(signal: Signal, wanted: Transform) -> Signal:
    """Return the results in the form wanted."""
    plan = factors.plan_of(wanted.length, max(1, math.prod(signal.lead)))
    if isinstance(plan, Dense):
        return _dense(signal, wanted)
    if isinstance(plan, Split):
        return _split(signal, wanted, plan.outer, plan.inner)
    return _chirp(signal, wanted, plan.size)


def _formed(joined: Term, form: Form) -> Signal:
    """Return a tensor of both parts in another form."""
    if form == "joined":
        return Signal((joined,), is_joined=True)
    parts = (_part(joined, 0), _part(joined, 1)) if form == "apart" else (_part(joined, 0),)
    return Signal(parts)


def _part(joined: Term, number: int) -> Term:
    """Return the real (0) or imaginary (1) part of ``[..., 2, n]``."""
    shape = joined.shape
    low = (*(0 for _ in shape[:-2]), number, 0)
    limit = (*shape[:-2], number + 1, shape[-1])
    return joined.apply(ops.Slice(low, limit, (1,) * len(shape))).reshape((*shape[:-2], shape[-1]))


# ---- the three ways


def _dense(signal: Signal, wanted: Transform) -> Signal:
    roots = wanted.scale * factors.matrix(wanted.length, signal.length, wanted.outputs, wanted.sign)
    real, imag = np.real(roots), np.imag(roots)
    rows = [np.stack([real, imag], 1), np.stack([-imag, real], 1)]
    if wanted.form == "real":
        rows = [row[:, 0] for row in rows]
    if signal.is_joined:
        result = _contracted(signal.terms[0], np.stack(rows), 2)
    else:
        results = [_contracted(x, row, 1) for x, row in zip(signal.terms, rows, strict=False)]
        result = results[0] if len(results) == 1 else results[0] + results[1]
    return Signal((result,)) if wanted.form == "real" else _formed(result, wanted.form)


def _split(signal: Signal, wanted: Transform, outer: int, inner: int) -> Signal:
    """Element ``j1 * inner + j2`` gives result ``k2 * outer + k1``."""
    rows = -(-signal.length // inner)
    folded = signal.map(lambda x: _folded(x, rows, inner, signal.is_joined))
    (first,) = transformed(folded, Transform(outer, wanted.sign, 1.0, outer)).terms  # [..., j2, 2, k1]
    turned = _turned(first, wanted.length, wanted.sign)
    rank = len(turned.shape)
    turned = turned.permuted((*range(rank - 3), rank - 1, rank - 2, rank - 3))
    taken = -(-wanted.outputs // outer)
    second = Transform(inner, wanted.sign, wanted.scale, taken, wanted.form)
    results = transformed(Signal((turned,), is_joined=True), second)  # [..., k1, (2,) k2]
    return results.map(lambda x: _unfolded(x, results.is_joined).leading((wanted.outputs,)))


def _chirp(signal: Signal, wanted: Transform, size: int) -> Signal:
    """Return the chirp times the convolution of its conjugate with the signal times the chirp."""
    chirp = factors.chirp(wanted.length, wanted.sign)
    turned = _times(signal, chirp[: signal.length])
    there = transformed(Signal((turned,), is_joined=True), Transform(size, -1, 1.0, size))
    spectrum = wanted.scale * factors.chirp_filter(wanted.length, size, wanted.sign)
    filtered = _times(there, spectrum)
    back = transformed(Signal((filtered,), is_joined=True), Transform(size, 1, 1.0, wanted.outputs))
    return _formed(_times(back, chirp[: wanted.outputs]), wanted.form)


# ---- steps


def _contracted(x: Term, array: np.ndarray, count: int) -> Term:
    """Contract the last ``count`` dimensions with the first ones of a constant."""
    last = tuple(range(len(x.shape) - count, len(x.shape)))
    numbers = ops.DotDimensionNumbers(lhs_contracting=last, rhs_contracting=tuple(range(count)))
    return x.apply(ops.DotGeneral(numbers, x.type.dtype, ("HIGHEST", "HIGHEST")), x.array(array))


def _folded(x: Term, rows: int, columns: int, is_joined: bool) -> Term:
    """Return ``[..., columns, (2,) rows]`` of ``[..., (2,) n]``, zeros after the last element."""
    x = x.padded((rows * columns,))
    x = x.reshape((*x.shape[:-1], rows, columns))
    rank = len(x.shape)
    lead = rank - (3 if is_joined else 2)
    return x.permuted((*range(lead), rank - 1, *range(lead, rank - 1)))


def _unfolded(x: Term, is_joined: bool) -> Term:
    """Return ``[..., (2,) k2 * k1]`` of ``[..., k1, (2,) k2]``."""
    rank, behind = len(x.shape), 3 if is_joined else 2
    x = x.permuted((*range(rank - behind), *range(rank - behind + 1, rank), rank - behind))
    return x.reshape((*x.shape[:-2], x.shape[-2] * x.shape[-1]))


def _turned(x: Term, length: int, sign: int) -> Term:
    """Return ``[..., j2, 2, k1]`` times ``exp(sign * 2 pi i * j2 * k1 / length)``."""
    inner, _, outer = x.shape[-3:]
    shape = (inner, 1, outer)
    if inner * outer <= MAX_FACTORS:
        roots = factors.roots_of_unity(np.outer(np.arange(inner), np.arange(outer)), length, sign).reshape(
            shape
        )
        return _rotated(x, np.real(roots), np.imag(roots))
    products = x.iota(-3) * x.iota(-1)
    angle = products.convert(x.type.dtype) * (sign * 2 * math.pi / length)
    signs = x.array(np.array([[-1.0], [1.0]]))
    return x * angle.apply(ops.Cosine()) + x.reversed(-2) * (angle.apply(ops.Sine()) * signs)


def _rotated(x: Term, cosine: np.ndarray, sine: np.ndarray) -> Term:
    """Return joined numbers times constants ``cosine + i sine``, which broadcast against them."""
    signed = sine * np.array([[-1.0], [1.0]])
    return x * x.array(cosine) + x.reversed(-2) * x.array(signed)


def _times(signal: Signal, factor: np.ndarray) -> Term:
    """Return signals times complex numbers ``[n]`` as one tensor ``[..., 2, n]``."""
    real, imag = np.real(factor), np.imag(factor)
    if signal.is_joined:
        (x,) = signal.terms
        return _rotated(x, real[None], imag[None])
    columns = (np.stack([real, imag]), np.stack([-imag, real]))
    shape = (*signal.lead, 1, signal.length)
    products = [x.reshape(shape) * x.array(c) for x, c in zip(signal.terms, columns, strict=False)]
    return products[0] if len(products) == 1 else products[0] + products[1]
