"""Loops and branches of decorated functions on 16 tiles: every engine, floats and the ring, against JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.errors import Unsupported
from ipuxla.testing import check_engines
from tiles.numerics.tolerance import check_close

ENGINES = ("hlo", "fast", "literal", "vertex")
X = jnp.linspace(0.1, 1.0, 20)


def swaps(x, n):
    return lax.while_loop(
        lambda s: s[0] < n, lambda s: (s[0] + 1, s[2], s[1] + x, s[4], s[3]), (0, x, x * 2, n, n * 2)
    )


def i32(value):
    return jnp.int32(value)


def nests(x, n):
    def body(i, c):
        c = lax.fori_loop(0, 3, lambda j, d: d * 0.5 + x, c)
        return lax.cond(i % 2 == 0, lambda v: v + 1, lambda v: lax.fori_loop(0, i, lambda j, d: d * x, v), c)

    return lax.fori_loop(0, n, body, x)


def switches(x, n):
    """Operands as results, swapped or not, beside computed ones; a rotation of three."""
    x, y, z = lax.fori_loop(0, n, lambda i, s: (s[1], s[2], s[0]), (x, x * 2, x[::-1]))
    y, z = lax.cond(n > 1, lambda a, b: (a, b), lambda a, b: (b, a + b), y, z)
    branches = [lambda u, v: (u, v), lambda u, v: (v, u), lambda u, v: (u @ v * u, jnp.exp(v))]
    return x, lax.switch(n, branches, y, z)


def carries_a_predicate(x, n):
    return lax.while_loop(lambda s: s[1], lambda s: (s[0] * 2, s[2] < n, s[2] + 1), (x, True, i32(0)))


def depends_on_floats(x, n):
    def body(i, c):
        k, c = lax.while_loop(lambda s: s[1].sum() < 10, lambda s: (s[0] + 1, s[1] * 1.7), (0, c))
        return lax.cond(c[0] > 2.0, lambda v: v / k, lambda v: lax.fori_loop(0, i, lambda j, d: d * x, v), c)

    return lax.fori_loop(0, n, body, x), lax.while_loop(lambda s: s.sum() < 99, lambda s: s * 2, x)


CASES = [
    swaps,
    nests,
    switches,
    carries_a_predicate,
    depends_on_floats,
]


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_engines_agree(function, small_target):
    """Floats within the tolerance, the ring on every bit; no trip, some trips. The vertex engine runs one of them."""
    lowered = ipuxla.jit(function, target=small_target).lower(X, i32(0))
    compiled = lowered.compile()
    compiled.certify()
    expected = {}
    for engine in ENGINES if function is swaps else ENGINES[:3]:
        ring = lowered.compile(engine=engine, arithmetic="ring")
        for n in (0, 3):
            words = [np.asarray(x) for x in jax.tree.leaves(ring(X, i32(n)))]
            for mine, theirs in zip(words, expected.setdefault(n, words), strict=True):
                np.testing.assert_array_equal(mine, theirs)
    for n in (0, 3):
        check_close(compiled(X, i32(n)), jax.jit(function)(X, i32(n)))


@pytest.mark.parametrize("engine", ["literal", "vertex"])
def test_floats_on_engines_with_memory(engine, small_target):
    compiled = ipuxla.jit(swaps, target=small_target, engine=engine).lower(X, i32(0)).compile()
    check_close(compiled(X, i32(3)), jax.jit(swaps)(X, i32(3)))


def recurs(weights, xs):
    """The mean square of what a recurrent cell says to ``xs[steps, rows, 6]``."""

    def cell(h, x):
        h = jnp.tanh(h @ weights + x)
        return h, h

    _, hs = lax.scan(cell, jnp.zeros_like(xs[0]), xs)
    return (hs**2).mean()


def test_gradient_of_a_scan(small_target):
    rng = np.random.default_rng(1)
    weights, xs = (jnp.asarray(rng.normal(size=shape) / 3, jnp.float32) for shape in ((6, 6), (5, 3, 6)))
    check_close(jax.grad(ipuxla.jit(recurs, target=small_target))(weights, xs), jax.grad(recurs)(weights, xs))
    compiled = check_engines(
        jax.grad(recurs), small_target, weights, xs, engines=("fast", "literal"), floats=()
    )
    loops = [line for line in compiled.as_text("hlo-optimized").splitlines() if "hlo.repeat" in line]
    assert len(loops) == 2
    assert compiled.cost_analysis()["cycles"] is not None


def test_transformations(small_target):
    def loss(x):
        def body(i, c):
            return lax.cond(i % 2 == 0, jnp.sin, lambda v: v * x, c)

        return lax.switch(1, [jnp.sum, jnp.max], lax.fori_loop(0, 3, body, x) * 2)

    def grows(x):
        return lax.while_loop(lambda s: s[1] < 4, lambda s: (s[0] * 2 - 0.1, s[1] + s[0]), (x, x))

    mine = ipuxla.jit(loss, target=small_target)
    check_close(jax.vmap(mine)(jnp.stack([X, X * 2])), jax.vmap(loss)(jnp.stack([X, X * 2])))
    check_close(jax.vmap(ipuxla.jit(grows, target=small_target))(X), jax.vmap(grows)(X))
    check_close(jax.jvp(mine, (X,), (X,)), jax.jvp(loss, (X,), (X,)))
    choose = lambda x, p: lax.cond(p, lambda v: (v * v).sum(), lambda v: jnp.sin(v).sum(), x)  # noqa: E731
    for p in (False, True):
        got = jax.grad(ipuxla.jit(choose, target=small_target))(X, jnp.bool_(p))
        check_close(got, jax.grad(choose)(X, jnp.bool_(p)))
    predicates = jnp.array([True, False])
    got = jax.vmap(ipuxla.jit(choose, target=small_target), (None, 0))(X, predicates)
    check_close(got, jax.vmap(choose, (None, 0))(X, predicates))


def test_trips_are_counted_and_unresolved_until_then(small_target):
    def f(x, n):
        x = lax.fori_loop(0, 5, lambda i, c: jnp.sin(c) + x, x)
        return lax.fori_loop(0, n, lambda i, c: jnp.cos(c) * x, x)

    compiled = ipuxla.jit(f, target=small_target).lower(X, i32(0)).compile()
    cost = compiled.cost_analysis()
    assert cost["cycles"] is None
    (loop,) = cost["unresolved"]
    assert (loop["kind"], loop["entered"]) == ("while", 1)
    assert __file__.rsplit("/", 1)[-1] in loop["location"]
    cycles = {}
    for engine in ("fast", "literal"):
        for n in (2, 7):
            profile = compiled_for(f, small_target, engine).profile(X, i32(n))
            counts = {step["name"]: step["count"] for step in profile.data["execution"]["steps"]}
            assert [counts[name] for name in loop["steps"]] == [n + 1, n, n]  # the condition, the body
            assert sorted(set(counts.values())) == sorted({1, 5, n, n + 1})
            cycles[engine, n] = profile.data["execution"]["cycles"]
    assert cycles["fast", 7] - cycles["fast", 2] == 5 * loop["cycles_per_trip"]
    assert cycles["fast", 7] == cycles["literal", 7]


def test_nested_trips_are_counted_in_profile_and_report(small_target):
    def f(x, n):
        def body(i, c):
            return lax.cond(i % 2 == 0, jnp.sin, lambda v: lax.fori_loop(0, i, lambda j, d: d * x, v), c)

        return lax.fori_loop(0, n, lambda i, c: lax.fori_loop(0, 3, lambda j, d: d * 0.5 + x, body(i, c)), x)

    for engine in ("fast", "literal"):
        for arithmetic in ("float", "ring"):
            jitted = ipuxla.jit(f, target=small_target, engine=engine, arithmetic=arithmetic)
            profile = jitted.lower(X, i32(0)).compile().profile(X, i32(5))
            rows = profile.data["execution"]["control"]
            got = [(r["kind"], r["depth"], r["entered"], r["trips"], r["branches"]) for r in rows]
            assert got == [
                ("while", 0, 1, 5, None),
                ("switch", 1, 5, None, [2, 3]),
                ("while", 2, 2, 1 + 3, None),
                ("repeat", 1, 5, 15, None),
            ]
            assert all(__file__.rsplit("/", 1)[-1] in row["location"] for row in rows)
            lines = profile.text().splitlines()
            table = [line.split()[:-1] for line in lines[lines.index("loops and branches") + 2 :][:4]]
            assert table == [
                ["while", "1", "5"],
                ["switch", "5", "2", "|", "3"],
                ["while", "2", "4"],
                ["repeat", "5", "15"],
            ]


def compiled_for(function, target, engine):
    return ipuxla.jit(function, target=target, engine=engine).lower(X, i32(0)).compile()


def test_decisions_by_floats_are_no_part_of_a_trace_in_the_ring(small_target):
    ring = ipuxla.jit(depends_on_floats, target=small_target, arithmetic="ring")
    with pytest.raises(Unsupported, match="control depends on floats"):
        jax.jit(ring)(X, i32(1))


def test_engines_repeat_one_run_s_borderline_decisions(small_target):
    """Sums that two engines round differently decide differently with floats, and alike in the ring."""
    totals = [ipuxla.jit(jnp.sum, target=small_target, engine=engine) for engine in ("fast", "hlo")]
    rows = np.random.default_rng(0).normal(size=(20, 4000)).astype(np.float32)
    row, limit = next((x, max(t(x) for t in totals)) for x in rows if len({float(t(x)) for t in totals}) > 1)

    def decides(x, limit):
        return lax.cond(x.sum() >= limit, lambda v: v * 3, lambda v: v + 5, x)

    lowered = ipuxla.jit(decides, target=small_target).lower(row, limit)
    floats = [lowered.compile(engine=engine)(row, limit) for engine in ("fast", "hlo")]
    assert (floats[0] != floats[1]).any()
    rings = [lowered.compile(engine=engine, arithmetic="ring")(row, limit) for engine in ENGINES]
    for other in rings[1:]:
        np.testing.assert_array_equal(rings[0], other)


def test_more_decisions_than_a_recording_has_room_for(small_target):
    def f(x):
        return lax.while_loop(lambda s: s[0].sum() < 3000, lambda s: (s[0] + 0.01, s[1] + 1), (x, 0))

    lowered = ipuxla.jit(f, target=small_target).lower(X)
    (_, trips), *rings = [
        lowered.compile(engine=engine, arithmetic=arithmetic)(X)
        for engine, arithmetic in (("fast", "float"), ("fast", "ring"), ("hlo", "ring"))
    ]
    assert trips > 10_000
    assert all(int(count) == int(trips) for _, count in rings)
    np.testing.assert_array_equal(rings[0][0], rings[1][0])


def calls_twice_with_a_constant(x):
    """A function that is outlined, called with a constant and with its transpose."""

    @jax.jit
    def layer(x, w):
        for _ in range(2):
            x = jnp.tanh(x @ w) + jnp.sin(x) * jnp.exp(-x * x)
            x = x / jnp.sqrt((x * x).mean() + 1)
        return x

    w = jnp.asarray(np.random.default_rng(3).normal(size=(40, 40)), jnp.float32)
    return lax.fori_loop(0, 2, lambda i, c: layer(layer(c, w), w.T), x)


def test_a_constant_and_its_transpose_in_a_loop(small_target):
    check_engines(calls_twice_with_a_constant, small_target, jnp.linspace(0.1, 1, 40), floats=("fast",))


@jax.jit
def scaled(x, number):
    return x * number.astype(jnp.float32)


@pytest.mark.parametrize("passes", ["inline{max-ops=1},schedule", "inline,dce,fuse,schedule", None])
def test_converted_constants(passes, small_target):
    """Of functions and of programs that no pass folded; JAX itself converts scalar constants while it traces."""

    def function(x):
        return scaled(x, jnp.int32(2)) + scaled(x * 3, jnp.int32(-7))

    lowered = ipuxla.jit(function, target=small_target, passes=passes).lower(X)
    rings = [lowered.compile(engine=engine, arithmetic="ring")(X) for engine in ENGINES[:3]]
    for other in rings[1:]:
        np.testing.assert_array_equal(rings[0], other)
