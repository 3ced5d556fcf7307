"""The decorator and its relatives: compile a JAX function or a StableHLO module for an IPU and call it.

``jit`` is where a user's call is resolved: arguments to leaves, leaves to a traced program that is
remembered, and on to ``ipu_call_p``, which JAX's transformations act on. Everything after that lives in
``stages`` and ``runtime``.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, NamedTuple, ParamSpec, TypedDict, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh

from ipuxla._jax_compat import (
    ClosedJaxpr,
    Datum,
    Device,
    Function,
    Tree,
    TreeDef,
    tree_flatten,
    tree_structure,
    tree_unflatten,
)
from ipuxla.errors import Unsupported, WrongArguments
from ipuxla.frontend import _jax_compat as compat
from ipuxla.frontend.lower import Arguments, Traced, as_wide_array, trace
from ipuxla.frontend.partition import partition_source
from ipuxla.frontend.primitive import ipu_call, set_backend
from ipuxla.frontend.shardings import Shardings, require_named, sharding_of_leaf, with_mesh_around
from ipuxla.options import Choices, CompileOptions, make_options
from ipuxla.runtime import Compiled, load
from ipuxla.stages import Lowered, Pipeline, jaxpr_pipeline, jaxpr_signature, module_signature
from tiles.target import System, Target

__all__ = ["Compiled", "JittedFunction", "Lowered", "Target", "compile_stablehlo", "jit", "load"]


_P = ParamSpec("_P")
_R = TypeVar("_R")


class ArgumentRoles(TypedDict, total=False):
    """Static and donated arguments, as ``jax.jit`` takes them."""

    static_argnums: int | Sequence[int] | None
    static_argnames: str | Sequence[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Sequence[str] | None


class JitOptions(Choices, ArgumentRoles, total=False):
    """What ``jit`` takes beside the function and the target."""

    keep_unused: bool
    inline: bool
    in_shardings: Tree
    out_shardings: Tree
    devices: Sequence[Device]


@overload
def jit(
    function: Callable[_P, _R], /, *, target: str | Target | System = "gc200", **options: Unpack[JitOptions]
) -> JittedFunction[_P, _R]: ...
@overload
def jit(
    function: None = None, /, *, target: str | Target | System = "gc200", **options: Unpack[JitOptions]
) -> Callable[[Callable[_P, _R]], JittedFunction[_P, _R]]: ...
def jit(
    function: Callable[_P, _R] | None = None,
    /,
    *,
    target: str | Target | System = "gc200",
    engine: str = "fast",
    arithmetic: str = "float",
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    keep_unused: bool = False,
    inline: bool = False,
    check_memory: bool = True,
    passes: str | None = None,
    strict: bool = True,
    plans: str | None = None,
    shard: str = "auto",
    in_shardings: Tree = None,
    out_shardings: Tree = None,
    devices: Sequence[Device] = (),
) -> JittedFunction[_P, _R] | Callable[[Callable[_P, _R]], JittedFunction[_P, _R]]:
    """Compile a JAX function for an IPU, and run it on an emulated one when called.

    Use it bare, with arguments, or as a function. The result is called like ``function``, and ``jax.grad``,
    ``jax.vmap``, ``jax.jvp``, ``jax.checkpoint`` and ``jax.jit`` act on it like on any JAX function, giving
    new programs for the IPU. Arguments with a 64-bit type keep it, NumPy values included, whatever
    ``jax_enable_x64`` says; Python numbers and what the function makes itself are as wide as that setting has
    it.

    Args:
      function: a function of pytrees of arrays that ``jax.jit`` could compile.
      target: the machine: a name (gc2, gc200, bow, c600; of a system: dss8440, "gc2 x 16"), the path of a data file, a
        ``Target`` or a ``System``.
      engine: "fast", "literal", "vertex", "tile" or "hlo"; see ``ipuxla.options.CompileOptions``.
      arithmetic: "float" or "ring"; in the ring float results are unsigned integers of the same width.
      static_argnums: as in ``jax.jit``.
      static_argnames: as in ``jax.jit``.
      donate_argnums: as in ``jax.jit``.
      donate_argnames: as in ``jax.jit``.
      keep_unused: accepted as ``jax.jit`` does; a program takes every argument, whether it reads it or not.
      inline: accepted as ``jax.jit`` does; a call inside another decorated function is part of its program in any case.
      check_memory: refuse a program that does not fit into the tiles' memory.
      passes: text of the HLO pass pipeline; None: the default one.
      strict: keep the plan's order of reductions in the fast engine.
      plans: plans pinned to steps, all or some of what ``as_text("plans")`` gave; the others are searched.
      shard: how a function that names no mesh is shared out on a system: "auto" prices shardings of its arguments over
        meshes of the IPUs, compiles the best few and takes the fastest that fits, one IPU where that is it; or a
        sharding pinned, what ``as_text("sharding")`` gave.
      in_shardings: as in ``jax.jit``: how arguments lie on the devices of a mesh, which is what a system's IPUs are.
      out_shardings: likewise of results; what is left out is XLA's choice.
      devices: JAX devices over which the fast engine spreads the IPUs of a sharded program that it emulates; their number
        divides that of the IPUs. Arrays that were put on devices must lie on these, as for ``jax.jit``.

    Raises:
      Unsupported: a sharding names no axes of a mesh.
      InvalidOption: an unknown engine or arithmetic, ``shard`` does not read as a sharding, or two axes of a mesh
        have one name.
      InvalidPlan: ``plans`` does not read as plans.
      UnknownTarget: no target has the given name.
    """
    del keep_unused, inline  # no program differs by them
    shardings = {"in_shardings": in_shardings, "out_shardings": out_shardings}
    for role, said in shardings.items():
        require_named(role, said)
    options = make_options(
        target,
        engine=engine,
        arithmetic=arithmetic,
        check_memory=check_memory,
        passes=passes,
        strict=strict,
        plans=plans,
        shard=shard,
        devices=devices,
    )
    argument_roles: ArgumentRoles = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
    }
    if function is None:
        return lambda function: JittedFunction(function, options, argument_roles, shardings)
    return JittedFunction(function, options, argument_roles, shardings)


def compile_stablehlo(
    source: str | bytes,
    target: str | Target | System = "gc200",
    *,
    engine: str = "fast",
    arithmetic: str = "float",
    check_memory: bool = True,
    passes: str | None = None,
    strict: bool = True,
    plans: str | None = None,
    shard: str = "auto",
    untrusted: bool = False,
    devices: Sequence[Device] = (),
) -> Compiled:
    """Compile a StableHLO module from any framework.

    A module with shardings over a mesh of several devices, as ``jax.export`` writes of a sharded function, is
    partitioned, as ``jit`` does; it needs a system with as many IPUs, takes whole arrays and returns whole arrays.

    Args:
      source: text, MLIR bytecode or a portable artifact.
      target: as for ``jit``, like the arguments after it.
      engine: how it runs.
      arithmetic: "float" or "ring".
      check_memory: refuse a program that does not fit.
      passes: text of the HLO pass pipeline.
      strict: keep the plan's order of reductions.
      plans: plans pinned to steps.
      shard: as for ``jit``; of a module that says no shardings.
      untrusted: read the source in a child process first (about two seconds): jaxlib's reader of MLIR does not survive
        every text and every byte, and what ends it then is an error here. For modules from anywhere.
      devices: as for ``jit``.

    Returns:
      A program called with the arguments of ``main`` in order; it returns a tuple of arrays.

    Raises:
      hlo_passes.errors.HloError: malformed StableHLO, or an operation or type outside the supported set.
      InvalidOption: the module is for more devices than the machine has, or for two meshes.
      Unsupported: XLA refuses to partition it.
      OutOfTileMemory: the program does not fit, and ``check_memory`` is set.
    """
    options = make_options(
        target,
        engine=engine,
        arithmetic=arithmetic,
        check_memory=check_memory,
        passes=passes,
        strict=strict,
        plans=plans,
        shard=shard,
        devices=devices,
    )
    partitioned = partition_source(source, untrusted)
    pipeline = Pipeline(source, untrusted=untrusted, partitioned=partitioned)
    return pipeline.compile(module_signature(pipeline.module, partitioned), options)


class _Entry(NamedTuple):
    """A traced call; ``widened`` are positions of leaves that JAX would narrow."""

    traced: Traced
    in_tree: TreeDef
    widened: tuple[int, ...]


class JittedFunction(Generic[_P, _R]):
    """A function compiled for an IPU, once per structure and types of its arguments. Made by ``jit``."""

    def __init__(
        self,
        function: Callable[_P, _R],
        options: CompileOptions,
        argument_roles: ArgumentRoles,
        shardings: dict[str, Tree] | None = None,
    ) -> None:
        """Wrap ``function``; ``argument_roles`` are ``jax.jit``'s static and donated arguments."""
        functools.update_wrapper(self, function)
        self.options = options
        self._function = function
        self._roles = argument_roles
        self._shardings = {role: said for role, said in (shardings or {}).items() if said is not None}
        self._jitted_in: dict[AbstractMesh | None, compat.JitWrapped] = {}
        self._statics = _StaticArguments(
            function, argument_roles.get("static_argnums"), argument_roles.get("static_argnames")
        )
        self._entries: dict[Hashable, _Entry] = {}
        self._name = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run on the emulated IPU, compiling first where the arguments' types are new.

        Refs (``jax.new_ref``) among the arguments, and those that the function closes over, are read before and written
        after. Under ``jax.disable_jit`` the function runs as it is written, operation by operation, on no IPU.

        Raises:
          Unsupported: in the ring, a Ref of floats.
          WrongArguments: a Ref twice.
        """
        if compat.is_jit_disabled():
            return self._function(*args, **kwargs)
        entry, leaves = self._resolve(args, kwargs)
        for position in entry.widened:
            leaves[position] = as_wide_array(leaves[position])
        traced = entry.traced
        arguments = [*traced.outer, *leaves]
        refs = [arguments[position] for position in traced.refs]
        self._require_own_values(refs)
        for position, ref in zip(traced.refs, refs, strict=True):
            arguments[position] = ref[...]
        outputs = ipu_call(
            traced.jaxpr, self.options, self._name, traced.donated, *arguments, shardings=traced.shardings
        )
        last_values = outputs[len(outputs) - len(refs) :]
        for ref, value in zip(refs, last_values, strict=True):
            ref[...] = value
        return tree_unflatten(traced.out_tree, outputs[: len(outputs) - len(refs)])

    def _require_own_values(self, refs: Sequence[jax.Ref]) -> None:
        """Raise where one value is in two places of the program, or what it leaves in a Ref is not of its type."""
        if len(set(map(id, refs))) < len(refs):
            raise WrongArguments(
                f"{self._name} is given one Ref twice, or closes over a Ref that it is given",
                expected="one way to each Ref",
            )
        if self.options.arithmetic == "ring" and any(jnp.issubdtype(ref.dtype, jnp.inexact) for ref in refs):
            raise Unsupported(
                f"{self._name} writes to a Ref of floats, whose words are integers in the ring",
                try_="pass the value as an argument and return the new one",
            )

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., _R]:
        """Bind as a method: the instance is the first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def lower(self, *args: Tree, **kwargs: Tree) -> Lowered:
        """Trace and lower for these arguments (arrays or ``jax.ShapeDtypeStruct``).

        The program takes a Ref's value in the Ref's place, and returns a pair: the result, and a tuple of the Refs' last
        values.

        Raises:
          WrongArguments: the function closes over values of an enclosing JAX transformation, or over Refs.
        """
        entry, _ = self._resolve(args, kwargs)
        traced = entry.traced
        if traced.outer:
            is_ref = isinstance(traced.outer[0], jax.Ref)
            what = "Refs" if is_ref else "values of an enclosing JAX transformation"
            raise WrongArguments(
                f"{self._name} closes over {len(traced.outer)} {what}",
                try_="pass them as arguments"
                + ("" if is_ref else ", or lower the function outside the transformation"),
            )
        pipeline = jaxpr_pipeline(traced.jaxpr, self._name, traced.donated, traced.shardings)
        out_tree = traced.out_tree
        if traced.refs:
            results = tree_unflatten(out_tree, [0] * out_tree.num_leaves)
            out_tree = tree_structure((results, (0,) * len(traced.refs)))
        return Lowered(
            pipeline, jaxpr_signature(traced.jaxpr, traced.donated, entry.in_tree, out_tree), self.options
        )

    def trace(self, *args: Tree, **kwargs: Tree) -> jax.stages.Traced:
        """Return the call as JAX traces it, a ``jax.stages.Traced``: one operation ``ipu_call`` of a jaxpr.

        What JAX lowers from it, and ``jax.export.export`` of this function, is the emulated program for the host;
        ``lower`` is the program for an IPU.
        """
        return jax.jit(self.__call__, **self._roles).trace(*args, **kwargs)

    def eval_shape(self, *args: Tree, **kwargs: Tree) -> Tree:
        """Return shapes and dtypes of the result, as ``jax.eval_shape`` does; nothing is compiled."""
        return self.trace(*args, **kwargs).out_info

    def clear_cache(self) -> None:
        """Forget what was traced and compiled."""
        self._entries.clear()
        for jitted in self._jitted_in.values():
            compat.clear_cache(jitted)

    def _resolve(self, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> tuple[_Entry, list[Datum]]:
        """Return the traced call for these arguments and their leaves."""
        static, dynamic = self._statics.split(args, kwargs)
        leaves, tree = tree_flatten(dynamic)
        key = (tree, static, tuple(map(_leaf_key, leaves)), compat.trace_context())
        try:
            entry = self._entries.get(key)
        except TypeError:  # a static argument that cannot be hashed, which tracing reports
            entry = None
        if entry is None:
            entry = self._trace(args, kwargs, tree, leaves)
            if not any(isinstance(value, Tracer) for value in entry.traced.outer):
                self._entries[key] = entry
        return entry, leaves

    @property
    def _jitted(self) -> compat.JitWrapped:
        """The function as ``jax.jit`` has it, with partition specs over the mesh around."""
        key = compat.context_mesh() if self._shardings else None
        if key not in self._jitted_in:
            said = {role: with_mesh_around(shardings) for role, shardings in self._shardings.items()}
            self._jitted_in[key] = jax.jit(self._function, **self._roles, **said)
        return self._jitted_in[key]

    def _trace(
        self, args: tuple[Tree, ...], kwargs: dict[str, Tree], tree: TreeDef, leaves: Sequence[Datum]
    ) -> _Entry:
        """Trace for these arguments, whose leaves, static ones left out, are in ``tree``."""
        join = functools.partial(self._statics.join, args, kwargs)
        traced = trace(self._jitted, leaves, lambda leaves: join(tree_unflatten(tree, leaves)))
        avals = traced.jaxpr.in_avals[len(traced.outer) :]
        widened = tuple(
            position
            for position, (leaf, aval) in enumerate(zip(leaves, avals, strict=True))
            if compat.is_64bit(aval.dtype) and not isinstance(leaf, jax.Array | jax.Ref)
        )
        return _Entry(traced, tree, widened)


def _leaf_key(leaf: Datum) -> Hashable:
    """Return what of a leaf decides how a function is traced."""
    if isinstance(leaf, jax.Array | jax.Ref):
        return leaf.aval, sharding_of_leaf(leaf)
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.shape, leaf.dtype
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    return type(leaf)


class _StaticArguments:
    """Which arguments are static: by position or by name, each implying the other as in ``jax.jit``."""

    def __init__(
        self, function: Function, argnums: int | Sequence[int] | None, argnames: str | Sequence[str] | None
    ) -> None:
        numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums or ())
        names = (argnames,) if isinstance(argnames, str) else tuple(argnames or ())
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        ordered = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if argnames is None:
            given = [ordered[n] for n in numbers if -len(ordered) <= n < len(ordered)]
            names = tuple(p.name for p in given if p.kind is p.POSITIONAL_OR_KEYWORD)
        elif argnums is None:
            numbers = tuple(n for n, p in enumerate(ordered) if p.name in names)
        self._numbers = frozenset(numbers)
        self._names = frozenset(names)

    def split(self, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> tuple[Hashable, Arguments]:
        """Return the static arguments as a hashable key, and the others."""
        if not self._numbers and not self._names:
            return None, (args, kwargs)
        numbers, names = self._static_numbers(args), self._names & kwargs.keys()
        static = (
            tuple((n, type(args[n]), args[n]) for n in sorted(numbers)),
            tuple((name, type(kwargs[name]), kwargs[name]) for name in sorted(names)),
        )
        positional = tuple(arg for n, arg in enumerate(args) if n not in numbers)
        return static, (positional, {name: value for name, value in kwargs.items() if name not in names})

    def join(self, args: tuple[Tree, ...], kwargs: dict[str, Tree], dynamic: Arguments) -> Arguments:
        """Return a call's arguments with the others than the static ones replaced."""
        numbers, others = self._static_numbers(args), iter(dynamic[0])
        return tuple(arg if n in numbers else next(others) for n, arg in enumerate(args)), {
            **kwargs,
            **dynamic[1],
        }

    def _static_numbers(self, args: tuple[Tree, ...]) -> set[int]:
        return {n % len(args) for n in self._numbers if -len(args) <= n < len(args)}


def _backend(
    jaxpr: ClosedJaxpr,
    options: CompileOptions,
    name: str,
    donated: tuple[int, ...],
    shardings: Shardings | None,
) -> Compiled:
    """Compile a call, for ``ipu_call_p``."""
    return jaxpr_pipeline(jaxpr, name, donated, shardings).compile(jaxpr_signature(jaxpr, donated), options)


set_backend(_backend)
