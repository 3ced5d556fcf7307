"""The command line: parse, call the library, print. Bad input is one line on stderr and exit code 2.

Each command has flags of its own (absl), so ``--flagfile`` works everywhere and one command does not know the
flags of another. Exit codes: 0 success; 1 the library refuses a legal request; 2 bad input; 130 interrupted, which
``ipuxla.__main__`` sees to.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Generator, Sequence

from absl import flags, logging

from hlo_passes.errors import HloError, MalformedStableHLO
from hlo_passes.passes import InvalidPassOption, InvalidPipeline, UnknownPass, UnknownPassOption
from ipuxla import __version__, absl_flags
from ipuxla.api import Compiled, compile_stablehlo
from ipuxla.calibration import BadRecord, as_data, as_text, predict, read_records
from ipuxla.calibration.programs import FAMILIES
from ipuxla.errors import (
    InvalidExecutable,
    InvalidOption,
    InvalidSystem,
    InvalidTarget,
    IpuError,
    OutOfTileMemory,
    UnknownTarget,
    Unsupported,
)
from ipuxla.experiments import EXPERIMENTS, MODELS, OPTIMIZERS, Settings, require_writable
from ipuxla.pinned_shardings import AUTO
from ipuxla.runtime import loaded
from ipuxla.stages import STAGES
from tiles.compiler import Executable
from tiles.errors import InvalidPlan
from tiles.files import NotWritten
from tiles.report import Argument, profile, write_report
from tiles.target import (
    System,
    Target,
    describe_system,
    find_machine,
    find_system,
    known_names,
    known_systems,
)

REFUSED = 1
BAD_INPUT = 2
HELP = {"--help", "-h", "help"}
EVERYTHING = {"--helpfull", "--help-full"}
VERSION = {"--version", "version"}
STANDARD_INPUT = "-"

Run = Callable[[flags.FlagValues, Sequence[str]], None]


class UsageError(Exception):
    """Input that no command can work with; its message is one line."""


WRONG_INPUT = (
    UsageError,
    InvalidExecutable,
    InvalidOption,
    InvalidPassOption,
    InvalidPipeline,
    InvalidPlan,
    InvalidSystem,
    InvalidTarget,
    MalformedStableHLO,
    NotWritten,
    UnknownPass,
    UnknownPassOption,
    UnknownTarget,
)
"""Errors that say that the command line or a file it names is wrong; all others are refusals."""


@dataclasses.dataclass(frozen=True)
class Command:
    """One word after ``ipuxla``.

    Attributes:
      summary: what it does, in one line.
      positional: its positional arguments as usage shows them; one in brackets may be left out.
      define: adds its flags.
      run: does it, given flags and positional arguments.
    """

    summary: str
    positional: tuple[str, ...]
    define: Callable[[flags.FlagValues], None]
    run: Run


@dataclasses.dataclass(frozen=True)
class Invocation:
    """A command line, understood."""

    command: Run
    values: flags.FlagValues
    arguments: Sequence[str]
    debug: bool = False


# ---- run


def _define_run(values: flags.FlagValues) -> None:
    """Add a flag for each field of ``Settings``, and for the experiment's name."""
    absl_flags.define(values)
    flags.DEFINE_enum("experiment", "digits", sorted(EXPERIMENTS), "what to run", flag_values=values)
    flags.DEFINE_enum("model", "mlp", sorted(MODELS), "what learns", flag_values=values)
    flags.DEFINE_list("hidden", ["128", "64"], "features of each hidden dense layer", flag_values=values)
    flags.DEFINE_enum(
        "optimizer", "momentum", sorted(OPTIMIZERS), "how gradients change weights", flag_values=values
    )
    flags.DEFINE_float("learning_rate", 0.05, "learning rate", flag_values=values)
    flags.DEFINE_integer("batch_size", 32, "rows per step", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("epochs", 20, "passes over the training rows", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("seed", 0, "seed of weights and batches", lower_bound=0, flag_values=values)
    flags.DEFINE_bool("compare", True, "also run under plain jax.jit", flag_values=values)
    flags.DEFINE_string(
        "output_dir",
        "runs/digits",
        "folder for the files of the run; same names are replaced",
        flag_values=values,
    )


def _run(values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """Run an experiment."""
    del arguments
    chosen = {field.name: getattr(values, field.name) for field in dataclasses.fields(Settings)}
    chosen.update(absl_flags.chosen(values))
    chosen["hidden"] = tuple(_integer("hidden", text) for text in values.hidden)
    chosen["output_dir"] = pathlib.Path(values.output_dir)
    settings = Settings(**chosen)
    require_writable(settings.output_dir)
    with _reporting_misfit(values.output_dir):
        EXPERIMENTS[values.experiment](settings)


# ---- targets


def _targets(values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """List the targets and systems, or describe one: every field with its unit, basis and source."""
    del values
    if arguments:
        found = find_machine(arguments[0])
        print(describe_system(found) if isinstance(found, System) else found.describe())
        return
    for name in known_names():
        target = Target.named(name)
        print(
            f"{name:8} {target.num_tiles:6,} tiles x {target.bytes_per_tile:9,} bytes"
            f"  {target.clock_hz / 1e9:.3f} GHz  {target.description}"
        )
    for name in known_systems():
        system = find_system(name)
        print(f"{name:12} {system.num_ipus:4,} x {system.chip.name:5}  {system.description}")


# ---- compile


def _define_compile(values: flags.FlagValues) -> None:
    """Add the flags of ``compile``."""
    absl_flags.define(values)
    flags.DEFINE_string("passes", None, "HLO pass pipeline instead of the default one", flag_values=values)
    flags.DEFINE_string(
        "plans", None, "file of plans to pin, as --print=plans gives them", flag_values=values
    )
    flags.DEFINE_string(
        "shard",
        AUTO,
        "how a program that names no mesh is shared out on a system: auto, or a file as --print=sharding gives it",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "trusted", False, "read the file in this process, not in a child first", flag_values=values
    )
    flags.DEFINE_string("report", None, "folder to write the report into", flag_values=values)
    flags.DEFINE_string("output", None, "file to write the compiled program into", flag_values=values)
    flags.DEFINE_enum(
        "print",
        None,
        list(STAGES),
        "print this stage",
        flag_values=values,
    )


def _compile(values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """Compile a StableHLO file and print what the program costs."""
    source = _read(arguments[0])
    plans = None if values.plans is None else _read(values.plans).decode(errors="replace")
    shard = AUTO if values.shard == AUTO else _read(values.shard).decode(errors="replace")
    if values.report is not None:
        require_writable(pathlib.Path(values.report))
    if values.output is not None:
        require_writable(pathlib.Path(values.output).parent)
    with _reporting_misfit(values.report), _named(arguments[0]):
        compiled = compile_stablehlo(
            source,
            passes=values.passes,
            plans=plans,
            shard=shard,
            untrusted=not values.trusted,
            **absl_flags.chosen(values),
        )
    if values.print is not None:
        print(compiled.as_text(values.print))
    else:
        print(profile(compiled.executable, arguments=compiled.arguments).text())
    if values.output is not None:
        compiled.save(values.output)
        print(f"written: {values.output}")
    _write_report(compiled.executable, values.report, compiled.arguments)


# ---- report, certify


def _define_report(values: flags.FlagValues) -> None:
    """Add the flags of ``report``."""
    flags.DEFINE_string("output_dir", None, "folder to write the whole report into", flag_values=values)


def _report(values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """Print what a compiled program costs."""
    if values.output_dir is not None:
        require_writable(pathlib.Path(values.output_dir))
    compiled = _load(arguments[0])
    print(profile(compiled.executable, arguments=compiled.arguments).text())
    _write_report(compiled.executable, values.output_dir, compiled.arguments)


def _certify(values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """Check a compiled program by independent means."""
    del values
    print(_load(arguments[0]).certify())


# ---- calibrate


class RecordsRefused(IpuError):
    """Some records of a file cannot be used; the others were predicted and printed."""


def _define_calibrate(values: flags.FlagValues) -> None:
    """Add the flags of ``calibrate``."""
    flags.DEFINE_string("records", None, "file of measurements: a JSON list of records", flag_values=values)
    flags.DEFINE_bool("json", False, "print JSON instead of tables", flag_values=values)
    flags.DEFINE_list("families", [], "only these families", flag_values=values)


def _calibrate(values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """Compile what records of measurements describe, and set predictions beside them."""
    del arguments
    if values.records is None:
        raise UsageError("calibrate needs --records=FILE")
    unknown = sorted(set(values.families) - set(FAMILIES))
    if unknown:
        raise UsageError(f"there is no family {', '.join(unknown)}; known: {', '.join(sorted(FAMILIES))}")
    text = _read(values.records).decode(errors="replace")
    records, bad = read_records(text, frozenset(FAMILIES))
    total = len(records) + len(bad)
    found = [predict(r) for r in records if not values.families or r.family in values.families]
    rows = [row for row in found if not isinstance(row, BadRecord)]
    bad += [fault for fault in found if isinstance(fault, BadRecord)]
    print(json.dumps(as_data(rows, bad), indent=1) if values.json else as_text(rows))
    for fault in bad:
        print(f"ipuxla: {fault}", file=sys.stderr)
    if bad:
        raise RecordsRefused(f"{len(bad)} of {total} records cannot be used; the others were predicted")


COMMANDS = {
    "calibrate": Command("set predictions beside measurements on silicon", (), _define_calibrate, _calibrate),
    "run": Command("run an experiment: train, compare with jax.jit, report", (), _define_run, _run),
    "compile": Command(
        "compile a StableHLO file and report on it", ("FILE.mlir",), _define_compile, _compile
    ),
    "report": Command("report on a compiled program", ("PROGRAM",), _define_report, _report),
    "certify": Command("re-prove a compiled program's memory", ("PROGRAM",), lambda values: None, _certify),
    "targets": Command(
        "list targets and systems, or describe one", ("[NAME]",), lambda values: None, _targets
    ),
}


# ---- flags and files that commands share


def _integer(flag: str, text: str) -> int:
    """Return a flag's text as an integer."""
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--{flag} takes integers, got {text!r}") from None


@contextlib.contextmanager
def _named(path: str) -> Generator[None]:
    """Let errors about a module's text name its file, where MLIR says ``-`` for what it was handed."""
    try:
        yield
    except MalformedStableHLO as error:
        raise MalformedStableHLO(str(error).replace('"-":', f"{path}:")) from error


def _read(path: str) -> bytes:
    """Return a file's bytes, or those of standard input."""
    try:
        if path == STANDARD_INPUT:
            return sys.stdin.buffer.read()
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _load(path: str) -> Compiled:
    """Return the compiled program of a file, or of standard input."""
    return loaded(_read(path), "standard input" if path == STANDARD_INPUT else path)


def _write_report(executable: Executable, folder: str | None, arguments: Sequence[Argument] = ()) -> None:
    """Write the report of a program that was not run, where a folder was named."""
    if folder is not None:
        for path in write_report(executable, None, folder, arguments):
            print(f"written: {path}")


@contextlib.contextmanager
def _reporting_misfit(folder: str | None) -> Generator[None]:
    """Write the report of a program that does not fit, too: it shows what would have to give."""
    try:
        yield
    except OutOfTileMemory as error:
        if folder is not None:
            try:
                _write_report(error.executable, folder)
            except Unsupported as refused:  # of a program that was refused before it was planned
                error.notes = (*error.notes, f"no report: {refused.what}")
        raise


# ---- parsing and running


def parse(argv: Sequence[str]) -> Invocation:
    """Understand a command line.

    Args:
      argv: program name, command, then flags and positional arguments in any order.

    Raises:
      UsageError: an unknown command or flag, an illegal value, or too many or too few arguments.
    """
    name, *rest = argv[1:] or ["--help"]
    if name in VERSION:
        return Invocation(lambda values, arguments: print(f"ipuxla {__version__}"), flags.FlagValues(), ())
    if name in HELP:
        return Invocation(lambda values, arguments: print(_usage()), flags.FlagValues(), ())
    if name in EVERYTHING:
        pages = [_usage(), *map(_command_usage, COMMANDS)]
        return Invocation(lambda values, arguments: print("\n\n".join(pages)), flags.FlagValues(), ())
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        raise UsageError(f"there is no command {name!r}{meant}; commands: {', '.join(COMMANDS)}")
    command, values = COMMANDS[name], _flags_of(COMMANDS[name])
    if (HELP | EVERYTHING) & set(rest):
        return Invocation(lambda values, arguments: print(_command_usage(name)), values, ())
    try:
        arguments = values([name, *rest])[1:]
    except flags.Error as error:
        raise UsageError(str(error).removeprefix("ERROR:: ")) from error
    least = sum(not argument.startswith("[") for argument in command.positional)
    if not least <= len(arguments) <= len(command.positional):
        takes = " ".join(command.positional) or "no arguments"
        raise UsageError(f"{name} takes {takes}, got {' '.join(arguments) or 'none'}")
    return Invocation(command.run, values, arguments, values.debug)


def _flags_of(command: Command) -> flags.FlagValues:
    """Return a command's flags, not yet parsed."""
    values = flags.FlagValues()
    flags.DEFINE_bool("debug", False, "show the traceback of an error", flag_values=values)
    command.define(values)
    values.set_gnu_getopt(True)
    return values


def _usage() -> str:
    """Return what commands there are."""
    rows = [f"  {' '.join((name, *c.positional)):19} {c.summary}" for name, c in COMMANDS.items()]
    lines = ["usage: ipuxla COMMAND [--flags] [ARGUMENTS]", "", "commands:", *rows, ""]
    lines += [
        "`ipuxla COMMAND --help` lists the flags of a command, `ipuxla --helpfull` those of all of them,"
    ]
    lines += ["`ipuxla --version` the version. A file called - is standard input."]
    return "\n".join(lines)


def _command_usage(name: str) -> str:
    """Return a command's usage: its flags with help and defaults."""
    command, values = COMMANDS[name], _flags_of(COMMANDS[name])
    lines = [f"usage: {' '.join(('ipuxla', name, *command.positional))} [--flags]", "", command.summary, ""]
    for flag_name in sorted(values):
        flag = values[flag_name]
        shown = f"[no]{flag_name}" if flag.boolean else flag_name
        default = (flag.default_as_str or "").strip("'")  # absl quotes texts
        lines.append(f"  --{shown:17} {flag.help}" + (f" (default: {default})" if default else ""))
    lines.append(f"  --{'flagfile':17} file to read flags from, one per line")
    return "\n".join(lines)


def run(argv: Sequence[str]) -> int:
    """Run a command line and return its exit code; an error is its message on stderr.

    Raises:
      KeyboardInterrupt: nothing here knows in which state an interruption leaves what runs.
    """
    debug = False
    try:
        invocation = parse(argv)
        debug = invocation.debug
        invocation.command(invocation.values, invocation.arguments)
        sys.stdout.flush()
    except (UsageError, IpuError, HloError) as error:
        return _fail(error, debug)
    except BrokenPipeError:  # the reader has seen enough
        _drop_output()
    except OSError as error:  # a full disk; files of ours are named errors
        _drop_output()
        return _fail(UsageError(f"cannot write to standard output: {error.strerror or error}"), debug)
    return 0


def _drop_output() -> None:
    """Let what Python still holds for standard output go nowhere: it must not fail again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: Exception, debug: bool) -> int:
    """Print an error, with its traceback when asked for, and return the exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, WRONG_INPUT):
        lines = (line.strip() for line in str(error).splitlines())
        print("ipuxla:", "; ".join(line for line in lines if line != "^"), file=sys.stderr)
        return BAD_INPUT
    print(f"ipuxla: {type(error).__name__}: {error}", file=sys.stderr)
    return REFUSED


def _initialize_absl(argv: Sequence[str]) -> None:
    """Parse absl's global flags, of which none are ours."""
    flags.FLAGS([argv[0], f"--verbosity={logging.WARNING}"])  # JAX tells at INFO what devices it misses
    logging.use_absl_handler()


def main(argv: Sequence[str] = ()) -> int:
    """Run a command line, by default the process's own, and return its exit code."""
    argv = argv or sys.argv
    _initialize_absl(argv)
    return run(argv)
