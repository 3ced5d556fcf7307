"""The stages between a function and a compiled program, each computed once, when it is first asked for.

stablehlo --import--> hlo --passes--> hlo-optimized --lowering--> graph --planning--> plans --compiler--> program (an
Executable)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import weakref
from collections.abc import Callable, Hashable, Sequence

from hlo_passes.errors import HloError
from hlo_passes.ir import (
    Instruction,
    Module,
    TensorType,
    print_module,
)
from hlo_passes.ops import HostTransfer, Print, Stop
from hlo_passes.passes import (
    LegalizeComplex,
    ScatterReductions,
    Serialize,
    default_pipeline,
    has_complex,
    split_positions,
    with_equal_decisions,
)
from hlo_passes.passes import Pipeline as PassPipeline
from ipuxla._jax_compat import ClosedJaxpr, Device, TreeDef
from ipuxla.cache import kept, kept_sharding
from ipuxla.choosing import choose, describe, shown
from ipuxla.collection import collection_paused
from ipuxla.described import Described
from ipuxla.errors import InvalidOption, UnknownStage, Unsupported
from ipuxla.fitting import FIRST_REPLANS, advice, beyond_memory, planned_to_fit
from ipuxla.frontend import _jax_compat as compat
from ipuxla.frontend._jax_compat import mlir
from ipuxla.frontend.candidates import find_candidates
from ipuxla.frontend.checks import Check
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.frontend.lower import to_stablehlo
from ipuxla.frontend.partition import Partitioned, partition, partition_said
from ipuxla.frontend.shardings import Shardings
from ipuxla.frontend.untrusted import read_apart
from ipuxla.hlo_engine import DECIDING, HloEngine
from ipuxla.internal import naming_internal_errors, options_text
from ipuxla.lowering import joining, lower_module, streams_of
from ipuxla.options import CompileOptions
from ipuxla.pinned_shardings import AUTO, PinnedShardings, read_pinned
from ipuxla.runner import Runner, on_tiles
from ipuxla.runtime import Compiled
from ipuxla.sharding import ArraySharding, Placement
from ipuxla.signature import HOLDERS, LeafType, Signature, element_name, narrow_name
from ipuxla.ways import Ways
from tiles.compiler import (
    Executable,
    out_of_memory,
    print_plans,
    require_pinned,
    shortage,
)
from tiles.errors import InvalidGraph, InvalidPlan, OutOfTileMemory
from tiles.graph import Graph, Stream, print_graph
from tiles.numerics.dtypes import name_of
from tiles.report import print_tile_code, profile
from tiles.target import System, Target

STAGES = ("stablehlo", "sharding", "partitioned", "hlo", "hlo-optimized", "graph", "plans", "program", "tile")


_pipelines: weakref.WeakKeyDictionary[ClosedJaxpr, dict[Hashable, Pipeline]] = weakref.WeakKeyDictionary()


class Pipeline:
    """One program on its way from StableHLO to an executable."""

    def __init__(
        self,
        stablehlo: mlir.Source,
        name: str | None = None,
        consumed: tuple[int, ...] = (),
        untrusted: bool = False,
        partitioned: Partitioned | None = None,
        checks: Sequence[Check] = (),
    ) -> None:
        """Start from StableHLO.

        Args:
          stablehlo: text, bytes or an MLIR module.
          name: replaces the module's own.
          consumed: arguments whose arrays a call deletes on the host. What the module itself marks as donated
            only lets the program reuse tile memory: its caller may not know of the marks.
          untrusted: whether text or bytes are read in a child process first.
          partitioned: one device's program, where ``stablehlo`` is that of many together.
          checks: functions of the host that its run-time checks call, which the module has no more than names of.
        """
        self.checks = tuple(checks)
        self.stablehlo, self._name, self._untrusted = stablehlo, name, untrusted
        self.partitioned = partitioned
        source, mesh = stablehlo, ()
        if partitioned is not None:
            source, mesh = partitioned.module, partitioned.placement.mesh
        with collection_paused():
            self.module: Module = import_stablehlo(source, name, untrusted, mesh)
            if partitioned is not None and partitioned.is_whole:
                differs = [sharding.axes(mesh) for sharding in partitioned.placement.inputs]
                self.module = with_equal_decisions(self.module, differs)
        self._consumed = consumed
        self.consumed = split_positions(self.module.entry_computation.parameter_types, consumed)
        self._optimized: dict[Hashable, Ways] = {}
        self._plannings: dict[Hashable, tuple[int, Executable]] = {}
        self._executables: dict[Hashable, Executable] = {}
        self._shared_out: dict[PinnedShardings, Pipeline] = {}
        self._choices: dict[Hashable, str] = {}
        self._runners: dict[CompileOptions, Runner] = {}

    def optimized(self, options: CompileOptions) -> Module:
        """Return the module after the HLO passes; of several ways, that which is compiled.

        Raises:
          Unsupported: passes of the user's own leave complex numbers.
          InternalError: a pass fails, or, where there are several ways, placing, planning or compiling one does.
        """
        is_one = len(self._ways(options)) == 1
        return self._way(options, 0 if is_one else self._planned(options)[0])

    def _way(self, options: CompileOptions, number: int) -> Module:
        """Return the module of one of the ways in which it is compiled until it fits; see ``optimized``."""
        ways = self._ways(options)
        with self._naming_internal_errors(options), collection_paused():
            return _without_complex(ways[number], options.passes)

    def _ways(self, options: CompileOptions) -> Ways:
        """Return the ways in which the module is compiled until it fits.

        Raises:
          InternalError: a pass fails.
        """
        self._require_devices(options)
        passes, shared = options.passes, self.module.num_devices > 1
        key = passes, options.system if shared else None, options.target.memory_bytes
        if key not in self._optimized:
            with self._naming_internal_errors(options), collection_paused():
                self._optimized[key] = Ways(
                    self.module, self._pipeline(options) if passes is None else passes
                )
        return self._optimized[key]

    def _pipeline(self, options: CompileOptions) -> PassPipeline:
        """Return the default passes for a machine: what its memory and its links ask for."""
        serialize = Serialize(options.target.memory_bytes)
        if self.module.num_devices == 1 or options.system is None:
            return default_pipeline(serialize)
        joins = joining(self.module, options.system)
        return default_pipeline(serialize, joins, ScatterReductions(joins.max_bytes + 1))

    def _require_devices(self, options: CompileOptions) -> None:
        """Raise InvalidOption unless the machine is one, or as many, as the program is written for."""
        needed, mesh = self.module.num_devices, self.module.mesh
        shown = ", ".join(f"{name}={size}" for name, size in mesh)
        if needed > options.num_ipus:
            several = "1 IPU" if options.num_ipus == 1 else f"{options.num_ipus:,} IPUs"
            raise InvalidOption(
                f"the program is written for {needed:,} devices ({shown}), and {options.machine_name} has {several}",
                expected=f"a system of {needed:,} IPUs or more",
                got=f"target={options.machine_name!r}",
                try_=f'target="{options.target.name.rstrip("*")} x {needed}", a smaller mesh, or no mesh and shardings',
            )
        if self._transfer is not None:
            raise Unsupported(
                f"{self._transfer.op.name} in a program of several IPUs: each of them would exchange its own part with "
                "the host",
                location=str(self._transfer.location) if self._transfer.location.is_known else None,
                expected="arguments and results only",
                try_="take the value as an argument, or return it",
            )

    @functools.cached_property
    def _transfer(self) -> Instruction | None:
        """The first instruction that exchanges values with the host, of a module for several devices."""
        return None if self.module.num_devices == 1 else self._to_host

    @functools.cached_property
    def _to_host(self) -> Instruction | None:
        """The first instruction that exchanges values with the host."""
        return next((i for i in self.module.walk() if isinstance(i.op, HostTransfer | Print | Stop)), None)

    # ---- sharing a program out that names no mesh

    def placed(self, options: CompileOptions) -> tuple[Pipeline, CompileOptions]:
        """Return the program as it runs on a machine: this one, or one device's of those that share it on a system.

        Raises:
          InvalidOption: a sharding is pinned that does not fit the program or the machine.
        """
        if options.num_ipus == 1 or self.module.num_devices > 1:
            self._require_unpinned(options)
            return self, options
        pinned = options.pinned_sharding or read_pinned(self._choice(options))
        return self._shared(pinned, options), _machine_of(pinned, options)

    def _require_unpinned(self, options: CompileOptions) -> None:
        """Raise InvalidOption where a sharding is pinned of a program that has its own, or for one IPU."""
        if options.pinned_sharding is not None and (
            self.module.num_devices > 1 or options.pinned_sharding.mesh
        ):
            own = ", ".join(f"{name}={size}" for name, size in self.module.mesh)
            raise InvalidOption(
                "shard: a sharding is pinned of a program that "
                + (f"names a mesh itself ({own})" if own else "is for one IPU"),
                expected=f"shard={AUTO!r}" if own else f"a system, or shard={AUTO!r}",
                got=f"target={options.machine_name!r}",
            )

    def _shared(self, pinned: PinnedShardings, options: CompileOptions) -> Pipeline:
        """Return one device's program of a sharding; this one for one IPU.

        Raises:
          InvalidOption: it does not fit the program or the machine.
          Unsupported: XLA does not partition it, or the program exchanges values with the host.
        """
        if not pinned.mesh:
            return self
        if pinned not in self._shared_out:
            inputs = pinned.of_arguments(
                [type_.shape for type_ in self.module.entry_computation.parameter_types]
            )
            size = math.prod(size for _, size in pinned.mesh)
            if size > options.num_ipus:
                raise InvalidOption(
                    f"shard: a mesh of {size:,} devices does not fit on {options.machine_name}",
                    expected=f"at most {options.num_ipus:,}",
                    got=pinned.lines()[0],
                )
            with collection_paused():
                partitioned = partition_said(
                    self._located, pinned.mesh, inputs, self._consumed, self._untrusted
                )
                made = Pipeline(
                    self.stablehlo, self._name, self._consumed, partitioned=partitioned, checks=self.checks
                )
            self._shared_out[pinned] = made
        return self._shared_out[pinned]

    def _choice(self, options: CompileOptions) -> str:
        """Return the sharding that a program gets on a system by itself, as text that pins it, with the runners-up."""
        key = (options.machine, options.passes, options.arithmetic == "float")
        if key not in self._choices:
            self._choices[key] = kept_sharding(
                self._located,
                options,
                functools.partial(self._says_sharding, options=options),
                functools.partial(self._chosen, options),
            )
        return self._choices[key]

    def _says_sharding(self, text: str, options: CompileOptions) -> bool:
        """Return whether a text pins a sharding that fits the program and the machine."""
        try:
            pinned = read_pinned(text)
            pinned.of_arguments([type_.shape for type_ in self.module.entry_computation.parameter_types])
        except InvalidOption:
            return False
        return math.prod(size for _, size in pinned.mesh) <= options.num_ipus

    def _chosen(self, options: CompileOptions) -> str:
        """Choose the sharding of a program on a system."""
        assert options.system is not None
        unchecked = dataclasses.replace(options, check_memory=False, plans=None)
        candidates = find_candidates(self._located, options.system, self.module.donated, self._untrusted)
        if self._is_for_one(options):
            candidates = [candidate for candidate in candidates if not candidate.mesh]

        def compiled(pinned: PinnedShardings) -> Executable:
            return self._shared(pinned, options).executable(_machine_of(pinned, unchecked))

        found = choose(candidates, options.target.memory_bytes, compiled)
        return describe(found, options.num_ipus, options.machine_name, self._argument_names)

    @property
    def _argument_names(self) -> list[str]:
        """The program's arguments, with their types."""
        entry = self.module.entry_computation
        return [f"{value.name.removeprefix('%')} {value.type}" for value in entry.parameters]

    def _is_for_one(self, options: CompileOptions) -> bool:
        """Whether a program runs on one IPU only: it exchanges values with the host, or replays a float run's decisions."""
        decides = options.arithmetic != "float" and any(
            isinstance(i.op, DECIDING) for i in self.module.walk()
        )
        return decides or self._to_host is not None

    def sharding_text(self, options: CompileOptions) -> str:
        """Return how the program is shared out, as text that pins it, with the runners-up as comments."""
        names = self._argument_names
        if options.num_ipus == 1 or self.module.num_devices > 1 or options.pinned_sharding is not None:
            own, _ = self.placed(options)
            mesh = own.module.mesh if own.module.num_devices > 1 else ()
            if own.partitioned is None or not mesh:
                return "\n".join(shown(PinnedShardings(mesh), names)) + "\n"
            sharded = tuple(enumerate(own.partitioned.placement.axes_of_inputs))
            return "\n".join(shown(PinnedShardings(mesh, sharded), names)) + "\n"
        return self._choice(options)

    @property
    def placement(self) -> Placement | None:
        """The devices that run it together, and how arguments and results are sharded; None for one."""
        if self.partitioned is not None:
            return self.partitioned.placement
        if self.module.num_devices == 1:
            return None
        entry = self.module.entry_computation
        inputs, outputs = entry.parameter_types, entry.result_types
        mesh, shapes = self.module.mesh, tuple(type_.shape for type_ in outputs)
        return Placement(mesh, tuple(map(_on_all, inputs)), tuple(map(_on_all, outputs)), shapes)

    def executable(self, options: CompileOptions) -> Executable:
        """Return the compiled program.

        Raises:
          OutOfTileMemory: it does not fit, and ``check_memory`` is set.
          InvalidPlan: a pinned plan does not fit its operation, or there is no such step.
          InternalError: placing, planning or compiling it fails.
        """
        self._require_devices(options)
        key = (options.machine, options.passes, options.check_memory, options.plans)
        unchecked = self._executables.get((options.machine, options.passes, False, options.plans))
        if unchecked is not None and unchecked.fits:
            return unchecked
        if key not in self._executables:
            with collection_paused():
                placement = None if self.placement is None else self.placement.to_data()
                if placement is not None and self.partitioned is not None:
                    placement["is_whole"] = self.partitioned.is_whole
                executable = kept(
                    self._located, self._name, options, lambda: self._compiled(options), placement
                )
            self._executables[key] = executable
        return self._executables[key]

    @functools.cached_property
    def _located(self) -> bytes:
        """The module with its source locations."""
        source = self.stablehlo if self.partitioned is None else self.partitioned.module
        if isinstance(source, str):
            return source.encode()
        return source if isinstance(source, bytes) else compat.module_bytecode(source)

    @property
    def _inputs(self) -> tuple[ArraySharding, ...]:
        """How the arguments of engines are sharded; none for one device."""
        return () if self.placement is None else self.words_placement(self.placement).inputs

    def _lowered(self, options: CompileOptions) -> Graph:
        return lower_module(self.optimized(options), options.machine, self._inputs)

    def _compiled(self, options: CompileOptions) -> Executable:
        plans = options.pinned_plans
        if options.check_memory and not plans:
            refused = self._beyond_memory(options)
            if refused is not None:
                refused.make_profile = profile
                raise refused
        number, executable = self._planned(options)
        if options.check_memory and not executable.fits:
            module = self._way(options, number)
            error = out_of_memory(executable, advice(module, executable, plans, self._inputs))
            error.make_profile = profile
            raise error
        return executable

    def _beyond_memory(self, options: CompileOptions) -> OutOfTileMemory | None:
        """Return the error of a program that has no room on any chip in any of its ways; see ``beyond_memory``."""
        refused = beyond_memory(self._way(options, 0), options.machine, self._inputs)
        last = len(self._ways(options)) - 1  # which holds least
        if refused is None or last == 0:
            return refused
        return beyond_memory(self._way(options, last), options.machine, self._inputs)

    def _planned(self, options: CompileOptions) -> tuple[int, Executable]:
        """Return which way of the program fits first, or comes closest, and the program.

        Raises:
          InvalidPlan: a pinned plan does not fit its operation, or there is no such step.
          InternalError: placing, planning or compiling it fails.
        """
        key = options.machine, options.passes, options.plans
        if key not in self._plannings:
            self._plannings[key] = self._first_to_fit(options)
        return self._plannings[key]

    def _first_to_fit(self, options: CompileOptions) -> tuple[int, Executable]:
        """Return the way that fits first: all but the last are tried briefly, then the last, then the others as long as may help."""
        found: list[tuple[int, Executable]] = []
        last = len(self._ways(options)) - 1
        briefly = [(number, FIRST_REPLANS) for number in range(last)]
        for number, replans in [*briefly, *((number, None) for number in (last, *range(last)))]:
            module, plans = self._way(options, number), options.pinned_plans
            try:
                with self._naming_internal_errors(options):
                    executable = planned_to_fit(module, options.machine, plans, self._inputs, replans)
                    require_pinned(executable, plans)
            except InvalidPlan:  # plans that are pinned may be those of another way
                if number == last and not found:
                    raise
                continue
            if executable.fits:
                return number, executable
            found.append((number, executable))
        return min(found, key=lambda one: shortage(one[1]).excess_bytes)

    def _naming_internal_errors(self, options: CompileOptions) -> contextlib.AbstractContextManager[None]:
        """Name what fails though no caller caused it, and write down what it takes to do it again."""
        callers: list[type[Exception]] = []
        callers += [HloError] if options.passes is not None else []
        callers += [InvalidPlan] if options.pinned_plans else []
        callers += [InvalidGraph] if self.module.num_devices > 1 else []  # what replicas would wait for
        return naming_internal_errors(
            lambda: {
                "module.mlir": self.stablehlo_text(debug_info=True),
                "module.hlo": print_module(self.module),
                "target.json": json.dumps(options.target.to_data(), indent=2) + "\n",
                "options.json": options_text(options),
            },
            *callers,
        )

    def stablehlo_text(self, debug_info: bool = False) -> str:
        """Return the module as text, as it was given where that is text."""
        source = self.stablehlo
        if isinstance(source, str):
            return source
        if isinstance(source, bytes):
            source = compat.read_stablehlo(read_apart(source, {}) if self._untrusted else source)
        return compat.module_text(source, debug_info)

    def partitioned_text(self) -> str:
        """Return one device's program, and how what it takes and returns is sharded.

        Raises:
          UnknownStage: the program is one device's as it stands.
        """
        if self.partitioned is None:
            raise UnknownStage(
                "the program is one device's as it stands",
                expected="a function with shardings over a mesh of several devices",
                got="'partitioned'",
                try_='as_text("stablehlo")',
            )
        placement = self.partitioned.placement
        lines = [f"// mesh: {', '.join(f'{name}={size}' for name, size in placement.mesh)}"]
        for role, shardings in (("argument", placement.inputs), ("result", placement.outputs)):
            lines += [f"// {role} {n}: {s.describe(placement.mesh)}" for n, s in enumerate(shardings)]
        return "\n".join([*lines, compat.module_text(self.partitioned.module)])

    def printers(self, options: CompileOptions) -> dict[str, Callable[[], str]]:
        """Return the printer of each stage, of the program as it runs on the machine."""

        def of(stage: Callable[[Pipeline, CompileOptions], str]) -> Callable[[], str]:
            return lambda: stage(*self.placed(options))

        return {
            "stablehlo": self.stablehlo_text,
            "sharding": lambda: self.sharding_text(options),
            "partitioned": of(lambda own, _: own.partitioned_text()),
            "hlo": of(lambda own, _: print_module(own.module)),
            "hlo-optimized": of(lambda own, chosen: print_module(own.optimized(chosen))),
            "graph": of(lambda own, chosen: print_graph(own._lowered(chosen))),
            "plans": of(lambda own, chosen: print_plans(own.executable(chosen))),
            "program": of(lambda own, chosen: own.executable(chosen).text()),
            "tile": of(lambda own, chosen: print_tile_code(own.executable(chosen))),
        }

    def words_placement(self, placement: Placement) -> Placement:
        """Return how the arrays that engines take and return are sharded: complex ones are two of their parts."""
        entry = self.module.entry_computation
        roles = entry.parameter_types, entry.result_types
        return placement.repeated(*([1 + type_.is_complex for type_ in role] for role in roles))

    def streams(self, options: CompileOptions) -> dict[str, Stream]:
        """Return the streams by which the program exchanges items with the host."""
        return streams_of(self._way(options, 0))

    def runner(self, options: CompileOptions) -> Runner:
        """Return what runs the program; for engine ``hlo`` it is compiled only when asked about costs."""
        if options not in self._runners:
            executable = functools.partial(self.executable, options)
            checks = {check.message: check.fail for check in self.checks}
            common = functools.partial(Runner, strict=options.strict, donated=self.consumed, checks=checks)
            if options.engine == HloEngine.name:
                runner = common(executable, self.hlo_engine(options), streams=self.streams(options))
            else:
                placement = None if self.placement is None else self.words_placement(self.placement)
                engine = on_tiles(
                    executable(), options.engine, options.arithmetic, options.strict, options.devices
                )
                runner = common(executable, engine, placement=placement)
            self._runners[options] = runner
        return self._runners[options]

    def hlo_engine(self, options: CompileOptions) -> HloEngine:
        """Return the engine that evaluates the optimised module."""
        return HloEngine(
            self.optimized(options),
            functools.partial(self.executable, options),
            arithmetic=options.arithmetic,
            streams=self.streams(options),
            placement=None if self.placement is None else self.words_placement(self.placement),
        )

    def compile(self, signature: Signature, options: CompileOptions) -> Compiled:
        """Return the program with its signature, as it runs on the machine.

        Raises:
          InvalidOption: a sharding is pinned that does not fit the program or the machine.
        """
        own, chosen = self.placed(options)
        if own.placement is not None:
            signature = dataclasses.replace(signature, placement=own.placement)
        return Compiled(signature, own.runner(chosen), self.printers(options))


