"""Textual pipelines and their runner: verification between passes, dumps and timings.

Grammar: ``pipeline = item {"," item}``, ``item = name ["{" option "=" value {"," ...} "}"] | "fix(" pipeline
  ")"``. A ``fix`` group repeats its passes until a whole round changes nothing.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

from hlo_passes.errors import HloError, UnsupportedOp
from hlo_passes.ir import Computation, Instruction, Module, print_module, verify
from hlo_passes.passes.base import LocalPass, Pass, find_pass, map_module
from hlo_passes.passes.errors import BrokenPass, InvalidPipeline, NoFixpoint
from hlo_passes.platforms import on_cpu

DEFAULT_PIPELINE = (
    "expand,inline,trim,dce,scatter-reductions,expand-fft,legalize-complex,narrow-products,dce,associative-scans,dce,join-transposes,recover-networks,precompute,powers,floored-quotients,repeat-elements,tabulate,"
    "regular-gathers,dce,share-costly,dce,serialize,dce,rematerialize,dce,outline-repeats,"
    "fix(canonicalize,fold-constants,windows,while-to-repeat,hoist,cse,dce),loop-products,dce,quotients,reshaped-windows,masked-diagonals,batch-indices,fixed-indices,long-slices,fold-nan,add-sparse-sums,dce,"
    "join-collectives,inline{max-ops=0,pointwise=true,apart=0},dce,join-rolls,top-groups,short-sorts,top-one,integer-quotients,dce,take-apart,cse,dce,fuse,outline,"
    "inline{max-ops=0,pointwise=true,most-added=64,apart=0},dce,fix(schedule,multi-output-fusion)"
)
"""What ``optimize`` runs unless told otherwise; this text is its only home."""

MAX_ROUNDS = 64
"""Rounds after which a ``fix`` group that still changes the module is taken for an endless one."""

_P = TypeVar("_P", bound=Pass)
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_VALUE = re.compile(r"[\w.+-]+")


@dataclass(frozen=True)
class Fix:
    """Passes to repeat until a round of them changes nothing."""

    items: tuple[Pass | Fix, ...]

    def __str__(self) -> str:
        """Return the text that reads back to this group."""
        return f"fix({','.join(map(str, self.items))})"


@dataclass(frozen=True)
class Pipeline:
    """Passes to run one after another."""

    items: tuple[Pass | Fix, ...]

    @classmethod
    def parse(cls, text: str) -> Pipeline:
        """Read a pipeline text; spaces are ignored, an empty text is the empty pipeline.

        Raises:
          InvalidPipeline: the text does not follow the grammar.
          UnknownPass: a name is no pass.
          UnknownPassOption: a pass lacks an option.
          InvalidPassOption: an option's value is of the wrong kind.
        """
        return cls(_Reader(text).whole())

    def __str__(self) -> str:
        """Return the text that reads back to this pipeline."""
        return ",".join(map(str, self.items))

    def having(self, changed: Pass) -> Pipeline:
        """Return the pipeline with a pass's options those of ``changed``, outside groups."""
        return Pipeline(tuple(changed if type(item) is type(changed) else item for item in self.items))

    def around(self, kind: type[_P]) -> tuple[Pipeline, _P, Pipeline]:
        """Return the passes before the first of a kind outside groups, that pass, and those after it.

        Raises:
          LookupError: there is none.
        """
        for n, item in enumerate(self.items):
            if isinstance(item, kind):
                return Pipeline(self.items[:n]), item, Pipeline(self.items[n + 1 :])
        raise LookupError(f"no pass {kind.name!r} in {self}")


def default_pipeline(*changed: Pass) -> Pipeline:
    """Return what ``optimize`` runs unless told otherwise, with passes' options those of ``changed``."""
    pipeline = Pipeline.parse(DEFAULT_PIPELINE)
    for one in changed:
        pipeline = pipeline.having(one)
    return pipeline


class PassTiming(NamedTuple):
    """How long one run of a pass took, its verification apart."""

    pass_name: str
    seconds: float
    verify_seconds: float
    has_changed: bool


@dataclass(frozen=True)
class PipelineRun:
    """A module after a pipeline, and what each pass took, in the order they ran."""

    module: Module
    timings: tuple[PassTiming, ...]

    @property
    def seconds(self) -> float:
        """Time of all passes and verifications together."""
        return sum(timing.seconds + timing.verify_seconds for timing in self.timings)

    def timing_table(self) -> str:
        """Return one line per pass run: milliseconds of the pass and of its verification."""
        lines = [
            f"{timing.seconds * 1e3:9.2f} ms {timing.verify_seconds * 1e3:9.2f} ms  {timing.pass_name}"
            f"{'' if timing.has_changed else ' (unchanged)'}"
            for timing in self.timings
        ]
        return "\n".join([f"{'pass':>12s} {'verify':>12s}", *lines])


