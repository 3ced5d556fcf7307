"""Executable: a compiled program as versioned plain data.

Engines, reports and the certifier start from it alone. A codelet appears as (name, version, static
parameters), a user's codelet as exported StableHLO with its figures. What is exchanged is not listed but follows
from a step's plan and its operands' layouts and addresses, so a file cannot state the two inconsistently.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tiles.cached import cached_property
from tiles.codelets import ExportedCodelet
from tiles.codelets.modules import Module, admit
from tiles.compiler.control import Part, functions_of, part_data, part_from
from tiles.compiler.steps import ExecuteStep, StepRecord, VertexGroup, at_line, step_from_data
from tiles.errors import InvalidExecutable
from tiles.files import JsonObject, is_dict, is_list, opened, read_json, sealed
from tiles.graph import Layout, RemoteBuffer, Replicas, Stream
from tiles.numerics.dtypes import to_jax
from tiles.target import System, Target

FORMAT_VERSION = 11
MAGIC = b"ipuxla-executable\n"


@dataclass(frozen=True)
class Variable:
    """A tensor in tile memory.

    Args:
      name: unique name.
      shape: logical shape.
      dtype: numpy-style name.
      layout: its partition; every part starts at the storage's address on its tile.
      storage: name of the buffer that holds it (shared by views and by results computed in place).
      kind: input, constant or temporary.
      location: the user's source line.
      view_of: the variable whose elements this one names in another shape, or "".
      value: the value of a constant.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: Layout
    storage: str
    kind: str
    location: str = ""
    view_of: str = ""
    value: np.ndarray | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Buffer:
    """A range of addresses on a set of tiles for a span of steps.

    Args:
      name: unique name.
      category: one of ``CATEGORIES``.
      address: first byte, in the tile's address space.
      size_bytes: bytes on every tile of the set.
      tiles: ``(first, end)`` ranges of tile numbers.
      start: first step (inclusive) it is live in; -1 for before the program.
      end: last step (inclusive); the number of steps for after the program.
      location: the user's source line.
    """

    name: str
    category: str
    address: int
    size_bytes: int
    tiles: tuple[tuple[int, int], ...]
    start: int
    end: int
    location: str = ""

    @property
    def tile_numbers(self) -> np.ndarray:
        """Tiles it occupies, ascending int64."""
        return (
            np.concatenate([np.arange(lo, hi) for lo, hi in self.tiles])
            if self.tiles
            else np.zeros(0, np.int64)
        )


CATEGORIES = (
    "variable",
    "constant",
    "message",
    "vertexInstanceState",
    "vertexScratch",
    "vertexCode",
    "internalExchangeCode",
    "hostExchangeCode",
    "hostExchangePacketHeader",
    "hostMessage",
    "controlCode",
    "stack",
)


CODE_CATEGORIES = ("vertexCode", "internalExchangeCode", "hostExchangeCode", "controlCode")
"""Categories of what instructions are fetched from, which lies where that is possible."""


MovementId = tuple[int, int]
"""A movement: the number of its step, and its own among those of the step; see ``tiles.compiler.movements``."""


