"""The engine: which of three ways a module runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import jax

from hlo_passes.ir import Module, evaluate_module, evaluate_partitioned, one_by_one
from hlo_passes.ops import Print, Stop
from hlo_passes.passes import uneven_collective
from ipuxla._jax_compat import Datum
from ipuxla.errors import Unsupported
from ipuxla.hlo_engine.replay import DECIDING, replaying
from ipuxla.hlo_engine.streaming import showing, streaming
from ipuxla.lowering.registry import where
from ipuxla.sharding import Placement
from tiles._jax_compat import jit
from tiles.compiler import DECIDE_ALIKE, EVEN, Executable
from tiles.engine import FLOAT, RING, Engine, Trace, check_items, quickly
from tiles.errors import InvalidGraph
from tiles.graph import Stream
from tiles.numerics.dtypes import name_of
from tiles.numerics.ring import ring

_Results = Sequence[jax.Array]


class HloEngine(Engine):
    """Evaluates a module operation by operation, of one device or of all at once; floats as words in the ring.

    What it runs is a function that JAX traces, but where the host takes part: programs that exchange items with it,
    print or may stop, and in the ring those with loops or branches, which repeat the decisions of a run with floats.
    """

    name = "hlo"
    is_traceable = True
    counts_steps = False

    def __init__(
        self,
        module: Module,
        executable: Callable[[], Executable],
        *,
        arithmetic: str = FLOAT,
        streams: Mapping[str, Stream] | None = None,
        placement: Placement | None = None,
    ) -> None:
        """Choose how the module runs; nothing is compiled yet.

        Args:
          module: what to run, of one device.
          executable: returns what the module was compiled to, whose run with floats decides in the ring.
          arithmetic: "float" or "ring".
          streams: those by which it exchanges items with the host.
          placement: how whole arrays are sharded over the devices that run it; None for one.

        Raises:
          InvalidGraph: some devices may never reach a collective that others wait at.
          Unsupported: in the ring, loops or branches of a program of many devices.
        """
        super().__init__(arithmetic)
        self._module = module
        self._executable = executable
        self._streams = dict(streams or {})
        self._placement = placement
        if placement is not None:
            _require_even(module, placement)
        operations = [instruction.op for instruction in module.walk()]
        self._stops = any(isinstance(op, Stop) for op in operations)
        self._prints = any(isinstance(op, Print) for op in operations)
        self._replays = arithmetic == RING and any(isinstance(op, DECIDING) for op in operations)
        if self._replays and placement is not None:
            raise Unsupported(
                "ring arithmetic repeats the decisions of loops and branches of a run with floats, and programs of "
                "many IPUs record none yet",
                try_='arithmetic="float", or loops whose trip count is known',
            )

    @property
    def needs_host(self) -> bool:
        """Whether a run is more than a function of arrays."""
        return self._exchanges or self._replays

    @property
    def _exchanges(self) -> bool:
        """Whether the module exchanges items with the host, prints, or may stop."""
        return bool(self._streams) or self._prints or self._stops

    @property
    def compiler_options(self) -> dict[str, bool | int] | None:
        """XLA's: quickly in the ring, as the fast engine's."""
        if self.arithmetic == FLOAT:
            return None
        instructions = self._module.walk()
        return quickly(sum(value.type.size_bytes for i in instructions for value in i.results), rounds=False)

    def run(
        self, *inputs: Datum, streams: Mapping[str, Datum] | None = None
    ) -> tuple[list[jax.Array], Trace]:
        """Run once; see ``Engine.run``. The trace has no supersteps."""
        results, received = self._run(*inputs, streams=streams)
        return list(results), Trace((), self.name, self.arithmetic, streams=received)

    @functools.cached_property
    def _run(self) -> Callable[..., tuple[_Results, Mapping[str, Datum]]]:
        module, executable, options = self._module, self._executable, self.compiler_options
        if self._exchanges:
            return streaming(module, self._streams, executable, self.arithmetic, options)
        if self._replays:
            function = replaying(module, executable, options)
        else:
            function = jit(self._traced, compiler_options=options)

        def run(
            *arrays: Datum, streams: Mapping[str, Datum] | None = None
        ) -> tuple[_Results, Mapping[str, Datum]]:
            check_items(module.name, {}, {}, streams)
            return function(*arrays), {}

        return run

    def trace(self, *inputs: Datum) -> _Results:
        """Return the outputs as a JAX-traceable function of the inputs.

        Raises:
          Unsupported: a program that may stop, or one that prints in the ring.
        """
        if self._stops and self._placement is None:
            raise Unsupported(
                "a program with run-time checks, which may stop, cannot be part of an outer jax.jit",
                try_="call it outside jax.jit",
            )
        if self._prints and self._placement is None and self.arithmetic == RING:
            raise Unsupported(
                'engine "hlo" does not print in the ring as part of an outer jax.jit',
                try_='call it outside jax.jit, or engine="fast"',
            )
        return self._traced(*inputs)

    @functools.cached_property
    def _traced(self) -> Callable[..., _Results]:
        module, placement = self._module, self._placement
        if placement is not None:
            evaluate = _on_all_devices(module, placement)
        elif self._prints:
            evaluate = showing(module)
        else:
            evaluate = functools.partial(evaluate_module, module, apply=one_by_one)
        if self.arithmetic == FLOAT:
            return evaluate
        return ring(evaluate, [name_of(type_.np_dtype) for type_ in module.entry_computation.parameter_types])


def _on_all_devices(module: Module, placement: Placement) -> Callable[..., list[Datum]]:
    """Return a function of whole arrays: the module evaluated on all devices, operation by operation."""

    def evaluate(*arrays: Datum) -> list[Datum]:
        on_devices = evaluate_partitioned(module, *placement.to_devices(arrays), apply=one_by_one)
        return placement.from_devices(on_devices)

    return evaluate


def _require_even(module: Module, placement: Placement) -> None:
    """Raise InvalidGraph at a collective that some devices of a group may never reach, as compiling for tiles does."""
    found = uneven_collective(module, [sharding.axes(placement.mesh) for sharding in placement.inputs])
    if found is None:
        return
    kind, line = found.decider.op.name.rpartition(".")[2], where(found.decider)
    raise InvalidGraph(
        f"{found.collective.op.name}: a replica may wait for one that does not take part: {kind}"
        f"{f' of {line}' if line else ''}, whose condition may differ along {', '.join(sorted(found.axes))}, "
        "decides whether it runs",
        location=where(found.collective) or None,
        expected=EVEN,
        try_=DECIDE_ALIKE,
    )
