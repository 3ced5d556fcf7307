"""Functions of JAX whose own signatures are not typed in full, with the types that this package calls them by.

A type checker knows nothing of what leaves an unannotated parameter or result. Each of them is declared here once, so
that the modules which call them are checked strictly. They are JAX's functions themselves, not wrappers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import xla_metadata
from jax.extend.core import ClosedJaxpr
from jaxlib import version as _jaxlib_version

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Carry = TypeVar("_Carry")

_lax = cast(Any, lax)


Jaxpr: TypeAlias = Any
"""A traced function: ``constvars``, ``invars``, ``eqns``, ``outvars``."""

Atom: TypeAlias = Any
"""A variable or a literal of a jaxpr."""


class _Jit(Protocol):
    def __call__(
        self, function: Callable[_P, _T], /, *, compiler_options: Mapping[str, bool | int] | None = None
    ) -> Callable[_P, _T]: ...


class _ForiLoop(Protocol):
    def __call__(
        self, lower: int, upper: int, body: Callable[[Array, _Carry], _Carry], start: _Carry, /
    ) -> _Carry: ...


class _Switch(Protocol):
    def __call__(self, index: Array, branches: Sequence[Callable[..., _T]], /, *operands: object) -> _T: ...


class _OptimizationBarrier(Protocol):
    def __call__(self, operands: _T, /) -> _T: ...


class _BroadcastInDim(Protocol):
    def __call__(
        self, operand: Array, shape: Sequence[int], broadcast_dimensions: Sequence[int], /
    ) -> Array: ...


class _BroadcastedIota(Protocol):
    def __call__(self, dtype: Any, shape: Sequence[int], dimension: int, /) -> Array: ...


class _DotGeneral(Protocol):
    def __call__(
        self,
        lhs: Array,
        rhs: Array,
        dimension_numbers: lax.DotDimensionNumbers,
        *,
        precision: tuple[lax.Precision, ...] | None = None,
        preferred_element_type: np.dtype | None = None,
    ) -> Array: ...


class _Gather(Protocol):
    def __call__(
        self,
        operand: Array,
        start_indices: Array,
        dimension_numbers: lax.GatherDimensionNumbers,
        slice_sizes: Sequence[int],
        *,
        mode: str,
    ) -> Array: ...


class _ReduceWindow(Protocol):
    def __call__(
        self,
        operands: _T,
        initial: object,
        combine: Callable[..., object],
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
        base_dilation: Sequence[int] | None = None,
        window_dilation: Sequence[int] | None = None,
        /,
    ) -> _T: ...


class _RngBitGenerator(Protocol):
    def __call__(
        self, key: Array, shape: Sequence[int], dtype: np.dtype, algorithm: lax.RandomAlgorithm, /
    ) -> tuple[Array, Array]: ...


class _FastFourierTransform(Protocol):
    def __call__(self, operand: Array, fft_type: str, fft_lengths: Sequence[int], /) -> Array: ...


class _FloatInfo(Protocol):
    @property
    def min(self) -> Any: ...
    @property
    def max(self) -> Any: ...
    @property
    def tiny(self) -> Any: ...
    @property
    def nmant(self) -> int: ...
    @property
    def minexp(self) -> int: ...
    @property
    def maxexp(self) -> int: ...


Fold = Callable[[Array, Sequence[int]], Array]
"""A reduction of an array along axes."""

fori_loop: _ForiLoop = _lax.fori_loop
switch: _Switch = _lax.switch
optimization_barrier: _OptimizationBarrier = _lax.optimization_barrier
broadcast_in_dim: _BroadcastInDim = _lax.broadcast_in_dim
broadcasted_iota: _BroadcastedIota = _lax.broadcasted_iota
dot_general: _DotGeneral = _lax.dot_general
gather: _Gather = _lax.gather
reduce_window: _ReduceWindow = _lax.reduce_window
rng_bit_generator: _RngBitGenerator = _lax.rng_bit_generator
fft: _FastFourierTransform = _lax.fft
reduce_sum: Fold = _lax.reduce_sum
finfo: Callable[[np.dtype], _FloatInfo] = jnp.finfo
set_xla_metadata: Callable[..., AbstractContextManager[Any]] = cast(Any, xla_metadata).set_xla_metadata
make_jaxpr: Callable[[Callable[..., Any]], Callable[..., ClosedJaxpr]] = cast(Any, jax).make_jaxpr
jit: _Jit = cast(Any, jax).jit

OLDER_EMITTERS: dict[str, bool | int] = (
    {"xla_cpu_use_fusion_emitters": False} if _jaxlib_version.__version_info__ < (0, 11, 1) else {}
)
"""Compiler options that have XLA:CPU take its older emitters of loops. From jaxlib 0.11.1 on it has the newer ones alone."""
