"""Compiled programs on disk: another process reads what one compiled, and no fault of the folder changes a result."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import textwrap
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla import cache, stages
from ipuxla.cache import ProgramCache, program_key
from tiles import kept
from tiles.compiler import Executable

X = np.arange(12, dtype=np.float32).reshape(3, 4)
TARGET = ipuxla.Target.named("gc200").replace(num_tiles=8)


def model(x):
    return jnp.tanh(x @ x.T)


def compiled(function=model, **options) -> ipuxla.Compiled:
    jitted = ipuxla.jit(
        lambda x: function(x), target=TARGET, **options
    )  # anew: compilations are kept by function
    return jitted.lower(X).compile()


@pytest.fixture
def folder(tmp_path, monkeypatch) -> pathlib.Path:
    """A cache in which every program is kept, however quickly it was compiled."""
    monkeypatch.setenv(kept.FOLDER, str(tmp_path / "programs"))
    monkeypatch.setattr(cache, "LEAST_SECONDS", 0.0)
    return tmp_path / "programs"


@pytest.fixture
def warned(monkeypatch) -> list[str]:
    """What was logged as a warning."""
    found: list[str] = []
    monkeypatch.setattr(kept.logging, "warning", lambda text, *args: found.append(text % args))
    return found


@pytest.fixture
def compilations():
    with mock.patch.object(stages, "planned_to_fit", wraps=stages.planned_to_fit) as counted:
        yield counted


def entries(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.glob("*") if path.name != "variants")


def test_a_program_is_compiled_once_and_read_again(folder, compilations):
    first, again = (compiled() for _ in range(2))  # from one line: a program knows where it is from
    assert compilations.call_count == 1 and len(entries(folder)) == 1
    assert again.executable.to_bytes() == first.executable.to_bytes()
    again.certify()
    np.testing.assert_allclose(again(X), jax.jit(model)(X), rtol=1e-6)
    assert again.as_text("plans") == first.as_text("plans")


def test_another_process_reads_it(folder):
    script = textwrap.dedent("""
        import sys
        import numpy as np
        from unittest import mock
        import ipuxla
        from ipuxla import cache, stages
        cache.LEAST_SECONDS = 0.0
        target = ipuxla.Target.named("gc200").replace(num_tiles=8)
        with mock.patch.object(stages, "planned_to_fit", wraps=stages.planned_to_fit) as counted:
            y = ipuxla.jit(lambda x: x @ x.T, target=target)(np.ones((3, 4), np.float32))
        assert (y == 4).all()
        print(counted.call_count)
    """)
    path = folder.parent / "script.py"
    path.write_text(script)
    root = pathlib.Path(ipuxla.__file__).parents[1]
    environment = {**os.environ, kept.FOLDER: str(folder), "PYTHONPATH": str(root)}
    found = [
        subprocess.run(
            [sys.executable, path], env=environment, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    ]
    assert found == ["1\n", "0\n"]


def test_whatever_decides_a_program_is_in_its_key():
    chosen = [
        {},
        {"plans": '{"format": 1, "plans": {}}'},
        {"target": TARGET.replace(num_tiles=16)},
        {"target": TARGET.replace(exchange_bytes_per_cycle=8)},
    ]
    options = [ipuxla.options.make_options(**{"target": TARGET, **each}) for each in chosen]
    keys = [program_key(module, None, each) for each in options for module in (b"module", b"Module")]
    assert len(set(keys)) == 2 * len(chosen)


def test_engine_and_arithmetic_share_a_program(folder, compilations):
    for options in ({}, {"engine": "literal"}, {"arithmetic": "ring"}, {"strict": False}):
        compiled(**options)
    assert compilations.call_count == 1 and len(entries(folder)) == 1


def test_pipelines_of_the_callers_are_not_kept(folder, compilations):
    for _ in range(2):
        compiled(passes="cse,dce")
    assert compilations.call_count == 2 and entries(folder) == []


def test_a_key_names_the_source_that_compiles(monkeypatch):
    options = ipuxla.options.make_options(TARGET)
    key = program_key(b"module", None, options)
    assert key == program_key(b"module", None, options) and len(key) == 64
    assert key != program_key(b"module", "named", options)
    monkeypatch.setattr(cache, "_made_by", lambda: "changed source")
    assert key != program_key(b"module", None, options)


@pytest.mark.parametrize(
    "damage", [lambda blob: b"", lambda blob: blob[:-1], lambda blob: blob[:50] + b"x" + blob[51:]]
)
def test_a_damaged_entry_is_told_of_and_rebuilt(folder, compilations, warned, damage):
    found = []
    for _ in range(2):
        found.append(compiled().executable.to_bytes())
        (path,) = entries(folder)
        whole = path.read_bytes()
        path.write_bytes(damage(whole) if len(found) == 1 else whole)
    assert compilations.call_count == 2 and found[0] == found[1]
    (message,) = warned
    assert str(path) in message and "damaged, and compiled again" in message
    assert whole == found[1]


def test_a_folder_that_cannot_be_used_costs_a_warning_and_no_result(folder, compilations, warned):
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file where the folder should be")
    for _ in range(2):
        np.testing.assert_allclose(compiled()(X), jax.jit(model)(X), rtol=1e-6)
    assert compilations.call_count == 2
    assert warned == [f"the cache folder {folder} cannot be read, and is not: Not a directory"]


def test_a_folder_that_cannot_be_written_is_told_of_once_and_not_tried_again(tmp_path, warned):
    (tmp_path / "full").mkdir()
    programs = kept.KeptFiles(tmp_path / "full", 1 << 20, ".x")
    code = kept.KeptFiles(tmp_path / "full", 1 << 20, ".y", "code")
    programs.put("before", b"blob")
    with mock.patch.object(kept, "write_files", side_effect=OSError(30, "Read-only file system")) as tried:
        for files in (code, programs, code):
            files.put("after", b"blob")
    assert tried.call_count == 1 and "Read-only file system" in warned[0] and len(warned) == 1
    assert programs.get("before") == b"blob"  # what lies there is read all the same


def test_a_name_that_no_folder_can_have_is_one_warning(monkeypatch, compilations, warned):
    monkeypatch.setenv(kept.FOLDER, "/tmp/" + "x" * 300)
    np.testing.assert_allclose(compiled()(X), jax.jit(model)(X), rtol=1e-6)
    kept.KeptFiles(pathlib.Path("/tmp/" + "x" * 300), 1, ".x").shrink()
    assert len(warned) == 1 and "File name too long" in warned[0]


def test_a_full_disk_leaves_nothing_behind(folder, warned):
    with mock.patch.object(os, "replace", side_effect=OSError(28, "No space left on device")):
        compiled()
    assert entries(folder) == []
    assert len(warned) == 1 and "No space left" in warned[0]


def test_a_full_disk_is_told_of_once_however_many_files_are_kept(tmp_path, warned):
    files = kept.KeptFiles(tmp_path, 1 << 20, ".x")
    with mock.patch.object(os, "replace", side_effect=OSError(28, "No space left on device")):
        for n in range(3):
            files.put(f"{n:064x}", b"blob")
    assert warned == [f"the cache folder {tmp_path} cannot be written, and is not: No space left on device"]


def test_the_least_recently_used_go_when_it_is_full(tmp_path):
    executable = compiled().executable
    programs = ProgramCache(tmp_path, 1 << 40)
    for n in range(4):
        programs.put(f"{n:064x}", executable)
        os.utime(tmp_path / f"{n:064x}.ipuxla", (n, n))
    size = entries(tmp_path)[0].stat().st_size
    assert programs.get(f"{0:064x}") is not None  # now the last one used
    ProgramCache(tmp_path, 3 * size).put(f"{9:064x}", executable)
    assert [path.stem.lstrip("0") for path in entries(tmp_path)] == ["", "3", "9"]
    ProgramCache(tmp_path, size - 1).put(f"{8:064x}", executable)  # larger than everything
    assert not (tmp_path / f"{8:064x}.ipuxla").exists()


def test_programs_written_at_once_are_whole(tmp_path):
    executable = compiled().executable
    programs, key = ProgramCache(tmp_path), f"{7:064x}"

    def write_and_read(_: int) -> Executable | None:
        programs.put(key, executable)
        return programs.get(key)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(write_and_read, range(24)))
    assert all(each is not None and each.to_bytes() == executable.to_bytes() for each in found)
    assert [path.name for path in entries(tmp_path)] == [f"{key}.ipuxla"]


def test_it_is_turned_off_by_an_empty_folder_and_has_a_capacity(monkeypatch, tmp_path):
    monkeypatch.setenv(kept.FOLDER, "")
    assert cache.program_cache() is None
    monkeypatch.delenv(kept.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.program_cache() == ProgramCache(tmp_path / "ipuxla")
    monkeypatch.setenv(kept.CAPACITY, "1000")
    assert cache.program_cache() == ProgramCache(tmp_path / "ipuxla", 1000)
    monkeypatch.setenv(kept.CAPACITY, "much")
    assert cache.program_cache() == ProgramCache(tmp_path / "ipuxla")


def test_a_sharding_is_chosen_once(folder, compilations, warned):
    """Another process reads which one it was and its program; a text that says none is told of, and chosen anew."""
    x = np.ones((64, 256), np.float32)

    def shared() -> tuple[str, np.ndarray]:
        function = ipuxla.jit(lambda x: jnp.tanh(x @ x.T).sum(), target="c2_card")
        return function.lower(x).as_text("sharding"), np.asarray(function(x))

    found: list[tuple[str, np.ndarray]] = []
    for number in range(3):
        found.append(shared())  # from one line: where it is called from is in its key
        assert compilations.call_count == 1
        (path,) = folder.glob(f"*{cache.SHARDINGS}")
        assert path.read_text() == found[0][0] == found[number][0]
        if number == 1:
            path.write_text("mesh: x=3\n")
    assert len(warned) == 1 and str(path) in warned[0]
    assert len({value.tobytes() for _, value in found}) == 1
