"""A Python function to a jaxpr, and a jaxpr to StableHLO for the platform ``ipu``, which needs no plugin.

Rules that JAX registers for all platforms apply; one that exists for other platforms only (LAPACK, cuDNN,
host callbacks that may return) is a named error with the user's line. No type changes width on the way, whatever
``jax_enable_x64`` says.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import functools
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ipuxla._jax_compat import ClosedJaxpr, Datum, Tree, TreeDef
from ipuxla.errors import InvalidOption, Unsupported, UnsupportedPrimitive
from ipuxla.frontend import _jax_compat as compat
from ipuxla.frontend import checks, decompositions, eigenvalues, printing
from ipuxla.frontend._jax_compat import mlir
from ipuxla.frontend.shardings import Shardings, find_shardings, sharding_of_leaf

PLATFORM = "ipu"
RULES = decompositions.RULES | eigenvalues.RULES


class Traced(NamedTuple):
    """A function traced for arguments of certain types.

    Args:
      jaxpr: what it computes, from ``outer`` and the leaves of the arguments to the leaves of the result.
      outer: values of an enclosing JAX transformation, and Refs, that the function closes over.
      out_tree: structure of the result.
      donated: positions, among the arguments of the jaxpr, of those whose storage a result takes over.
      shardings: what was said of many devices; None for one.
      refs: positions, among the arguments of the jaxpr, of the values of Refs (``jax.new_ref``); their last values follow
        the leaves of the result.
    """

    jaxpr: ClosedJaxpr
    outer: list[Datum]
    out_tree: TreeDef
    donated: tuple[int, ...]
    shardings: Shardings | None = None
    refs: tuple[int, ...] = ()


Arguments = tuple[tuple[Tree, ...], dict[str, Tree]]
"""Positional and keyword arguments of a call."""


def trace(
    jitted: jax.stages.Wrapped, leaves: Sequence[Datum], arguments: Callable[[Sequence[Datum]], Arguments]
) -> Traced:
    """Trace a ``jax.jit`` function, which brings JAX's meaning of static and donated arguments.

    Arguments keep their width: where ``jax_enable_x64`` is off, 64-bit floats are traced as if it were on,
    and 64-bit integers such that what the function makes by itself stays 32-bit.

    Args:
      jitted: the function.
      leaves: arrays or ``jax.ShapeDtypeStruct`` of the arguments that are not static.
      arguments: puts leaves in their places among all arguments, the static ones included.

    Raises:
      UnsupportedPrimitive: the function calls the host, or prints on several devices.
      InvalidOption: a collective names an axis that no mesh around has.
    """
    own = [sharding_of_leaf(leaf) for leaf in leaves]
    leaves = [_in_its_width(leaf) for leaf in leaves]
    tracing = functools.partial(_trace_in_its_width, jitted, leaves, *arguments(leaves))
    try:
        jaxpr, outer, out_tree, donated, inputs, outputs = tracing()
    except AssertionError as error:
        found = None if error.args else compat.unknown_axes(tracing)
        if found is None:
            raise
        raise _unbound(*found) from error
    with compat.own_width(jaxpr):
        jaxpr, refs, closed_over = compat.without_refs(jaxpr)
    outer, inputs = [*closed_over, *outer], [*[None] * len(closed_over), *inputs]
    _refuse_effects(jaxpr)
    others = (position + len(outer) for position in donated)
    donated = (*refs, *(position for position in others if position not in refs))
    leading = [None] * (len(jaxpr.in_avals) - len(own))
    inputs = [said or carried for said, carried in zip(inputs, [*leading, *own], strict=True)]
    shardings = find_shardings(jaxpr, inputs, [*outputs, *(inputs[position] for position in refs)])
    if shardings is not None:
        _refuse_prints(jaxpr)
        _refuse_checks(jaxpr)
    return Traced(jaxpr, outer, out_tree, _usable_donations(jaxpr, donated), shardings, refs)


def to_stablehlo(
    jaxpr: ClosedJaxpr,
    name: str,
    donated: Sequence[int] = (),
    shardings: Shardings | None = None,
    found: list[checks.Check] | None = None,
    alive: list[object] | None = None,
) -> mlir.Module:
    """Lower a closed jaxpr to an MLIR module of StableHLO whose operations carry the user's source lines.

    Args:
      jaxpr: a closed jaxpr.
      name: name of the module.
      donated: arguments of ``main`` to mark as ``jax.buffer_donor``.
      shardings: the devices that the module is for together, and how arguments and results lie on them.
      found: to which the module's run-time checks are added.
      alive: to which is added what must not be collected before the module is partitioned.

    Raises:
      UnsupportedPrimitive: an operation that JAX lowers for other platforms only, or to a call of the host, or a
        call of a function that was exported for others.
    """
    found = [] if found is None else found
    if compat.find_equation(jaxpr, _is_check) is not None:
        jaxpr = compat.live_jaxpr(jaxpr)  # as JAX: a check whose value nobody wants is none

    def message_of(callback: Callable[..., object], types: Sequence[compat.ShapedArray]) -> str | None:
        function = compat.user_function(callback)
        if not checks.never_returns(function):
            return None
        found.append(checks.check_of(len(found), callback, function, types))
        return found[-1].message

    stop = checks.TARGET, message_of, checks.packed
    try:
        with compat.own_width(jaxpr):
            mesh, said = None, ((), ())
            if shardings is not None:
                mesh, said = shardings.mesh, (shardings.inputs, shardings.outputs)
            module = compat.lower_jaxpr(
                jaxpr, name, PLATFORM, RULES, printing.TARGET, printing.message_of, stop, mesh, said, alive
            )
    except NotImplementedError as error:
        raise _no_rule(jaxpr, error) from error
    except compat.HostCall as error:
        callback = error.callback
        place = compat.find_equation(jaxpr, lambda e: e.params.get("callback") is callback)
        if place is not None:
            _refuse(*place)
        raise _late_callback(jaxpr) from error
    except AttributeError as error:  # JAX (0.10.2) asks a mesh without devices for them
        place = compat.find_equation(jaxpr, lambda e: e.primitive.name == compat.CUSTOM_PARTITIONING)
        if place is None or shardings is None:
            raise
        raise Unsupported(
            "jax.custom_partitioning inside a jax.shard_map over some axes of the mesh",
            location=place[1],
            expected="outside of jax.shard_map, or inside one over all axes, where it is the function itself",
        ) from error
    except IndexError as error:  # JAX looks devices up by the numbers that a permutation names
        sizes = {} if shardings is None else dict(shardings.axes)
        place = compat.find_equation(jaxpr, lambda equation: _is_beyond(equation, sizes))
        if place is None:
            raise
        raise InvalidOption(
            "a permutation names a device that its axis has not",
            location=place[1],
            expected="pairs of places along the axis, from 0 to its size less 1",
            got=", ".join(map(str, place[0].params["perm"]))[:120],
        ) from error
    except ValueError as error:
        named = _named(error, jaxpr, {} if shardings is None else dict(shardings.axes))
        if named is None:
            raise
        raise named from error
    if donated:
        compat.mark_donated(module, donated)
    return module


def _named(error: ValueError, jaxpr: ClosedJaxpr, sizes: dict[str, int]) -> Exception | None:
    """Return what a ValueError of JAX's lowering says, as an error with the user's line; None for another one."""
    place = compat.find_equation(jaxpr, lambda equation: _misses_members(equation, sizes))
    if place is not None:
        return InvalidOption(
            "the groups of a collective are not every place along its axis once",
            location=place[1],
            expected="groups of one size, in which each place along the axis is once",
            got=str([list(group) for group in place[0].params["axis_index_groups"]])[:120],
        )
    if "bound by a parent sdy.manual_computation" in str(error):
        place = compat.find_equation(jaxpr, lambda equation: equation.primitive.name == "shard_map")
        return Unsupported(
            f"a derivative through a jax.shard_map inside a jax.shard_map, which JAX {jax.__version__} does not lower",
            location=place and place[1],
            expected="one jax.shard_map over the axes of both, or check_vma=False in both",
        )
    if "EmitPythonCallback" in str(error):
        return _late_callback(jaxpr)
    return _other_platform(jaxpr, error) if "was exported for platforms" in str(error) else None


def as_wide_array(leaf: Datum) -> jax.Array:
    """Return a NumPy value or Python number as a JAX array of its full width, which JAX then leaves alone."""
    with jax.enable_x64(True):
        return jnp.asarray(leaf)


def _in_its_width(leaf: Datum) -> Datum:
    """Return what JAX would narrow (64 bits wide and not yet a JAX array) as something that it does not."""
    if not compat.is_64bit(getattr(leaf, "dtype", None)):
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return compat.ShapedArray(leaf.shape, leaf.dtype)
    return as_wide_array(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf


def _trace_in_its_width(
    jitted: jax.stages.Wrapped, leaves: Sequence[Datum], args: tuple[Tree, ...], kwargs: dict[str, Tree]
) -> compat.TracedFunction:
    """Trace under the user's setting where no leaf is 64 bits wide, else under one that narrows nothing."""
    kinds = {leaf.dtype.kind for leaf in leaves if compat.is_64bit(getattr(leaf, "dtype", None))}
    if not kinds or jax.config.read("jax_enable_x64"):
        return compat.trace_function(jitted, args, kwargs)
    if kinds <= {"i", "u"}:
        try:
            with compat.allow_explicit_64bit():
                return compat.trace_function(jitted, args, kwargs)
        except (TypeError, OverflowError):
            pass  # a 32-bit default met 64-bit values where JAX wants one type, or a number too large for it
    with jax.enable_x64(True):
        return compat.trace_function(jitted, args, kwargs)


