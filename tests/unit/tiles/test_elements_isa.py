"""The data of instruction sets: what is there, and what a damaged file says."""

from __future__ import annotations

import json
import shutil

import pytest

from tiles.elements import named, of_target
from tiles.elements.isa import data_directory, read
from tiles.errors import InvalidInstructionSet, NoTileCode
from tiles.target import Basis, Target


@pytest.mark.parametrize("name", ["mk1", "mk2", "mk2-fp8"])
def test_every_instruction_has_forms_slots_and_a_source(name) -> None:
    isa = named(name)
    for row in isa.rows.values():
        assert row.forms and row.issue_slots >= 1 and row.source.strip() and row.slots_source.strip()
    assert 0.9 < sum(r.slots_basis is Basis.DOCUMENTED for r in isa.rows.values()) / len(isa.rows)


def test_generations_extend_each_other() -> None:
    mk1, mk2, fp8 = named("mk1"), named("mk2"), named("mk2-fp8")
    assert "f16v4hihov4amp" not in mk1 and "f16v4hihov4amp" in mk2
    assert "f8v8hihov4amp" not in mk2 and "f8v8hihov4amp" in fp8
    assert (mk1["repeat_count_max"], mk2["repeat_count_max"], fp8["repeat_count_max"]) == (4095, 65535, 65535)
    with pytest.raises(NoTileCode, match="f8v8hihov4amp"):
        mk2.row("f8v8hihov4amp")


def test_machines_have_their_generation() -> None:
    names = {"gc2": "mk1", "gc200": "mk2", "bow": "mk2", "c600": "mk2-fp8"}
    assert {t: of_target(Target.named(t)).name for t in names} == names


def damaged(folder, change):
    """Read a copy of a file after a change of its data."""
    for path in data_directory().glob("*.json"):
        shutil.copy(path, folder)
    path = folder / "mk1.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return read(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["instructions"]["add"].pop("forms"), r"'add': fields \['forms'\] are missing"),
        (lambda d: d["instructions"]["add"].update(issue_slots=-1), "'add' takes -1 slots"),
        (lambda d: d["instructions"]["add"].update(issue_slots=True), "'add' takes True slots"),
        (lambda d: d["instructions"]["add"].update(slot="both"), "slot is 'both'"),
        (lambda d: d["instructions"]["add"].update(forms=["=M3 M1"]), "operand '=M3'"),
        (lambda d: d["instructions"]["add"].update(source="hearsay"), "unknown source 'hearsay'"),
        (lambda d: d["instructions"]["add"].update(basis="SURE"), "no legal basis"),
        (lambda d: d["figures"].pop("aux_registers"), "'aux_registers' is missing"),
        (lambda d: d["figures"]["aux_registers"].update(value=-8), "'aux_registers': -8 registers"),
        (lambda d: d["figures"]["aux_registers"].pop("unit"), r"lacks \['unit'\]"),
        (lambda d: d["instructions"]["add"].update(issue_slots=10**400), "at most 65536"),
        (lambda d: d["instructions"]["add"].update(forms="=M1"), "forms are '=M1'"),
        (lambda d: d["instructions"]["add"].update(forms=[3]), r"forms are \[3\]"),
        (lambda d: d["instructions"]["add"].update(forms=None), "forms are None"),
        (lambda d: d["instructions"]["add"].update(meaning=3), "meaning is 3"),
        (lambda d: d["instructions"]["add"].update(source=[]), r"unknown source \[\]"),
        (lambda d: d["instructions"]["add"].update(stores_bits=-3), "stores_bits is -3"),
        (lambda d: d["instructions"]["add"].update(loads_bits=[7]), r"loads_bits is \[7\]"),
        (lambda d: d["sources"].update(support=1), "a source that is no text"),
        (lambda d: d["figures"]["worker_contexts"].update(value=0), "'worker_contexts': 0 workers"),
        (
            lambda d: d["figures"]["aux_registers"].update(value=10**9),
            "'aux_registers': 1000000000 registers",
        ),
        (lambda d: d.update(extends="mk1"), "it extends itself"),
        (lambda d: d.update(extends="mk2"), "it extends itself"),
        (lambda d: d.update(extends="../mk1"), r"it extends '\.\./mk1'"),
        (lambda d: d.update(extends=3), "it extends 3"),
        (lambda d: d.update(extends="mk9"), "cannot be read"),
        (lambda d: d.update(schema="other"), "not a file of instructions"),
        (lambda d: d.pop("instructions"), "'instructions' is missing"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path, change, says) -> None:
    with pytest.raises(InvalidInstructionSet, match=says):
        damaged(tmp_path, change)


def test_slots_can_be_tried() -> None:
    tried = named("mk2").with_slots(f32exp=4)
    assert tried.row("f32exp").issue_slots == 4
    assert tried.row("f32exp").slots_basis is Basis.ASSUMED
