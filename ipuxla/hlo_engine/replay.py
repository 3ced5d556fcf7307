"""Engine ``hlo`` under ring arithmetic: loops and branches repeat the decisions of a run with floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from hlo_passes.ir import Decisions, Module, evaluate_module, one_by_one
from hlo_passes.ops import Case, If, While
from ipuxla._jax_compat import Datum
from tiles._jax_compat import jit
from tiles.compiler import Executable
from tiles.engine import record_decisions
from tiles.numerics import decisions
from tiles.numerics.dtypes import name_of
from tiles.numerics.ring import ring

DECIDING = (While, Case, If)
"""Operations that decide, while a program runs, what runs next."""


class Asked(Decisions):
    """What the interpreter asks, answered by what engines ask: a replay, or decisions as computed."""

    def __init__(self, answers: decisions.Decisions) -> None:
        """Keep who answers."""
        self.answers = answers

    @property
    def state(self) -> Datum:
        """What loops and branches carry."""
        return self.answers.state

    @state.setter
    def state(self, value: Datum) -> None:
        self.answers.state = value

    def take(self, decision: Datum) -> Datum:
        """Return the answer."""
        return self.answers.take(decision)


def replaying(
    module: Module,
    executable: Callable[[], Executable],
    compiler_options: dict[str, bool | int] | None = None,
) -> Callable[..., Sequence[jax.Array]]:
    """Return a function of arrays: the module in the ring, with the decisions of a run with floats.

    It runs on the host, twice; no JAX transformation may trace it. Every engine repeats the same decisions, those
    that ``tiles.engine.record_decisions`` keeps: in two runs with floats a borderline one could differ.

    Args:
      module: what to run.
      executable: returns what the module was compiled to.
      compiler_options: how XLA compiles it.
    """
    names = [name_of(type_.np_dtype) for type_ in module.entry_computation.parameter_types]

    def repeating(recorded: Datum, *arrays: Datum) -> tuple[Datum, ...]:
        return evaluate_module(module, *arrays, apply=one_by_one, decisions=Asked(decisions.Replay(recorded)))

    repeat = jit(ring(repeating, ["int32", *names]), compiler_options=compiler_options)

    def run(*arrays: Datum) -> Sequence[jax.Array]:
        return repeat(record_decisions(executable(), *arrays), *arrays)

    return run
