"""Executables as files: the same bytes from every process, and in a process without a compiler the same results.

A fresh process here refuses to import the frontend, the lowering and the HLO passes, as ``ipuxla.load``'s tests do for
whole programs; this is the executable itself, with the engines, the trace and the report.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import pickle
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest

from tests.flow import executable_of, optimized_module
from tests.small_models import MODELS, TYPED
from tiles.compiler import Executable, certify, load_executable
from tiles.engine import make_engine
from tiles.report import profile

ROOT = pathlib.Path(__file__).parents[2]
CHOICES = [("fast", "float"), ("fast", "ring"), ("literal", "float"), ("literal", "ring")]

WITHOUT_A_COMPILER = """
    import json, pickle, sys

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            for package in ("ipuxla", "hlo_passes"):
                if name == package or name.startswith(package + "."):
                    raise ImportError(name + " is not here")

    sys.meta_path.insert(0, Refuse())
    import jax
    import numpy as np
    from tiles.compiler import load_executable
    from tiles.engine import make_engine
    from tiles.report import profile, write_report

    path, arguments, folder, choices = sys.argv[1:]
    with open(path, "rb") as file:
        executable = load_executable(file.read())
    with open(arguments, "rb") as file:
        arguments = pickle.load(file)
    found = {}
    for engine, arithmetic in json.loads(choices):
        outputs, trace = make_engine(executable, engine, arithmetic).run(*arguments)
        words = [[str(x.dtype), list(x.shape), np.asarray(x).tobytes().hex()] for x in outputs]
        found[engine + " " + arithmetic] = [words, list(trace.counts)]
    write_report(executable, trace, folder)
    loaded = sorted(m for m in sys.modules if m.split(".")[0] in ("ipuxla", "hlo_passes"))
    print(json.dumps({"found": found, "loaded": loaded}))
"""


def python(code: str, *arguments: str, hash_seed: str = "random") -> str:
    """Run code in a fresh process and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def flat(name: str) -> list[np.ndarray]:
    """Return a model's arguments as arrays, in the order the module takes them."""
    return [np.asarray(x) for x in jax.tree.leaves((MODELS | TYPED)[name].arguments)]


@pytest.fixture(scope="module")
def step(small_target) -> Executable:
    """An Adam step, of float32 vectors, scalars and their sums."""
    model = MODELS["adam"]
    tree = jax.tree.structure(model.arguments)
    module = optimized_module(
        lambda *xs: jax.tree.leaves(model.function(*jax.tree.unflatten(tree, xs))), flat("adam")
    )
    return executable_of(module, small_target)


def test_a_loaded_executable_is_the_same_in_a_process_without_a_compiler(step, tmp_path):
    (tmp_path / "step").write_bytes(step.to_bytes())
    (tmp_path / "arguments").write_bytes(pickle.dumps(flat("adam")))
    paths = [str(tmp_path / name) for name in ("step", "arguments", "report")]
    there = json.loads(python(WITHOUT_A_COMPILER, *paths, json.dumps(CHOICES)))
    assert there["loaded"] == []
    for engine, arithmetic in CHOICES:
        outputs, trace = make_engine(step, engine, arithmetic).run(*flat("adam"))
        words, counts = there["found"][f"{engine} {arithmetic}"]
        here = [[str(x.dtype), list(x.shape), np.asarray(x).tobytes().hex()] for x in outputs]
        assert words == here, (engine, arithmetic)
        assert tuple(counts) == trace.counts
    assert (tmp_path / "report" / "profile.json").read_text() == profile(step, trace).to_json()
    assert (tmp_path / "report" / "summary.txt").read_text() == profile(step, trace).text()


def test_loading_and_saving_again_gives_the_same_bytes(step):
    blob = step.to_bytes()
    again = load_executable(blob)
    assert again.to_bytes() == blob
    assert again.text() == step.text()
    certify(again)


COMPILE = """
    import hashlib, random, sys

    import jax

    jax.config.update("jax_enable_x64", sys.argv[2] == "True")
    from tests.small_models import MODELS, TYPED
    import ipuxla

    model = (MODELS | TYPED)[sys.argv[1]]
    compiled = ipuxla.jit(model.function, target=sys.argv[3]).lower(*model.arguments).compile()
    compiled.save(sys.argv[4])
    print(hashlib.sha256(compiled.executable.to_bytes()).hexdigest())
    print(hashlib.sha256(compiled.profile(*model.arguments).to_json().encode()).hexdigest())
"""


@pytest.mark.parametrize(("name", "machine"), [("feed_forward", "gc200"), ("int64", "gc2")])
def test_every_process_compiles_the_same_bytes(name, machine, tmp_path):
    wide = str((MODELS | TYPED)[name].wide)
    runs = [
        python(COMPILE, name, wide, machine, str(tmp_path / seed), hash_seed=seed) for seed in ("1", "29")
    ]
    assert runs[0] == runs[1]
    files = [hashlib.sha256((tmp_path / seed).read_bytes()).hexdigest() for seed in ("1", "29")]
    assert files[0] == files[1]
