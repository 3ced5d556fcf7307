"""The base class of operations: attributes, a type rule, a meaning and a fusion category.

An operation is a frozen dataclass whose fields are its attributes; printing and parsing read the fields. A
field named ``type`` or ``types`` holds the result types of an operation whose results cannot be inferred, and
is printed only as those.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np

from hlo_passes.errors import ConstraintViolation
from hlo_passes.ir.types import TensorType

if TYPE_CHECKING:
    from jax import Array

    from hlo_passes.ir.interpreter import Closure, Decisions
    from hlo_passes.ir.module import Computation

_T = TypeVar("_T")

OPS: dict[str, type[Op]] = {}
"""Every operation class by its name; filled when a class is defined."""

ATTRIBUTES: dict[str, type] = {}
"""Every structured attribute class by its name; filled by ``attribute``."""


class Structured(Protocol):
    """A dataclass: an operation, or a structured attribute."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


Attribute: TypeAlias = (
    bool | int | float | str | tuple["Attribute", ...] | TensorType | np.ndarray | Structured | None
)
"""What an attribute of an operation may be: what the module's text can say."""


class FusionCategory(enum.Enum):
    """How an operation may take part in a fusion.

    INJECTIVE: each result element reads a fixed number of operand elements (elementwise, broadcast, slice,
      ...).
    REDUCTION: a result element folds many operand elements; injective producers may fuse into it.
    OUT_FUSABLE: heavy, with a plan of its own; injective consumers may fuse behind it (dot_general).
    OPAQUE: never fused.
    """

    INJECTIVE = "injective"
    REDUCTION = "reduction"
    OUT_FUSABLE = "out_fusable"
    OPAQUE = "opaque"


def attribute(cls: type[_T]) -> type[_T]:
    """Register a frozen dataclass as a structured attribute, printed ``#Name<field = value, ...>``."""
    ATTRIBUTES[cls.__name__] = cls
    return cls


@dataclass(frozen=True)
class Op:
    """One operation: its attributes are the dataclass fields, its meaning is ``evaluate``.

    Class attributes:
      name: full name, ``stablehlo.add``; a class without one is abstract and stays out of ``OPS``.
      category: how it may fuse.
      is_control: its evaluation only runs its regions or callees, so an interpreter that intercepts
        evaluation looks inside instead of treating it as one function.
      has_effect: it exchanges something with the host or with other devices, once whenever control reaches it, in
        the order of the program. Passes neither drop, repeat nor reorder it.
      is_transfer: it exchanges with the host: its meaning is ``exchange``, and passes do not merge it either.
      is_collective: it exchanges with other devices that run the same program.
      is_unit: its regions are what it means, which passes leave alone.
      replaces_elements: its result is its first operand, some elements of which others replace.
      num_regions: how many regions an instruction of it carries; None where any number is possible.
    """

    name: ClassVar[str] = ""
    category: ClassVar[FusionCategory] = FusionCategory.OPAQUE
    is_control: ClassVar[bool] = False
    has_effect: ClassVar[bool] = False
    is_transfer: ClassVar[bool] = False
    is_collective: ClassVar[bool] = False
    is_unit: ClassVar[bool] = False
    replaces_elements: ClassVar[bool] = False
    num_regions: ClassVar[int | None] = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register a class that has a name of its own."""
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__ and cls.name:
            OPS[cls.name] = cls

    @property
    def callees(self) -> tuple[str, ...]:
        """Names of the module's computations that this operation calls."""
        return ()

    @property
    def is_apart(self) -> bool:
        """Whether XLA:CPU computes it rightly only alone, as where elements must lie in the order of their dimensions."""
        return False

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the result types.

        Raises:
          ConstraintViolation: a constraint of the specification does not hold.
        """
        raise NotImplementedError(f"{type(self).__name__}.infer")

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Return the results' values; built of JAX functions only, so JAX can trace it.

        Callers hold ``jax.enable_x64(True)`` so that 64-bit types keep their width.
        """
        raise NotImplementedError(f"{type(self).__name__}.evaluate")

    def exchange(self, host: Decisions, *operands: Array) -> tuple[Array, ...]:
        """Return the results' values after exchanging with the host; of transfers."""
        raise NotImplementedError(f"{type(self).__name__}.exchange")

    def require(self, tag: str, condition: bool, message: str | Callable[[], str]) -> None:
        """Raise ``ConstraintViolation`` with the specification's ``tag`` unless ``condition`` holds.

        Args:
          tag: constraint tag in the StableHLO specification (``C1``), or ``I1`` for a constraint on an
            input's kind.
          condition: what must hold.
          message: what was expected and got; a function when building the text is not free.
        """
        if not condition:
            raise ConstraintViolation(self.name, tag, message if isinstance(message, str) else message())

    def require_arity(self, operands: Sequence[TensorType], expected: int) -> None:
        """Raise ``ConstraintViolation`` tagged ``arity`` unless there are ``expected`` operands."""
        if len(operands) != expected:
            self.require("arity", False, f"expected {expected} operands, got {len(operands)}")


@functools.cache
def attribute_fields(cls: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of an operation or structured attribute that its text shows, in order."""
    hidden = ("type", "types") if issubclass(cls, Op) else ()
    return tuple(field for field in dataclasses.fields(cls) if field.name not in hidden)


@functools.cache
def result_type_field(cls: type[Op]) -> str | None:
    """Return ``type`` or ``types`` when the operation stores its result types, else None."""
    names = {field.name for field in dataclasses.fields(cls)}
    return next((name for name in ("type", "types") if name in names), None)
