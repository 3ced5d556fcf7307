"""A system as text: the table of what it rests on, and a drawing of its graph."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tiles.target.basis import Basis
from tiles.target.figure import Figure
from tiles.target.system import Laid, System
from tiles.target.wiring import AllToAll, Grid, Listed, Switch

_SHOWN = 4
"""Rows of a grid, and links of a list, that are drawn at each end of a longer one."""


def describe_system(system: System) -> str:
    """Return the table of a system's figures, what other sources say, and the drawing of its graph."""
    chip = system.chip
    lines = [
        f"system {system.name}: {system.description}",
        f"{_count(system.num_ipus, 'IPU')} {chip.name}, {system.num_tiles:,} tiles, "
        f"{system.num_ipus * chip.memory_bytes:,} bytes of tile memory, "
        f"{_count(system.num_machines, 'machine')}, {len(system.table.ends):,} links",
        "",
        *_table(system),
        "",
        *_summary(system),
        "",
        *draw(system),
    ]
    return "\n".join(lines)


def draw(system: System) -> list[str]:
    """Return a drawing of the graph: every structure, then which nodes serve which IPUs."""
    lines: list[str] = []
    for laid in system.laid:
        if isinstance(laid.wiring, Grid):
            lines += _grid(system, laid, laid.wiring)
        elif isinstance(laid.wiring, AllToAll):
            size = laid.wiring.group(system.counts[laid.wiring.nodes])
            lines.append(
                f"{laid.name}: each of {size} {laid.wiring.nodes} to each other, by {_link(system, laid.wiring.link)}"
            )
        elif isinstance(laid.wiring, Listed):
            lines += _listed(system, laid, laid.wiring)
    return lines + list(_served(system))


# ---- the table


