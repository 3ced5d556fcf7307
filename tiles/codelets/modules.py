"""StableHLO modules as an executable carries them: made by ``jax.export``, called inside any JAX function.

A module is a portable artifact with one function. It says nothing of source files, so that the same function gives
the same bytes everywhere, and is made for one platform but calls nothing that depends on it: its operations compute, and
call nothing outside. Bytes that were not made in this process are first read in a child process (``admit``).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import core

from tiles import isolated
from tiles._jax_compat import (
    Atom,
    Datum,
    Function,
    export,
    func,
    jit,
    mlir,
    new_primitive,
    register_lowering,
    stablehlo,
)
from tiles.cached import cached_property
from tiles.errors import InvalidExecutable, Unsupported

PLATFORM = "cpu"
"""What modules are made for, wherever they are made."""

_NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i1": "bool"} | {
    f"{short}{n}": f"{name}{n}" for short, name in (("i", "int"), ("ui", "uint")) for n in (8, 16, 32, 64)
}

ALLOWED = frozenset(
    [
        f"stablehlo.{name}"
        for name in (
            "abs add after_all and atan2 batch_norm_grad batch_norm_inference batch_norm_training bitcast_convert broadcast"
            " broadcast_in_dim case cbrt ceil cholesky clamp compare complex composite concatenate constant convert convolution"
            " cosine count_leading_zeros divide dot dot_general dynamic_slice dynamic_update_slice einsum exponential"
            " exponential_minus_one fft floor gather get_dimension_size get_tuple_element if imag iota is_finite log"
            " log_plus_one logistic map maximum minimum multiply negate not optimization_barrier or pad popcnt power real"
            " reduce reduce_precision reduce_window remainder reshape return reverse rng_bit_generator round_nearest_afz"
            " round_nearest_even rsqrt scatter select select_and_scatter shift_left shift_right_arithmetic"
            " shift_right_logical sign sine slice sort sqrt subtract tan tanh torch_index_select transpose triangular_solve"
            " tuple unary_einsum while xor"
        ).split()
    ]
    + ["builtin.module", "func.func", "func.call", "func.return"]
)
"""What modules may consist of, and all operations of the dialect CHLO: nothing that calls Python, a library or a host."""

_admitted: set[str] = set()
"""Digests of modules that consist of such operations, and that jaxlib reads without harm."""

Parts = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and dtype of several arrays."""


@dataclass(frozen=True)
class Module:
    """A function as a StableHLO portable artifact."""

    blob: bytes

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the bytes."""
        return hashlib.sha256(self.blob).hexdigest()

    def __repr__(self) -> str:
        """Return what tells modules apart."""
        return self.digest

    def parse(self, context: Any) -> Any:
        """Return the MLIR module.

        Raises:
          InvalidExecutable: the bytes are no such artifact, or of a version that this JAX does not read.
        """
        try:
            return stablehlo.deserialize_portable_artifact(context, self.blob)
        except Exception as error:  # MLIR's bindings raise several kinds
            raise InvalidExecutable(f"an exported codelet's module is damaged: {error}") from error

    @cached_property
    def signature(self) -> tuple[Parts, Parts]:
        """Shape and dtype of every argument, and of every result."""
        with mlir.make_ir_context() as context:
            module = self.parse(context)  # lives as long as its functions are looked at
            main = _main(module)
            return _parts(main.type.inputs), _parts(main.type.results)

    def call(self, *arguments: Datum) -> list[Datum]:
        """Return the function's results, as part of whatever trace this is called in."""
        return module_p.bind(*arguments, module=self)


def _main(module: Any) -> Any:
    """Return the function of a parsed module."""
    table = mlir.ir.SymbolTable(module.operation)
    if "main" not in table:
        raise InvalidExecutable("an exported codelet's module has no function main")
    return table["main"]


def _parts(types: Sequence[Any]) -> Parts:
    shaped = [mlir.ir.RankedTensorType(t) for t in types]
    return tuple((tuple(t.shape), _NAMES.get(str(t.element_type), str(t.element_type))) for t in shaped)


def compiled(function: Function, arguments: Sequence[jax.ShapeDtypeStruct]) -> Module:
    """Return a function as a module for arguments of given shapes and dtypes."""
    with jax.enable_x64(True):
        made = export(jit(function, keep_unused=True), platforms=[PLATFORM])(*arguments)
    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, made.mlir_module_serialized)
        if foreign := _foreign(_operations(module.operation)):
            raise Unsupported(
                f"a codelet calls what an executable cannot carry: {', '.join(foreign)}",
                expected="operations of StableHLO that compute",
                try_="write it with jax.numpy and jax.lax, without callbacks, custom calls and LAPACK",
            )
        text: Any = module.operation.get_asm(enable_debug_info=False)
        made = Module(stablehlo.serialize_portable_artifact_str(text, stablehlo.get_current_version()))
    _admitted.add(made.digest)
    return made


def admit(modules: Iterable[Module]) -> None:
    """Let modules from anywhere in, after a child process read them.

    Raises:
      InvalidExecutable: one is damaged, ends the process that reads it, or does more than compute.
    """
    new = [module for module in modules if module.digest not in _admitted]
    if not new:
        return
    blobs = [base64.b64encode(module.blob).decode() for module in new]
    try:
        found = json.loads(isolated.call(f"{__name__}:operations_of", json.dumps(blobs).encode()))
    except ValueError as error:
        raise InvalidExecutable(f"an exported codelet's module is damaged: {error}") from error
    for module, names in zip(new, found, strict=True):
        if foreign := _foreign(names):
            raise InvalidExecutable(
                f"an exported codelet's module does more than compute: {', '.join(foreign)}",
                expected="operations of StableHLO that call nothing outside",
            )
        _admitted.add(module.digest)


def operations_of(data: bytes) -> bytes:
    """Return the names of the operations of modules, both as JSON: what ``admit`` runs in a child process.

    Raises:
      ValueError: one is no such module.
    """
    found: list[list[str]] = []
    for text in json.loads(data):
        with mlir.make_ir_context() as context:
            try:
                module = Module(base64.b64decode(text))
                found.append(sorted(_operations(module.parse(context).operation)))
                module.signature  # noqa: B018 (reads it)
            except InvalidExecutable as error:
                raise ValueError(str(error)) from error
    return json.dumps(found).encode()


def _operations(module: Any) -> set[str]:
    """Return the names of all operations of a parsed module."""
    found: set[str] = set()

    def keep(op: Any) -> Any:
        found.add(op.name)
        return mlir.ir.WalkResult.ADVANCE

    module.walk(keep)
    return found


def _foreign(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name not in ALLOWED and not name.startswith("chlo."))


module_p = new_primitive("tiles_module")
module_p.multiple_results = True


def _run(*arguments: Datum, module: Module) -> list[Datum]:
    return jit(module.call)(*arguments)


def _types(*_: Atom, module: Module) -> list[core.ShapedArray]:
    return [core.ShapedArray(shape, jnp.dtype(dtype)) for shape, dtype in module.signature[1]]


def _lower(context: Any, *arguments: Datum, module: Module) -> Any:
    """Put the module's functions into the program being lowered, and call the first."""
    program = context.module_context
    parsed = module.parse(program.context)
    results = _main(parsed).type.results
    name = mlir.merge_mlir_modules(program.module, "codelet", parsed, dst_symtab=program.symbol_table)
    return func.CallOp(results, mlir.ir.FlatSymbolRefAttr.get(name), list(arguments)).results


module_p.def_impl(_run)
module_p.def_abstract_eval(_types)
register_lowering(module_p, _lower)
