"""The report's page: one static file with charts and sortable tables, made from a profile's document."""

from __future__ import annotations

import importlib.resources
import math
import re
from collections.abc import Sequence
from html import escape
from string import Template

from tiles.files import JsonObject
from tiles.graph.location import short
from tiles.report.charts import Axis, Series, lines, share_bar, stack
from tiles.report.drawing import drawing
from tiles.report.links import bound_text, replicas_text
from tiles.report.places import scope_of
from tiles.report.text import (
    CODELETS_SHARED,
    UNKNOWN,
    bounds_text,
    by_exchange_code,
    does_not_fit,
    executable_memory_text,
    main_basis,
    trips,
    went,
)

COMPUTE, EXCHANGE, SYNC, HOST, LINK = "#2f6db5", "#e0862b", "#8b939c", "#7a5aa6", "#c03028"
PEAK, ALWAYS, SOMETIMES, GAPS = "#2f6db5", "#1f9e89", "#8fbce6", "#b3bcc6"
BASIS_COLORS = {
    "MEASURED": "#2a7f5f",
    "DOCUMENTED": "#7cb89a",
    "DERIVED": "#8fb3d9",
    "FITTED": "#e3b44d",
    "ASSUMED": "#c9705a",
    "UNKNOWN": "#6b6b6b",
}

BREAKS = re.compile(r"/|_(?!\d)|\.(?!\w+:\d)")
"""Where a long name may be broken: behind what joins its parts, but not before a number or inside a file's name."""

MOST_LINES = 6
"""Lines of a cell that are shown; of more, the first is, and the others where they are asked for."""
NEWLINE = "\n"

Cell = str | int | float | None
"""A table's entry: text as it is, a number with thousands separated, None for what is not known."""


def page(data: JsonObject) -> str:
    """Return the page of a profile's document as HTML text."""
    sections = {
        "title": escape(f"{data['name']} on {data['target']['name']}"),
        "subtitle": escape(_subtitle(data)),
        "banner": _banner(data),
        "tiles": _figures(data),
        "shares": _shares(data),
        "supersteps": _supersteps(data),
        "links": _links(data),
        "operations": _operations(data) + _scopes(data),
        "memory_by_tile": _memory_by_tile(data),
        "categories": _categories(data),
        "largest": _largest(data),
        "code": _code(data),
        "liveness": _liveness(data),
        "balance": _balance(data),
        "plans": _plans(data),
        "unresolved": _control(data) + _unresolved(data) + _streams(data) + _remote_buffers(data),
        "schema": escape(data["schema"]),
        "style": _template("report.css"),
        "script": _template("report.js"),
    }
    return Template(_template("report.html")).substitute(sections)


def _template(name: str) -> str:
    return (importlib.resources.files("tiles.report") / "templates" / name).read_text(encoding="utf-8")


# ---- the top of the page


def _subtitle(data: JsonObject) -> str:
    target, run = data["target"], data["run"]
    how = "not run" if run is None else f"{run['engine']} engine, {run['arithmetic']} arithmetic"
    ipus = f"{target['numIPUs']} IPUs, " if target["numIPUs"] > 1 else ""
    links = data["execution"]["links"]
    if links is not None:
        ipus = f"{links['numIpus']:,} IPUs of {links['system']}, each "
    megahertz = f"{target['clockFrequency'] / 1e6:,g} MHz"
    return f"{target['description']}: {ipus}{target['numTiles']:,} tiles at {megahertz}; {how}"


def _banner(data: JsonObject) -> str:
    if data["compilation"]["fits"]:
        return ""
    what, *notes = (escape(line) for line in does_not_fit(data))
    lines = "".join(f"<p>{note}</p>" for note in notes)
    return f'<div class="banner"><p><b>Does not fit:</b> {what}</p>{lines}</div>'


