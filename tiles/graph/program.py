"""Programs: the steps an IPU runs, in Poplar's vocabulary.

A program is a tree. Operation, Reshape and Choice say what to compute and leave to planning how; a planned program has
none of them. Execute runs one compute set (with the exchange its operands need before it); Copy
moves one tensor into another layout or shape, or joins several; CopyBetween moves a tensor to other replicas of the
program; CopyFromStream and CopyToStream exchange items
with the host, CopyFromRemote and CopyToRemote rows of buffers in memory beside the IPU; the rest is control.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tiles.graph.codelet import Codelet
from tiles.graph.domain import OpForm, Plan
from tiles.graph.replicas import Permutation

if TYPE_CHECKING:
    from tiles.graph.graph import Vertices


@dataclass(frozen=True)
class Operation:
    """Compute results by a codelet over a domain that no plan splits yet; planning makes compute sets of it.

    Args:
      name: label of its steps, unique in its graph.
      codelet: what each vertex computes.
      form: domain and indexing maps.
      operands: tensor names.
      results: tensor names.
      location: the user's source line.
      plan: the plan to use instead of one that is searched; None to search.
      ipu: the IPU of the replica whose vertices compute, see ``Tensor.ipu``.
    """

    name: str
    codelet: Codelet
    form: OpForm
    operands: tuple[str, ...]
    results: tuple[str, ...]
    location: str = ""
    plan: Plan | None = None
    ipu: int = 0


@dataclass(frozen=True)
class Reshape:
    """Give a tensor's elements another shape in row-major order.

    Planning makes it another name for the same memory where parts stay whole, else a copy.

    Args:
      destination: tensor name.
      source: tensor name, of as many elements.
      location: the user's source line.
    """

    destination: str
    source: str
    location: str = ""


@dataclass(frozen=True)
class Alternative:
    """One way to compute something: steps, and the tensors that they leave it in."""

    body: Sequence
    results: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """Compute results in one of several ways, whichever planning finds cheapest.

    Args:
      name: what is computed, for printers.
      alternatives: the ways; the first is taken where several cost the same.
      results: tensor names, by which later steps read what the alternative taken leaves.
      location: the user's source line.
      share: what another alternative than the first costs at most, as a share of what the first one does, to be taken.
    """

    name: str
    alternatives: tuple[Alternative, ...]
    results: tuple[str, ...]
    location: str = ""
    share: float = 1.0


@dataclass(frozen=True)
class Execute:
    """Run a compute set: exchange what its vertices read, sync, compute."""

    compute_set: str


@dataclass(frozen=True)
class Copy:
    """Write ``destination`` from the sources' elements in row-major order.

    Args:
      destination: tensor name.
      sources: tensor names; joined along ``axis``, or a single one of equal size when ``axis`` is None.
      axis: the dimension joined along.
      location: the user's source line.
    """

    destination: str
    sources: tuple[str, ...]
    axis: int | None = None
    location: str = ""


@dataclass(frozen=True)
class CopyBetween:
    """Write ``destination`` on the replicas that a permutation along axes names, from ``source`` on their partners.

    Both have one shape, dtype and layout, so that every tile sends to the tile of its number. A replica to which
    nothing is sent gets zeros.

    Args:
      source: tensor name.
      destination: tensor name; another tensor than the source.
      axes: along which replicas form groups; places in a group are counted in the order in which they are named.
      permutations: where the source goes; of several, which divide its first dimension, the k-th says where the k-th
        of as many equal parts along that goes, all in one exchange.
      location: the user's source line.
      stage: uint32 scalar, "" for none. With it the permutations are stages, and the source goes where the one of that
        number says, the last for larger ones: a loop over stages is as long as one of them.
    """

    source: str
    destination: str
    axes: tuple[str, ...]
    permutations: tuple[Permutation, ...]
    location: str = ""
    stage: str = ""


@dataclass(frozen=True)
class WriteReplicaIndex:
    """Write a replica's place along axes into a uint32 scalar; the one thing that differs between replicas by itself.

    It is loaded with the program. Source: Poplar's ``Graph::addReplicationIndexConstant``.

    Args:
      destination: tensor name.
      axes: as in ``CopyBetween``.
      location: the user's source line.
    """

    destination: str
    axes: tuple[str, ...]
    location: str = ""


@dataclass(frozen=True)
class CopyFromStream:
    """Write the next item of a host-to-device stream into a tensor.

    Args:
      stream: stream name.
      destination: tensor name.
      location: the user's source line.
    """

    stream: str
    destination: str
    location: str = ""


@dataclass(frozen=True)
class CopyToStream:
    """Send a tensor's value to the host as the next item of a device-to-host stream.

    Args:
      source: tensor name.
      stream: stream name.
      location: the user's source line.
    """

    source: str
    stream: str
    location: str = ""


@dataclass(frozen=True)
class AbortOnCondition:
    """Stop the run, which then raises ``ProgramAborted``, when the scalar ``predicate`` is true.

    Args:
      predicate: name of a bool tensor of one element.
      message: what the error says.
      location: the user's source line.
    """

    predicate: str
    message: str = ""
    location: str = ""


@dataclass(frozen=True)
class CopyFromRemote:
    """Write rows of a remote buffer into a tensor.

    Args:
      buffer: name of the remote buffer.
      destination: tensor name; of a row's shape, or ``[n, *row]`` where ``rows`` is ``[n]``.
      rows: name of an integer tensor, a scalar or ``[n]``, with the numbers of the rows; "" for row 0. A number
        outside the buffer is clamped to its first or last row.
      location: the user's source line.
    """

    buffer: str
    destination: str
    rows: str = ""
    location: str = ""


@dataclass(frozen=True)
class CopyToRemote:
    """Write a tensor into rows of a remote buffer; of rows named twice the last one stays.

    Args:
      source: tensor name; see ``CopyFromRemote``.
      buffer: name of the remote buffer.
      rows: see ``CopyFromRemote``.
      location: the user's source line.
    """

    source: str
    buffer: str
    rows: str = ""
    location: str = ""


@dataclass(frozen=True)
class ErrorProgram:
    """Stop the run, which then raises ``ProgramAborted`` with ``message`` and the tensor's value.

    Args:
      tensor: tensor name.
      message: what the error says.
      location: the user's source line.
    """

    tensor: str
    message: str = ""
    location: str = ""


@dataclass(frozen=True)
class PrintTensor:
    """Send a tensor's value to the host, which notes it in the run's trace under a title; see ``Engine.print_to``.

    Args:
      tensor: tensor name.
      title: by default the tensor's name.
      location: the user's source line.
      message: the line of text that the tensor is a part of (``Message.to_text``), "" for one that stands alone. All
        parts of a message are printed one after another.
      part: which of the message's tensors this is.
    """

    tensor: str
    title: str = ""
    location: str = ""
    message: str = ""
    part: int = 0


@dataclass(frozen=True)
class WriteUndef:
    """Leave a tensor's value undefined: nothing may read it before it is written again, and its memory is free.

    Args:
      tensor: tensor name; neither a constant nor an input that the caller keeps.
      location: the user's source line.
    """

    tensor: str
    location: str = ""


@dataclass(frozen=True)
class Sync:
    """Wait until all tiles are here; with ``external`` the host, too.

    What exchanges syncs by itself: this one is for programs that measure, or mark, where they are.
    """

    external: bool = False
    location: str = ""


@dataclass
class Sequence:
    """Steps run one after another."""

    steps: list[Step] = field(default_factory=list["Step"])

    def add(self, step: Step) -> None:
        """Append a step."""
        self.steps.append(step)


@dataclass(frozen=True)
class Repeat:
    """Run ``body`` ``count`` times."""

    count: int
    body: Sequence


@dataclass(frozen=True)
class RepeatWhileTrue:
    """Run ``condition``; while the scalar ``predicate`` it leaves is true run ``body`` and again."""

    condition: Sequence
    predicate: str
    body: Sequence


@dataclass(frozen=True)
class RepeatWhileFalse:
    """Run ``condition``; while the scalar ``predicate`` it leaves is false run ``body`` and again."""

    condition: Sequence
    predicate: str
    body: Sequence


@dataclass(frozen=True)
class Switch:
    """Run the branch numbered by the scalar ``index``; an index out of range runs the last one."""

    index: str
    branches: tuple[Sequence, ...]


@dataclass(frozen=True)
class If:
    """Run ``then`` when the scalar ``predicate`` is true, else ``otherwise``."""

    predicate: str
    then: Sequence
    otherwise: Sequence


@dataclass(frozen=True)
class Call:
    """Run a function of the graph; its tensors are fixed, so callers copy arguments in and results out."""

    function: str


@dataclass(frozen=True)
class Composite:
    """Run ``body``, all of which is known to compute what one codelet does when it is handed whole operands.

    The machine, and every engine that has its memory, runs the body; an engine of logical arrays may run the
    codelet instead. The two must give the same bits, but for the order in which floats are added: this is for operations
    in many stages that are exact, such as sorting, or whose partials hold little.

    Args:
      body: the steps.
      whole: the codelet with the form of the whole operation, what the body reads and what it leaves for
        others; its plan is the one without any split.
    """

    body: Sequence
    whole: Vertices


Step: TypeAlias = (
    Operation
    | Reshape
    | Choice
    | Execute
    | Copy
    | CopyBetween
    | WriteReplicaIndex
    | CopyFromStream
    | CopyToStream
    | CopyFromRemote
    | CopyToRemote
    | AbortOnCondition
    | ErrorProgram
    | PrintTensor
    | WriteUndef
    | Sync
    | Sequence
    | Repeat
    | RepeatWhileTrue
    | RepeatWhileFalse
    | Switch
    | If
    | Call
    | Composite
)


def bodies_of(step: Step) -> Iterator[Sequence]:
    """Return the sequences inside a step."""
    if isinstance(step, Sequence):
        yield step
    if isinstance(step, Choice):
        yield from (alternative.body for alternative in step.alternatives)
    for key in ("condition", "body", "then", "otherwise"):
        inner = getattr(step, key, None)
        if isinstance(inner, Sequence):
            yield inner
    yield from getattr(step, "branches", ())
