"""Compiled programs: call, inspect, save and load them.

A loaded program runs where the frontend, the lowering and the HLO passes cannot even be imported, which is
how one knows that its results come from the executable alone.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax

from ipuxla._jax_compat import Datum, Device, Tree
from ipuxla.collection import collection_paused
from ipuxla.described import Described
from ipuxla.errors import InvalidExecutable, UnknownStage, Unsupported
from ipuxla.options import ARITHMETICS, ENGINES, named_devices
from ipuxla.runner import Runner, on_tiles
from ipuxla.sharding import ArraySharding, Placement
from ipuxla.signature import LeafType, Signature
from tiles import report
from tiles._jax_compat import eval_shape
from tiles.compiler import Certificate, Executable, Variable, load_executable, print_plans
from tiles.engine import Coverage, Trace, certify, coverage_of
from tiles.files import JsonObject, is_dict, opened, read_json, sealed, write_files
from tiles.graph import Stream

_MAGIC = b"ipuxla-program\n"
_FORMAT = 2
_HEADER = {"format": int, "engine": str, "arithmetic": str, "strict": bool, "signature": dict}
_LENGTH_BYTES = 8


class Compiled(Described):
    """A program compiled for one machine, ready to be called with arrays of the types it was compiled for.

    Call it as the function it came from, static arguments left out. ``engine`` and ``arithmetic`` say how it
    runs; under ``ring`` arithmetic float results come back as unsigned integers of the same width.
    """

    def __init__(
        self, signature: Signature, runner: Runner, texts: Mapping[str, Callable[[], str]] | None = None
    ) -> None:
        """Put a program together from what it takes and returns, what runs it, and printers of its stages."""
        self.signature = signature
        self._runner = runner
        self._texts = dict(texts or {})
        self._to_words = [leaf.to_words for leaf in signature.inputs]
        self._has_plain_results = all(
            leaf.key is None and leaf.words == (leaf,) for leaf in signature.outputs
        )

    @property
    def engine(self) -> str:
        """The engine that runs it."""
        return self._runner.engine

    @property
    def arithmetic(self) -> str:
        """``float`` or ``ring``."""
        return self._runner.arithmetic

    @property
    def executable(self) -> Executable:
        """The program as plain data."""
        return self._runner.executable

    @property
    def streams(self) -> Mapping[str, Stream]:
        """The streams by which it exchanges items with the host, by name: direction, item type and shape."""
        return self._runner.streams

    # ---- calling

    def __call__(self, *args: Tree, **kwargs: Tree) -> Tree:
        """Run the program.

        One that exchanges items with the host takes ``streams``, by name of every stream from the host its items,
        an array ``[items, *shape]``. If it has streams to the host it returns a pair: its result, and by name what
        each of these received.

        Raises:
          WrongArguments: arguments of another structure, shape or element type, or JAX tracers.
          InvalidArguments: other streams than the program's, or too few items.
        """
        if self.streams:
            return self._exchange(args, kwargs)
        return self.signature.unflatten(self.run(*self.signature.flatten(args, kwargs)))

    def _exchange(self, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> Tree:
        """Run with streams."""
        items = kwargs.pop("streams", None)
        leaves = self.signature.flatten(args, kwargs)
        with jax.enable_x64(True):
            outputs, received = self._runner.run_streams(self._words(leaves), items)
            outputs = self._results(outputs)
        for position in self.signature.donated:
            _consume(leaves[position], outputs)
        result = self.signature.unflatten(outputs)
        return (result, received) if any(s.to_host for s in self.streams.values()) else result

    def run(self, *leaves: Datum) -> list[Datum]:
        """Run on argument leaves, taken to be of the right types, and return the result leaves."""
        with jax.enable_x64(True):
            outputs = self._results(self._runner.run(*self._words(leaves)))
        for position in self.signature.donated:
            _consume(leaves[position], outputs)
        return outputs

    def trace(self, *leaves: Datum) -> list[Datum]:
        """Run on tracers of an outer JAX transformation: the program becomes part of the outer one.

        Raises:
          HostEngineInsideJit: the engine steps on the host.
        """
        with jax.enable_x64(True):
            return self._results(self._runner.trace(*self._words(leaves)))

    def _words(self, leaves: Sequence[Datum]) -> list[Datum]:
        return [
            words for to_words, leaf in zip(self._to_words, leaves, strict=True) for words in to_words(leaf)
        ]

    def _results(self, outputs: list[Datum]) -> list[Datum]:
        """Return result leaves: keys wrapped, parts of complex numbers joined."""
        if self._has_plain_results:
            return outputs
        remaining = iter(outputs)
        return [leaf.from_words([next(remaining) for _ in leaf.words]) for leaf in self.signature.outputs]

    # ---- inspecting

    def cost_analysis(self) -> JsonObject:
        """Return cycles, seconds, flops, bytes exchanged and supersteps that are known without running."""
        return report.cost_analysis(self.executable)

    def memory_analysis(self) -> JsonObject:
        """Return bytes per category, the fullest tile, the total and the limit."""
        return report.memory_analysis(self.executable)

    def profile(self, *args: Tree, **kwargs: Tree) -> report.Profile:
        """Run once, count, and return the cost of what ran; ``streams`` as when called. Donated arguments are kept.

        Without arguments a program is not run whose cost does not depend on them.

        Raises:
          WrongArguments: as when called; no arguments, where loops, branches or streams depend on them.
          Unsupported: engine ``hlo``, which has no supersteps to count.
        """
        return report.profile(self.executable, self._record(args, kwargs), self.arguments)

    def report(self, folder: str | os.PathLike[str], *args: Tree, **kwargs: Tree) -> list[Path]:
        """Run once and write the report's files into ``folder``; arguments as for ``profile``, which it raises as."""
        return report.write_report(self.executable, self._record(args, kwargs), folder, self.arguments)

    @property
    def arguments(self) -> tuple[report.Argument, ...]:
        """What reports say of each array that a program of several IPUs takes; none for one."""
        placement = self.signature.placement
        if placement is None:
            return ()
        leaves = zip(self.signature.names, self.signature.inputs, placement.inputs, strict=True)
        return tuple(
            report.Argument(name, leaf.shape, sharding.describe(placement.mesh))
            for name, leaf, sharding in leaves
            for _ in leaf.words
        )

    def _record(self, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> Trace:
        if not args and not kwargs and self.signature.inputs:
            return self._runner.static_trace()
        streams = kwargs.pop("streams", None) if self.streams else None
        words = self._words(self.signature.flatten(args, kwargs))
        with jax.enable_x64(True):
            return self._runner.run_traced(*words, streams=streams)[1]

    def as_text(self, stage: str = "program") -> str:
        """Return a stage as text; a loaded program holds only "plans", "program" and "tile".

        "plans" is what ``jit`` and its relatives take as ``plans``.

        Raises:
          UnknownStage: there is no such stage here.
        """
        own = {
            "plans": lambda: print_plans(self.executable),
            "program": lambda: self.executable.text(),
            "tile": lambda: report.print_tile_code(self.executable),
        }
        printers = {**self._texts, **own}
        if stage not in printers:
            raise UnknownStage(
                f"there is no stage {stage!r} here", expected=", ".join(printers), got=repr(stage)
            )
        return printers[stage]()

    def tile_coverage(self) -> Coverage:
        """Return which vertices have tile code, which engine ``tile`` runs, and why others have none."""
        return coverage_of(self.executable, self.arithmetic)

    def certify(self) -> Certificate:
        """Check by independent means that no live buffers overlap and every byte read was written."""
        return certify(self.executable)

    # ---- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program into one file, for ``ipuxla.load``. The same program gives the same bytes.

        Raises:
          NotWritten: the file cannot be written; what was there before is still there.
        """
        write_files({path: self._to_bytes()})

    def _to_bytes(self) -> bytes:
        header = {
            "format": _FORMAT,
            "engine": self.engine,
            "arithmetic": self.arithmetic,
            "strict": self._runner.strict,
            "signature": self.signature.to_data(),
        }
        text = _header_text(header)
        length = len(text).to_bytes(_LENGTH_BYTES, "little")
        return sealed(_MAGIC, length + text + self.executable.to_bytes())

    def __reduce__(self) -> tuple[Callable[[bytes, str], Compiled], tuple[bytes, str]]:
        """Pickle and copy as the saved form, which works in any process.

        Raises:
          Unsupported: engine ``hlo`` evaluates a module that the saved form does not hold.
        """
        if self.engine == "hlo":
            raise Unsupported(
                'a program for engine "hlo" does not pickle: its saved form does not hold the HLO module',
                try_='compile(engine="fast") and pickle that, or send the function',
            )
        return loaded, (self._to_bytes(), "a pickled program")

    def __repr__(self) -> str:
        """Show arguments, results and what runs it."""
        inputs = ", ".join(
            f"{name}: {leaf}" for name, leaf in zip(self.signature.names, self.signature.inputs, strict=True)
        )
        outputs = ", ".join(map(str, self.signature.outputs))
        return f"ipuxla.Compiled(({inputs}) -> ({outputs}), {self.engine!r}, {self.arithmetic!r})"


def load(
    path: str | os.PathLike[str],
    *,
    engine: str | None = None,
    arithmetic: str | None = None,
    devices: Sequence[Device] = (),
) -> Compiled:
    """Read a program that ``Compiled.save`` wrote.

    A structure of arguments or results that holds types of the user's own is not in the file: such a program
    takes or returns leaves, and a warning says so.

    Args:
      path: the file.
      engine: runs it instead of the engine it was compiled for.
      arithmetic: used instead of the one it was compiled for.
      devices: as for ``ipuxla.jit``; the file names none.

    Raises:
      InvalidExecutable: not such a file, damaged, or of another version.
      Unsupported: the program was compiled for engine ``hlo``, and no other is given.
      InvalidOption: an unknown engine or arithmetic, or devices that are none.
    """
    try:
        blob = Path(path).read_bytes()
    except MemoryError as error:
        raise InvalidExecutable("the file is larger than memory", location=str(path)) from error
    program = loaded(blob, str(path), engine, arithmetic, devices)
    for note in program.signature.notes:
        warnings.warn(f"{path}: {note}", stacklevel=2)
    return program


def loaded(
    blob: bytes,
    path: str,
    engine: str | None = None,
    arithmetic: str | None = None,
    devices: Sequence[Device] = (),
) -> Compiled:
    """Return the program of a saved file's bytes; ``path`` says where they are from. Raises as ``load`` does."""
    header, body = _split(blob, path)
    signature = Signature.from_data(header["signature"])
    if header["engine"] not in ENGINES or header["arithmetic"] not in ARITHMETICS:
        raise InvalidExecutable(
            "the saved program names no engine, or no arithmetic",
            location=path,
            got=f"{header['engine']!r}, {header['arithmetic']!r}",
        )
    with collection_paused():
        executable = load_executable(body)
    _check_fit(signature, executable, path)
    _check_donated(signature, executable, path)
    runner = Runner(
        executable,
        on_tiles(
            executable,
            engine or header["engine"],
            arithmetic or header["arithmetic"],
            header["strict"],
            named_devices(devices),
        ),
        strict=header["strict"],
        donated=signature.donated_words,
        placement=signature.words_placement,
    )
    return Compiled(signature, runner)


def _split(blob: bytes, path: str) -> tuple[JsonObject, bytes]:
    """Return a file's header and the executable's bytes."""
    if not blob.startswith(_MAGIC):
        raise InvalidExecutable("this is no saved program", location=path, got=repr(blob[: len(_MAGIC)]))
    try:
        data = opened(_MAGIC, blob)
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        header = read_json(data[_LENGTH_BYTES:end])
    except ValueError as error:
        raise InvalidExecutable(f"the saved program is damaged: {error}", location=path) from error
    found = header.get("format") if is_dict(header) else None
    if found != _FORMAT:
        raise InvalidExecutable(
            "the saved program is of another version", location=path, expected=_FORMAT, got=found
        )
    if header.keys() != _HEADER.keys():
        odd = ", ".join(sorted(header.keys() ^ _HEADER.keys()))
        raise InvalidExecutable(f"the saved program lacks or adds {odd}", location=path)
    for key, kind in _HEADER.items():
        if type(header[key]) is not kind:
            raise InvalidExecutable(f"the saved program's {key} is no {kind.__name__}", location=path)
    return header, data[end:]


def _header_text(header: JsonObject) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _check_fit(signature: Signature, executable: Executable, path: str) -> None:
    """Refuse a file whose two halves belong to different programs."""
    placement = signature.words_placement
    replicas = 1 if placement is None else placement.num_devices
    if executable.replicas.count != replicas:
        raise InvalidExecutable(
            "the program's replicas are not its signature's",
            location=path,
            expected=f"{replicas:,}",
            got=f"{executable.replicas.count:,}",
        )
    if (differs := _differs_along(placement, executable)) != executable.differs_along:
        raise InvalidExecutable(
            "the program's inputs differ between replicas along other axes than its signature says",
            location=path,
            expected=str(differs)[:200],
            got=str(executable.differs_along)[:200],
        )
    for role, leaves, names in (
        ("inputs", signature.inputs, executable.inputs),
        ("outputs", signature.outputs, executable.outputs),
    ):
        variables = [executable.variables[name] for name in names]
        words = [part for leaf in leaves for part in leaf.words]
        if placement is not None:
            words = _local(words, placement.inputs if role == "inputs" else placement.outputs)
        if len(variables) != len(words) or not all(map(_matches, words, variables)):
            raise InvalidExecutable(
                f"the program's {role} are not its signature's",
                location=path,
                expected=", ".join(map(str, leaves)),
                got=", ".join(f"{v.dtype}{list(v.shape)}" for v in variables),
            )


def _differs_along(placement: Placement | None, executable: Executable) -> tuple[tuple[str, ...], ...]:
    """Return along which of an executable's axes of replicas the arguments differ."""
    if placement is None:
        return () if executable.system is None else ((),) * len(executable.inputs)
    axes = executable.replicas.axes
    differs = [sharding.axes(axes) for sharding in placement.inputs]
    return tuple(tuple(axis for axis, _ in axes if axis in own) for own in differs)


def _local(words: Sequence[LeafType], shardings: Sequence[ArraySharding]) -> list[LeafType]:
    """Return the types of the parts that one replica holds."""
    if len(words) != len(shardings):
        return []
    of_arrays = [
        dataclasses.replace(s, dimensions=s.dimensions[: len(w.shape)])
        for w, s in zip(words, shardings, strict=True)
    ]
    return [
        dataclasses.replace(word, shape=sharding.local_shape(word.shape))
        for word, sharding in zip(words, of_arrays, strict=True)
    ]


def _check_donated(signature: Signature, executable: Executable, path: str) -> None:
    """Refuse a file that would take other arguments from its callers than those whose memory the program takes over."""
    if tuple(sorted(signature.donated_words)) != tuple(sorted(executable.donated)):
        raise InvalidExecutable(
            "the program's donated arguments are not its signature's",
            location=path,
            expected=", ".join(map(str, executable.donated)) or "none",
            got=", ".join(map(str, signature.donated_words)) or "none",
        )


def _matches(leaf: LeafType, variable: Variable) -> bool:
    """Whether a variable holds a leaf; a key's words add dimensions, as many as its generator has it."""
    if leaf.key is None:
        return (variable.shape, variable.dtype) == (leaf.shape, leaf.dtype)
    words = jax.ShapeDtypeStruct(variable.shape, variable.dtype)
    try:
        keys = eval_shape(functools.partial(jax.random.wrap_key_data, impl=leaf.key), words)
    except (TypeError, ValueError):
        return False
    return keys.shape == leaf.shape


def _consume(leaf: Datum, outputs: Sequence[Datum]) -> None:
    """Delete a donated array, as JAX does, unless it is itself a result."""
    if (
        isinstance(leaf, jax.Array)
        and not leaf.is_deleted()
        and not any(leaf is output for output in outputs)
    ):
        leaf.delete()
