"""The command line: every command on good input, and on bad input one line and exit code 2."""

from __future__ import annotations

import copy
import json
import pathlib
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla import cli
from tiles.target import Target, describe_system, find_system, known_names, known_systems
from tiles.target.load import data_directory
from tiles.target.target import fields_of_target


@pytest.fixture
def call(capsys):
    """Run a command line in this process, reading modules in it, too; return its exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        if arguments[:1] == ("compile",) and "--notrusted" not in arguments:
            arguments = (*arguments, "--trusted")
        code = cli.run(["ipuxla", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def small_target_file(tmp_path_factory) -> pathlib.Path:
    """A target of the user's own: a data file that extends gc200."""
    field = {"value": 16, "unit": "tiles", "basis": "ASSUMED", "source": "a small machine for tests"}
    data = {"schema": "ipuxla.target/1", "name": "small", "extends": "gc200", "fields": {"num_tiles": field}}
    path = tmp_path_factory.mktemp("targets") / "small.json"
    path.write_text(json.dumps(data))
    return path


def _affine(x, w, b):
    return jnp.tanh(x @ w + b)


ARGUMENTS = (
    np.linspace(-1, 1, 8 * 12, dtype=np.float32).reshape(8, 12),
    np.linspace(1, -2, 12 * 5, dtype=np.float32).reshape(12, 5),
    np.arange(5, dtype=np.float32),
)


