"""Tile code of contractions on the multiply units: its variants, and how operands lie in the memory that it runs on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from tiles.elements import (
    InstructionSet,
    Variant,
    compile_field_runs,
    compile_matrix_vector,
)
from tiles.elements.amp import Product, product_of
from tiles.elements.kept_variants import kept_variant
from tiles.elements.variants import UNNAMED, NoVariant
from tiles.errors import NoTileCode
from tiles.graph import Extents, OpForm, VertexCode
from tiles.numerics.dtypes import is_float, is_integer, is_narrow_float, to_jax
from tiles.poplibs.poplin.methods import stream_of
from tiles.target import Target

SUMS, WEIGHTS, INPUTS, CAST, RUNS = "sums", "weights", "inputs", "cast", "runs"
"""Names of a kernel's memory: results before they are cast, panels, inputs, results where they are cast, and runs."""


def code_by_method(
    ways: Mapping[str, np.ndarray], code: Callable[[str, np.ndarray], Iterable[VertexCode]], what: str
) -> tuple[VertexCode, ...]:
    """Return the code of vertices that compute by several methods; what has none runs none.

    Args:
      ways: which vertices compute by each method, bool.
      code: returns the code of those of a method, or raises NoTileCode.
      what: they compute.

    Raises:
      NoTileCode: no vertex has code; says why.
    """
    found, reasons = list[VertexCode](), list[str]()
    for way, does in ways.items():
        if not does.any():
            continue
        try:
            found += tuple(code(way, does))  # whole, or nothing of it: a sum that is cast needs the cast
        except NoTileCode as error:
            reasons.append(error.what)
    if not any(np.any(np.asarray(part.runs) > 0) for part in found):
        raise NoTileCode("; ".join(reasons) or f"{what} of nothing")
    return tuple(found)


def streamed_product(dtype: str, accumulate: str, target: Target) -> Product:
    """Return the product by which units multiply operands of a dtype, which may have to be widened first.

    Raises:
      NoTileCode: the machine has no units for them.
    """
    stream = stream_of(dtype, accumulate, target)
    may_widen = is_narrow_float(dtype) or is_integer(to_jax(dtype))
    if not stream.units or (stream.dtype != dtype and not may_widen):
        raise NoTileCode(f"products of {dtype} into {accumulate}, for which there are no multiply units")
    return product_of(stream.dtype, stream.sums)


def weights_bits(target: Target) -> int:
    """Return the bits of the supervisor's loads of weights."""
    return 8 * target.conv_unit_coeff_load_bytes_per_cycle


@lru_cache(maxsize=64)
def product_variant(isa: InstructionSet, product: Product, bits: int, is_first: bool) -> Variant | NoVariant:
    """Return the code of a panel of weights over positions that lie together; the first one adds to nothing."""

    def make() -> Variant:
        code = compile_matrix_vector(
            isa, product.dtype, product.partials, UNNAMED, reads_partials=not is_first, weights_bits=bits
        )
        return Variant.of(code, isa)

    return kept_variant(("product", product, bits, is_first), isa, make)


@lru_cache(maxsize=64)
def tap_variant(
    isa: InstructionSet, product: Product, bits: int, height: int, is_first: bool
) -> Variant | NoVariant:
    """Return the code of a panel of weights of a tap, or of one in ``height`` rows, over runs of positions."""

    def make() -> Variant:
        code = compile_field_runs(
            isa,
            product.dtype,
            product.partials,
            height,
            UNNAMED,
            reads_partials=not is_first,
            weights_bits=bits,
        )
        return Variant.of(code, isa)

    return kept_variant(("tap", product, bits, height, is_first), isa, make)


def in_order(x: np.ndarray, form: OpForm, k: int, dims: Sequence[int]) -> np.ndarray:
    """Return operand k of many cells, ``[cells, *axes]``, with the axes of single dimensions in an order; constant ones vanish."""
    own = [axis.terms[0][0] if axis.terms else -1 for axis in form.operands[k].axes]
    constant = [1 + n for n, d in enumerate(own) if d < 0]
    order = [0, *(1 + own.index(d) for d in dims), *constant]
    return x.transpose(order).reshape([len(x), *(x.shape[1 + own.index(d)] for d in dims)])


def filled_up(x: np.ndarray, axis: int, multiple: int) -> np.ndarray:
    """Return an array with zeros at the end of an axis, up to a multiple."""
    missing = -x.shape[axis] % multiple
    if not missing:
        return x
    width = [(0, 0)] * x.ndim
    width[axis] = (0, missing)
    return np.pad(x, width)


def panels(x: np.ndarray, product: Product) -> np.ndarray:
    """Return weights ``[..., outputs, inputs]`` as panels ``[..., output groups, input groups, outputs, inputs]``."""
    whole = filled_up(filled_up(x, x.ndim - 2, product.outputs), x.ndim - 1, product.inputs)
    shape = (*whole.shape[:-2], -1, product.outputs, whole.shape[-1] // product.inputs, product.inputs)
    return np.ascontiguousarray(np.swapaxes(whole.reshape(shape), -3, -2))


def in_words(dtype: str, is_ring: bool) -> np.dtype:
    """Return numpy's dtype, of words in the ring."""
    found = np.dtype(to_jax(dtype))
    return np.dtype(f"uint{8 * found.itemsize}") if is_ring else found


def holds_words(x: np.ndarray, out_dtype: str) -> bool:
    """Return whether an operand of products into a dtype is words of the ring, which unsigned integers are not."""
    return x.dtype.kind == "u" and is_float(out_dtype)


def as_passed(x: np.ndarray, out_dtype: str) -> np.ndarray:
    """Return an operand as the units take it: words of the ring that are integers held by halves as these."""
    holds = x.dtype == np.uint16 and is_integer(to_jax(out_dtype))
    return x.view(np.int16).astype(np.float16) if holds else x


def in_floats(parts: Iterable[VertexCode], accumulate: str) -> Iterator[VertexCode]:
    """Yield the code of products; that of integers computes in floats in the ring, too."""
    for part in parts:
        yield replace(part, in_floats=True, cell=None) if is_integer(to_jax(accumulate)) else part


def of_each_cell(extents: Extents, find: Callable[[tuple[int, ...]], bool | tuple[int, int]]) -> np.ndarray:
    """Return what is found for the sizes of every cell, ``[*cells, ...]``; cells of the same sizes are asked for once."""
    shape = np.shape(extents.points)
    sizes = np.stack([np.broadcast_to(size, shape).reshape(-1) for size in extents.sizes])
    different, of_cell = np.unique(sizes, axis=1, return_inverse=True)
    found = np.array([find(tuple(x)) for x in different.T.tolist()])[of_cell]
    return found.reshape(*shape, *found.shape[1:])


def extent_of(sizes: Sequence[int], dims: Sequence[int]) -> int:
    """Return the product of the extents of some dimensions."""
    return math.prod(sizes[d] for d in dims)
