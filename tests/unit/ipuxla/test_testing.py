"""What users' tests call must itself catch what is wrong, and draw the machines it says."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import find

from ipuxla import Lowered, testing
from tiles.target import Target


@pytest.mark.parametrize(
    ("arithmetic", "message"),
    [("float", "engine vertex: 3 of 3 differ"), ("ring", "engine vertex, ring .*differ")],
)
def test_a_wrong_result_of_one_engine_is_caught(
    arithmetic: str, message: str, tiny_target: Target, monkeypatch: pytest.MonkeyPatch
):
    compile_rightly = Lowered.compile

    def wrong(self, **options):
        compiled = compile_rightly(self, **options)
        if options.get("engine") == "vertex" and options.get("arithmetic", "float") == arithmetic:
            return lambda *args: compiled(*args) + 1
        return compiled

    arguments = (lambda x: x * 2, tiny_target, np.ones(3, np.int32))
    testing.check_engines(*arguments)
    monkeypatch.setattr(Lowered, "compile", wrong)
    with pytest.raises(testing.NotClose, match=message):
        testing.check_engines(*arguments)


@hypothesis.given(testing.targets(("gc2", "bow"), min_tiles=3, max_tiles=9))
def test_machines_are_of_the_kinds_asked_for(target: Target):
    assert target.name.startswith(("gc2", "bow")) and 3 <= target.num_tiles <= 9


def test_machines_shrink_to_one_tile():
    assert find(testing.targets(), lambda target: True).num_tiles == 1
