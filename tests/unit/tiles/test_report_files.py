"""The files of a report: what the page shows, that it needs nothing else, and where it cannot be written."""

import html.parser
import json
import re

import pytest

from tests.unit.tiles.report_programs import looping, network, pipeline
from tiles.compiler import compile_graph, out_of_memory
from tiles.compiler.costs import exchange_code_by_step
from tiles.compiler.executable import CODE_CATEGORIES
from tiles.engine.trace import Trace
from tiles.graph import Graph
from tiles.report import ReportNotWritten, memory_analysis, profile, write_report
from tiles.report.charts import Axis, Series, lines, stack, ticks
from tiles.report.page import _breakable
from tiles.target import MemoryRegion

VOID = {"meta", "input", "wbr"}


class Page(html.parser.HTMLParser):
    """Checks that tags close in order; collects charts, section ids, what would be loaded, and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.charts, self.sections, self.loaded, self.text = [], [], [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.loaded += [v for k, v in attributes.items() if k in ("src", "href", "srcset", "data", "action")]
        if tag == "section":
            self.sections.append(attributes["id"])
        if "data-chart" in attributes:
            self.charts.append((self.sections[-1], json.loads(attributes["data-chart"])))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag == "path"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def report(executable, trace, folder):
    paths = write_report(executable, trace, folder)
    assert [p.name for p in paths] == ["summary.txt", "profile.json", "report.html"]
    return [p.read_text(encoding="utf-8") for p in paths]


def test_the_page_stands_alone_and_shows_what_the_profile_says(small_target, tmp_path):
    executable = network(small_target)
    trace = Trace((2,) * len(executable.steps), "fast", "float")
    summary, document, text = report(executable, trace, tmp_path / "new" / "folder")
    result = profile(executable, trace)
    assert (summary, document) == (result.text(), result.to_json())
    page = Page(text)
    assert page.loaded == []
    assert not re.search(r"https?://|@import|url\(", text)
    charts = {section: chart for section, chart in page.charts}
    execution, tiles = result.data["execution"], result.data["compilation"]["tiles"]
    phases = dict(charts["supersteps"]["series"])
    for phase in ("compute", "exchange", "sync"):
        assert phases[phase] == [2 * step[f"{phase}Cycles"] for step in execution["steps"]]
    assert dict(charts["memory"]["series"])["live at the tile's peak"] == tiles["total"]
    live = [sum(column) for column in zip(*(v for _, v in charts["liveness"]["series"]), strict=True)]
    assert live == memory_analysis(executable)["live_bytes"]
    assert charts["balance"]["series"][0][1] == execution["activeCyclesByTile"]
    assert f"limit {small_target.bytes_per_tile:,} B" in page.text
    for row in result.operations:
        for shown in (row["name"], f"{row['cycles']:,}", *row["plans"], *row["vertexTypes"]):
            assert shown in page.text


def test_names_are_escaped(small_target, tmp_path):
    graph = Graph(small_target, "<b>&program")
    *_, text = report(compile_graph(graph), Trace((), "fast", "float"), tmp_path)
    assert "&lt;b&gt;&amp;program" in text and "<b>&program" not in text
    assert "no steps" in Page(text).text


def test_a_program_that_does_not_fit_is_marked_in_every_file(small_target, tmp_path):
    executable = network(small_target.replace(bytes_per_tile=4096), check_memory=False)
    summary, document, text = report(executable, None, tmp_path)
    assert "B too many" in summary.splitlines()[1]
    assert json.loads(document)["compilation"]["fits"] is False
    assert "Does not fit:" in Page(text).text


SHORT_OF = {  # bytes of the region that code can run from, and of the other one
    "code": (512, 600_000),
    "code and memory": (1024, 2048),
    "memory": (200_000, -196_000),
}


@pytest.mark.parametrize("case", SHORT_OF)
def test_every_file_says_what_is_short_in_the_words_of_the_error(small_target, tmp_path, case):
    first, second = SHORT_OF[case]
    if second < 0:  # one region for all
        regions = (MemoryRegion("all", 0x4C000, first + second, 1, True),)
    else:
        regions = (
            MemoryRegion("fast", 0x4C000, first, 1, True),
            MemoryRegion("rest", 0x90000, second, 2, False),
        )
    executable = network(small_target.replace(memory_regions=regions), check_memory=False)
    error = out_of_memory(executable)
    there, *_ = error.notes
    besides = [note for note in error.notes if note.startswith("besides, ")]
    assert bool(besides) == (case == "code and memory")
    summary, document, text = report(executable, None, tmp_path)
    expected = [f"DOES NOT FIT: {error.what}", f"  {there}", *(f"  {note}" for note in besides)]
    assert summary.splitlines()[1 : 1 + len(expected)] == expected
    lacks = json.loads(document)["compilation"]["shortages"]
    assert [lack["what"] for lack in lacks] == [
        error.what,
        *(note.removeprefix("besides, ").partition(": ")[0] for note in besides),
    ]
    lack = lacks[0]
    assert (lack["kind"] == "code") == case.startswith("code")
    assert there == "there: " + ", ".join(f"{name} {size:,} B" for name, size in lack["categories"].items())
    assert sum(lack["categories"].values()) == lack["needBytes"] > lack["haveBytes"]
    for words in (error.what, there, *besides):
        assert words in Page(text).text


def test_one_that_fits_is_short_of_nothing(small_target):
    assert profile(network(small_target)).data["compilation"]["shortages"] == []


def test_exchange_and_vertex_code_by_operation_scope_and_codelet(small_target, tmp_path):
    executable = network(small_target)
    data = profile(executable).data
    sizes = list(exchange_code_by_step(executable))
    for row in data["operations"]:
        code = sum(sizes[number] for number in row["steps"])
        assert row["exchangeCodeBytes"] == code.max()
        assert row["exchangeCodeMeanBytes"] == round(code.mean(), 1)
        assert row["exchangeCodeTile"] == (code.argmax() if code.any() else None)
        used = {
            c["vertexType"]: c["codeBytes"] for c in data["codelets"] if c["vertexType"] in row["vertexTypes"]
        }
        assert row["vertexCodeBytes"] == sum(used.values())
    assert any(row["exchangeCodeBytes"] for row in data["operations"])
    shared = [row for row in data["codelets"] if row["numOperations"] > 1]
    assert shared  # code of several operations, there once
    everywhere = sum(row["codeBytes"] * row["numTiles"] for row in data["codelets"])
    assert everywhere == data["compilation"]["memory"]["categories"]["vertexCode"]["totalBytes"]
    *_, text = report(executable, None, tmp_path)
    page = Page(text)
    for row in data["operations"]:
        if row["exchangeCodeBytes"]:
            assert f"{row['exchangeCodeBytes']:,}" in page.text
    assert text.count('aria-sort="descending"') >= 2


def test_executable_memory_is_told_with_its_source(small_target):
    executable = network(small_target)
    result = profile(executable)
    code = result.data["compilation"]["memory"]["executableMemory"]
    there = [
        b
        for b in executable.buffers.values()
        if b.category in CODE_CATEGORIES and code["tile"] in b.tile_numbers
    ]
    assert code["needBytes"] == sum(b.size_bytes for b in there) == sum(code["kinds"].values())
    assert (code["haveBytes"], code["regions"]) == (212_992, ["region0"])
    assert code["basis"] == "ASSUMED" and "instructions can only be fetched" in code["source"]
    assert f"executable memory: code needs {code['needBytes']:,} of 212,992 B" in result.text()


def test_fragments_too_small_are_called_so(small_target):
    executable = pipeline(small_target)
    object.__setattr__(executable, "fits", False)
    assert "in pieces too small" in profile(executable, None).text().splitlines()[1]


def test_a_program_not_run_says_what_depends_on_data(small_target, tmp_path):
    summary, document, text = report(looping(small_target), None, tmp_path)
    assert "unknown cycles" in summary
    assert json.loads(document)["run"] is None
    page = Page(text)
    assert "309 cycles per trip" in page.text
    assert "Depends on data" in page.text
    steps = json.loads(document)["execution"]["steps"]
    for name, values in dict(page.charts)["supersteps"]["series"]:
        figures = [(step["count"], step[f"{name}Cycles"]) for step in steps]
        assert values == [0 if 0 in both else None if None in both else both[0] * both[1] for both in figures]
    unknown = sum(step["count"] is None for step in steps)
    assert 0 < unknown and f"{unknown} of {len(steps)} steps run as often as data says" in page.text


def test_writing_twice_gives_the_same_bytes(small_target, tmp_path):
    first = report(pipeline(small_target), None, tmp_path)
    assert report(pipeline(small_target), None, tmp_path) == first


@pytest.mark.parametrize("blocked", ["file", "file/below", "taken"])
def test_a_directory_that_cannot_be_written_is_one_line(small_target, tmp_path, blocked):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "taken" / "profile.json").mkdir(parents=True)
    with pytest.raises(ReportNotWritten) as caught:
        write_report(pipeline(small_target), None, tmp_path / blocked)
    message = str(caught.value)
    assert "\n" not in message
    assert str(tmp_path / blocked) in message and "can be written" in message


def test_cells_of_many_lines_are_folded_and_keep_every_line():
    plans = [f"d0:{n}/<b>" for n in range(80)]
    cell = _breakable("\n".join(plans), "")
    page = Page(cell)
    assert cell.startswith("<details><summary>d0:0/&lt;b&gt; and 79 more</summary>")
    assert all(line in page.text for line in plans)
    assert _breakable("\n".join(plans[:6]), "").count("<") == 0


# ---- charts


def test_ticks_are_round_and_reach_the_top():
    assert ticks(638_976) == [0, 200_000, 400_000, 600_000]
    assert ticks(4) == [0, 1, 2, 3, 4]
    assert ticks(0) == [0]


def test_bars_are_as_high_as_their_values():
    svg = stack(
        [Series("a", [10, 0, 30], "red"), Series("b", [10, 5, 0], "blue")], Axis("step"), "B", gap=False
    )
    first, second = re.findall(r'<path fill="\w+" d="([^"]*)"', svg)
    bars = [
        tuple(map(float, m)) for m in re.findall(r"M([\d.]+) ([\d.]+)V([\d.]+)H([\d.]+)V", first + second)
    ]
    heights = [low - high for _, low, high, _ in bars]
    assert len(bars) == 4
    assert heights[1] == pytest.approx(3 * heights[0], abs=0.1)
    assert heights[2] == pytest.approx(heights[0], abs=0.1)
    assert bars[2][1] == pytest.approx(bars[0][2], abs=0.1)  # b stands on a


def test_a_line_has_one_level_per_tile_and_the_limit_only_where_it_is_visible():
    svg = lines([Series("a", [5, 5, 9], "red")], Axis("tile"), "B", 20, 9)
    assert 'class="limit"' not in svg
    assert svg.count("H") >= 2
    svg = lines([Series("a", [5, 5, 9], "red")], Axis("tile"), "B", 20, 20)
    assert "limit 20 B" in svg
    for top, side in ((20, 1), (10_000, -1)):  # close above the axis, the words stand above their line
        svg = lines([Series("a", [5, 5, 9], "red")], Axis("tile"), "B", 20, top)
        line = float(re.search(r'class="limit" d="M\d+ ([\d.]+)', svg).group(1))
        words = float(re.search(r'<text class="limit" x="[\d.]+" y="([\d.]+)"', svg).group(1))
        assert (words - line) * side > 0


def test_many_steps_make_the_chart_wider_not_the_bars_thinner():
    svg = stack([Series("a", [1] * 5000, "red")], Axis("step"), "B", gap=True)
    width = float(re.search(r'width="([\d.]+)"', svg).group(1))
    assert width >= 5000 * 3