def _is_beyond(equation: compat.Equation, sizes: dict[str, int]) -> bool:
    """Whether an equation is a permutation that names a place which its axes have not."""
    if equation.primitive.name != "ppermute":
        return False
    size = _places(equation.params["axis_name"], sizes)
    return any(not 0 <= place < size for pair in equation.params["perm"] for place in pair)


def _misses_members(equation: compat.Equation, sizes: dict[str, int]) -> bool:
    """Whether an equation is a collective whose groups are not all places along its axes, each once."""
    groups = equation.params.get("axis_index_groups")
    names = equation.params.get("axes", equation.params.get("axis_name"))
    if groups is None or names is None:
        return False
    places = sorted(place for group in groups for place in group)
    return places != list(range(_places(names, sizes)))


def _places(names: object, sizes: dict[str, int]) -> int:
    """Return how many places there are along one axis or several."""
    axes = names if isinstance(names, tuple | list) else (names,)
    return math.prod(sizes.get(str(name), 1) for name in axes)


def _unbound(axes: Sequence[str], place: str | None) -> Exception:
    return InvalidOption(
        f"a collective names an axis that no mesh around it has: {', '.join(map(repr, axes))}",
        location=place,
        expected="an axis of the mesh of jax.shard_map, or of jax.vmap(axis_name=), around it",
    )


