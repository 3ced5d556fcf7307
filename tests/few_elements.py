"""Programs of many operations on few numbers, as people write them: simulations, filters, solvers, samplers, keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax


class Few(NamedTuple):
    """A program and what it is called with."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def _cart_pole(state: Array, actions: Array) -> Any:
    def step(s: Array, action: Array) -> tuple[Array, Array]:
        x, v, angle, w = s[0], s[1], s[2], s[3]
        force = jnp.where(action == 1, 10.0, -10.0)
        cosine, sine = jnp.cos(angle), jnp.sin(angle)
        push = (force + 0.05 * w**2 * sine) / 1.1
        turning = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        moving = push - 0.05 * turning * cosine / 1.1
        new = jnp.array([x + 0.02 * v, v + 0.02 * moving, angle + 0.02 * w, w + 0.02 * turning])
        done = (jnp.abs(new[0]) > 2.4) | (jnp.abs(new[2]) > 0.2095)
        return jnp.where(done, jnp.zeros(4), new), 1.0 - done

    return lax.scan(step, state, actions)


def _kalman(x: Array, p: Array, f: Array, h: Array, q: Array, r: Array, measured: Array) -> Any:
    def step(state: Any, z: Array) -> Any:
        x, p = state
        x, p = f @ x, f @ p @ f.T + q
        s = h @ p @ h.T + r
        determinant = s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]
        inverse = jnp.array([[s[1, 1], -s[0, 1]], [-s[1, 0], s[0, 0]]]) / determinant
        gain = p @ h.T @ inverse
        x, p = x + gain @ (z - h @ x), (jnp.eye(4) - gain @ h) @ p
        return (x, p), x

    return lax.scan(step, (x, p), measured)


def _lorenz(start: Array) -> Any:
    def slope(y: Array) -> Array:
        return jnp.array([10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])

    def step(y: Array, _: None) -> tuple[Array, Array]:
        h = 0.01
        first = slope(y)
        second = slope(y + h / 2 * first)
        third = slope(y + h / 2 * second)
        fourth = slope(y + h * third)
        y = y + h / 6 * (first + 2 * second + 2 * third + fourth)
        return y, y

    return lax.scan(step, start, None, length=100)


def _metropolis(key: Array, start: Array) -> Any:
    def density(x: Array) -> Array:
        return -0.5 * jnp.sum(x**2) - 0.1 * x[0] ** 4

    def step(state: Any, key: Array) -> Any:
        x, before = state
        proposing, accepting = jax.random.split(key)
        y = x + 0.5 * jax.random.normal(proposing, (3,))
        after = density(y)
        taken = jnp.log(jax.random.uniform(accepting)) < after - before
        return (jnp.where(taken, y, x), jnp.where(taken, after, before)), taken

    return lax.scan(step, (start, density(start)), jax.random.split(key, 20))


def _adam(params: Any, grads: Any, means: Any, squares: Any, count: Array) -> Any:
    count = count + 1
    t = count.astype(jnp.float32)
    rate = 1e-3 * jnp.minimum(1.0, t / 100) * 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(t, 1000.0) / 1000))
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, grads)
    squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, grads)
    first, second = 1 - 0.9**t, 1 - 0.999**t
    new = jax.tree.map(
        lambda p, m, v: p - rate * (m / first) / (jnp.sqrt(v / second) + 1e-8), params, means, squares
    )
    return new, means, squares, count


def _controller(state: Any, wanted: Array) -> Any:
    def step(s: Any, w: Array) -> Any:
        place, speed, total, last = s
        error = w - place
        total = jnp.clip(total + error * 0.01, -1.0, 1.0)
        force = jnp.clip(2.0 * error + 0.5 * total + 0.1 * (error - last) / 0.01, -5.0, 5.0)
        speed = speed + 0.01 * (force - 0.3 * speed)
        place = place + 0.01 * speed
        return (place, speed, total, error), (place, force)

    return lax.scan(step, state, wanted)


