"""Find the functions that a library of neural networks has a name for in the operations they arrive as."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Builder, Computation, Instruction, Module, Value
from hlo_passes.ops import Compare, Maximum, Nonlinearity, RowFunction
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes.base import Pass, map_control_regions, map_module
from hlo_passes.passes.known_functions import TOLERANCES, Known, is_gradient, recognize
from hlo_passes.passes.proofs import MOVEMENT, Claim, Proof, prove
from hlo_passes.passes.samples import Gradient, Sample, Samples, natural_axes
from hlo_passes.passes.structure import piece_key

_MAX_OPS = 256


@dataclass(frozen=True)
class RecoverNetworks(Pass):
    """Make softmax, log-softmax, norms, the usual non-linearities and their gradients one operation each.

    What may be one is found by what it computes at sample points, and taken for one if algebra proves it, every
    operation included (``passes.proofs``), in whatever way it is written. Constants are compared with a tolerance that
    depends on the element type; where they are not the function's, or where the two differ at a tie, the operation says
    that it is approximate. The new operation's region is what stood there, so no result can change. Where a part of
    the function is needed for something else too, nothing is replaced.
    """

    name: ClassVar[str] = "recover-networks"

    def run(self, module: Module) -> Module:
        """Return the module with named functions; itself when it has none."""
        return map_module(module, _recover)


@dataclass(frozen=True, eq=False)
class _Match:
    """A value that is a known function (or gradient) of its operands, and the instructions in between.

    Those read ``given``, in whose place the operands may be others that mean the same to them.
    """

    root: Instruction
    kind: str
    dimensions: tuple[int, ...]
    operands: tuple[Value, ...]
    given: tuple[Value, ...]
    cone: tuple[Instruction, ...]
    is_exact: bool

    @property
    def work(self) -> Iterator[Instruction]:
        """The instructions inside that cost something."""
        return (i for i in self.cone if i is not self.root and not isinstance(i.op, MOVEMENT))

    def instruction(self) -> Instruction:
        """Return what stands for the root."""
        builder = Builder(self.kind.rpartition(".")[2])
        env = {value: builder.parameter(value.type) for value in self.given}
        for instruction in self.cone:
            made = builder.clone(instruction, [env[value] for value in instruction.operands])
            env.update(zip(instruction.results, made, strict=True))
        region = builder.build(env[self.root.result])
        op = (
            RowFunction(self.kind, self.dimensions)
            if self.dimensions
            else Nonlinearity(self.kind, not self.is_exact)
        )
        return Instruction(op, self.operands, self.root.results, (region,), self.root.location)


def _recover(computation: Computation) -> Computation:
    instructions = tuple(map_control_regions(i, _recover) for i in computation.instructions)
    if any(new is not old for new, old in zip(instructions, computation.instructions, strict=True)):
        computation = dataclasses.replace(computation, instructions=instructions)
    matches = _without_shared(computation, _Finder(computation).run())
    if not matches:
        return computation
    at = {match.root: match.instruction() for match in matches}
    made = tuple(at.get(i, i) for i in computation.instructions)
    return dataclasses.replace(computation, instructions=made)


def _without_shared(computation: Computation, matches: list[_Match]) -> list[_Match]:
    """Drop matches that are not needed, and those with a part that would have to be computed again outside."""
    chosen = {match.root: match for match in matches}
    while True:
        live, used = set(computation.results), set[Instruction]()
        for instruction in reversed(computation.instructions):
            if not instruction.has_effect and live.isdisjoint(instruction.results):
                continue
            used.add(instruction)
            match = chosen.get(instruction)
            live.update(instruction.operands if match is None else match.operands)
        kept = {
            root: match
            for root, match in chosen.items()
            if root in used and not any(i in used and i not in chosen for i in match.work)
        }
        if len(kept) == len(chosen):
            return list(kept.values())
        dropped = {r for r in chosen if r not in kept and r in used}
        chosen = kept if dropped else {r: m for r, m in chosen.items() if r in used}
        if not dropped:
            return list(chosen.values())


class _Finder:
    """One walk over a computation that recognizes values as it tabulates them."""

    def __init__(self, computation: Computation) -> None:
        self.computation = computation
        self.samples = Samples(computation)
        self.position = {v: n for n, i in enumerate(computation.instructions) for v in i.results}
        self.known: dict[Value, list[tuple[Known, bool, frozenset[int] | None]]] = {}
        self.matches: list[_Match] = []
        self.rectified: dict[Value, Value] = {}
        self._recognized: dict[tuple[Sample, int, float], Known | None] = {}
        self._tested: dict[tuple[Sample, Known, bool, float], bool] = {}
        self._proved: dict[Hashable, Proof | None] = {}

    def run(self) -> list[_Match]:
        """Return every match, in order."""
        for instruction in self.computation.instructions:
            self.samples.visit(instruction)
            if len(instruction.results) == 1 and instruction.result.type.dtype in TOLERANCES:
                found = self._function(instruction) or self._gradient(instruction)
                if found is not None:
                    self.matches.append(found)
                    self._note_maximum(found)
        return self.matches

    def _note_maximum(self, match: _Match) -> None:
        """Note the operand of a relu's maximum with zero, and the result."""
        if match.kind == "popnn.relu" and isinstance(match.root.op, Maximum):
            varying = [v for v in match.root.operands if v not in self.samples.constants]
            if len(varying) == 1:
                self.rectified[varying[0]] = match.root.result

    def _function(self, root: Instruction) -> _Match | None:
        value = root.result
        for source, sample in self.samples.functions.get(value, {}).items():
            if source == value or not _is_like(value, source, sample):
                continue
            size = _row_size(source, sample)
            known = self._recognize(sample, size, TOLERANCES[value.type.dtype]) if size != 1 else None
            cone = self._cone(root, (source,)) if known is not None else None
            if known is None or cone is None or not (known.size or _is_pointwise(cone)):
                continue
            claim = Claim(known, dimensions=tuple(sorted(sample.reduced or ())))
            proof = self._prove(claim, (source,), cone)
            if proof is None:
                continue
            known = dataclasses.replace(known, kind=proof.kind)
            for place, of_result in ((source, False), (value, True)):
                self.known.setdefault(place, []).append((known, of_result, sample.reduced))
                self.samples.sources.add(place)
            return self._match(root, known, "", sample, (source,), cone, proof)
        return None

    def _gradient(self, root: Instruction) -> _Match | None:
        value = root.result
        for key, sample in sorted(self.samples.linear.get(value, {}).items(), key=self._preference):
            gradient, source, rest = key
            if source is None or gradient == value or not _is_like(value, source, sample):
                continue
            if gradient.type.shape != source.type.shape:
                continue
            operands = (source, gradient) if rest is None else (source, gradient, rest)
            for known, of_result, reduced in self.known[source]:
                if known.size and sample.reduced != reduced:
                    continue
                if rest is not None and not known.size:  # an expression adds it as well
                    continue
                if not self._is_gradient(sample, known, of_result, TOLERANCES[value.type.dtype]):
                    continue
                cone = self._cone(root, operands)
                if cone is None or not (known.size or _is_pointwise(cone)):
                    continue
                rows = dataclasses.replace(sample, reduced=reduced if known.size else None)
                claim = Claim(known, True, of_result, tuple(sorted(rows.reduced or ())))
                proof = self._prove(claim, operands, cone)
                if proof is not None:
                    match = self._match(root, known, "_gradient", rows, operands, cone, proof)
                    return self._told_by_result(match) if known.kind == "relu" and not of_result else match
        return None

    def _told_by_result(self, match: _Match) -> _Match:
        """Return the gradient of a relu told of its result, which is positive where the operand is.

        Only if it is the operand of that very maximum that is compared, and nothing else is asked of it.
        """
        source, *others = match.operands
        for operand, result in self.rectified.items():
            given = (operand, *others)
            cone = self._cone(match.root, given) if source in self.samples.functions[operand] else None
            readers = [i for i in cone or () if operand in i.operands]
            if cone is not None and readers and all(self._is_positive(i, operand) for i in readers):
                return dataclasses.replace(match, operands=(result, *others), given=given, cone=cone)
        return match

    def _is_positive(self, instruction: Instruction, operand: Value) -> bool:
        """Whether an instruction compares an operand with zero in a way that a relu does not change."""
        if not isinstance(instruction.op, Compare) or instruction.operands.count(operand) != 1:
            return False
        is_left = instruction.operands[0] == operand
        zero = self.samples.constants.get(instruction.operands[is_left])
        directions = ("GT", "LE") if is_left else ("LT", "GE")
        return zero is not None and float(zero.values) == 0 and instruction.op.direction in directions

    def _recognize(self, sample: Sample, size: int, tolerance: float) -> Known | None:
        key = sample, size, tolerance
        if key not in self._recognized:
            self._recognized[key] = recognize(sample.values, size, tolerance)
        return self._recognized[key]

    def _is_gradient(self, sample: Sample, known: Known, of_result: bool, tolerance: float) -> bool:
        key = sample, known, of_result, tolerance
        if key not in self._tested:
            self._tested[key] = is_gradient(sample.values, known, of_result, tolerance)
        return self._tested[key]

    def _prove(
        self, claim: Claim, operands: tuple[Value, ...], cone: tuple[Instruction, ...]
    ) -> Proof | None:
        """Return ``prove``'s answer; equal layers put equal questions, on other values."""
        key = claim, piece_key(operands, cone)
        if key not in self._proved:
            self._proved[key] = prove(claim, operands, cone)
        return self._proved[key]

    def _preference(self, found: tuple[Gradient, Sample]) -> tuple[bool, bool]:
        """Order gradients: nothing added first, then those that need only the function's result."""
        key, _ = found
        known = self.known.get(key.source, []) if key.source is not None else []
        return key.rest is not None, not any(of_result for _, of_result, _ in known)

    def _match(
        self,
        root: Instruction,
        known: Known,
        suffix: str,
        sample: Sample,
        operands: tuple[Value, ...],
        cone: tuple[Instruction, ...],
        proof: Proof,
    ) -> _Match:
        dimensions = tuple(sorted(sample.reduced or ())) if known.size else ()
        kind = known.kind if known.kind != "norm" else _norm_kind(root.result.type.rank, dimensions)
        return _Match(root, f"popnn.{kind}{suffix}", dimensions, operands, operands, cone, proof.is_exact)

    def _cone(self, root: Instruction, operands: tuple[Value, ...]) -> tuple[Instruction, ...] | None:
        """Return the instructions between operands and root in order; None if it reads anything else."""
        producers, found = self.computation.producers, set[Instruction]()
        stack = [root]
        while stack:
            instruction = stack.pop()
            if instruction in found:
                continue
            found.add(instruction)
            if len(found) > _MAX_OPS:
                return None
            for value in instruction.operands:
                if value in operands:
                    continue
                producer = producers.get(value)
                if producer is None:
                    return None
                stack.append(producer)
        return tuple(sorted(found, key=lambda i: self.position[i.results[0]]))


def _is_pointwise(cone: tuple[Instruction, ...]) -> bool:
    """Whether instructions say what happens at one point, as a vertex is told; a fold of one element does not."""
    return all(isinstance(i.op, (Elementwise, *MOVEMENT)) for i in cone)


def _is_like(value: Value, source: Value, sample: Sample) -> bool:
    """Whether a table is of a value that lies element by element where its source does."""
    if value.type.shape != source.type.shape or sample.axes != natural_axes(source.type):
        return False
    return sample.values.shape[1] > 1


def _row_size(source: Value, sample: Sample) -> int:
    size = 1 if sample.reduced else 0
    for d in sample.reduced or ():
        size *= source.type.shape[d]
    return size


def _norm_kind(rank: int, dimensions: tuple[int, ...]) -> str:
    """Return which norm folds these dimensions: all but the last, all after the first ones, or others."""
    if dimensions and dimensions[0] == 0:
        return "batch_norm"
    trailing = tuple(range(rank - len(dimensions), rank))
    return "layer_norm" if dimensions == trailing else "group_norm"
