"""The flags of a machine and its emulation, for experiments that are absl programs of their own.

    absl_flags.define()

    def main(argv):
        step = ipuxla.jit(training_step, **absl_flags.chosen())

    if __name__ == "__main__":
        app.run(main)

Then ``python experiment.py --target=bow --engine=literal --flagfile=...`` works as it does with ``ipuxla run``.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import os

from absl import flags

from ipuxla.errors import IpuError
from ipuxla.options import ARITHMETICS, DEFAULT_TARGET, ENGINES, TargetChoices
from tiles.kept import FOLDER
from tiles.target import find_machine, known_names, known_systems


def define(values: flags.FlagValues = flags.FLAGS) -> None:
    """Add the flags ``--target``, ``--engine``, ``--arithmetic``, ``--[no]check_memory`` and ``--[no]cache``.

    Args:
      values: what to add them to; absl's global flags unless given.
    """
    known = ", ".join((*known_names(), *known_systems()))
    flags.DEFINE_string(
        "target", DEFAULT_TARGET, f"{known}, several of one (gc2 x 16), or a data file", flag_values=values
    )
    flags.register_validator("target", _exists, flag_values=values)
    flags.DEFINE_enum("engine", "fast", ENGINES, "how the machine is emulated", flag_values=values)
    flags.DEFINE_enum("arithmetic", "float", ARITHMETICS, "floats, or exact words", flag_values=values)
    flags.DEFINE_bool(
        "check_memory", True, "refuse a program that does not fit into the tiles", flag_values=values
    )
    flags.DEFINE_bool(
        "cache", True, f"keep compiled programs on disk, in {FOLDER} or ~/.cache/ipuxla", flag_values=values
    )


def _exists(target: str) -> bool:
    """Tell at parsing, as absl tells it of other flags, when there is no such machine."""
    try:
        find_machine(target)
    except IpuError as error:
        raise flags.ValidationError(str(error)) from error
    return True


def chosen(values: flags.FlagValues = flags.FLAGS) -> TargetChoices:
    """Return what was chosen as keyword arguments of ``ipuxla.jit`` and ``ipuxla.compile_stablehlo``.

    ``--nocache`` turns the cache of compiled programs off for this process.

    Args:
      values: what ``define`` added flags to, parsed.
    """
    if not values.cache:
        os.environ[FOLDER] = ""
    return {
        "target": find_machine(values.target),
        "engine": values.engine,
        "arithmetic": values.arithmetic,
        "check_memory": values.check_memory,
    }