def _machine_of(pinned: PinnedShardings, options: CompileOptions) -> CompileOptions:
    """Return options for the machine that a sharding takes: one chip of a system where it splits nothing."""
    return dataclasses.replace(options, shard=AUTO, system=options.system if pinned.mesh else None)


def jaxpr_pipeline(
    jaxpr: ClosedJaxpr, name: str, donated: tuple[int, ...] = (), shardings: Shardings | None = None
) -> Pipeline:
    """Return the pipeline of a closed jaxpr, the same one for as long as the jaxpr lives."""
    known = _pipelines.setdefault(jaxpr, {})
    key = (name, donated, shardings)
    if key not in known:
        checks: list[Check] = []
        alive: list[object] = []
        module = to_stablehlo(jaxpr, name, donated, shardings, checks, alive)
        partitioned = None if shardings is None else partition(module, shardings, donated)
        known[key] = Pipeline(module, consumed=donated, partitioned=partitioned, checks=checks)
    return known[key]


def jaxpr_signature(
    jaxpr: ClosedJaxpr,
    donated: tuple[int, ...] = (),
    in_tree: TreeDef | None = None,
    out_tree: TreeDef | None = None,
) -> Signature:
    """Return the signature of a closed jaxpr."""
    return Signature(
        inputs=tuple(map(_leaf_type, jaxpr.in_avals)),
        outputs=tuple(map(_leaf_type, jaxpr.out_avals)),
        names=tuple(compat.argument_names(jaxpr)),
        in_tree=in_tree,
        out_tree=out_tree,
        donated=donated,
    )


