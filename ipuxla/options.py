"""What a caller may choose about a compilation, checked once and hashable, so that it can key caches."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from ipuxla.errors import InvalidOption
from tiles.compiler import read_plans
from tiles.graph import Plan
from tiles.numerics.shared import fields_of
from tiles.target import Target, one_ipu

ENGINES = ("fast", "literal", "vertex", "hlo")
ARITHMETICS = ("float", "ring")
DEFAULT_TARGET = "gc200"


@dataclass(frozen=True, repr=False)
class CompileOptions:
    """Choices that reach the compiler and the engines.

    Args:
      target: the machine.
      engine: ``fast`` (whole arrays), ``literal`` (tile memory and exchange), ``vertex`` (one vertex at a
        time) or ``hlo`` (the optimised module, op by op: a witness from outside).
      arithmetic: ``float``, or ``ring`` where every float word becomes an unsigned integer of the same width,
        so that engines agree on every bit; float results come back as those integers.
      check_memory: refuse a program that does not fit into the tiles; False runs and marks it all the same.
        Engine ``hlo`` places nothing, so it refuses nothing.
      passes: text of the HLO pass pipeline, None for the default one.
      strict: whether the fast engine keeps the plan's order of reductions.
      plans: plans pinned to steps, as text: all or some of what ``Compiled.as_text("plans")`` gave.

    Raises:
      InvalidOption: an unknown engine or arithmetic.
      InvalidPlan: ``plans`` does not read as plans.
    """

    target: Target
    engine: str = "fast"
    arithmetic: str = "float"
    check_memory: bool = True
    passes: str | None = None
    strict: bool = True
    plans: str | None = None

    def __post_init__(self) -> None:
        """Check every choice."""
        require_one_of("engine", self.engine, ENGINES)
        require_one_of("arithmetic", self.arithmetic, ARITHMETICS)
        if not isinstance(self.target, Target):
            raise InvalidOption("target is no Target", expected="a name or a Target", got=repr(self.target))
        if not (self.plans is None or isinstance(self.plans, str)):
            raise InvalidOption(
                "plans is no text", expected='what as_text("plans") gives, or None', got=repr(self.plans)
            )
        self.pinned_plans  # noqa: B018 (reads, and so checks, them)
        if not (self.passes is None or isinstance(self.passes, str)):
            raise InvalidOption(
                "passes is no pipeline text",
                expected='text such as "cse,dce", or None',
                got=repr(self.passes),
            )

    @functools.cached_property
    def pinned_plans(self) -> dict[str, Plan]:
        """The plans pinned, by step."""
        return {} if self.plans is None else read_plans(self.plans)

    def __hash__(self) -> int:
        """Hash once: a target has many fields."""
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        choices = self.engine, self.arithmetic, self.check_memory, self.passes, self.strict, self.plans
        return hash((self.target, choices))

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: a hash holds in one process only."""
        return fields_of(self)

    def __repr__(self) -> str:
        """Name the target only: this is printed in every jaxpr that holds a call."""
        return f"CompileOptions({self.target.name!r}, {self.engine!r}, {self.arithmetic!r})"

    def replace(self, **changes: Any) -> CompileOptions:
        """Return these options with those changes that are not None.

        Raises:
          InvalidOption: an unknown engine or arithmetic.
          UnknownTarget: no target has the given name.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values.update((name, value) for name, value in changes.items() if value is not None)
        return make_options(**values)


def make_options(target: str | Target | None = None, **choices: Any) -> CompileOptions:
    """Return checked options; ``target`` may be a name, and is ``gc200`` unless given.

    Raises:
      InvalidOption: an unknown engine or arithmetic.
      UnknownTarget: no target has the given name.
      Unsupported: the name is that of a system of several IPUs.
    """
    if target is None or isinstance(target, str):
        target = one_ipu(target or DEFAULT_TARGET)
    return CompileOptions(target, **choices)


def require_one_of(option: str, value: object, legal: tuple[str, ...]) -> None:
    """Raise ``InvalidOption`` unless ``value`` is one of the legal ones."""
    if value not in legal:
        raise InvalidOption(
            f"{option}={value!r} is not an {option}", expected=", ".join(legal), got=repr(value)
        )
