"""The list of typed codelet variants: generated, several hundred, each with a cost and a basis."""

import collections

import pytest

from tests.unit.tiles.codelet_tables import variants
from tiles.target import Basis, Target


@pytest.mark.parametrize("name", ["gc200", "gc2"])
@pytest.mark.parametrize("step", [16, 1])
def test_every_variant_has_cycles_and_a_basis(name, step):
    target = Target.named(name)
    found = variants(target)
    assert len(found) > 1500
    assert len({v.label for v in found}) == len(found)
    for variant in found[::step]:
        cycles = variant.cycles(target)
        assert (cycles.value > 0).all(), variant.label
        assert (cycles.value < 100_000_000).all(), variant.label
        assert isinstance(cycles.basis, Basis), variant.label
        assert cycles.source, variant.label


def test_what_poplibs_has_a_table_for_is_documented():
    target = Target.named("gc200")
    bases = collections.defaultdict(collections.Counter)
    for variant in variants(target):
        dtype = (variant.operand_dtypes or variant.result_dtypes)[-1]
        if dtype in ("float32", "bfloat16"):
            bases[dtype][variant.cycles(target).basis] += 1
    assert bases["float32"][Basis.DOCUMENTED] > 5 * bases["float32"][Basis.ASSUMED] / 2
    assert not bases["bfloat16"][Basis.MEASURED]
    assert bases["bfloat16"][Basis.ASSUMED] > bases["bfloat16"][Basis.DOCUMENTED]
