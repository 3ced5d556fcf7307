"""Targets: published figures, inheritance, replacement, and the errors a data file can earn."""

import dataclasses
import json

import pytest

from tiles.errors import InvalidTarget, UnknownTarget, Unsupported
from tiles.target import Basis, MemoryRegion, Target, known_names
from tiles.target.target import fields_of_target

# Figures as vendors and reviewers publish them: tiles, MiB of memory, GHz, peak fp16 and fp32 Tflop/s.
PUBLISHED = {
    "gc2": (1216, 304, 1.6, 124.5, 31.1),
    "gc200": (1472, 897, 1.33, 250, 62.5),
    "bow": (1472, 897, 1.85, 348.6, 87.1),
    "c600": (1472, 897, 1.5, 280, None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_targets_reproduce_the_published_figures(name):
    tiles, mebibytes, gigahertz, half_tflops, single_tflops = PUBLISHED[name]
    target = Target.named(name)
    assert target.name == name
    assert target.num_tiles == tiles
    assert target.num_tiles * target.bytes_per_tile == mebibytes * 2**20
    assert target.clock_hz == gigahertz * 1e9
    assert target.peak_flops("float16") == pytest.approx(half_tflops * 1e12, rel=0.012)
    if single_tflops:
        assert target.peak_flops("float32") == pytest.approx(single_tflops * 1e12, rel=0.012)


@pytest.mark.parametrize("name", PUBLISHED)
def test_peak_follows_from_the_convolution_units(name):
    target = Target.named(name)
    units = target.conv_units("float16", "float16")
    assert units * target.conv_unit_input_elems_per_cycle("float16") == target.macs_per_cycle("float16")
    depth = target.conv_unit_pipeline_depth
    for dtype in ("float16", "float32"):
        assert target.weights_per_conv_unit(dtype) == depth * target.conv_unit_input_elems_per_cycle(dtype)
    store = target.weights_per_conv_unit("float16") * 2 * 16
    assert store == target.conv_unit_coefficient_bytes


def test_only_c600_has_8_bit_floats():
    with_fp8 = [n for n in known_names() if Target.named(n).supports_fp8]
    assert with_fp8 == ["c600"]
    assert Target.named("c600").conv_units("float8_e4m3fnuz", "float16") == 16
    assert Target.named("c600").peak_flops("float8_e4m3fnuz") == pytest.approx(560e12, rel=0.012)
    assert Target.named("gc200").conv_units("float8_e4m3fnuz", "float16") == 0


def test_conv_units_and_vector_widths_by_dtype():
    target = Target.named("gc200")
    assert target.conv_units("float16", "float32") == 16
    assert target.conv_units("float32", "float16") == 0
    assert target.conv_units("int32", "int32") == 0
    widths = {
        d: target.vector_width(d)
        for d in ("float32", "float16", "bfloat16", "int32", "uint8", "bool", "int64")
    }
    assert widths == {
        "float32": 2,
        "float16": 4,
        "bfloat16": 4,
        "int32": 2,
        "uint8": 8,
        "bool": 8,
        "int64": 1,
    }
    with pytest.raises(Unsupported, match="int32"):
        target.macs_per_cycle("int32")


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_field_has_unit_basis_and_public_source(name):
    target = Target.named(name)
    for field in fields_of_target():
        basis, unit, source = target.basis(field)
        assert isinstance(basis, Basis) and unit and source
        assert "shared/" not in source and "/work" not in source


def test_what_is_carried_over_is_assumed_and_says_so():
    gc200 = Target.named("gc200")
    for name in ("bow", "c600"):
        target = Target.named(name)
        assert target.basis("internal_sync_cycles")[0] is Basis.ASSUMED
        assert target.basis("host_link_bytes_per_second")[2].startswith("carried over from gc200: ")
        assert gc200.basis("host_link_bytes_per_second")[0] is Basis.DOCUMENTED
        assert target.basis("workers_per_tile") == gc200.basis("workers_per_tile")
    assert Target.named("bow").basis("memory_regions")[0] is Basis.ASSUMED
    assert Target.named("c600").basis("memory_regions")[0] is Basis.MEASURED


def test_exchange_phase_costs_with_its_sync_what_was_measured():
    for name in PUBLISHED:
        target = Target.named(name)
        assert target.internal_sync_cycles + target.exchange_phase_overhead_cycles == 237
    assert Target.named("c600").basis("exchange_phase_overhead_cycles")[0] is Basis.MEASURED


@pytest.mark.parametrize("name", PUBLISHED)
def test_plain_data_gives_the_target_back(name):
    target = Target.named(name).replace(num_tiles=64)
    data = json.loads(json.dumps(target.to_data()))
    again = Target.from_data(data)
    assert again == target and hash(again) == hash(target)
    assert json.dumps(again.to_data()) == json.dumps(target.to_data())
    assert again.basis("num_tiles") == (Basis.ASSUMED, "tiles", "set by the user")


def test_replace_changes_a_copy():
    target = Target.named("bow")
    small = target.replace(num_tiles=64)
    assert (small.num_tiles, small.name, target.num_tiles) == (64, "bow*", 1472)
    assert small != target
    assert small.basis("num_tiles")[2] == "set by the user"
    assert small.basis("clock_hz") == target.basis("clock_hz")
    assert target.replace() == target
    assert target.replace(name="mine", num_tiles=16).name == "mine"
    with pytest.raises(dataclasses.FrozenInstanceError):
        small.num_tiles = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_every_field_can_be_replaced_by_its_own_value():
    target = Target.named("c600")
    for field in fields_of_target():
        changed = target.replace(**{field: getattr(target, field)})
        assert getattr(changed, field) == getattr(target, field)
        assert changed.basis(field)[2] == "set by the user"


def test_memory_regions_follow_the_memory_size():
    target = Target.named("gc200").replace(bytes_per_tile=65536)
    first, second = target.memory_regions
    assert first.size_bytes + second.size_bytes == 65536
    assert first.size_bytes == pytest.approx(65536 / 3, abs=16) and first.size_bytes % 16 == 0
    assert (first.base, second.base) == (0x4C000, first.end)
    assert target.region_of(second.base) == second and target.region_of(second.end) is None
    regions = (MemoryRegion("all", 0, 4096, 1, True),)
    assert target.replace(memory_regions=regions).bytes_per_tile == 4096


def test_tiles_follow_the_ipus():
    target = Target.named("gc200").replace(num_ipus=4)
    assert (target.num_tiles, target.tiles_per_ipu) == (4 * 1472, 1472)
    assert target.replace(num_tiles=64).tiles_per_ipu == 16


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_tiles": 0}, ["num_tiles", "0 tiles", "from 1"]),
        ({"num_tiles": 2.5}, ["num_tiles", "2.5", "integer"]),
        ({"num_tiles": True}, ["num_tiles", "True"]),
        ({"clock_hz": "fast"}, ["clock_hz", "'fast' Hz", "a number"]),
        ({"clock_hz": float("nan")}, ["clock_hz", "nan"]),
        ({"bytes_per_tile": 1030}, ["bytes_per_tile", "1030 bytes", "multiple of 16"]),
        ({"supports_fp8": 1}, ["supports_fp8", "true or false"]),
        ({"num_tile": 3}, ["num_tile", "did you mean num_tiles"]),
        ({"num_ipus": 3, "num_tiles": 4}, ["num_tiles", "3 IPUs"]),
        ({"memory_regions": [{"name": "x"}]}, ["memory_regions", "list of memory regions"]),
        ({"memory_regions": (), "bytes_per_tile": 1024}, ["memory_regions", "0 bytes"]),
        (
            {"memory_regions": (MemoryRegion("a", 8, 4096, 1, True), MemoryRegion("b", 0, 4096, 1, True))},
            ["memory_regions", "'b'", "overlaps"],
        ),
    ],
)
def test_impossible_values_are_named(changes, words):
    with pytest.raises(InvalidTarget) as caught:
        Target.named("gc200").replace(**changes)
    for word in words:
        assert word in str(caught.value)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UnknownTarget) as caught:
        Target.named("gc20")
    message = str(caught.value)
    assert "bow, c600, gc2, gc200" in message and "did you mean 'gc200'?" in message
    with pytest.raises(UnknownTarget, match="describes no device"):
        Target.named("common")
    for name in ("../gc200", "", "no/such/file.json"):
        with pytest.raises(UnknownTarget):
            Target.named(name)
    with pytest.raises(InvalidTarget, match="no field 'tiles'"):
        Target.named("gc200").basis("tiles")


