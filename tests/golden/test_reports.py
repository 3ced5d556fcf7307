"""The text summary of small programs, word for word."""

from tests.unit.tiles.report_programs import looping, pipeline
from tiles.engine.trace import Trace
from tiles.report import profile


def test_pipeline(golden, small_target):
    golden(profile(pipeline(small_target), Trace((1, 1, 1, 1), "fast", "float")).text(top=3))


def test_loop_before_a_run(golden, small_target):
    golden(profile(looping(small_target)).text())


def test_loop_after_a_run(golden, small_target):
    golden(profile(looping(small_target), Trace((1, 8, 7, 7), "literal", "ring", {(1,): 7})).text())


def test_does_not_fit(golden, small_target):
    executable = pipeline(small_target.replace(bytes_per_tile=4096), check_memory=False)
    golden(profile(executable).text())