def _figures(data: JsonObject) -> str:
    execution, memory = data["execution"], data["compilation"]["memory"]
    seconds = execution["seconds"]
    peak, code = memory["peakBytes"] / memory["limitBytes"], memory["executableMemory"]
    ends = execution["cyclesRange"]
    likely = f"; on silicon likely {ends[0]:,} to {ends[1]:,}" if ends and ends[1] else ""
    if execution["cycles"] is None and (bounds := bounds_text(data)):
        likely = f"; {bounds}, as data decides"
    figures = [
        ("cycles", _shown(execution["cycles"]), f"of one run, host transfers not included{likely}"),
        (
            "microseconds",
            UNKNOWN if seconds is None else f"{seconds * 1e6:,.2f}",
            "the same at the tile clock",
        ),
        ("supersteps", _shown(execution["supersteps"]), f"{_shown(execution['exchangeBytes'])} B exchanged"),
        (
            "peak bytes of a tile",
            f"{memory['peakBytes']:,}",
            f"{peak:.1%} of {memory['limitBytes']:,}, tile {memory['fullestTile']}",
        ),
        (
            "code bytes of a tile",
            f"{code['needBytes']:,}",
            f"{code['needBytes'] / code['haveBytes']:.1%} of {code['haveBytes']:,} that code can run from, tile {code['tile']}",
        ),
    ]
    return "".join(
        f"<div><span>{escape(name)}</span><strong>{escape(value)}</strong><small>{escape(note)}</small></div>"
        for name, value, note in figures
    )


def _shares(data: JsonObject) -> str:
    execution = data["execution"]
    phases = [(name, execution[f"{name}Cycles"], color) for name, color in _phase_colors(data)]
    known = [cycles for _, cycles, _ in phases if cycles is not None]
    if len(known) < len(phases):
        return "<p>The split depends on data; run the program to see it.</p>"
    whole = sum(known) or 1
    split = share_bar([(name, (cycles or 0) / whole, color) for name, cycles, color in phases])
    shares = execution["basisShares"]
    basis = share_bar([(name, shares[name] or 0, color) for name, color in BASIS_COLORS.items()])
    return f"<h3>By phase</h3>{split}<h3>By what the figures rest on</h3>{basis}"


def _phase_colors(data: JsonObject) -> list[tuple[str, str]]:
    """Return the phases of a step with their colors; links for a program of several IPUs."""
    phases = [("compute", COMPUTE), ("exchange", EXCHANGE), ("sync", SYNC), ("hostExchange", HOST)]
    return phases if data["execution"]["links"] is None else [*phases, ("link", LINK)]


# ---- execution


def _supersteps(data: JsonObject) -> str:
    steps = data["execution"]["steps"]
    if not steps:
        return "<p>The program has no steps.</p>"
    unknown = sum(step["count"] is None for step in steps)
    note = (
        f"{unknown:,} of {len(steps):,} steps run as often as data says: run the program to see their bars."
    )
    series = [_over_the_run(steps, name, color) for name, color in _phase_colors(data)]
    return (f"<p>{note}</p>" if unknown else "") + stack(series, _steps_axis(data), "cycles", gap=True)


def _over_the_run(steps: Sequence[JsonObject], phase: str, color: str) -> Series:
    """Return the cycles of every step's phase in the whole run."""
    figures = [(step["count"], step[f"{phase}Cycles"]) for step in steps]
    unknown = frozenset(at for at, both in enumerate(figures) if None in both and 0 not in both)
    return Series(phase, [(count or 0) * (cycles or 0) for count, cycles in figures], color, unknown)


def _steps_axis(data: JsonObject) -> Axis:
    labels = [f"{step['name']} x {_shown(step['count'])}" for step in data["execution"]["steps"]]
    return Axis("step", 0, labels)