def _bandit(key: Array, means: Array) -> Any:
    def step(state: Any, key: Array) -> Any:
        value, count, total = state
        exploring, choosing, paying = jax.random.split(key, 3)
        random_arm = jax.random.randint(choosing, (), 0, 4)
        arm = jnp.where(jax.random.uniform(exploring) < 0.1, random_arm, jnp.argmax(value))
        reward = means[arm] + jax.random.normal(paying)
        count = count.at[arm].add(1)
        value = value.at[arm].add((reward - value[arm]) / count[arm])
        return (value, count, total + reward), arm

    return lax.scan(step, (jnp.zeros(4), jnp.zeros(4), 0.0), jax.random.split(key, 20))


def _quaternion(start: Array, rates: Array) -> Any:
    def product(a: Array, b: Array) -> Array:
        w1, x1, y1, z1 = a
        w2, x2, y2, z2 = b
        return jnp.stack(
            [
                w1 * w2 - x1 * x2 - y1 * y2 - z1 * z2,
                w1 * x2 + x1 * w2 + y1 * z2 - z1 * y2,
                w1 * y2 - x1 * z2 + y1 * w2 + z1 * x2,
                w1 * z2 + x1 * y2 - y1 * x2 + z1 * w2,
            ]
        )

    def step(q: Array, rate: Array) -> tuple[Array, Array]:
        q = q + 0.005 * product(q, jnp.concatenate([jnp.zeros(1), rate]))
        q = q / jnp.linalg.norm(q)
        return q, q

    return lax.scan(step, start, rates)


def _newton(start: Array) -> Any:
    def f(x: Array) -> Array:
        return jnp.array([x[0] ** 2 + x[1] ** 2 - 4.0, jnp.exp(x[0]) + x[1] - 1.0])

    def step(_: Any, x: Array) -> Array:
        j, rest = jax.jacfwd(f)(x), f(x)
        determinant = j[0, 0] * j[1, 1] - j[0, 1] * j[1, 0]
        moved = [j[1, 1] * rest[0] - j[0, 1] * rest[1], j[0, 0] * rest[1] - j[1, 0] * rest[0]]
        return x - jnp.array(moved) / determinant

    return lax.fori_loop(0, 10, step, start)


def _counters(start: Array) -> Any:
    def step(_: Any, state: Any) -> Any:
        i, a, b = state
        return i + 1, jnp.where(i % 3 == 0, a + i // 3, a), b ^ (i * 7 % 5)

    return lax.fori_loop(0, 50, step, (start, jnp.int32(0), jnp.int32(1)))


def programs() -> dict[str, Few]:
    """Return the programs by name, with arguments that are the same at every call."""
    rng = np.random.default_rng(0)
    key = np.array([0, 42], np.uint32)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def eye(*shape: int) -> np.ndarray:
        return np.eye(*shape, dtype=np.float32)

    moving = eye(4)
    moving[0, 2] = moving[1, 3] = 0.1
    leaves = [{"a": draw(64, 64), "b": draw(64)} for _ in range(4)]
    leaves[3] = {name: abs(leaf) for name, leaf in leaves[3].items()}
    filtered = (draw(4), eye(4), moving, eye(2, 4), 0.01 * eye(4), 0.1 * eye(2), draw(20, 2))
    upright = np.array([1, 0, 0, 0], np.float32)
    return {
        "splitting a key": Few(jax.random.split, (key,)),
        "three normals": Few(lambda key: jax.random.normal(key, (3,)), (key,)),
        "cart pole": Few(_cart_pole, (0.01 * draw(4), rng.integers(0, 2, 50).astype(np.int32))),
        "Kalman filter of four states": Few(_kalman, filtered),
        "Lorenz system, Runge-Kutta": Few(_lorenz, (np.ones(3, np.float32),)),
        "Metropolis sampler": Few(_metropolis, (key, draw(3))),
        "Adam with a schedule": Few(_adam, (*leaves, np.int32(5))),
        "controller": Few(_controller, (tuple(np.float32(0) for _ in range(4)), draw(50))),
        "bandit": Few(_bandit, (key, draw(4))),
        "quaternions": Few(_quaternion, (upright, draw(50, 3))),
        "Newton's method for two unknowns": Few(_newton, (np.array([1.0, -1.5], np.float32),)),
        "counters": Few(_counters, (np.int32(0),)),
    }
