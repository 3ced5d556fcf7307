"""Jaxprs to StableHLO modules."""

# pyright: standard, reportPrivateImportUsage=false
# (private names are this module's purpose)

from __future__ import annotations

import inspect
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import callback as _callback
from jax._src import config as _config
from jax._src import core as _core
from jax._src import debugging as _debugging
from jax._src import effects as _effects
from jax._src import sharding_impls as _sharding_impls
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import partial_eval as _pe
from jax._src.lax import lax as _lax
from jax._src.lax import linalg as _linalg
from jax._src.lax import parallel as _parallel
from jax._src.lib.mlir.dialects import hlo as _hlo

from ipuxla.frontend._jax_compat.aliases import ClosedJaxpr
from ipuxla.frontend._jax_compat.clients import MAX_DEVICES, cpu_client
from ipuxla.frontend._jax_compat.tracing import argument_names, find_equation

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
        (_parallel.pbroadcast_p, _lower_pbroadcast),
        *_all_reduce_rules(),
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
            **_result_types(jaxpr),
        )
    if alive is not None:
        alive.append(lowered.keepalive)
    module = lowered.module
    with module.context:
        own_name = _mlir.sanitize_name(name).rstrip("_")
        module.operation.attributes["sym_name"] = _mlir.ir.StringAttr.get(own_name)
    return module


def _result_types(jaxpr: ClosedJaxpr) -> dict[str, Any]:
    """Return the types of results as JAX 0.11 wants them said; 0.10 reads them off the jaxpr."""
    wanted = inspect.signature(_mlir.lower_jaxpr_to_module).parameters
    return {"out_avals": jaxpr.out_avals} if "out_avals" in wanted else {}


def _lower_pbroadcast(context: Any, x: Any, *, axis_name: Any, source: int) -> Any:
    """Lower ``jax.lax.pbroadcast``, which JAX does for GPUs alone, by its rule for them. Hides axis contexts.

    Where only some axes are manual the rest is XLA's to partition, which refuses a broadcast: one of all is taken then.
    """
    around = context.module_context.axis_context
    is_partly_manual = getattr(around, "manual_axes", frozenset()) != frozenset(
        getattr(getattr(around, "mesh", None), "axis_names", ())
    )
    if is_partly_manual:
        return inline(context, lambda x: [jax.lax.all_gather(x, axis_name)[source]], x)
    return _parallel._pbroadcast_lowering(context, x, axis_name=axis_name, source=source)


# JAX's own lowering rule of all-reduces: its name in 0.11, else that in 0.10.
_all_reduce_lowering: Any = getattr(_parallel, "_all_reduce_lowering", None) or _parallel._allreduce_lowering


def _all_reduce_rules() -> Any:
    """Return lowering rules of all-reduces for one module: JAX's own, but a table of groups is made once.

    JAX writes all devices down, as lists, for each of them; of 64,000 that took longer than all else that it lowers.
    Hides axis contexts, channels, and the primitives of reductions along named axes.
    """
    tables: dict[Any, Any] = {}

    def rule(reduction: Any, of_dimensions: Callable[..., Any]) -> Callable[..., Any]:
        def lower(context: Any, x: Any, *, axes: Sequence[Any], axis_index_groups: Any = None) -> Any:
            around, (aval,) = context.module_context.axis_context, context.avals_in
            is_plain = axis_index_groups is None and axes and all(isinstance(axis, str) for axis in axes)
            if not is_plain or not isinstance(around, _sharding_impls.SPMDAxisContext):
                return _all_reduce_lowering(
                    reduction, of_dimensions, context, x, axes=axes, axis_index_groups=axis_index_groups
                )
            key = around.mesh, tuple(axes)
            if key not in tables:
                tables[key] = _groups_along(around.mesh, axes)
            reduced = _hlo.AllReduceOp(
                [x.type],
                [x],
                replica_groups=tables[key],
                channel_handle=_hlo.ChannelHandle.get(
                    _mlir.COLLECTIVE_CHANNEL_ID, _mlir.DEVICE_TO_DEVICE_TYPE
                ),
                use_global_device_ids=True,
            )
            scalar = aval.update(shape=(), sharding=jax.NamedSharding(aval.sharding.mesh, jax.P()))
            type_ = _mlir.aval_to_ir_type(context.module_context, scalar)
            block = reduced.regions[0].blocks.append(type_, type_)
            inside = context.replace(primitive=None, avals_in=[scalar] * 2, avals_out=[scalar])
            with _mlir.ir.InsertionPoint(block):
                _hlo.return_(inline(inside, lambda a, b: [reduction.bind(a, b)], *block.arguments))
            return [reduced.result]

        return lower

    total = rule(_lax.add_p, _lax.reduce_sum)
    return (
        (_parallel.psum_p, total),
        (_parallel.psum_invariant_p, total),
        (_parallel.pmax_p, rule(_lax.max_p, _lax.reduce_max)),
        (_parallel.pmin_p, rule(_lax.min_p, _lax.reduce_min)),
    )


def _groups_along(mesh: Any, axes: Sequence[str]) -> Any:
    """Return the groups of devices along axes of a mesh as an attribute, in JAX's order of groups and members.

    Of more devices than XLA partitions for, the axes are named: nobody but us reads such a module, and MLIR looks through
    a table for every operation that has it.
    """
    if mesh.size > MAX_DEVICES:
        named = zip(map(_quoted, mesh.axis_names), mesh.axis_sizes, strict=True)
        known = ", ".join(f"#stablehlo.mesh_axis<name = {name}, size = {size}>" for name, size in named)
        along = ", ".join(f"#stablehlo.axis_ref<name = {_quoted(axis)}>" for axis in axes)
        whole = f"#stablehlo.mesh<axes = [{known}]>"
        return _mlir.ir.Attribute.parse(
            f"#stablehlo.replica_group_mesh_axes<mesh = {whole}, axes = [{along}]>"
        )
    places = [list(mesh.axis_names).index(axis) for axis in axes]
    numbers = np.moveaxis(np.arange(mesh.size).reshape(mesh.axis_sizes), places, range(len(axes)))
    members = math.prod(numbers.shape[: len(axes)])
    table = np.ascontiguousarray(numbers.reshape(members, -1).T)
    return _mlir.ir.DenseIntElementsAttr.get(table)  # pyright: ignore


def _quoted(text: str) -> str:
    """Return a text as MLIR writes one."""
    plain = (chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\{byte:02X}" for byte in text.encode())
    return f'"{"".join(plain)}"'


def _devices_to_ask(jaxpr: ClosedJaxpr, count: int) -> tuple[Any, ...] | None:
    """Return devices for a mesh where a function says itself how it is partitioned, None where nobody asks for any.

    ``jax.custom_partitioning`` hands a mesh of devices to the user's function; nothing runs on them. They are those of
    the client that partitions.
    """
    found = find_equation(jaxpr, lambda equation: equation.primitive.name == CUSTOM_PARTITIONING)
    return None if found is None else tuple(cpu_client(count).devices())


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

        # What one device holds in a shard_map is an array like any other here: types alone, not along which axes it varies.
        plain = [_core.ShapedArray(aval.shape, aval.dtype) for aval in context.avals_in]
        return inline(context.replace(avals_in=plain), widened, *values)

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
