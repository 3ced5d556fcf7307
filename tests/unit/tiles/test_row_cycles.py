"""Cycles of popnn's functions of rows against sums worked out by hand from the published tables."""

import pytest

from tests.unit.tiles.poplibs_cells import extents_of
from tiles.graph import identity_map
from tiles.poplibs.forms import map_form
from tiles.poplibs.popnn import RowFunction
from tiles.poplibs.popops.expr import constant_row
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
