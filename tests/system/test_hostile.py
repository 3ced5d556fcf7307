"""Modules and saved programs from anywhere: results or named errors. ``python -m tests.hostile`` looks for more."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tracemalloc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ipuxla
from hlo_passes.errors import HloError, MalformedStableHLO
from ipuxla import runtime
from ipuxla.errors import InvalidExecutable
from tests.hostile import cases, executables, modules
from tests.unit.tiles.executable_programs import padded
from tiles import files, isolated
from tiles.codelets import modules as exported_modules
from tiles.compiler import Executable, compile_graph, load_executable
from tiles.compiler.executable import MAGIC
from tiles.errors import IpuError
from tiles.files import NotWritten
from tiles.target import Target

SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize("name", cases.MODULES)
def test_modules_that_somebody_might_write(name):
    try:
        ipuxla.compile_stablehlo(cases.MODULES[name], modules.TARGET)
    except (HloError, IpuError) as error:
        assert type(error).__name__ != "InternalError", error


@given(SEEDS)
def test_changed_modules(seed):
    """Bytes only as a child process reads them: jaxlib's reader does not survive all of them."""
    source = modules.source(seed, 0)
    if isinstance(source, str):
        modules.outcome(source)


def test_bytes_that_end_the_process_that_reads_them():
    """An operation's name of no text: jaxlib throws an error that nothing catches."""
    found = []
    for source in modules.corpus():
        if isinstance(source, bytes):
            found.append(source.replace(b"return_v1", b"\xff\xfe\xfd\xfc_v1", 1))
    with pytest.raises(MalformedStableHLO):
        ipuxla.compile_stablehlo(found[0], modules.TARGET, untrusted=True)


def test_what_a_child_process_reads_is_the_same_program():
    text = jax.jit(lambda x: jnp.sin(x) + 1).lower(jnp.ones(4)).as_text()
    one, other = (ipuxla.compile_stablehlo(text, modules.TARGET, untrusted=u) for u in (False, True))
    np.testing.assert_array_equal(one(jnp.ones(4))[0], other(jnp.ones(4))[0])


