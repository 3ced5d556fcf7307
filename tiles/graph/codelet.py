"""The codelet interface: what one vertex computes, how long it takes, what memory it needs.

A codelet is a frozen dataclass whose fields are its static parameters. Executables know this package's own by
``(name, version, parameters)`` and export anyone else's as compiled code (``tiles.codelets.exported``). It is polymorphic
in extents and has no tile axis: handed the slices of one cell it computes the cell's part, handed whole operands the
whole result.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np

from tiles._jax_compat import Datum
from tiles.cached import cached_property
from tiles.errors import InvalidExecutable, InvalidGraph, NoTileCode, OutOfRegisters
from tiles.files import JsonObject, is_dict, is_list, is_row, is_tuple
from tiles.graph.arrangement import Arrangement
from tiles.graph.cycles import Cycles, VertexCode, code_scratch_bytes, vertex_code_bytes
from tiles.graph.domain import OpForm
from tiles.numerics.dtypes import FLOATS
from tiles.numerics.shared import Amount
from tiles.target import Target

T = TypeVar("T")


@dataclass(frozen=True)
class Extents:
    """Cell sizes of many vertices (or candidate plans) at once, for cost formulas.

    Args:
      form: the operation.
      sizes: per domain dimension, int64 array of cell extents; all broadcast against each other.
      operand_dtypes: dtype names of the operands.
      result_dtypes: dtype names of the results.
    """

    form: OpForm
    sizes: tuple[np.ndarray, ...]
    operand_dtypes: tuple[str, ...]
    result_dtypes: tuple[str, ...]

    def product(self, dims: Sequence[int]) -> np.ndarray:
        """Return the product of the extents of ``dims``."""
        return np.asarray(math.prod((self.sizes[d] for d in dims), start=np.int64(1)))

    @cached_property
    def points(self) -> np.ndarray:
        """Domain points of a cell."""
        return self.product(range(len(self.sizes)))

    @cached_property
    def results(self) -> np.ndarray:
        """Result elements of a cell (points of its parallel dimensions)."""
        return self.product([d for d, dim in enumerate(self.form.dims) if not dim.is_reduced])

    @cached_property
    def reduced(self) -> np.ndarray:
        """Points combined into each result element."""
        return self.product(self.form.reduced)

    @cached_property
    def _derived(self) -> dict[Hashable, Any]:
        return {}

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return what a formula derives from the extents: found once, whichever figure of the cells asks first.

        Args:
          key: says all that it depends on beside the extents.
          find: computes it.
        """
        if key not in self._derived:
            self._derived[key] = find()
        found: T = self._derived[key]
        return found

    def operand_elements(self, k: int) -> np.ndarray:
        """Return the elements of operand k that a cell reads."""
        return np.asarray(math.prod(self.operand_spans(k), start=np.int64(1)))

    def operand_spans(self, k: int) -> list[np.ndarray]:
        """Return how far a cell reads along each axis of operand k."""
        return [
            self.sizes[axis.terms[0][0]]
            if len(axis.terms) == 1
            else np.asarray(sum(((self.sizes[d] - 1) * abs(c) for d, c in axis.terms), np.int64(1)))
            for axis in self.form.operands[k].axes
        ]


