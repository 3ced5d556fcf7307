"""What a caller may choose about a compilation, checked once and hashable, so that it can key caches."""

# pyright: standard
# (it checks what callers may have given of other types)

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from ipuxla._jax_compat import Device
from ipuxla.errors import InvalidOption
from ipuxla.pinned_shardings import AUTO, PinnedShardings, read_pinned
from tiles.compiler import read_plans
from tiles.graph import Plan
from tiles.numerics.shared import fields_of
from tiles.target import System, Target, find_machine

ENGINES = ("fast", "literal", "vertex", "tile", "hlo")
ARITHMETICS = ("float", "ring")
DEFAULT_TARGET = "gc200"


class EngineChoices(TypedDict, total=False):
    """How a program runs; ``CompileOptions`` says what each choice is."""

    engine: str
    arithmetic: str
    check_memory: bool


class TargetChoices(EngineChoices, total=False):
    """How and on what."""

    target: str | Target | System


class Choices(EngineChoices, total=False):
    """What may be chosen beside the target."""

    passes: str | None
    strict: bool
    plans: str | None
    shard: str


class _Changes(TypedDict, total=False):
    """The same, None where nothing changes."""

    target: str | Target | System | None
    engine: str | None
    arithmetic: str | None
    check_memory: bool | None
    passes: str | None
    strict: bool | None
    plans: str | None
    shard: str | None
    devices: Sequence[Device] | None


@dataclass(frozen=True, repr=False)
class CompileOptions:
    """Choices that reach the compiler and the engines.

    Args:
      target: the machine.
      engine: ``fast`` (whole arrays), ``literal`` (tile memory and exchange), ``vertex`` (one vertex at a
        time), ``tile`` (vertices by their tile code, where there is code) or ``hlo`` (the optimised module, op by op: a witness from outside).
      arithmetic: ``float``, or ``ring`` where every float word becomes an unsigned integer of the same width,
        so that engines agree on every bit; float results come back as those integers.
      check_memory: refuse a program that does not fit into the tiles; False runs and marks it all the same.
        Engine ``hlo`` places nothing, so it refuses nothing.
      passes: text of the HLO pass pipeline, None for the default one.
      strict: whether the fast engine keeps the plan's order of reductions.
      plans: plans pinned to steps, as text: all or some of what ``Compiled.as_text("plans")`` gave.
      system: the IPUs of which ``target`` is one, and their links; None: there is only that one.
      shard: how a program that names no mesh is shared out on a system: "auto", or a sharding pinned as text, what
        ``Compiled.as_text("sharding")`` gave.
      devices: platform and id of the JAX devices over which the fast engine spreads the IPUs that it emulates; none: the
        default one.

    Raises:
      InvalidOption: an unknown engine or arithmetic, ``shard`` does not read as a sharding, or devices for an engine
        that is not spread.
      InvalidPlan: ``plans`` does not read as plans.
    """

    target: Target
    engine: str = "fast"
    arithmetic: str = "float"
    check_memory: bool = True
    passes: str | None = None
    strict: bool = True
    plans: str | None = None
    system: System | None = None
    shard: str = AUTO
    devices: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        """Check every choice."""
        require_one_of("engine", self.engine, ENGINES)
        require_one_of("arithmetic", self.arithmetic, ARITHMETICS)
        if not isinstance(self.target, Target):
            raise InvalidOption(
                "target is no Target", expected="a name, a Target or a System", got=repr(self.target)
            )
        if not (self.plans is None or isinstance(self.plans, str)):
            raise InvalidOption(
                "plans is no text", expected='what as_text("plans") gives, or None', got=repr(self.plans)
            )
        self.pinned_plans  # noqa: B018 (reads, and so checks, them)
        if not isinstance(self.shard, str):
            raise InvalidOption(
                "shard is no text",
                expected='"auto", or what as_text("sharding") gives',
                got=repr(self.shard)[:80],
            )
        self.pinned_sharding  # noqa: B018
        if self.devices and self.engine != "fast":
            raise InvalidOption(
                f"engine {self.engine!r} does not spread IPUs over devices",
                expected='engine="fast", or no devices',
            )
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

    @functools.cached_property
    def pinned_sharding(self) -> PinnedShardings | None:
        """The sharding pinned; None where it is chosen."""
        return None if self.shard == AUTO else read_pinned(self.shard)

    def __hash__(self) -> int:
        """Hash once: a target has many fields."""
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        choices = self.engine, self.arithmetic, self.check_memory, self.passes, self.strict, self.plans
        return hash((self.target, self.system, self.shard, self.devices, choices))

    def __getstate__(self) -> dict[str, object]:
        """Return the fields: a hash holds in one process only."""
        return fields_of(self)

    def __repr__(self) -> str:
        """Name the target only: this is printed in every jaxpr that holds a call."""
        return f"CompileOptions({self.machine_name!r}, {self.engine!r}, {self.arithmetic!r})"

    @property
    def machine_name(self) -> str:
        """The name of the target, or of the system that it is part of."""
        return self.machine.name

    @property
    def machine(self) -> Target | System:
        """The system, or the one IPU."""
        return self.target if self.system is None else self.system

    @property
    def num_ipus(self) -> int:
        """How many IPUs there are."""
        return 1 if self.system is None else self.system.num_ipus

    def replace(self, **changes: Unpack[_Changes]) -> CompileOptions:
        """Return these options with those changes that are not None.

        Raises:
          InvalidOption: an unknown engine or arithmetic.
          UnknownTarget: no target has the given name.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values.update((name, value) for name, value in changes.items() if value is not None)
        if changes.get("target") is not None:
            values["system"] = None
        return make_options(**values)


def make_options(
    target: str | Target | System | None = None,
    *,
    system: System | None = None,
    devices: Sequence[Device | tuple[str, int]] = (),
    **choices: Unpack[Choices],
) -> CompileOptions:
    """Return checked options; ``target`` may be a name, also of a system, and is ``gc200`` unless given.

    Raises:
      InvalidOption: an unknown engine or arithmetic.
      UnknownTarget: no target or system has the given name.
    """
    if target is None or isinstance(target, str):
        target = find_machine(target or DEFAULT_TARGET)
    if isinstance(target, System):
        system = target if target.num_ipus > 1 else None
        target = target.chip
    return CompileOptions(target, system=system, devices=named_devices(devices), **choices)


def named_devices(devices: Sequence[Device | tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return platform and id of JAX devices; those that are named so stay.

    Raises:
      InvalidOption: something else.
    """
    try:
        each = tuple(devices)
        return tuple(d if isinstance(d, tuple) else (str(d.platform), int(d.id)) for d in each)
    except (AttributeError, TypeError):
        raise InvalidOption(
            "devices are no JAX devices", expected="a list as jax.devices() returns", got=repr(devices)[:80]
        ) from None


def require_one_of(option: str, value: object, legal: tuple[str, ...]) -> None:
    """Raise ``InvalidOption`` unless ``value`` is one of the legal ones."""
    if value not in legal:
        raise InvalidOption(
            f"{option}={value!r} is not an {option}", expected=", ".join(legal), got=repr(value)
        )
