"""Code: what exchange and vertices take of the memory that instructions are fetched from, by tile and operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tiles.compiler import Executable, ExecuteStep
from tiles.compiler.costs import exchange_code, variant_bytes
from tiles.files import JsonObject

KINDS = {
    "exchange": "internalExchangeCode",
    "vertex": "vertexCode",
    "control": "controlCode",
    "host": "hostExchangeCode",
}
"""Categories of code by the word for each in reports."""


def executable_memory(executable: Executable, category: Mapping[str, np.ndarray]) -> JsonObject:
    """Return what code takes on the tile with most of it, and where code can lie.

    Args:
      executable: the program.
      category: live bytes of every tile by category, int64 ``[num_tiles]`` each; code is always live.

    Returns:
      ``tile``, ``need_bytes``, ``have_bytes``: that tile, its code, and its memory that code can run from.
      ``kinds``: bytes of that code by kind, see ``KINDS``.
      ``regions``: names of the memory regions that instructions are fetched from.
      ``basis``, ``source``: what these regions rest on.
    """
    target = executable.target
    tile = int(np.sum([category[name] for name in KINDS.values()], axis=0).argmax())
    kinds = {kind: int(category[name][tile]) for kind, name in KINDS.items()}
    basis, _, source = target.basis("memory_regions")
    return {
        "tile": tile,
        "need_bytes": sum(kinds.values()),
        "have_bytes": target.code_memory_bytes,
        "kinds": kinds,
        "regions": [region.name for region in target.memory_regions if region.executable],
        "basis": basis.value,
        "source": source,
    }


def code_data(executable: Executable, steps: Iterable[int]) -> JsonObject:
    """Return the code of some steps.

    Returns:
      ``exchangeCodeBytes``, ``exchangeCodeTile``: of all of them together on the tile that needs most (None: none does).
      ``exchangeCodeMeanBytes``: the mean over all tiles.
      ``vertexCodeBytes``: of their codelets on a tile that has all of them; others use the same code.
    """
    steps = list(steps)
    code = np.zeros(executable.target.num_tiles, np.int64)
    for number in steps:
        code += exchange_code(executable)[number]
    return {
        "exchangeCodeBytes": int(code.max()),
        "exchangeCodeTile": int(code.argmax()) if code.any() else None,
        "exchangeCodeMeanBytes": round(float(code.mean()), 1),
        "vertexCodeBytes": sum(_codelets(executable, steps).values()),
    }


def _codelets(executable: Executable, steps: Iterable[int]) -> dict[str, int]:
    """Return the bytes of code of every type of vertex in some steps."""
    sizes: dict[str, int] = {}
    for number in steps:
        step = executable.steps[number]
        for group in step.groups if isinstance(step, ExecuteStep) else ():
            label, size = group.codelet.label, variant_bytes(executable, group)
            sizes[label] = max(sizes.get(label, 0), size)
    return sizes


def codelets_data(executable: Executable, operations: Sequence[JsonObject]) -> list[JsonObject]:
    """Return a row for every type of vertex, the largest code first: its bytes, once on every tile that has it.

    Args:
      executable: the program.
      operations: the section ``operations`` of a profile.
    """
    tiles: dict[str, int] = defaultdict(int)
    for _, group in executable.groups():
        tiles[group.codelet.label] |= group.plan.tile_mask
    rows = [
        {
            "vertexType": label,
            "codeBytes": size,
            "numTiles": tiles[label].bit_count(),
            "numOperations": sum(label in row["vertexTypes"] for row in operations),
        }
        for label, size in _codelets(executable, range(len(executable.steps))).items()
    ]
    return sorted(rows, key=lambda row: (-row["codeBytes"], row["vertexType"]))