def test_describe_shows_every_field_on_a_line():
    target = Target.named("gc2")
    lines = target.describe().splitlines()
    assert len(lines) == 1 + len(fields_of_target())
    (clock,) = [line for line in lines if line.startswith("clock_hz")]
    assert "1.6e+09" in clock and "Hz" in clock and "DOCUMENTED" in clock
    (hidden,) = [line for line in lines if line.startswith("streaming_memory_bytes ")]
    assert "unknown" in hidden


def _write(folder, name, fields=None, **top):
    data = {"schema": "ipuxla.target/1", "name": name, "fields": fields or {}} | top
    path = folder / f"{name}.json"
    path.write_text(json.dumps(data))
    return str(path)


def _leaf(value, unit="tiles", basis="ASSUMED", source="a test"):
    return {"value": value, "unit": unit, "basis": basis, "source": source}


def test_a_new_target_is_one_data_file(tmp_path):
    path = _write(tmp_path, "toy", {"num_tiles": _leaf(8, basis="DOCUMENTED")}, extends="gc200")
    toy = Target.named(path)
    gc200 = Target.named("gc200")
    assert (toy.name, toy.num_tiles, toy.bytes_per_tile) == ("toy", 8, 638976)
    assert toy.basis("num_tiles") == (Basis.DOCUMENTED, "tiles", "a test")
    assert toy.basis("clock_hz")[0] is Basis.ASSUMED
    assert toy.basis("clock_hz")[2] == "carried over from gc200: " + gc200.basis("clock_hz")[2]
    assert toy.basis("workers_per_tile") == gc200.basis("workers_per_tile")