def _refuse_prints(jaxpr: ClosedJaxpr) -> None:
    """Raise UnsupportedPrimitive if a program of many devices prints: which of them would?"""
    found = compat.find_equation(jaxpr, lambda e: e.primitive.name == _PRINT)
    if found is not None:
        raise UnsupportedPrimitive(
            "jax.debug.print inside a program of several IPUs: each of them would print its own part",
            location=found[1],
            expected="a sharded function whose results depend on its arguments alone",
            try_="return the value and print it outside",
        )


def _refuse_checks(jaxpr: ClosedJaxpr) -> None:
    """Raise UnsupportedPrimitive if a program of many devices may stop: one would, and the others wait."""
    found = compat.find_equation(jaxpr, _is_check)
    if found is not None:
        raise UnsupportedPrimitive(
            "a run-time check inside a program of several IPUs: one of them would stop, and the others wait for it",
            location=found[1],
            expected="a sharded function that no callback ends",
            try_=f"return the condition and check it outside; {_CHECKS}",
        )


def _refuse_effects(jaxpr: ClosedJaxpr) -> None:
    kernel = compat.find_equation(jaxpr, lambda e: _is_kernel(e) and e.params["interpret"] is not True)
    found = kernel or compat.find_equation(jaxpr, _is_refused, is_opaque=_is_kernel)
    if found is None and compat.find_equation(jaxpr, _is_check) is None:
        found = compat.find_equation(jaxpr, _is_pure)
    if found is not None:
        _refuse(*found)


def _is_kernel(equation: compat.Equation) -> bool:
    """Whether an equation is a Pallas kernel; its Refs are its own. With ``interpret=True`` JAX lowers it as operations."""
    return equation.primitive.name == "pallas_call"