@dataclass(frozen=True)
class Cell:
    """What a codelet's ``compute`` may know of the cell it is handed.

    Args:
      form: the operation.
      sizes: extents of the cell along each domain dimension.
      origin: first domain index along each dimension; may be traced.
      limits: per dimension, how many leading points are real when the cell is padded to a uniform
        extent (traced), or None when all are. Beyond them, operands hold zeros along axes that follow
        one dimension; windows may read elements of others there.
    """

    form: OpForm
    sizes: tuple[int, ...]
    origin: tuple[Datum, ...]
    limits: tuple[Datum | None, ...]

    def align(self, k: int, operand: jax.Array) -> jax.Array:
        """Return operand k with one axis per domain dimension, size 1 where it does not vary."""
        axes = self.form.operands[k].axes
        moving = sorted((axis.terms[0][0], i) for i, axis in enumerate(axes) if axis.terms)
        constant = [i for i, axis in enumerate(axes) if not axis.terms]
        ordered = operand.transpose([i for _, i in moving] + constant)
        shape = [1] * len(self.sizes)
        for d, _ in moving:
            shape[d] = self.sizes[d]
        return ordered.reshape(shape)

    def reduced_mask(self) -> jax.Array | None:
        """Return which points of the reduced dimensions are real, or None when all are.

        The mask has one axis per domain dimension, size 1 along those without padding.
        """
        mask = None
        for d, limit in enumerate(self.limits):
            if limit is None:
                continue
            shape = [1] * len(self.sizes)
            shape[d] = self.sizes[d]
            real = (jax.lax.iota(jnp.int32, self.sizes[d]) < limit).reshape(shape)
            mask = real if mask is None else mask & real
        return mask


