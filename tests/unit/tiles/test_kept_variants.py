"""Figures of tile code on disk: another process reads what one compiled, and gets what compiling would give."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from tiles import kept
from tiles.elements import Variant, as_text, kept_variants, named
from tiles.elements.cell import ELEMENT
from tiles.elements.variants import NoVariant
from tiles.errors import NoTileCode
from tiles.poplibs.popops import map_code, reduce_code

MK2 = named("mk2")
F = "float32"
SCALED = (("multiply", (0, 1), ()), ("add", (2, 0), ()))
CUBE = (("multiply", (0, 0), ()), ("multiply", (1, 0), ()))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.setenv(kept.FOLDER, str(tmp_path))
    return tmp_path / kept_variants.FOLDER


@pytest.fixture
def warned(monkeypatch) -> list[str]:
    """What was logged as a warning."""
    found: list[str] = []
    monkeypatch.setattr(kept.logging, "warning", lambda text, *args: found.append(text % args))
    return found


def rows(body=SCALED, dtypes=(F, F), isa=MK2, grain=2) -> Variant | NoVariant:
    """Compile an expression of rows as a process does that has not asked before."""
    levels = ((ELEMENT, True),) * len(dtypes)
    outputs = (len(dtypes) + len(body) - 1,)
    question = body, outputs, (dtypes, (F,)), levels, 0, grain, False
    return map_code._variant.__wrapped__(isa, "map", map_code._cell, *question)


def fold(operation: str = "add") -> Variant | NoVariant:
    """Compile a reduction, the same way."""
    levels = ((ELEMENT, True),)
    return reduce_code._variant.__wrapped__(MK2, (), operation, F, reduce_code.ALONG_ROWS, levels, (F,), F, 2)


@pytest.mark.parametrize("compiled", [rows, fold])
def test_what_is_read_is_what_was_compiled(folder, monkeypatch, compiled) -> None:
    fresh = compiled()
    assert len(list(folder.glob("*"))) == 1
    with monkeypatch.context() as patched:
        patched.setattr(map_code, "compile_variant", None)
        patched.setattr(reduce_code, "compile_variant", None)
        again = compiled()  # nothing is compiled
    n, count = (x.ravel() for x in np.meshgrid(np.arange(1, 60), np.arange(1, 9)))
    assert (again.formula.cycles(n, count) == fresh.formula.cycles(n, count)).all()
    assert again.formula == fresh.formula
    for name in ("code_bytes", "scratch_bytes", "basis", "generation"):
        assert getattr(again, name) == getattr(fresh, name)
    assert as_text(compiled().named("x").code, MK2) == as_text(fresh.named("x").code, MK2)


def test_why_there_is_no_code_is_kept_too(folder, monkeypatch) -> None:
    wide = ("float64", "float64")
    why = rows(dtypes=wide)
    map_code._cell.cache_clear()
    monkeypatch.setattr(map_code, "element_jaxpr", None)
    assert isinstance(why, NoVariant) and rows(dtypes=wide) == why
    with pytest.raises(NoTileCode, match="values of float64"):
        raise rows(dtypes=wide).error()


def test_whatever_decides_a_variant_is_in_its_key(folder) -> None:
    rows()
    rows(body=CUBE[:1], dtypes=(F,))
    rows(grain=1)
    rows(isa=MK2.with_slots(f32add=2))
    rows(isa=MK2.with_slots(f32add=3))
    fold()
    assert len(list(folder.glob("*"))) == 6


def test_another_compiler_reads_nothing_of_it(folder, monkeypatch) -> None:
    rows()
    monkeypatch.setattr(kept_variants, "_made_by", lambda: "changed source")
    rows()
    assert len(list(folder.glob("*"))) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda blob: b"",
        lambda blob: blob[:-1],
        lambda blob: kept_variants.sealed(kept_variants._MAGIC, b'{"terms": 1}'),
        lambda blob: kept_variants.sealed(
            kept_variants._MAGIC, kept_variants.opened(kept_variants._MAGIC, blob).replace(b'"n"', b'"m"')
        ),
    ],
)
def test_a_damaged_entry_is_told_of_and_rebuilt(folder, warned, damage) -> None:
    fresh = rows()
    (path,) = folder.glob("*")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert rows().formula == fresh.formula
    (message,) = warned
    assert str(path) in message and "damaged, and compiled again" in message
    assert path.read_bytes() == whole


def test_nothing_is_kept_where_that_is_turned_off(folder, monkeypatch) -> None:
    monkeypatch.setenv(kept.FOLDER, "")
    rows()
    assert not folder.exists()


def test_the_folder_is_bounded(folder, monkeypatch) -> None:
    rows()
    (path,) = folder.glob("*")
    monkeypatch.setattr(kept_variants, "CAPACITY_BYTES", path.stat().st_size - 1)
    kept_variants._files_in.cache_clear()
    rows(grain=1)
    assert not path.exists()
