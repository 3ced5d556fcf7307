"""The command line: parse, call the library, print. Bad input is one line on stderr and exit code 2.

Each command has flags of its own (absl), so ``--flagfile`` works everywhere and a flag of one command is unknown to
another. Exit codes: 0 success; 1 the library refuses a legal request; 2 bad input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence

from absl import app, flags

from hlo_passes.errors import HloError
from ipuxla.api import Compiled, compile_stablehlo, load
from ipuxla.errors import (
    InvalidExecutable,
    InvalidOption,
    InvalidTarget,
    IpuError,
    OutOfTileMemory,
    UnknownTarget,
)
from ipuxla.experiments import EXPERIMENTS, OPTIMIZERS, Settings, require_writable
from ipuxla.options import ARITHMETICS, ENGINES
from tiles.compiler import Executable
from tiles.report import profile, write_report
from tiles.target import Target, known_names

REFUSED = 1
BAD_INPUT = 2
INTERRUPTED = 130

Run = Callable[[flags.FlagValues, Sequence[str]], None]


class UsageError(Exception):
    """Input that no command can work with; its message is one line."""


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

    run: Run
    values: flags.FlagValues
    arguments: Sequence[str]


# ---- run


def _define_run(values: flags.FlagValues) -> None:
    """Add a flag for each field of ``Settings``, and for the experiment's name."""
    _define_machine(values)
    flags.DEFINE_enum("experiment", "digits", sorted(EXPERIMENTS), "what to run", flag_values=values)
    flags.DEFINE_list("hidden", ["128", "64"], "features of each hidden layer", flag_values=values)
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
    with _bad_input(InvalidOption):
        chosen["target"] = _target(values)
        chosen["hidden"] = tuple(_integer("hidden", text) for text in values.hidden)
        chosen["output_dir"] = pathlib.Path(values.output_dir)
        settings = Settings(**chosen)
        require_writable(settings.output_dir)
    with _reporting_misfit(values.output_dir):
        EXPERIMENTS[values.experiment](settings)


# ---- targets