def _links(data: JsonObject) -> str:
    """Return what several IPUs do and what crosses the links between them: a lane each, the graph, tables."""
    links, steps = data["execution"]["links"], data["execution"]["steps"]
    if links is None:
        return ""
    words = "".join(f"<p>{escape(line)}</p>" for line in (replicas_text(links), bound_text(data)) if line)
    if links["kinds"] is None:
        return f"<h2>Links between IPUs</h2>{words}<p>What crosses depends on data; run the program to see it.</p>"
    alike = _shown(math.prod(axis["size"] for axis in links["replicas"]))
    own = [(name, color) for name, color in _phase_colors(data) if name != "link"]
    on_chip = [_over_the_run(steps, name, color) for name, color in own]
    lanes = [(f"Every IPU ({alike} do the same)", on_chip)] + [
        (
            f"{kind['name']} ({kind['kind']}), the busiest of {kind['links']:,}",
            [Series("busy", kind["cyclesByStep"], LINK)],
        )
        for kind in links["kinds"]
    ]
    axis = _steps_axis(data)
    charts = "".join(
        f"<h3>{escape(name)}</h3>{stack(series, axis, 'cycles', gap=True)}" for name, series in lanes if steps
    )
    graph = drawing(links["drawing"]) if links["drawing"]["links"] else ""
    kinds: list[list[Cell]] = [
        [
            kind["name"], kind["kind"], kind["links"], kind["bytes"], kind["busiest"], kind["busiestBytes"],
            f"{kind['busiestSeconds'] * 1e6:,.1f}", f"{kind['bytesPerSecond'] / 1e9:.1f}", kind["basis"],
        ]
        for kind in links["kinds"]
    ]  # fmt: skip
    heads = [
        "link",
        "kind",
        "links",
        "bytes on all",
        "busiest",
        "its bytes",
        "its us",
        "GB/s each way",
        "rests on",
    ]
    collectives: list[list[Cell]] = [
        [
            row["label"], row["name"], ", ".join(row["axes"]), row["bytes"], row["runs"], row["cycles"],
            row["linkCycles"], _rate(row["bytesPerSecond"]), scope_of(row), short(row["location"]),
        ]
        for row in links["collectives"]
    ]  # fmt: skip
    arguments: list[list[Cell]] = [
        [
            row["name"], row["dtype"], _extents(row["shape"]), row["sharding"], _extents(row["ownShape"]),
            row["ownBytes"], ", ".join(row["differsAlong"]) or "no axis", short(row["location"]),
        ]
        for row in links["arguments"]
    ]  # fmt: skip
    cuts = [
        "argument",
        "type",
        "whole",
        "sharding",
        "on each IPU",
        "B on each",
        "differs along",
        "read first",
    ]
    titles = ["collective", "name", "along", "operand B", "runs", "cycles", "of links", "operand GB/s"]
    return (
        f"<h2>Links between IPUs</h2>{words}{charts}<h3>Load of the links</h3>"
        f"<p>{escape(links['system'])}, around its busiest link; the pointer shows bytes.</p>{graph}"
        + _table(heads, kinds, numeric=(2, 3, 5, 6, 7))
        + "<h3>Collectives</h3>"
        + _table([*titles, "scope", "from"], collectives, numeric=range(3, 8), wide=(8, 9), optional=8)
        + "<h3>Shardings of arguments</h3>"
        + _table(cuts, arguments, numeric=(5,), wide=(0, 7))
    )


def _extents(shape: list[int]) -> str:
    return " x ".join(f"{size:,}" for size in shape) or "scalar"


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value / 1e9:.2f}"


def _operations(data: JsonObject) -> str:
    phases = _phase_colors(data)
    heads = ["operation", "scope", "from", "cycles", "share", "compute", "exchange", "sync", "host"]
    heads += ["links"] if len(phases) > 4 else []
    heads += ["runs", "flops", "exchanged B", "mostly rests on", "plan", "vertex types"]
    rows: list[list[Cell]] = []
    for row in data["operations"]:
        share = None if row["share"] is None else f"{row['share']:.1%}"
        figures = [row[f"{phase}Cycles"] for phase, _ in phases]
        rows.append(
            [
                row["name"], scope_of(row), short(row["location"]), row["cycles"], share, *figures, row["runs"],
                row["flops"], row["exchangeBytes"], main_basis(row), "\n".join(row["plans"]), _vertex_lines(row),
            ]
        )  # fmt: skip
    return _table(heads, rows, numeric=range(3, 8 + len(phases)), wide=(0, 1, 2), optional=1)


