"""Python functions to jaxprs, and what a jaxpr says."""

# pyright: standard, reportPrivateImportUsage=false
# (private names are this module's purpose)

from __future__ import annotations

import contextlib
import functools
import itertools
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import config as _config
from jax._src import core as _core
from jax._src import debugging as _debugging
from jax._src import sharding_impls as _sharding_impls
from jax._src import source_info_util as _source_info_util
from jax._src.lax import lax as _lax
from jax._src.util import weakref_lru_cache as _weakref_lru_cache
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from ipuxla._jax_compat import Datum, Tree, TreeDef
from ipuxla.frontend._jax_compat.aliases import ClosedJaxpr, Equation, JitWrapped, ShapedArray, jaxpr_as_fun
from ipuxla.frontend.frames import users_own

# ---- tracing ----


def trace_context() -> Hashable:
    """Return a hashable value that differs whenever a trace could. Hides ``config.trace_context``."""
    return _config.trace_context()


def allow_explicit_64bit() -> contextlib.AbstractContextManager[object]:
    """Keep 64-bit arrays 64 bits wide while defaults stay 32-bit. Hides ``jax_explicit_x64_dtypes``."""
    return _config.explicit_x64_dtypes(_config.ExplicitX64Mode.ALLOW)


def is_jit_disabled() -> bool:
    """Whether the caller is under ``jax.disable_jit``. Hides how settings are read."""
    setting: Any = jax.config
    return bool(setting.jax_disable_jit)


class TracedFunction(NamedTuple):
    """What tracing a ``jax.jit`` function gives.

    Args:
      jaxpr: what it computes.
      outer: the outer tracers that the function reads, which are its first arguments.
      out_tree: structure of its results.
      donated: positions, among the leaves of the arguments, of those that are donated.
      inputs: the sharding of each argument of the jaxpr, None where none is said.
      outputs: likewise of each result.
    """

    jaxpr: ClosedJaxpr
    outer: list[Datum]
    out_tree: TreeDef
    donated: tuple[int, ...]
    inputs: tuple[jax.sharding.Sharding | None, ...]
    outputs: tuple[jax.sharding.Sharding | None, ...]


def trace_function(
    jitted: jax.stages.Wrapped, args: tuple[Tree, ...], kwargs: dict[str, Tree]
) -> TracedFunction:
    """Trace a ``jax.jit`` function. Hides where ``Traced`` keeps what the function closes over, and shardings.

    Hides, too, that a jaxpr may hold operations which JAX itself replaces by others before it lowers them.
    """
    traced: Any = jitted.trace(*args, **kwargs)
    if traced.jaxpr.is_high and not any(aval.is_high for aval in traced.jaxpr.in_avals):
        traced = traced.lojax
    outer = list(traced._consts)
    is_donated = traced._params["donated_invars"][len(outer) :]
    said = [traced._params[role] for role in ("in_shardings", "out_shardings")]
    avals = traced.jaxpr.in_avals, traced.jaxpr.out_avals
    inputs, outputs = (tuple(map(_said_sharding, *pair)) for pair in zip(said, avals, strict=True))
    positions = tuple(np.flatnonzero(is_donated).tolist())
    return TracedFunction(traced.jaxpr, outer, traced.out_tree, positions, inputs, outputs)


def clear_cache(jitted: JitWrapped) -> None:
    """Forget what a ``jax.jit`` function compiled. Hides that JAX declares no such method."""
    own: Any = jitted
    own.clear_cache()


def _said_sharding(sharding: Any, aval: ShapedArray) -> jax.sharding.Sharding | None:
    """Return the sharding that ``jit`` was told, else that of an explicitly sharded type, else None."""
    if not isinstance(sharding, _sharding_impls.UnspecifiedValue):
        return sharding
    own = getattr(aval, "sharding", None)
    return own if own is not None and any(own.spec) and not own.mesh.empty else None


def key_generator(aval: ShapedArray) -> str | None:
    """Return the name of the random number generator whose keys an abstract value holds. Hides key types."""
    return aval.dtype._impl.name if jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key) else None


def weaken(array: Datum) -> jax.Array:
    """Mark an array's type as weak, as the result of a Python scalar is. Hides ``_convert_element_type``."""
    weak: Any = _lax._convert_element_type(array, array.dtype, weak_type=True)
    return weak


