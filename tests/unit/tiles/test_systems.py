"""Systems: published figures, scaling, names, data, drawings, syncs, and the errors a data file can earn."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest

from tests.systems import figure, link, make, node, system_data
from tiles.errors import InvalidSystem, IpuError, UnknownTarget, Unsupported
from tiles.target import (
    Basis,
    System,
    Target,
    describe_system,
    exchange_phase,
    find_machine,
    find_system,
    flow_phase,
    known_systems,
    one_ipu,
)
from tiles.target.link_phase import sync
from tiles.target.routes import route_matrix

LINE = {"line": {"pattern": "line", "nodes": "ipu", "size": None, "link": "wire"}}


def links_between(system: System, a: str, b: str) -> float:
    """Return the parallel links between two nodes."""
    found = 0
    for ends, kind, rate in zip(
        system.table.ends.tolist(), system.table.kind, system.table.payload_bytes_per_second, strict=True
    ):
        if {a, b} == {system.node_name(end) for end in ends}:
            kind = system.links[kind]
            found += kind.figure("parallel").value * round(rate / kind.payload_bytes_per_second)
    return found


# ---- published figures


def test_totals_are_those_of_the_white_papers():
    card, server, machine = (find_system(name) for name in ("c2_card", "dss8440", "m2000"))
    each = card.link("rung").figure("bytes_per_second").value
    assert links_between(card, "ipu 0", "ipu 1") * each * 2 == 192e9
    assert links_between(server, "ipu 0", "ipu 1") == 6
    up, down = (links_between(server, "ipu 4", f"ipu {other}") for other in (6, 2))
    assert 2 * (up + down) * each * 2 == 256e9, "both chips of a card to both neighbours, both ways"
    assert (6 + up + down) * each * 2 == 320e9, "a chip"
    assert links_between(machine, "ipu 0", "ipu 1") == links_between(machine, "ipu 2", "ipu 3") == 6
    assert links_between(machine, "ipu 0", "ipu 2") == links_between(machine, "ipu 1", "ipu 3") == 2
    pod = find_system("pod16")
    sides = links_between(pod, "ipu 2", "ipu 4") + links_between(pod, "ipu 3", "ipu 5")
    assert sides * each == 64e9, "one side of a machine each way: 512 Gbit/s"


@pytest.mark.parametrize("name", ["dss8440", "pod64", "bow_pod64", "c600_host"])
def test_links_add_up_to_what_the_chip_states(name):
    system = find_system(name)
    (kind,) = {link.kind for link in system.links if link.kind == "IPU-Link"}
    each = next(link for link in system.links if link.kind == kind).figure("bytes_per_second").value
    chip = system.chip
    assert 2 * chip.ipu_link_ports * each == pytest.approx(chip.ipu_link_bytes_per_second, rel=0.03)
    cabled = sum(
        links_between(system, "ipu 4", f"ipu {other}") for other in range(system.num_ipus) if other != 4
    )
    assert cabled == chip.ipu_link_ports, "inside a group every link of a chip is used"


SIZES = {
    "c2_card": 2, "dss8440": 16, "dss8440_pair": 32, "m2000": 4, "bow2000": 4, "pod4": 4, "pod16": 16, "pod64": 64,
    "pod128": 128, "pod256": 256, "bow_pod4": 4, "bow_pod16": 16, "bow_pod64": 64, "bow_pod128": 128,
    "bow_pod256": 256, "c600_host": 8,
}  # fmt: skip


def test_the_systems_that_are_there():
    assert {name: find_system(name).num_ipus for name in known_systems()} == SIZES


@pytest.mark.parametrize("name", SIZES)
def test_a_system_is_data(name):
    system = find_system(name)
    again = System.from_data(json.loads(json.dumps(system.to_data(), sort_keys=True)))
    assert again == system and hash(again) == hash(system)
    assert pickle.loads(pickle.dumps(system)) == system
    assert system.chip.num_ipus == 1 and system.name == name
    for kind in system.links:
        unknown = kind.latency_seconds is None
        assert (unknown and kind.figure("latency_seconds").basis is Basis.ASSUMED) or kind.latency_seconds > 0
    with pytest.raises(AttributeError):
        system.num_ipus = 3  # type: ignore[misc]


def test_pods_are_tori_joined_by_gateways():
    pod4, pod64, pod128, pod256 = (find_system(f"pod{n}") for n in (4, 64, 128, 256))
    assert links_between(pod4, "ipu 0", "ipu 2") == 2, "a mesh of two rungs has no second way"
    assert links_between(pod64, "ipu 0", "ipu 62") == links_between(pod64, "ipu 63", "ipu 1") == 2
    assert links_between(pod128, "gateway 3", "gateway 19") == 2, "both GW-Links lead to the other domain"
    assert links_between(pod128, "gateway 3", "gateway 4") == 0
    assert links_between(pod256, "gateway 3", "gw_switch 0") == 2
    assert links_between(pod128.with_ipus(192), "gateway 3", "gateway 19") == 1, "one each way around"


def test_any_number_of_chips_is_as_small_as_two():
    small, large = find_system("pod256"), find_system("gc200 x 65536")
    assert large.counts == {
        "ipu": 65536, "gateway": 16384, "rnic": 16384, "gw_switch": 1, "rack_switch": 1024, "host": 1024
    }  # fmt: skip
    sizes = [len(json.dumps(system.to_data())) for system in (small, large)]
    assert sizes[1] <= sizes[0] + 10
    ipus = np.arange(65536)
    phase = flow_phase(large, ipus, (ipus + 64) % 65536, np.full(65536, 1000))
    assert phase.hops == 4 and phase.link_bytes.sum() == 4 * 1000 * 65536
    assert (phase.transfer_seconds, phase.transfer_basis) == (4000 / (2 * 12.5e9 * 0.85), Basis.ASSUMED)
    assert large.with_ipus(65536) is large and large.with_ipus(64).name == "gc200 x 65536*"


# ---- names


def test_several_of_a_chip_or_of_a_system():
    for count in (2, 4, 8, 16, 32, 64):
        system = find_system(f"gc2 x {count}")
        assert (system.chip.name, system.num_ipus, system.name) == ("gc2", count, f"gc2 x {count}")
    assert "infiniband_switch" in find_system("gc2 x 32").counts
    four, pod = find_system("pod64 x 4"), find_system("pod256")
    assert (four.wiring, four.num_ipus) == (pod.wiring, pod.num_ipus)
    assert find_system("bow x 64").wiring == find_system("bow_pod64").wiring
    for name in known_systems():
        each = find_system(name)
        many = find_system(f"{name} x {64_000 // each.num_ipus}")
        assert many.num_ipus == 64_000 and many.num_machines == 64_000 // int(
            many.figure("ipus_per_machine").value
        )
    assert "host" not in find_system("c2_card").counts or not find_system("c2_card").counts["host"]
    assert find_system("c2_card x 2").counts["host"] == 2
    with pytest.raises(InvalidSystem, match="3 nodes 'ipu' cannot be wired as 2 x 8"):
        find_system("gc2 x 3")
    for count in (0, 2**17 + 2):
        with pytest.raises(InvalidSystem, match="cannot have"):
            find_system(f"gc2 x {count}")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("dss844", "dss8440"), ("pod65", "pod64"), ("Bow_Pod16", "bow_pod16"), ("gc20", "gc200")],
)
def test_unknown_names_are_told_what_may_be_meant(name, meant):
    with pytest.raises(UnknownTarget) as caught:
        find_machine(name)
    assert f"did you mean {meant!r}?" in str(caught.value) and "gc200, c2_card" in str(caught.value)
    for other in ("pod_rack", "../pod64", "none.json", "pod65 x 4"):
        with pytest.raises(UnknownTarget):
            find_system(other)


def test_where_one_ipu_is_meant_a_system_is_a_named_error():
    assert one_ipu("gc200") == Target.named("gc200") and find_machine("bow") == Target.named("bow")
    assert one_ipu("gc2 x 1") == Target.named("gc2")
    with pytest.raises(Unsupported, match="'dss8440' has 16 IPUs, and programs are compiled for one"):
        one_ipu("dss8440")


# ---- files


def write(folder, name: str, data: dict) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(data))
    return str(path)


def test_a_system_of_one_s_own_is_a_file(tmp_path):
    slow = link(parallel=2, rate=8e9, efficiency=0.5, latency=None)
    own = {"schema": "ipuxla.system/1", "name": "slow", "extends": "dss8440", "links": {"rail": slow}}
    system = find_machine(write(tmp_path, "slow", own))
    assert isinstance(system, System) and system.link("rail").payload_bytes_per_second == 8e9
    assert system.link("rung") == find_system("dss8440").link("rung"), "the same chip: known as well as there"
    assert "unknown" in describe_system(system)
    other = find_system(write(tmp_path, "other", {**own, "name": "other", "chip": "gc200", "links": {}}))
    rate = other.link("rung").figure("bytes_per_second")
    assert rate.basis is Basis.ASSUMED and rate.source.startswith("carried over from dss8440: ")


def broken(**changes) -> dict:
    data = copy.deepcopy(system_data(4, LINE))
    for path, value in changes.items():
        *way, last = path.split("__")
        place = data
        for key in way:
            place = place[key]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return data


def listing(*ends: list[str]) -> dict:
    return {"pattern": "list", "link": "wire", "ends": list(ends), "basis": "ASSUMED", "source": "a test"}


TWO_APART = listing(["ipu 0", "ipu 1"], ["ipu 2", "ipu 3"])
CHAIN = listing(["ipu 0", "ipu 1"], ["ipu 1", "ipu 2"], ["ipu 2", "ipu 3"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": "other/1"}, "another schema"),
        ({"colour": "red"}, "unknown keys"),
        ({"links": None}, "does not state links"),
        ({"chip": "gc3"}, "no target is named 'gc3'"),
        ({"num_ipus": 0}, "cannot have 0 IPUs"),
        ({"num_ipus": "four"}, "cannot have 'four' IPUs"),
        ({"figures__ipus_per_machine": None}, "does not state ipus_per_machine"),
        ({"figures__speed": figure(1, "m/s")}, "has no figure speed"),
        ({"links__wire__kind": None}, "link 'wire': kind is a text"),
        ({"links__wire__bytes_per_second__value": -3e9}, r"link 'wire': bytes_per_second cannot be -3000000000.0"),
        ({"links__wire__bytes_per_second__unit": "bit/s"}, "is in 'bit/s', not in 'bytes/s'"),
        ({"links__wire__efficiency__value": 1.5}, "efficiency cannot be 1.5 ratio"),
        ({"links__wire__latency_seconds__value": 0}, "latency_seconds cannot be 0 s"),
        ({"links__wire__latency_seconds__range": [2e-6, 1e-6]}, "a range is the least and the most"),
        ({"links__wire__parallel__alternatives": [3]}, "an alternative is an object of a number and its source"),
        ({"links__wire__parallel__basis": "HEARSAY"}, "has no legal basis"),
        ({"links__wire__parallel__source": " "}, "needs a source"),
        ({"wiring__line__pattern": "star"}, "wiring 'line' has no legal pattern"),
        ({"wiring__line__size": None}, "pattern 'line' needs size"),
        ({"wiring__line__colour": "red"}, "pattern 'line' has no colour"),
        ({"wiring__line__size": -1}, "a size is a number of nodes from 1 up"),
        ({"wiring__line__link": "rope"}, "uses a link 'rope' that is not there"),
        ({"wiring__line__nodes": "gateway"}, "ends at a node 'gateway' that is not there"),
        ({"wiring__line__size": 3}, "4 nodes 'ipu' cannot be wired as 3"),
        ({"wiring__line__size": 2}, "is not connected: no link leads from ipu 0 to ipu 2"),
        ({"wiring": {}}, "is not connected: no link leads from ipu 0 to ipu 1"),
        ({"nodes__gateway": node(4)}, "is not connected: no link leads from ipu 0 to gateway 0"),
        ({"wiring__line": TWO_APART}, "is not connected: no link leads from ipu 0 to ipu 2"),
        ({"wiring__line": listing(["ipu 0", "ipu 4"])}, "ends at ipu 4, and there are 4"),
        ({"wiring__line": listing(["ipu 0", "ipu 0"])}, "wiring 'line' leads from ipu 0 to itself"),
        ({"wiring__line": listing(["ipu 0"])}, "a link has two ends"),
        ({"wiring__line": listing(["ipu 0", "ipu"])}, "'ipu' names no node"),
        ({"wiring__line": CHAIN, "routes": [["ipu 0", "ipu 3"]]}, "does not arrive: no link joins ipu 0 and ipu 3"),
        ({"wiring__line": CHAIN, "routes": [["ipu 0"]]}, "does not arrive: it leads from one IPU to another"),
        ({"wiring__line": CHAIN, "routes": [["ipu 0", "ipu 7"]]}, "does not arrive: there is no ipu 7"),
        ({"wiring__line": CHAIN, "routes": "all"}, "routes are a list of lists of nodes"),
        ({"extends": "nothing"}, "extends 'nothing', and there is no such system"),
        ({"extends": "/nowhere/nothing"}, "extends '/nowhere/nothing', and there is no such system"),
        ({"extends": "toy"}, "in a circle: toy -> toy"),
        ({"extends": "./toy"}, "in a circle: toy -> toy"),
        ({"abstract": True}, "describes no system"),
    ],
)  # fmt: skip
def test_bad_files_are_one_clear_line(tmp_path, changes, words):
    with pytest.raises(InvalidSystem, match=words) as caught:
        find_system(write(tmp_path, "toy", broken(**changes)))
    assert "\n" not in caught.value.what


def test_a_file_whose_routes_do_not_all_arrive(tmp_path):
    """Boxes in rows and rims in columns hang together, but no one structure joins what differs in both."""
    wiring = {
        "up": {"pattern": "switch", "nodes": "ipu", "to": "box", "link": "wire"},
        "rims": {"pattern": "switch", "nodes": "box", "to": "rim", "link": "wire"},
        "rows": {"pattern": "grid", "nodes": "box", "sizes": [2, 4], "links": ["wire", None],
                 "ends_joined": [False, False]},
        "columns": {"pattern": "grid", "nodes": "rim", "sizes": [2, 4], "links": [None, "wire"],
                    "ends_joined": [False, False]},
    }  # fmt: skip
    nodes = {"box": node(1), "rim": node(1)}
    with pytest.raises(InvalidSystem, match="a route from ipu 0 does not arrive at ipu 3"):
        find_system(write(tmp_path, "toy", system_data(8, wiring, nodes=nodes)))
    wiring["one more"] = listing(["ipu 6", "ipu 7"])
    system = find_system(write(tmp_path, "toy", system_data(8, wiring, nodes=nodes)))
    hops = route_matrix(system, np.ones((8, 8), np.int64)).hops  # a table over all nodes finds a way
    assert (hops[0], hops[2]) == (3, 6)


def test_what_is_no_file_of_a_system(tmp_path):
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(InvalidSystem, match="cannot be read"):
        find_system(str(path))
    with pytest.raises(InvalidSystem, match="not the data of a system"):
        System.from_data({"schema": "ipuxla.system/1", "colour": "red"})
    data = find_system("pod4").to_data()
    names = data["order"]["wiring"]
    for order in ({"wiring": names[1:]}, {"wiring": [*names[1:], names[1]]}, {"chips": []}, ["wiring"]):
        with pytest.raises(InvalidSystem, match="order"):
            System.from_data({**data, "order": order})


# ---- routes, syncs, phases


def test_a_stated_route_is_taken():
    square = [["ipu 0", "ipu 1"], ["ipu 1", "ipu 3"], ["ipu 0", "ipu 2"], ["ipu 2", "ipu 3"]]
    wiring = {"square": {"pattern": "list", "link": "wire", "ends": square}}
    matrix = np.zeros((4, 4), np.int64)
    matrix[0, 3] = 10
    plain = make(4, wiring)
    assert route_matrix(plain, matrix).link_bytes.tolist() == [[10, 0], [10, 0], [0, 0], [0, 0]]
    data = system_data(4, wiring) | {"routes": [["ipu 0", "ipu 2", "ipu 3"]]}
    other = System.from_data(data)
    assert other == System.from_data(other.to_data()) and other != plain
    assert route_matrix(other, matrix).link_bytes.tolist() == [[0, 0], [0, 0], [10, 0], [10, 0]]
    assert route_matrix(other, matrix.T).link_bytes.tolist() == [[0, 10], [0, 10], [0, 0], [0, 0]], (
        "there only"
    )


def test_syncs_on_gc2_are_poplibs_s():
    """48, 96, 144 and 240 cycles for 2, 4, 8 and 16 IPUs; only those that take part count."""
    for count, cycles in ((1, 0), (2, 48), (4, 96), (8, 144), (16, 240)):
        assert sync(find_system(f"gc2 x {count}"), np.ones(count, bool)).cycles == cycles
    server = find_system("dss8440")
    for members, cycles in (((3,), 0), ((0, 1), 48), ((6, 8), 48), ((6, 9), 96), ((0, 2, 14), 192), ((), 0)):
        assert sync(server, np.isin(np.arange(16), members)).cycles == cycles
    pod = find_system("pod64")
    assert sync(pod, np.ones(64, bool)).cycles == 600 == Target.named("c600").global_sync_cycles
    assert sync(pod, np.isin(np.arange(64), (0, 62))).hops == 1, "the ends of the torus are joined"
    across = sync(find_system("pod128"), np.isin(np.arange(128), (5, 69)))
    assert across.cycles is not None and across.cycles > 600 and across.basis is Basis.ASSUMED


@pytest.mark.parametrize("seed", range(4))
def test_a_sync_waits_for_the_group_in_which_it_takes_most_hops(seed: int) -> None:
    """Groups in which the same places take part are looked at once; the others each."""
    rng, pod, system = np.random.default_rng(seed), find_system("pod64"), find_system("pod64 x 4")
    groups = rng.random((3, 64)) < rng.random((3, 1))
    groups[:, rng.integers(64)] = True
    members = groups[[0, 1, 2, 0]]
    firsts = np.zeros_like(members)
    firsts[np.arange(4), members.argmax(axis=1)] = True
    within = max(sync(pod, group).hops for group in groups)
    assert sync(system, members.reshape(-1)).hops == within + sync(system, firsts.reshape(-1)).hops


@pytest.mark.parametrize("pattern", ["line", "ring", "ladder"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8])
def test_a_sync_of_all_goes_to_the_middle_and_back(pattern, size):
    """Structures and tables agree: the middle is the IPU whose farthest other is nearest."""
    regular = {"pattern": pattern, "nodes": "ipu"} | (
        {"rungs": size, "rung": "wire", "rail": "wire", "ends_joined": False}
        if pattern == "ladder"
        else {"size": size, "link": "wire"}
    )
    count = 2 * size if pattern == "ladder" else size
    system = make(count, {"it": regular})
    ends = [[f"ipu {a}", f"ipu {b}"] for a, b in system.table.ends.tolist()]
    listed = make(count, {"it": {"pattern": "list", "link": "wire", "ends": ends}})
    everyone = np.ones(count, bool)
    assert sync(system, everyone) == sync(listed, everyone)


def test_a_phase_on_the_server_by_hand():
    server = find_system("dss8440")
    matrix = np.zeros((16, 16), np.int64)
    matrix[0, 1] = 54_400_000  # 1 ms on the rung
    matrix[0, 5] = matrix[2, 5] = (
        27_200_000  # each 1 ms through its rung, together 2 ms on the rail into ipu 5
    )
    phase = exchange_phase(server, matrix)
    ends = [server.node_name(end) for end in server.table.ends[phase.busiest[0]]]
    assert (ends, phase.transfer_seconds, phase.hops) == (["ipu 3", "ipu 5"], pytest.approx(2e-3), 3)
    assert phase.latency_seconds == pytest.approx(3 * 1.2e-6) and phase.sync.hops == 2
    assert phase.cycles == 3_200_000 + 5760 + 96
    assert sum(phase.cycles_by_basis.values()) == pytest.approx(phase.cycles)
    assert phase.cycles_by_basis[Basis.FITTED] == pytest.approx(5760), "latency alone is fitted here"
    nothing = exchange_phase(server, 10 * np.eye(16, dtype=np.int64))
    assert (nothing.cycles, nothing.busiest, nothing.hops) == (0, (-1, 0), 0)


def test_all_to_all_on_the_server_is_bound_by_its_middle():
    """Half of the IPUs send to the other half over two rails: 8 senders and 4 receivers on each."""
    server = find_system("dss8440")
    phase = exchange_phase(server, np.full((16, 16), 1000))
    ends = [server.node_name(end) for end in server.table.ends[phase.busiest[0]]]
    assert ends == ["ipu 6", "ipu 8"] and phase.link_bytes[phase.busiest] == 8 * 4 * 1000
    bisection = 2 * server.link("rail").payload_bytes_per_second
    assert phase.transfer_seconds == pytest.approx(8 * 8 * 1000 / bisection)


def test_a_card_is_bound_by_its_six_links():
    phase = exchange_phase(find_system("c2_card"), np.array([[0, 81_600_000], [1000, 0]]))
    assert phase.transfer_seconds == pytest.approx(1e-3) and phase.hops == 1


def test_servers_are_joined_by_the_slowest_of_their_links():
    pair = find_system("dss8440_pair")
    matrix = np.zeros((32, 32), np.int64)
    matrix[range(16), range(16, 32)] = 1000  # every IPU of one server to its peer in the other
    phase = exchange_phase(pair, matrix)
    kinds = {pair.links[kind].name for kind in pair.table.kind[phase.link_bytes.any(axis=1)]}
    assert kinds == {"pcie", "pcie_uplink", "infiniband"} and phase.hops == 6
    assert phase.transfer_seconds == pytest.approx(16_000 / (2 * 12.5e9 * 0.85))


def test_what_is_unknown_stays_unknown():
    system = make(2, LINE, links={"wire": link(latency=None)})
    phase = exchange_phase(system, np.ones((2, 2), np.int64))
    assert phase.latency_seconds is None and phase.cycles is None and phase.hops == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: exchange_phase(s, np.zeros((2, 3), np.int64)), "2 x 2 numbers of bytes"),
        (lambda s: exchange_phase(s, np.array([[0, -1], [0, 0]])), "from 0 up"),
        (lambda s: flow_phase(s, np.array([0]), np.array([2]), np.array([1])), "one to another of 2 IPUs"),
        (lambda s: flow_phase(s, np.array([1]), np.array([1]), np.array([1])), "one to another of 2 IPUs"),
    ],
)
def test_flows_that_cannot_be(call, words):
    with pytest.raises((ValueError, IpuError), match=words):
        call(make(2, LINE))


# ---- text


@pytest.mark.parametrize("name", SIZES)
def test_the_table_and_the_drawing(name):
    system = find_system(name)
    text = describe_system(system)
    assert text.startswith(f"system {name}: {system.description}\n")
    used = {kind for laid in system.laid for kind in laid.wiring.link_names}
    for kind in used:
        assert all(f"{kind}.{field} " in text for field, _ in system.link(kind).figures)
        assert all(x.source in text for _, f in system.link(kind).figures for x in f.alternatives)
    assert "ipu 0" in text and f"ipu {min(system.num_ipus, 64, 16 if 'dss' in name else 64) - 1}" in text
    assert max(len(line) for line in text[text.rindex("ASSUMED or unknown") :].splitlines()[1:]) < 110


def test_a_long_line_is_drawn_by_its_ends():
    text = describe_system(make(40, {"ring": LINE["line"] | {"pattern": "ring"}}))
    assert text.endswith(
        "ring: 40 ipu\n  along: wire (1 wire), ends joined\n"
        "    ^\n  ipu 0\n    |\n  ipu 1\n    |\n   ...    36 more\n    |\n  ipu 38\n    |\n  ipu 39\n    v  to the first"
    )
