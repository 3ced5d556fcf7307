"""The IR: types, modules, the base of operations; builder, printer, parser, verifier, interpreter."""

from hlo_passes.ir.builder import (
    Builder,
    agreed_computation,
    canonical_computation,
    canonical_names,
    map_computations,
    map_regions,
    placed,
    rebuild,
    relocated,
    replace_values,
    use_counts,
    users,
    value_names,
)
from hlo_passes.ir.interpreter import (
    Closure,
    Decisions,
    as_closure,
    as_computation,
    evaluate_computation,
    evaluate_instruction,
    evaluate_module,
    one_by_one,
)
from hlo_passes.ir.location import UNKNOWN, Location, agreed, plain_transforms, shared_scope
from hlo_passes.ir.module import Computation, Instruction, Module, Value
from hlo_passes.ir.op import ATTRIBUTES, OPS, FusionCategory, Op, attribute
from hlo_passes.ir.parser import parse_computation, parse_module
from hlo_passes.ir.partitioned import evaluate_partitioned
from hlo_passes.ir.printer import print_computation, print_instruction, print_module
from hlo_passes.ir.types import DTYPES, SMALL_FLOATS, TensorType, dtype_name
from hlo_passes.ir.verifier import verify, verify_computation

__all__ = [
    "ATTRIBUTES",
    "DTYPES",
    "OPS",
    "SMALL_FLOATS",
    "UNKNOWN",
    "Builder",
    "Closure",
    "Computation",
    "Decisions",
    "FusionCategory",
    "Instruction",
    "Location",
    "Module",
    "Op",
    "TensorType",
    "Value",
    "agreed",
    "agreed_computation",
    "as_closure",
    "as_computation",
    "attribute",
    "canonical_computation",
    "canonical_names",
    "dtype_name",
    "evaluate_computation",
    "evaluate_instruction",
    "evaluate_module",
    "evaluate_partitioned",
    "map_computations",
    "map_regions",
    "one_by_one",
    "parse_computation",
    "parse_module",
    "placed",
    "plain_transforms",
    "print_computation",
    "print_instruction",
    "print_module",
    "rebuild",
    "relocated",
    "replace_values",
    "shared_scope",
    "use_counts",
    "users",
    "value_names",
    "verify",
    "verify_computation",
]