def _vertex_lines(row: JsonObject) -> str:
    """Return the codelets of a row, with what each operation's vertices take where several share its steps."""
    if not row["members"]:
        return "\n".join(row["vertexTypes"])
    return "\n".join(
        each["vertexType"]
        + ("" if each["vertexCycles"] is None else f": {each['vertexCycles']:,} cycles in {each['name']}")
        for each in row["members"]
    )


def _scopes(data: JsonObject) -> str:
    """Return what the parts of a program that it named take, with all that is in them."""
    rows: list[list[Cell]] = [
        [
            row["scope"],
            row["cycles"],
            None if row["share"] is None else f"{row['share']:.1%}",
            *_code_cells(row),
        ]
        for row in data["scopes"]
    ]
    heads = ["scope", "cycles", "share", *CODE_HEADS]
    return "<h2>Scopes</h2>" + _table(heads, rows, numeric=range(1, 7), wide=(0,)) if rows else ""


def _balance(data: JsonObject) -> str:
    active = data["execution"]["activeCyclesByTile"]
    if active is None:
        return "<p>Depends on data; run the program to see it.</p>"
    balance = data["execution"]["tileBalance"]
    words = "no tile computes" if balance is None else f"mean over busiest tile: {balance:.1%}"
    series = [Series("active compute cycles", active, COMPUTE)]
    return f"<p>{words}</p>" + lines(series, Axis("tile"), "cycles", None, max(active))


def _plans(data: JsonObject) -> str:
    steps = data["execution"]["steps"]
    rows: list[list[Cell]] = []
    for compute_set in data["compilation"]["computeSets"]:
        step = steps[compute_set["step"]]
        for group in compute_set["vertices"]:
            moved = [o["variable"] for o in group["operands"] if o["buffer"]]
            rows.append(
                [
                    step["step"], group["name"], group["vertexType"], group["plan"], group["numVertices"],
                    ", ".join(moved), step["cycles"], _percent(step["tileBalance"]), scope_of(group),
                    short(group["location"]),
                ]
            )  # fmt: skip
    heads = [
        "step",
        "vertices of",
        "vertex type",
        "plan",
        "vertices",
        "exchanged operands",
        "cycles",
        "balance",
    ]
    return _table([*heads, "scope", "from"], rows, numeric=(0, 4, 6, 7), wide=(5, 8, 9), optional=8)


def _control(data: JsonObject) -> str:
    """Return what the loops and branches of a run did."""
    entries = data["execution"]["control"]
    if data["run"] is None or not entries:
        return ""
    rows: list[list[Cell]] = [
        [
            "\N{NO-BREAK SPACE}" * 2 * entry["depth"] + entry["kind"],
            entry["decidedBy"] or "",
            entry["entered"],
            went(entry),
            scope_of(entry),
            short(entry["location"]),
        ]
        for entry in entries
    ]
    heads = ["kind", "decided by", "entered", "trips", "scope", "from"]
    return "<h2>Loops and branches</h2>" + _table(heads, rows, numeric=(2, 3), wide=(4, 5), optional=4)


def _streams(data: JsonObject) -> str:
    """Return what streams carried."""
    rows: list[list[Cell]] = [
        [
            s["name"],
            "to the host" if s["toHost"] else "from the host",
            f"{s['dtype']}{s['shape']}",
            s["items"],
            s["bytes"],
            short(s["location"]),
        ]
        for s in data["execution"]["streams"]
    ]
    heads = ["stream", "direction", "item", "items", "bytes", "from"]
    return "<h2>Streams</h2>" + _table(heads, rows, numeric=(3, 4), wide=(5,)) if rows else ""