def _refuse(equation: compat.Equation, location: str | None) -> None:
    """Raise UnsupportedPrimitive for what no program on an IPU can do."""
    name = equation.primitive.name
    if name == _PRINT:
        raise UnsupportedPrimitive(
            f"jax.debug.print is not data: {_print_fault(equation)}",
            location=location,
            expected="a format and arrays, texts, or lists, tuples and dictionaries of them",
            try_="jax.debug.print of the arrays themselves, with str.format's fields",
        )
    what, try_ = f"{name} calls the host, which a program on an IPU cannot", _OUTSIDE
    if name == "pallas_call":
        what = (
            "pallas_call: a Pallas kernel is written for another machine's memory and has no form for an IPU"
        )
        try_ = (
            "interpret=True, with which JAX writes a kernel as operations; the same function in jax.numpy or jax.lax; "
            "a vertex of your own is an ipuxla.codelet"
        )
    elif name == "pure_callback":
        what += ", unless it only raises: this one may return"
        try_ += f"; {_CHECKS}"
    elif name.startswith("debug_"):
        what = f"{name} calls a function, or a debugger, on the host, which a program on an IPU cannot"
        try_ = f"jax.debug.print, whose format is data, on one IPU; or {_OUTSIDE}"
    raise UnsupportedPrimitive(
        what,
        location=location,
        expected="a function whose results depend on its arguments alone",
        try_=try_,
    )


_PRINT = "debug_print"


def _is_refused(equation: compat.Equation) -> bool:
    """Whether an equation does what no program on an IPU can; what it holds inside was looked at before."""
    name = equation.primitive.name
    if name == _PRINT:
        return _print_fault(equation) is not None
    if name.endswith("callback"):
        return not _is_pure(equation)
    return compat.has_effects(equation) and not (
        compat.only_debugs(equation) and compat.has_inner_jaxprs(equation)
    )


def _is_pure(equation: compat.Equation) -> bool:
    return equation.primitive.name == "pure_callback"


def _is_check(equation: compat.Equation) -> bool:
    """Whether an equation calls a function of the host that never returns: the program ends there."""
    return _is_pure(equation) and checks.never_returns(compat.user_function(equation.params["callback"]))


def _print_fault(equation: compat.Equation) -> str | None:
    """Return why a print cannot be kept as data, None where it can."""
    try:
        printing.message_of(compat.operand_types(equation), equation.params)
    except ValueError as error:
        return str(error)
    return None


_OUTSIDE = "return the value and print it outside, or move the call out of the decorated function"
_CHECKS = (
    "where it is a run-time check of equinox (as in diffrax, optimistix and lineax), set EQX_ON_ERROR=nan or =off "
    "in the environment before it is imported"
)


def _no_rule(jaxpr: ClosedJaxpr, error: NotImplementedError) -> Exception:
    """Return the named error for JAX's "no rule for this platform"."""
    found = re.search(r"primitive '?([\w.-]+)'?", str(error))
    name = found[1] if found else "an operation"
    place = compat.find_equation(jaxpr, lambda equation: equation.primitive.name == name)
    return UnsupportedPrimitive(
        f"JAX has no lowering of {name} for an IPU: {error}",
        location=place[1] if place else None,
        try_="express it with other jax.numpy or jax.lax functions, or move it out of the decorated function",
    )


def _late_callback(jaxpr: ClosedJaxpr) -> Exception:
    """Return the named error for a callback that only lowering a library's own primitive brings to light."""
    place = compat.find_equation(jaxpr, compat.is_librarys)
    name = f"{place[0].primitive.name}: " if place else ""
    return UnsupportedPrimitive(
        f"{name}what it is lowered to calls the host, which a program on an IPU cannot",
        location=place[1] if place else None,
        expected="a function whose results depend on its arguments alone",
        try_=f"{_OUTSIDE}; {_CHECKS}",
    )


def _other_platform(jaxpr: ClosedJaxpr, error: ValueError) -> Exception:
    """Return the named error for JAX's "was exported for platforms" other than this one."""
    place = compat.find_equation(jaxpr, lambda equation: equation.primitive.name == "call_exported")
    return UnsupportedPrimitive(
        str(error),
        location=place[1] if place else None,
        try_="jax.export.export(f, disabled_checks=[jax.export.DisabledSafetyCheck.platform()]), or call f itself",
    )


def _usable_donations(jaxpr: ClosedJaxpr, donated: Sequence[int]) -> tuple[int, ...]:
    """Return the donated arguments whose storage a result can take over; warn of the rest, as JAX does."""
    free = Counter((aval.shape, aval.dtype) for aval in jaxpr.out_avals)
    usable: list[int] = []
    useless: list[int] = []
    for position in donated:
        aval = jaxpr.in_avals[position]
        kind = (aval.shape, aval.dtype)
        (usable if free[kind] > 0 else useless).append(position)
        free[kind] -= 1
    if useless:
        shown = ", ".join(jaxpr.in_avals[position].str_short() for position in useless)
        warnings.warn(f"Some donated buffers were not usable: {shown}.", stacklevel=2)
    return tuple(sorted(usable))