@pytest.fixture(scope="module")
def module_file(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("modules") / "affine.mlir"
    path.write_text(jax.jit(_affine).lower(*ARGUMENTS).as_text())
    return path


# ---- help


def test_help_names_every_command_and_needs_none(call):
    code, out, err = call("--help")
    assert (code, err) == (0, "")
    assert all(f"  {name}" in out and command.summary in out for name, command in cli.COMMANDS.items())
    assert call() == (code, out, err)


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_help_of_a_command_names_its_flags_and_defaults(call, name):
    code, out, err = call(name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: ipuxla {name}") and "--flagfile" in out
    if name == "run":
        assert "--batch_size" in out and "(default: 32)" in out and "fast|literal|vertex|tile|hlo" in out


# ---- bad input


BAD = {
    "unknown command": (["trian"], "trian"),
    "unknown flag": (["run", "--epoch=3"], "epoch"),
    "flag of another command": (["targets", "--epochs=3"], "epochs"),
    "missing value": (["run", "--epochs"], "epochs"),
    "illegal value": (["run", "--epochs=0"], "epochs"),
    "illegal choice": (["run", "--engine=slow"], "literal"),
    "no integers": (["run", "--hidden=64,wide"], "'wide'"),
    "impossible width": (["run", "--hidden=64,0"], "hidden[1]"),
    "impossible rate": (["run", "--learning_rate=nan"], "learning rate"),
    "batch beyond the data": (["run", "--batch_size=5000", "--output_dir={tmp}/run"], "1438"),
    "unknown target": (["run", "--target=gc201", "--output_dir={tmp}/run"], "did you mean 'gc200'"),
    "unknown target to compile for": (["compile", "{module}", "--target=gc201"], "did you mean 'gc200'"),
    "unknown target to describe": (["targets", "gc201"], "did you mean 'gc200'"),
    "no file of a machine": (["targets", "{tmp}/none.json"], "dss8440"),
    "missing flagfile": (["run", "--flagfile={tmp}/none.flags"], "none.flags"),
    "too many arguments": (["run", "digits"], "digits"),
    "too few arguments": (["compile"], "FILE.mlir"),
    "missing module": (["compile", "{tmp}/none.mlir"], "none.mlir"),
    "a folder for a module": (["compile", "{tmp}"], "directory"),
    "malformed module": (["compile", "{text}"], "not a valid StableHLO module: {text}:1:1"),
    "unknown pass": (["compile", "{module}", "--passes=cse,optimise"], "optimise"),
    "malformed passes": (["compile", "{module}", "--passes=cse,,dce"], "cse,,dce"),
    "another file for plans": (["compile", "{module}", "--plans={text}"], "no plans"),
    "missing program": (["report", "{tmp}/none.ipuxla"], "none.ipuxla"),
    "another file for a program": (["certify", "{text}"], "no saved program"),
    "unwritable folder": (["run", "--output_dir={text}/run"], "cannot write"),
    "unwritable report": (["compile", "{module}", "--report={text}"], "cannot write"),
    "unwritable output": (["compile", "{module}", "--output={text}/x.ipuxla"], "cannot write"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(call, tmp_path, module_file, case):
    arguments, told = BAD[case]
    text = tmp_path / "notes.txt"
    text.write_text("not a module\n")
    places = {"tmp": tmp_path, "text": text, "module": module_file}
    code, out, err = call(*(argument.format(**places) for argument in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("ipuxla: ") and err.count("\n") == 1 and told.format(**places) in err
    assert text.read_text() == "not a module\n"


def test_bad_input_keeps_what_earlier_runs_wrote(call, tmp_path, module_file):
    program = tmp_path / "affine.ipuxla"
    program.write_text("precious")
    for arguments in (["compile", tmp_path / "none.mlir"], ["compile", module_file, "--target=gc201"]):
        assert call(*arguments, f"--output={program}")[0] == 2
        assert program.read_text() == "precious"


OF_THE_HOST = """
func.func @main(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = stablehlo.custom_call @of_the_host(%a) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}
"""


def test_a_refused_program_is_told_with_its_name_and_no_traceback(call, tmp_path):
    path = tmp_path / "host.mlir"
    path.write_text(OF_THE_HOST)
    code, out, err = call("compile", path)
    assert (code, out) == (1, "")
    assert "stablehlo.custom_call" in err and "Traceback" not in err
    code, _, err = call("compile", path, "--debug")
    assert code == 1 and "Traceback" in err


# ---- targets


def test_targets_lists_every_data_file(call):
    code, out, _ = call("targets")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [*known_names(), *known_systems()]
    assert f"{Target.named('gc200').num_tiles:,}" in out


def test_targets_describes_systems_and_tells_what_else_may_be_meant(call):
    for name in ("dss8440", "gc2 x 16"):
        code, out, _ = call("targets", name)
        assert (code, out) == (0, describe_system(find_system(name)) + "\n")
    code, out, err = call("targets", "dss844")
    assert (code, out) == (2, "") and "did you mean 'dss8440'?" in err


BAD_SYSTEMS = {
    "cut": ('{"schema": "ipuxla.system/1", ', "cannot be read"),
    "missing end": ({"wiring": {"ipu_links": {"ends": [["ipu 0"]]}}}, "a link has two ends, got ['ipu 0']"),
    "beyond": ({"wiring": {"ipu_links": {"ends": [["ipu 0", "ipu 99"]]}}}, "ends at ipu 99, and there are 2"),
    "negative": ({"links": {"rung": {"bytes_per_second": -3e9}}}, "bytes_per_second cannot be -3000000000.0"),
    "a route": ({"routes": [["ipu 0", "ipu 9"]]}, "does not arrive: there is no ipu 9"),
}


@pytest.mark.parametrize("name", BAD_SYSTEMS)
def test_a_bad_system_file_is_one_line(call, tmp_path, name):
    """Wherever a machine is named: the file is input, as a chip's is."""
    changes, said = BAD_SYSTEMS[name]
    path = tmp_path / "own.json"
    path.write_text(changes if isinstance(changes, str) else json.dumps(_own_system(changes)))
    for command in (["targets", path], ["run", f"--target={path}", f"--output_dir={tmp_path / 'run'}"]):
        code, out, err = call(*command)
        assert (code, out) == (2, "") and err.count("\n") == 1 and said in err


def _own_system(changes):
    """Return the data of a card of two IPUs with some fields changed."""
    known = json.loads((data_directory("systems") / "c2_card.json").read_text())
    own = {"schema": known["schema"], "name": "own", "extends": "c2_card", "description": "a test"}
    if "links" in changes:
        rung = copy.deepcopy(known["links"]["rung"])
        for figure, value in changes["links"]["rung"].items():
            rung[figure]["value"] = value
        return {**own, "links": {"rung": rung}}
    if "wiring" in changes:
        listed = {"pattern": "list", "link": "rung", "basis": "ASSUMED", "source": "a test"}
        return {**own, "wiring": {"ipu_links": {**listed, **changes["wiring"]["ipu_links"]}}}
    return {**own, **changes}


def test_a_program_without_a_mesh_is_shared_out_and_pinned(call, module_file, tmp_path):
    code, chosen, _ = call("compile", module_file, "--target=c2_card", "--print=sharding")
    assert code == 0 and "of 2 IPUs of c2_card" in chosen
    (tmp_path / "pinned").write_text(chosen)
    code, out, _ = call(
        "compile", module_file, "--target=c2_card", "--print=sharding", f"--shard={tmp_path / 'pinned'}"
    )
    kept = [line.partition("//")[0].strip() for line in chosen.splitlines() if line[:2] != "//"]
    assert (
        code == 0
        and [line.partition("//")[0].strip() for line in out.splitlines() if line[:2] != "//"] == kept
    )


def test_targets_describes_every_field_with_its_basis(call, small_target_file):
    for name in ("bow", small_target_file):
        code, out, _ = call("targets", name)
        assert code == 0
        rows = {line.split()[0]: line for line in out.splitlines()[1:]}
        assert set(rows) == set(fields_of_target())
        assert all(
            any(basis in row for basis in ("MEASURED", "DOCUMENTED", "FITTED", "ASSUMED"))
            for row in rows.values()
        )


# ---- compile, report, certify


def test_compile_then_report_certify_and_run_the_saved_program(
    call, tmp_path, module_file, small_target_file
):
    program, folder = tmp_path / "affine.ipuxla", tmp_path / "report"
    code, compiled, err = call(
        "compile", module_file, f"--target={small_target_file}", f"--output={program}", f"--report={folder}"
    )
    assert (code, err) == (0, "")
    assert "(16 tiles" in compiled and "operations" in compiled
    assert sorted(path.name for path in folder.iterdir()) == ["profile.json", "report.html", "summary.txt"]
    assert (folder / "summary.txt").read_text().strip() in compiled

    code, reported, _ = call("report", program, f"--output_dir={tmp_path / 'again'}")
    assert code == 0
    assert (folder / "summary.txt").read_text().strip() in reported
    assert (tmp_path / "again" / "profile.json").read_bytes() == (folder / "profile.json").read_bytes()

    code, certificate, _ = call("certify", program)
    assert code == 0 and "overlap" in certificate

    (result,) = ipuxla.load(program)(*ARGUMENTS)
    x, w, b = (a.astype(np.float64) for a in ARGUMENTS)
    np.testing.assert_allclose(result, np.tanh(x @ w + b), rtol=0, atol=1e-4)


def test_compile_prints_a_stage(call, module_file):
    code, out, _ = call("compile", module_file, "--print=hlo", "--target=gc2")
    assert code == 0 and "stablehlo.tanh" in out and "costliest" not in out


def test_plans_are_printed_and_pinned(call, module_file, tmp_path):
    code, plans, _ = call("compile", module_file, "--print=plans", "--target=gc2")
    assert code == 0
    (tmp_path / "plans.json").write_text(plans)
    code, again, _ = call(
        "compile", module_file, f"--plans={tmp_path}/plans.json", "--print=plans", "--target=gc2"
    )
    assert (code, again.strip()) == (0, plans.strip())


def test_a_program_that_does_not_fit_is_refused_with_its_report(call, tmp_path):
    path, folder = tmp_path / "large.mlir", tmp_path / "report"
    rows = jax.ShapeDtypeStruct((1 << 29,), jnp.float32)
    path.write_text(jax.jit(lambda x: x + 1).lower(rows).as_text())
    code, _, err = call("compile", path, f"--report={folder}")
    assert code == 1
    assert "OutOfTileMemory" in err and "2,147,483,648 B and all tiles of 'gc200'" in err and "try" in err
    assert "DOES NOT FIT" in (folder / "summary.txt").read_text()
    code, out, _ = call("compile", path, "--nocheck_memory")
    assert code == 0 and "DOES NOT FIT" in out


# ---- as a process


def test_installed_command_exits_with_the_code_and_survives_a_closed_pipe():
    command = [sys.executable, "-m", "ipuxla"]
    bad = subprocess.run([*command, "trian"], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (2, ""), bad.stderr
    assert bad.stderr.count("\n") == 1
    process = subprocess.Popen(
        [*command, "targets", "gc200"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 0
    process.stderr.close()


def test_a_command_reads_standard_input():
    module = jax.jit(jnp.sin).lower(jnp.ones(4)).as_text()
    command = [sys.executable, "-m", "ipuxla", "compile", "-", "--trusted", "--print=plans"]
    done = subprocess.run(command, input=module, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "sin" in done.stdout, done.stderr


def test_a_file_is_read_in_a_child_process(call, tmp_path):
    """Bytes that end the process that reads them, the reason in jaxlib: a name that is no UTF-8, named in a message."""
    path = tmp_path / "module"
    path.write_bytes(b"ML\xefR\r" + bytes(range(200, 250)))
    code, _, err = call("compile", path, "--notrusted")
    assert code == 2 and err.startswith("ipuxla: not a valid StableHLO module"), err


def test_versions_and_slips_of_the_pen(call):
    assert call("--version") == (0, f"ipuxla {ipuxla.__version__}\n", "")
    assert all(f"usage: ipuxla {name}" in call("--helpfull")[1] for name in cli.COMMANDS)
    assert "did you mean 'compile'?" in call("complie")[2]


def test_a_full_disk_is_one_line(tmp_path):
    if not pathlib.Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "ipuxla", "targets"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "ipuxla: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("after_s", [0.05, 1.5, 4.0])
def test_an_interrupted_command_ends_with_130(after_s, tmp_path):
    command = [
        sys.executable,
        "-m",
        "ipuxla",
        "run",
        f"--output_dir={tmp_path}",
        "--epochs=1000",
        "--nocompare",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(after_s)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130 or (after_s < 0.1 and process.returncode == -signal.SIGINT), errors
    assert "Fatal" not in errors and list(tmp_path.iterdir()) == []
