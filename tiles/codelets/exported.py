"""A user's codelet as an executable carries it: StableHLO modules for every cell it is called with, figures as data.

The codelets of this package are known to executables by name, version and parameters. Anyone else's code is not there
where a file is loaded, so compiling turns it into a ``ExportedCodelet``, which every engine then runs, here too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiles.codelets.calls import Cells, CompiledCall, run_cells
from tiles.codelets.cells import CellCall, cell_calls, cell_sizes, slice_extents
from tiles.codelets.modules import Module, Parts
from tiles.errors import InvalidExecutable, NoTileCode
from tiles.files import JsonObject
from tiles.graph.codelet import Cell, Codelet, Cycles, Extents, codelet_from_data
from tiles.graph.cycles import VertexCode
from tiles.graph.domain import OpForm, Plan
from tiles.numerics.dtypes import is_float, to_jax, unsigned_of
from tiles.target import Basis, Target


@dataclass(frozen=True)
class Figures:
    """What a vertex costs whose cell has extents ``sizes``: every cell of a plan, and one of the whole domain."""

    sizes: tuple[int, ...]
    cycles: int
    flops: int
    scratch_bytes: int


@dataclass(frozen=True, kw_only=True)
class ExportedCodelet(Codelet):
    """A codelet as compiled code and figures, for one planned operation.

    Args:
      name: the user's codelet's name.
      version: its version.
      shown: its vertex type in reports.
      vectorizes_windows: see ``Codelet``.
      is_pointwise: see ``Codelet``.
      may_cut: dimensions that plans may cut.
      overwrites: operands whose memory a result may take.
      state: bytes of vertex state.
      code: bytes of code on a tile.
      basis: what the cycles rest on.
      source: where they are from.
      figures: costs by the cell's extents.
      runs: codelet of this package whose tile code vertices run, None where they have none.
      no_code: why they have none.
      calls: compiled calls.
    """

    name: str  # pyright: ignore[reportIncompatibleVariableOverride]
    version: int  # pyright: ignore[reportIncompatibleVariableOverride]
    shown: str
    is_contraction: bool  # pyright: ignore[reportIncompatibleVariableOverride]
    vectorizes_windows: bool  # pyright: ignore[reportIncompatibleVariableOverride]
    is_pointwise: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]
    may_cut: tuple[int, ...]
    overwrites: tuple[int, ...]
    state: int
    code: int
    basis: Basis
    source: str
    figures: tuple[Figures, ...]
    calls: tuple[CompiledCall, ...]
    runs: Codelet | None = None
    no_code: str = ""

    @property
    def label(self) -> str:
        """Vertex type shown in reports."""
        return self.shown

    @property
    def names_floats(self) -> bool:
        """Whether the modules compute with floats: in the ring they are others."""
        return any(call.ring != call.floats for call in self.calls)

    def compute(self, cell: Cell, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Return the results of one cell; see ``Codelet.compute``."""
        limited = tuple(d for d, limit in enumerate(cell.limits) if limit is not None)
        origin = _vector(cell.origin)
        limits = [_vector([cell.limits[d] for d in limited])] if limited else []
        return run_cells(self.cells(cell.form, cell.sizes, limited), origin, *limits, *operands)

    def cells(self, form: OpForm, sizes: tuple[int, ...], limited: tuple[int, ...]) -> Cells:
        """Return the compiled calls of cells of one size.

        Raises:
          InvalidExecutable: there are none.
        """
        found = tuple(c for c in self.calls if (c.call.sizes, c.call.limited) == (tuple(sizes), limited))
        if not found:
            raise InvalidExecutable(f"the executable carries no module of {self.name} for cells of {sizes}")
        dtypes = [dtype for _, dtype in found[0].floats.signature[1]]
        shapes = [tuple(sizes[d] for d in index_map.dims) for index_map in form.results]
        return Cells(self.name, tuple(zip(shapes, dtypes, strict=True)), found)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the figures that came with the codelet."""
        return Cycles(self._figures(extents, "cycles"), self.basis, self.source)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of what it runs, under its own name; see ``Codelet.tile_code``."""
        if self.runs is None:
            raise NoTileCode(self.no_code)
        parts = self.runs.tile_code(extents, target)
        return tuple(dataclasses.replace(part, variant=part.variant.named(self.shown)) for part in parts)

    def variant_bytes(self, extents: Extents, target: Target) -> int:
        """Return the bytes of code that came with the codelet."""
        return self.code

    def variant_scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Return the temporary bytes that came with the codelet, those of its code among them."""
        return self.scratch_bytes(extents, target)

    def flops(self, extents: Extents) -> np.ndarray:
        """Return floating-point operations of a cell."""
        return self._figures(extents, "flops")

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Return temporary bytes of a vertex."""
        return self._figures(extents, "scratch_bytes")

    def _figures(self, extents: Extents, which: str) -> np.ndarray:
        shape, rank = extents.points.shape, len(extents.sizes)
        wanted = np.zeros((*shape, rank), np.int64)
        for d, sizes in enumerate(extents.sizes):
            wanted[..., d] = sizes
        known = np.array([f.sizes for f in self.figures], np.int64).reshape(len(self.figures), rank)
        same = (wanted[..., None, :] == known).all(axis=-1)
        if not same.any(axis=-1).all():
            raise InvalidExecutable(
                f"the executable has no {which} of codelet {self.name} for one of its cells"
            )
        return np.array([getattr(f, which) for f in self.figures], np.int64)[same.argmax(axis=-1)]

    def may_split(self, form: OpForm, d: int) -> bool:
        """Return whether a plan may cut dimension ``d``."""
        return d in self.may_cut

    def may_overwrite(self, k: int) -> bool:
        """Return whether a result may take the memory of operand k."""
        return k in self.overwrites

    def state_bytes(self, form: OpForm, target: Target) -> int:
        """Return bytes of vertex state."""
        return self.state

    def code_bytes(self, target: Target) -> int:
        """Return bytes of code on a tile."""
        return self.code

    def to_data(self) -> JsonObject:
        """Return name, version and all that is exported but the modules, which appear by digest."""
        exported = {
            "label": self.shown,
            "is_contraction": self.is_contraction,
            "vectorizes_windows": self.vectorizes_windows,
            "is_pointwise": self.is_pointwise,
            "may_cut": list(self.may_cut),
            "overwrites": list(self.overwrites),
            "state_bytes": self.state,
            "code_bytes": self.code,
            "basis": self.basis.value,
            "source": self.source,
            "figures": [[list(f.sizes), f.cycles, f.flops, f.scratch_bytes] for f in self.figures],
            "calls": [_call_data(c) for c in self.calls],
            "runs": None if self.runs is None else self.runs.to_data(),
            "no_code": self.no_code,
        }
        return {"name": self.name, "version": self.version, "carried": exported}

    def modules(self) -> dict[str, bytes]:
        """Return the modules' bytes by digest."""
        found = [m for c in self.calls for m in (c.floats, c.ring) if m is not None]
        return {module.digest: module.blob for module in found}

    def require(self, form: OpForm, plan: Plan) -> None:
        """Raise InvalidExecutable unless all calls that engines make of a planned operation are here, with figures."""
        missing = {*cell_calls(self, form, plan)} - {c.call for c in self.calls}
        if missing:
            sizes = sorted(call.sizes for call in missing)[0]
            raise InvalidExecutable(f"the executable carries no module of {self.name} for cells of {sizes}")
        if unknown := {*cell_sizes(plan), tuple(form.shape)} - {f.sizes for f in self.figures}:
            raise InvalidExecutable(
                f"the executable has no figures of codelet {self.name} for {min(unknown)}"
            )
        numbers = [self.state, self.code, *(n for f in self.figures for n in dataclasses.astuple(f)[1:])]
        if min(numbers) < 0:
            raise InvalidExecutable(f"codelet {self.name} has figures below 0")

    def prove(self, form: OpForm, operands: Sequence[str], results: Sequence[str]) -> None:
        """Raise InvalidExecutable unless every module takes slices and gives parts of these dtypes."""
        for made in self.calls:
            for module, in_ring in ((made.floats, False), (made.ring, True)):
                if module is None:
                    continue
                types = [
                    [exported_dtype(dtype, in_ring) for dtype in dtypes] for dtypes in (operands, results)
                ]
                expected = call_signature(form, made.call, *types)
                if (found := module.signature) != expected:
                    raise InvalidExecutable(
                        f"a module of codelet {self.name} maps {found[0]} to {found[1]}",
                        expected=f"{expected[0]} to {expected[1]}",
                    )