def module_signature(module: Module, partitioned: Partitioned | None = None) -> Signature:
    """Return the signature of a module: its arguments in order, a tuple of its results.

    Args:
      module: one device's program.
      partitioned: where that was made from: callers pass and get whole arrays.
    """
    entry = module.entry_computation
    shapes: list[Sequence[tuple[int, ...]]] = [
        [type_.shape for type_ in role] for role in (entry.parameter_types, entry.result_types)
    ]
    if partitioned is not None:
        shapes = [partitioned.argument_shapes, partitioned.placement.result_shapes]

    def leaves(
        types: Sequence[TensorType], declared: Sequence[str], shapes: Sequence[tuple[int, ...]]
    ) -> tuple[LeafType, ...]:
        own = [narrow_name(name) for name in declared] or [None] * len(types)
        return tuple(
            LeafType(shape, name or type_.np_dtype.name)
            for type_, name, shape in zip(types, own, shapes, strict=True)
        )

    return Signature(
        inputs=leaves(entry.parameter_types, module.declared[0], shapes[0]),
        outputs=leaves(entry.result_types, module.declared[1], shapes[1]),
        names=tuple(value.name.removeprefix("%") for value in entry.parameters),
    )


def _on_all(type_: TensorType) -> ArraySharding:
    """Return the sharding of arrays that every device holds whole."""
    return ArraySharding(((),) * type_.rank)


