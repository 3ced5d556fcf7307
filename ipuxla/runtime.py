"""Compiled programs: call, inspect, save and load them. Needs an executable and ``tiles``, nothing that made it.

A loaded program runs where the frontend, the lowering and the HLO passes cannot even be imported, which is how one
knows that its results come from the executable alone.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from ipuxla.errors import HostEngineInsideJit, InvalidExecutable, InvalidOption, Unsupported, UnknownStage
from ipuxla.options import ARITHMETICS, ENGINES, require_one_of
from ipuxla.signature import LeafType, Signature
from tiles import report
from tiles.compiler import Executable, certify
from tiles.engine import make_engine

_MAGIC = b"ipuxla-program\n"
_FORMAT = 1


class Compiled:
    """A program compiled for one machine, ready to be called with arrays of the types it was compiled for.

    Call it as the function it came from, static arguments left out. ``engine`` and ``arithmetic`` say how it runs; under
    ``ring`` arithmetic float results come back as unsigned integers of the same width.
    """

    def __init__(
        self,
        signature: Signature,
        executable: Executable | Callable[[], Executable],
        *,
        engine: str = "fast",
        arithmetic: str = "float",
        strict: bool = True,
        texts: Mapping[str, Callable[[], str]] | None = None,
        evaluate: Callable[..., Sequence[jax.Array]] | None = None,
    ) -> None:
        """Put a program together.

        Args:
          signature: arguments and results.
          executable: the program, or a function that compiles it when it is first needed.
          engine: one of ``ipuxla.options.ENGINES``.
          arithmetic: ``float`` or ``ring``.
          strict: whether the fast engine keeps the plan's order of reductions.
          texts: printer of each stage that led here.
          evaluate: what engine ``hlo`` runs: a traceable function of the argument leaves.

        Raises:
          InvalidOption: an unknown engine or arithmetic.
          Unsupported: engine ``hlo`` without the module it evaluates.
        """
        require_one_of("engine", engine, ENGINES)
        require_one_of("arithmetic", arithmetic, ARITHMETICS)
        if engine == "hlo" and evaluate is None:
            raise Unsupported(
                'engine "hlo" evaluates the HLO module, which a saved program does not hold',
                expected="engine fast, literal or vertex",
                try_='ipuxla.load(path, engine="fast"), or compile the function again',
            )
        self.signature = signature
        self.engine = engine
        self.arithmetic = arithmetic
        self.strict = strict
        self._executable = executable
        self._texts = dict(texts or {})
        self._evaluate = evaluate
        self._in_words = [leaf.to_words for leaf in signature.inputs]
        self._key_outputs = [(k, leaf) for k, leaf in enumerate(signature.outputs) if leaf.key is not None]

    # ---- calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Raises:
          WrongArguments: arguments of another structure, shape or element type, or JAX tracers.
        """
        return self.signature.unflatten(self.run(*self.signature.flatten(args, kwargs)))

    def run(self, *leaves: Any) -> list[Any]:
        """Run on argument leaves, taken to be of the right types, and return the result leaves."""
        with jax.enable_x64(True):
            words = [to_words(leaf) for to_words, leaf in zip(self._in_words, leaves, strict=True)]
            outputs = self._wrap_keys(self._run(*words))
        for position in self.signature.donated:
            _consume(leaves[position], outputs)
        return outputs

    def trace(self, *leaves: Any) -> list[Any]:
        """Run on tracers of an outer JAX transformation: the program becomes part of the outer one.

        Raises:
          HostEngineInsideJit: the engine steps on the host.
        """
        if self.engine not in ("fast", "hlo"):
            raise HostEngineInsideJit(
                f"engine {self.engine!r} steps through the program on the host and cannot become part of an outer jax.jit",
                expected='engine="fast" or engine="hlo" inside jax.jit, jax.lax.scan and the like',
                got=f"engine={self.engine!r}",
                try_="call the decorated function outside jax.jit (jax.grad and jax.vmap are fine), or use another engine",
            )
        with jax.enable_x64(True):
            words = [to_words(leaf) for to_words, leaf in zip(self._in_words, leaves, strict=True)]
            return self._wrap_keys(self._traceable(*words))

    def _wrap_keys(self, outputs: Sequence[Any]) -> list[Any]:
        outputs = list(outputs)
        for position, leaf in self._key_outputs:
            outputs[position] = leaf.from_words(outputs[position])
        return outputs

    @functools.cached_property
    def _traceable(self) -> Callable[..., Sequence[Any]]:
        """The program as a pure JAX function of its words."""
        return self._evaluate if self.engine == "hlo" and self._evaluate is not None else self._machine.trace

    @functools.cached_property
    def _run(self) -> Callable[..., Sequence[Any]]:
        """The program as a function of arrays, without a trace of its steps."""
        if self.engine in ("fast", "hlo"):
            donated = self.signature.donated if self.arithmetic == "float" else ()
            return jax.jit(self._traceable, donate_argnums=donated)
        return lambda *words: self._machine.run(*words)[0]

    @functools.cached_property
    def _machine(self) -> Any:
        """The engine, holding the executable."""
        return make_engine(self.executable, engine=self.engine, arithmetic=self.arithmetic, strict=self.strict)

    # ---- inspecting

    @functools.cached_property
    def executable(self) -> Executable:
        """The program as plain data."""
        return self._executable() if callable(self._executable) else self._executable

    def cost_analysis(self) -> dict[str, Any]:
        """Return cycles, seconds, flops, bytes exchanged and supersteps that are known without running."""
        return report.cost_analysis(self.executable)

    def memory_analysis(self) -> dict[str, Any]:
        """Return bytes per category, the fullest tile, the total and the limit."""
        return report.memory_analysis(self.executable)

    def profile(self, *args: Any, **kwargs: Any) -> Any:
        """Run once, count, and return the cost of what ran. Donated arguments are kept.

        Raises:
          WrongArguments: as when called.
          Unsupported: engine ``hlo``, which has no supersteps to count.
        """
        return report.profile(self.executable, self._traced_run(args, kwargs))

    def report(self, folder: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """Run once and write the report's files into ``folder``. Raises as ``profile`` does."""
        return report.write_report(self.executable, self._traced_run(args, kwargs), folder)

    def _traced_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.engine == "hlo":
            raise Unsupported(
                'engine "hlo" evaluates the module op by op and has no supersteps to count',
                try_='compile(engine="fast") and profile that',
            )
        leaves = self.signature.flatten(args, kwargs)
        with jax.enable_x64(True):
            words = [to_words(leaf) for to_words, leaf in zip(self._in_words, leaves, strict=True)]
            return self._machine.run(*words)[1]

    def as_text(self, stage: str = "program") -> str:
        """Return a stage as text; a loaded program holds only "program".

        Raises:
          UnknownStage: there is no such stage here.
        """
        printers = {**self._texts, "program": lambda: self.executable.text()}
        if stage not in printers:
            raise UnknownStage(f"there is no stage {stage!r} here", expected=", ".join(printers), got=repr(stage))
        return printers[stage]()

    def certify(self) -> Any:
        """Check the executable by independent means: no two live buffers overlap, every byte read was written."""
        return certify(self.executable)

    # ---- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program into one file, for ``ipuxla.load``. The same program gives the same bytes."""
        header = {
            "format": _FORMAT,
            "engine": self.engine,
            "arithmetic": self.arithmetic,
            "strict": self.strict,
            "signature": self.signature.to_data(),
        }
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        Path(path).write_bytes(_MAGIC + len(text).to_bytes(8, "little") + text + self.executable.to_bytes())

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name}: {leaf}" for name, leaf in zip(self.signature.names, self.signature.inputs, strict=True))
        outputs = ", ".join(map(str, self.signature.outputs))
        return f"ipuxla.Compiled(({inputs}) -> ({outputs}), engine={self.engine!r}, arithmetic={self.arithmetic!r})"


