"""Errors: one rendering for all, and nothing lost on the way between processes."""

import pickle

import pytest

from tiles.errors import InvalidTarget, IpuError, OutOfTileMemory, Unsupported, UnsupportedDtype


def test_an_error_shows_the_parts_that_are_known():
    error = OutOfTileMemory(
        "tile 812 needs 655,360 B and has 638,976 B",
        location="model.py:42",
        expected="at most 638,976 B",
        got="655,360 B",
        try_="a smaller batch",
        notes=("largest live: %lhs 262,144 B",),
    )
    assert str(error).splitlines() == [
        "tile 812 needs 655,360 B and has 638,976 B",
        "  largest live: %lhs 262,144 B",
        "  expected: at most 638,976 B",
        "  got: 655,360 B",
        "  from: model.py:42",
        "  try: a smaller batch",
    ]
    assert str(IpuError("plain")) == "plain"


def test_the_closest_location_stays():
    error = Unsupported("no such op")
    assert error.at("model.py:7") is error and error.at("elsewhere.py:1").location == "model.py:7"


def test_errors_survive_pickling():
    error = InvalidTarget("impossible", location="num_tiles", got=0, notes=("a", "b"))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is InvalidTarget and str(again) == str(error) and again.notes == ("a", "b")


def test_kinds_form_a_tree():
    with pytest.raises(Unsupported):
        raise UnsupportedDtype("float7")
    assert issubclass(Unsupported, IpuError) and not issubclass(InvalidTarget, Unsupported)