def _remote_buffers(data: JsonObject) -> str:
    """Return what lies beside the IPU."""
    rows: list[list[Cell]] = [
        [
            r["name"],
            f"{r['repeats']} x {r['dtype']}{r['shape']}",
            r["sizeBytes"],
            r["bytesRead"],
            r["bytesWritten"],
            short(r["location"]),
        ]
        for r in data["execution"]["remoteBuffers"]
    ]
    heads = ["remote buffer", "rows", "bytes", "read", "written", "from"]
    return (
        "<h2>Memory beside the IPU</h2>" + _table(heads, rows, numeric=(2, 3, 4), wide=(5,)) if rows else ""
    )


def _unresolved(data: JsonObject) -> str:
    entries = data["costAnalysis"]["unresolved"]
    if not entries:
        return ""
    rows: list[list[Cell]] = [
        [
            entry["kind"],
            entry["decidedBy"],
            trips(entry),
            entry["entered"],
            ", ".join(entry["steps"]),
            scope_of(entry),
            short(entry["location"]),
        ]
        for entry in entries
    ]
    heads = ["kind", "decided by", "cycles", "entered", "steps", "scope", "from"]
    table = _table(heads, rows, numeric=(3,), wide=(4, 5), optional=5)
    return "<h2>Loops and branches that depend on data</h2>" + table


# ---- memory


def _memory_by_tile(data: JsonObject) -> str:
    tiles, limit = data["compilation"]["tiles"], data["compilation"]["memory"]["limitBytes"]
    series = [
        Series("live at the tile's peak", tiles["total"], PEAK),
        Series("always live", tiles["alwaysLive"], ALWAYS),
        Series("including gaps", tiles["includingGaps"], GAPS),
    ]
    used = max(max(one.values) for one in series)
    full = lines(series, Axis("tile"), "B", limit, max(used, limit))
    near = lines(series, Axis("tile"), "B", limit, used)
    toggle = '<input type="checkbox" id="zoom"><label for="zoom">scale to what is used</label>'
    return f'{toggle}<div class="full">{full}</div><div class="zoomed">{near}</div>'


def _categories(data: JsonObject) -> str:
    sizes = data["compilation"]["memory"]["categories"]
    ordered = sorted(sizes.items(), key=lambda item: -item[1]["fullestTileBytes"])
    most = max(1, max(row["fullestTileBytes"] for row in sizes.values()))
    rows: list[str] = []
    for name, row in ordered:
        here, everywhere = row["fullestTileBytes"], row["totalBytes"]
        bar = f'<div class="bar" style="width:{here / most * 100:.2f}%"></div>' if here else ""
        rows.append(f"<tr><td>{escape(name)}</td><td>{bar}</td><td>{here:,}</td><td>{everywhere:,}</td></tr>")
    head = "<tr><th>category</th><th></th><th>fullest tile, B</th><th>all tiles, B</th></tr>"
    return f'<table class="categories"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'


def _largest(data: JsonObject) -> str:
    memory = data["compilation"]["memory"]
    rows: list[list[Cell]] = [
        [b["name"], b["category"], b["bytes"], f"{b['address']:#x}", scope_of(b), short(b["location"])]
        for b in memory["largestLive"]
    ]
    words = f"Tile {memory['fullestTile']} at step {memory['peakStepName']!r}."
    heads = ["buffer", "category", "bytes", "address", "scope", "from"]
    return f"<p>{escape(words)}</p>" + _table(heads, rows, numeric=(2,), optional=4)


CODE_HEADS = ("exchange code B", "on tile", "mean of tiles B", "vertex code B")


def _variant_line(row: JsonObject) -> str:
    """Return a variant of tile code in words."""
    extents = f"{row['rows']:,} x {row['n']:,}" if row["rows"] > 1 else f"{row['n']:,}"
    elements = "1 element" if extents == "1" else f"{extents} elements"
    return f"{row['codeBytes']:,} B, {elements} at most: {row['cycles']:,} cycles"


