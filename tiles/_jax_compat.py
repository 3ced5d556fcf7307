"""What JAX leaves untyped, with the types that this package uses it by.

A type checker knows nothing of what leaves an unannotated parameter or result, and jaxlib's bindings of MLIR have no
types at all. Each is declared here once, so that the modules which use it are checked strictly. They are JAX's own
functions; what is a function of its own here hides how versions of JAX differ.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import xla_metadata
from jax.extend import core
from jax.interpreters import ad, batching
from jax.interpreters import mlir as _interpreters_mlir
from jaxlib import version as _jaxlib_version

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Carry = TypeVar("_Carry")

_jax, _jnp, _lax = cast(Any, jax), cast(Any, jnp), cast(Any, lax)
_mlir, _tree = cast(Any, _interpreters_mlir), cast(Any, jax.tree)


Datum: TypeAlias = Any
"""An array, of JAX's, of NumPy's or traced, or what a user gives for one."""

DTypeLike: TypeAlias = Any
"""A dtype, or what JAX takes for one: a name, a scalar type."""


# ---- tracing

Jaxpr: TypeAlias = Any
"""A traced function: ``constvars``, ``invars``, ``eqns``, ``outvars``."""

Equation: TypeAlias = Any
"""A primitive applied: ``primitive``, ``params``, ``invars``, ``outvars``."""

Atom: TypeAlias = Any
"""A variable or a literal of a jaxpr; an abstract value."""

Params: TypeAlias = Mapping[str, Any]
"""Parameters of a primitive, of any kinds, by name."""


class Primitive(Protocol):
    """A primitive of JAX."""

    name: str
    multiple_results: bool

    def bind(self, *operands: Any, **params: Any) -> Any: ...
    def def_impl(self, impl: Callable[..., Any], /) -> object: ...
    def def_abstract_eval(self, rule: Callable[..., Any], /) -> object: ...


class ClosedJaxpr(Protocol):
    """A traced function and the values of its constants."""

    @property
    def jaxpr(self) -> Any: ...
    @property
    def consts(self) -> Sequence[Any]: ...


class _MakeJaxpr(Protocol):
    @overload
    def __call__(self, function: Callable[..., Any], /) -> Callable[..., ClosedJaxpr]: ...
    @overload
    def __call__(
        self, function: Callable[..., Any], /, *, return_shape: Literal[True]
    ) -> Callable[..., tuple[ClosedJaxpr, Any]]: ...


class _Jit(Protocol):
    @overload
    def __call__(
        self,
        function: Callable[_P, _T],
        /,
        *,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | None = None,
        compiler_options: Mapping[str, Any] | None = None,
        keep_unused: bool = False,
    ) -> Callable[_P, _T]: ...
    @overload
    def __call__(
        self, /, *, static_argnums: int | Sequence[int]
    ) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...


class _RegisterLowering(Protocol):
    def __call__(
        self, primitive: Primitive, rule: Callable[..., Any], /, *, platform: str | None = None
    ) -> object: ...


class _LowerFun(Protocol):
    def __call__(self, function: Callable[..., Any], /, *, multiple_results: bool) -> Callable[..., Any]: ...


Function: TypeAlias = Callable[..., Any]
"""A function of arrays that JAX can trace."""

new_primitive: Callable[[str], Primitive] = cast(Any, core).Primitive
make_jaxpr: _MakeJaxpr = _jax.make_jaxpr
eval_shape: Callable[..., Any] = _jax.eval_shape
jit: _Jit = _jax.jit
device_put: Callable[[Any], jax.Array] = _jax.device_put
export: Callable[..., Callable[..., jax.export.Exported]] = _jax.export.export
read_config: Callable[[str], Any] = _jax.config.read
set_xla_metadata: Callable[..., AbstractContextManager[Any]] = cast(Any, xla_metadata).set_xla_metadata
with_sharding_constraint: Callable[[Any, Any], Any] = _lax.with_sharding_constraint

batchers: MutableMapping[Primitive, Callable[..., Any]] = cast(Any, batching).primitive_batchers
define_linear: Callable[[Primitive, Callable[..., list[Any]]], object] = cast(Any, ad).deflinear2
register_lowering: _RegisterLowering = _mlir.register_lowering
lower_fun: _LowerFun = _mlir.lower_fun


def scan_counts(params: Params) -> tuple[int, int]:
    """Return how many operands of a scan are constants, and how many are carried: numbers until JAX 0.10, then trees."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(list(consts)), len(list(carry))


# ---- MLIR

