"""The front door: public names are there; those that need the compiler are imported when first used."""

from __future__ import annotations

import ipuxla
import ipuxla.api
import ipuxla.stages


def test_public_names():
    assert {"Compiled", "Lowered", "Target", "compile_stablehlo", "jit", "load"} <= {*ipuxla.__all__}
    assert {*ipuxla.__all__} <= {*dir(ipuxla)}
    assert ipuxla.jit is ipuxla.api.jit
    assert ipuxla.Lowered is ipuxla.stages.Lowered


def test_other_names_are_no_attributes():
    assert not hasattr(ipuxla, "xmap")
