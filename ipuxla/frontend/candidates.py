"""Shardings that a program might have: which dimensions of its arguments belong together, and which axes shard them.

A *split* is a set of dimensions of arguments that are divided together: Shardy's propagation from one of them finds the
others (a batch and its labels; the columns of one matrix and the rows of the next, with their momentum). Of a network's
equal layers the splits are one. A mesh is filled split by split, the most useful one first: each is tried along every axis, and
stays where the program gets cheaper, or fits better. Everything that was tried is a candidate.

Nothing here depends on time or on an order of sets: the same program has the same candidates.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from ipuxla.errors import Unsupported
from ipuxla.frontend._jax_compat import mlir
from ipuxla.frontend._jax_compat.clients import MAX_DEVICES
from ipuxla.frontend._jax_compat.shardy import (
    ArrayAxes,
    argument_types,
    count_operations,
    element_bytes,
    propagated,
)
from ipuxla.frontend.collectives import COLLECTIVES
from ipuxla.frontend.sharding_price import Price, Pricing
from ipuxla.sharding import Mesh
from tiles import isolated
from tiles.target import System

MOST_SPLITS = 6
"""Splits that are combined."""
MOST_SEEDS = 48
"""Dimensions from which propagation is followed."""
MOST_OPERATIONS = 100_000
"""Operations that are propagated through altogether."""
TRIALS = (20, 96)
"""Shardings that are priced, at least and at most; between them as many as operations allow."""

Split = tuple[tuple[int, int], ...]
"""Dimensions of arguments: number of the argument, and of the dimension."""


class Candidate(NamedTuple):
    """One way to share a program out.

    Args:
      mesh: names and sizes of axes; none for one IPU.
      inputs: how each argument is sharded.
      price: by the closed form.
    """

    mesh: Mesh
    inputs: tuple[ArrayAxes, ...]
    price: Price

    @property
    def num_devices(self) -> int:
        """How many IPUs it takes."""
        return math.prod(size for _, size in self.mesh)


def find_candidates(
    source: mlir.Source, system: System, donated: Collection[int] = (), untrusted: bool = False
) -> list[Candidate]:
    """Return shardings of a program, the most promising first; one IPU is among them.

    Args:
      source: an MLIR module, text or bytes, of one device.
      system: the IPUs.
      donated: arguments that give their memory to results.
      untrusted: whether it is read and propagated through in a child process, see ``untrusted.read_apart``.

    Raises:
      Unsupported: the child process ends.
    """
    if not untrusted or not isinstance(source, str | bytes):
        return _Search(source, system, donated).candidates()
    blob = source.encode(errors="surrogatepass") if isinstance(source, str) else source
    request = {
        "is_text": isinstance(source, str),
        "source": base64.b64encode(blob).decode(),
        "system": system.to_data(),
        "donated": sorted(donated),
    }
    try:
        function, data = f"{__name__}:find_for_another", json.dumps(request).encode()
        answer = json.loads(isolated.call(function, data, processor_limit_s=isolated.PARTITIONER_LIMIT_S))
    except ValueError as error:
        raise Unsupported(
            f"Shardy does not survive the program: {error}", try_='shard="mesh: one IPU", or one chip'
        ) from error
    return [
        Candidate(
            tuple((name, size) for name, size in mesh),
            tuple(tuple(map(tuple, dimensions)) for dimensions in inputs),
            Price(*price),
        )
        for mesh, inputs, price in answer
    ]


def find_for_another(request: bytes) -> bytes:
    """Answer ``find_candidates`` in a child process."""
    asked = json.loads(request)
    blob = base64.b64decode(asked["source"])
    source = blob.decode(errors="surrogatepass") if asked["is_text"] else blob
    found = find_candidates(source, System.from_data(asked["system"]), asked["donated"])
    return json.dumps(found).encode()


class _Search:
    def __init__(self, source: mlir.Source, system: System, donated: Collection[int]) -> None:
        self.source, self.system, self.donated = source, system, donated
        self.types = argument_types(source)
        operations = max(1, count_operations(source))
        self.trials = min(max(TRIALS[0], MOST_OPERATIONS // operations), TRIALS[1])
        self.found: dict[tuple[Mesh, tuple[ArrayAxes, ...]], Candidate] = {}
        self.usable = Pricing(system.chip).usable_bytes

    def candidates(self) -> list[Candidate]:
        whole = tuple(((),) * len(shape) for shape, _ in self.types)
        program = propagated(self.source, (("one", 1),), {})
        single = Candidate((), whole, Pricing(self.system).price(program, self.donated))
        if program.names & COLLECTIVES.keys():  # among the one device there is, not among those of a mesh
            return [single]
        self.found[(), whole] = single
        splits = self._splits()
        ranked: list[Split] = []
        for sizes in _meshes(self.system.num_ipus):
            mesh = tuple(zip(_NAMES[len(sizes)], sizes, strict=True))
            trial = self._trial(mesh)
            if not ranked:
                alone_each = [(self._rank(trial(((split, mesh[0][0]),))), split) for split in splits]
                ranked = [split for _, split in sorted(alone_each)[:MOST_SPLITS]]
            self._fill(mesh, ranked, trial)
        return sorted(self.found.values(), key=self._rank)

    def _rank(self, candidate: Candidate | None) -> tuple[object, ...]:
        """Return what orders candidates: what does not fit comes last, then cycles, then fewer IPUs."""
        if candidate is None:
            return (math.inf,)
        excess = max(0, candidate.price.size_bytes - self.usable)
        size = candidate.num_devices, len(candidate.mesh)
        return excess, candidate.price.cycles, *size, candidate.mesh, candidate.inputs

    def _trial(self, mesh: Mesh) -> Callable[[tuple[tuple[Split, str], ...]], Candidate | None]:
        """Return what prices splits along axes of a mesh; None for what cannot be, or where enough was tried."""
        pricing, sizes, known = (
            Pricing(self.system, mesh),
            dict(mesh),
            dict[tuple[tuple[Split, str], ...], Candidate | None](),
        )

        def trial(chosen: tuple[tuple[Split, str], ...]) -> Candidate | None:
            if chosen not in known:
                said = self._said(chosen, sizes)
                known[chosen] = None if said is None or not self.trials else self._priced(mesh, said, pricing)
            return known[chosen]

        return trial

    def _said(
        self, chosen: Sequence[tuple[Split, str]], sizes: dict[str, int]
    ) -> dict[int, ArrayAxes] | None:
        """Return how arguments are sharded; None where a size is not divided, or nothing can be sharded so."""
        found: dict[int, list[list[str]]] = {}
        for split, axis in chosen:
            is_split = False
            for number, dim in split:
                shape, _ = self.types[number]
                own = found.setdefault(number, [[] for _ in shape])
                parts = math.prod(sizes[name] for name in own[dim]) * sizes[axis]
                if not any(axis in names for names in own) and shape[dim] % parts == 0:
                    own[dim].append(axis)
                    is_split = True
            if not is_split:
                return None
        return {number: tuple(map(tuple, own)) for number, own in found.items()}

    def _priced(self, mesh: Mesh, said: dict[int, ArrayAxes], pricing: Pricing) -> Candidate | None:
        self.trials -= 1
        try:
            program = propagated(self.source, mesh, said)
        except ValueError:
            return None
        price = pricing.price(program, self.donated)
        sizes = dict(mesh)
        inputs = tuple(
            tuple(
                names if size % math.prod(sizes[name] for name in names) == 0 else ()
                for names, size in zip(axes, shape, strict=True)
            )
            for axes, (shape, _) in zip(program.inputs, self.types, strict=True)
        )
        candidate = Candidate(mesh, inputs, price)
        used = {name for dims in inputs for names in dims for name in names}
        if used == set(sizes):  # else a smaller mesh does the same
            self.found.setdefault((mesh, inputs), candidate)
        return candidate

    def _fill(self, mesh: Mesh, splits: Sequence[Split], trial: Callable[..., Candidate | None]) -> None:
        """Try splits one after the other along the axes of a mesh, and keep what makes it better."""
        chosen: tuple[tuple[Split, str], ...] = ()
        best: Candidate | None = None
        for split in splits:
            tried = [(self._rank(trial((*chosen, (split, axis)))), axis) for axis, _ in mesh]
            rank, axis = min(tried)
            if rank < self._rank(best):
                chosen = (*chosen, (split, axis))
                best = trial(chosen)

    # --- which dimensions belong together

    def _splits(self) -> list[Split]:
        """Return the splits of the arguments, those of the most bytes first."""
        sizes = [math.prod(shape) * element_bytes(type_) for shape, type_ in self.types]
        order = sorted(range(len(sizes)), key=lambda number: (-sizes[number], number))
        known: set[tuple[int, int]] = set()
        splits: list[Split] = []
        seeds = 0
        for number in order:
            shape = self.types[number][0]
            for dim, size in enumerate(shape):
                if (number, dim) in known or size < 2 or seeds >= MOST_SEEDS:
                    continue
                seeds += 1
                split = self._split_of(number, dim)
                known.update(split)
                splits.append(self._repeated(split, known))
        merged = _merged(splits, self.types)
        return sorted(merged, key=lambda split: (-sum(sizes[number] for number, _ in split), split))

    def _split_of(self, number: int, dim: int) -> Split:
        """Return the dimensions that are split where one is."""
        shape = self.types[number][0]
        axes = tuple(("two",) if each == dim else () for each in range(len(shape)))
        try:
            inputs = propagated(self.source, (("two", 2),), {number: axes}).inputs
        except ValueError:
            return ((number, dim),)
        found = {(n, d) for n, own in enumerate(inputs) for d, names in enumerate(own) if names}
        return tuple(sorted({*found, (number, dim)}))

    def _repeated(self, split: Split, known: set[tuple[int, int]]) -> Split:
        """Return a split together with those of equal layers: the same dimensions of arguments so many further on.

        That they are alike is a guess by their types. It is no more than a candidate: prices are of what is really sharded.
        """
        found, taken = list(split), {number for number, _ in split}
        last = max(number for number, _ in split)
        for by in range(1, len(self.types) - last):
            shifted = [(number + by, dim) for number, dim in split]
            are_alike = all(self.types[n] == self.types[n + by] for n, _ in split)
            if are_alike and not any(pair in known or pair[0] in taken for pair in shifted):
                known.update(shifted)
                taken.update(number for number, _ in shifted)
                found += shifted
        return tuple(sorted(found))


Signature = tuple[tuple[tuple[tuple[int, ...], str], int], ...]
"""What is split: types of arguments, each with a dimension."""


def _merged(splits: Sequence[Split], types: Sequence[tuple[tuple[int, ...], str]]) -> list[Split]:
    """Return splits with those of the same types joined, where they share no argument."""

    def signature(split: Split) -> Signature:
        return tuple(sorted({(types[number], dim) for number, dim in split}))

    found: list[tuple[Signature, list[tuple[int, int]]]] = []
    for split in splits:
        own, numbers = signature(split), {number for number, _ in split}
        fitting = (
            pairs for other, pairs in found if other == own and numbers.isdisjoint(n for n, _ in pairs)
        )
        pairs = next(fitting, None)
        if pairs is None:
            found.append((own, list(split)))
        else:
            pairs += split
    return [tuple(sorted(pairs)) for _, pairs in found]


_NAMES = {1: ("x",), 2: ("x", "y")}
"""Of the axes of a mesh, by how many there are."""


def _meshes(num_ipus: int) -> Iterator[tuple[int, ...]]:
    """Yield sizes of meshes of a system's IPUs, of more IPUs first."""
    counts = [n for n in range(min(num_ipus, MAX_DEVICES), 1, -1) if num_ipus % n == 0]
    for count in counts[:MOST_COUNTS]:
        yield (count,)
        for inner in range(2, count // 2 + 1):
            if count % inner == 0:
                yield (count // inner, inner)


MOST_COUNTS = 6
"""Numbers of IPUs that are tried: those that divide the system's, from all of them down."""
