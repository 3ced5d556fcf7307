"""What branches leave lies in the operand that one of them leaves as it is, where nobody needs its old value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.testing import check_engines

GC200 = ipuxla.Target.named("gc200")
SMALL = GC200.replace(num_tiles=6)
RNG = np.random.default_rng(11)
X, Y = (RNG.standard_normal((12, 8)).astype(np.float32) for _ in range(2))
YES = np.array([True, False, False, True, True])


def adam(p, m, v, g):
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def skipped(p, m, v, g, is_finite):
    return lax.cond(is_finite, lambda a: adam(*a, g), lambda a: a, (p, m, v))


def rows(x, y, yes):
    def trip(i, c):
        return lax.cond(yes[i], lambda c: c.at[i].set(y[i]), lambda c: c, c)

    return lax.fori_loop(0, len(yes), trip, x)


CASES = {
    "rows of a loop": rows,
    "what is read afterwards": lambda x, y, yes: (
        lax.cond(yes[0], lambda x: x * 2, lambda x: x, x * y) + x * y
    ),
    "the operand too": lambda x, y, yes: (lax.cond(yes[1], lambda x: x * 2, lambda x: x, x), x),
    "exchanged": lambda x, y, yes: lax.cond(yes[0], lambda a: (a[1], a[0]), lambda a: a, (x + 1, y + 1)),
    "turned round": lambda x, y, yes: lax.cond(
        yes[0], lambda a: (a[1], a[2], a[0]), lambda a: (a[0], a[1], a[1]), (x + 1, y + 1, x * y)
    ),
    "the same in every trip": lambda x, y, yes: lax.fori_loop(
        0, 5, lambda i, c: c + lax.cond(yes[i], lambda x: x * 2, lambda x: x, x + 1), y
    ),
    "of a loop's outside": lambda x, y, yes: (
        lambda z: (
            lax.fori_loop(0, 5, lambda i, c: lax.cond(yes[i], lambda z: z * 2 + c, lambda z: z, z), y) + z
        )
    )(jnp.exp(x)),
    "carried and chosen": lambda x, y, yes: lax.scan(
        lambda c, t: (lax.cond(t, lambda c: jnp.sin(c) + y, lambda c: c, c), c.sum()), x, yes
    ),
    "carried elsewhere": lambda x, y, yes: lax.fori_loop(
        0,
        5,
        lambda i, c: (lax.cond(yes[i], lambda a: a * 2, lambda a: a, c[0]) + c[1], c[0]),
        (x, y),
    ),
    "one in another": lambda x, y, yes: lax.cond(
        yes[0], lambda x: lax.cond(yes[1], lambda x: x + 1, lambda x: x, x), lambda x: x, x * 3
    ),
    "several branches": lambda x, y, yes: lax.switch(
        yes.sum(), [lambda x: x, lambda x: x * 2, lambda x: x + y, lambda x: x], x - y
    ),
    "of two operands": lambda x, y, yes: lax.cond(yes[0], lambda a, b: a, lambda a, b: b, x + 1, y + 1),
    "while a condition reads it": lambda x, y, yes: lax.while_loop(
        lambda c: c[0].sum() < 50,
        lambda c: (lax.cond(c[1] % 2 == 0, lambda a: a + jnp.abs(y), lambda a: a, c[0]), c[1] + 1),
        (jnp.abs(x), 0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_on_all_engines(name):
    function = CASES[name]
    check_engines(function, SMALL, X, Y, YES)
    for flipped in (YES, ~YES):
        compiled = ipuxla.jit(function, target=SMALL).lower(X, Y, flipped).compile()
        compiled.certify()
        want = jax.jit(function)(X, Y, flipped)
        for got, expected in zip(
            jax.tree.leaves(compiled(X, Y, flipped)), jax.tree.leaves(want), strict=True
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_step_that_may_be_skipped_holds_its_state_once():
    shape = jax.ShapeDtypeStruct((31250, 256), "float32")
    flag = jax.ShapeDtypeStruct((), "bool")
    always = ipuxla.jit(lambda p, m, v, g, flag: adam(p, m, v, g), target=GC200, donate_argnums=(0, 1, 2))
    maybe = ipuxla.jit(skipped, target=GC200, donate_argnums=(0, 1, 2))
    peaks = [
        f.lower(shape, shape, shape, shape, flag).compile().memory_analysis()["peak_bytes"]
        for f in (always, maybe)
    ]
    assert peaks[1] <= 1.05 * peaks[0]


def test_rows_that_are_written_where_a_condition_says_so_move_nothing_else():
    shapes = [
        jax.ShapeDtypeStruct(s, d)
        for s, d in (((1024, 512), "float32"), ((5, 512), "float32"), ((5,), "bool"))
    ]
    whole = ipuxla.jit(rows, target=GC200).lower(*shapes).compile()
    cost = whole.cost_analysis()
    trip = cost["cycles_bounds"][1] / 5
    assert trip < 5_000  # a copy of the array takes as long
