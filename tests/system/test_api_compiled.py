"""Lowered and compiled programs: their stages, costs, files, and results in a process without a compiler."""

from __future__ import annotations

import collections
import json
import pathlib
import pickle
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla import runtime
from ipuxla.errors import (
    InvalidExecutable,
    InvalidOption,
    OutOfTileMemory,
    UnknownStage,
    UnknownTarget,
    Unsupported,
    WrongArguments,
)
from tiles.files import opened, sealed
from tiles.graph.location import short
from tiles.numerics.tolerance import check_close

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
PARAMS = {"w": jnp.linspace(0.0, 1.0, 20).reshape(4, 5), "b": [jnp.ones(5)]}


def layer(params, x):
    hidden = jnp.tanh(x @ params["w"] + params["b"][0])
    return {"hidden": hidden, "loss": (hidden * hidden).sum()}


@pytest.fixture(scope="module")
def lowered(small_target) -> ipuxla.Lowered:
    return ipuxla.jit(layer, target=small_target).lower(PARAMS, X)


@pytest.fixture(scope="module")
def compiled(lowered) -> ipuxla.Compiled:
    return lowered.compile()


# ---- lowered


@pytest.mark.parametrize(
    ("stage", "holds"),
    [
        ("stablehlo", "stablehlo.dot_general"),
        ("hlo", "module @layer entry @main"),
        ("hlo-optimized", "module @layer entry @main"),
        ("graph", "graph layer for"),
        ("program", "executable layer for gc200* (16 tiles)"),
    ],
)
def test_every_stage_has_a_text(lowered, compiled, stage, holds):
    assert holds in lowered.as_text(stage)
    assert compiled.as_text(stage) == lowered.as_text(stage)


def test_stages_show_the_users_lines(lowered):
    place = f"{short(__file__)}:{layer.__code__.co_firstlineno + 1}"
    assert place in lowered.as_text("program")
    assert f'"{__file__}"' in lowered.as_text("stablehlo", debug_info=True)
    assert __file__ not in lowered.as_text("stablehlo")


def test_an_unknown_stage_is_named_with_those_there_are(lowered, compiled):
    for either in (lowered, compiled):
        with pytest.raises(
            UnknownStage, match="stablehlo, sharding, partitioned, hlo, hlo-optimized, graph, plans, program"
        ):
            either.as_text("llo")


def test_types_and_structures(lowered):
    assert str(lowered.in_avals[0][0]["w"]) == "float32[4,5]"
    assert lowered.in_tree == jax.tree.structure(((PARAMS, X), {}))
    assert lowered.out_tree == jax.tree.structure({"hidden": 0, "loss": 0})


def test_shapes_alone_can_be_lowered(small_target, compiled):
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (PARAMS, X))
    from_shapes = ipuxla.jit(layer, target=small_target).lower(*shapes).compile()
    check_close(from_shapes(PARAMS, X), compiled(PARAMS, X))


def test_compile_changes_what_is_given(lowered):
    other = lowered.compile("gc2", engine="literal", arithmetic="ring")
    assert (other.executable.target.name, other.engine, other.arithmetic) == ("gc2", "literal", "ring")
    for wrong, error in (({"engine": "slow"}, InvalidOption), ({"target": "gc3"}, UnknownTarget)):
        with pytest.raises(error):
            lowered.compile(**wrong)


def test_all_engines_agree(lowered):
    want = jax.jit(layer)(PARAMS, X)
    words = lowered.compile(arithmetic="ring")(PARAMS, X)
    for engine in ("fast", "literal", "vertex", "hlo"):
        check_close(lowered.compile(engine=engine)(PARAMS, X), want, engine)
        got = lowered.compile(engine=engine, arithmetic="ring")(PARAMS, X)
        jax.tree.map(np.testing.assert_array_equal, got, words)


# ---- compiled