def hide_frames(folder: str) -> None:
    """Leave files under ``folder`` out of source locations. Hides ``register_exclusion``."""
    _source_info_util.register_exclusion(folder)


# ---- reading jaxprs ----


def argument_names(jaxpr: ClosedJaxpr) -> list[str]:
    """Return each argument's name ("params['w']"), empty where unknown. Hides ``DebugInfo``."""
    return [name or "" for name in jaxpr.jaxpr.debug_info.safe_arg_names(len(jaxpr.in_avals))]


def has_effects(equation: Equation) -> bool:
    """Whether an equation does more than compute (prints, writes). Hides effect types."""
    return any(not isinstance(effect, _HARMLESS) for effect in equation.effects)


_HARMLESS = (_core.NamedAxisEffect, _lax.NoDCEEffect)


def only_debugs(equation: Equation) -> bool:
    """Whether an equation's only effects are those of ``jax.debug``. Hides their types."""
    kinds = (_debugging.DebugEffect, _debugging.OrderedDebugEffect)
    return all(isinstance(effect, (*kinds, *_HARMLESS)) for effect in equation.effects)


def find_equation(
    jaxpr: ClosedJaxpr,
    is_wanted: Callable[[Equation], bool],
    is_opaque: Callable[[Equation], bool] = lambda _: False,
) -> tuple[Equation, str | None] | None:
    """Return the first wanted equation, innermost first, with the user's ``file:line`` behind it.

    What is inside of an opaque equation is passed over. Hides where equations keep jaxprs, and source information: a
    jaxpr inside another begins its own, so where it says nothing, or names lines of libraries only, the equation
    around it does.
    """
    found = (
        (equation, f"{frame.file_name}:{frame.start_line}" if frame else None)
        for equation, frame in _equations(jaxpr.jaxpr, None, is_opaque)
        if is_wanted(equation)
    )
    return next(found, None)


def operand_types(equation: Equation) -> list[ShapedArray]:
    """Return the types of the operands of an equation of arrays. Hides atoms, which may be of any abstract value."""
    avals: list[Any] = [atom.aval for atom in equation.invars]
    return avals


def has_inner_jaxprs(equation: Equation) -> bool:
    """Whether an equation holds jaxprs, which say what it does. Hides where."""
    return any(True for _ in _core.jaxprs_in_params(equation.params))


def is_librarys(equation: Equation) -> bool:
    """Whether an equation's primitive is not JAX's own, so that JAX knows what it does when it is lowered only."""
    function: Any = equation.primitive.impl
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__module__", "jax").partition(".")[0] != "jax"


def _file_of(frame: Any) -> str:
    return frame.file_name


def _equations(
    jaxpr: _core.Jaxpr, around: Any, is_opaque: Callable[[Equation], bool] = lambda _: False
) -> Iterator[tuple[Equation, Any]]:
    outer = () if around is None else (around,)
    for equation in jaxpr.eqns:
        frames = _source_info_util.user_frames(equation.source_info.traceback)
        frame = users_own(itertools.chain(frames, outer), _file_of)
        for inner in () if is_opaque(equation) else _core.jaxprs_in_params(equation.params):
            yield from _equations(inner, frame, is_opaque)
        yield equation, frame


@_weakref_lru_cache
def has_64bit(jaxpr: ClosedJaxpr) -> bool:
    """Whether any value in a jaxpr is 64 bits wide. Hides jaxpr variables; remembered per jaxpr."""
    inner = (equation.outvars for equation, _ in _equations(jaxpr.jaxpr, None))
    atoms = itertools.chain(jaxpr.jaxpr.invars, jaxpr.jaxpr.constvars, jaxpr.jaxpr.outvars, *inner)
    return any(is_64bit(getattr(atom.aval, "dtype", None)) for atom in atoms)


def is_64bit(dtype: object) -> bool:
    """Whether a dtype is one that JAX narrows unless ``jax_enable_x64`` is set. Hides types of keys."""
    return isinstance(dtype, np.dtype) and dtype.name in ("int64", "uint64", "float64", "complex128")


def own_width(jaxpr: ClosedJaxpr) -> contextlib.AbstractContextManager[object]:
    """Return the setting under which to rewrite or lower a jaxpr so that no type in it changes width."""
    return jax.enable_x64(True) if has_64bit(jaxpr) else contextlib.nullcontext()


# ---- meshes and shardings ----