@pytest.mark.parametrize(
    ("fields", "top", "words"),
    [
        ({}, {}, "does not state"),
        ({}, {"extends": "gc200", "colour": "red"}, "unknown keys"),
        ({}, {"extends": "gc200", "schema": "other/1"}, "another schema"),
        ({}, {"extends": "toy"}, "in a circle"),
        ({"num_tiles": 8}, {"extends": "gc200"}, "object of four keys"),
        ({"num_tiles": _leaf(8, basis="HEARSAY")}, {"extends": "gc200"}, "no legal basis"),
        ({"num_tiles": _leaf(8, source=" ")}, {"extends": "gc200"}, "needs a unit and a source"),
        ({"num_tiles": _leaf(8, unit="bytes")}, {"extends": "gc200"}, "another unit"),
        ({"tiles": _leaf(8)}, {"extends": "gc200"}, "no field 'tiles'"),
        ({"num_tiles": _leaf(0)}, {"extends": "gc200"}, "'num_tiles' cannot be 0 tiles"),
    ],
)
def test_malformed_data_files_are_named(tmp_path, fields, top, words):
    with pytest.raises(InvalidTarget, match=words) as caught:
        Target.named(_write(tmp_path, "toy", fields, **top))
    assert "\n" not in caught.value.what


def test_files_that_are_no_json_and_data_that_is_no_target(tmp_path):
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(InvalidTarget, match="cannot be read"):
        Target.named(str(path))
    data = Target.named("gc2").to_data()
    with pytest.raises(InvalidTarget, match="not the data of a target"):
        Target.from_data(data | {"schema": "other/1"})
    lacking = data | {"fields": {k: v for k, v in data["fields"].items() if k != "clock_hz"}}
    with pytest.raises(InvalidTarget, match="clock_hz"):
        Target.from_data(lacking)


def test_weakest_basis():
    assert Basis.weakest([Basis.MEASURED, Basis.FITTED, Basis.DOCUMENTED]) is Basis.FITTED
    assert [b.rank for b in Basis] == list(range(6)) and list(Basis)[-1] is Basis.UNKNOWN


@pytest.mark.parametrize(
    "changes", [{}, {"num_tiles": 16}, {"bytes_per_tile": 1 << 20}, {"clock_hz": 1e9, "name": "slow"}]
)
@pytest.mark.parametrize("name", known_names())
def test_what_a_target_prints_makes_it_again(name, changes):
    target = Target.named(name).replace(**changes)
    again = eval(repr(target), {"Target": Target})
    assert again.to_data() == target.to_data()
    assert len(repr(target)) < 200


def test_fields_beyond_every_known_chip_are_said():
    target = Target.named("gc200").replace(num_tiles=1473)
    assert list(target.beyond_known()) == ["num_tiles"]
    assert "num_tiles is beyond every known chip, which have 1,472 at most" in target.describe()
    assert not any(Target.named(name).beyond_known() for name in known_names())
