"""Networks that hypothesis draws, on whole machines: each becomes a proved program or is refused for a reason that is true."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import Phase, given, note

import ipuxla
from ipuxla.errors import OutOfTileMemory
from tests.budgets import budget
from tests.random_models import KINDS, Recipe, build, recipes
from tiles.compiler import certify
from tiles.compiler.executable import CODE_CATEGORIES, Buffer, Executable

SHARE = 1 / len(KINDS)
"""Of a profile's examples for every kind."""
PHASES = (Phase.explicit, Phase.generate)
"""Recipes do not shrink; ``tests.random_models.minimized`` finds a small one that fails alike."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_compiled_or_refused_for_a_true_reason(kind):
    @budget(SHARE, phases=PHASES)
    @given(recipes(kind, most_width=64, most_depth=2, most_values=1 << 13))
    def check(recipe: Recipe) -> None:
        note(f"check_compiles({recipe})")
        check_compiles(recipe)

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_any_size_is_compiled_or_refused_for_a_true_reason(kind):
    """In the extended tests: ten times as many."""

    @budget(10 * SHARE, phases=PHASES)
    @given(recipes(kind))
    def check(recipe: Recipe) -> None:
        note(f"check_compiles({recipe})")
        check_compiles(recipe)

    check()


@pytest.mark.parametrize(
    "recipe",
    [
        # both layers return one tensor of zeros as two results, and the second copy read what the first had renamed
        Recipe("recurrent", depth=2, optimizer="momentum"),
    ],
    ids=str,
)
def test_recipes_that_failed_once(recipe):
    check_compiles(recipe)


def check_compiles(recipe: Recipe) -> bool:
    """Check that a model becomes a program that can be proved, or that what is said to be short is; return if it fits."""
    model = build(recipe)
    jitted = ipuxla.jit(model.function, target=recipe.target, donate_argnums=model.donated)
    lowered = jitted.lower(*model.arguments)
    try:
        executable = lowered.compile().executable
    except OutOfTileMemory as error:
        check_reason(error)
        return False
    assert executable.fits
    assert certify(executable).num_tiles == executable.target.num_tiles
    return True


# ---- the reason, counted anew over the buffers


def check_reason(error: OutOfTileMemory) -> None:
    """Check what an error says against the buffers of the program that it carries."""
    executable, what = error.executable, error.what
    assert not executable.fits
    if what.startswith("code needs"):
        need, have, tile, excess = _numbers(
            r"code needs ([\d,]+) of ([\d,]+) B of executable memory on tile (\d+) \(([\d,]+) B too many\)",
            what,
        )
        code = [b for b in on(executable, tile) if b.category in CODE_CATEGORIES]
        assert need == sum(b.size_bytes for b in code)
        assert have == sum(r.size_bytes for r in executable.target.memory_regions if r.executable)
        assert need - have == excess > 0
        return
    tile, need, have = _numbers(r"tile (\d+) needs ([\d,]+) B at step .* and has ([\d,]+) B", what)
    found = re.search(r" at step '(.*?)' and has", what)
    step = found[1] if found else "the start"
    assert have == executable.target.bytes_per_tile
    assert need in live_bytes(executable, tile, step)
    if "in pieces too small" in what:
        assert need <= have
        assert misplaced(executable)
        return
    assert f"({need - have:,} B too many)" in what
    assert need > have


def _numbers(pattern: str, text: str) -> list[int]:
    found = re.match(pattern, text)
    assert found, text
    return [int(group.replace(",", "")) for group in found.groups()]


def on(executable: Executable, tile: int) -> list[Buffer]:
    """Return the buffers that a tile holds."""
    return [b for b in executable.buffers.values() if any(low <= tile < high for low, high in b.tiles)]


def live_bytes(executable: Executable, tile: int, step_name: str) -> set[int]:
    """Return the bytes that live on a tile in steps of a name."""
    numbers = [number for number, step in enumerate(executable.steps) if step.name == step_name]
    if step_name == "the start":
        numbers = [-1, len(executable.steps)]
    held = on(executable, tile)
    return {sum(b.size_bytes for b in held if b.start <= number <= b.end) for number in numbers}


def misplaced(executable: Executable) -> list[str]:
    """Return the buffers beyond the end of memory; check that none of them has room within it."""
    regions = executable.target.memory_regions
    end = max(r.base + r.size_bytes for r in regions)
    code_end = max(r.base + r.size_bytes for r in regions if r.executable)
    outside = [b for b in executable.buffers.values() if b.address + b.size_bytes > end]
    for buffer in outside:
        limit = code_end if buffer.category in CODE_CATEGORIES else end
        begin = min(r.base for r in regions)
        is_free = np.ones(limit - begin, bool)
        tiles = set(buffer.tile_numbers.tolist())
        for other in executable.buffers.values():
            meets = other.start <= buffer.end and buffer.start <= other.end
            if other is not buffer and meets and tiles & set(other.tile_numbers.tolist()):
                is_free[max(0, other.address - begin) : max(0, other.address + other.size_bytes - begin)] = (
                    False
                )
        edges = np.flatnonzero(np.diff(np.concatenate([[0], is_free.astype(np.int8), [0]])))
        gaps = edges[1::2] - edges[::2]
        assert buffer.size_bytes > gaps.max(initial=0) - 8, f"{buffer.name} has a gap of {gaps.max()} B"
    return [b.name for b in outside]
