"""What is drawn, and one chunk of it: so many examples from a seed, in a process of its own."""

from __future__ import annotations

import collections
import hashlib
import os
import pathlib
import signal
import traceback
import warnings
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
import jax
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from hlo_passes.errors import HloError
from ipuxla.errors import InternalError, IpuError
from tests.control_programs import control_programs
from tests.draws import forget_constants_of_modules
from tests.further_steps import FURTHER
from tests.fuzz.checks import ENGINES, check_program, described
from tests.fuzz.together import collect_seldom, take_little_scratch
from tests.hostile import executables, modules
from tests.programs import ALL_FLOATS, ALL_TYPES, random_programs, with_smooth_results
from tests.unusual_programs import unusual_programs
from tiles.errors import InvalidExecutable, OutOfTileMemory
from tiles.target import Target

CHUNK = 30
"""Programs that a process draws, unless told otherwise, before it forgets what JAX compiled for them."""
HOSTILE_CHUNK = 400
"""Modules or executables of a process."""
APART = 30
"""Of so many programs one runs as users run it; of the others XLA compiles many functions at once."""
SLOW_S = 150
"""Of processor time for one example; a hang."""
SIZES = (3, 4, 2, 1, 5, 7, 12)

TARGETS = st.builds(
    lambda name, num_tiles: Target.named(name).replace(num_tiles=num_tiles),
    st.sampled_from(["gc200", "gc2", "bow"]),
    st.integers(1, 64),
)
PLANS = st.one_of(st.none(), st.integers(0, 2**32 - 1))
FEWEST, MOST = 15, 40
"""Operations of a program."""
PROGRAMS = random_programs(
    MOST,
    ALL_TYPES,
    sizes=SIZES,
    max_elements=400,
    min_steps=FEWEST,
    others=("int32", "bool"),
    tries=3,
    further=FURTHER,
)
LARGE_SIZES = (1000, 64, 3, 512, 1472, 128, 7, 2048, 37, 256, 1, 4096, 16)
MOST_LARGE = 1 << 18
"""Elements of an array of a large program, at most."""
LARGE = random_programs(
    16,
    [
        name for name in ALL_TYPES if not name.startswith("float8")
    ],  # sums of so many overflow in one order, not in another
    sizes=LARGE_SIZES,
    max_elements=MOST_LARGE,
    min_steps=6,
    others=("int32", "bool"),
    tries=3,
    further=FURTHER,
    most_of_argument=MOST_LARGE,
)
WHOLE = st.builds(
    lambda name, num_tiles: Target.named(name).replace(**({"num_tiles": num_tiles} if num_tiles else {})),
    st.sampled_from(["gc200", "gc2", "bow"]),
    st.sampled_from([0, 0, 0, 1000, 368]),
)
"""Machines with all of their tiles, or many."""
CONTROL = control_programs(floats=("float32", *(name for name in ALL_FLOATS if name != "float64")))


class Found(NamedTuple):
    """Something that a chunk found.

    Args:
      kind: what was drawn.
      what: the error's name and first line.
      script: Python that shows it.
    """

    kind: str
    what: str
    script: str


class Chunk(NamedTuple):
    """What a chunk did.

    Args:
      tried: by what they are, how many examples passed: ``programs``, and so many of them ``long`` (of ``FEWEST`` operations or
        more), ``on all`` engines, and ``in floats`` (compared with XLA), too; their ``vertices``, and those that engine ``tile``
        ran ``by code``; ``control``, ``unusual``, ``large``, ``modules``, ``executables``.
      refused: by the line of a named error, how many programs it refused.
      found: failures.
    """

    tried: collections.Counter[str]
    refused: dict[str, int]
    found: list[Found]


class TooSlow(BaseException):
    """An example took too long; no ``except Exception`` holds it up."""


def _stop(*_: Any) -> None:
    raise TooSlow


def run_chunk(kind: str, seed: int, folder: pathlib.Path, as_drawn: bool = False, size: int = CHUNK) -> Chunk:
    """Draw and check one chunk of a kind; everything follows from the seed and the failures in ``folder``.

    Args:
      kind: see ``Chunk``.
      seed: of all that is drawn.
      folder: of failures.
      as_drawn: whether programs that fail are left as they are and the chunk goes on, instead of making the first smaller.
      size: how many programs; more of them share more of what XLA compiled, and take more memory.
    """
    warnings.simplefilter("ignore")
    os.environ["IPUXLA_CACHE_DIR"] = ""
    signal.signal(signal.SIGVTALRM, _stop)
    forget_constants_of_modules()
    take_little_scratch()
    collect_seldom()
    if kind in ("modules", "executables"):
        return _hostile(kind, seed)
    with jax.enable_x64(kind != "control"):
        return _programs(kind, seed, folder, as_drawn, size)