@dataclass(frozen=True, eq=False)
class Executable:
    """A compiled program.

    Args:
      name: program name.
      target: the machine it was compiled for.
      variables: by name.
      buffers: by name.
      steps: numbered by position; see ``tiles.compiler.steps``.
      program: control tree over the steps' numbers; see ``tiles.compiler.control``.
      inputs: input variables in order.
      outputs: output variables in order.
      donated: positions of inputs whose memory results may have taken over.
      fits: whether every buffer lies inside the target's memory.
      composites: by number what a composite's body computes in one piece; see ``tiles.graph.Composite``.
      streams: by name; see ``tiles.graph.Stream``.
      remote_buffers: by name; see ``tiles.graph.RemoteBuffer``.
      shared_exchange: by step and number of a movement, the earlier movement whose exchange program it runs with
        addresses of its own; see ``tiles.compiler.sharing``.
      system: the IPUs that replicas run on, so many of its chip each as ``target`` has, and their links; None for one IPU.
      replicas: named axes of replicas. Variables, buffers, steps and program are those of each one of them.
      differs_along: with a system, for each input the axes along which replicas may be given different values, in the
        replicas' order; an input with none is given once for all.
    """

    name: str
    target: Target
    variables: dict[str, Variable]
    buffers: dict[str, Buffer]
    steps: tuple[StepRecord, ...]
    program: Part
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    donated: tuple[int, ...] = ()
    fits: bool = True
    composites: tuple[VertexGroup, ...] = ()
    streams: dict[str, Stream] = field(default_factory=dict[str, Stream])
    remote_buffers: dict[str, RemoteBuffer] = field(default_factory=dict[str, RemoteBuffer])
    shared_exchange: dict[MovementId, MovementId] = field(default_factory=dict[MovementId, MovementId])
    system: System | None = None
    replicas: Replicas = field(default_factory=Replicas)
    differs_along: tuple[tuple[str, ...], ...] = ()

    def address(self, variable: str) -> int:
        """Return the address at which every part of a variable starts."""
        return self.buffers[self.variables[variable].storage].address

    def step_name(self, number: int) -> str:
        """Return the name of a step, or what stands before the first and after the last."""
        if 0 <= number < len(self.steps):
            return self.steps[number].name
        return "before the program" if number < 0 else "after the program"

    def groups(self) -> Iterator[tuple[int, VertexGroup]]:
        """Yield every vertex group with its step number."""
        for number, step in enumerate(self.steps):
            if isinstance(step, ExecuteStep):
                for group in step.groups:
                    yield number, group

    @cached_property
    def data_spans(self) -> tuple[tuple[int, int], ...]:
        """First and end of the addresses that some buffer with data the engines move has on some tile; ascending, apart."""
        spans = sorted(
            (b.address, b.address + b.size_bytes)
            for b in self.buffers.values()
            if b.category in ("variable", "constant", "message")
        )
        found: list[tuple[int, int]] = []
        for first, end in spans:
            if found and first <= found[-1][1]:
                first, end = found[-1][0], max(found.pop()[1], end)
            found.append((first, end))
        return tuple(found)

    def to_data(self) -> JsonObject:
        """Return the whole executable as plain data (JSON types)."""
        return {
            "format": FORMAT_VERSION,
            "name": self.name,
            "target": (self.target if self.system is None else self.system.chip).to_data(),
            "variables": [_variable_data(v) for v in self.variables.values()],
            "buffers": [
                {
                    "name": b.name,
                    "category": b.category,
                    "address": b.address,
                    "bytes": b.size_bytes,
                    "tiles": [list(r) for r in b.tiles],
                    "live": [b.start, b.end],
                    "location": b.location,
                }
                for b in self.buffers.values()
            ],
            "steps": [step.to_data() for step in self.steps],
            "program": part_data(self.program),
            "functions": [[name, part_data(body)] for name, body in functions_of(self.program).items()],
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "donated": list(self.donated),
            "fits": self.fits,
            "composites": [group.to_data() for group in self.composites],
            "streams": [{**vars(s), "shape": list(s.shape)} for s in self.streams.values()],
            "remote_buffers": [{**vars(r), "shape": list(r.shape)} for r in self.remote_buffers.values()],
            "shared_exchange": [[*movement, *first] for movement, first in self.shared_exchange.items()],
            "modules": {
                digest: base64.b64encode(blob).decode() for digest, blob in sorted(self._modules().items())
            },
            **self._replica_data(),
        }

    def _replica_data(self) -> JsonObject:
        """Return what a program for one IPU does not state; of the system's chip the target says all."""
        if self.system is None:
            return {}
        system = {key: value for key, value in self.system.to_data().items() if key != "chip"}
        each = self.replicas.ipus_each
        return {
            "system": system,
            "replicas": self.replicas.to_data(),
            "differs_along": [list(axes) for axes in self.differs_along],
            **({"ipus_per_replica": each} if each != 1 else {}),
        }

    def _modules(self) -> dict[str, bytes]:
        """Return by digest the compiled code of the codelets that are not this package's."""
        groups = [*(group for _, group in self.groups()), *self.composites]
        exported = [g.codelet for g in groups if isinstance(g.codelet, ExportedCodelet)]
        return {digest: blob for codelet in exported for digest, blob in codelet.modules().items()}

    @classmethod
    def from_data(cls, data: object, text: bytes = b"") -> Executable:
        """Build from plain data; the counterpart of ``to_data``.

        Args:
          data: the data.
          text: what it was read from, if known; where that is what would be written, it need not be written to compare.

        Raises:
          InvalidExecutable: another format version, a missing or unknown field, an unknown codelet, or data
            that would be written otherwise than it was read.
        """
        if not is_dict(data) or data.get("format") != FORMAT_VERSION:
            found = data.get("format") if is_dict(data) else type(data).__name__
            raise InvalidExecutable(
                f"this version reads executable format {FORMAT_VERSION}, the file has {found}"
            )
        try:
            modules = _modules_from(data["modules"])
            functions: dict[str, Part] = {}
            for name, body in data["functions"]:
                functions[name] = part_from(body, functions)
            system = (
                System.from_data({**data["system"], "chip": data["target"]}) if "system" in data else None
            )
            replicas = Replicas()
            if system is not None:
                replicas = Replicas.from_data(data["replicas"], data.get("ipus_per_replica", 1))
            executable = cls(
                name=data["name"],
                target=Target.from_data(data["target"])
                if system is None
                else system.several(replicas.ipus_each),
                variables={v["name"]: _variable_from(v) for v in data["variables"]},
                buffers={b["name"]: _buffer_from(b) for b in data["buffers"]},
                steps=tuple(step_from_data(step, modules) for step in data["steps"]),
                program=part_from(data["program"], functions),
                inputs=tuple(data["inputs"]),
                outputs=tuple(data["outputs"]),
                donated=tuple(data["donated"]),
                fits=bool(data["fits"]),
                composites=tuple(VertexGroup.from_data(g, modules) for g in data["composites"]),
                streams={s["name"]: _stream_from(s) for s in data["streams"]},
                remote_buffers={r["name"]: _remote_from(r) for r in data["remote_buffers"]},
                shared_exchange={(s, k): (first, j) for s, k, first, j in data["shared_exchange"]},
                system=system,
                replicas=replicas,
                differs_along=() if system is None else tuple(map(tuple, data["differs_along"])),
            )
            again = executable.to_data()
        except InvalidExecutable:
            raise
        except Exception as error:  # whatever is wrong about data from anywhere
            raise InvalidExecutable(
                f"the executable's data is damaged: {type(error).__name__}: {error}"
            ) from error
        written = _text(again)
        if written != text and written != _text(data):  # texts, since 1, 1.0 and true are equal
            raise InvalidExecutable(f"the executable's data is damaged: {_difference(data, again)}")
        return executable

    def to_bytes(self) -> bytes:
        """Return the executable as bytes; the same executable gives the same bytes."""
        return sealed(MAGIC, _text(self.to_data()))

    @classmethod
    def from_bytes(cls, blob: bytes) -> Executable:
        """Read an executable back.

        Raises:
          InvalidExecutable: not such a file, damaged, or another format version.
        """
        if not blob.startswith(MAGIC):
            raise InvalidExecutable(
                "this is not an ipuxla executable: its first bytes are " + repr(blob[:16])
            )
        try:
            text = opened(MAGIC, blob)
            data = read_json(text)
        except ValueError as error:
            raise InvalidExecutable(f"the executable is damaged: {error}") from error
        return cls.from_data(data, text)

    def text(self) -> str:
        """Return a readable listing: variables with layouts and addresses, then steps with plans."""
        lines = [f"executable {self.name} for {self.target.name} ({self.target.num_tiles} tiles)"]
        if self.system is not None:
            lines.append(f"  replicas {self.replicas} on {self.system.name}")
        for v in self.variables.values():
            role = "input " if v.name in self.inputs else ""
            role += "output " if v.name in self.outputs else ""
            lines.append(
                f"  {role}{v.kind} {v.name}: {v.dtype}{list(v.shape)} {v.layout} at {self.address(v.name):#x}"
                + at_line(v.location)
            )
        for s in self.streams.values():
            lines.append(f"  stream {s.name} {_direction(s)}: {s.dtype}{list(s.shape)}" + at_line(s.location))
        for r in self.remote_buffers.values():
            rows = f"{r.repeats} x {r.dtype}{list(r.shape)}"
            lines.append(f"  remote buffer {r.name}: {rows}" + at_line(r.location))
        for number, step in enumerate(self.steps):
            lines += [f"  step {number} {line}" for line in step.lines()]
            lines += [
                f"  step {number} moves tensor {k} by the exchange program of tensor {j} of step {first}"
                for (s, k), (first, j) in self.shared_exchange.items()
                if s == number
            ]
        for name, body in functions_of(self.program).items():
            lines.append(f"  function {name} {json.dumps(part_data(body))}")
        lines.append(f"  program {json.dumps(part_data(self.program))}")
        return "\n".join(lines) + "\n"


