"""Records of measurements: how they are read, told apart, predicted and scored."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib

import pytest

from ipuxla import cli
from ipuxla.calibration import BadRecord, InvalidRecords, Row, predict, read_records, score, stencils
from ipuxla.calibration.card import scored, without_family
from ipuxla.calibration.figures import figure
from ipuxla.calibration.fitted import fitted
from ipuxla.calibration.held_out import held_out, interval
from ipuxla.calibration.parameters import MissingParameter, Parameters
from ipuxla.calibration.predict import is_rate, roofline
from ipuxla.calibration.programs import FAMILIES
from tests.replicas import replicated
from tiles import compile_graph, gcl
from tiles.graph import Swap
from tiles.report import cost_analysis

CONFIGS = pathlib.Path(__file__).parents[3] / "configs"
PUBLISHED = pathlib.Path(__file__).parents[3] / "benchmarks" / "data" / "silicon.json"


def _entry(**changes: object) -> dict[str, object]:
    entry: dict[str, object] = {
        "id": "a",
        "family": "gemm_on_tile",
        "what": "a matmul on a tile",
        "target": "bow",
        "params": {"M": 64, "K": 16, "N": 16, "dtype": "f16", "partials": "f16", "tiles": 1472},
        "metric": "cycles",
        "value": 584.0,
        "unit": "tile cycles",
        "source": "a test",
        "evidence": "hardware",
    }
    return entry | changes


def _only(**changes: object) -> Row | BadRecord:
    records, bad = read_records(json.dumps([_entry(**changes)]), frozenset(FAMILIES))
    return bad[0] if bad else predict(records[0])


def test_every_published_record_reads_and_its_family_has_a_builder():
    records, bad = read_records(PUBLISHED.read_text(), frozenset(FAMILIES))
    assert not bad and len(records) == len(json.loads(PUBLISHED.read_text()))
    assert all(record.source for record in records)


@pytest.mark.parametrize(
    ("spelled", "dtype"),
    [
        ("f16", "float16"),
        ("FP16", "float16"),
        ("half", "float16"),
        ("float", "float32"),
        ("f8", "float8_e4m3fnuz"),
    ],
)
def test_dtypes_in_the_spellings_of_publications(spelled, dtype):
    assert Parameters({"dtype": spelled}).dtype() == dtype
    assert Parameters({"precision": spelled}).dtype() == dtype


def test_sizes_in_the_spellings_of_publications():
    p = Parameters({"image": "2200x1122x4", "M": 7, "H": "4,304", "mlp": 5})
    assert p.shape("image") == (2200, 1122, 4) and p.integer("m") == 7 and p.integer("hidden") == 4304
    with pytest.raises(MissingParameter, match="lacks parameter rows"):
        p.integer("rows")
    with pytest.raises(MissingParameter, match="no shape"):
        Parameters({"image": "wide"}).shape("image")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"family": "gem"}, "unknown family 'gem'"),
        ({"target": "gpu"}, "unknown target 'gpu'"),
        ({"unit": "parsecs"}, "unknown unit 'parsecs'"),
        ({"value": -1}, "no positive number"),
        ({"value": True}, "no positive number"),
        ({"evidence": "hearsay"}, "unknown evidence"),
        ({"params": []}, "params is no object"),
        ({"params": {"M": 1, "K": 1, "N": 1, "dtype": "f99"}}, "unknown dtype 'f99'"),
        ({"params": {"M": 1, "K": 1, "dtype": "f16"}}, "lacks parameter n"),
        ({"params": {"M": -1, "K": 1, "N": 1, "dtype": "f16"}}, "'M' is not positive"),
    ],
)
def test_a_record_that_cannot_be_used_says_why_in_one_line(changes, reason):
    found = _only(**changes)
    assert isinstance(found, BadRecord) and reason in str(found) and "\n" not in str(found)


def test_a_record_without_a_field_and_a_second_of_one_name_are_bad():
    short = _entry(id="b")
    del short["value"]
    records, bad = read_records(json.dumps([_entry(), short, _entry(), 5]), frozenset(FAMILIES))
    assert [record.id for record in records] == ["a"]
    assert [str(fault) for fault in bad] == [
        "b: lacks value",
        "a: another record has this id",
        "record 3: expected an object, got int",
    ]


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, "nan"])
def test_a_file_that_is_no_list_is_refused(text):
    with pytest.raises(InvalidRecords):
        read_records(text, frozenset(FAMILIES))


def test_units_tell_one_prediction():
    """A rate is the same program's work over its time, so all units give one ratio."""
    flops, clock = 2 * 64 * 16 * 16 * 1472, 1.85e9
    seconds = 584 / clock
    told = [
        _only(),
        _only(unit="us", value=seconds * 1e6, metric="time"),
        _only(unit="TFLOP/s", value=flops / seconds / 1e12, metric="throughput"),
    ]
    ratios = [row.ratio for row in told if isinstance(row, Row)]
    assert len(ratios) == 3 and ratios == pytest.approx([ratios[0]] * 3)
    assert ratios[0] == pytest.approx(1, abs=0.05)  # tessellate-ipu's measurement
    assert all(isinstance(row, Row) and row.is_inside for row in told)


