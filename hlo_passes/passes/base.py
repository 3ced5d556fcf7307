"""The base class of passes, and the registry that pipelines look names up in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self, get_type_hints

from hlo_passes.ir import Computation, Instruction, Module, map_regions
from hlo_passes.passes.errors import InvalidPassOption, UnknownPass, UnknownPassOption

PASSES: dict[str, type[Pass]] = {}
"""Every pass class by its name; filled when a class is defined."""

Option = bool | int | float | str


@dataclass(frozen=True)
class Pass:
    """A transformation of modules: a valid module in, a valid one with the same meaning out.

    Fields are options; in pipeline texts their names are written with dashes. A pass that has nothing to
    change returns the very module it was given, which is how a ``fix(...)`` group sees that it is done.

    Class attributes:
      name: the pass's name in pipelines; a class without one is abstract and stays out of ``PASSES``.
      removes: names of operations that no module has after it, so that they need no lowering.
    """

    name: ClassVar[str] = ""
    removes: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Register the class under its name."""
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__ and cls.name:
            PASSES[cls.name] = cls

    def run(self, module: Module) -> Module:
        """Return the transformed module."""
        raise NotImplementedError(f"{type(self).__name__}.run")

    @classmethod
    def from_texts(cls, options: Mapping[str, str]) -> Self:
        """Return the pass with options given as texts, such as ``{"max-elements": "64"}``.

        Raises:
          UnknownPassOption: an option is none of the fields.
          InvalidPassOption: a text does not read as the field's type.
        """
        hints = get_type_hints(cls)
        fields = {field.name.replace("_", "-"): field.name for field in dataclasses.fields(cls)}
        values: dict[str, Option] = {}
        for option, text in options.items():
            if option not in fields:
                raise UnknownPassOption(cls.name, option, fields)
            values[fields[option]] = _read(cls.name, option, hints[fields[option]], text)
        return cls(**values)

    def __str__(self) -> str:
        """Return the pipeline text: the name, and the options that differ from their defaults."""
        shown = [
            f"{field.name.replace('_', '-')}={_write(getattr(self, field.name))}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"{self.name}{{{','.join(shown)}}}" if shown else self.name


@dataclass(frozen=True)
class LocalPass(Pass):
    """A pass that looks at each computation alone, so that one it found nothing in is at rest until it changes."""

    def change(self, computation: Computation) -> Computation:
        """Return the transformed computation; itself when there is nothing to change."""
        raise NotImplementedError(f"{type(self).__name__}.change")

    def run(self, module: Module) -> Module:
        """Return the module with every computation transformed; itself when none is."""
        return map_module(module, self.change)


def find_pass(name: str) -> type[Pass]:
    """Return the pass class of that name.

    Raises:
      UnknownPass: there is none; the error suggests the closest name.
    """
    if name not in PASSES:
        raise UnknownPass(name, PASSES)
    return PASSES[name]


def _read(pass_name: str, option: str, type_: type, text: str) -> Option:
    if type_ is bool:
        if text not in ("true", "false"):
            raise InvalidPassOption(pass_name, option, "true or false", text)
        return text == "true"
    try:
        return type_(text)
    except ValueError:
        noun = {int: "an integer", float: "a number"}.get(type_, type_.__name__)
        raise InvalidPassOption(pass_name, option, noun, text) from None


def _write(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def map_module(module: Module, change: Callable[[Computation], Computation]) -> Module:
    """Return ``module`` with every computation changed; ``module`` itself when none is."""
    changed = tuple(change(computation) for computation in module.computations)
    if all(new is old for new, old in zip(changed, module.computations, strict=True)):
        return module
    return dataclasses.replace(module, computations=changed)


def map_control_regions(
    instruction: Instruction, change: Callable[[Computation], Computation]
) -> Instruction:
    """Return ``instruction`` with the bodies of its loop or branch changed; itself when nothing is.

    Regions that define a function of elements (the body of a reduction) and those of units (fusions) are left
    alone.
    """
    if not instruction.regions or not instruction.op.is_control or instruction.op.is_unit:
        return instruction
    return map_regions(instruction, change)