def _table(system: System) -> list[str]:
    """Return a line per figure, columns aligned, and below each what other sources say of it."""
    rows = list(_figures(system))
    cells = [(name, _shown(f), f.unit, str(f.basis)) for name, f in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    lines: list[str] = []
    for (name, value, unit, basis), (_, figure) in zip(cells, rows, strict=True):
        row = (name.ljust(widths[0]), value.rjust(widths[1]), unit.ljust(widths[2]), basis.ljust(widths[3]))
        lines.append("  ".join((*row, figure.source)))
        indent = " " * (widths[0] + 2)
        lines += [
            f"{indent}{_number(x.value).rjust(widths[1])}  not used: {x.source}" for x in figure.alternatives
        ]
    lines += [f"{laid.name}  wiring  {laid.basis}  {laid.source}" for laid in system.laid]
    return lines


def _figures(system: System) -> Iterator[tuple[str, Figure]]:
    chip = system.chip
    yield from system.figures
    for name in ("sync_hop_seconds", "global_sync_cycles"):
        basis, unit, source = chip.basis(name)
        yield f"chip.{name}", Figure(getattr(chip, name), unit, basis, source)
    for node in system.nodes:
        if node.name in system.counts:
            yield f"{node.name}.ipus_each", node.ipus_each
    used = {name for laid in system.laid for name in laid.wiring.link_names}
    for link in system.links:
        if link.name in used:
            yield from ((f"{link.name}.{name}", figure) for name, figure in link.figures)


def _summary(system: System) -> list[str]:
    """Return what each kind of link carries each way between two ends, and what rests on assumptions."""
    used = list(dict.fromkeys(name for laid in system.laid for name in laid.wiring.link_names))
    lines: list[str] = []
    for link in (system.link(name) for name in used):
        parallel, rate = link.figure("parallel").value or 0, link.figure("bytes_per_second").value or 0
        lines.append(
            f"{link.name}: {parallel:g} x {link.kind}, {parallel * rate / 1e9:,.4g} GB/s each way, "
            f"{link.payload_bytes_per_second / 1e9:,.4g} of payload ({link.rate_basis})"
        )
    assumed = [name for name, figure in _figures(system) if figure.basis is Basis.ASSUMED]
    return [*lines, f"ASSUMED or unknown: {', '.join(assumed) or 'nothing'}"]


def _shown(figure: Figure) -> str:
    value = "unknown" if figure.value is None else _number(figure.value)
    return (
        value
        if figure.range is None
        else f"{value} ({_number(figure.range[0])} to {_number(figure.range[1])})"
    )


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


# ---- the drawing


def _link(system: System, name: str) -> str:
    link = system.link(name)
    return f"{link.figure('parallel').value or 0:g} {link.kind}"


def _grid(system: System, laid: Laid, wiring: Grid) -> list[str]:
    """Return the drawing of one repetition: its first two dimensions that have links, across and down."""
    count = system.counts[wiring.nodes]
    extents = wiring.extents(count)
    linked = [
        (d, stride) for d, stride in enumerate(_strides(extents)[:-1]) if wiring.links[d] and extents[d] > 1
    ]
    if not linked:
        return []
    group = _strides(extents)[-1]
    lines = [f"{laid.name}: {_times(count // group)}{' x '.join(map(str, extents))} {wiring.nodes}"]
    for dimension, _ in linked:
        names = [name for name in (wiring.links[dimension], wiring.through[dimension]) if name]
        ends = ", ends joined" if wiring.is_joined(dimension, extents[dimension]) else ""
        kinds = " and ".join(f"{name} ({_link(system, name)})" for name in names)
        lines.append(
            f"  {'across' if dimension == linked[0][0] and len(linked) > 1 else 'along'}: {kinds}{ends}"
        )
    if len(linked) > 2:
        return lines
    across = linked[0] if len(linked) > 1 else None
    down = linked[-1]
    return lines + _rows(wiring, extents, across, down)


def _rows(
    wiring: Grid, extents: tuple[int, ...], across: tuple[int, int] | None, down: tuple[int, int]
) -> list[str]:
    """Return the nodes of a grid's first plane row by row, the middle of many rows left out."""
    columns, stride = (extents[across[0]], across[1]) if across else (1, 1)
    shown = min(columns, 2 * _SHOWN)
    width = len(f"{wiring.nodes} {_strides(extents)[-1] - 1}")
    rows = extents[down[0]]
    ring = wiring.is_ring(down[0], rows)

    def marks(mark: str) -> str:
        return "  " + "     ".join([mark.center(width)] * shown).rstrip()

    lines = [marks("^")] if ring else []
    before = -1
    for row in range(rows):
        if rows > 2 * _SHOWN and 2 <= row < rows - 2:
            continue
        if row > before + 1:
            lines += [f"  {'...'.center(width)}  {row - before - 1} more", marks("|")]
        names = [f"{wiring.nodes} {row * down[1] + column * stride}".center(width) for column in range(shown)]
        lines.append("  " + " --- ".join(names).rstrip() + (" --- ..." if shown < columns else ""))
        lines += [marks("|")] if row < rows - 1 else []
        before = row
    return lines + ([marks("v") + "  to the first"] if ring else [])


def _strides(extents: tuple[int, ...]) -> list[int]:
    """Return how far apart neighbours along each dimension are, and how many nodes there are."""
    return list(itertools.accumulate(extents, lambda a, b: a * b, initial=1))


def _times(groups: int) -> str:
    return f"{groups:,} times " if groups > 1 else ""


def _listed(system: System, laid: Laid, wiring: Listed) -> list[str]:
    lines = [f"{laid.name}: {len(wiring.ends):,} links, each {_link(system, wiring.link)}"]
    for number, ((a, i), (b, j)) in enumerate(wiring.ends):
        if len(wiring.ends) <= 8 * _SHOWN or number < _SHOWN or number >= len(wiring.ends) - _SHOWN:
            lines.append(f"  {a} {i} --- {b} {j}")
        elif number == _SHOWN:
            lines.append(f"  ... {len(wiring.ends) - 2 * _SHOWN:,} more")
    return lines


def _served(system: System) -> Iterator[str]:
    """Draw the trees of switches from the top: each kind of node below the one that serves it."""
    switches = [laid.wiring for laid in system.laid if isinstance(laid.wiring, Switch)]
    below = {wiring.nodes for wiring in switches}
    for top in dict.fromkeys(wiring.to for wiring in switches if wiring.to not in below):
        yield f"{system.counts[top]:,} x {top}{_node_kind(system, top)}"
        yield from _children(system, top, switches, "  ")


def _children(system: System, node: str, switches: list[Switch], indent: str) -> Iterator[str]:
    for wiring in (wiring for wiring in switches if wiring.to == node):
        nodes, count = system.counts[wiring.nodes], system.counts[node]
        most = min(nodes, -(-system.ipus_each[node] // system.ipus_each[wiring.nodes]))
        each = f"{most:,}" if most * count == nodes else f"up to {most:,}"
        kind = _node_kind(system, wiring.nodes)
        yield f"{indent}+- {_link(system, wiring.link)} - each of {each} x {wiring.nodes}{kind}"
        yield from _children(system, wiring.nodes, switches, indent + "   ")


def _node_kind(system: System, name: str) -> str:
    """Return what a kind of node is, in parentheses, where its name does not say it."""
    kinds = [node.kind for node in system.nodes if node.name == name and node.kind != name]
    return f" ({kinds[0]})" if kinds else ""