def test_analyses(compiled):
    costs = compiled.cost_analysis()
    for key in ("flops", "cycles", "seconds", "compute_cycles", "exchange_cycles", "sync_cycles"):
        assert costs[key] >= 0
    assert {"exchange_bytes", "supersteps", "unresolved"} <= costs.keys()
    assert compiled.memory_analysis()["peak_bytes"] > 0
    assert compiled.profile(PARAMS, X).cycles == costs["cycles"]
    assert "certificate of layer" in str(compiled.certify())
    assert "params['w']: float32[4,5]" in repr(compiled)


def test_report_writes_files(compiled, tmp_path):
    paths = compiled.report(tmp_path / "report", PARAMS, X)
    assert all(pathlib.Path(path).stat().st_size for path in paths)


def test_calls_with_the_wrong_arguments_are_named(compiled):
    with pytest.raises(WrongArguments, match=r"argument 0\['w'\]"):
        compiled({**PARAMS, "w": X}, X)
    with pytest.raises(WrongArguments, match="missing: argument 1"):
        compiled.profile(PARAMS)
    with pytest.raises(WrongArguments, match="traced by JAX"):
        jax.grad(lambda x: compiled(PARAMS, x)["loss"])(X)


def test_hlo_has_no_supersteps_to_count(lowered):
    program = lowered.compile(engine="hlo")
    with pytest.raises(Unsupported, match="supersteps"):
        program.profile(PARAMS, X)
    assert program.cost_analysis() == lowered.compile().cost_analysis()


def test_donation_profile_keeps_and_call_consumes(small_target):
    program = ipuxla.jit(lambda s: s + 1, donate_argnums=0, target=small_target).lower(X).compile()
    state = X + 1
    program.profile(state)
    check_close(program(state), X + 2)
    assert state.is_deleted()


def test_a_function_that_closes_over_a_tracer_cannot_be_lowered(small_target):
    with pytest.raises(WrongArguments, match="closes over 1 values"):
        jax.grad(lambda y: ipuxla.jit(lambda x: x * y, target=small_target).lower(X))(1.0)


def test_a_program_that_does_not_fit_is_named_when_called(small_target):
    f = lambda x: x @ x.T  # noqa: E731
    tiny = small_target.replace(num_tiles=1)
    big = jnp.ones((512, 512))
    with pytest.raises(OutOfTileMemory):
        ipuxla.jit(f, target=tiny)(big)
    marked = ipuxla.jit(f, target=tiny, check_memory=False).lower(big).compile()
    assert not marked.executable.fits


# ---- files


def test_the_same_program_gives_the_same_bytes(lowered, compiled, tmp_path):
    compiled.save(tmp_path / "a")
    lowered.compile().save(tmp_path / "b")
    ipuxla.load(tmp_path / "a").save(tmp_path / "c")
    blob = (tmp_path / "a").read_bytes()
    assert blob == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


def test_a_loaded_program_runs_as_before(compiled, tmp_path):
    compiled.save(tmp_path / "program")
    loaded = ipuxla.load(tmp_path / "program")
    jax.tree.map(np.testing.assert_array_equal, loaded(PARAMS, X), compiled(PARAMS, X))
    assert loaded.as_text() == compiled.as_text("program")
    with pytest.raises(UnknownStage, match="expected: plans, program"):
        loaded.as_text("hlo")
    with pytest.raises(Unsupported, match="does not hold"):
        ipuxla.load(tmp_path / "program", engine="hlo")
    assert ipuxla.load(tmp_path / "program", arithmetic="ring")(PARAMS, X)["loss"].dtype == np.uint32


def test_keys_and_donation_survive_a_file(small_target, tmp_path):
    @ipuxla.jit(target=small_target, donate_argnums=1)
    def step(key, x):
        return key, x + 1

    step.lower(jax.random.key(1), X).compile().save(tmp_path / "program")
    loaded = ipuxla.load(tmp_path / "program")
    x = X + 1
    key, result = loaded(jax.random.key(1), x)
    assert (jax.random.key_data(key) == jax.random.key_data(jax.random.key(1))).all()
    check_close(result, X + 2)
    assert x.is_deleted()