def _programs(kind: str, seed: int, folder: pathlib.Path, as_drawn: bool, size: int) -> Chunk:
    programs: Any = {
        "programs": PROGRAMS,
        "control": CONTROL,
        "unusual": unusual_programs(),
        "large": LARGE,
    }[kind]
    is_large = kind == "large"
    last: dict[str, Any] = {}
    refused: dict[str, int] = {}
    tried: collections.Counter[str] = collections.Counter()
    found: list[Found] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=size,
        deadline=None,
        derandomize=False,
        database=DirectoryBasedExampleDatabase(folder / "examples" / kind),
        phases=(Phase.reuse, Phase.generate, Phase.shrink),
        suppress_health_check=[*HealthCheck],
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    @given(programs, WHOLE if is_large else TARGETS, st.none() if is_large else PLANS, st.integers(0, 2**16))
    def check(program: Any, target: Target, plan_seed: int | None, data_seed: int) -> None:
        is_smooth = kind in ("programs", "large")
        program, smooth = with_smooth_results(program) if is_smooth else (program, ())
        lowered = jax.jit(program.function, keep_unused=True).lower(*program.arguments)
        if (
            not is_smooth
        ):  # of decisions that follow an operand's last bit, ``check_program`` finds most itself
            smooth = tuple(range(len(jax.tree.leaves(lowered.out_info))))
        text, arrays = lowered.as_text(), program.arrays(data_seed)
        apart = zlib.crc32(text.encode()) % APART == 0
        engines = ("fast",) if is_large else ENGINES
        last["parts"] = text, arrays, target, plan_seed, smooth, apart, engines
        last["program"] = program
        signal.setitimer(signal.ITIMER_VIRTUAL, SLOW_S)
        try:
            checked = check_program(*last["parts"])
            tried[kind] += 1
            if kind not in ("unusual", "large"):
                tried["in floats"] += checked.with_xla > 0
                tried["on all"] += checked.on_all
                tried["long"] += kind == "programs" and len(program.steps) >= FEWEST
                tried["vertices"] += checked.vertices
                tried["by code"] += checked.by_code
        except (IpuError, HloError) as error:
            if isinstance(error, (InternalError, InvalidExecutable, OutOfTileMemory)):
                raise
            line = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            refused[line] = refused.get(line, 0) + 1
        except TooSlow as slow:
            raise TimeoutError(f"more than {SLOW_S} s of processor time") from slow
        except Exception as error:
            if not as_drawn:
                raise
            found.append(failure(error))
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def failure(error: Exception) -> Found:
        line = _line(error)
        frames = "".join(traceback.format_tb(error.__traceback__)[-8:]).replace('"' * 3, "'" * 3)
        text = f"{line}\n\n{last['program']}\n\n{frames}"
        return Found(kind, line, f'r"""{text}"""\n\n{described(*last["parts"])}')

    try:
        check()
    except Exception as error:
        found.append(failure(error))
    return Chunk(tried, refused, found)


def _hostile(kind: str, seed: int) -> Chunk:
    run: Callable[[int, int], str] = {"modules": modules.run_apart, "executables": executables.run}[kind]
    found: list[Found] = []
    count = HOSTILE_CHUNK if kind == "executables" else HOSTILE_CHUNK // 8
    for number in range(count):
        signal.setitimer(signal.ITIMER_VIRTUAL, SLOW_S)
        try:
            answer = run(seed, number)
        except (Exception, TooSlow) as error:
            answer = f"UNNAMED {_line(error)}"
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if answer[:4].isupper():
            call = "run_apart" if kind == "modules" else "run"
            script = f"from tests.hostile import {kind}\n\nprint({kind}.{call}({seed}, {number}))\n"
            found.append(Found(kind, answer, script))
    return Chunk(collections.Counter({kind: count}), {}, found)


def _line(error: BaseException) -> str:
    """Return an error's name and first line, and where it was raised."""
    first = (str(error).splitlines() or [""])[0]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({pathlib.Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {first}{place}"


def written(found: Found, folder: pathlib.Path) -> pathlib.Path:
    """Write a failure's script, named by what it is, and return its path."""
    name = hashlib.sha256(found.script.encode()).hexdigest()[:12]
    path = folder / "failures" / f"{found.kind}_{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(found.script, encoding="utf-8")
    return path