def _code_cells(row: JsonObject) -> list[Cell]:
    """Return a row's code as ``CODE_HEADS`` name it."""
    tile = row["exchangeCodeTile"]
    return [
        row["exchangeCodeBytes"],
        "-" if tile is None else tile,
        row["exchangeCodeMeanBytes"],
        row["vertexCodeBytes"],
    ]


def _code(data: JsonObject) -> str:
    """Return what code takes: of executable memory, by operation, by codelet."""
    code, where = executable_memory_text(data)
    operations: list[list[Cell]] = [
        [
            row["name"],
            scope_of(row),
            short(row["location"]),
            *_code_cells(row),
            "\n".join(row["vertexTypes"]),
            "\n".join(map(_variant_line, row["tileCode"])),
        ]
        for row in by_exchange_code(data)
        if row["exchangeCodeBytes"] or row["vertexCodeBytes"]
    ]
    heads = ["operation", "scope", "from", *CODE_HEADS, "vertex types", "tile code"]
    codelets: list[list[Cell]] = [
        [row["vertexType"], row["codeBytes"], row["numTiles"], row["numOperations"]]
        for row in data["codelets"]
    ]
    return (
        f"<p>{escape(_sentence(code))}</p><p>{escape(_sentence(where))}</p>"
        + "<h3>By operation</h3>"
        + _table(heads, operations, numeric=range(3, 7), wide=(0, 1, 2), optional=1, largest_first=3)
        + f"<h3>By codelet</h3><p>{escape(_sentence(CODELETS_SHARED))}</p>"
        + _table(
            ["vertex type", "code B", "tiles", "operations"], codelets, numeric=(1, 2, 3), largest_first=1
        )
    )


def _liveness(data: JsonObject) -> str:
    steps = data["compilation"]["livenessProgramSteps"]
    series = [
        Series("always live", [step["alwaysLiveBytes"] for step in steps], ALWAYS),
        Series("not always live", [step["notAlwaysLiveBytes"] for step in steps], SOMETIMES),
    ]
    return stack(series, Axis("step", -1, [step["name"] for step in steps]), "B", gap=False)


# ---- tables


def _shown(value: Cell) -> str:
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else f"{value:,}"


def _breakable(value: Cell, kind: str) -> str:
    """Return a cell's text, all but the first of many lines folded; where lines may break, names break where a part ends."""
    text = escape(_shown(value))
    text = BREAKS.sub(r"\g<0><wbr>", text) if kind.startswith("w") else text
    first, *others = text.split("\n")
    if len(others) < MOST_LINES:
        return text
    return f"<details><summary>{first} and {len(others)} more</summary>{NEWLINE.join(others)}</details>"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _table(
    heads: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    numeric: Sequence[int],
    wide: Sequence[int] = (),
    optional: int | None = None,
    largest_first: int | None = None,
) -> str:
    """Return a table that the script sorts by the column clicked.

    Columns in ``numeric`` are aligned right, those in ``wide`` may break lines; an ``optional`` one with nothing in
    it is left out. Rows come sorted by ``largest_first``, which is marked.
    """
    shown = [i for i in range(len(heads)) if i != optional or any(row[i] for row in rows)]
    kinds = ["n" if i in numeric else "w" if i in wide else "" for i in range(len(heads))]
    kinds = [
        f"{kind} s" if kind == "w" and head == "scope" else kind
        for kind, head in zip(kinds, heads, strict=True)
    ]
    columns = [f' class="{kind}"' if kind else "" for kind in kinds]
    sort = {largest_first: ' aria-sort="descending"'}
    head = "".join(f"<th{columns[i]}{sort.get(i, '')}>{escape(heads[i])}</th>" for i in shown)
    body = "".join(
        "<tr>" + "".join(f"<td{columns[i]}>{_breakable(row[i], kinds[i])}</td>" for i in shown) + "</tr>"
        for row in rows
    )
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll rows"><table class="sortable">{table}</table></div>'
