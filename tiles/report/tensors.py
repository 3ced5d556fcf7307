"""What a reader adds up by hand: bytes of the tensors that live together on the whole machine, by kind, beside their overheads."""

from __future__ import annotations

import math

import numpy as np

from tiles.compiler import Buffer, Executable
from tiles.files import JsonObject
from tiles.numerics.dtypes import itemsize

KINDS = ("inputs", "constants", "outputs", "intermediates")
"""Kinds of tensors. What takes over an input's memory counts as the input."""


def tensor_figures(executable: Executable) -> JsonObject:
    """Return the bytes of elements at the step at which most of them live, partial sums not counted.

    Returns:
      ``step``: its number; -1 is before the program.
      ``kinds``: bytes of elements per kind; two tensors that share memory are one.
      ``partials_bytes``: most bytes of partial sums that live at any step: an overhead of splitting reductions.
      ``padding_bytes``: at ``step``, what the tensors' parts take beyond their elements on all tiles: uneven parts,
        whole words.
    """
    partials = {r for _, g in executable.groups() if g.plan.split_reductions(g.form) for r in g.results}
    edges = {kind: np.zeros(len(executable.steps) + 3, np.int64) for kind in (*KINDS, "partials", "padding")}
    kind_of, elements = _storages(executable, partials)
    for name, size_bytes in elements.items():
        buffer = executable.buffers[name]
        kind = kind_of[name]
        _add(edges[kind], buffer, size_bytes)
        if kind != "partials":
            allocated = buffer.size_bytes * sum(end - first for first, end in buffer.tiles)
            _add(edges["padding"], buffer, max(0, allocated - size_bytes))
    live = {kind: np.cumsum(edge)[:-1] for kind, edge in edges.items()}
    at = int(np.argmax(sum(live[kind] for kind in KINDS)))
    return {
        "step": at - 1,
        "kinds": {kind: int(live[kind][at]) for kind in KINDS},
        "partials_bytes": int(live["partials"].max()),
        "padding_bytes": int(live["padding"][at]),
    }


def _storages(executable: Executable, partials: set[str]) -> tuple[dict[str, str], dict[str, int]]:
    """Return kind and bytes of elements of every buffer that holds tensors."""
    kinds: dict[str, str] = {}
    elements: dict[str, int] = {}
    outputs = set(executable.outputs)
    for variable in executable.variables.values():
        name = variable.storage
        if name not in executable.buffers:  # a tensor without elements
            continue
        if variable.kind == "input":
            kinds[name] = "inputs"
        elif variable.kind == "constant":
            kinds.setdefault(name, "constants")
        elif variable.name in partials:
            kinds.setdefault(name, "partials")
        elif variable.name in outputs and kinds.get(name) != "inputs":
            kinds[name] = "outputs"
        else:
            kinds.setdefault(name, "intermediates")
        size = math.prod(variable.shape) * itemsize(variable.dtype)
        elements[name] = max(size, elements.get(name, 0))
    return kinds, elements


def _add(edge: np.ndarray, buffer: Buffer, size_bytes: int) -> None:
    """Note that bytes come to life at a buffer's first step and cease after its last."""
    edge[buffer.start + 1] += size_bytes
    edge[buffer.end + 2] -= size_bytes
