"""Every private or unstable JAX name the frontend needs, each behind a thin function that says what it hides.

Nothing else in this package but ``_shardy`` imports ``jax._src``, ``jax.interpreters`` or ``jax.extend``; a new JAX
release is met by editing these two files alone. Functions here know about jaxprs and MLIR, never about targets or engines.
"""

# pyright: reportPrivateImportUsage=false
# (private names are this module's purpose)

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import math
import pathlib
import re
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import callback as _callback
from jax._src import compiler as _compiler
from jax._src import config as _config
from jax._src import core as _core
from jax._src import debugging as _debugging
from jax._src import effects as _effects
from jax._src import sharding_impls as _sharding_impls
from jax._src import source_info_util as _source_info_util
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import partial_eval as _pe
from jax._src.lax import lax as _lax
from jax._src.lax import linalg as _linalg
from jax._src.lib import _jax as _jaxlib
from jax._src.lib import xla_client as _xla_client
from jax._src.lib.mlir import passmanager as _passmanager
from jax._src.lib.mlir.dialects import func as _func
from jax._src.lib.mlir.dialects import hlo as _hlo
from jax._src.lib.mlir.dialects import sdy as _sdy
from jax._src.state import discharge as _discharge
from jax._src.state import types as _state
from jax._src.util import weakref_lru_cache as _weakref_lru_cache
from jaxlib import _hlo as _hlo_bindings  # pyright: ignore[reportAttributeAccessIssue]

from ipuxla.frontend.frames import users_own

ClosedJaxpr = _core.ClosedJaxpr
Equation = _core.JaxprEqn
ShapedArray = _core.ShapedArray
Zero = _ad.Zero
jaxpr_as_fun = _core.jaxpr_as_fun


# ---- tracing ----


def trace_context() -> Any:
    """Return a hashable value that differs whenever a trace could. Hides ``config.trace_context``."""
    return _config.trace_context()


def allow_explicit_64bit() -> contextlib.AbstractContextManager[Any]:
    """Keep 64-bit arrays 64 bits wide while defaults stay 32-bit. Hides ``jax_explicit_x64_dtypes``."""
    return _config.explicit_x64_dtypes(_config.ExplicitX64Mode.ALLOW)


def is_jit_disabled() -> bool:
    """Whether the caller is under ``jax.disable_jit``. Hides how settings are read."""
    setting: Any = jax.config
    return bool(setting.jax_disable_jit)


def trace_function(
    jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ClosedJaxpr, list[Any], Any, tuple[int, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Trace a ``jax.jit`` function. Hides where ``Traced`` keeps what the function closes over, and shardings.

    Returns:
      The jaxpr; the outer tracers that the function reads, which are its first arguments; the tree of its
      results; the positions, among the leaves of the arguments, of those that are donated; and the sharding of
      each argument of the jaxpr, and of each result, None where none is said.
    """
    traced = jitted.trace(*args, **kwargs)
    outer = list(traced._consts)
    is_donated = traced._params["donated_invars"][len(outer) :]
    said = [traced._params[role] for role in ("in_shardings", "out_shardings")]
    avals = traced.jaxpr.in_avals, traced.jaxpr.out_avals
    inputs, outputs = (tuple(map(_said_sharding, *pair)) for pair in zip(said, avals, strict=True))
    positions = tuple(np.flatnonzero(is_donated).tolist())
    return traced.jaxpr, outer, traced.out_tree, positions, inputs, outputs


def _said_sharding(sharding: Any, aval: Any) -> Any:
    """Return the sharding that ``jit`` was told, else that of an explicitly sharded type, else None."""
    if not isinstance(sharding, _sharding_impls.UnspecifiedValue):
        return sharding
    own = getattr(aval, "sharding", None)
    return own if own is not None and any(own.spec) and not own.mesh.empty else None


def key_generator(aval: Any) -> str | None:
    """Return the name of the random number generator whose keys an abstract value holds. Hides key types."""
    return aval.dtype._impl.name if jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key) else None


def weaken(array: Any) -> Any:
    """Mark an array's type as weak, as the result of a Python scalar is. Hides ``_convert_element_type``."""
    return _lax._convert_element_type(array, array.dtype, weak_type=True)


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


def has_ref_effects(equation: Equation) -> bool:
    """Whether an equation makes, reads or writes a mutable array. Hides the types of Refs and their effects."""
    atoms = (*equation.invars, *equation.outvars)
    return any(isinstance(effect, _state.RefEffect) for effect in equation.effects) or any(
        isinstance(atom.aval, _state.AbstractRef) for atom in atoms
    )


def find_equation(
    jaxpr: ClosedJaxpr, is_wanted: Callable[[Equation], bool]
) -> tuple[Equation, str | None] | None:
    """Return the first wanted equation, innermost first, with the user's ``file:line`` behind it.

    Hides where equations keep jaxprs, and source information: a jaxpr inside another begins its own, so where
    it says nothing, or names lines of libraries only, the equation around it does.
    """
    found = (
        (equation, f"{frame.file_name}:{frame.start_line}" if frame else None)
        for equation, frame in _equations(jaxpr.jaxpr, None)
        if is_wanted(equation)
    )
    return next(found, None)


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


def _equations(jaxpr: _core.Jaxpr, around: Any) -> Iterator[tuple[Equation, Any]]:
    outer = () if around is None else (around,)
    for equation in jaxpr.eqns:
        frames = _source_info_util.user_frames(equation.source_info.traceback)
        frame = users_own(itertools.chain(frames, outer), _file_of)
        for inner in _core.jaxprs_in_params(equation.params):
            yield from _equations(inner, frame)
        yield equation, frame


@_weakref_lru_cache
def has_64bit(jaxpr: ClosedJaxpr) -> bool:
    """Whether any value in a jaxpr is 64 bits wide. Hides jaxpr variables; remembered per jaxpr."""
    inner = (equation.outvars for equation, _ in _equations(jaxpr.jaxpr, None))
    atoms = itertools.chain(jaxpr.jaxpr.invars, jaxpr.jaxpr.constvars, jaxpr.jaxpr.outvars, *inner)
    return any(is_64bit(getattr(atom.aval, "dtype", None)) for atom in atoms)


def is_64bit(dtype: Any) -> bool:
    """Whether a dtype is one that JAX narrows unless ``jax_enable_x64`` is set. Hides types of keys."""
    return isinstance(dtype, np.dtype) and dtype.name in ("int64", "uint64", "float64", "complex128")


def own_width(jaxpr: ClosedJaxpr) -> contextlib.AbstractContextManager[Any]:
    """Return the setting under which to rewrite or lower a jaxpr so that no type in it changes width."""
    return jax.enable_x64(True) if has_64bit(jaxpr) else contextlib.nullcontext()


# ---- meshes and shardings ----


def meshes_of(jaxpr: ClosedJaxpr) -> Iterator[tuple[Any, str | None]]:
    """Yield the mesh that an equation names, and the user's ``file:line``. Hides which parameters name one."""
    for equation, frame in _equations(jaxpr.jaxpr, None):
        place = f"{frame.file_name}:{frame.start_line}" if frame else None
        for value in equation.params.values():
            found = getattr(value, "mesh", value)
            if isinstance(found, jax.sharding.Mesh | jax.sharding.AbstractMesh) and not found.empty:
                yield found, place


def context_mesh() -> Any:
    """Return the mesh of ``jax.set_mesh`` or ``jax.sharding.use_abstract_mesh`` around, or None."""
    found = jax.sharding.get_abstract_mesh()
    return None if found.empty else found


def no_mesh() -> contextlib.AbstractContextManager[Any]:
    """Have JAX see no mesh around: what runs a program is no part of the program."""
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))


