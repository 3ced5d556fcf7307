"""A drawing of the part of a system's graph around its busiest link, every link coloured by how long it is busy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tiles.files import JsonObject
from tiles.report.charts import legend

WIDTH, MARGIN, RADIUS = 1200, 40, 13
RAILS, LEVEL = 90, 70
"""Pixels between the two rows of IPUs, and between levels of other nodes below."""
IDLE, COOL, HOT = "#cfd6dd", (143, 188, 230), (192, 48, 40)


def drawing(data: JsonObject) -> str:
    """Return the graph of ``execution.links.drawing`` as SVG: IPUs in pairs along two rows, other nodes below."""
    nodes, links = data["nodes"], data["links"]
    places = _places(nodes, links)
    most = max((link["seconds"] for link in links), default=0.0)
    width = max(WIDTH, math.ceil(max(x for x, _ in places) + MARGIN))
    height = math.ceil(max(y for _, y in places) + MARGIN)
    beside: dict[tuple[int, ...], int] = {}
    marks: list[str] = []
    for link in sorted(links, key=lambda link: link["seconds"]):
        pair = tuple(sorted(link["ends"]))
        number = beside[pair] = beside.get(pair, -1) + 1
        ends: list[int] = link["ends"]
        marks.append(_line([places[end] for end in ends], number, link, nodes, most))
    marks += [_node(name, *place) for name, place in zip(nodes, places, strict=True)]
    keys = [("idle", IDLE), ("least busy", _color(0.0)), ("busiest", _color(1.0))]
    return (
        f'<figure>{legend(keys)}<div class="scroll"><svg viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img">{"".join(marks)}</svg></div></figure>'
    )


def _places(nodes: Sequence[str], links: Sequence[JsonObject]) -> list[tuple[float, float]]:
    """Return where each node lies, in pixels: others below those they are linked with, a level for each step away."""
    ipus = [number for number, name in enumerate(nodes) if name.startswith("ipu ")]
    columns = max(1, -(-len(ipus) // 2))
    step = min(120.0, (WIDTH - 2 * MARGIN) / max(1, columns - 1)) if columns > 1 else 0.0
    found: dict[int, tuple[float, float]] = {
        number: (MARGIN + place // 2 * step, MARGIN + place % 2 * RAILS) for place, number in enumerate(ipus)
    }
    y, left = MARGIN + RAILS + LEVEL, [number for number in range(len(nodes)) if number not in found]
    while left:
        above = {
            number: [
                found[end] for link in links if number in link["ends"] for end in link["ends"] if end in found
            ]
            for number in left
        }
        level = [number for number in left if above[number]] or left
        for place, number in enumerate(level):
            near = [x for x, _ in above[number]]
            x = sum(near) / len(near) if near else MARGIN + place * step
            found[number] = x, float(y)
        _apart(found, level)
        y, left = y + LEVEL, [number for number in left if number not in level]
    return [found[number] for number in range(len(nodes))]


def _apart(found: dict[int, tuple[float, float]], level: Sequence[int]) -> None:
    """Move nodes of one level to the right until none covers the one before it."""
    reached = 0.0
    for number in sorted(level, key=lambda number: found[number][0]):
        x, y = found[number]
        found[number] = max(x, reached), y
        reached = found[number][0] + 4 * RADIUS


def _line(
    ends: Sequence[tuple[float, float]], beside: int, link: JsonObject, nodes: Sequence[str], most: float
) -> str:
    """Return a link, aside where there are others between the same nodes; long ones along a row are arcs."""
    (x0, y0), (x1, y1) = ends
    share = link["seconds"] / most if most else 0.0
    color, width = (_color(share), 2 + 3 * share) if link["seconds"] else (IDLE, 1.2)
    shift = 7 * beside
    is_around = y0 == y1 and abs(x1 - x0) > 300  # a row whose ends are joined
    bend = -1.5 * MARGIN if is_around else 0
    path = f"M{x0 + shift:.1f} {y0:.1f}Q{(x0 + x1) / 2 + shift:.1f} {(y0 + y1) / 2 + bend:.1f} {x1 + shift:.1f} {y1:.1f}"
    there, back = link["bytes"]
    first, second = (nodes[end] for end in link["ends"])
    told = f"{link['name']}, {first} to {second}: {there:,} B there, {back:,} B back, {link['seconds'] * 1e6:,.1f} us"
    return f'<path class="link" stroke="{color}" stroke-width="{width:.1f}" d="{path}"><title>{escape(told)}</title></path>'


def _node(name: str, x: float, y: float) -> str:
    kind, _, number = name.rpartition(" ")
    if kind == "ipu":
        return (
            f'<circle class="node" cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}"/>'
            f'<text class="x" x="{x:.1f}" y="{y + 4:.1f}">{escape(number)}</text>'
        )
    text = f'<text class="x" x="{x:.1f}" y="{y + 16:.1f}">{escape(name.replace("_", " "))}</text>'
    return f'<rect class="node" x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"/>{text}'


def _color(share: float) -> str:
    """Return the color of a link that is busy for a share, 0 to 1, of the time of the busiest."""
    parts = (round(cool + (hot - cool) * share) for cool, hot in zip(COOL, HOT, strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)
