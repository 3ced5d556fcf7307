"""Where buffers go: code where it can run, data in interleaved memory first, memory shared over time and tiles."""

from __future__ import annotations

import itertools

import numpy as np

from tiles.compiler.memory import Gaps, Request, allocate
from tiles.target import Target


def request(
    name: str, size: int, mask: int = 1, live: tuple[int, int] = (0, 0), executable: bool = False
) -> Request:
    return Request(name, "variable", size, mask, *live, executable=executable)


def test_code_goes_where_it_can_run_and_data_to_interleaved_memory(gc200: Target) -> None:
    addresses, fits = allocate([request("data", 64), request("code", 64, executable=True)], gc200)
    assert fits
    code, data = gc200.region_of(addresses["code"]), gc200.region_of(addresses["data"])
    assert code is not None and code.executable
    assert data is not None and not data.executable


def test_data_takes_executable_memory_when_the_other_is_full(gc200: Target) -> None:
    room = sum(r.size_bytes for r in gc200.memory_regions if not r.executable)
    addresses, fits = allocate([request("big", room), request("small", 64)], gc200)
    assert fits
    region = gc200.region_of(addresses["small"])
    assert region is not None and region.executable


def test_buffers_share_addresses_over_time_and_over_tiles(gc200: Target) -> None:
    alone = allocate([request("a", 64)], gc200)[0]["a"]
    later = [request("a", 64, live=(0, 1)), request("b", 64, live=(2, 3))]
    apart = [request("a", 64, mask=0b01), request("b", 64, mask=0b10)]
    for pair in (later, apart):
        assert set(allocate(pair, gc200)[0].values()) == {alone}
    together = allocate([request("a", 64, live=(0, 1)), request("b", 64, live=(1, 2))], gc200)[0]
    assert abs(together["a"] - together["b"]) == 64


def test_what_does_not_fit_is_put_behind_the_memory(gc200: Target) -> None:
    end = max(r.base + r.size_bytes for r in gc200.memory_regions)
    addresses, fits = allocate([request("a", gc200.bytes_per_tile), request("b", 64)], gc200)
    assert not fits
    assert addresses["a"] + gc200.bytes_per_tile == end
    assert addresses["b"] >= end


def test_buffers_that_the_largest_first_leave_no_room_for_lie_otherwise(gc200: Target) -> None:
    """On paper they fill the memory at every step; a pair of the first three leaves no whole room for the fourth."""
    target = gc200.replace(bytes_per_tile=4096)
    wanted = [
        request("kept", 1080, live=(0, 5)),
        request("left", 1736, live=(0, 2)),
        request("right", 1144, live=(0, 2)),
        request("wide", 2880, live=(3, 5)),
        request("last", 3968, live=(6, 7)),
    ]
    addresses, fits = allocate(wanted, target)
    assert fits
    spans = {r.name: range(addresses[r.name], addresses[r.name] + r.size_bytes) for r in wanted}
    for a, b in itertools.combinations(wanted, 2):
        apart = a.end < b.start or b.end < a.start
        assert apart or not set(spans[a.name]) & set(spans[b.name])
    assert all(target.region_of(spans[r.name][k]) is not None for r in wanted for k in (0, -1))


def test_code_behind_the_memory_leaves_no_gap_that_ends_behind_its_region(gc200: Target) -> None:
    """Code that does not fit must not make room for other code across the border of executable memory."""
    room = next(r.size_bytes for r in gc200.memory_regions if r.executable)
    addresses, fits = allocate(
        [request("huge", room + 64, executable=True), request("large", room + 8, executable=True)], gc200
    )
    end = max(r.base + r.size_bytes for r in gc200.memory_regions)
    assert not fits
    assert min(addresses.values()) >= end


def test_the_first_gap_is_the_lowest_that_is_large_enough() -> None:
    taken = Gaps(np.array([8, 24, 26, 48]), np.array([16, 32, 28, 56]))
    assert taken.first(8, 0, 64) == 0
    assert taken.first(16, 0, 64) == 32
    assert taken.first(8, 10, 64) == 16
    assert taken.first(24, 0, 64) is None
    assert taken.first(24, 0, None) == 56
    nothing = np.zeros(0, int)
    assert Gaps(nothing, nothing).first(8, 0, 4) is None
    assert Gaps(np.array([100]), np.array([200])).first(80, 0, 64) is None


def test_gaps_are_those_of_counting_every_address() -> None:
    random = np.random.default_rng(7)
    for _ in range(200):
        begins = np.sort(random.integers(0, 40, random.integers(0, 7)))
        ends = begins + random.integers(1, 12, begins.size)
        begin, size = int(random.integers(0, 30)), int(random.integers(0, 9))
        end = begin + int(random.integers(0, 40))
        taken = {address for b, e in zip(begins, ends, strict=True) for address in range(b, e)}
        found = [a for a in range(begin, end - size + 1) if taken.isdisjoint(range(a, a + size))]
        assert Gaps(begins, ends).first(size, begin, end) == next(iter(found), None)
        assert Gaps(begins, ends).last(size, begin, end) == next(reversed(found), None)