def optimize(
    module: Module, pipeline: str | Pipeline | None = None, dump_dir: str | Path | None = None
) -> Module:
    """Return ``module`` after a pipeline, ``DEFAULT_PIPELINE`` if None.

    Args:
      module: a valid module.
      pipeline: pipeline, or its text.
      dump_dir: folder to write the text before and after each pass to; made if missing.

    Raises:
      InvalidPipeline, UnknownPass, UnknownPassOption, InvalidPassOption: see ``Pipeline.parse``.
      VerificationError: ``module`` itself is not valid.
      UnsupportedOp: an operation has a type that no pass here can legalize.
      BrokenPass: a pass failed or left an invalid module.
      NoFixpoint: a ``fix`` group does not come to rest.
    """
    return run_pipeline(module, pipeline, dump_dir=dump_dir).module


def run_pipeline(
    module: Module, pipeline: str | Pipeline | None = None, *, dump_dir: str | Path | None = None
) -> PipelineRun:
    """Run a pipeline as ``optimize`` does, and keep its timings. Raises as ``optimize`` does."""
    if not isinstance(pipeline, Pipeline):
        pipeline = Pipeline.parse(DEFAULT_PIPELINE if pipeline is None else pipeline)
    runner = _Runner(None if dump_dir is None else Path(dump_dir))
    verify(module, runner.known)
    with on_cpu():
        return PipelineRun(runner.run_all(pipeline.items, module), tuple(runner.timings))


@dataclass
class _Runner:
    dump_dir: Path | None
    timings: list[PassTiming] = field(default_factory=list[PassTiming])
    known: set[Instruction | Computation] = field(default_factory=set[Instruction | Computation])
    at_rest: dict[LocalPass, set[Computation]] = field(default_factory=dict[LocalPass, set[Computation]])

    def run_all(self, items: tuple[Pass | Fix, ...], module: Module) -> Module:
        for item in items:
            module = self.run_group(item, module) if isinstance(item, Fix) else self.run_pass(item, module)
        return module

    def run_group(self, group: Fix, module: Module) -> Module:
        for _ in range(MAX_ROUNDS):
            before = module
            module = self.run_all(group.items, module)
            if module is before:
                return module
        raise NoFixpoint(str(group), MAX_ROUNDS)

    def run_pass(self, item: Pass, module: Module) -> Module:
        position = len(self.timings) + 1
        self.dump(position, item, "before", module)
        start = time.perf_counter()
        try:
            result = self.run_at_work(item, module) if isinstance(item, LocalPass) else item.run(module)
            middle = time.perf_counter()
            if result is not module:
                verify(result, self.known)
        except UnsupportedOp:  # what the pass is there to rewrite, in a form it cannot
            raise
        except (HloError, AssertionError, KeyError, ValueError, TypeError, IndexError) as error:
            raise BrokenPass(item.name, position, error) from error
        end = time.perf_counter()
        self.timings.append(PassTiming(str(item), middle - start, end - middle, result is not module))
        self.dump(position, item, "after", result)
        return result

    def run_at_work(self, item: LocalPass, module: Module) -> Module:
        """Run a pass on computations that it has not left as they are before."""
        at_rest = self.at_rest.setdefault(item, set())

        def change(computation: Computation) -> Computation:
            if computation in at_rest:
                return computation
            changed = item.change(computation)
            if changed is computation:
                at_rest.add(computation)
            return changed

        return map_module(module, change)

    def dump(self, position: int, item: Pass, moment: str, module: Module) -> None:
        if self.dump_dir is None:
            return
        self.dump_dir.mkdir(parents=True, exist_ok=True)
        (self.dump_dir / f"{position:02d}-{item.name}-{moment}.hlo").write_text(print_module(module))


class _Reader:
    """Recursive descent over one pipeline text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.offset = 0

    def whole(self) -> tuple[Pass | Fix, ...]:
        self.skip_space()
        if self.offset == len(self.text):
            return ()
        items = self.items()
        if self.offset < len(self.text):
            self.fail("a comma or the end of the text")
        return items

    def items(self) -> tuple[Pass | Fix, ...]:
        items = [self.item()]
        while self.accept(","):
            items.append(self.item())
        return tuple(items)

    def item(self) -> Pass | Fix:
        name = self.take(_NAME, "a pass name")
        if name == "fix" and self.accept("("):
            items = self.items()
            self.expect(")")
            return Fix(items)
        cls = find_pass(name)
        return cls.from_texts(self.options() if self.accept("{") else {})

    def options(self) -> dict[str, str]:
        options: dict[str, str] = {}
        while not self.accept("}"):
            if options:
                self.expect(",")
            start = self.offset
            option = self.take(_NAME, "an option name")
            if option in options:
                self.offset = start
                self.fail("each option once")
            self.expect("=")
            options[option] = self.take(_VALUE, "a value")
        return options

    def take(self, pattern: re.Pattern[str], expected: str) -> str:
        match = pattern.match(self.text, self.offset)
        if match is None:
            self.fail(expected)
        self.offset = match.end()
        self.skip_space()
        return match[0]

    def accept(self, mark: str) -> bool:
        if not self.text.startswith(mark, self.offset):
            return False
        self.offset += len(mark)
        self.skip_space()
        return True

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            self.fail(repr(mark))

    def skip_space(self) -> None:
        while self.offset < len(self.text) and self.text[self.offset].isspace():
            self.offset += 1

    def fail(self, expected: str) -> NoReturn:
        raise InvalidPipeline(self.text, self.offset, expected)
