"""A primitive and its rules."""

# pyright: standard, reportPrivateImportUsage=false
# (private names are this module's purpose)

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import core as _core
from jax._src import source_info_util as _source_info_util
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import partial_eval as _pe

from ipuxla.frontend._jax_compat.aliases import ClosedJaxpr, Equation, Zero


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
    # Between the two, JAX 0.12 says which Refs are read later.
    _pe.dce_rules[primitive] = lambda used, *others: dce(used, others[-1])
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
    return ClosedJaxpr(_pe.convert_constvars_jaxpr(jaxpr.jaxpr), ()), list(jaxpr.consts)


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