def _vector(numbers: Sequence[Any]) -> jax.Array:
    """Return numbers, of which some may be traced, as one array."""
    return jnp.stack([jnp.asarray(n, jnp.int32) for n in numbers]) if numbers else jnp.zeros((0,), jnp.int32)


def exported_dtype(dtype: str, in_ring: bool) -> str:
    """Return the name of the dtype in which a module takes elements of ``dtype``."""
    return jnp.dtype(unsigned_of(dtype) if in_ring and is_float(dtype) else to_jax(dtype)).name


def call_signature(
    form: OpForm, call: CellCall, operands: Sequence[str], results: Sequence[str]
) -> tuple[Parts, Parts]:
    """Return shape and dtype of every argument and result of a call; see ``CellCall``."""
    arguments = [((len(call.sizes),), "int32")]
    arguments += [((len(call.limited),), "int32")] if call.limited else []
    slices = (slice_extents(index_map, call.sizes) for index_map in form.operands)
    arguments += list(zip(slices, operands, strict=True))
    for k, (shape, dtype) in enumerate(arguments):
        arguments[k] = (*(n for n, varies in call.levels if varies[k]), *shape), dtype
    counts = tuple(n for n, _ in call.levels)
    shapes = ((*counts, *(call.sizes[d] for d in index_map.dims)) for index_map in form.results)
    return tuple(arguments), tuple(zip(shapes, results, strict=True))


