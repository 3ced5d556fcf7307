"""What a loop on the multiply units reads and writes, position by position.

Registers are followed through the bundles that fill its pipeline and a few iterations. Where every position does the same
as the one before, some bytes further on, the simulator runs all of them at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tiles.elements.amp import PRODUCTS, Product
from tiles.elements.cell import ACCESS_BYTES
from tiles.elements.tilecode import Block, Bundle, Instruction, Register, Repeat

ZERO = -1
"""Stands for an offset where a word is zero."""
_ITERATIONS = 3
_PRODUCTS = {product.mnemonic: product for product in PRODUCTS.values()}
_WORD_BYTES = 4
_FIELD_BITS = 10

Label = tuple[str, int, int]
"""Where a register's word comes from: memory by a pointer, and bytes from where it pointed at first; or a result, of a
position, and which of its words."""
_NOTHING: Label = ("zero", 0, 0)


def stride(word: int, pick: int) -> int:
    """Return the step of an access, in accesses: 1, or a signed field of 10 bits."""
    if not pick:
        return 1
    value = word >> _FIELD_BITS * (pick - 1) & (1 << _FIELD_BITS) - 1
    return value - (1 << _FIELD_BITS) if value >> _FIELD_BITS - 1 else value


@dataclass(frozen=True)
class Streaming:
    """A loop whose positions differ only in where they lie.

    Attributes:
      product: what is computed.
      inputs, partials, results: offsets in bytes of a position's words from where the first, second and third pointer
        point before the loop; ``ZERO`` for partials that are none.
      steps: bytes from a position's inputs, partials and results to the next one's.
      apart: by how many accesses, modulo two, what an instruction loads by the second pointer is further from there than what
        it stores by the third.
    """

    product: Product
    inputs: np.ndarray
    partials: np.ndarray
    results: np.ndarray
    steps: tuple[int, int, int]
    apart: frozenset[int] = frozenset()


@dataclass
class _Position:
    """Words that a position is computed from, in order."""

    inputs: list[Label] = field(default_factory=list["Label"])
    partials: list[Label] = field(default_factory=list["Label"])


class _Trace:
    """Registers and units while the bundles of a loop run, by where their words come from."""

    def __init__(self, strides: int) -> None:
        self.strides = strides
        self.words: dict[tuple[str, int], Label] = {}
        self.at = [0, 0, 0]
        self.positions = [_Position()]
        self.coming = _Position()
        self.stored: list[tuple[int, Label]] = []
        self.apart: set[int] = set()

    def run(self, bundle: Bundle) -> None:
        """Run a bundle: both halves read before either writes."""
        main, aux = bundle.main, bundle.aux
        assert main is not None
        loaded = self._access(main)
        given = [] if aux is None else self._multiply(aux)
        for register, label in (*loaded, *given):
            self.words[register] = label

    def _of(self, register: Register) -> list[Label]:
        if register.index >= 14 and register.file == "A":
            return [_NOTHING] * register.width
        return [self.words.get((file, at), ("", 0, 0)) for file, at, _ in register.units]

    def _access(self, i: Instruction) -> list[tuple[tuple[str, int], Label]]:
        stores = i.mnemonic in ("ld2xst64pace", "ldst64pace")
        pointers = [0, 1, 2] if i.mnemonic == "ld2xst64pace" else [0, 2] if stores else [0, 1]
        targets = [(r.file, r.index + k) for r in i.outs[:-1] for k in range(r.width)]
        found: list[tuple[tuple[str, int], Label]] = []
        if len(pointers) > 2:
            self.apart.add((self.at[1] - self.at[2]) // ACCESS_BYTES % 2)
        for place, pointer in enumerate(pointers):
            here = self.at[pointer]
            for k in range(2):
                if pointer == 2:
                    self.stored.append((here + k * _WORD_BYTES, self._of(i.ins[0])[k]))
                else:
                    found.append((targets[2 * place + k], ("memory", pointer, here + k * _WORD_BYTES)))
            self.at[pointer] = here + ACCESS_BYTES * stride(self.strides, i.imms[0] >> 2 * place & 3)
        return found

    def _multiply(self, i: Instruction) -> list[tuple[tuple[str, int], Label]]:
        product, (phase,) = _PRODUCTS[i.mnemonic], i.imms
        now = self.positions[-1]
        now.inputs += self._of(i.ins[0])
        self.coming.partials += self._of(i.ins[1])
        (out,) = i.outs
        result = [("result", len(self.positions) - 2, out.width * phase + k) for k in range(out.width)]
        if phase == product.phases - 1:
            self.positions.append(self.coming)
            self.coming = _Position()
        return list(zip([(out.file, out.index + k) for k in range(out.width)], result, strict=True))


def streaming(item: Repeat, strides: int) -> Streaming | None:
    """Return what a loop on physical registers does with positions, None where it is no stream of equal positions.

    Accumulators are taken to be zero before it.

    Args:
      item: the loop, with what fills its pipeline.
      strides: the word of its accesses' strides.
    """
    product = next(iter(_products(item.body)), None)
    if product is None or not all(map(_is_streamed, item.body.bundles or ())):
        return None
    trace = _Trace(strides)
    for bundle in item.lead.bundles or ():
        if not _is_streamed(bundle):
            return None
        trace.run(bundle)
    first = len(trace.stored)
    for _ in range(_ITERATIONS):
        for bundle in item.body.bundles or ():
            trace.run(bundle)
    return None if first else _affine(trace, product)


def _products(block: Block) -> Iterator[Product]:
    for bundle in block.bundles or ():
        if bundle.aux is not None and bundle.aux.mnemonic in _PRODUCTS:
            yield _PRODUCTS[bundle.aux.mnemonic]


def _is_streamed(bundle: Bundle) -> bool:
    main, aux = bundle.main, bundle.aux
    return main is not None and main.mnemonic.endswith("pace") and (aux is None or aux.effect == "amp")


def _affine(trace: _Trace, product: Product) -> Streaming | None:
    """Return the offsets of the first position stored and the steps to the next; None where others do not follow them."""
    words = product.partials_bytes // _WORD_BYTES
    found: list[list[np.ndarray]] = []
    for number in range(_ITERATIONS):
        stored = trace.stored[number * words : (number + 1) * words]
        positions = {label[1] for _, label in stored}
        in_order = [label[2] for _, label in stored] == list(range(words))
        if len(positions) != 1 or not in_order or any(label[0] != "result" for _, label in stored):
            return None
        (position,) = positions
        if position < 0:
            return None
        source = trace.positions[position]
        labels = source.inputs, source.partials or [_NOTHING] * words
        offsets = [_offsets(labels[pointer], pointer) for pointer in range(2)]
        if any(x is None for x in offsets):
            return None
        found.append([*(x for x in offsets if x is not None), np.array([at for at, _ in stored], np.int64)])
    steps: list[int] = []
    for part in range(3):
        apart = [b[part] - a[part] for a, b in itertools.pairwise(found)]
        if any(d.shape != apart[0].shape or len(set(d.tolist())) > 1 for d in apart):
            return None
        by = {int(d[0]) for d in apart}
        if len(by) > 1:
            return None
        steps.append(by.pop())
    inputs, partials, results = found[0]
    return Streaming(
        product, inputs, partials, results, (steps[0], steps[1], steps[2]), frozenset(trace.apart)
    )


def _offsets(labels: list[Label], pointer: int) -> np.ndarray | None:
    """Return where words lie from a pointer on, None where they are from elsewhere; ``ZERO`` where all are nothing."""
    if all(label == _NOTHING for label in labels):
        return np.full(len(labels), ZERO, np.int64) if pointer else None
    if any(label[:2] != ("memory", pointer) for label in labels):
        return None
    found = np.array([label[2] for label in labels], np.int64)
    return found if len(found) % 2 == 0 and (found[1::2] - found[::2] == _WORD_BYTES).all() else None