def test_rates_and_roofs():
    assert is_rate("GB/s per tile") and is_rate("x dense") and not is_rate("tile cycles (max tile)")
    assert roofline("of 2.00 TFLOP/s") == (2e12, "FLOP/s")
    value, kind = roofline("of 0.17 flop/B x 7.26 TB/s") or (0, "")
    assert kind == "FLOP/s" and value == pytest.approx(0.17 * 7.26e12)
    assert roofline("of all") is None


def test_what_is_not_modelled_counts_ten_times_off_and_bounds_stand_apart():
    right = _only()
    lost = _only(id="b", family="tutorial", params={"m": 4}, metric="speedup", unit="x dense")
    bound = _only(id="c", evidence="hardware_bound", metric="cycles_upper_bound")
    assert isinstance(right, Row) and isinstance(lost, Row) and isinstance(bound, Row)
    assert lost.ratio is None and lost.built.startswith("not modelled")
    counted = scored([right, lost, bound])
    assert counted == [right, lost]
    found, error = score(counted), max(right.ratio or 0, 1 / (right.ratio or 1))
    assert found.strict == pytest.approx(math.sqrt(10 * error)) and found.coverage == 0.5
    assert found.modelled_only == pytest.approx(error)


def test_the_command_predicts_the_rest_and_exits_with_one(tmp_path, capsys):
    path = tmp_path / "records.json"
    path.write_text(json.dumps([_entry(), _entry(id="odd", target="gpu")]))
    assert cli.run(["ipuxla", "calibrate", f"--records={path}", "--json"]) == 1
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert [row["id"] for row in data["records"]] == ["a"] and data["all"]["rows"] == 1
    assert (
        data["bad_records"] == [{"id": "odd", "reason": data["bad_records"][0]["reason"]}]
        and "unknown target" in captured.err
    )
    path.write_text(json.dumps([_entry()]))
    assert cli.run(["ipuxla", "calibrate", f"--records={path}"]) == 0
    assert "gemm_on_tile" in capsys.readouterr().out
    assert cli.run(["ipuxla", "calibrate", f"--records={tmp_path / 'none'}"]) == 2


def _sparse(params: dict[str, object] | None = None, **changes: object) -> Row | BadRecord:
    given = {"m": 256, "k": 256, "n": 64, "density": 0.125, "block": 4, "dtype": "f16"} | (params or {})
    entry = {"family": "sparse_matmul", "what": "static block-sparse", "metric": "throughput"}
    stated = {name: value for name, value in given.items() if value}
    return _only(**(entry | {"unit": "TFLOP/s", "value": 1.0, "params": stated} | changes))


