"""What all tests share: small targets, golden files, hypothesis profiles, and the time each group takes."""

from __future__ import annotations

import ctypes
import difflib
import gc
import itertools
import os
import pathlib
import random
import re
import secrets
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

os.environ["IPUXLA_CACHE_DIR"] = ""  # what is tested is compiled
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before jax is imported: accelerators are for tests that ask

import hypothesis
import jax
import numpy as np
import pytest

from tests.draws import forget_constants_of_modules
from tiles.target import Target

TESTS = pathlib.Path(__file__).parent
EXTENDED = TESTS / "extended.txt"
"""Beginnings of the names of tests that not every run has; its first lines say which."""
ONE_IN = 8
"""Of tests behind "~ " there, a run has one in so many."""
GROUPS = {"unit": "unit + golden", "golden": "unit + golden"}
"""Folders that are reported together; every other folder is its own group."""


forget_constants_of_modules()

# How many examples property tests draw is said here alone; ``budgets`` says which share of it a test takes.
# "dev" is deterministic: a failure on one machine is a failure on all. The others draw from the seed of this run.
# None depends on how fast the machine is.
TIMELESS: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
    "print_blob": True,
}
hypothesis.settings.register_profile("dev", derandomize=True, max_examples=10, database=None, **TIMELESS)
hypothesis.settings.register_profile("ci", max_examples=12, database=None, **TIMELESS)
hypothesis.settings.register_profile(
    "explore", max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "1000")), **TIMELESS
)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "dev")
hypothesis.settings.load_profile(PROFILE)

SEED = int(os.environ.setdefault("TESTS_SEED", str(secrets.randbelow(10**6))))
"""Of all that this run draws: examples of profiles other than "dev", and extended tests. Processes of one run share it."""


gc.set_threshold(20_000)
"""Compilers leave millions of objects that live on; looking them through as often as Python does takes a twentieth of the time."""


# ---- options and markers


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")
    parser.addoption(
        "--extended", action="store_true", help="run also the tests that tests/extended.txt lists"
    )
    parser.addoption(
        "--drawn", type=int, metavar="N", help="run also one in N of those, drawn from TESTS_SEED", default=0
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have hypothesis draw from the seed of this run, unless its own option says another."""
    if PROFILE != "dev" and config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(SEED)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what it takes to draw the same again."""
    drawn = config.getoption("--drawn")
    return f"hypothesis profile {PROFILE}, TESTS_SEED={SEED}" if drawn or PROFILE != "dev" else None


def left_out(names: Sequence[str], one_in: int, turn: int) -> list[bool]:
    """Return which tests a run leaves out.

    Args:
      names: of all tests.
      one_in: of those that shorter tests show as well it draws one in so many; none if 0.
      turn: which of the long ones it has: after ``ONE_IN`` turns each has run.
    """
    lines = [line for line in EXTENDED.read_text().splitlines() if line and not line.startswith("#")]
    never, long = (tuple(x.removeprefix(m) for x in lines if x.startswith(m)) for m in ("! ", "~ "))
    listed = tuple(line for line in lines if line[:2] not in ("! ", "~ "))
    draw = random.Random(SEED)

    def is_left_out(name: str, is_drawn: bool) -> bool:
        if name.startswith(never):
            return True
        if name.startswith(listed):
            return not is_drawn
        return name.startswith(long) and (zlib.crc32(name.encode()) + turn) % ONE_IN > 0

    return [is_left_out(name, bool(one_in) and draw.random() * one_in < 1) for name in names]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out extended tests unless asked for, and skip those that need an accelerator where there is none."""
    if not config.getoption("--extended") and not any("::" in arg for arg in config.args):
        one_in = config.getoption("--drawn")
        turn = SEED if one_in or PROFILE != "dev" else 0
        is_left_out = left_out([item.nodeid for item in items], one_in, turn)
        config.hook.pytest_deselected(items=list(itertools.compress(items, is_left_out)))
        items[:] = [item for item, is_out in zip(items, is_left_out, strict=True) if not is_out]
    wanted = [item for item in items if item.get_closest_marker("accelerator")]
    if wanted and jax.default_backend() == "cpu":
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason="no accelerator"))


# ---- random numbers


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start a module's random numbers anew for each test: what it draws depends on its name, not on which tests ran before."""
    for module in (getattr(item, "module", None), sys.modules.get("tests.small_models")):
        rng = getattr(module, "RNG", None)
        if isinstance(rng, np.random.Generator):
            rng.bit_generator.state = type(rng.bit_generator)(zlib.crc32(item.name.encode())).state


# ---- memory

FORGET_ABOVE_BYTES = (
    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8 if sys.platform.startswith("linux") else 0
)
"""An eighth of the machine's memory, for each of two workers."""


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Between files, have JAX forget what it compiled: ten megabytes a test, of which a worker would hold six gigabytes.

    What is freed goes back to the system where the C library has a way; by itself it keeps it.
    """
    if nextitem is None or item.path == nextitem.path or not sys.platform.startswith("linux"):
        return
    resident = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if resident > FORGET_ABOVE_BYTES:
        jax.clear_caches()
        gc.collect()
        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # of glibc
            trim(0)


# ---- targets


@pytest.fixture(scope="session")
def gc200() -> Target:
    """The machine of the main job, with all of its 1,472 tiles."""
    return Target.named("gc200")


@pytest.fixture(scope="session")
def small_target(gc200: Target) -> Target:
    """A GC200 of 16 tiles: enough for every kind of split, small enough for the slower engines."""
    return gc200.replace(num_tiles=16)


@pytest.fixture(scope="session")
def tiny_target(gc200: Target) -> Target:
    """A GC200 of 4 tiles, for generated programs."""
    return gc200.replace(num_tiles=4)


# ---- golden files


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare text with a file of the repository; ``--update-golden`` writes the file instead.

    The file is ``<folder of the test>/<test module without test_>/<test>.txt``; ``name`` replaces ``<test>``.
    """

    def check(text: str, name: str | None = None) -> None:
        stem = name or re.sub(r"[^\w.=-]+", "_", request.node.name.removeprefix("test_")).strip("_")
        path = request.path.parent / request.path.stem.removeprefix("test_") / f"{stem}.txt"
        text = text if text.endswith("\n") else text + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        shown = path.relative_to(TESTS.parent)
        if not path.is_file():
            pytest.fail(f"there is no golden file {shown}: write it with --update-golden and review it")
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            diff = difflib.unified_diff(
                expected.splitlines(keepends=True), text.splitlines(keepends=True), str(shown), "this run"
            )
            pytest.fail(
                f"{shown} differs; --update-golden accepts the change\n" + "".join(diff), pytrace=False
            )

    return check


# ---- time per group


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests each group has and how long they took, added up over the processes."""
    seconds: dict[str, float] = {}
    tests: dict[str, set[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                group = _group(report.nodeid)
                seconds[group] = seconds.get(group, 0.0) + report.duration
                tests.setdefault(group, set()).add(report.nodeid)
    if seconds:
        terminalreporter.section("time per group")
        for group in sorted(seconds):
            terminalreporter.write_line(f"{group:15} {len(tests[group]):5} tests {seconds[group]:8.1f} s")


def _group(nodeid: str) -> str:
    """Return the group of a test: the folder below tests/."""
    parts = nodeid.partition("::")[0].split("/")
    folder = parts[parts.index("tests") + 1] if "tests" in parts else "other"
    return GROUPS.get(folder, folder)