def load(path: str | os.PathLike[str], *, engine: str | None = None, arithmetic: str | None = None) -> Compiled:
    """Read a program that ``Compiled.save`` wrote.

    Args:
      path: the file.
      engine: runs it instead of the engine it was compiled for.
      arithmetic: used instead of the one it was compiled for.

    Raises:
      InvalidExecutable: not such a file, damaged, or of another version.
      Unsupported: the program was compiled for engine ``hlo``, and no other is given.
      InvalidOption: an unknown engine or arithmetic.
    """
    blob = Path(path).read_bytes()
    if not blob.startswith(_MAGIC):
        raise InvalidExecutable("this is no saved program", location=str(path), got=repr(blob[: len(_MAGIC)]))
    start = len(_MAGIC) + 8
    end = start + int.from_bytes(blob[len(_MAGIC) : start], "little")
    try:
        header = json.loads(blob[start:end])
        found, stored = header["format"], {name: header[name] for name in ("engine", "arithmetic", "strict")}
        signature_data = header["signature"]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidExecutable(f"the saved program is damaged: {error}", location=str(path)) from error
    if found != _FORMAT:
        raise InvalidExecutable("the program is of another version", location=str(path), expected=_FORMAT, got=found)
    signature = Signature.from_data(signature_data)
    executable = Executable.from_bytes(blob[end:])
    _check_fit(signature, executable, str(path))
    choices = {"engine": engine or stored["engine"], "arithmetic": arithmetic or stored["arithmetic"]}
    return Compiled(signature, executable, strict=bool(stored["strict"]), **choices)


def _check_fit(signature: Signature, executable: Executable, path: str) -> None:
    """Refuse a file whose two halves belong to different programs."""
    for role, leaves, names in (
        ("inputs", signature.inputs, executable.inputs),
        ("outputs", signature.outputs, executable.outputs),
    ):
        found = [executable.variables[name] for name in names]
        expected = [(leaf.shape, leaf.dtype) for leaf in leaves]
        got = [(v.shape[: len(leaf.shape)] if leaf.key else v.shape, v.dtype) for v, leaf in zip(found, leaves, strict=False)]
        if len(found) != len(leaves) or expected != got:
            raise InvalidExecutable(f"the program's {role} are not its signature's", location=path, expected=expected, got=got)


def _consume(leaf: Any, outputs: Sequence[Any]) -> None:
    """Delete a donated array, as JAX does, unless it is itself a result."""
    if isinstance(leaf, jax.Array) and not leaf.is_deleted() and not any(leaf is output for output in outputs):
        leaf.delete()


__all__ = ["Compiled", "InvalidOption", "LeafType", "Signature", "load"]