def test_sparse_products_are_told_by_rate_and_beside_the_dense_one():
    rate, other = _sparse(), _sparse(params={"density": 0, "sparsity": 0.875, "block": 0, "block_size": 4})
    later = _sparse(what="dynamic block-sparse")
    assert isinstance(rate, Row) and isinstance(other, Row) and isinstance(later, Row)
    assert rate.predicted and other.predicted == rate.predicted and (later.predicted or 0) < rate.predicted
    beside = _sparse(metric="speedup", unit="x dense")
    assert isinstance(beside, Row) and beside.predicted and beside.low and beside.low < beside.predicted


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"block": 3}, "blocks of 3"),
        ({"m": 254}, "254 x 256"),
        ({"dtype": "s32"}, "no sparse product"),
        ({"density": 7}, "density 7 is no share"),
        ({"density": 0}, "lacks parameter density"),
        ({"m": 0}, "lacks parameter m"),
    ],
)
def test_sparse_products_that_are_none_say_so(params, reason):
    found = _sparse(params=params)
    told = str(found) if isinstance(found, BadRecord) else found.built
    assert reason in told and "\n" not in told


def test_loops_compiled_from_c_are_counted_instruction_by_instruction():
    """A plain triad: two loads, a product, a sum, a store and a branch; a half is stored by read, merge and store."""
    slots = {}
    for dtype, size in (("f32", 4), ("f16", 2)):
        params = {"dtype": dtype, "kernel": "triad", "implementation": "naive C++"}
        row = _only(
            family="memory_stream", target="gc2", params=params, metric="bandwidth", unit="GB/s", value=1.0
        )
        assert isinstance(row, Row) and row.predicted
        slots[dtype] = 1216 * 1.6e9 * 3 * size / (row.predicted * 1e9)  # a slot a cycle and tile
    assert slots == pytest.approx({"f32": 6, "f16": 8}, rel=0.01)


def test_vendor_primitives_copy_before_they_add_in_place():
    params = {"dtype": "f32", "kernel": "triad"}
    entry = {"family": "memory_stream", "target": "gc2", "metric": "bandwidth", "unit": "GB/s", "value": 1.0}
    plain, copied = (
        _only(**entry, params=params | more) for more in ({}, {"implementation": "vendor primitives"})
    )
    assert isinstance(plain, Row) and isinstance(copied, Row)
    assert (copied.predicted or 0) < (plain.predicted or 0) and "copy" in copied.built


def _image_record(**params: object):
    given = {"image": "90x40x4", "variant": "float2", "iterations": 3, "ipus": 4} | params
    entry = _entry(
        family="stencil_multi_ipu", target="gc2", params=given, metric="time", unit="s", value=1e-3
    )
    records, bad = read_records(json.dumps([entry]), frozenset(FAMILIES))
    assert not bad
    return records[0]


@pytest.mark.parametrize(("ipus", "own"), [(1, (40, 90)), (2, (40, 45)), (4, (40, 23)), (16, (20, 12))])
def test_an_image_is_cut_where_edges_are_shortest(ipus, own):
    """Of 40 rows and 90 columns: three cuts across rows of 40 beat one each way, 90 + 7 x 40 beats 3 x 90 + 3 x 40."""
    parts = stencils.split(_image_record(ipus=ipus), "float32")
    assert (parts.height, parts.width) == own
    assert (parts.phase is None) == (ipus == 1)


def test_a_part_per_ipu_stays_whole_and_its_edges_cross_the_links():
    record = _image_record(pixels_per_ipu="90x40", ipus=2)
    object.__setattr__(
        record, "params", Parameters({k: v for k, v in record.params.given.items() if k != "image"})
    )
    parts = stencils.split(record, "float16")
    assert (parts.height, parts.width) == (40, 90) and parts.phase is not None
    assert (
        parts.phase.link_bytes.sum() == 2 * 40 * 4 * 2
    )  # a column of four halves each way: 40 rows, shorter than 90


