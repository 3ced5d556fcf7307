"""Charts as inline SVG: lines over tiles, stacked bars and areas over steps, and bars of shares.

A chart carries its values in a data attribute, from which the page's script shows what is under the pointer;
without a script the picture is complete.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

LEFT, RIGHT, TOP, BOTTOM = 84, 16, 28, 34
WIDTH, HEIGHT = 1200, 250
MIN_SLOT = 3
"""Least width in pixels of one bar; a chart of more bars than fit grows wider and scrolls."""


@dataclass(frozen=True)
class Series:
    """One line, or one layer of a stack.

    Args:
      name: what the legend calls it.
      values: one number per tile or step.
      color: any CSS color.
      unknown: entries whose value nobody knows: 0 among the values, "unknown" to the reader.
    """

    name: str
    values: Sequence[int]
    color: str
    unknown: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Axis:
    """What a chart's horizontal axis counts.

    Args:
      noun: "tile" or "step".
      first: number of the first entry.
      labels: a name for every entry, or none.
    """

    noun: str
    first: int = 0
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Frame:
    """The plotting area: where an entry and a value lie, in pixels."""

    count: int
    top_value: float
    width: float = WIDTH

    def x(self, entry: float) -> float:
        """Return the left edge of an entry's slot."""
        return round(LEFT + (self.width - LEFT - RIGHT) * entry / max(1, self.count), 2)

    def y(self, value: float) -> float:
        """Return the height of a value."""
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self.top_value, 2)


def lines(series: Sequence[Series], axis: Axis, unit: str, limit: int | None, top: int) -> str:
    """Return a chart with one line per series and, inside the picture, a dashed line at ``limit``.

    Args:
      series: lines, all of one length; at least one entry.
      axis: what the entries are.
      unit: unit of the values.
      limit: value of the dashed line, or None.
      top: the value at the upper edge.
    """
    frame = Frame(len(series[0].values), max(1, top) * 1.05)
    marks = [
        f'<path class="line" stroke="{one.color}" d="{_outline(frame, one.values)}"/>'
        for one in reversed(series)
    ]
    if limit is not None and limit <= frame.top_value:
        y = frame.y(limit)
        marks.append(f'<path class="limit" d="M{LEFT} {y}H{frame.width - RIGHT}"/>')
        beside = y + 14 if y + 14 < HEIGHT - BOTTOM else y - 6  # above the line where the axis is close below
        words = f"limit {limit:,} {unit}"
        marks.append(f'<text class="limit" x="{frame.width - RIGHT}" y="{beside:g}">{words}</text>')
    return _chart(frame, series, axis, unit, marks)


def stack(series: Sequence[Series], axis: Axis, unit: str, gap: bool) -> str:
    """Return a chart of stacked series: bars with a gap between entries, or areas without."""
    heights = [0] * len(series[0].values)
    top = max((sum(column) for column in zip(*(s.values for s in series), strict=True)), default=1)
    count = len(heights)
    frame = Frame(count, max(1, top) * 1.05, max(WIDTH, count * MIN_SLOT + LEFT + RIGHT))
    slot = frame.x(1) - frame.x(0)
    inset = min(slot * 0.15, 2.0) if gap else 0.0
    marks: list[str] = []
    for one in series:
        path: list[str] = []
        for entry, value in enumerate(one.values):
            if value:
                x0, x1 = frame.x(entry) + inset, frame.x(entry + 1) - inset
                low, high = frame.y(heights[entry]), frame.y(heights[entry] + value)
                path.append(f"M{x0:.2f} {low}V{high}H{x1:.2f}V{low}Z")
            heights[entry] += value
        marks.append(f'<path fill="{one.color}" d="{"".join(path)}"/>')
    return _chart(frame, series, axis, unit, marks)


def share_bar(parts: Sequence[tuple[str, float, str]]) -> str:
    """Return a horizontal bar of shares with a legend; parts are (name, share from 0 to 1, color)."""
    pieces = [
        f'<span style="width:{part * 100:.3f}%;background:{color}" title="{escape(name)} {part:.1%}"></span>'
        for name, part, color in parts
        if part > 0
    ]
    keys = [(f"{name} {part:.1%}", color) for name, part, color in parts]
    return f'<div class="share">{"".join(pieces)}</div>{legend(keys)}'


def legend(keys: Sequence[tuple[str, str]]) -> str:
    """Return names with their colors."""
    items = [f'<span><i style="background:{color}"></i>{escape(name)}</span>' for name, color in keys]
    return f'<div class="legend">{"".join(items)}</div>'


def ticks(top: float, wanted: int = 5) -> list[int]:
    """Return about ``wanted`` round integers from 0 up to ``top``."""
    raw = max(top / wanted, 1)
    power = 10 ** math.floor(math.log10(raw))
    step = int(next(m * power for m in (1, 2, 5, 10) if m * power >= raw))
    return list(range(0, int(top) + 1, step))


def _outline(frame: Frame, values: Sequence[int]) -> str:
    """Return the path of a line with one level piece per entry; equal neighbours share a piece."""
    path = [f"M{frame.x(0)} {frame.y(values[0])}"]
    for entry in range(1, len(values)):
        if values[entry] != values[entry - 1]:
            path.append(f"H{frame.x(entry)}V{frame.y(values[entry])}")
    return "".join(path) + f"H{frame.x(len(values))}"


def _chart(frame: Frame, series: Sequence[Series], axis: Axis, unit: str, marks: list[str]) -> str:
    """Return marks with axes, legend and the values that the script shows."""
    values = {
        "left": LEFT,
        "right": RIGHT,
        "width": frame.width,
        "noun": axis.noun,
        "first": axis.first,
        "unit": unit,
        "labels": list(axis.labels),
        "series": [
            [one.name, [None if at in one.unknown else value for at, value in enumerate(one.values)]]
            for one in series
        ],
    }
    data = escape(json.dumps(values, separators=(",", ":")))
    picture = (
        f'<div class="scroll"><svg viewBox="0 0 {frame.width} {HEIGHT}" width="{frame.width}" '
        f'height="{HEIGHT}" role="img" data-chart="{data}">{_axes(frame, axis, unit)}{"".join(marks)}'
        f'<path class="pointer" d=""/></svg></div>'
    )
    return f"<figure>{legend([(one.name, one.color) for one in series])}{picture}</figure>"


def _axes(frame: Frame, axis: Axis, unit: str) -> str:
    parts: list[str] = []
    for value in ticks(frame.top_value):
        y = frame.y(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{frame.width - RIGHT}"/>')
        parts.append(f'<text class="y" x="{LEFT - 8}" y="{y + 4}">{value:,}</text>')
    for entry in ticks(frame.count - 1, 10):
        middle = (frame.x(entry) + frame.x(entry + 1)) / 2
        parts.append(
            f'<text class="x" x="{middle:.2f}" y="{HEIGHT - BOTTOM + 16}">{entry + axis.first:,}</text>'
        )
    parts.append(f'<text class="title" x="{LEFT}" y="{HEIGHT - 4}">{escape(axis.noun)}</text>')
    parts.append(f'<text class="title" x="4" y="{TOP - 16}">{escape(unit)}</text>')
    return "".join(parts)
