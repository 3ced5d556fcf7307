"""Reductions whose region is any function of one or several values, such as argmax."""

from __future__ import annotations

from hlo_passes.ir import Instruction
from hlo_passes.ops import Iota, Reduce, simple_combiner
from hlo_passes.passes.lifting import is_liftable
from ipuxla.lowering import regular
from ipuxla.lowering.errors import UnsupportedLowering
from ipuxla.lowering.indexing import in_memory
from ipuxla.lowering.regions import region_body
from ipuxla.lowering.registry import Lowering, dtype_of, lowers, where
from tiles.graph import IndexMap, Site, Tensor, identity_map
from tiles.poplibs.forms import map_form
from tiles.poplibs.popops.elementwise import cast
from tiles.poplibs.popops.expression import Body
from tiles.poplibs.popops.fold_many import reduce_many
from tiles.poplibs.popops.map import Map
from tiles.poplibs.poputil.place import place


@lowers(Reduce)
def lower_reduce(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Lower a lone reduction: by one operation as ``regular`` does, by any other region here.

    The initial values are applied once, to what has been folded.

    Raises:
      UnsupportedLowering: a combining region with more than elementwise operations in it.
    """
    op, region = instruction.op, instruction.regions[0]
    assert isinstance(op, Reduce)
    if simple_combiner(region) is not None:
        return regular.lower_reduce(lowering, instruction)
    if not is_liftable(region):
        raise UnsupportedLowering(
            "this reduction's combining region holds more than elementwise operations on scalars",
            location=where(instruction),
            try_="a combining function without loops, branches and lookups (jnp.where chooses between values)",
        )
    site = lowering.site(where(instruction))
    dtypes = tuple(dtype_of(v.type) for v in instruction.results)
    counters = _counters(lowering, instruction)
    given = {n: in_memory(lowering, v) for n, v in enumerate(instruction.operands) if n not in counters}
    given = {n: x if x.dtype == (dtypes * 2)[n] else cast(site, x, (dtypes * 2)[n]) for n, x in given.items()}
    arrays = [x for n, x in given.items() if n < len(dtypes)]
    initial = [x for n, x in given.items() if n >= len(dtypes)]
    shape = instruction.results[0].type.shape
    if 0 in (arrays[0].shape[d] for d in op.dimensions):
        return _applied(site, (), tuple(range(len(dtypes))), [], initial, shape)
    body, outputs = region_body(region)
    folded = reduce_many(site, arrays, op.dimensions, body, outputs, counters)
    return _applied(site, body, outputs, list(folded), initial, shape)


def _counters(lowering: Lowering, instruction: Instruction) -> dict[int, tuple[int, str]]:
    """Return the operands that only count along a dimension, which the vertices do; one stays in memory at least."""
    count = len(instruction.results)
    found: dict[int, tuple[int, str]] = {}
    for n, value in enumerate(instruction.operands[:count]):
        producer = lowering.computation.producers.get(value)
        if (
            producer is not None
            and isinstance(producer.op, Iota)
            and value.type.dtype == instruction.results[n].type.dtype
        ):
            found[n] = producer.op.dimension, dtype_of(value.type)
    return found if len(found) < count else {}


def folds_counters(instruction: Instruction) -> bool:
    """Return whether an instruction is a reduction here, which reads no iota from memory."""
    if not isinstance(instruction.op, Reduce) or simple_combiner(instruction.regions[0]) is not None:
        return False
    return len(instruction.results) > 1


def _applied(
    site: Site,
    body: Body,
    outputs: tuple[int, ...],
    folded: list[Tensor],
    initial: list[Tensor],
    shape: tuple[int, ...],
) -> tuple[Tensor, ...]:
    """Combine folded values with the initial ones, or repeat these where nothing was folded."""
    operands = [*initial, *folded]
    maps = [IndexMap(())] * len(initial) + [identity_map(len(shape))] * len(folded)
    dtypes = tuple(x.dtype for x in initial)
    codelet = Map(body, outputs, tuple(x.dtype for x in operands), dtypes)
    form = map_form(shape, maps, len(initial))
    return place(site.named("initial"), codelet, form, operands, dtypes)
