"""Cycles of popnn's functions of rows against sums worked out by hand from the published tables."""

import pytest

from tests.unit.tiles.poplibs_cells import extents_of
from tiles.graph import PARALLEL, WINDOW, Affine, Dim, IndexMap, OpForm, along, identity_map
from tiles.poplibs.forms import map_form, reduce_form
from tiles.poplibs.popnn import RowFunction
from tiles.poplibs.popnn.pool import pool_codelet
from tiles.poplibs.popops.expr import constant_row
from tiles.poplibs.popops.map import Map
from tiles.poplibs.popops.reduce import Reduce
from tiles.target import Basis, Target

GC200 = Target.named("gc200")
SHAPE = (6, 120)  # a row for every worker: 60 vectors of floats
FRAME = 29
FOLDS = 2 * (17 + 12 + 60)

ADD = (("operation", "add"),)
BODY = (
    ("fold", (0,), ADD),
    ("subtract", (0, 1), ()),
    ("multiply", (2, 2), ()),
    ("fold", (3,), ADD),
    ("multiply", (2, 4), ()),
)


SLOW = GC200.replace(worker_issue_interval_cycles=7)
"""A machine that there is no code for."""


def _cycles(kind, body, target=GC200):
    codelet = RowFunction(kind, body, (1,), ("float32",), "float32")
    found = codelet.cycles(extents_of(map_form(SHAPE, [identity_map(2)]), ("float32",), ("float32",)), target)
    return int(found.value[0]), found.basis


def test_what_lies_between_folds_is_one_loop():
    """Load x, subtract, square, store the difference: the square stays in registers for its sum."""
    centred = 12 + 60 + 60 + 60 + 60
    scaled = 12 + 2 * 60  # alone it is the vertex that multiplies rows by a scalar
    slots = FRAME + FOLDS + centred + scaled
    assert _cycles("popnn.layer_norm", BODY, SLOW) == (11 + 7 * slots, Basis.ASSUMED)
    by_code, basis = _cycles("popnn.layer_norm", BODY)
    assert basis is Basis.DERIVED and 0.8 < by_code / (11 + 6 * slots) < 1.25


@pytest.mark.parametrize("kind", ["popnn.softmax", "popnn.log_softmax"])
def test_softmax_is_a_vertex_for_every_function_as_popnn_has_it(kind):
    singly = (12 + 2 * 60) + (12 + 3 * 60) + (12 + 2 * 60)
    assert _cycles(kind, BODY) == (11 + 6 * (FRAME + FOLDS + singly), Basis.DOCUMENTED)


def test_what_only_constants_give_is_not_computed():
    more = (constant_row(3.0, "float32"), constant_row(2.0, "float32"), ("divide", (6, 7), ()))
    body = (*BODY, *more, ("add", (5, 8), ()))
    without = (*BODY, constant_row(1.5, "float32"), ("add", (5, 6), ()))
    assert _cycles("popnn.layer_norm", body) == _cycles("popnn.layer_norm", without)


def test_softmax_divides_by_its_sums_as_products_with_their_inverses():
    """Of 6 rows of 120 floats, one for every worker: loops over rows, and before them 6 inverses, 2 in 6 slots."""
    body = ((("divide_by_inverse", (0, 1), ()),), ("float32", "float32"))
    form = map_form(SHAPE, [identity_map(2), IndexMap((along(0),))])
    found = Map(body[0], (2,), body[1], ("float32",)).cycles(extents_of(form, body[1], ("float32",)), GC200)
    product = Map((("multiply", (0, 1), ()),), (2,), body[1], ("float32",))
    multiplied = product.cycles(extents_of(form, body[1], ("float32",)), GC200)
    assert int(found.value[0]) == int(multiplied.value[0]) + 20 + 6 * (17 + 6)
    plain = Map((("divide", (0, 1), ()),), (2,), body[1], ("float32",))
    assert int(found.value[0]) < int(plain.cycles(extents_of(form, body[1], ("float32",)), GC200).value[0])


