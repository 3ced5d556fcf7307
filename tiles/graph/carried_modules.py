"""StableHLO modules as an executable carries them: made by ``jax.export``, called inside any JAX function.

A module is a portable artifact with one function. It says nothing of source files, so that the same function gives
the same bytes everywhere, and is made for one platform but calls nothing that depends on it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import core, export
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir.dialects import func, stablehlo

from tiles.errors import InvalidExecutable

PLATFORM = "cpu"
"""What modules are made for, wherever they are made."""

_NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i1": "bool"}
_NAMES |= {f"i{n}": f"int{n}" for n in (8, 16, 32, 64)} | {f"ui{n}": f"uint{n}" for n in (8, 16, 32, 64)}

Parts = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and dtype of several arrays."""


@dataclass(frozen=True)
class Module:
    """A function as a StableHLO portable artifact."""

    blob: bytes

    @functools.cached_property
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
            raise InvalidExecutable(f"a carried codelet's module is damaged: {error}") from error

    @functools.cached_property
    def signature(self) -> tuple[Parts, Parts]:
        """Shape and dtype of every argument, and of every result."""
        with mlir.make_ir_context() as context:
            module = self.parse(context)  # lives as long as its functions are looked at
            main = _main(module)
            return _parts(main.type.inputs), _parts(main.type.results)

    def call(self, *arguments: Any) -> list[Any]:
        """Return the function's results, as part of whatever trace this is called in."""
        return module_p.bind(*arguments, module=self)


def _main(module: Any) -> Any:
    """Return the function of a parsed module."""
    table = mlir.ir.SymbolTable(module.operation)
    if "main" not in table:
        raise InvalidExecutable("a carried codelet's module has no function main")
    return table["main"]


def _parts(types: Sequence[Any]) -> Parts:
    shaped = [mlir.ir.RankedTensorType(t) for t in types]
    return tuple((tuple(t.shape), _NAMES.get(str(t.element_type), str(t.element_type))) for t in shaped)


def compiled(function: Callable[..., Any], arguments: Sequence[jax.ShapeDtypeStruct]) -> Module:
    """Return a function as a module for arguments of given shapes and dtypes."""
    with jax.enable_x64(True):
        made = export.export(jax.jit(function, keep_unused=True), platforms=[PLATFORM])(*arguments)
    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, made.mlir_module_serialized)
        text: Any = module.operation.get_asm(enable_debug_info=False)
        return Module(stablehlo.serialize_portable_artifact_str(text, stablehlo.get_current_version()))


module_p = Primitive("tiles_module")
module_p.multiple_results = True


def _run(*arguments: Any, module: Module) -> list[Any]:
    return jax.jit(module.call)(*arguments)


def _types(*_: Any, module: Module) -> list[core.ShapedArray]:
    return [core.ShapedArray(shape, jnp.dtype(dtype)) for shape, dtype in module.signature[1]]


def _lower(context: Any, *arguments: Any, module: Module) -> Any:
    """Put the module's functions into the program being lowered, and call the first."""
    program = context.module_context
    parsed = module.parse(program.context)
    results = _main(parsed).type.results
    name = mlir.merge_mlir_modules(program.module, "codelet", parsed, dst_symtab=program.symbol_table)
    return func.CallOp(results, mlir.ir.FlatSymbolRefAttr.get(name), list(arguments)).results


module_p.def_impl(_run)
module_p.def_abstract_eval(_types)
mlir.register_lowering(module_p, _lower)