mlir: Any = _mlir
func: Any = importlib.import_module("jaxlib.mlir.dialects.func")
stablehlo: Any = importlib.import_module("jaxlib.mlir.dialects.stablehlo")


# ---- XLA

OLDER_EMITTERS: dict[str, bool | int] = (
    {"xla_cpu_use_fusion_emitters": False} if _jaxlib_version.__version_info__ < (0, 11, 1) else {}
)
"""Compiler options that have XLA:CPU take its older emitters of loops. From jaxlib 0.11.1 on it has the newer ones alone."""


# ---- structures of arrays

tree_flatten: Callable[[Any], tuple[list[Any], Hashable]] = _tree.flatten
tree_unflatten: Callable[[Hashable, Iterable[Any]], Any] = _tree.unflatten
tree_structure: Callable[[Any], Hashable] = _tree.structure
tree_flatten_with_path: Callable[[Any], tuple[list[tuple[tuple[Any, ...], Any]], Hashable]] = (
    _tree.flatten_with_path
)
keystr: Callable[[tuple[Any, ...]], str] = _jax.tree_util.keystr


# ---- control


class _ForiLoop(Protocol):
    def __call__(
        self,
        lower: int | Array,
        upper: int | Array,
        body: Callable[[Array, _Carry], _Carry],
        start: _Carry,
        /,
    ) -> _Carry: ...


class _Switch(Protocol):
    def __call__(self, index: Any, branches: Sequence[Callable[..., _T]], /, *operands: Any) -> _T: ...


class _Map(Protocol):
    def __call__(self, function: Callable[[Any], _T], operands: Any, /) -> _T: ...


fori_loop: _ForiLoop = _lax.fori_loop
switch: _Switch = _lax.switch
lax_map: _Map = _lax.map


# ---- arrays


class _OptimizationBarrier(Protocol):
    def __call__(self, operands: _T, /) -> _T: ...


class _BroadcastInDim(Protocol):
    def __call__(
        self, operand: Array, shape: Sequence[int], broadcast_dimensions: Sequence[int], /
    ) -> Array: ...


class _Broadcast(Protocol):
    def __call__(self, operand: Array | np.ndarray | np.generic, sizes: Sequence[int], /) -> Array: ...


class _BroadcastedIota(Protocol):
    def __call__(self, dtype: Any, shape: Sequence[int], dimension: int, /) -> Array: ...


class _DotGeneral(Protocol):
    def __call__(
        self,
        lhs: Array,
        rhs: Array,
        dimension_numbers: Any,
        *,
        precision: Any = None,
        preferred_element_type: np.dtype | None = None,
    ) -> Array: ...


class _DynamicIndexInDim(Protocol):
    def __call__(self, operand: Array, index: int | Array, axis: int = 0, keepdims: bool = True) -> Array: ...


class _DynamicUpdateIndexInDim(Protocol):
    def __call__(self, operand: Array, update: Any, index: int | Array, axis: int, /) -> Array: ...


class _FloatInfo(Protocol):
    @property
    def min(self) -> Any: ...
    @property
    def max(self) -> Any: ...
    @property
    def eps(self) -> Any: ...
    @property
    def nexp(self) -> int: ...
    @property
    def nmant(self) -> int: ...
    @property
    def minexp(self) -> int: ...
    @property
    def maxexp(self) -> int: ...


optimization_barrier: _OptimizationBarrier = _lax.optimization_barrier
broadcast: _Broadcast = _lax.broadcast
broadcast_in_dim: _BroadcastInDim = _lax.broadcast_in_dim
broadcasted_iota: _BroadcastedIota = _lax.broadcasted_iota
broadcast_shapes: Callable[..., tuple[int, ...]] = _jnp.broadcast_shapes
dot_general: _DotGeneral = _lax.dot_general
dynamic_index_in_dim: _DynamicIndexInDim = _lax.dynamic_index_in_dim
dynamic_update_index_in_dim: _DynamicUpdateIndexInDim = _lax.dynamic_update_index_in_dim
gather: Callable[..., Array] = _lax.gather
conv_dimension_numbers: Callable[..., lax.ConvDimensionNumbers] = _lax.conv_dimension_numbers
reduce: Callable[..., list[Array]] = _lax.reduce
pad: Callable[[Array, Sequence[tuple[int, int]]], Array] = _jnp.pad
reduce_sum: Callable[[Array, Sequence[int]], Array] = _lax.reduce_sum
reduce_window: Callable[..., Any] = _lax.reduce_window
finfo: Callable[[Any], _FloatInfo] = _jnp.finfo
