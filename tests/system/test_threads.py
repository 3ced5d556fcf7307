"""Threads, interruptions and other processes change neither programs nor results."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla.errors import Unsupported
from ipuxla.frontend.importer import import_stablehlo
from tests import caches, interrupted
from tests.interrupted import PROGRAMS, compiled, digest, results
from tests.unit.tiles.test_remote_buffers import accumulating
from tiles.compiler import compile_graph
from tiles.engine import make_engine
from tiles.target import Target

THREADS = 8


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """Return what ``work`` returns in as many threads."""
    found: list[Any] = [None] * count
    ready = threading.Barrier(count)

    def run(number: int) -> None:
        ready.wait()
        found[number] = work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("engine", ["fast", "literal", "vertex"])
def test_calls_of_one_program_from_several_threads(engine, hurried):
    program = compiled(PROGRAMS.index(interrupted.looping), engine)
    wanted = [results(program, seed) for seed in range(4)]
    found = at_once(lambda number: [results(program, (number + k) % 4) for k in range(3)])
    assert found == [[wanted[(number + k) % 4] for k in range(3)] for number in range(THREADS)]


@pytest.mark.parametrize("engine", ["fast", "literal"])
def test_no_run_of_a_machine_with_remote_buffers_is_lost(engine, hurried):
    executable = compile_graph(accumulating(Target.named("gc200").replace(num_tiles=16)))
    inputs = [np.ones(v.shape, v.dtype) for v in map(executable.variables.get, executable.inputs)]
    alone, shared = make_engine(executable, engine), make_engine(executable, engine)
    for _ in range(2 * THREADS):
        alone.run(*inputs)
    at_once(lambda _: [shared.run(*inputs) and None for _ in range(2)])
    for name in executable.remote_buffers:
        rows = alone.copy_from_remote_buffer(name)
        assert rows.any()
        np.testing.assert_array_equal(shared.copy_from_remote_buffer(name), rows)


def test_programs_compiled_by_several_threads_at_once(hurried):
    wanted = [digest(compiled(number)) for number in range(len(PROGRAMS))]
    caches.clear()
    order = [(*range(k % 3, 3), *range(k % 3)) for k in range(THREADS)]
    found = at_once(lambda number: {k: digest(compiled(k)) for k in order[number]})
    assert found == [dict(enumerate(wanted))] * THREADS


def interrupt(seed: int, count: int) -> list[list[str]]:
    command = [sys.executable, "-m", "tests.interrupted", str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("seed", [0, pytest.param(1, id="often")])
def test_interruptions_at_random_moments(seed):
    quiet = [compiled(number) for number in range(len(PROGRAMS))]
    found = interrupt(seed, count=100 if seed else 8)
    assert found == [[digest(program), results(program, 3)] for program in quiet]


def test_an_interruption_while_a_module_is_read_stays_one():
    """At every call of a function that reads: MLIR makes an error about the module of what its callbacks raise."""
    text = jax.jit(lambda x: jax.nn.softmax(x @ x.T)).lower(np.ones((3, 3), np.float32)).as_text()
    left = 0

    def strike(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        del argument
        left -= event == "call" and "_jax_compat" in frame.f_code.co_filename
        if not left:
            sys.setprofile(None)
            raise KeyboardInterrupt

    for number in range(1, 1000):
        left = number
        sys.setprofile(strike)
        try:
            import_stablehlo(text)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
    assert 20 < number < 999


# ---- other processes


def run_elsewhere(blob: bytes, seed: int) -> str:
    return results(pickle.loads(blob), seed)


def test_compiled_programs_pickle():
    program = compiled(0, "fast")
    again = pickle.loads(pickle.dumps(program))
    assert (again.engine, again.arithmetic, again.signature) == ("fast", "float", program.signature)
    assert digest(again) == digest(program)
    assert results(again, 1) == results(program, 1)


def test_compiled_programs_work_in_spawned_processes():
    program = compiled(0, "fast")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(run_elsewhere, (pickle.dumps(program), 2)) == results(program, 2)


def test_a_program_without_a_saved_form_does_not_pickle():
    program = ipuxla.jit(jnp.sin, engine="hlo").lower(jax.ShapeDtypeStruct((4,), jnp.float32)).compile()
    with pytest.raises(Unsupported, match='engine "hlo"'):
        pickle.dumps(program)


def test_values_with_a_kept_hash_pickle_without_it():
    target = Target.named("bow")
    hash(target)
    assert "_hash" not in target.__getstate__()
    again = pickle.loads(pickle.dumps(target))
    assert again == target and hash(again) == hash(target)