def test_a_structure_of_the_users_own_is_flat_in_a_file(small_target, tmp_path):
    point = collections.namedtuple("Point", "x y")
    program = ipuxla.jit(lambda p: point(p.x + p.y, p.x), target=small_target).lower(point(X, X)).compile()
    program.save(tmp_path / "program")
    with pytest.warns(UserWarning, match=r"holds a type that a file cannot \(Point\)"):
        loaded = ipuxla.load(tmp_path / "program")
    check_close(loaded(X, X), (X + X, X))
    with pytest.raises(WrongArguments, match=r"jax\.tree\.leaves"):
        loaded(point(X, X))


def edited(blob: bytes, old: bytes, new: bytes) -> bytes:
    """Return a saved program with one change, sealed again."""
    data = opened(runtime._MAGIC, blob)
    assert data.count(old) >= 1
    return sealed(runtime._MAGIC, data.replace(old, new, 1))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda blob: b"something else", "no saved program"),
        (lambda blob: blob[:40], "damaged"),
        (lambda blob: edited(blob, b'"format":2', b'"format":9'), "another version"),
        (lambda blob: edited(blob, b'"engine"', b'"ENGINE"'), "lacks or adds ENGINE, engine"),
        (lambda blob: edited(blob, b'"shape":[4,5]', b'"shape":[5,4]'), "inputs are not"),
        (lambda blob: blob[:-30], "damaged"),
    ],
    ids=["other file", "cut header", "version", "field", "signature", "cut body"],
)
def test_a_damaged_file_is_refused(compiled, tmp_path, edit, said):
    path = tmp_path / "program"
    compiled.save(path)
    path.write_bytes(edit(path.read_bytes()))
    with pytest.raises(InvalidExecutable, match=said):
        ipuxla.load(path)


def test_a_file_that_donates_another_argument_is_refused(tmp_path, small_target):
    """Its caller's array would be gone, and the one whose memory is taken over would seem to stay."""
    path = tmp_path / "program"
    x = np.ones(4, np.float32)
    ipuxla.jit(lambda x, y: (x + 1, y * 2), target=small_target, donate_argnums=0).lower(x, x).compile().save(
        path
    )
    ipuxla.load(path)
    path.write_bytes(edited(path.read_bytes(), b'"donated":[0]', b'"donated":[1]'))
    with pytest.raises(InvalidExecutable, match="donated arguments are not"):
        ipuxla.load(path)


FRESH = """
    import json, pickle, sys

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            for package in ("ipuxla.frontend", "ipuxla.lowering", "hlo_passes"):
                if name == package or name.startswith(package + "."):
                    raise ImportError(name + " is not here")

    sys.meta_path.insert(0, Refuse())
    import jax
    import numpy as np
    import ipuxla

    path, arguments = sys.argv[1:]
    with open(arguments, "rb") as file:
        arguments = pickle.load(file)
    found = {}
    for engine in ("fast", "literal"):
        for arithmetic in ("float", "ring"):
            program = ipuxla.load(path, engine=engine, arithmetic=arithmetic)
            result = program(*arguments)
            words = {name: np.asarray(x).tobytes().hex() for name, x in result.items()}
            found[engine + " " + arithmetic] = words
    found["profile"] = ipuxla.load(path).profile(*arguments).to_json()
    try:
        ipuxla.jit
    except ImportError as error:
        found["refused"] = str(error)
    print(json.dumps(found))
"""


def test_results_come_from_the_executable_alone(compiled, lowered, tmp_path):
    compiled.save(tmp_path / "program")
    arguments = jax.tree.map(np.asarray, (PARAMS, X))
    (tmp_path / "arguments").write_bytes(pickle.dumps(arguments))
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(FRESH),
        str(tmp_path / "program"),
        str(tmp_path / "arguments"),
    ]
    root = pathlib.Path(ipuxla.__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "is not here" in found.pop("refused")
    assert found.pop("profile") == compiled.profile(*arguments).to_json()
    for choice, result in found.items():
        engine, arithmetic = choice.split()
        here = lowered.compile(engine=engine, arithmetic=arithmetic)(*arguments)
        assert result == {name: np.asarray(x).tobytes().hex() for name, x in here.items()}, choice
