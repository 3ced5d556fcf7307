"""Programs compiled and run by several threads, or interrupted at random moments: what comes of it in the end.

``python -m tests.interrupted SEED COUNT`` interrupts compilations and runs ``COUNT`` times, then does both once more in
peace and prints a digest for each program. It is a process of its own: an interruption may strike anywhere, also where
Python can only report it.
"""

from __future__ import annotations

import hashlib
import random
import signal
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ipuxla
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=64)
LONGEST_S = 0.3
"""Of processor time, from the start of a compilation or run to its interruption."""


def perceptron(x: jax.Array, w: jax.Array, n: jax.Array) -> Any:
    return jax.nn.softmax(jnp.tanh(x @ w) @ w.T).sum(0) + n, (x @ w).max(1)


def convolution(x: jax.Array, w: jax.Array, n: jax.Array) -> Any:
    kernel = w[:3, :3, None, None] * jnp.ones((3, 3, 2, 4))
    numbers = ("NHWC", "HWIO", "NHWC")
    image = x.reshape(4, 16, 16, 2)
    return (
        jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=numbers).sum((1, 2)) + n
    )


def looping(x: jax.Array, w: jax.Array, n: jax.Array) -> Any:
    return jax.lax.while_loop(
        lambda c: c[1] < n, lambda c: (jnp.sin(c[0]) @ w @ w.T + x.sum(0), c[1] + 1), (x, 0)
    )


PROGRAMS = (perceptron, convolution, looping)


def arguments(seed: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(seed)
    x, w = (jnp.asarray(rng.normal(size=shape).astype(np.float32)) for shape in ((64, 32), (32, 48)))
    return x, w, jnp.int32(seed % 5)


def compiled(number: int, engine: str = "literal") -> ipuxla.Compiled:
    """Return a program compiled anew: JAX and ipuxla know its function for the first time."""
    program = PROGRAMS[number]
    function = ipuxla.jit(lambda *args: program(*args), target=TARGET, engine=engine)
    return function.lower(*arguments(0)).compile()


def digest(program: ipuxla.Compiled) -> str:
    return hashlib.sha256(program.executable.to_bytes()).hexdigest()


def results(program: ipuxla.Compiled, seed: int) -> str:
    words = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(program(*arguments(seed))))
    return hashlib.sha256(words).hexdigest()


def main(seed: int, count: int) -> None:
    """Interrupt what is done ``count`` times, then print digests of programs and of results."""
    rng = random.Random(seed)
    kept = [compiled(number) for number in range(len(PROGRAMS))]
    signal.signal(signal.SIGVTALRM, signal.default_int_handler)
    interrupted = 0
    while interrupted < count:
        number = rng.randrange(len(PROGRAMS))
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, rng.uniform(0.001, LONGEST_S))
            if rng.random() < 0.5:
                compiled(number)
            else:
                results(kept[number], rng.randrange(8))
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
    for number, program in enumerate(kept):
        print(digest(compiled(number)), results(program, 3))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
