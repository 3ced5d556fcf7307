"""What all tests share: small targets, golden files, hypothesis profiles, and the time each group takes."""

from __future__ import annotations

import difflib
import os
import pathlib
import re
from collections.abc import Callable

os.environ["IPUXLA_CACHE_DIR"] = ""  # what is tested is compiled
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before jax is imported: accelerators are for tests that ask

import hypothesis
import jax
import pytest

from tiles.target import Target

TESTS = pathlib.Path(__file__).parent
EXTENDED = TESTS / "extended.txt"
"""Beginnings of the names of tests that only ``make test-extended`` runs."""
GROUPS = {"unit": "unit + golden", "golden": "unit + golden"}
"""Folders that are reported together; every other folder is its own group."""

# Deterministic by default: a failure on one machine is a failure on all. "explore" looks for new ones.
hypothesis.settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=20, database=None, print_blob=True
)
hypothesis.settings.register_profile("ci", hypothesis.settings.get_profile("default"), max_examples=50)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# ---- options and markers


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")
    parser.addoption(
        "--extended", action="store_true", help="run also the tests that tests/extended.txt lists"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out extended tests unless asked for, and skip those that need an accelerator where there is none."""
    if not config.getoption("--extended") and not any("::" in arg for arg in config.args):
        listed = tuple(
            line for line in EXTENDED.read_text().splitlines() if line and not line.startswith("#")
        )
        left_out = [item for item in items if item.nodeid.startswith(listed)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.nodeid.startswith(listed)]
    wanted = [item for item in items if item.get_closest_marker("accelerator")]
    if wanted and jax.default_backend() == "cpu":
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason="no accelerator"))


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
