"""What lives where and when: bytes per tile, per category and per step, from the buffers of an executable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiles.compiler import Buffer, Executable
from tiles.compiler.executable import CATEGORIES
from tiles.files import JsonObject
from tiles.report.code import executable_memory
from tiles.report.places import place_data
from tiles.report.tensors import tensor_figures
from tiles.target import Target

LARGEST = 10
"""How many of the largest live buffers are listed."""


@dataclass(frozen=True, eq=False)
class TileMemory:
    """Bytes of every tile; a tile's peak is at the first step at which most of its bytes are live.

    Steps are counted from -1, before the program, to the number of steps, after it.

    Args:
      peak: live bytes at the tile's peak, int64 ``[num_tiles]``.
      peak_step: the step of the peak, int64 ``[num_tiles]``.
      category: live bytes at the tile's peak, int64 ``[num_tiles]`` per category; they add up to ``peak``.
      always_live: bytes of buffers that live from before to after the program, int64 ``[num_tiles]``.
      including_gaps: bytes from the start of every memory region to the highest address used in it, added
        up; beyond the last region what does not fit.
      highest_address: one past the last byte used at any time; 0 on a tile without buffers.
      fullest_tile: the tile with the highest peak; of several the one that peaks first, then the lowest.
      live: live bytes of the fullest tile, int64 ``[steps + 2]`` from step -1 on.
      device_live: live bytes of all tiles together, int64 ``[steps + 2]``.
      largest: the largest buffers live on the fullest tile at its peak, largest first.
    """

    peak: np.ndarray
    peak_step: np.ndarray
    category: dict[str, np.ndarray]
    always_live: np.ndarray
    including_gaps: np.ndarray
    highest_address: np.ndarray
    fullest_tile: int
    live: np.ndarray
    device_live: np.ndarray
    largest: list[Buffer]

    @property
    def not_always_live(self) -> np.ndarray:
        """Bytes live at the tile's peak that are not always live, int64 ``[num_tiles]``."""
        return self.peak - self.always_live


def tile_memory(executable: Executable) -> TileMemory:
    """Return the memory of every tile of an executable."""
    target, num_steps = executable.target, len(executable.steps)
    buffers = list(executable.buffers.values())
    size, start, end, address = _columns(buffers)
    place, there, edges = _places(buffers, target.num_tiles)
    width = np.diff(edges)

    live = _live(size, start, end, place, there, num_steps)
    peak, peak_step = live.max(axis=0), live.argmax(axis=0) - 1
    step, fullest = np.unravel_index(int(live.argmax()), live.shape)

    kinds = np.array([CATEGORIES.index(b.category) for b in buffers], np.int64)
    category = np.zeros((len(CATEGORIES), width.size), np.int64)
    for each in np.unique(peak_step):
        runs, is_live = peak_step == each, (start <= each) & (each <= end)
        sizes = _added(kinds * len(there) + place, size * is_live, category.shape[0] * len(there))
        category[:, runs] = _on_runs(sizes.reshape(-1, len(there)), there[:, runs])
    always = _added(place, size * ((start == -1) & (end == num_steps)), len(there))
    gaps, highest = _reach(address, address + size, place, there, target)
    largest = [buffers[b] for b in np.flatnonzero(there[place, fullest]) if start[b] <= step - 1 <= end[b]]
    return TileMemory(
        peak=np.repeat(peak, width),
        peak_step=np.repeat(peak_step, width),
        category={name: np.repeat(sizes, width) for name, sizes in zip(CATEGORIES, category, strict=True)},
        always_live=np.repeat(_on_runs(always, there), width),
        including_gaps=np.repeat(gaps, width),
        highest_address=np.repeat(highest, width),
        fullest_tile=int(edges[fullest]),
        live=live[:, fullest],
        device_live=live @ width,
        largest=sorted(largest, key=lambda b: (-b.size_bytes, b.name))[:LARGEST],
    )


def memory_analysis(executable: Executable) -> JsonObject:
    """Return the memory of an executable as plain data; all sizes are bytes.

    Returns:
      ``categories``: for every category ``fullest_tile_bytes``, live on the fullest tile at its peak, and
        ``total_bytes``, each tile at its own peak, added up over tiles.
      ``always_live_bytes``, ``not_always_live_bytes``: the same two kinds of the peak on the fullest tile.
      ``fullest_tile``: number of the tile with the most live bytes at any step.
      ``peak_bytes``, ``peak_step``, ``peak_step_name``: how many, and when; step -1 is before the program.
      ``bytes_including_gaps``, ``highest_address``: of the fullest tile, see ``TileMemory``.
      ``total_bytes``: peaks added up over tiles.
      ``limit_bytes``: memory of one tile.
      ``executable_memory``: what code takes on the tile with most of it; see ``tiles.report.code``.
      ``fits``: whether every buffer has an address inside the memory.
      ``live_bytes``: live bytes of the fullest tile before the program, at every step and after it.
      ``largest_live``: the largest buffers live there then: ``name``, ``category``, ``bytes``, ``address``,
        ``location``, ``scope`` and ``transforms``.
      ``tensors``: the machine's tensors by kind; see ``tensor_figures``.
    """
    return memory_figures(executable, tile_memory(executable))