class Lowered(Described):
    """A function traced and lowered for arguments of certain types: read its stages, or compile it."""

    def __init__(self, pipeline: Pipeline, signature: Signature, options: CompileOptions) -> None:
        """Keep the pipeline with its signature and the choices made when decorating."""
        self._pipeline = pipeline
        self.signature = signature
        self.options = options

    def as_text(self, stage: str = "stablehlo", *, debug_info: bool = False) -> str:
        """Return a stage as text.

        Args:
          stage: "stablehlo", "sharding" (what ``shard=`` pins, and the runners-up), "partitioned", "hlo", "hlo-optimized",
            "graph" (operations before they are planned), "plans", "program", or "tile" (the code of every vertex type).
          debug_info: with source locations; the HLO stages and the program always have theirs.

        Raises:
          UnknownStage: there is no such stage.
        """
        printers = self._pipeline.printers(self.options)
        if stage not in printers:
            raise UnknownStage(f"there is no stage {stage!r}", expected=", ".join(STAGES), got=repr(stage))
        if stage == "stablehlo" and debug_info:
            return self._pipeline.stablehlo_text(debug_info=True)
        return printers[stage]()

    def compile(
        self,
        target: str | Target | System | None = None,
        *,
        engine: str | None = None,
        arithmetic: str | None = None,
        check_memory: bool | None = None,
        passes: str | None = None,
        strict: bool | None = None,
        plans: str | None = None,
        shard: str | None = None,
        devices: Sequence[Device] | None = None,
    ) -> Compiled:
        """Compile for a machine; what is not given is as decorated.

        Raises:
          InvalidOption: an unknown engine or arithmetic.
          UnknownTarget: no target has the given name.
          OutOfTileMemory: the program does not fit, and ``check_memory`` is set; the error carries the
            report.
          InvalidPlan: a pinned plan does not fit its operation, or there is no such step.
        """
        options = self.options.replace(
            target=target,
            engine=engine,
            arithmetic=arithmetic,
            check_memory=check_memory,
            passes=passes,
            strict=strict,
            plans=plans,
            shard=shard,
            devices=devices,
        )
        return self._pipeline.compile(self.signature, options)


def _leaf_type(aval: compat.ShapedArray) -> LeafType:
    generator = compat.key_generator(aval)
    name = "uint32" if generator else element_name(aval.dtype)
    if not generator and aval.dtype.kind != "c" and name not in HOLDERS:
        name_of(aval.dtype)
    return LeafType(tuple(aval.shape), name, generator)


def _without_complex(module: Module, passes: str | None) -> Module:
    """Return the module, which must have no complex numbers left: a machine has none."""
    if not has_complex(module):
        return module
    raise Unsupported(
        "the passes leave complex numbers, which no machine has",
        expected=f"a pass {LegalizeComplex.name!r}",
        got=f"passes={passes!r}",
        try_=f'passes="{LegalizeComplex.name},..." with the other passes behind it',
    )
