"""The call of a program on an IPU as a JAX primitive, ``ipu_call_p``.

It holds a closed jaxpr and the choices of its compilation. Every transformation rewrites the jaxpr and binds
the primitive again, so ``jax.grad``, ``jax.vmap``, ``jax.jvp`` or ``jax.checkpoint`` of a decorated function
give new IPU programs, each compiled and run as one. Under an outer ``jax.jit`` the traceable engines are
inlined; an engine that steps on the host is a named error there. Inside another decorated function a call is
part of the outer program.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypedDict, Unpack

import jax
import jax.numpy as jnp

from ipuxla._jax_compat import ClosedJaxpr, Datum, Params, reshard
from ipuxla.errors import Unsupported
from ipuxla.frontend import _jax_compat as compat
from ipuxla.frontend._jax_compat import ShapedArray
from ipuxla.frontend.lower import PLATFORM
from ipuxla.frontend.shardings import Shardings
from ipuxla.options import CompileOptions


class Program(Protocol):
    """A compiled jaxpr."""

    def run(self, *leaves: Datum) -> Sequence[Datum]:
        """Run on arrays."""
        ...

    def trace(self, *leaves: Datum) -> Sequence[Datum]:
        """Run as part of an outer trace, or raise a named error."""
        ...


Backend = Callable[[ClosedJaxpr, CompileOptions, str, tuple[int, ...], Shardings | None], Program]
"""``backend(jaxpr, options, name, donated, shardings)`` compiles a closed jaxpr whose ``donated`` arguments it may
consume, for one device or those of ``shardings``."""

_backend: Backend | None = None
_programs: weakref.WeakKeyDictionary[ClosedJaxpr, dict[Hashable, Program]] = weakref.WeakKeyDictionary()


def set_backend(backend: Backend) -> None:
    """Say how calls are compiled. Programs compiled before are forgotten."""
    global _backend
    _backend = backend
    _programs.clear()


def program(
    jaxpr: ClosedJaxpr,
    options: CompileOptions,
    name: str,
    donated: tuple[int, ...] = (),
    shardings: Shardings | None = None,
) -> Program:
    """Return the compiled form of a jaxpr, compiling it once for as long as the jaxpr lives."""
    known = _programs.setdefault(jaxpr, {})
    key = (options, name, donated, shardings)
    if key not in known:
        assert _backend is not None, "no backend was set"
        known[key] = _backend(jaxpr, options, name, donated, shardings)
    return known[key]


ipu_call_p = compat.call_primitive("ipu_call")


def ipu_call(
    jaxpr: ClosedJaxpr,
    options: CompileOptions,
    name: str,
    donated: tuple[int, ...],
    *leaves: Datum,
    shardings: Shardings | None = None,
) -> list[Datum]:
    """Call a closed jaxpr on an IPU, or on the devices of ``shardings`` together.

    Args:
      jaxpr: what to compute.
      options: hashable choices for the backend.
      name: name of the program, for reports.
      donated: arguments that the call may consume.
      *leaves: one array or tracer per argument of the jaxpr.
      shardings: a mesh, and what was said of arguments and results; None for one device.
    """
    return ipu_call_p.bind(
        *leaves, jaxpr=jaxpr, options=options, name=name, donated=donated, shardings=shardings
    )


class CallParams(TypedDict):
    """Parameters of a call beside its jaxpr; ``ipu_call`` says what each is."""

    options: CompileOptions
    name: str
    donated: tuple[int, ...]
    shardings: Shardings | None


def _rebind(
    jaxpr: ClosedJaxpr, arguments: Sequence[Datum], params: CallParams, transformation: str
) -> list[Datum]:
    """Call a jaxpr that a transformation derived; storage of arguments is the transformation's then.

    What was said of shardings is said within the jaxpr by now, see ``_said_within``.
    """
    name = f"{transformation}({params['name']})"
    shardings = _unsaid(params["shardings"], jaxpr)
    return ipu_call(jaxpr, params["options"], name, (), *arguments, shardings=shardings)


def _said_within(jaxpr: ClosedJaxpr, shardings: Shardings | None, arguments: Sequence[Datum]) -> ClosedJaxpr:
    """Return a jaxpr that says itself how its arguments and results lie, so that what is derived from it does too.

    Where types of the caller's arguments name axes of a mesh, those of the jaxpr say it already.
    """
    if shardings is None or all(s is None for s in (*shardings.inputs, *shardings.outputs)):
        return jaxpr
    if any(compat.names_explicit_axes(argument) for argument in arguments):
        return jaxpr
    return compat.constrained_jaxpr(jaxpr, shardings.inputs, shardings.outputs)


def _unsaid(shardings: Shardings | None, jaxpr: ClosedJaxpr) -> Shardings | None:
    """Return the same devices for another jaxpr, of whose arguments and results nothing is said but in itself."""
    return None if shardings is None else shardings.free(len(jaxpr.in_avals), len(jaxpr.out_avals))


def _run(
    *arrays: Datum,
    jaxpr: ClosedJaxpr,
    options: CompileOptions,
    name: str,
    donated: tuple[int, ...],
    shardings: Shardings | None,
) -> list[Datum]:
    with contextlib.nullcontext() if shardings is None else compat.no_mesh():
        outputs = list(program(jaxpr, options, name, donated, shardings).run(*arrays))
    for position, aval in enumerate(_types(jaxpr=jaxpr, options=options)):
        if aval.weak_type:
            with compat.own_width(jaxpr):
                outputs[position] = compat.weaken(outputs[position])
    return outputs


def _types(
    *avals: ShapedArray, jaxpr: ClosedJaxpr, options: CompileOptions, **_: object
) -> list[ShapedArray]:
    """Result types; in the ring floats are unsigned integers of their width, complex numbers two of them.

    They name axes of a mesh only where arguments' types do: else what calls this knows of no mesh.
    """
    types = jaxpr.out_avals
    if not any(map(compat.names_explicit_axes, avals)):
        types = [compat.without_explicit_axes(aval) for aval in types]
    return types if options.arithmetic == "float" else [_word_type(aval) for aval in types]


def _word_type(aval: ShapedArray) -> ShapedArray:
    if jnp.issubdtype(aval.dtype, jnp.complexfloating):
        word = jnp.dtype(f"uint{aval.dtype.itemsize * 4}")
        return aval.update(shape=(*aval.shape, 2), dtype=word, weak_type=False)
    if not jnp.issubdtype(aval.dtype, jnp.floating):
        return aval
    return aval.update(dtype=jnp.dtype(f"uint{aval.dtype.itemsize * 8}"), weak_type=False)


def _jvp(
    primals: Sequence[Datum], tangents: Sequence[Datum], *, jaxpr: ClosedJaxpr, **params: Unpack[CallParams]
) -> tuple[list[Datum], list[Datum]]:
    if params["options"].arithmetic != "float":
        outputs = ipu_call_p.bind(*primals, jaxpr=jaxpr, **params)
        return outputs, [compat.zero_tangent(jax.typeof(x)) for x in outputs]
    jaxpr = _said_within(jaxpr, params["shardings"], primals)
    nonzeros = [type(t) is not compat.Zero for t in tangents]
    with compat.own_width(jaxpr):
        derived, out_nonzeros = compat.jvp_jaxpr(jaxpr, nonzeros)
    results = _rebind(derived, [*primals, *itertools.compress(tangents, nonzeros)], params, "jvp")
    count = len(jaxpr.out_avals)
    given = iter(results[count:])
    out_tangents = [
        next(given) if nonzero else compat.zero_tangent(aval)
        for aval, nonzero in zip(jaxpr.out_avals, out_nonzeros, strict=True)
    ]
    return results[:count], out_tangents


def _partial_eval(
    trace: compat.JaxprTrace, *tracers: compat.JaxprTracer, jaxpr: ClosedJaxpr, **params: Unpack[CallParams]
) -> list[Datum]:
    """Run the part that known arguments decide, and leave the rest for later on residuals."""
    is_unknown = [not compat.is_known(t) for t in tracers]
    jaxpr = _said_within(jaxpr, params["shardings"], tracers)
    with compat.own_width(jaxpr):
        known, unknown, out_unknown, repeats = compat.partial_eval_jaxpr(jaxpr, is_unknown)
    arguments = [compat.known_value(t) for t, u in zip(tracers, is_unknown, strict=True) if not u]
    num_known = out_unknown.count(False)
    results = _run_known(known, arguments, num_known, params)
    fresh, sources = iter(results[num_known:]), [*jaxpr.consts, *arguments]
    residuals = [next(fresh) if source is None else sources[source] for source in repeats]
    unknowns = list(itertools.compress(tracers, is_unknown))
    later = {**params, "jaxpr": unknown, "donated": (), "shardings": _unsaid(params["shardings"], unknown)}
    staged = iter(compat.stage(trace, ipu_call_p, residuals, unknowns, later))
    ready = iter(results[:num_known])
    return [next(staged) if u else next(ready) for u in out_unknown]


def _run_known(
    jaxpr: ClosedJaxpr, arguments: Sequence[Datum], num_results: int, params: CallParams
) -> list[Datum]:
    """Call a jaxpr, but not for values that are arguments or earlier results; an empty call is none."""
    smaller, from_arguments, from_results = compat.drop_repeats(jaxpr, num_results)
    is_needed = bool(smaller.out_avals or smaller.effects)
    computed = iter(_rebind(smaller, arguments, params, "known") if is_needed else ())
    distinct: list[Datum] = []
    for source in from_results:
        distinct.append(next(computed) if source is None else distinct[source])
    remaining = iter(distinct)
    return [next(remaining) if source is None else arguments[source] for source in from_arguments]


def _transpose(
    cotangents: Sequence[Datum], *arguments: Datum, jaxpr: ClosedJaxpr, **params: Unpack[CallParams]
) -> list[Datum]:
    jaxpr = _said_within(jaxpr, params["shardings"], arguments)
    linear = tuple(compat.is_linear(x) for x in arguments)
    zeros = tuple(type(ct) is compat.Zero for ct in cotangents)
    with compat.own_width(jaxpr):
        transposed, nonzeros = compat.transpose_jaxpr(jaxpr, linear, zeros)
    residuals = [x for x, is_linear in zip(arguments, linear, strict=True) if not is_linear]
    given = [ct for ct, zero in zip(cotangents, zeros, strict=True) if not zero]
    results = iter(
        _rebind(transposed, [*residuals, *given], params, "transpose") if transposed.out_avals else ()
    )
    is_nonzero = iter(nonzeros)
    return [
        None
        if not is_linear
        else _as_its_argument(next(results), x)
        if next(is_nonzero)
        else compat.zero_cotangent(x)
        for x, is_linear in zip(arguments, linear, strict=True)
    ]


def _as_its_argument(cotangent: Datum, argument: Datum) -> Datum:
    """Return a cotangent with the argument's own type, of which axes of the caller's devices may be part."""
    return reshard(cotangent, argument.aval.sharding) if compat.names_explicit_axes(argument) else cotangent


def _batch(
    axis: compat.AxisData,
    arguments: Sequence[Datum],
    dims: Sequence[int | None],
    *,
    jaxpr: ClosedJaxpr,
    **params: Unpack[CallParams],
) -> tuple[list[Datum], Sequence[int | None]]:
    jaxpr = _said_within(jaxpr, params["shardings"], arguments)
    with compat.own_width(jaxpr):
        batched, out_dims = compat.batch_jaxpr(jaxpr, axis, dims)
    return _rebind(batched, arguments, params, "vmap"), out_dims


def _dce(used: Sequence[bool], equation: compat.Equation) -> tuple[list[bool], compat.Equation | None]:
    if not any(used) and not compat.has_effects(equation):
        return [False] * len(equation.invars), None
    shardings = equation.params["shardings"]
    jaxpr = _said_within(equation.params["jaxpr"], shardings, equation.invars)
    smaller, used_inputs = compat.dce_jaxpr(jaxpr, tuple(used))
    params = {
        **equation.params,
        "jaxpr": smaller,
        "donated": (),
        "shardings": _unsaid(shardings, smaller),
    }
    return used_inputs, compat.replace_equation(equation, params, used_inputs, used)


def _derived(params: Params) -> Params:
    return {**params, "donated": (), "shardings": _unsaid(params["shardings"], params["jaxpr"])}


def _lower(
    context: compat.LoweringContext,
    *values: compat.mlir.Value,
    jaxpr: ClosedJaxpr,
    options: CompileOptions,
    name: str,
    donated: tuple[int, ...],
    shardings: Shardings | None,
) -> Sequence[compat.mlir.Value]:
    if compat.lowers_for(context, PLATFORM):
        if options.arithmetic != "float":
            raise Unsupported(
                f"{name}, decorated for ring arithmetic, is called inside another decorated function",
                expected="ring arithmetic for a whole program",
                try_='give arithmetic="ring" to the outer function and decorate the inner one without it',
            )
        return compat.inline(
            context, compat.jaxpr_as_fun(_said_within(jaxpr, shardings, context.avals_in)), *values
        )
    with compat.own_width(jaxpr):
        return compat.inline(context, program(jaxpr, options, name, (), shardings).trace, *values)


compat.register_rules(
    ipu_call_p,
    run=_run,
    types=_types,
    jvp=_jvp,
    partial_eval=_partial_eval,
    transpose=_transpose,
    batch=_batch,
    dce=_dce,
    lower=_lower,
    derived=_derived,
)
