"""What a program of a record is, once compiled: its figure, and what it does for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import jax

import ipuxla.api
from ipuxla._jax_compat import Function, Tree
from ipuxla.calibration.figures import ALL, Figure, figure
from ipuxla.calibration.records import Record
from tiles.compiler import Executable, compile_graph
from tiles.graph import Graph
from tiles.target import Target


@dataclass(frozen=True)
class Work:
    """One run of a record's program.

    Args:
      figure: its cycles; a plain value if ``is_plain``.
      clock_hz: of the machine.
      built: what was compiled, in words.
      flops: floating-point operations of a run, as the publication counts them.
      size_bytes: bytes of a run, as the publication counts them.
      items: items of a run (images, queries, steps).
      is_plain: whether the figure is in the record's unit already.
    """

    figure: Figure
    clock_hz: float
    built: str
    flops: float | None = None
    size_bytes: float | None = None
    items: float | None = None
    is_plain: bool = False


class Counted(TypedDict, total=False):
    """What a publication counts of a run; ``Work`` says what each is."""

    flops: float | None
    size_bytes: float | None
    items: float | None
    is_plain: bool


Builder = Callable[[Record], Work]


def machine(record: Record, **changes: float) -> Target:
    """Return the machine of a record."""
    target = Target.named(record.target)
    return target.replace(**changes) if changes else target


def compiled_from_c(target: Target, **changes: float) -> Target:
    """Return the machine as code compiled from C++ uses it, with other changes: one access to memory an instruction.

    Such code packs no pointers, so it has none of the instructions that make several accesses, nor the loops that the
    element compiler schedules around them; what is fused is then counted instruction by instruction.
    """
    return target.replace(max_accesses_per_instruction=1, **changes)


def shaped(shape: Sequence[int], dtype: str) -> jax.ShapeDtypeStruct:
    """Return an array's shape and dtype: what a program is compiled for."""
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def compiled(function: Function, target: Target, *arguments: Tree, donated: Sequence[int] = ()) -> Executable:
    """Return a JAX function's program, as ``ipuxla.jit`` compiles it; it may need more memory than there is."""
    jitted = ipuxla.api.jit(function, target=target, check_memory=False, donate_argnums=tuple(donated))
    return jitted.lower(*arguments).compile().executable


def compiled_graph(graph: Graph) -> Executable:
    """Return a recorded graph's program."""
    return compile_graph(graph, check_memory=False)


def work_of(
    record: Record,
    executable: Executable,
    built: str,
    parts: Sequence[str] = (ALL,),
    **known: Unpack[Counted],
) -> Work:
    """Return the work of a program of which some parts count."""
    mean = "average" in record.what
    return Work(figure(executable, parts, mean=mean), executable.target.clock_hz, built, **known)