@pytest.mark.parametrize(
    ("function", "message"),
    [("os:abort", "SIGABRT"), ("time:sleep", "longer than"), ("tiles.files:none", "code 1")],
)
def test_a_child_that_ends_is_an_error(function, message):
    with pytest.raises(isolated.Ended, match=message):
        if function == "time:sleep":
            isolated.call("tests.ending:sleep", b"", time_limit_s=1)
        isolated.call("tests.ending:abort" if "abort" in function else function, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of processor time")
def test_a_child_that_works_for_ever_is_ended():
    with pytest.raises(isolated.Ended, match="SIGXCPU"):
        isolated.call("tests.ending:work", b"", processor_limit_s=1)


def _choosing(x, y):
    return jnp.where(x > y, x * 2, y + 1)


FEW, MANY = np.zeros(4, np.float32), jax.ShapeDtypeStruct((10**8,), np.float32)
LARGE: dict[str, tuple[Any, Any]] = {
    "every third of 1e8 elements": (lambda x: x[::3], MANY),
    "windows of 1e8 elements, of a region": (
        lambda x: jax.lax.reduce_window(x, np.float32(0), _choosing, (5,), (1,), "VALID"),
        MANY,
    ),
    "windows over padding of 1e9, of a region": (
        lambda x: jax.lax.reduce_window(x, np.float32(0), _choosing, (5,), (1,), ((10**9, 0),)),
        FEW,
    ),
    "windows of half of 1e8 elements": (
        lambda x: jax.lax.reduce_window(x, -np.float32(np.inf), jax.lax.max, (5 * 10**7,), (1,), "VALID"),
        MANY,
    ),
    "elements of 1e9 between paddings": (
        lambda x: jax.lax.pad(x, np.float32(0), [(10**9, 10**9, 10**8)]),
        FEW,
    ),
}
"""Modules of a few words whose arrays are large: what compiling them takes does not grow with these."""


@pytest.mark.parametrize("name", LARGE)
def test_what_compiling_large_arrays_takes(name):
    function, argument = LARGE[name]
    text = jax.jit(function).lower(argument).as_text()
    tracemalloc.start()
    try:
        ipuxla.compile_stablehlo(text, Target.named("gc200"))
    except (HloError, IpuError) as error:
        assert type(error).__name__ != "InternalError", error
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < 100 << 20, f"{peak_bytes:,} B"


# ---- saved programs


@given(SEEDS)
def test_changed_programs(seed):
    executables.run(seed, 0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("saved") / "program"
    step = lambda p, x: {"w": p["w"] - 0.1 * x, "b": p["b"]}  # noqa: E731
    arguments = {"w": jnp.ones(4), "b": jnp.ones(2)}, jnp.ones(4)
    ipuxla.jit(step, target=modules.TARGET).lower(*arguments).compile().save(path)
    return path


def resealed(path: pathlib.Path, change: Any) -> bytes:
    """Return a saved program whose header a function changed, as if it had been saved so."""
    header, body = runtime._split(path.read_bytes(), "")
    text = change(json.dumps(header).encode())
    return files.sealed(runtime._MAGIC, len(text).to_bytes(8, "little") + text + body)


HEADERS = {
    "nested without end": lambda t: t.replace(
        b'"names": [', b'"names": [' + b"[" * 50_000 + b"]" * 50_000 + b",", 1
    ),
    "key of no generator": lambda t: t.replace(b'"key": null', b'"key": "none"', 1),
    "key that is a number": lambda t: t.replace(b'"key": null', b'"key": 5', 1),
    "tree that is no call": lambda t: t.replace(b'["tuple", [["tuple"', b'["list", [["tuple"', 1),
    "tree of another kind": lambda t: t.replace(b'"tuple"', b'"set"', 1),
    "flag that is a number": lambda t: t.replace(b'"strict": true', b'"strict": 1', 1),
    "engine of no name": lambda t: t.replace(b'"engine": "fast"', b'"engine": "slow"', 1),
    "engine that is a list": lambda t: t.replace(b'"engine": "fast"', b'"engine": ["fast"]', 1),
    "donated argument that is none": lambda t: t.replace(b'"donated": []', b'"donated": [7]', 1),
    "size that is no integer": lambda t: t.replace(b'"shape": [4]', b'"shape": [4.0]', 1),
    "number of many digits": lambda t: t.replace(b'"shape": [4]', b'"shape": [' + b"4" * 5000 + b"]", 1),
    "no number": lambda t: t.replace(b'"shape": [4]', b'"shape": [NaN]', 1),
    "key twice": lambda t: t.replace(b'"format": ', b'"format": 2, "format": ', 1),
}


@pytest.mark.parametrize("name", HEADERS)
def test_changed_headers_are_refused(name, saved, tmp_path):
    path = tmp_path / "changed"
    path.write_bytes(resealed(saved, HEADERS[name]))
    assert path.read_bytes() != saved.read_bytes()
    with pytest.raises(InvalidExecutable):
        ipuxla.load(path)


def test_every_changed_byte_is_refused(saved, tmp_path):
    blob, rng = saved.read_bytes(), np.random.default_rng(0)
    for at in rng.choice(len(blob), 40, replace=False):
        path = tmp_path / "changed"
        path.write_bytes(blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :])
        with pytest.raises(InvalidExecutable):
            ipuxla.load(path)


def carrying(text: str) -> dict[str, Any]:
    """Return the data of an executable that carries a codelet, with another module in the place of its own."""
    import base64
    import hashlib

    data = compile_graph(padded(Target.named("gc200").replace(num_tiles=16))).to_data()
    blob = exported_modules.stablehlo.serialize_portable_artifact_str(
        text, exported_modules.stablehlo.get_current_version()
    )
    old, new = next(iter(data["modules"])), hashlib.sha256(blob).hexdigest()
    changed = json.loads(json.dumps(data).replace(old, new))
    changed["modules"][new] = base64.b64encode(blob).decode()
    changed["modules"] = dict(sorted(changed["modules"].items()))
    return changed


CALLBACK = """module { func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %r = stablehlo.custom_call @xla_ffi_python_cpu_callback(%x) {api_version = 4 : i32} : (tensor<4xf32>) -> tensor<4xf32>
  return %r : tensor<4xf32> } }"""


def test_an_exported_codelet_computes_and_does_no_more():
    with pytest.raises(InvalidExecutable, match=r"does more than compute: stablehlo\.custom_call"):
        load_executable(files.sealed(MAGIC, json.dumps(carrying(CALLBACK)).encode()))


def test_files_say_nothing_of_folders(saved):
    for path in (saved, saved.with_name("executable")):
        if not path.exists():
            _, body = runtime._split(saved.read_bytes(), "")
            path.write_bytes(Executable.from_bytes(body).to_bytes())
        blob = path.read_bytes()
        assert b"test_hostile.py" in blob
        assert str(pathlib.Path(__file__).parent).encode() not in blob
        assert sys.prefix.encode() not in blob and b"/tests/" not in blob


# ---- writing


def test_a_file_that_cannot_be_written_leaves_what_was_there(saved, tmp_path, monkeypatch):
    program, path = ipuxla.load(saved), tmp_path / "program"
    path.write_bytes(b"before")

    def full(source: Any, place: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(NotWritten) as caught:
        program.save(path)
    assert "\n" not in str(caught.value) and "No space left" in str(caught.value)
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_an_interruption_while_writing_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "report" / "one"
    files.write_files({path: "before"})

    def interrupted(source: Any, place: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_files({path: "after", path.with_name("two"): "after"})
    assert path.read_text() == "before" and list(path.parent.iterdir()) == [path]


def test_links_are_followed_and_devices_written_to(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("before")
    link.symlink_to(real)
    files.write_files({link: "after", "/dev/null": "nothing"})
    assert link.is_symlink() and real.read_text() == "after"


def test_the_command_finds_nothing_in_a_few_cases():
    command = [sys.executable, "-m", "tests.hostile", "executables", "--count=5", "--workers=1", "--seed=3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "5 executables, seed 3" in done.stdout, done.stdout + done.stderr
