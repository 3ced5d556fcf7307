"""Worker contexts in the simulator: registers, hidden state, memory accesses and control flow, all workers in step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiles.elements.amp import PRODUCTS, SLIDING
from tiles.elements.cell import ACCESS_BYTES
from tiles.elements.cost import block_slots
from tiles.elements.isa import InstructionSet
from tiles.elements.semantics import Semantics, as_floats
from tiles.elements.slic import CHANNELS, TAPS
from tiles.elements.streaming import ZERO, Streaming, streaming
from tiles.elements.tilecode import (
    GENERATOR,
    Block,
    Bundle,
    Instruction,
    Item,
    Loop,
    Register,
    Repeat,
)
from tiles.elements.workers import WORKER_STATUS
from tiles.errors import NoTileCode, TileFault

POISON = 0xFFBADBAD
"""What memory holds that nobody wrote, and loads beyond its end return: not a number as f32 and as f16."""

ADDRESS_MASK = (1 << 21) - 1
ELEMENT_BYTES = 1 << 14
INTERLEAVED = 1 << 20
"""From which number on elements count that are interleaved two by two: of another region of memory."""
AMP_OUTPUTS = 16
_PRODUCTS = {product.mnemonic: product for product in (*PRODUCTS.values(), *SLIDING.values())}
_SLIDING = {product.mnemonic: product for product in SLIDING.values()}
_MULTIPLY_ADDS = {"f16v4cmac": ("f16", 2), "f32v2mac": ("f32", 1)}
"""Products that two accumulators, which are read out together, take: of what kind, and how many each."""
ACCUMULATOR_PAIRS = ((0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15))
"""Accumulators in the order in which ``gina`` reads them out, two at a time."""


class Tiles:
    """Tiles' memory and weights.

    Args:
      isa: the generation.
      size_bytes: memory of each tile; addresses start at ``base``.
      tiles: number of tiles; all run the same code.
      interleaved: address from which on memory is interleaved: words of 64 bits lie in two elements by turns.
      in_ring: whether the multiply units add products of words modulo 2^n.
    """

    def __init__(
        self,
        isa: InstructionSet,
        size_bytes: int = 1 << 16,
        tiles: int = 1,
        base: int = 0x4C000,
        interleaved: int | None = None,
        in_ring: bool = False,
    ) -> None:
        """Make memory that nobody has written."""
        self.isa, self.base, self.size_bytes = isa, base, size_bytes
        self.interleaved, self.number = interleaved, np.uint32 if in_ring else np.float32
        self.workers = isa["worker_contexts"]
        self.words = np.full((tiles, size_bytes // 4), POISON, np.uint32)
        self.weights = np.zeros((tiles, AMP_OUTPUTS, 16), self.number)
        self.streams_at_once = True
        self.streams: dict[tuple[int, int], tuple[Repeat, Streaming | None]] = {}
        self.semantics = Semantics(bool(isa["flushes_f32_subnormals"]))

    @property
    def memory(self) -> np.ndarray:
        """The bytes of every tile, ``[tiles, bytes]``."""
        return self.words.view(np.uint8)

    def write(self, address: int, data: np.ndarray) -> None:
        """Write an array ``[tiles, ...]`` at an address of every tile."""
        raw = np.ascontiguousarray(data).reshape(data.shape[0], -1).view(np.uint8)
        self.memory[:, address - self.base : address - self.base + raw.shape[1]] = raw

    def read(self, address: int, count: int, dtype: str) -> np.ndarray:
        """Return ``count`` elements from an address of every tile, ``[tiles, count]``."""
        size = np.dtype(dtype).itemsize * count
        at = address - self.base
        return np.ascontiguousarray(self.memory[:, at : at + size]).view(dtype)

    def load_weights(self, mnemonic: str, address: np.ndarray) -> None:
        """Bring a panel of weights ``[outputs, inputs]`` from an address of each tile, ``[tiles]``, into the multiply units."""
        product = _PRODUCTS[mnemonic]
        at = (address - self.base >> 2)[:, None] + np.arange(product.panel_bytes // 4)
        words = np.take_along_axis(self.words, at, axis=1)
        panel = self.numbers(words, product.dtype).reshape(-1, product.outputs, product.inputs)
        self.weights[:, : product.outputs, : product.inputs] = panel

    def numbers(self, words: np.ndarray, dtype: str) -> np.ndarray:
        """Return what the units take words ``[..., words]`` for, ``[..., lanes]``; in the ring, integers."""
        if self.number is np.uint32:
            return words if dtype == "float32" else words.view(np.uint16).astype(np.uint32)
        return words.view(dtype).astype(np.float32, copy=False)

    def words_of(self, numbers: np.ndarray, dtype: str) -> np.ndarray:
        """Return numbers ``[..., lanes]`` of the units as words of a dtype, ``[..., words]``."""
        if self.number is np.uint32:
            return numbers if dtype == "float32" else numbers.astype(np.uint16).view(np.uint32)
        return np.ascontiguousarray(numbers.astype(dtype, copy=False)).view(np.uint32)


def tapacked(first: np.ndarray, second: np.ndarray, third: np.ndarray) -> np.ndarray:
    """Return three addresses of 21 bits in two words: the third in the upper bits of both."""
    low = first & ADDRESS_MASK | (third & 0x7FF) << 21
    high = second & ADDRESS_MASK | (third >> 11 & 0x3FF) << 21
    return np.stack([low, high]).astype(np.uint32)


def unpacked(pair: np.ndarray) -> list[np.ndarray]:
    """Return the three addresses in a packed pair."""
    low, high = pair.astype(np.int64)
    return [low & ADDRESS_MASK, high & ADDRESS_MASK, low >> 21 | (high >> 21 & 0x3FF) << 11]


def _stride(fields: np.ndarray, pick: int) -> np.ndarray:
    """Return the step of an access: 1, or a signed field of 10 bits."""
    if not pick:
        return np.ones(fields.shape, np.int64)
    field = fields.astype(np.int64) >> (10 * (pick - 1)) & 0x3FF
    return np.where(field > 0x1FF, field - 0x400, field)


class Contexts:
    """Registers of all workers of all tiles, in step; a mask says which take part."""

    def __init__(self, tiles: Tiles, state: int, scratch: int, scratch_bytes: int) -> None:
        """Start every worker of every tile at a vertex, with registers that nobody has written."""
        self.sim = tiles
        workers = tiles.workers
        self.count = len(tiles.words) * workers
        self.tile = np.repeat(np.arange(len(tiles.words)), workers)
        self.worker = np.tile(np.arange(workers, dtype=np.uint32), len(tiles.words))
        self.files = {f: np.full((16, self.count), POISON, np.uint32) for f in "MA"}
        self.files["M"][12] = scratch + self.worker * np.uint32(scratch_bytes)
        self.files["M"][13] = state
        self.accumulators: np.ndarray = np.zeros((32, self.count), tiles.number)
        self.next_partials = np.zeros((AMP_OUTPUTS, self.count), tiles.number)
        self.last_results = np.zeros((AMP_OUTPUTS, self.count), tiles.number)
        self.are_clear = True
        self.windows = np.zeros((TAPS, CHANNELS, self.count), tiles.number)
        self.numbers: np.ndarray | None = None
        self.drawn = np.zeros(self.count, np.int64)
        self.slots = np.zeros(self.count, np.int64)
        self.everyone = np.ones(self.count, bool)
        self.files["M"][15] = 0
        self.files["A"][14:] = 0
        self.flat = tiles.words.reshape(-1)
        self.first_word = self.tile * tiles.words.shape[1]

    def those(self, mask: np.ndarray) -> np.ndarray:
        """Return a mask, ``everyone`` itself where it says all contexts."""
        return self.everyone if mask is self.everyone or mask.all() else mask

    def items(self, items: Sequence[Item], active: np.ndarray) -> None:
        """Run items in the contexts that a mask says."""
        for item in items:
            if isinstance(item, Block):
                self.block(item, active)
            elif isinstance(item, Repeat):
                self._repeat(item, active)
            elif isinstance(item, Loop):
                self._loop(item, active)
            else:
                self.slots += active
                holds = (self.get(item.condition)[0] != 0) != item.inverted
                taken = active & holds
                if taken.any():
                    self.items(item.body, self.those(taken))

    def _repeat(self, item: Repeat, active: np.ndarray) -> None:
        if item.count is None:
            counts = np.full(self.count, item.trips.evaluate({}))
        else:
            counts = self.get(item.count)[0].astype(np.int64)
        limit = self.sim.isa["repeat_count_max"]
        if (counts[active] > limit).any():
            raise TileFault(f"rpt {counts[active].max():,} times", expected=f"at most {limit:,}")
        stream = self._stream(item, counts, active)
        if stream is not None:
            return self._streamed(stream, item, counts, active)
        self.block(item.lead, active)
        self.slots += active
        if item.count is not None:  # what fills the pipeline may count, too
            counts = self.get(item.count)[0].astype(np.int64)
        for k in range(int(counts[active].max(initial=0))):
            self.block(item.body, self.those(active & (counts > k)))

    def _stream(self, item: Repeat, counts: np.ndarray, active: np.ndarray) -> Streaming | None:
        """Return a loop as a stream of equal positions, None where it is none, or not the same in all tiles."""
        last = (item.body.bundles or (Bundle(),))[-1].main
        if not self.sim.streams_at_once or last is None or not last.mnemonic.endswith("pace"):
            return None
        strides = self.get(last.ins[-1])[0]
        workers = np.stack([strides, counts, *unpacked(self.get(last.ins[-2])), active])
        workers = workers.reshape(len(workers), -1, self.sim.workers)
        if not active.any() or not self.are_clear or (workers != workers[:, :1]).any():
            return None
        word = int(strides[active][0])
        if (strides[active] != word).any():
            return None
        key = id(item), word
        if key not in self.sim.streams:
            self.sim.streams[key] = item, streaming(item, word)
        return self.sim.streams[key][1]

    def _streamed(self, stream: Streaming, item: Repeat, counts: np.ndarray, active: np.ndarray) -> None:
        """Run a stream's positions at once: products of tiles' weights with the inputs of all their workers' positions."""
        isa, product, sim = self.sim.isa, stream.product, self.sim
        assert item.body.bundles
        first = item.body.bundles[0].main
        assert first is not None
        slots = block_slots(item.lead, isa) + 1 + block_slots(item.body, isa) * counts
        self.slots += np.where(active, slots, 0)
        each = np.where(active, counts, 0)[: sim.workers]
        pointers = [pointer[: sim.workers] for pointer in unpacked(self.get(first.ins[-2]))]
        if not each.any():
            return
        self._check_stream(stream, [pointer[each > 0] for pointer in pointers])
        worker = np.repeat(np.arange(sim.workers), each)
        position = np.arange(len(worker)) - np.repeat(np.cumsum(each) - each, each)
        rows = [
            (pointer[worker] - sim.base + position * step) // ACCESS_BYTES
            for pointer, step in zip(pointers, stream.steps, strict=True)
        ]
        order = np.argsort(rows[2], kind="stable")
        inputs, partials, results = (
            (row[order][:, None] + words[::2] // ACCESS_BYTES).reshape(-1)
            for row, words in zip(rows, (stream.inputs, stream.partials, stream.results), strict=True)
        )
        x = sim.numbers(self._accessed(inputs), product.dtype).reshape(len(sim.words), -1, product.inputs)
        sums = np.matmul(x, sim.weights[:, : product.outputs, : product.inputs].transpose(0, 2, 1))
        if stream.partials[0] != ZERO:
            sums += sim.numbers(self._accessed(partials), product.partials).reshape(sums.shape)
        found = sim.words_of(sums.reshape(len(sums), -1), product.partials).view(np.uint64)
        self.sim.words.view(np.uint64)[:, self._together(results)] = found

    def _check_stream(self, stream: Streaming, pointers: list[np.ndarray]) -> None:
        """Refuse streams that begin at odd addresses, or of which an instruction's accesses meet in a memory element."""
        if any((pointer % ACCESS_BYTES).any() for pointer in pointers):
            raise TileFault("a stream of accesses of 8 bytes", expected="natural alignment")
        inputs, partials, results = pointers
        everyone = np.ones(len(inputs), bool)
        for apart in stream.apart:
            self._check_elements([inputs, partials + ACCESS_BYTES * apart, results], everyone)
        if stream.partials[0] == ZERO:
            self._check_elements([inputs, results], everyone)

    def _together(self, accesses: np.ndarray) -> np.ndarray | slice:
        """Return numbers of accesses to every tile's memory, as a slice where they follow each other."""
        first, last = int(accesses.min()), int(accesses.max())
        if first < 0 or last >= self.sim.words.shape[1] // 2:
            raise TileFault("a stream of accesses outside a tile's memory")
        if last - first + 1 == len(accesses) and (np.diff(accesses) == 1).all():
            return slice(first, last + 1)
        return accesses

    def _accessed(self, accesses: np.ndarray) -> np.ndarray:
        """Return the words of accesses to every tile's memory, ``[tiles, words]``."""
        where, memory = self._together(accesses), self.sim.words.view(np.uint64)
        found = memory[:, where] if isinstance(where, slice) else np.take(memory, where, axis=1)
        return found.view(np.uint32)

    def _loop(self, item: Loop, active: np.ndarray) -> None:
        running = active
        while running.any():
            self.items(item.body, running)
            self.slots += running
            counter = self.get(item.counter)[0].copy()
            self.put(item.counter, counter[None] - np.uint32(1), running & (counter != 0))
            running = self.those(running & (counter != 0))

    def block(self, block: Block, active: np.ndarray) -> None:
        """Run a block's bundles."""
        for bundle in block.bundles or ():
            self._bundle(bundle, active)

    def _bundle(self, bundle: Bundle, active: np.ndarray) -> None:
        results = [(i, self._run(i, active)) for i in bundle.instructions]
        for instruction, values in results:
            for register, value in zip(instruction.outs, values, strict=True):
                self.put(register, value, active)
        slots = max((self.sim.isa.row(i.mnemonic).issue_slots for i in bundle.instructions), default=1)
        if active is self.everyone:
            self.slots += slots
        else:
            self.slots[active] += slots

    def get(self, register: Register) -> np.ndarray:
        """Return a register or group in every context, ``[registers, contexts]``."""
        assert not register.virtual
        return self.files[register.file][register.index : register.index + register.width].copy()

    def put(self, register: Register, value: np.ndarray, active: np.ndarray) -> None:
        """Write a register or group where the mask says; zero registers stay zero."""
        end = 15 if register.file == "M" else 14
        here = self.files[register.file][register.index : min(register.index + register.width, end)]
        value = np.broadcast_to(value, (register.width, self.count))[: len(here)]
        if active is self.everyone:
            here[...] = value
        else:
            np.copyto(here, value, where=active)

    def _run(self, i: Instruction, active: np.ndarray) -> list[np.ndarray]:
        row = self.sim.isa.row(i.mnemonic)
        if i.mnemonic.endswith("pace"):
            return self._paced(i, active)
        if row.loads_bits or row.stores_bits:
            return self._access(i, active)
        if i.mnemonic == "get":
            if i.imms != (WORKER_STATUS,):
                raise NoTileCode(f"get of register {i.imms}")
            return [self.worker[None].copy()]
        if i.mnemonic == "exitz":
            return []
        if i.effect == "accumulators":
            return self._accumulate(i, active)
        if i.effect == GENERATOR:
            return [self._draw(i.outs[0].width, active)]
        if i.effect == "amp":
            return self._multiply(i, active)
        if i.effect == "slic":
            return self._slide(i, active)
        if i.mnemonic == "tapack":
            return [tapacked(*(self.get(r)[0].astype(np.int64) for r in i.ins))]
        return self.sim.semantics.function(i.mnemonic, i.modifier)([self.get(r) for r in i.ins], i.imms)

    def hand(self, words: int | np.ndarray | None) -> None:
        """Take what workers' generators will give, ``[tiles, workers, draws]``."""
        if words is not None:
            self.numbers = np.asarray(words, np.uint32).reshape(self.count, -1)

    def _draw(self, width: int, active: np.ndarray) -> np.ndarray:
        """Return the next words of every active worker's generator."""
        if self.numbers is None:
            raise NoTileCode(
                "the simulator knows no numbers of the machine's generator", expected="what it gives"
            )
        last = self.numbers.shape[1] - 1
        at = np.minimum(self.drawn + np.arange(width)[:, None], last)  # beyond: drawn ahead, for nobody
        self.drawn = self.drawn + np.where(active, width, 0)
        return np.take_along_axis(self.numbers.T, at, axis=0)

    def _accumulate(self, i: Instruction, active: np.ndarray) -> list[np.ndarray]:
        """Run what reads or changes accumulators; where they lie in pairs is assumed beyond the first eight."""
        old = self.accumulators
        if i.mnemonic == "uput" and self.are_clear:
            return []
        self.are_clear = False
        if i.mnemonic == "uput":
            self.accumulators = np.where(active & (self.get(i.ins[0])[0] & 8 != 0), self.sim.number(0), old)
            return []
        if i.mnemonic in ("f16v4acc", "f16v8acc", "f32v4acc"):
            lanes = as_floats(self.get(i.ins[0]), i.mnemonic[:3]).astype(np.float32)
            new = old.copy()
            new[: len(lanes)] += lanes
            self.accumulators = np.where(active, new, old)
            return []
        if i.mnemonic in _MULTIPLY_ADDS:
            kind, each = _MULTIPLY_ADDS[i.mnemonic]
            x, w = (as_floats(self.get(r), kind).astype(np.float64) for r in i.ins)
            products = (x * w).reshape(2, each, -1).sum(axis=1)
            new = old.copy()
            new[[0, 2]] = (old[[0, 2]] + products).astype(np.float32)
            self.accumulators = np.where(active, new, old)
            return []
        if i.mnemonic != "f32v2gina":
            raise NoTileCode(f"the simulator has no meaning for {i.mnemonic!r}")
        order = np.array(ACCUMULATOR_PAIRS)
        queue = np.concatenate([old[order.ravel()], self.get(i.ins[0]).view(np.float32)])
        new = old.copy()
        new[order.ravel()] = queue[2:]
        self.accumulators = np.where(active, new, old)
        return [queue[:2].view(np.uint32)]

    def _multiply(self, i: Instruction, active: np.ndarray) -> list[np.ndarray]:
        """Run an issue of the multiply units: inputs by units, partials of the next position in, results out.

        Units work in f32 and give partials. Which outputs go with which issue is assumed.
        """
        product, self.are_clear = _PRODUCTS[i.mnemonic], False
        (phase,), outputs = i.imms, product.outputs
        taken, given = product.inputs // product.phases, outputs // product.phases
        inputs, lanes = (slice(k * phase, k * phase + k) for k in (taken, given))
        x, partials = (
            self.sim.numbers(np.ascontiguousarray(self.get(r).T), dtype).T
            for r, dtype in zip(i.ins, (product.dtype, product.partials), strict=True)
        )
        weights = self.sim.weights[self.tile, :outputs, inputs]
        results = self.last_results[lanes].copy()
        sums = self.accumulators[:outputs] + np.einsum("cok,kc->oc", weights, x)
        self.next_partials[lanes] = np.where(active, partials, self.next_partials[lanes])
        if phase == product.phases - 1:
            self.last_results[:outputs] = np.where(active, sums, self.last_results[:outputs])
            sums = self.next_partials[:outputs].copy()
        self.accumulators[:outputs] = np.where(active, sums, self.accumulators[:outputs])
        return [self.sim.words_of(np.ascontiguousarray(results.T), product.partials).T]

    def _slide(self, i: Instruction, active: np.ndarray) -> list[np.ndarray]:
        """Run an issue of short sliding windows: an input for all four that are under way, partials in, results out.

        A window is at its first tap in the issue that takes its partials. The immediate says which outputs, where an issue
        has not all. Units work in f32.
        """
        product = _SLIDING[i.mnemonic]
        x, partials = (
            self.sim.numbers(np.ascontiguousarray(self.get(r).T), dtype).T
            for r, dtype in zip(i.ins, (product.dtype, product.partials), strict=True)
        )
        count = len(partials)
        outputs = slice(count * i.imms[0], count * i.imms[0] + count)
        weights = self.sim.weights[self.tile, outputs, : product.inputs].reshape(self.count, count, 4, -1)
        windows = self.windows[:, :count]
        results = windows[-1].copy()
        begun = np.concatenate([partials[None], windows[:-1]])
        new = begun + np.einsum("cotk,kc->toc", weights, x)
        self.windows[:, :count] = np.where(active, new, windows)
        return [self.sim.words_of(np.ascontiguousarray(results.T), product.partials).T]

    def _access(self, i: Instruction, active: np.ndarray) -> list[np.ndarray]:
        """Run a load or store of one address: base + delta + offset, or base + delta and then advance."""
        row = self.sim.isa.row(i.mnemonic)
        bits = (*row.loads_bits, *row.stores_bits)[0]
        steps = i.mnemonic.endswith("step")
        data = i.ins[: 1 if row.stores_bits else 0]
        address_registers = i.ins[len(data) : len(data) + 2]
        base, delta = (self.get(r)[0].astype(np.int64) for r in address_registers)
        stride = self.get(i.ins[len(data) + 2])[0].view(np.int32) if len(i.ins) > len(data) + 2 else i.imms[0]
        address = base + delta + (0 if steps else stride * (bits // 8))
        if bits > 8 * ACCESS_BYTES and (address[active] < (self.sim.interleaved or np.inf)).any():
            raise TileFault(f"an access of {bits} bits outside interleaved memory")
        advanced = (
            []
            if not steps
            else [(delta + np.asarray(stride, np.int64) * (bits // 8)).astype(np.uint32)[None]]
        )
        if data:
            self._store(address, self.get(data[0]), active)
            return advanced
        return [self._load(i.mnemonic, address, bits, active), *advanced]

    def _paced(self, i: Instruction, active: np.ndarray) -> list[np.ndarray]:
        """Run an instruction of several accesses: two loads and a store at most, each by a packed pointer."""
        row = self.sim.isa.row(i.mnemonic)
        data, pair = i.ins[: len(row.stores_bits)], self.get(i.ins[-2])
        fields = self.get(i.ins[-1])[0]
        addresses = unpacked(pair)
        used = [*range(len(row.loads_bits)), *([2] if row.stores_bits else [])]
        self._check_elements([addresses[k] for k in used], active)
        values = [self._load("ld64", addresses[k], 64, active) for k in used if k < 2]
        if row.forms[0][0] == "=A4":
            values = [np.concatenate(values)]
        if data:
            self._store(addresses[2], self.get(data[0]), active)
        for at, k in enumerate(used):
            addresses[k] = addresses[k] + 8 * _stride(fields, i.imms[0] >> (2 * at) & 3)
        return [*values, tapacked(*addresses)]

    def _check_elements(self, addresses: list[np.ndarray], active: np.ndarray) -> None:
        """Refuse accesses of one instruction to one memory element; of interleaved memory every second 64 bits are in one."""
        elements = [a // ELEMENT_BYTES for a in addresses]
        limit = self.sim.interleaved
        if limit is not None:
            elements = [
                np.where(a < limit, e, INTERLEAVED + e // 2 * 2 + a // ACCESS_BYTES % 2)
                for a, e in zip(addresses, elements, strict=True)
            ]
        for at, one in enumerate(elements):
            for other in elements[:at]:
                if (one == other)[active].any():
                    raise TileFault("two accesses of one instruction to one memory element")

    def _load(self, mnemonic: str, address: np.ndarray, bits: int, active: np.ndarray) -> np.ndarray:
        at = self._offset(address, bits // 8, active)
        words = np.stack([self._word((at >> 2) + k) for k in range(max(1, bits // 32))])
        if bits >= 32:
            return words
        part = words >> (8 * (at % 4)).astype(np.uint32) & np.uint32((1 << bits) - 1)
        if mnemonic.startswith("lds"):
            shift = np.int32(32 - bits)
            return ((part.view(np.int32) << shift) >> shift).view(np.uint32)
        return part | part << np.uint32(16) if mnemonic.startswith("ldb16") else part

    def _word(self, at: np.ndarray) -> np.ndarray:
        limit = self.sim.words.shape[1]
        if at.size and 0 <= at.min() and at.max() < limit:
            return np.take(self.flat, self.first_word + at)
        inside = (at >= 0) & (at < limit)
        found = np.take(self.flat, self.first_word + np.where(inside, at, 0))
        return np.where(inside, found, np.uint32(POISON))

    def _offset(self, address: np.ndarray, size_bytes: int, active: np.ndarray) -> np.ndarray:
        at = address - self.sim.base
        wrong = (at & (size_bytes - 1)) != 0
        if wrong.any() and (wrong & active).any():
            got = int(address[wrong & active][0])
            raise TileFault(f"an access of {size_bytes} bytes at {got:#x}", expected="natural alignment")
        return at

    def _store(self, address: np.ndarray, words: np.ndarray, active: np.ndarray) -> None:
        at = self._offset(address, 4 * len(words), active)
        tile_words = self.first_word
        if active is not self.everyone:
            at, tile_words, words = at[active], tile_words[active], words[:, active]
        if at.size and (at.min() < 0 or at.max() + 4 * len(words) > self.sim.size_bytes):
            raise TileFault("a store outside a tile's memory", got=f"{int(at.max()) + self.sim.base:#x}")
        for k, word in enumerate(words):
            self.flat[tile_words + (at >> 2) + k] = word