def _call_data(made: CompiledCall) -> JsonObject:
    call = made.call
    return {
        "sizes": list(call.sizes),
        "limited": list(call.limited),
        "levels": [[count, [bool(v) for v in varies]] for count, varies in call.levels],
        "float": made.floats.digest,
        "ring": None if made.ring is None else made.ring.digest,
    }


def exported_from_data(data: JsonObject, modules: dict[str, Module]) -> ExportedCodelet:
    """Rebuild an exported codelet from plain data and the executable's modules by digest.

    Raises:
      InvalidExecutable: a module is missing.
    """
    exported = data["carried"]
    calls: list[CompiledCall] = []
    for c in exported["calls"]:
        levels = tuple((int(count), tuple(bool(v) for v in varies)) for count, varies in c["levels"])
        call = CellCall(tuple(map(int, c["sizes"])), tuple(map(int, c["limited"])), levels)
        wanted = [digest for digest in (c["float"], c["ring"]) if digest is not None]
        if c["float"] is None or any(digest not in modules for digest in wanted):
            raise InvalidExecutable(f"the executable lacks a module of codelet {data['name']}")
        calls.append(CompiledCall(call, modules[c["float"]], modules[c["ring"]] if c["ring"] else None))
    figures = tuple(
        Figures(tuple(map(int, sizes)), int(cycles), int(flops), int(scratch))
        for sizes, cycles, flops, scratch in exported["figures"]
    )
    return ExportedCodelet(
        name=str(data["name"]),
        version=int(data["version"]),
        shown=str(exported["label"]),
        is_contraction=bool(exported["is_contraction"]),
        vectorizes_windows=bool(exported["vectorizes_windows"]),
        is_pointwise=bool(exported.get("is_pointwise", False)),  # files of older versions say nothing
        may_cut=tuple(map(int, exported["may_cut"])),
        overwrites=tuple(map(int, exported["overwrites"])),
        state=int(exported["state_bytes"]),
        code=int(exported["code_bytes"]),
        basis=Basis(exported["basis"]),
        source=str(exported["source"]),
        figures=figures,
        calls=tuple(calls),
        runs=None if exported["runs"] is None else codelet_from_data(exported["runs"]),
        no_code=str(exported["no_code"]),
    )
