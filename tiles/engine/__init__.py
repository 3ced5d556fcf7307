"""Engines: an executable and inputs to outputs and a trace. The tiles are one JAX axis."""

from collections.abc import Sequence
from typing import Any

from tiles.compiler import Executable, check
from tiles.engine.agreement import certify
from tiles.engine.compilation import quickly
from tiles.engine.fast import FastEngine, record_decisions
from tiles.engine.interface import FLOAT, RING, Engine, MachineEngine, aborted, check_items, out_of_items
from tiles.engine.literal import LiteralEngine, VertexEngine
from tiles.engine.streams import FIRST_CAPACITY, Received, Streams, collect, in_order, stopped_with
from tiles.engine.tile import Coverage, TileEngine, coverage_of
from tiles.engine.trace import Print, Trace, lines_of
from tiles.errors import InvalidArguments, IpuError

ENGINES: dict[str, type[MachineEngine]] = {
    "fast": FastEngine,
    "literal": LiteralEngine,
    "vertex": VertexEngine,
    "tile": TileEngine,
}


def make_engine(
    executable: Executable,
    engine: str = "fast",
    arithmetic: str = FLOAT,
    strict: bool = True,
    devices: Sequence[Any] = (),
    resident_bytes: int | None = None,
) -> MachineEngine:
    """Return an engine for an executable.

    Args:
      executable: what to run.
      engine: "fast", "literal", "vertex" or "tile".
      arithmetic: "float" or "ring".
      strict: keep partials apart from their combination (fast engine).
      devices: of JAX, over which the fast engine spreads the replicas; by default one.
      resident_bytes: of replicas' emulated memories, up to which the host holds them (engines with tile memory); more
        lie in files, and are run in waves. By default half of the host's memory.

    Raises:
      InvalidArguments: devices that do not divide the replicas, or an option that is another engine's.
      IpuError: no such engine or arithmetic.
      InvalidExecutable: the executable is inconsistent; see ``tiles.compiler.check``.
    """
    if engine not in ENGINES:
        raise IpuError(f"there is no engine {engine!r}", expected=", ".join(ENGINES), got=engine)
    if arithmetic not in (FLOAT, RING):
        raise IpuError(f"there is no arithmetic {arithmetic!r}", expected="float, ring", got=arithmetic)
    check(executable)
    if devices and not ENGINES[engine].spreads_replicas:
        able = ", ".join(name for name, kind in ENGINES.items() if kind.spreads_replicas)
        raise InvalidArguments(f"engine {engine!r} does not spread replicas over devices", expected=able)
    if resident_bytes is not None and engine == "fast":
        raise InvalidArguments("engine 'fast' has no tile memory to hold", expected="literal, vertex, tile")
    fast = {"strict": strict, "devices": devices}
    options: dict[str, Any] = fast if engine == "fast" else {"resident_bytes": resident_bytes}
    return ENGINES[engine](executable, arithmetic, **options)


__all__ = [
    "ENGINES",
    "FIRST_CAPACITY",
    "FLOAT",
    "RING",
    "Coverage",
    "Engine",
    "FastEngine",
    "LiteralEngine",
    "MachineEngine",
    "Print",
    "Received",
    "Streams",
    "TileEngine",
    "Trace",
    "VertexEngine",
    "aborted",
    "certify",
    "check_items",
    "collect",
    "coverage_of",
    "in_order",
    "lines_of",
    "make_engine",
    "out_of_items",
    "quickly",
    "record_decisions",
    "stopped_with",
]