def test_steps_on_several_ipus_are_those_of_a_part_and_the_exchange_between_them():
    several, alone = (
        predict(_image_record(ipus=n, image=image)) for n, image in ((4, "90x40x4"), (1, "45x20x4"))
    )
    phase = stencils.split(_image_record(), "float32").phase
    assert isinstance(several, Row) and isinstance(alone, Row) and phase is not None and phase.cycles
    assert several.predicted == pytest.approx(alone.predicted + 3 * phase.cycles / 1.6e9)


@pytest.mark.parametrize(("unit", "per_cycle"), [("Gsamples/s", 1.85), ("samples/cycle", 1)])
def test_random_numbers_are_told_by_rate(unit, per_cycle):
    """Two floats a vector, 4 slots each: half a number a cycle on a tile, less the frame."""
    given = {"n": 6000, "dtype": "f32", "tiles": 1}
    row = _only(family="random", params=given, unit=unit, metric="throughput", value=0.5 * per_cycle)
    assert isinstance(row, Row) and row.predicted
    assert row.predicted == pytest.approx(6000 / (4 + 6 * (24 + 4 * 500)) * per_cycle)


def _row(source: str, factor: float, basis: str = "DOCUMENTED") -> Row:
    records, _ = read_records(json.dumps([_entry(source=source, value=100 * factor)]), frozenset(FAMILIES))
    return Row(records[0], 100.0, 1.0, 1e9, {basis: 1.0}, "")


def test_an_interval_leaves_out_a_tenth_at_either_end():
    """Of 19 rows the second smallest and largest: of a twentieth, two in twenty lie below and two above."""
    found = interval([_row("a", 1 + k / 100) for k in range(19)])
    assert found is not None and (found.low, found.high) == pytest.approx((1.01, 1.17))
    assert interval([_row("a", 1.0)] * 8) is None


def test_a_source_is_judged_by_what_others_teach():
    alike = [_row(source, 1 + k / 100) for source in "ab" for k in range(19)]
    assert held_out(alike) == (2 * 17, 2 * 19)
    off = [_row("c", 5.0)]
    assert held_out([*alike, *off])[1] == 39 and held_out(off) == (0, 0)


def test_a_figure_holds_every_part_of_a_step_links_among_them():
    graph = replicated(("all", 2), name="c2_card", num_tiles=64)
    x = graph.add_input((1000,), "int32", "x")
    graph.outputs.append(gcl.permute(graph, x, graph.replicas.names, Swap(1)).name)
    executable = compile_graph(graph)
    told, cost = figure(executable), cost_analysis(executable)
    assert cost["link_cycles"] > 0 and told.cycles == cost["cycles"]
    assert told.basis_cycles == {basis: cycles for basis, cycles in cost["basis_cycles"].items() if cycles}
    assert (told.low, told.high) == pytest.approx(cost["cycles_range"], abs=1)


def test_few_constants_are_fitted_and_each_is_named():
    found = fitted()
    assert len(found) <= 12 and len({each.name for each in found}) == len(found)
    assert all(each.to and each.unit and each.value > 0 for each in found)
    systems = [each.name.split()[0] for each in found if each.name.startswith("dss8440")]
    assert len(systems) == 1
    assert {each.name.split()[0] for each in found} == {"rearrangement,", "cosine", "sine", "tan", systems[0]}
    stated = [path for path in CONFIGS.rglob("*.json") if '"FITTED"' in path.read_text()]
    assert [path.stem for path in stated] == ["dss8440"]


def test_the_card_leaves_one_family_out_at_a_time():
    gemm, mlp = _only(), _only(id="b", unit="tile cycles", value=292.0, family="gemm_on_tile", source="b")
    assert isinstance(gemm, Row) and isinstance(mlp, Row)
    other = Row(
        dataclasses.replace(gemm.record, id="c", family="conv"), 2.0 * gemm.record.value, 1, 9, {}, ""
    )
    left = without_family([gemm, mlp, other])
    assert set(left) == {"conv", "gemm_on_tile"}
    assert left["gemm_on_tile"].modelled_only == pytest.approx(2)
    assert left["conv"] == score([gemm, mlp])