def _targets(values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """List the targets, or describe one: every field with its unit, basis and source."""
    del values
    if arguments:
        with _bad_input(UnknownTarget, InvalidTarget):
            print(Target.named(arguments[0]).describe())
        return
    for name in known_names():
        target = Target.named(name)
        print(
            f"{name:8} {target.num_tiles:6,} tiles x {target.bytes_per_tile:9,} bytes"
            f"  {target.clock_hz / 1e9:.3f} GHz  {target.description}"
        )


# ---- compile


def _define_compile(values: flags.FlagValues) -> None:
    """Add the flags of ``compile``."""
    _define_machine(values)
    flags.DEFINE_bool(
        "check_memory", True, "refuse a program that does not fit into the tiles", flag_values=values
    )
    flags.DEFINE_string("passes", None, "HLO pass pipeline instead of the default one", flag_values=values)
    flags.DEFINE_string("report", None, "folder to write the report into", flag_values=values)
    flags.DEFINE_string("output", None, "file to write the compiled program into", flag_values=values)
    flags.DEFINE_enum(
        "print",
        None,
        ["stablehlo", "hlo", "hlo-optimized", "program"],
        "print this stage",
        flag_values=values,
    )


def _compile(values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """Compile a StableHLO file and print what the program costs."""
    source = _read(arguments[0])
    with _bad_input(InvalidOption):
        if values.report is not None:
            require_writable(pathlib.Path(values.report))
        if values.output is not None:
            require_writable(pathlib.Path(values.output).parent)
    with _reporting_misfit(values.report):
        compiled = compile_stablehlo(
            source,
            _target(values),
            engine=values.engine,
            arithmetic=values.arithmetic,
            check_memory=values.check_memory,
            passes=values.passes,
        )
    if values.print is not None:
        print(compiled.as_text(values.print))
    else:
        print(profile(compiled.executable).text())
    if values.output is not None:
        compiled.save(values.output)
        print(f"written: {values.output}")
    _write_report(compiled.executable, values.report)


# ---- report, certify


def _define_report(values: flags.FlagValues) -> None:
    """Add the flags of ``report``."""
    flags.DEFINE_string("output_dir", None, "folder to write the whole report into", flag_values=values)


def _report(values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """Print what a compiled program costs."""
    with _bad_input(InvalidOption):
        if values.output_dir is not None:
            require_writable(pathlib.Path(values.output_dir))
    compiled = _load(arguments[0])
    print(profile(compiled.executable).text())
    _write_report(compiled.executable, values.output_dir)


def _certify(values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """Check a compiled program by independent means."""
    del values
    print(_load(arguments[0]).certify())


COMMANDS = {
    "run": Command("run an experiment: train, compare with jax.jit, report", (), _define_run, _run),
    "compile": Command(
        "compile a StableHLO file and report on it", ("FILE.mlir",), _define_compile, _compile
    ),
    "report": Command("report on a compiled program", ("PROGRAM",), _define_report, _report),
    "certify": Command("re-prove a compiled program's memory", ("PROGRAM",), lambda values: None, _certify),
    "targets": Command("list targets, or describe one", ("[NAME]",), lambda values: None, _targets),
}


# ---- flags and files that commands share


def _define_machine(values: flags.FlagValues) -> None:
    """Add the flags that choose a machine and how it is emulated."""
    names = ", ".join(known_names())
    flags.DEFINE_string("target", "gc200", f"{names}, or a target's data file", flag_values=values)
    flags.DEFINE_enum("engine", "fast", ENGINES, "how the machine is emulated", flag_values=values)
    flags.DEFINE_enum("arithmetic", "float", ARITHMETICS, "floats, or exact words", flag_values=values)


def _target(values: flags.FlagValues) -> Target:
    """Return the target that a flag names."""
    with _bad_input(UnknownTarget, InvalidTarget):
        return Target.named(values.target)


def _integer(flag: str, text: str) -> int:
    """Return a flag's text as an integer."""
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--{flag} takes integers, got {text!r}") from None


def _read(path: str) -> bytes:
    """Return a file's bytes."""
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _load(path: str) -> Compiled:
    """Return the compiled program of a file."""
    _read(path)
    with _bad_input(InvalidExecutable):
        return load(path)


def _write_report(executable: Executable, folder: str | None) -> None:
    """Write the report of a program that was not run, where a folder was named."""
    if folder is not None:
        for path in write_report(executable, None, folder):
            print(f"written: {path}")


@contextlib.contextmanager
def _reporting_misfit(folder: str | None) -> Iterator[None]:
    """Write the report of a program that does not fit, too: it shows what would have to give."""
    try:
        yield
    except OutOfTileMemory as error:
        executable = getattr(error, "executable", None)
        if executable is not None:
            _write_report(executable, folder)
        raise


@contextlib.contextmanager
def _bad_input(*kinds: type[IpuError]) -> Iterator[None]:
    """Turn errors that say that the command line itself is wrong into one line."""
    try:
        yield
    except kinds as error:
        raise UsageError("; ".join(line.strip() for line in str(error).splitlines())) from error


# ---- parsing and running


def parse(argv: Sequence[str]) -> Invocation:
    """Understand a command line.

    Args:
      argv: program name, command, then flags and positional arguments in any order.

    Raises:
      UsageError: an unknown command or flag, an illegal value, or too many or too few arguments.
    """
    if len(argv) < 2 or argv[1] in ("--help", "-h", "help"):
        return Invocation(_print_usage, flags.FlagValues(), ())
    name = argv[1]
    if name not in COMMANDS:
        raise UsageError(f"there is no command {name!r}; commands: {', '.join(COMMANDS)}")
    command = COMMANDS[name]
    values = flags.FlagValues()
    flags.DEFINE_bool("debug", False, "show the traceback of an error", flag_values=values)
    command.define(values)
    values.set_gnu_getopt(True)
    if {"--help", "-h"} & set(argv[2:]):
        return Invocation(lambda *_: print(_command_usage(name)), values, ())
    try:
        arguments = values(argv[1:])[1:]
    except (flags.Error, OSError) as error:
        raise UsageError("; ".join(str(error).splitlines())) from error
    needed = [argument for argument in command.positional if not argument.startswith("[")]
    if not len(needed) <= len(arguments) <= len(command.positional):
        raise UsageError(
            f"expected {' '.join(('ipuxla', name, *command.positional))}, got {len(arguments)} arguments"
        )
    return Invocation(command.run, values, arguments)


def _print_usage(values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """Print what commands there are."""
    del values, arguments
    print("usage: ipuxla COMMAND [--flags] [ARGUMENTS]\n\ncommands:")
    for name, command in COMMANDS.items():
        print(f"  {' '.join((name, *command.positional)):22}  {command.summary}")
    print("\n`ipuxla COMMAND --help` lists a command's flags.")


def _command_usage(name: str) -> str:
    """Return a command's usage: its flags with help and defaults."""
    command = COMMANDS[name]
    values = flags.FlagValues()
    command.define(values)
    lines = [f"usage: {' '.join(('ipuxla', name, *command.positional))} [--flags]", "", command.summary, ""]
    for flag_name in sorted(values):
        flag = values[flag_name]
        default = "" if flag.default is None else f" (default: {flag.default_as_str.strip(chr(39))})"
        choices = f": {', '.join(flag.parser.enum_values)}" if isinstance(flag, flags.EnumFlag) else ""
        lines.append(f"  --{flag_name:15} {flag.help}{choices}{default}")
    lines += [
        f"  --{'debug':15} show the traceback of an error",
        f"  --{'flagfile':15} read flags from a file",
    ]
    return "\n".join(lines)


def execute(invocation: Invocation) -> int:
    """Run a command and return the exit code; an error is its message on stderr."""
    debug = "debug" in invocation.values and invocation.values["debug"].value
    try:
        invocation.run(invocation.values, invocation.arguments)
        sys.stdout.flush()
    except UsageError as error:
        return _fail(error, BAD_INPUT, debug)
    except (IpuError, HloError) as error:
        return _fail(error, REFUSED, debug)
    except KeyboardInterrupt:
        print("ipuxla: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough; what Python still holds must not fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _fail(error: Exception, code: int, debug: bool) -> int:
    """Print an error, with its traceback when asked for, and return the exit code."""
    if debug:
        traceback.print_exception(error)
    kind = "" if isinstance(error, UsageError) else f"{type(error).__name__}: "
    print(f"ipuxla: {kind}{error}", file=sys.stderr)
    return code


def _parse_or_exit(argv: Sequence[str]) -> Invocation:
    """Parse for ``app.run``, which wants absl's global flags parsed too; they have none of ours."""
    flags.FLAGS(argv[:1])
    try:
        return parse(argv)
    except UsageError as error:
        sys.exit(_fail(error, BAD_INPUT, debug=False))


def main() -> None:
    """Run the command line and exit."""
    app.run(execute, flags_parser=_parse_or_exit)


if __name__ == "__main__":
    main()