def meshes_of(jaxpr: ClosedJaxpr) -> Iterator[tuple[Mesh | AbstractMesh, str | None]]:
    """Yield the mesh that an equation names, and the user's ``file:line``. Hides which parameters name one."""
    for equation, frame in _equations(jaxpr.jaxpr, None):
        place = f"{frame.file_name}:{frame.start_line}" if frame else None
        for value in equation.params.values():
            found = getattr(value, "mesh", value)
            if isinstance(found, jax.sharding.Mesh | jax.sharding.AbstractMesh) and not found.empty:
                yield found, place


def context_mesh() -> AbstractMesh | None:
    """Return the mesh of ``jax.set_mesh`` or ``jax.sharding.use_abstract_mesh`` around, or None."""
    found = jax.sharding.get_abstract_mesh()
    return None if found.empty else found


def no_mesh() -> contextlib.AbstractContextManager[object]:
    """Have JAX see no mesh around: what runs a program is no part of the program."""
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))


def unknown_axes(trace: Callable[[], object]) -> tuple[list[str], str | None] | None:
    """Return the axes that a collective names and no mesh around has, and the user's ``file:line``; None for others.

    JAX (0.10.2) has an assertion without a message for them, in ``pvary``. Hides where, and how its frames are shown.

    Args:
      trace: traces the function anew.
    """
    with _config.traceback_filtering("off"):
        try:
            trace()
        except AssertionError as error:
            frames = list(traceback.walk_tb(error.__traceback__))[::-1]
            frame = frames[0][0]
            if frame.f_code is not getattr(_core.pvary, "__code__", None):
                return None
            named, bound = (set(frame.f_locals.get(key, ())) for key in ("axes", "new_axes"))
            line = users_own(frames, lambda each: each[0].f_code.co_filename)
            place = None if line is None else f"{line[0].f_code.co_filename}:{line[1]}"
            return sorted(map(str, named - bound)), place
    return None


@_weakref_lru_cache
def constrained_jaxpr(
    jaxpr: ClosedJaxpr, inputs: tuple[NamedSharding | None, ...], outputs: tuple[NamedSharding | None, ...]
) -> ClosedJaxpr:
    """Return a jaxpr whose arguments and results are constrained to shardings within, None: are not.

    Where axes of the mesh are explicit, types inside name them, and those of arguments and results do not: callers'
    arrays lie on no such devices.
    """
    said = [s for s in (*inputs, *outputs) if s is not None]
    mesh = said[0].mesh.abstract_mesh
    names = mesh.explicit_axes
    auto = mesh.update_axis_types(dict.fromkeys(names, jax.sharding.AxisType.Auto))

    def constrained(values: Sequence[Datum], shardings: Sequence[NamedSharding | None]) -> list[Datum]:
        pairs = zip(values, shardings, strict=True)
        return [
            x
            if s is None
            else jax.lax.with_sharding_constraint(x, jax.sharding.NamedSharding(auto, s.spec) if names else s)
            for x, s in pairs
        ]

    def inside(*arrays: Datum) -> list[Datum]:
        arrays = tuple(constrained(arrays, inputs))
        if not names:
            return jaxpr_as_fun(jaxpr)(*arrays)
        specs = tuple(aval.sharding.spec for aval in jaxpr.in_avals)
        with jax.sharding.use_abstract_mesh(auto):
            typed: Any = jax.sharding.explicit_axes(jaxpr_as_fun(jaxpr), axes=names, in_sharding=specs)
            return typed(*arrays)

    def function(*arrays: Datum) -> list[Datum]:
        return constrained(inside(*arrays), outputs)

    with own_width(jaxpr):
        return jax.make_jaxpr(function)(*map(without_explicit_axes, jaxpr.in_avals))


def names_explicit_axes(value: object) -> bool:
    """Whether the type of a value, or a type, is one over a mesh with explicit axes."""
    aval = value if isinstance(value, _core.AbstractValue) else getattr(value, "aval", None)
    return isinstance(aval, _core.ShapedArray) and bool(aval.sharding.mesh.explicit_axes)


def without_explicit_axes(aval: ShapedArray) -> ShapedArray:
    """Return a type that names no axes of a mesh."""
    if not names_explicit_axes(aval):
        return aval
    return _core.ShapedArray(aval.shape, aval.dtype, aval.weak_type)
