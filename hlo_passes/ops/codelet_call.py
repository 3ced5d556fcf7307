"""Calls of a user's codelet: a function of one point of an index domain, at every point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jax import Array

from hlo_passes.errors import MalformedForm
from hlo_passes.ir.interpreter import Closure, as_closure
from hlo_passes.ir.module import Computation
from hlo_passes.ir.op import FusionCategory, Op
from hlo_passes.ir.types import TensorType
from hlo_passes.ops.point_form import COMBINERS, PointForm, at_points, read_by_points


@dataclass(frozen=True)
class CodeletCall(Op):
    """Run a user's codelet at every point of a domain. Spec: the region, which is the function of one point.

    Constraints: C1 the form is one, of as many operands; C2 the region takes what a point reads; C3 it gives what a
    point writes; C4 a combiner where indices are combined, and none elsewhere.

    Attributes:
      label: the codelet's name.
      form: see the module's text.
      combiner: see ``COMBINERS``, or "".
      cycles: of one point on one worker, as its author says; 0 where that is to be estimated.
      parts: how many parts every index is cut into, points first; none where that is planned.
      tiles: the first tile, and from one part's tile to the next, where ``parts`` says how many.
    """

    name: ClassVar[str] = "hlo.codelet"
    category: ClassVar[FusionCategory] = FusionCategory.OPAQUE
    is_control: ClassVar[bool] = False
    is_unit: ClassVar[bool] = True
    num_regions: ClassVar[int] = 1
    label: str
    form: str
    combiner: str = ""
    cycles: int = 0
    parts: tuple[int, ...] = ()
    tiles: tuple[int, ...] = ()

    @property
    def point_form(self) -> PointForm:
        """The form."""
        return PointForm.parse(self.form)

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the result types."""
        try:
            form = self.point_form
            sizes = form.sizes([t.shape for t in operands])
            taken = tuple(TensorType(form.slice_shape(k, t.shape), t.dtype) for k, t in enumerate(operands))
            expected = regions[0].parameter_types
            self.require(
                "C2",
                taken == expected,
                lambda: (
                    f"a point reads {', '.join(map(str, taken))}, the function takes {', '.join(map(str, expected))}"
                ),
            )
            given = regions[0].result_types
            self.require(
                "C3", len(given) == len(form.results), lambda: f"the function gives {len(given)} results"
            )
            results = tuple(
                TensorType(form.result_shape(k, sizes, t.shape), t.dtype) for k, t in enumerate(given)
            )
        except MalformedForm as error:
            self.require("C1", False, str(error))
            raise
        known = self.combiner in COMBINERS if form.combined else not self.combiner
        self.require("C4", known, lambda: f"combiner {self.combiner!r} for indices {form.combined}")
        return results

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Run the region at every point."""
        form = self.point_form
        sizes = form.sizes([x.shape for x in operands])
        return at_points(
            form, sizes, as_closure(regions[0]), read_by_points(form, sizes, operands), self.combiner
        )