@dataclass(frozen=True)
class Codelet:
    """Base of all codelets; see the module's text.

    ``name`` and ``version`` identify the meaning: change the version when ``compute`` changes.
    ``vectorizes_windows`` says that ``compute`` heeds ``Cell.limits`` along windows, so that the parts of a cut
    window may be computed by one vectorized call instead of one after another.
    """

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    is_contraction: ClassVar[bool] = False
    """Whether the work is a library kernel's (dot, convolution), which wants operands laid out in memory."""
    without_code: ClassVar[str] = "rows that begin inside a word"
    """Why vertices run no code where others of the same operation do."""
    vectorizes_windows: ClassVar[bool] = False
    any_order: ClassVar[bool] = False
    """Whether vertices go through their cells in whatever order their operands lie, if all lie in the same."""
    is_pointwise: ClassVar[bool] = False
    """Whether each point of the domain is read whole before its elements of the results, one or several, are written."""
    replaces_elements: ClassVar[bool] = False
    """Whether results are operands, those that ``may_overwrite`` names, of which some elements are replaced."""
    looked_up: ClassVar[int | None] = None
    """The operand of which only those elements are read that indices say, if there is one."""

    @property
    def is_plain_sum(self) -> bool:
        """Whether it adds up its one operand over the reduced dimensions, in float32 throughout, and does nothing else."""
        return False

    @property
    def label(self) -> str:
        """Vertex type shown in reports."""
        return self.name

    @property
    def keeps_partials(self) -> bool:
        """Whether engines of logical arrays keep the partials of a cut reduction, so that it rounds as planned.

        Not where partials, once combined, give every bit of what one cell computes (a lookup's words, a sum of
        integers), nor where nearly all of them are zeros (sums at runtime offsets).
        """
        return True

    @property
    def only_moves(self) -> bool:
        """Whether each element of a result is one of an operand as it was, so that nothing is computed."""
        return False

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """The dtypes of operands, the first ones on, that the parameters state, which their tile code is made for."""
        return ()

    @property
    def names_floats(self) -> bool:
        """Whether the parameters name a type of floats: that of an operand, of a result, or of a value between them."""
        return _names_floats([*self.to_data()["params"].values()])

    def misfit(self, form: OpForm, stages: Sequence[Codelet]) -> str:
        """Return what shows that a composite of this codelet cannot be made of the codelets of its body, or "".

        For parameters of stages that few data tell from others: those that all do, running both finds out.
        """
        return ""

    def compute(self, cell: Cell, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Return the results of one cell; operand axes follow the form's indexing maps."""
        raise NotImplementedError

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the duration of one vertex using all workers of its tile, vectorized over ``extents``."""
        raise NotImplementedError

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the tile code that vertices of these extents run, in order; variants that they choose from are all there.

        Raises:
          NoTileCode: the element compiler has no code for it; says why.
          OutOfRegisters: the code needs more registers than there are.
        """
        raise NoTileCode(f"no tile code for {self.label}")

    def own_code(self, extents: Extents, target: Target) -> Codelet:
        """Return the codelet of this package whose tile code vertices run, for executables that export this one.

        Raises:
          NoTileCode, OutOfRegisters: there is none; says why.
        """
        raise NoTileCode(f"no tile code for {self.label}")

    def code_operands(
        self, form: OpForm, sizes: tuple[int, ...], operands: Sequence[np.ndarray]
    ) -> tuple[OpForm, list[np.ndarray]]:
        """Return the operands that ``tile_code`` is of, and their form.

        Args:
          form: the codelet's.
          sizes: extents of the cells.
          operands: of many cells, ``[cells, *extents]``.
        """
        del sizes
        return form, list(operands)

    def code_results(
        self, form: OpForm, sizes: tuple[int, ...], values: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Return the results that what ``tile_code`` writes makes up, each with an axis for every domain dimension.

        Args:
          form: the codelet's.
          sizes: extents of the cells.
          values: what it writes, of many cells, ``[cells, *sizes]`` with size 1 where it does not vary.
        """
        del form, sizes
        return list(values)

    def flops(self, extents: Extents) -> np.ndarray:
        """Return floating-point operations of a cell (a multiply-add counts two)."""
        return np.zeros_like(extents.points)

    def combiner(self) -> str | None:
        """Return the reduction that combines partials ("add", "max", ...), None if reductions cannot be split."""
        return None

    def partial(self) -> tuple[Codelet, tuple[str, ...]]:
        """Return the codelet that yields partials instead of results, and the partials' dtypes."""
        raise InvalidGraph(f"{self.label} has no partial form: its reduction cannot be split")

    def combining(self, partials_dtype: str, out_dtype: str) -> Codelet | None:
        """Return the vertex that folds partials over their leading axis, None for the plain reduction."""
        return None

    def joining(self, shape: tuple[int, ...]) -> tuple[Codelet, OpForm]:
        """Return what combines partials ``shape`` of several results over their leading axis, and its form."""
        raise InvalidGraph(f"{self.label} cannot split its reduction to several results")

    def joining_cycles(self, results: Amount, partials: Amount, target: Target) -> Any:
        """Return the cycles of a tile that joins ``partials`` of ``results`` elements each, None for a plain fold.

        Both are numbers or arrays that broadcast. Plans that cut a reduction are priced with it.
        """
        return None

    def may_split(self, form: OpForm, d: int) -> bool:
        """Return whether a plan may cut dimension ``d``: a parallel one, or a reduced one with a combiner."""
        return not form.dims[d].is_reduced or self.combiner() is not None

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Return the preferred multiple for the extent of each dimension."""
        return (1,) * len(form.dims)

    def arrangements(self, extents: Extents, target: Target) -> list[Arrangement] | None:
        """Return the order of domain dimensions in which vertices of these extents want what they read and write.

        One per entry of ``extents``; None where codelets have no wish.
        """
        return None

    def may_overwrite(self, k: int) -> bool:
        """Return whether a result may take the memory of operand k, read element by element before it is written."""
        return False

    def state_bytes(self, form: OpForm, target: Target) -> int:
        """Return bytes of vertex state: a pointer per field and a count per dimension."""
        fields = len(form.operands) + len(form.results)
        return target.pointer_bytes * fields + 4 * len(form.dims)

    def code_bytes(self, target: Target) -> int:
        """Return bytes of code one tile holds to run the codelet, once however many vertices it has (ASSUMED)."""
        return 64 * target.instruction_bytes

    def variant_bytes(self, extents: Extents, target: Target) -> int:
        """Return bytes of the code that vertices of these extents run: that of ``tile_code``, else ``code_bytes``."""
        try:
            return vertex_code_bytes(self.tile_code(extents, target))
        except (NoTileCode, OutOfRegisters):
            return self.code_bytes(target)

    def least_cycles(self, extents: Extents, target: Target) -> np.ndarray | None:
        """Return cycles that ``cycles`` of none of the cells is below and that are found at once; None: none are known.

        Where there are many ways to cut an operation, those that this rules out are not asked for their cycles.
        """
        return None

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Return temporary bytes of a vertex beyond its operands and results."""
        return np.zeros_like(extents.points)

    def variant_scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Return ``scratch_bytes``, and what the workers of a tile keep in memory while they run ``tile_code``."""
        own = np.asarray(self.scratch_bytes(extents, target))
        try:
            parts = self.tile_code(extents, target)
        except (NoTileCode, OutOfRegisters):
            return own
        return own + code_scratch_bytes(parts, target.workers_per_tile)

    def to_data(self) -> JsonObject:
        """Return name, version and static parameters as plain data."""
        params = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"name": self.name, "version": self.version, "params": params}


CODELETS: dict[str, type[Codelet]] = {}
C = TypeVar("C", bound=type[Codelet])


def register(cls: C) -> C:
    """Class decorator: keep a codelet's name to it, and let executables name it if it is one of this package."""
    if not cls.name:
        raise InvalidGraph(f"codelet class {cls.__name__} has no name; set the class variable `name`")
    known = CODELETS.get(cls.name)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InvalidGraph(f"codelet name {cls.name!r} is taken by {known.__module__}.{known.__qualname__}")
    CODELETS[cls.name] = cls
    return cls


def codelet_from_data(data: JsonObject) -> Codelet:
    """Rebuild a codelet from plain data.

    Raises:
      InvalidExecutable: unknown name, other version, or parameters the codelet refuses.
    """
    cls = CODELETS.get(data["name"])
    if cls is None:
        raise InvalidExecutable(
            f"the executable names codelet {data['name']!r}, which is not registered here: "
            "another version of this package wrote it"
        )
    if cls.version != data["version"]:
        raise InvalidExecutable(
            f"codelet {cls.name} is version {cls.version} here, the executable needs {data['version']}"
        )
    fields = {f.name for f in dataclasses.fields(cls)}
    params = data["params"]
    if set(params) != fields:
        raise InvalidExecutable(f"codelet {cls.name} takes parameters {sorted(fields)}, got {sorted(params)}")
    given = {name: _tuples(value) for name, value in params.items()}
    for name, hint in _hints(cls).items():
        if name in given and not _is_of(given[name], hint):
            raise InvalidExecutable(f"codelet {cls.name} has {name} = {given[name]!r}; expected {hint}")
    try:
        return cls(**given)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidExecutable(f"codelet {cls.name} refuses parameters {params}: {error}") from error


@functools.cache
def _hints(cls: type[Codelet]) -> dict[str, Any]:
    """Return the types that a codelet class states for its parameters."""
    return get_type_hints(cls)


def _is_of(value: Any, hint: Any) -> bool:
    """Whether a parameter read from data is of the type stated: True is no integer, 1 no truth."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_is_of(value, each) for each in inner)
    if origin is tuple:
        if not is_tuple(value):
            return False
        if len(inner) == 2 and inner[1] is Ellipsis:
            return all(_is_of(each, inner[0]) for each in value)
        return len(value) == len(inner) and all(map(_is_of, value, inner))
    if hint is float:
        return type(value) in (int, float)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if hint in (bool, int, str, type(None)):
        return type(value) is hint
    return True


def _plain(value: Any) -> Any:
    if is_row(value):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _names_floats(value: Any) -> bool:
    """Return whether plain data hold the name of a type of floats."""
    if is_list(value):
        return any(map(_names_floats, value))
    return value in FLOATS if isinstance(value, str) else False


def _tuples(value: Any) -> Any:
    if is_list(value):
        return tuple(_tuples(v) for v in value)
    if is_dict(value):
        return float(value["float"])
    return value