def memory_figures(executable: Executable, memory: TileMemory) -> JsonObject:
    """Return what ``memory_analysis`` documents."""
    tile = memory.fullest_tile
    step = int(memory.peak_step[tile])
    categories = {
        name: {"fullest_tile_bytes": int(per_tile[tile]), "total_bytes": int(per_tile.sum())}
        for name, per_tile in memory.category.items()
    }
    return {
        "categories": categories,
        "always_live_bytes": int(memory.always_live[tile]),
        "not_always_live_bytes": int(memory.not_always_live[tile]),
        "fullest_tile": tile,
        "peak_bytes": int(memory.peak[tile]),
        "peak_step": step,
        "peak_step_name": executable.step_name(step),
        "bytes_including_gaps": int(memory.including_gaps[tile]),
        "highest_address": int(memory.highest_address[tile]),
        "total_bytes": int(memory.peak.sum()),
        "limit_bytes": executable.target.bytes_per_tile,
        "executable_memory": executable_memory(executable, memory.category),
        "fits": executable.fits,
        "live_bytes": memory.live.tolist(),
        "largest_live": [
            {
                "name": b.name,
                "category": b.category,
                "bytes": b.size_bytes,
                "address": b.address,
                **place_data(b.location),
            }
            for b in memory.largest
        ],
        "tensors": tensor_figures(executable),
    }


def _columns(buffers: list[Buffer]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return size, first step, last step and address of every buffer, int64 ``[buffers]`` each."""
    rows = [(b.size_bytes, b.start, b.end, b.address) for b in buffers]
    table = np.array(rows, np.int64).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def _places(buffers: list[Buffer], num_tiles: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the sets of tiles on which buffers lie, in runs of neighbouring tiles that hold the same buffers.

    Returns:
      place: the number of each buffer's set, int64 ``[buffers]``; most buffers lie where others do.
      there: whether a set holds the tiles of a run, bool ``[sets, runs]``.
      edges: first tile of every run and, last, the number of tiles, int64 ``[runs + 1]``.
    """
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    place = np.array([numbers.setdefault(b.tiles, len(numbers)) for b in buffers], np.int64)
    owner = np.repeat(np.arange(len(numbers)), [len(tiles) for tiles in numbers])
    spans = np.array([span for tiles in numbers for span in tiles], np.int64).reshape(-1, 2)
    edges = np.unique(np.concatenate([[0, num_tiles], spans.ravel()]))
    first, last = np.searchsorted(edges, spans).T
    changes = np.zeros((len(numbers), edges.size), np.int64)
    np.add.at(changes, (owner, first), 1)
    np.add.at(changes, (owner, last), -1)
    return place, np.cumsum(changes, axis=1)[:, :-1] > 0, edges


def _live(
    size: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    place: np.ndarray,
    there: np.ndarray,
    num_steps: int,
) -> np.ndarray:
    """Return live bytes of a tile of every run, int64 ``[num_steps + 2, runs]``, from step -1 on."""
    cells = (num_steps + 3) * len(there)
    begins = _added((start + 1) * len(there) + place, size, cells)
    ceases = _added((end + 2) * len(there) + place, size, cells)
    return _on_runs(np.cumsum((begins - ceases).reshape(-1, len(there)), axis=0)[:-1], there)


def _on_runs(sizes: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Return bytes of sets of tiles, ``[..., sets]``, added up on every run, int64 ``[..., runs]`` (exact, as in ``_added``)."""
    return (sizes.astype(np.float64) @ there.astype(np.float64)).astype(np.int64)


def _added(index: np.ndarray, values: np.ndarray, length: int) -> np.ndarray:
    """Return values added up by index, int64 ``[length]`` (exact: sums stay far below 2**53)."""
    return np.bincount(index, values, length).astype(np.int64)


def _reach(
    address: np.ndarray, end: np.ndarray, place: np.ndarray, there: np.ndarray, target: Target
) -> tuple[np.ndarray, np.ndarray]:
    """Return bytes including gaps and the highest address of a tile of every run; see ``TileMemory``."""
    used = end > address
    highest = _most_on_runs(end, used, place, there)
    memory_end = max(region.end for region in target.memory_regions)
    spans = [(region.base, region.end) for region in target.memory_regions]
    spans.append((memory_end, max(memory_end, int(highest.max(initial=0)))))
    gaps = np.zeros(there.shape[1], np.int64)
    for base, limit in spans:
        within = used & (address < limit) & (end > base)
        gaps += _most_on_runs(np.minimum(end, limit) - base, within, place, there)
    return gaps, highest


def _most_on_runs(values: np.ndarray, among: np.ndarray, place: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Return the most of what some buffers have on every run, at least 0, int64 ``[runs]``."""
    most = np.zeros(len(there), np.int64)
    np.maximum.at(most, place[among], values[among])
    return np.where(there, most[:, None], 0).max(axis=0, initial=0)
