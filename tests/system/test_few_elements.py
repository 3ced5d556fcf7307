"""Programs on few numbers: a chain of small operations is a few steps that exchange nothing, and gives what JAX does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla.testing import check_engines
from tests.few_elements import programs
from tiles.numerics.tolerance import check_close

PROGRAMS = programs()
STEPS = {
    "splitting a key": 1,
    "three normals": 1,
    "cart pole": 3 * 50 + 2,
    "Kalman filter of four states": 14 * 20 + 2,
    "Lorenz system, Runge-Kutta": 3 * 100 + 2,
    "Metropolis sampler": 6 * 20 + 3,
    "Adam with a schedule": 3,
    "controller": 4 * 50 + 2,
    "bandit": 9 * 20 + 2,
    "quaternions": 7 * 50 + 2,
    "Newton's method for two unknowns": 2 * 10 + 1,
    "counters": 2 * 50 + 2,
}
"""The most that each may take; 43, 4, 452, 342, 2,302, 1,143, 4, 452, 4,623, 602, 121 and 102 where nothing is taken apart."""
LOCAL = [
    *("splitting a key", "three normals", "Lorenz system, Runge-Kutta", "controller", "quaternions"),
    "Newton's method for two unknowns",
]


@pytest.fixture(scope="module", params=PROGRAMS)
def lowered(request):
    """Return a program's name, the program, and what it is lowered to."""
    function, arguments = PROGRAMS[request.param]
    return request.param, PROGRAMS[request.param], ipuxla.jit(function).lower(*arguments)


def test_few_steps_and_nothing_exchanged_where_one_tile_has_all(lowered) -> None:
    name, _, program = lowered
    costs = program.compile().cost_analysis()
    assert costs["supersteps"] <= STEPS[name]
    if name in LOCAL:
        assert costs["exchange_bytes"] == costs["sync_cycles"] == 0


@pytest.mark.parametrize("engine", ["fast", "tile"])
def test_values_are_those_of_jax(lowered, engine) -> None:
    name, few, program = lowered
    check_close(program.compile(engine=engine)(*few.arguments), jax.jit(few.function)(*few.arguments), name)


@pytest.mark.parametrize("name", ["splitting a key", "Newton's method for two unknowns"])
def test_engines_agree_in_the_ring_and_the_executable_is_proved(name, small_target) -> None:
    few = PROGRAMS[name]
    check_engines(few.function, small_target, *few.arguments, floats=("fast",))


def test_keys_are_split_as_by_threefry_written_down_in_numpy() -> None:
    key = np.array([7, 42], np.uint32)
    found = np.asarray(ipuxla.jit(jax.random.split)(key))
    np.testing.assert_array_equal(
        found, np.stack(_threefry(key, np.zeros(2, np.uint32), np.arange(2)), axis=1)
    )


def _threefry(key: np.ndarray, high: np.ndarray, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return 20 rounds of Threefry of two words. Source: Salmon et al., 2011."""
    keys = [*map(int, key), int(key[0] ^ key[1] ^ 0x1BD11BDA)]
    rotations = [(13, 15, 26, 6), (17, 29, 16, 24)]
    x, y = (high.astype(np.uint64) + keys[0]) % 2**32, (low.astype(np.uint64) + keys[1]) % 2**32
    for turn in range(5):
        for rotation in rotations[turn % 2]:
            x = (x + y) % 2**32
            y = ((y << np.uint64(rotation)) | (y >> np.uint64(32 - rotation))) % 2**32 ^ x
        x = (x + keys[(turn + 1) % 3]) % 2**32
        y = (y + keys[(turn + 2) % 3] + turn + 1) % 2**32
    return x.astype(np.uint32), y.astype(np.uint32)


def test_what_takes_long_is_not_computed_twice() -> None:
    def twice(x, y):
        s = jnp.sin(x) * y
        return s + 1, s * x, jnp.stack([s, s - y])

    x = np.float32(0.5)
    text = ipuxla.jit(twice).lower(x, x).as_text("hlo-optimized")
    assert text.count("stablehlo.sine") == 1