def _text(data: object) -> bytes:
    """Return plain data as the text of a file."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _difference(read: Any, written: Any, at: str = "") -> str:
    """Say where data first differs from what is written for it."""
    pairs: list[tuple[Any, Any, str]]
    if is_dict(read) and is_dict(written):
        if odd := sorted(read.keys() ^ written.keys(), key=str):
            return f"{at.lstrip('.') or 'it'} lacks or adds {', '.join(map(str, odd))}"
        pairs = [(read[key], written[key], f"{at}.{key}") for key in sorted(read)]
    elif is_list(read) and is_list(written) and len(read) == len(written):
        pairs = [(a, b, f"{at}[{i}]") for i, (a, b) in enumerate(zip(read, written, strict=True))]
    else:
        return f"{at.lstrip('.') or 'it'} holds {str(read)[:60]!r}, read as {str(written)[:60]!r}"
    return next(_difference(a, b, where) for a, b, where in pairs if _text(a) != _text(b))


def _direction(stream: Stream) -> str:
    return "to the host" if stream.to_host else "from the host"


def _variable_data(v: Variable) -> JsonObject:
    data: JsonObject = {
        "name": v.name,
        "shape": list(v.shape),
        "dtype": v.dtype,
        "layout": v.layout.to_data(),
        "storage": v.storage,
        "kind": v.kind,
        "location": v.location,
        "view_of": v.view_of,
    }
    if v.value is not None:
        raw = np.ascontiguousarray(v.value).astype(to_jax(v.dtype), copy=False)
        data["value"] = base64.b64encode(raw.tobytes()).decode()
    return data


def _variable_from(data: JsonObject) -> Variable:
    value = None
    if "value" in data:
        raw = np.frombuffer(base64.b64decode(data["value"], validate=True), to_jax(data["dtype"]))
        value = raw.reshape(data["shape"])
    layout = Layout.from_data(data["layout"])
    return Variable(
        data["name"],
        tuple(data["shape"]),
        data["dtype"],
        layout,
        data["storage"],
        data["kind"],
        data["location"],
        data["view_of"],
        value,
    )


def _buffer_from(b: JsonObject) -> Buffer:
    tiles: tuple[tuple[int, int], ...] = tuple(tuple(ends) for ends in b["tiles"])
    if not {2}.issuperset(map(len, tiles)) or not {int}.issuperset(map(type, itertools.chain(*tiles))):
        raise InvalidExecutable(
            f"the executable's data is damaged: buffer {b['name']!r} is on no ranges of tiles"
        )
    return Buffer(
        b["name"],
        b["category"],
        int(b["address"]),
        int(b["bytes"]),
        tiles,
        int(b["live"][0]),
        int(b["live"][1]),
        b["location"],
    )


def _stream_from(s: JsonObject) -> Stream:
    return Stream(s["name"], s["dtype"], tuple(s["shape"]), s["to_host"], s["location"])


def _remote_from(r: JsonObject) -> RemoteBuffer:
    return RemoteBuffer(r["name"], r["dtype"], tuple(r["shape"]), r["repeats"], r["location"])


def _modules_from(data: dict[str, str]) -> dict[str, Module]:
    modules = {digest: Module(base64.b64decode(text, validate=True)) for digest, text in data.items()}
    for digest, module in modules.items():
        if module.digest != digest:
            raise InvalidExecutable(f"the executable's data is damaged: module {digest[:12]} has other bytes")
    admit(modules.values())
    return modules