def unknown_axes(trace: Callable[[], Any]) -> tuple[list[str], str | None] | None:
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
def constrained_jaxpr(jaxpr: ClosedJaxpr, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> ClosedJaxpr:
    """Return a jaxpr whose arguments and results are constrained to shardings within, None: are not."""

    def constrained(values: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
        pairs = zip(values, shardings, strict=True)
        return [x if s is None else jax.lax.with_sharding_constraint(x, s) for x, s in pairs]

    def function(*arrays: Any) -> list[Any]:
        return constrained(jaxpr_as_fun(jaxpr)(*constrained(arrays, inputs)), outputs)

    with own_width(jaxpr):
        return jax.make_jaxpr(function)(*jaxpr.in_avals)


# ---- jaxpr to jaxpr; each result is remembered per jaxpr, so that it is compiled once ----


def without_own_refs(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Return a jaxpr with the Refs that it makes itself as values passed on. Hides ``discharge_state``.

    Refs from outside stay: what is written to them is an effect that the caller sees.
    """
    makes_refs = any(isinstance(effect, _core.InternalMutableArrayEffect) for effect in jaxpr.effects)
    is_given_refs = any(isinstance(aval, _state.AbstractRef) for aval in jaxpr.in_avals)
    if not makes_refs or is_given_refs or any(isinstance(e, _state.RefEffect) for e in jaxpr.effects):
        return jaxpr
    pure = _discharge.discharge_state(jaxpr)
    return pure.replace(jaxpr=pure.jaxpr.replace(debug_info=jaxpr.jaxpr.debug_info))


def jvp_jaxpr(jaxpr: ClosedJaxpr, nonzeros: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """Return primals and tangents as one jaxpr, and which results have a tangent. Hides ``ad.jvp_jaxpr``."""
    return _ad.jvp_jaxpr(jaxpr, tuple(nonzeros), instantiate=False)


def partial_eval_jaxpr(
    jaxpr: ClosedJaxpr, unknowns: Sequence[bool]
) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool], list[int | None]]:
    """Split a jaxpr by which arguments are known. Hides ``pe.partial_eval_jaxpr_nounits_fwd``.

    Returns:
      The known part: known results, then residuals; the unknown part: residuals, then unknown arguments;
      which results are unknown; and for each residual the position, among constants and known arguments, of
      the value it repeats, or None where the known part returns it.
    """
    known, unknown, out_unknowns, _, repeats = _pe.partial_eval_jaxpr_nounits_fwd(
        jaxpr, tuple(unknowns), False
    )
    return known, unknown, out_unknowns, repeats


def drop_repeats(
    jaxpr: ClosedJaxpr, num_outputs: int
) -> tuple[ClosedJaxpr, list[int | None], list[int | None]]:
    """Drop results that repeat an argument, and those after ``num_outputs`` that repeat an earlier result.

    Hides jaxpr variables and ``pe._jaxpr_forwarding``.

    Returns:
      The smaller jaxpr; for each old result the argument it repeats, or None; and for each result left by
      that the earlier one, so counted, that it repeats, or None.
    """
    from_inputs = _pe._jaxpr_forwarding(jaxpr.jaxpr)
    jaxpr = _pe.prune_closed_jaxpr_outputs(jaxpr, [source is None for source in from_inputs])
    num_outputs = sum(source is None for source in from_inputs[:num_outputs])
    first = {id(variable): position for position, variable in enumerate(jaxpr.jaxpr.outvars[:num_outputs])}
    from_outputs = [None] * num_outputs + [first.get(id(v)) for v in jaxpr.jaxpr.outvars[num_outputs:]]
    return _pe.prune_closed_jaxpr_outputs(jaxpr, [p is None for p in from_outputs]), from_inputs, from_outputs


@_weakref_lru_cache
def transpose_jaxpr(
    jaxpr: ClosedJaxpr, is_linear: tuple[bool, ...], is_zero: tuple[bool, ...]
) -> tuple[ClosedJaxpr, list[bool]]:
    """Transpose a jaxpr that is linear in some arguments. Hides ``ad.backward_pass``.

    Args:
      jaxpr: the function.
      is_linear: which arguments it is linear in; the others are residuals.
      is_zero: which results have a symbolic zero as cotangent; those are no arguments of the transpose.

    Returns:
      A jaxpr from residuals and cotangents to the nonzero cotangents of the linear arguments, and which of
      these arguments have a nonzero one.
    """
    nonzero: list[bool] = []

    def transposed(residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        values, given = iter(residuals), iter(cotangents)
        primals = [
            _ad.UndefinedPrimal(aval.to_ct_aval()) if linear else next(values)
            for aval, linear in zip(jaxpr.in_avals, is_linear, strict=True)
        ]
        cts = [
            Zero(aval.to_ct_aval()) if zero else next(given)
            for aval, zero in zip(jaxpr.out_avals, is_zero, strict=True)
        ]
        results = _ad.backward_pass(jaxpr.jaxpr, False, jaxpr.consts, primals, cts)
        results = [ct for ct, linear in zip(results, is_linear, strict=True) if linear]
        nonzero[:] = [type(ct) is not Zero for ct in results]
        return [ct for ct in results if type(ct) is not Zero]

    residuals = [aval for aval, linear in zip(jaxpr.in_avals, is_linear, strict=True) if not linear]
    cotangents = [aval.to_ct_aval() for aval, zero in zip(jaxpr.out_avals, is_zero, strict=True) if not zero]
    return jax.make_jaxpr(transposed)(residuals, cotangents), nonzero


def batch_jaxpr(jaxpr: ClosedJaxpr, axis: Any, dims: Sequence[Any]) -> tuple[ClosedJaxpr, Sequence[Any]]:
    """Return a jaxpr over a batch, and each result's batch dimension or None. Hides ``batch_jaxpr2``."""
    return _batching.batch_jaxpr2(jaxpr, axis, tuple(dims))


@_weakref_lru_cache
def dce_jaxpr(jaxpr: ClosedJaxpr, is_used: tuple[bool, ...]) -> tuple[ClosedJaxpr, list[bool]]:
    """Keep the used results, and return which arguments they need. Hides ``pe.dce_jaxpr``."""
    smaller, used_inputs = _pe.dce_jaxpr(jaxpr.jaxpr, is_used)
    return ClosedJaxpr(smaller, jaxpr.consts), used_inputs


# ---- a primitive and its rules ----


def call_primitive(name: str) -> Any:
    """Return a primitive whose parameter ``jaxpr`` is what it computes. Hides ``Primitive``."""
    primitive = _core.Primitive(name)
    primitive.multiple_results = True
    primitive.is_effectful = lambda params: bool(params["jaxpr"].effects)  # pyright: ignore[reportAttributeAccessIssue]
    return primitive


def register_rules(
    primitive: Any,
    *,
    run: Callable[..., Any],
    types: Callable[..., Any],
    jvp: Callable[..., Any],
    partial_eval: Callable[..., Any],
    transpose: Callable[..., Any],
    batch: Callable[..., Any],
    dce: Callable[..., Any],
    lower: Callable[..., Any],
    derived: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    """Register a call primitive's rules. Hides the tables they live in.

    Args:
      primitive: from ``call_primitive``.
      run: evaluates it on arrays.
      types: argument types and parameters to result types.
      jvp: ``(primals, tangents, **params)`` to both of the results; a tangent may be ``Zero``.
      partial_eval: ``(trace, *tracers, **params)``, see ``stage`` and ``is_known``.
      transpose: ``(cotangents, *arguments, **params)``, see ``linear_type``.
      batch: ``(axis, arguments, dims, **params)`` to results and their dims.
      dce: ``(used_results, equation)`` to used arguments and the new equation, see ``replace_equation``.
      lower: ``(context, *values, **params)``, see ``inline``.
      derived: parameters of either half of a call that ``jax.checkpoint`` splits, from those of the whole.
    """
    primitive.def_impl(run)
    primitive.def_effectful_abstract_eval(
        lambda *avals, **params: (types(*avals, **params), params["jaxpr"].effects)
    )
    _ad.primitive_jvps[primitive] = jvp
    _ad.primitive_transposes[primitive] = transpose
    _pe.custom_partial_eval_rules[primitive] = partial_eval
    _pe.dce_rules[primitive] = dce
    _batching.fancy_primitive_batchers[primitive] = batch
    _mlir.register_lowering(primitive, lower)

    def split(*args: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return derived(args[-2]), derived(args[-1])

    def split_rule(*args: Any) -> Any:
        return _pe.closed_call_partial_eval_custom_rule("jaxpr", split, *args)

    _pe.partial_eval_jaxpr_custom_rules[primitive] = split_rule


def leaf_primitive(
    name: str,
    *,
    inline: Callable[..., Any],
    jvp: Callable[..., Any],
    batch: Callable[..., Any],
    types: Callable[..., Any],
    platform: str,
    call: Callable[[dict[str, Any]], tuple[str, str, ClosedJaxpr, dict[str, Any]]],
) -> Any:
    """Return a primitive that one platform calls as a whole and all others inline. Hides ``Primitive`` and its tables.

    Args:
      name: of the primitive.
      inline: ``(*operands, **params)`` to results, of JAX's functions.
      jvp: ``(primals, tangents, **params)`` to both of the results; a tangent may be ``Zero``.
      batch: ``(arguments, dims, **params)`` to results and their dims.
      types: argument types and parameters to result types.
      platform: where it is a custom call.
      call: parameters to the custom call's target, the name and body of what it calls, and its options.
    """
    primitive = _core.Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(lambda *args, **params: jax.jit(lambda *xs: inline(*xs, **params))(*args))
    primitive.def_abstract_eval(types)
    _ad.primitive_jvps[primitive] = jvp
    _batching.primitive_batchers[primitive] = batch
    inlined = _mlir.lower_fun(inline, multiple_results=True)

    def lower(ctx: Any, *args: Any, **params: Any) -> Any:
        if tuple(ctx.module_context.platforms) != (platform,):
            return inlined(ctx, *args, **params)
        target, label, body, options = call(params)
        function, _, _ = _mlir.lower_called_computation(
            label, body, ctx.module_context, 0, body.in_avals, body.out_avals, ctx.tokens_in
        )
        made = _mlir.custom_call(
            target,
            result_types=[_mlir.aval_to_ir_type(ctx.module_context, aval) for aval in ctx.avals_out],
            operands=args,
            backend_config={key: _mlir.ir_attribute(value) for key, value in options.items()},
            called_computations=[function.name.value],
            api_version=4,
        )
        return made.results

    _mlir.register_lowering(primitive, lower)
    return primitive


def with_consts_as_arguments(jaxpr: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Any]]:
    """Return a jaxpr that takes what it closes over before its arguments, and those values. Hides ``pe``."""
    return _core.ClosedJaxpr(_pe.convert_constvars_jaxpr(jaxpr.jaxpr), ()), list(jaxpr.consts)


def instantiated(tangent: Any) -> Any:
    """Return a tangent as an array; zeros, of float0 where there are none. Hides ``ad.instantiate_zeros``."""
    return _ad.instantiate_zeros(tangent)


def is_known(tracer: Any) -> bool:
    """Whether partial evaluation knows a value. Hides ``JaxprTracer``."""
    return tracer.is_known()


def known_value(tracer: Any) -> Any:
    """Return the value behind a known tracer. Hides ``PartialVal``."""
    return tracer.pval.get_known()


def stage(
    trace: Any, primitive: Any, residuals: Sequence[Any], tracers: Sequence[Any], params: dict[str, Any]
) -> list[Any]:
    """Leave a call for later and return tracers of its results. Hides equation recipes."""
    inputs = [*map(trace.new_instantiated_const, residuals), *tracers]
    jaxpr = params["jaxpr"]
    outputs = [_pe.JaxprTracer(trace, _pe.PartialVal.unknown(aval), None) for aval in jaxpr.out_avals]
    source = _source_info_util.current()
    recipe = _pe.new_eqn_recipe(trace, inputs, outputs, primitive, params, jaxpr.effects, source)
    for output in outputs:
        output.recipe = recipe
    return outputs


def is_linear(value: Any) -> bool:
    """Whether a transposed call's argument is one to find a cotangent for. Hides ``UndefinedPrimal``."""
    return _ad.is_undefined_primal(value)


def zero_tangent(aval: Any) -> Any:
    """Return the symbolic zero tangent of a value. Hides tangent types."""
    return Zero(aval.to_tangent_aval())


def zero_cotangent(value: Any) -> Any:
    """Return the symbolic zero cotangent of a linear argument. Hides cotangent types."""
    return Zero(value.aval)


def replace_equation(
    equation: Equation, params: dict[str, Any], used_inputs: Sequence[bool], used_outputs: Sequence[bool]
) -> Equation:
    """Return an equation with other parameters and only the used variables. Hides ``JaxprEqn.replace``."""
    inputs = list(itertools.compress(equation.invars, used_inputs))
    outputs = list(itertools.compress(equation.outvars, used_outputs))
    return equation.replace(invars=inputs, outvars=outputs, params=params, effects=params["jaxpr"].effects)


# ---- StableHLO ----

CUSTOM_PARTITIONING = "custom_partitioning"
"""The primitive of functions that say themselves how they are partitioned."""


def inline(context: Any, function: Callable[..., Any], *values: Any) -> Any:
    """Lower a traceable function of a list of results in place. Hides ``mlir.lower_fun``."""
    return _mlir.lower_fun(function, multiple_results=True)(context, *values)


def lowers_for(context: Any, platform: str) -> bool:
    """Whether a lowering rule runs for ``platform`` alone. Hides module contexts."""
    return tuple(context.platforms or context.module_context.platforms) == (platform,)


def lower_jaxpr(
    jaxpr: ClosedJaxpr,
    name: str,
    platform: str,
    rules: Mapping[str, Callable[..., Any]],
    print_call: str,
    message_of: Callable[..., str],
    stop: tuple[str, Callable[..., str | None], Callable[..., Any]],
    mesh: Any = None,
    shardings: tuple[Sequence[Any], Sequence[Any]] = ((), ()),
    alive: list[Any] | None = None,
) -> Any:
    """Lower a jaxpr to a StableHLO module with source locations. Hides ``mlir.lower_jaxpr_to_module``.

    The platform needs no plugin: rules that exist for other platforms only are not found
    (``NotImplementedError``), all else uses the default rules. Every argument stays an argument of ``main``.
    ``rules`` are traceable functions for primitives of linear algebra, by name; see ``_linalg_rules``. What is printed
    becomes calls of ``print_call``; see ``_print_rule``. ``stop`` says what pure callbacks become; see ``_stop_rule``.
    Locations hold every frame of the user's call stack, whatever the settings for them, and name stacks start with
    the program's name, ``jit(name)``.

    With a ``mesh``, the module is that of all its devices, which need not exist; ``shardings`` are those of arguments
    and of results, None where none is said. What the module needs until it is partitioned is added to ``alive``.
    """
    context = _sharding_impls.ShardingContext(1, tuple(jax.local_devices()[:1]))
    told: dict[str, Any] = {}
    if mesh is not None:
        context = _sharding_impls.ShardingContext(mesh.size, _devices_to_ask(jaxpr, mesh.size), mesh)
        told = {"arg_shardings": shardings[0] or None, "result_shardings": shardings[1] or None}
        told["num_partitions"] = mesh.size
    own_rules: Any = (
        *_linalg_rules(rules),
        (_debugging.debug_print_p, _print_rule(print_call, message_of)),
        (_callback.pure_callback_p, _stop_rule(*stop)),
    )
    with _config.include_full_tracebacks_in_locations(True), _config.traceback_in_locations_limit(-1):
        lowered = _mlir.lower_jaxpr_to_module(
            _as_function(name),
            jaxpr,
            num_const_args=0,
            in_avals=jaxpr.in_avals,
            ordered_effects=list(_effects.ordered_effects.filter_in(jaxpr.effects)),
            platforms=(platform,),
            backend=None,
            axis_context=context,
            donated_args=[False] * len(jaxpr.in_avals),
            arg_names=argument_names(jaxpr),
            result_names=jaxpr.jaxpr.debug_info.safe_result_paths(len(jaxpr.out_avals)),
            lowering_parameters=_mlir.LoweringParameters(
                hoist_constants_as_args=False,
                override_lowering_rules=own_rules,
            ),
            **told,
        )
    if alive is not None:
        alive.append(lowered.keepalive)
    module = lowered.module
    with module.context:
        own_name = _mlir.sanitize_name(name).rstrip("_")
        module.operation.attributes["sym_name"] = _mlir.ir.StringAttr.get(own_name)
    return module


def _devices_to_ask(jaxpr: ClosedJaxpr, count: int) -> tuple[Any, ...] | None:
    """Return devices for a mesh where a function says itself how it is partitioned, None where nobody asks for any.

    ``jax.custom_partitioning`` hands a mesh of devices to the user's function; nothing runs on them. They are those of
    the client that partitions.
    """
    found = find_equation(jaxpr, lambda equation: equation.primitive.name == CUSTOM_PARTITIONING)
    return None if found is None else tuple(_cpu_client(count).devices())


def _as_function(name: str) -> str:
    """Return a program's name as JAX writes functions in name stacks: ``vmap(jit(f))`` for ``vmap(f)``."""
    return re.sub(r"([^()]*)(\)*)$", r"jit(\1)\2", name, count=1)


def _linalg_rules(rules: Mapping[str, Callable[..., Any]]) -> Any:
    """Return lowering rules of ``lax.linalg``'s primitives. Hides the primitives and ``mlir.lower_fun``.

    A rule is a function of arrays that takes the primitive's parameters by name. It is handed floats of at least
    32 bits, or complex numbers.
    """
    return tuple((getattr(_linalg, f"{name}_p"), _linalg_rule(rule)) for name, rule in rules.items())


def _linalg_rule(function: Callable[..., Any]) -> Callable[..., Any]:
    def lower(context: Any, *values: Any, **params: Any) -> Any:
        def widened(*arrays: Any) -> list[Any]:
            wide = [x.astype(np.float32) if _is_narrow_float(x.dtype) else x for x in arrays]
            results = jax.tree.leaves(function(*wide, **params))
            return [x.astype(aval.dtype) for x, aval in zip(results, context.avals_out, strict=True)]

        return inline(context, widened, *values)

    return lower


def _print_rule(target: str, message_of: Callable[..., str]) -> Callable[..., Any]:
    """Return the lowering rule of ``debug_print``: a custom call, whose order is the program's. Hides its tokens.

    Args:
      target: name of the custom call.
      message_of: abstract values of the operands and parameters to what the call's configuration says.
    """

    def lower(context: Any, *values: Any, **params: Any) -> Any:
        shown: list[Any] = []
        for value, aval in zip(values, context.avals_in, strict=True):
            is_complex = jax.numpy.issubdtype(aval.dtype, np.complexfloating)
            shown += [_hlo.real(value), _hlo.imag(value)] if is_complex else [value]
        text = message_of(context.avals_in, params)
        _hlo.CustomCallOp(
            [],
            shown,
            _mlir.ir.StringAttr.get(target),
            has_side_effect=_mlir.ir.BoolAttr.get(True),
            backend_config=_mlir.ir.StringAttr.get(text),
        )
        context.set_tokens_out(context.tokens_in)
        return []

    return lower


class HostCall(Exception):
    """A pure callback that is more than a check.

    Attributes:
      callback: the equation's parameter.
    """

    def __init__(self, callback: Any) -> None:
        """Keep the callback."""
        super().__init__("a pure callback that may return")
        self.callback = callback


def _stop_rule(
    target: str, message_of: Callable[..., str | None], packed: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the lowering rule of ``pure_callback``: a custom call that ends the program. Hides how MLIR is made.

    A call that reads what such a custom call returns is never reached; it becomes one without an operand.

    Args:
      target: name of the custom call.
      message_of: a callback and abstract values of its operands to the call's configuration, None if the callback may
        return.
      packed: a traceable function of the operands to the one array that the custom call takes.
    """

    def lower(context: Any, *values: Any, callback: Any, **_: Any) -> Any:
        is_reached = not any(_follows(value, target, set()) for value in values)
        text = message_of(callback, context.avals_in) if is_reached else ""
        if text is None:
            raise HostCall(callback)
        types = [_mlir.aval_to_ir_type(context.module_context, aval) for aval in context.avals_out]
        pack = _mlir.lower_fun(packed, multiple_results=False)
        call = _hlo.CustomCallOp(
            types,
            pack(context, *values) if is_reached else [],
            _mlir.ir.StringAttr.get(target),
            has_side_effect=_mlir.ir.BoolAttr.get(is_reached),
            backend_config=_mlir.ir.StringAttr.get(text),
        )
        return list(call.results)

    return lower


def _follows(value: Any, target: str, seen: set[Any]) -> bool:
    """Whether a value is computed from what a custom call returned, within the block that has the call."""
    owner = value.owner
    if isinstance(owner, _mlir.ir.Block) or owner in seen:
        return False
    seen.add(owner)
    if owner.name == "stablehlo.custom_call" and owner.attributes["call_target_name"].value == target:
        return True
    return any(_follows(operand, target, seen) for operand in owner.operands)


def user_function(callback: Any) -> Any:
    """Return the user's function behind a callback of ``pure_callback``. Hides what JAX wraps it in."""
    return getattr(callback, "callback_func", None)


def live_jaxpr(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Return a jaxpr of the same arguments and results without equations that no result needs."""
    used = [True] * len(jaxpr.out_avals)
    smaller, _ = _pe.dce_jaxpr(jaxpr.jaxpr, used, instantiate=True)
    return ClosedJaxpr(smaller, jaxpr.consts)


def _is_narrow_float(dtype: Any) -> bool:
    return jax.numpy.issubdtype(dtype, np.floating) and dtype.itemsize < 4


def mark_donated(module: Any, donated: Sequence[int]) -> None:
    """Set ``jax.buffer_donor`` on arguments of ``main``. Hides jaxlib's MLIR bindings."""
    ir = _mlir.ir
    with module.context:
        main = next(op for op in module.body.operations if op.attributes["sym_name"].value == "main")
        attributes = [{named.name: named.attr for named in attrs} for attrs in main.arg_attrs]
        for position in donated:
            attributes[position]["jax.buffer_donor"] = ir.BoolAttr.get(True)
        main.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(attrs) for attrs in attributes])


def module_text(module: Any, debug_info: bool = False) -> str:
    """Print an MLIR module. Hides ``mlir.module_to_string``."""
    return _mlir.module_to_string(module, enable_debug_info=debug_info)


def module_bytecode(module: Any) -> bytes:
    """Return an MLIR module with its locations as bytecode; the same module gives the same bytes."""
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    return written.getvalue()


# ---- one device's program of a module for many ----


def partitioned_module(
    module: Any, num_devices: int, free: tuple[Sequence[bool], Sequence[bool]]
) -> tuple[Any, list[str], str]:
    """Have XLA's partitioner make the program of one device. Hides clients, compile options, dumps and protos.

    A CPU client with as many devices as needed is made in this process, and compiles the module, which it dumps behind
    the pass that partitions. Nothing runs.

    Args:
      module: an MLIR module of StableHLO with shardings.
      num_devices: devices of its mesh.
      free: which arguments, and which results, XLA may choose the sharding of.

    Returns:
      An MLIR module, and as XLA's text the sharding of each argument and that of the results.

    Raises:
      ValueError: XLA refuses it; the message is one line.
    """
    options = _compiler.get_compile_options(
        num_replicas=1,
        num_partitions=num_devices,
        device_assignment=np.arange(num_devices).reshape(1, num_devices),
    )
    build = options.executable_build_options
    build.use_shardy_partitioner = True
    build.allow_spmd_sharding_propagation_to_parameters = list(free[0])
    build.allow_spmd_sharding_propagation_to_output = list(free[1])
    with tempfile.TemporaryDirectory() as folder:
        options.env_option_overrides = [
            ("xla_dump_to", folder),
            ("xla_dump_hlo_as_proto", True),
            ("xla_dump_hlo_pass_re", "spmd-partitioning"),
            ("xla_backend_optimization_level", 0),
        ]
        failure = None
        try:
            client = _cpu_client(num_devices)
            devices = _xla_client.DeviceList(tuple(client.devices()))
            client.compile_and_load(_mlir.module_to_bytecode(module), devices, options)
        except (RuntimeError, ValueError) as error:  # what comes behind partitioning is of no interest
            failure = error
        dumps = [path for path in pathlib.Path(folder).iterdir() if _PARTITIONED.search(path.name)]
        if len(dumps) != 1:
            raise ValueError(_one_line(str(failure or "no program came back")))
        proto = _first_field(dumps[0].read_bytes())
    bytecode = _jaxlib.mlir.hlo_to_stablehlo(proto)
    context = _mlir.make_ir_context()
    with context:
        local = _mlir.ir.Module.parse(bytecode)
    _write_groups(local, _groups_along_meshes(proto))
    attributes: Any = local.operation.attributes
    said = "mhlo.spmd_parameters_shardings"  # which is not there where there are no arguments
    inputs = [each.value for each in attributes[said]] if said in attributes else []
    return local, inputs, attributes["mhlo.spmd_output_sharding"].value


def _one_line(message: str) -> str:
    """Return what XLA says in one line; of an error in a function that it called back, that function's own."""
    first, *others = message.strip().splitlines()
    if not first.endswith(_TRACEBACK):
        return first[:400]
    frames = list(itertools.takewhile(lambda line: line.startswith(" "), others))
    said = "".join(others[len(frames) : len(frames) + 1])
    places = re.findall(r'File "([^"]+)", line (\d+)', "\n".join(frames))
    return said[:400] + (f" (from {':'.join(places[-1])})" if places else "")


_TRACEBACK = "Traceback (most recent call last):"
_MESH_GROUPS = re.compile(
    r"channel_id=(\d+), replica_groups=mesh\[([^]]*)\](?:, device_ids=\(([^()]*(?:\([^()]*\))?)\))? \{([^}]*)\}"
)


def _groups_along_meshes(proto: bytes) -> dict[int, np.ndarray]:
    """Return the groups of collectives that XLA says by axes of a mesh, int64 ``[groups, members]``, by channel.

    Its conversion to StableHLO (jaxlib 0.10.2) drops the order of the devices in a mesh. Hides ``HloModule``.
    """
    text = _hlo_bindings.HloModule.from_serialized_hlo_module_proto(proto).to_string()
    found: dict[int, np.ndarray] = {}
    for channel, axes, order, wanted in _MESH_GROUPS.findall(text):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
        devices = _device_order(order, int(np.prod(list(sizes.values()), dtype=np.int64)))
        found[int(channel)] = _groups_along(devices, sizes, wanted)
    return found


def _device_order(text: str, count: int) -> np.ndarray:
    """Return the devices of a mesh in order, from a list or the transposition of a numbering (``[2,4]T(1,0)``)."""
    transposed = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text.strip())
    if transposed is None:
        listed = [int(number) for number in re.findall(r"\d+", text)]
        return np.array(listed or range(count), np.int64)
    dims, permutation = ([int(n) for n in (part or "").split(",") if n] for part in transposed.groups())
    numbers = np.arange(count).reshape(dims)
    return numbers.transpose(permutation or range(len(dims))).reshape(-1)


def _groups_along(devices: np.ndarray, sizes: dict[str, int], wanted: str) -> np.ndarray:
    """Return the groups of devices along axes of a mesh or parts of them (``'a':(2)4``: 4, within 2 slower ones)."""
    places = dict(zip(sizes, np.indices(tuple(sizes.values())).reshape(len(sizes), -1), strict=True))
    within, others = np.zeros(len(devices), np.int64), np.arange(len(devices))
    strides = np.cumprod([1, *list(sizes.values())[::-1]])[-2::-1]
    stride_of = dict(zip(sizes, map(int, strides), strict=True))
    members = 1
    for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", wanted):
        part = int(size) if size else sizes[name]
        inner = sizes[name] // (int(before or 1) * part)
        digit = places[name] // inner % part
        within, others = within * part + digit, others - digit * inner * stride_of[name]
        members *= part
    return devices[np.lexsort([within, others])].reshape(-1, members)


def _write_groups(module: Any, groups: dict[int, np.ndarray]) -> None:
    """Write groups as tables into the collectives of a module, by channel."""
    ir = _mlir.ir

    def visit(op: Any) -> Any:
        if "channel_handle" in op.attributes and "replica_groups" in op.attributes:
            channel = int(re.findall(r"handle = (\d+)", str(op.attributes["channel_handle"]))[0])
            if channel in groups:
                op.attributes["replica_groups"] = ir.DenseIntElementsAttr.get(groups[channel])  # pyright: ignore
        return ir.WalkResult.ADVANCE

    if groups:
        with module.context:
            module.operation.walk(visit)


_PARTITIONED = re.compile(r"after_spmd-partitioning.*\.hlo\.pb$")


@functools.lru_cache(maxsize=4)
def _cpu_client(num_devices: int) -> Any:
    return _xla_client.make_cpu_client(num_devices=num_devices)


def _first_field(proto: bytes) -> bytes:
    """Return the first field of a message, which is length-delimited: of an HloProto its module."""
    length, shift, start = 0, 0, 1
    while True:
        byte = proto[start]
        length |= (byte & 127) << shift
        shift, start = shift + 7, start + 1
        if not byte & 128:
            return proto[start : start + length]


def tiles_of(sharding: str, rank: int) -> tuple[tuple[int, ...], np.ndarray]:
    """Return into how many parts a sharding cuts each dimension, and the devices of the parts ``[*parts, copies]``.

    Hides ``HloSharding``.

    Raises:
      ValueError: it is none that cuts arrays, such as one that keeps an array on one device.
    """
    found = _hlo_bindings.HloSharding.from_string(sharding)
    if found.is_replicated():
        return (1,) * rank, np.zeros(0, np.int64)
    if not found.is_tiled():
        raise ValueError(f"a sharding that is no tiling: {sharding}")
    dims = tuple(found.tile_assignment_dimensions())
    devices = np.array(found.tile_assignment_devices(), np.int64).reshape(*dims[:rank], -1)
    return dims[:rank], devices


class WrittenForDevices(NamedTuple):
    """A module that says shardings, and what it says.

    Args:
      module: an MLIR module.
      meshes: names and sizes of the axes of each mesh of several devices, each different one once.
      num_replicas: of all partitions.
      free: which arguments, and which results, it leaves to the compiler to cut.
      donated: arguments that it marks as donated.
    """

    module: Any
    meshes: tuple[tuple[tuple[str, int], ...], ...]
    num_replicas: int
    free: tuple[list[bool], list[bool]]
    donated: tuple[int, ...]


def read_for_devices(source: str | bytes) -> WrittenForDevices | None:
    """Return a module that is written for several devices together by shardings; None for others.

    Hides Shardy's dialect, its attributes for exported modules, and those of GSPMD before it.

    Raises:
      ValueError: ``main`` is missing, or takes or returns something else than tensors.
    """
    context = _mlir.make_ir_context()
    with context:
        try:
            module = parsed_module(context, source)
            if "xla.sdy.meshes" in module.operation.attributes.get("mhlo.frontend_attributes", ()):
                _passmanager.PassManager.parse(_ROUND_TRIP).run(module.operation)
            _passmanager.PassManager.parse("builtin.module(sdy-lift-inlined-meshes)").run(module.operation)
        except (_mlir.ir.MLIRError, ValueError):
            return None  # what is wrong with it is told where it is read
        if not says_shardings(module.operation):
            return None
        attributes = module.operation.attributes
        replicas, partitions = (
            attributes[key].value if key in attributes else 1
            for key in ("mhlo.num_replicas", "mhlo.num_partitions")
        )
        meshes = _meshes_of_module(module)
        if not meshes and not any(op.operation.name == "sdy.mesh" for op in module.body.operations):
            meshes = ((("partition", partitions),),) if partitions > 1 else ()
        if not meshes:
            return None
        main = next((op for op in module.body.operations if _symbol(op) == "main"), None)
        if main is None:
            raise ValueError("a module with shardings has a function @main")
        type_ = main.attributes["function_type"].value
        said = [
            list(main.attributes[role]) if role in main.attributes else [()] * len(types)
            for role, types in (("arg_attrs", type_.inputs), ("res_attrs", type_.results))
        ]
        inputs, outputs = ([not any(k in each for k in _SAID) for each in side] for side in said)
        marks = ("jax.buffer_donor", "tf.aliasing_output")
        donated = tuple(n for n, each in enumerate(said[0]) if any(mark in each for mark in marks))
        return WrittenForDevices(module, meshes, replicas, (inputs, outputs), donated)


_SAID = ("sdy.sharding", "mhlo.sharding")
_ROUND_TRIP = "builtin.module(xla-sdy-round-trip-import-shardy-attrs)"
_MARKS_OF_SHARDINGS = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.FuncResultSharding"}
)


def says_shardings(module: Any) -> bool:
    """Whether an MLIR operation, a module, says of any value how devices hold it. Hides Shardy and GSPMD."""
    found: list[bool] = []

    def visit(op: Any) -> Any:
        attributes = op.attributes
        is_said = op.name.startswith("sdy.") and op.name != "sdy.mesh"
        is_said = is_said or any(key in attributes for key in _SAID)
        if op.name == "stablehlo.custom_call":
            is_said = is_said or attributes["call_target_name"].value in _MARKS_OF_SHARDINGS
        for role in ("arg_attrs", "res_attrs"):
            if op.name == "func.func" and role in attributes:
                is_said = is_said or any(key in each for each in attributes[role] for key in _SAID)
        if is_said:
            found.append(True)
            return _mlir.ir.WalkResult.INTERRUPT
        return _mlir.ir.WalkResult.ADVANCE

    module.walk(visit)
    return bool(found)


def find_operation(module: Any, names: frozenset[str]) -> Any:
    """Return the first operation of a name in an MLIR module, or None."""
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name not in names:
            return _mlir.ir.WalkResult.ADVANCE
        found.append(op)
        return _mlir.ir.WalkResult.INTERRUPT

    module.operation.walk(visit)
    return found[0] if found else None


def _meshes_of_module(module: Any) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Return names and sizes of the axes of each mesh of several devices, each different one once."""
    found: dict[tuple[tuple[str, int], ...], None] = {}
    for view in module.body.operations:
        if view.operation.name == "sdy.mesh":
            axes = map(_sdy.MeshAxisAttr, _sdy.MeshAttr(view.operation.attributes["mesh"]).axes)
            found[tuple((axis.name, axis.size) for axis in axes)] = None
    return tuple(axes for axes in found if math.prod(size for _, size in axes) > 1)


def module_of_bytecode(bytecode: bytes) -> Any:
    """Return an MLIR module in a context of its own."""
    with _mlir.make_ir_context():
        return _mlir.ir.Module.parse(bytecode)


def separate_shardings(sharding: str) -> list[str]:
    """Return the shardings of a tuple's members, or the one that is none of a tuple. Hides ``HloSharding``."""
    found = _hlo_bindings.HloSharding.from_string(sharding)
    members = found.tuple_elements() if sharding.startswith("{{") else [found]
    return [str(member) for member in members]


def manual_body(module: Any, axes: Sequence[str]) -> tuple[Any, list[Any], list[Any]] | None:
    """Return the body of a module that is one ``shard_map`` over all axes, as a module of its own; None for others.

    Hides Shardy's ``manual_computation``.

    Args:
      module: an MLIR module.
      axes: names of all axes of its mesh.

    Returns:
      A module, and the dimension shardings of its arguments and of its results, a tuple of names of axes for each
      dimension. It shares nothing with the one given.
    """
    ir = _mlir.ir
    if not any(op.operation.name == "sdy.manual_computation" for op in main_of(module).regions[0].blocks[0]):
        return None
    with module.context:
        module = ir.Module.parse(module_bytecode(module))  # what is taken out of a module is gone there
    blocks = module.body.operations
    main = main_of(module)
    meshes = {_symbol(op): op for op in blocks if op.operation.name == "sdy.mesh"}
    operations = list(main.regions[0].blocks[0].operations)
    if len(operations) != 2 or operations[0].operation.name != "sdy.manual_computation":
        return None
    manual, end = (op.operation for op in operations)
    arguments = list(main.regions[0].blocks[0].arguments)
    if list(manual.operands) != arguments or list(end.operands) != list(manual.results):
        return None
    shardings: list[list[Any]] = []
    for role, key in (("in_shardings", "arg_attrs"), ("out_shardings", "res_attrs")):
        found = list(_sdy.TensorShardingPerValueAttr(manual.attributes[role]).shardings)
        said: Any = main.attributes[key] if key in main.attributes else [()] * len(found)
        given = [attrs["sdy.sharding"] if "sdy.sharding" in attrs else None for attrs in said]
        own = [_axes_of_dimensions(each) for each in found]
        if any(g is not None and _axes_of_dimensions(g) != o for g, o in zip(given, own, strict=True)):
            return None
        if any(each is None for each in own):
            return None
        shardings.append(own)
    manual_axes = re.findall(r'"([^"]*)"', str(manual.attributes["manual_axes"]))
    if set(manual_axes) != set(axes) or len(meshes) != 1:
        return None
    (mesh,) = meshes.values()
    if list(_sdy.MeshAttr(mesh.attributes["mesh"]).device_ids):
        return None  # devices in an order of their own, which XLA knows to follow
    block = manual.regions[0].blocks[0]
    last = list(block.operations)[-1].operation
    with module.context, ir.Location.unknown():
        results = [value.type for value in last.operands]
        function = ir.FunctionType.get([argument.type for argument in block.arguments], results)
        with last.location, ir.InsertionPoint(last):
            _func.ReturnOp(list(last.operands))
        last.erase()
        with main.location, ir.InsertionPoint(main.operation):
            made = _func.FuncOp("main_of_one", function)
        block.append_to(made.regions[0])
        made.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [_without_sharding(attrs) for attrs in main.arg_attrs]
        )
        main.operation.erase()
        mesh.operation.erase()
        made.attributes["sym_name"] = ir.StringAttr.get("main")
    return module, shardings[0], shardings[1]


Shapes = tuple[tuple[int, ...], ...]


def shapes_of_main(module: Any) -> tuple[Shapes, Shapes]:
    """Return the shapes of the arguments and of the results of ``main``.

    Raises:
      ValueError: one is no tensor.
    """
    type_ = main_of(module).attributes["function_type"].value
    inputs, outputs = (tuple(map(_mlir.ir.RankedTensorType, role)) for role in (type_.inputs, type_.results))
    return tuple(tuple(each.shape) for each in inputs), tuple(tuple(each.shape) for each in outputs)


def main_of(module: Any) -> Any:
    return next(op for op in module.body.operations if _symbol(op) == "main")


def _symbol(op: Any) -> str:
    return op.attributes["sym_name"].value if "sym_name" in op.attributes else ""


def _without_sharding(attributes: Any) -> Any:
    return _mlir.ir.DictAttr.get({each.name: each.attr for each in attributes if each.name != "sdy.sharding"})


def _axes_of_dimensions(sharding: Any) -> tuple[tuple[str, ...], ...] | None:
    """Return the names of the axes that cut each dimension; None where parts of axes do, or what is undecided."""
    dimensions = _sdy.TensorShardingAttr(sharding).dimension_shardings
    found: list[tuple[str, ...]] = []
    for dimension in map(_sdy.DimensionShardingAttr, dimensions):
        axes = [_sdy.AxisRefAttr(axis) for axis in dimension.axes]
        if not dimension.is_closed or any(axis.sub_axis_info is not None for axis in axes):
            return None
        found.append(tuple(axis.name for axis in axes))
    return tuple(found)


# ---- reading MLIR ----

mlir_ir = _mlir.ir

_PORTABLE_ARTIFACT = re.compile(rb"ML\xefR.StableHLO_v", re.DOTALL)
_LEGALIZATION = (
    "builtin.module(func.func(stablehlo-legalize-composite-to-call),"
    "func.func(chlo-legalize-to-stablehlo,stablehlo-legalize-deprecated-ops{fail-on-unused=false}))"
)
_DEQUANTIZATION = (
    "builtin.module(func.func(stablehlo-legalize-quantized-op-to-qdq,stablehlo-legalize-quant-to-math,"
    "chlo-legalize-to-stablehlo))"
)
_NEEDS_QUANT = "builtin.module(vhlo-legalize-to-stablehlo)"
"""Passes that make MLIR load its dialect of quantized types, of which jaxlib gives no other way in."""
_REFINEMENT = (
    "builtin.module(func.func(stablehlo-canonicalize-dynamism),stablehlo-refine-shapes,"
    "func.func(stablehlo-canonicalize-dynamism))"
)
_SHAPE_OPERANDS: dict[str, tuple[int, ...]] = {
    "stablehlo.dynamic_broadcast_in_dim": (1,),
    "stablehlo.dynamic_conv": (2,),
    "stablehlo.dynamic_gather": (2,),
    "stablehlo.dynamic_iota": (0,),
    "stablehlo.dynamic_pad": (2, 3, 4),
    "stablehlo.dynamic_reshape": (1,),
    "stablehlo.real_dynamic_slice": (1, 2, 3),
}
"""Which operands of an operation say sizes."""
_WHOLE_NUMBERS = re.compile(r"tensor<(\d+x)*u?i\d+>")


@functools.cache
def _register_passes() -> None:
    _hlo.register_stablehlo_passes()


def read_stablehlo(source: Any, refine: bool = False, dequantize: bool = False) -> Any:
    """Return a StableHLO module's operation, CHLO legalized. Hides contexts, passes and bytecode.

    Args:
      source: text, MLIR bytecode or a portable artifact; or an MLIR module, which is copied first.
      refine: whether to derive static shapes of what follows from the types of arguments and from constants.
      dequantize: whether to write operations on quantized types with integers and floats.

    Raises:
      ValueError: MLIR refuses it; the message is one line with the position in the text.
    """
    _register_passes()
    context = source.context if hasattr(source, "context") else _mlir.make_ir_context()
    messages: list[str] = []

    def keep(diagnostic: Any) -> bool:
        try:
            messages.append(f"{str(diagnostic.location)[4:-1]}: {diagnostic.message}")
        except (RuntimeError, ValueError):  # bytes that are no text, from a module that was damaged
            messages.append("the module names something with bytes that are no text")
        return True

    with context:
        handler: Any = context.attach_diagnostic_handler(keep)
        try:
            module = _read_module(context, source)
            _widen_functions(module)
            wanted = ((_LEGALIZATION, True), (_DEQUANTIZATION, dequantize), (_REFINEMENT, refine))
            for passes in (text for text, is_wanted in wanted if is_wanted):
                _passmanager.PassManager.parse(passes).run(module)
            while refine and _fold_shapes(module):
                _passmanager.PassManager.parse(_REFINEMENT).run(module)
        except (_mlir.ir.MLIRError, ValueError) as error:
            found = [f"{str(d.location)[4:-1]}: {d.message}" for d in getattr(error, "error_diagnostics", ())]
            raise ValueError(" ".join((found + messages or [str(error)])[0].split())) from None
        finally:
            handler.detach()
    return module


def _read_module(context: Any, source: Any) -> Any:
    if hasattr(source, "context"):
        return source.operation.clone().operation
    return parsed_module(context, source).operation


def parsed_module(context: Any, source: str | bytes) -> Any:
    """Return an MLIR module of text, bytecode or a portable artifact, as it stands."""
    if ("quant" in source) if isinstance(source, str) else (b"quant" in source):
        _passmanager.PassManager.parse(_NEEDS_QUANT).run(_mlir.ir.Module.parse("module {}").operation)
    if isinstance(source, bytes) and _PORTABLE_ARTIFACT.match(source):
        return _hlo.deserialize_portable_artifact(context, source)
    return _mlir.ir.Module.parse(source)


def _widen_functions(module: Any) -> None:
    """Have CHLO's elementwise functions of floats of 8 bits and fewer computed in f32, and rounded once.

    MLIR's formulas for some of them, such as erf, begin at 16 bits.
    """
    ir = _mlir.ir
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name.startswith("chlo.") and not len(op.regions):
            types = {each.type for each in (*op.operands, *op.results)}
            if len(types) == 1 and re.search(r"f[468]E\w+>$", str(*types)):
                found.append(op)
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    for op in found:
        narrow = op.results[0].type
        with op.location, ir.InsertionPoint(op):
            wide = ir.RankedTensorType.get(narrow.shape, ir.F32Type.get())
            operands = [_hlo.convert(wide, operand) for operand in op.operands]
            attributes = {named.name: named.attr for named in op.attributes}
            made = ir.Operation.create(op.name, [wide] * len(op.results), operands, attributes)
            for old, new in zip(op.results, made.results, strict=True):
                old.replace_all_uses_with(_hlo.convert(narrow, new))
        op.erase()


def _fold_shapes(module: Any) -> bool:
    """Replace shape operands that depend on constants alone by constants; return whether there were any.

    What MLIR's own passes fold is little: no iota, for one. jaxlib's StableHLO interpreter does it.
    """
    ir = _mlir.ir
    found: list[tuple[Any, int]] = []

    def visit(op: Any) -> Any:
        for number in _SHAPE_OPERANDS.get(op.name, ()):
            if getattr(op.operands[number].owner, "name", "") != "stablehlo.constant":
                found.append((op, number))
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    has_changed = False
    for op, number in found:
        value = op.operands[number]
        cone = _constant_cone(value)
        if cone is None:
            continue
        with ir.Location.unknown(), ir.InsertionPoint(op):
            op.operands[number] = _hlo.constant(_evaluated(cone, value))
        has_changed = True
    return has_changed


def _constant_cone(value: Any) -> list[Any] | None:
    """Return the operations on integers that give a value, in order; None where it depends on anything else."""
    cone: dict[Any, None] = {}
    stack = [(value.owner, False)]
    while stack:
        op, is_ready = stack.pop()
        if op in cone:
            continue
        if is_ready:
            cone[op] = None
            continue
        if isinstance(op, _mlir.ir.Block) or not op.name.startswith("stablehlo.") or len(op.regions):
            return None
        types = [str(each.type) for each in (*op.operands, *op.results)]
        if not all(map(_WHOLE_NUMBERS.fullmatch, types)) or op.name == "stablehlo.custom_call":
            return None
        stack.append((op, True))
        stack += [(operand.owner, False) for operand in op.operands]
    return list(cone)


def _evaluated(cone: Sequence[Any], value: Any) -> Any:
    """Return the attribute of the value that operations without arguments give."""
    ir = _mlir.ir
    with ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            main = _func.FuncOp("main", ([], [value.type]))
        made: dict[Any, Any] = {}
        with ir.InsertionPoint(main.add_entry_block()):
            for op in cone:
                clone = op.clone()
                for number, operand in enumerate(op.operands):
                    clone.operands[number] = made[operand]
                made.update(zip(op.results, clone.results, strict=True))
            _func.ReturnOp([made[value]])
        (result,) = _hlo.eval_module(module, [])
    return result


def dot_dimensions(attribute: Any) -> tuple[tuple[int, ...], ...]:
    """Return batching dimensions of lhs and rhs, then contracting ones. Hides ``DotDimensionNumbers``."""
    numbers = _hlo.DotDimensionNumbers(attribute)
    return (
        tuple(numbers.lhs_batching_dimensions),
        tuple(numbers.rhs_batching_dimensions),
        tuple(numbers.lhs_contracting_dimensions),
        tuple(numbers.rhs_contracting_dimensions),
    )


def conv_dimensions(attribute: Any) -> dict[str, Any]:
    """Return a convolution's dimension numbers by field. Hides ``ConvDimensionNumbers``."""
    numbers = _hlo.ConvDimensionNumbers(attribute)
    single = ("input_batch", "input_feature", "kernel_input_feature", "kernel_output_feature")
    single += ("output_batch", "output_feature")
    spatial = ("input_spatial", "kernel_spatial", "output_spatial")
    return {
        **{name: getattr(numbers, f"{name}_dimension") for name in single},
        **{name: tuple(getattr(numbers, f"{name}_dimensions")) for name in spatial},
    }


def dot_algorithm(attribute: Any) -> dict[str, Any]:
    """Return the fields of a dot algorithm, its types as text. Hides ``DotAlgorithm``."""
    algorithm = _hlo.DotAlgorithm(attribute)
    types = ("lhs_precision_type", "rhs_precision_type", "accumulation_type")
    counts = ("lhs_component_count", "rhs_component_count", "num_primitive_operations")
    return {
        **{name: str(getattr(algorithm, name)) for name in types},
        **{name: getattr(algorithm, name) for name in counts},
        "allow_imprecise_accumulation": algorithm.allow_imprecise_accumulation,
    }


def gather_dimensions(attribute: Any) -> dict[str, Any]:
    """Return a gather's dimension numbers by their names. Hides ``GatherDimensionNumbers``."""
    numbers = _hlo.GatherDimensionNumbers(attribute)
    lists = (
        "offset_dims",
        "collapsed_slice_dims",
        "operand_batching_dims",
        "start_indices_batching_dims",
        "start_index_map",
    )
    return {
        **{name: tuple(getattr(numbers, name)) for name in lists},
        "index_vector_dim": numbers.index_vector_dim,
    }


def scatter_dimensions(attribute: Any) -> dict[str, Any]:
    """Return a scatter's dimension numbers by the specification's names. Hides ``ScatterDimensionNumbers``."""
    numbers = _hlo.ScatterDimensionNumbers(attribute)
    return {
        "update_window_dims": tuple(numbers.update_window_dims),
        "inserted_window_dims": tuple(numbers.inserted_window_dims),
        "input_batching_dims": tuple(numbers.input_batching_dims),
        "scatter_indices_batching_dims": tuple(numbers.scatter_indices_batching_dims),
        "scatter_dims_to_operand_dims": tuple(numbers.scattered_dims_to_operand_dims),
        "index_vector_dim": numbers.index_vector_dim,
    }