def test_sums_of_halves_widen_nothing():
    """PopLibs adds halves into float32 accumulators: widening them first takes no slots."""
    form = reduce_form((4, 240), (0,))
    halves = extents_of(form, ("float16",), ("float32",))
    widened = Reduce((("convert", (0,), (("dtype", "float32"),)),), "add", ("float16",), "float32", "float32")
    plain = Reduce((), "add", ("float16",), "float32", "float32")
    assert int(widened.cycles(halves, GC200).value[0]) == int(plain.cycles(halves, GC200).value[0])
    assert widened.cycles(halves, GC200).basis is Basis.DOCUMENTED


def _pooled(operation, shape):
    """Return the cycles of pooling ``[rows, columns, channels]`` by 2 x 2 windows that do not overlap."""
    dims = (
        *(Dim(f"d{k}", n, PARALLEL) for k, n in enumerate(shape)),
        Dim("i", 2, WINDOW),
        Dim("j", 2, WINDOW),
    )
    axes = (Affine(((0, 2), (3, 1))), Affine(((1, 2), (4, 1))), along(2))
    form = OpForm(dims, (IndexMap(axes),), (IndexMap(tuple(along(d) for d in range(3))),))
    found = pool_codelet(operation, "float32").cycles(extents_of(form, ("float32",), ("float32",)), GC200)
    return int(found.value[0]), found.basis


def test_pooling_is_the_estimate_of_popnns_vertex():
    """12 rows of 8 columns and 16 channels: two rows a worker, four taps, eight vectors of channels along 8 elements."""
    zeroing = 12 * 8 * 8 // 6
    taps = 4 * (25 + 8 * (3 + 4 + 3 * 7))
    assert _pooled("max", (12, 8, 16)) == (13 + 6 * (45 + zeroing + 2 * (15 + taps)), Basis.DOCUMENTED)
    sums = 4 * (25 + 8 * (3 + 5 + 3 * 7))
    assert _pooled("add", (12, 8, 16)) == (13 + 6 * (46 + zeroing + 2 * (15 + sums)), Basis.DOCUMENTED)
    pieces = 4 * (25 + 8 * (3 + 4 + 3 * 2))  # of one of two rows each worker takes a third
    assert _pooled("max", (2, 8, 16))[0] == 13 + 6 * (45 + -(-2 * 8 * 8 // 6) + 15 + pieces)
    assert _pooled("max", (12, 8, 1))[1] is Basis.ASSUMED  # columns lie innermost


def _parts(body, operands=1):
    """Return what each part of a function's code reads and writes."""
    dtypes = ("float32",) * operands
    codelet = RowFunction("popnn.layer_norm", body, (1,), dtypes, "float32")
    form = map_form(SHAPE, [identity_map(2)] * operands)
    code = codelet.tile_code(extents_of(form, dtypes, ("float32",)), GC200)
    return [(part.data.reads, part.data.writes) for part in code]


def test_a_fold_reads_what_is_stored_in_any_case():
    exponentials = ("value", 1)
    assert _parts((("exponential", (0,), ()), ("fold", (1,), ADD), ("divide", (1, 2), ()))) == [
        ((("operand", 0),), (exponentials,)),
        ((exponentials,), (("value", 2),)),
        ((exponentials, ("value", 2)), (("result", 0),)),
    ]


def test_a_fold_computes_what_it_alone_needs():
    squares = (("multiply", (0, 0), ()), ("fold", (1,), ADD), ("divide", (0, 2), ()))
    assert _parts(squares) == [
        ((("operand", 0),), (("value", 2),)),
        ((("operand", 0), ("value", 2)), (("result", 0),)),
    ]


def test_what_only_later_loops_read_is_computed_there():
    """The product of both operands is not stored before the fold that it does not need."""
    body = (("multiply", (0, 1), ()), ("fold", (1,), ADD), ("divide", (2, 3), ()))
    assert _parts(body, operands=2) == [
        ((("operand", 1),), (("value", 3),)),
        ((("operand", 0), ("operand", 1), ("value", 3)), (("result", 0),)),
    ]
