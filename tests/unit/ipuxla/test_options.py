"""The choices of a compilation: checked, hashable, and replaced one by one."""

from __future__ import annotations

import pytest

from ipuxla.errors import InvalidOption, IpuError, UnknownTarget
from ipuxla.options import ARITHMETICS, ENGINES, make_options
from tiles import engine
from tiles.target import Target


def test_defaults():
    options = make_options()
    assert (options.target.name, options.engine, options.arithmetic) == ("gc200", "fast", "float")
    assert options.check_memory
    assert options.strict
    assert options.passes is None


def test_a_target_may_be_named_or_given(small_target):
    assert make_options("bow").target == Target.named("bow")
    assert make_options(small_target).target is small_target


def test_equal_options_are_one_key():
    assert make_options("gc2") == make_options("gc2")
    assert len({make_options("gc2"), make_options("gc2"), make_options("gc2", engine="hlo")}) == 2


def test_replace_changes_what_is_given():
    options = make_options("gc2", engine="literal", strict=False)
    changed = options.replace(target="bow", engine=None, arithmetic="ring", check_memory=False)
    assert (changed.target.name, changed.engine, changed.arithmetic) == ("bow", "literal", "ring")
    assert not changed.check_memory
    assert not changed.strict


def test_a_system_is_its_chip_and_the_others():
    options = make_options("dss8440")
    assert (options.target.name, options.num_ipus, options.machine_name) == ("gc2", 16, "dss8440")
    assert options.replace(target="gc200").system is None
    assert options.replace(engine="hlo").num_ipus == 16
    assert make_options("gc2 x 1").system is None


@pytest.mark.parametrize(
    ("choices", "error", "said"),
    [
        ({"engine": "slow"}, InvalidOption, "fast, literal, vertex, tile, hlo"),
        ({"arithmetic": "double"}, InvalidOption, "float, ring"),
        ({"target": "gc3"}, UnknownTarget, "gc200"),
        ({"target": 3}, InvalidOption, "a name, a Target or a System"),
        ({"passes": ["cse"]}, InvalidOption, "pipeline text"),
    ],
)
def test_illegal_choices_are_named(choices, error, said):
    with pytest.raises(error) as caught:
        make_options(**choices)
    assert said in str(caught.value)
    assert isinstance(caught.value, IpuError)


def test_engines_and_arithmetics_are_those_of_tiles_and_hlo():
    assert {*ENGINES} == {*engine.ENGINES, "hlo"}
    assert {*ARITHMETICS} == {engine.FLOAT, engine.RING}
