"""For your own tests: one function on every engine, on machines that hypothesis draws.

    @hypothesis.given(target=ipuxla.testing.targets(max_tiles=8), rows=st.integers(0, 40))
    def test_my_layer(target, rows):
        ipuxla.testing.check_engines(my_layer, target, jnp.ones((rows, 16)))

Needs hypothesis: ``pip install 'ipuxla[testing]'``.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

from collections.abc import Sequence

import jax
from hypothesis import strategies as st

from ipuxla._jax_compat import Function, Tree
from ipuxla.api import jit
from ipuxla.runtime import Compiled
from tiles.numerics.tolerance import NotClose, check_close
from tiles.target import Target, known_names

__all__ = ["ENGINES", "NotClose", "check_close", "check_engines", "targets"]

ENGINES = ("fast", "literal", "vertex")


def check_engines(
    function: Function,
    target: str | Target,
    *args: Tree,
    engines: Sequence[str] = ENGINES,
    floats: Sequence[str] = ENGINES,
) -> Compiled:
    """Check what a function computes on a machine, on several engines and in both arithmetics.

    With floats every engine must be as close to ``jax.jit`` as ``check_close`` asks; in the ring it must give
    every bit that the optimized module gives, evaluated op by op. The executable is proved anew.

    Args:
      function: what ``jax.jit`` and ``ipuxla.jit`` could compile, of the positional arguments ``args``.
      target: the machine: a name, the path of a data file, or a ``Target``; a few tiles are enough for every
        kind of split, and the engines with tile memory take their time on a thousand.
      *args: pytrees of arrays.
      engines: those that run in the ring.
      floats: those of ``engines`` that also run with floats.

    Returns:
      The compiled program, for further questions (cycles, memory).

    Raises:
      NotClose: a result differs; names the engine, the result, how many elements, and the first of them.
    """
    want: Tree = jax.jit(function)(*args)
    lowered = jit(function, target=target).lower(*args)
    compiled = lowered.compile()
    compiled.certify()
    witness = lowered.compile(engine="hlo", arithmetic="ring")(*args)
    for engine in engines:
        if engine in floats:
            check_close(lowered.compile(engine=engine)(*args), want, f"engine {engine}")
        words = lowered.compile(engine=engine, arithmetic="ring")(*args)
        check_close(words, witness, f"engine {engine}, ring arithmetic")
    return compiled


def _with_tiles(name: str, num_tiles: int) -> Target:
    return Target.named(name).replace(num_tiles=num_tiles)


def targets(
    names: Sequence[str] | None = None, *, min_tiles: int = 1, max_tiles: int = 64
) -> st.SearchStrategy[Target]:
    """Return a hypothesis strategy for machines: known ones with fewer tiles. It shrinks to one tile.

    Args:
      names: of the targets to draw from; None: all.
      min_tiles: at least so many tiles.
      max_tiles: at most so many tiles.
    """
    return st.builds(
        _with_tiles,
        st.sampled_from(tuple(names or known_names())),
        st.integers(min_tiles, max_tiles),
    )
