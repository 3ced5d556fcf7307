"""The choices of a compilation: checked, hashable, and replaced one by one."""

from __future__ import annotations

import pytest

from ipuxla.errors import InvalidOption, IpuError, UnknownTarget, Unsupported
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


@pytest.mark.parametrize(
    ("choices", "error", "said"),
    [
        ({"engine": "slow"}, InvalidOption, "fast, literal, vertex, hlo"),
        ({"arithmetic": "double"}, InvalidOption, "float, ring"),
        ({"target": "gc3"}, UnknownTarget, "gc200"),
        ({"target": "dss8440"}, Unsupported, "has 16 IPUs, and programs are compiled for one"),
        ({"target": 3}, InvalidOption, "a name or a Target"),
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
