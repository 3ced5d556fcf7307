"""Programs that say the same in other words cost about the same; each of these pairs was once far apart."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.testing import check_engines

F, H, B, I8 = jnp.float32, jnp.float16, jnp.bool_, jnp.int8
SMALL = ipuxla.Target.named("gc200").replace(num_tiles=4)


def of(dtype, *shapes):
    return tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)


def scanned(x):
    return lax.scan(lambda c, row: (c * 0.5 + row, None), jnp.zeros(x.shape[1]), x)[0]


def descent(loss):
    """Return a step of gradient descent by the last of a loss' arguments."""

    def step(*args):
        return args[-1] - 0.1 * jax.grad(loss, len(args) - 1)(*args)

    return step


def of_images(x, w):
    return (jax.nn.relu(x.reshape(len(x), -1) @ w) ** 2).sum()


def of_tokens(x, w):
    return jax.nn.logsumexp(x.reshape(-1, x.shape[-1]) @ w, -1).sum()


def largest(x):
    return jnp.maximum(x, 0.01 * x)


def heads(q, k, v):
    rows = [jax.nn.softmax(q[:, i] @ k[:, i].T, axis=-1) @ v[:, i] for i in range(q.shape[1])]
    return jnp.stack(rows, 1)


def of_heads(q, k, v):
    rows = jax.nn.softmax(jnp.einsum("thd,shd->hts", q, k), axis=-1)
    return jnp.einsum("hts,shd->thd", rows, v)


def experts(x, up, down):
    gates = jax.nn.softmax(x[:, : len(up)])
    return sum(gates[:, e, None] * (jax.nn.relu(x @ up[e]) @ down[e]) for e in range(len(up)))


def of_experts(x, up, down):
    gates = jax.nn.softmax(x[:, : len(up)])
    return jnp.einsum("te,etf,efd->td", gates, jax.nn.relu(jnp.einsum("td,edf->etf", x, up)), down)


def members(x, w):
    return jnp.stack([jnp.tanh(x[i] @ w[i]) @ w[i] for i in range(len(x))])


def gates(x, h, c, w, u):
    i, f, g, o = (x @ w[k] + h @ u[k] for k in range(4))
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def joined_gates(x, h, c, w, u):
    i, f, g, o = jnp.moveaxis(jnp.einsum("bd,kdh->bkh", x, w) + jnp.einsum("bd,kdh->bkh", h, u), 1, 0)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def factors(x):
    return jnp.stack([jnp.linalg.cholesky(a @ a.T + jnp.eye(len(a))) for a in x])


def of_factors(x):
    return jnp.linalg.cholesky(x @ jnp.swapaxes(x, 1, 2) + jnp.eye(x.shape[1]))


def layers(x, weights):
    for w in weights:
        x = x + jax.nn.gelu(x @ w)
    return x


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def turned(x, angles, w):
    a, b = jnp.split(x @ w, 2, -1)
    c, s = angles
    return jnp.concatenate([a * c - b * s, b * c + a * s], -1)


def angles(positions):
    angle = positions * 10000.0 ** (-jnp.arange(128) / 128)
    return jnp.cos(angle), jnp.sin(angle)


def turned_by_layer(x, positions, *weights):
    for w in weights:
        x = turned(x, angles(positions), w)
    return x


def turned_at_once(x, positions, *weights):
    found = angles(positions)
    for w in weights:
        x = turned(x, found, w)
    return x


def of_kernel(x, dy):
    def convolved(w):
        return lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))

    return jax.linear_transpose(convolved, jax.ShapeDtypeStruct((3, x.shape[2], dy.shape[2]), x.dtype))(dy)[0]


def of_taps(x, dy):
    padded = jnp.pad(x, [(0, 0), (1, 1), (0, 0)])
    return jnp.stack([jnp.einsum("bti,bto->io", padded[:, i : i + dy.shape[1]], dy) for i in range(3)])


PAIRS = {
    "sizes": (jnp.abs, lambda x: jnp.maximum(x, -x), of(H, (1_000_000,)), 1.0),
    "a kernel's gradient over long rows": (of_kernel, of_taps, of(H, (1, 3000, 768), (1, 3000, 768)), 1.0),
    "angles of every layer": (
        turned_by_layer,
        turned_at_once,
        of(F, (256, 256), (256, 1), *[(256, 256)] * 4),
        1.02,
    ),
    "a loop over heads": (heads, of_heads, of(H, *[(256, 12, 64)] * 3), 1.2),
    "a loop over experts": (experts, of_experts, of(H, (256, 256), (8, 256, 512), (8, 512, 256)), 1.4),
    "a loop over members": (
        members,
        lambda x, w: jnp.tanh(x @ w) @ w,
        of(F, (32, 64, 64), (32, 64, 64)),
        1.5,
    ),
    "a product for each gate": (
        gates,
        joined_gates,
        of(F, (32, 256), (32, 256), (32, 256), (4, 256, 256), (4, 256, 256)),
        1.3,
    ),
    "a loop over factorizations": (factors, of_factors, of(F, (16, 16, 16)), 2.2),
    "the last of all products": (
        lambda x, w: (x @ w)[:, -1],
        lambda x, w: x[:, -1] @ w,
        of(F, (8, 256, 128), (128, 512)),
        1.01,
    ),
    "the first token of a network": (
        lambda x, *ws: layers(x, ws)[:, 0],
        lambda x, *ws: layers(x[:, :1], ws)[:, 0],
        of(F, (8, 128, 256), *[(256, 256)] * 3),
        1.01,
    ),
    "one row of a norm": (lambda x: norm(x)[:, 0], lambda x: norm(x[:, 0]), of(F, (64, 128, 256)), 1.1),
    "by another number": (lambda x: x / 9.8, lambda x: x * (1 / 9.8), of(H, (16, 256, 512)), 1.0),
    "by the root of another": (
        lambda x: x / jnp.sqrt(96),
        lambda x: x * (1 / 96**0.5),
        of(H, (16, 256, 512)),
        1.0,
    ),
    "colours": (
        lambda x: (x * jnp.array([0.3, 0.6, 0.1])).sum(-1),
        lambda x: x[..., 0] * 0.3 + x[..., 1] * 0.6 + x[..., 2] * 0.1,
        of(F, (16, 128, 128, 3)),
        1.3,
    ),
    "squared distances": (
        lambda x, c: ((x[:, None] - c) ** 2).sum(-1),
        lambda x, c: (x[:, :1] - c[:, 0]) ** 2 + (x[:, 1:] - c[:, 1]) ** 2,
        of(F, (20000, 2), (64, 2)),
        1.3,
    ),
    "queries, keys and values": (
        lambda x, *w: tuple(x @ each for each in w),
        lambda x, q, k, v: jnp.split(x @ jnp.concatenate([q, k, v], 1), 3, 1),
        of(H, (256, 768), *[(768, 768)] * 3),
        1.0,
    ),
    "images as rows": (
        lambda x, w: descent(of_images)(x, w),
        lambda x, w: descent(of_images)(lax.optimization_barrier(x * 1), w),
        of(F, (128, 28, 28), (784, 64)),
        1.1,
    ),
    "images of colours": (descent(of_images), descent(of_images), of(F, (128, 32, 32, 3), (3072, 64)), 1.0),
    "tokens as rows": (
        descent(of_tokens),
        lambda x, w: descent(lambda x, w: jax.nn.logsumexp(x @ w, -1).sum())(x, w),
        of(F, (16, 256, 128), (128, 128)),
        1.2,
    ),
    "a choice of several": (
        lambda x: jnp.select([x < -1, x < 0, x < 1], [-2.0, -1.0, 0.0], 1.0),
        lambda x: jnp.where(x < -1, -2.0, jnp.where(x < 0, -1.0, jnp.where(x < 1, 0.0, 1.0))),
        of(F, (1024, 1024)),
        8,
    ),
    "a maximum's gradient": (
        jax.grad(lambda x: largest(x).sum()),
        jax.grad(lambda x: jnp.where(x >= 0, x, 0.01 * x).sum()),
        of(F, (1024, 1024)),
        6,
    ),
    "what a division leaves": (lambda x: x % 1.0, lambda x: x - jnp.floor(x), of(F, (1024, 1024)), 13),
    "halves that are set": (
        lambda a, b: jnp.zeros((64, 128, 256)).at[..., :128].set(a).at[..., 128:].set(b),
        lambda a, b: jnp.concatenate([a, b], -1),
        of(F, (64, 128, 128), (64, 128, 128)),
        1.0,
    ),
    "a remainder of integers": (
        lambda x: lax.rem(x, 10),
        lambda x: lax.rem(x, 10) + 1,
        of(jnp.int32, (512, 512)),
        1.0,
    ),
    "products of elements": (
        lambda a, b: jnp.einsum("bij,bij->bij", a, b),
        lambda a, b: a * b,
        of(F, (64, 128, 128), (64, 128, 128)),
        1.0,
    ),
    "products of rows": (
        lambda a, b: jnp.einsum("i,ij->ij", a, b),
        lambda a, b: a[:, None] * b,
        of(F, (1024,), (1024, 1024)),
        1.0,
    ),
    "a part broadcast in front": (
        lambda s, d: s * d,
        lambda s, d: s * d + 1,
        of(F, (2, 8, 256, 256), (8, 256, 256)),
        1.1,
    ),
    "positions beside tokens": (
        lambda x, p: x + p,
        lambda x, p: jnp.tanh(x + p),
        of(F, (4, 512, 384), (512, 384)),
        1.1,
    ),
    "a bias of few rows": (
        lambda x, b: x + b,
        lambda x, b: jnp.maximum(x + b, 0),
        of(F, (2048, 2048), (2048,)),
        1.1,
    ),
    "a quotient by a power of two": (lambda x: x / 8, lambda x: x * 0.125, of(H, (2048, 1024)), 1.0),
    "a quotient by a root": (lambda x: x / jnp.sqrt(64), lambda x: x * 0.125, of(H, (2048, 1024)), 1.0),
    "all of booleans": (lambda b: b.all(), lambda b: b.sum(), of(B, (2048, 2048)), 1.2),
    "all finite": (
        lambda x: jnp.isfinite(x).all(),
        lambda x: jnp.isfinite(x).all(-1).all(),
        of(F, (2048, 2048)),
        1.2,
    ),
    "any in columns": (lambda x: (x > 0).any(0), lambda x: (x > 0).sum(0), of(F, (1024, 1024)), 1.4),
    "opposites of booleans": (lambda b: ~b, lambda b: b ^ True, of(B, (2048, 2048)), 4),
    "coordinates last": (
        lambda x: x[None] - x[:, None],
        lambda x: x.T[:, None] - x.T[:, :, None],
        of(F, (1024, 3)),
        1.5,
    ),
    "forces": (
        lambda x: (x[None] - x[:, None]).sum(1),
        lambda x: (x.T[:, None] - x.T[:, :, None]).sum(2),
        of(F, (2048, 3)),
        3,
    ),
    "pairs of halves": (
        lambda s, d: s * d,
        lambda s, d: s * jnp.tile(d, (1, 2)),
        of(H, (1 << 18, 2), (1 << 18, 1)),
        1.5,
    ),
    "axes reversed": (
        lambda x: jnp.transpose(jnp.tanh(x), (2, 1, 0)) * 2,
        lambda x: jnp.transpose(jnp.tanh(x), (1, 2, 0)) * 2,
        of(H, (128, 128, 128)),
        1.5,
    ),
    "bytes as integers": (
        lambda x, w: x.astype("int32") @ w.astype("int32"),
        lambda x, w: lax.dot(x, w, preferred_element_type=jnp.int32),
        of(I8, (256, 512), (512, 256)),
        1.0,
    ),
    "halves as floats": (
        lambda x, w: x.astype("float32") @ w.astype("float32").T,
        lambda x, w: lax.dot(x, w.T, preferred_element_type=F),
        of(H, (256, 512), (256, 512)),
        1.0,
    ),
    "large windows": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (13, 13), (1, 1), "SAME"),
        lambda x: lax.reduce_window(
            lax.reduce_window(x, -jnp.inf, lax.max, (13, 1), (1, 1), "SAME"),
            -jnp.inf,
            lax.max,
            (1, 13),
            (1, 1),
            "SAME",
        ),
        of(F, (128, 128)),
        1.0,
    ),
    "a scan of a product": (
        lambda x, w: scanned(x @ w),
        lambda x, w: scanned(jnp.concatenate([jnp.zeros((1, w.shape[1])), x @ w])),
        of(F, (1024, 768), (768, 768)),
        1.1,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_as_cheap_as_in_other_words(name):
    one, other, shapes, factor = PAIRS[name]
    cycles = [
        ipuxla.jit(f, target="gc200").lower(*shapes).compile().cost_analysis()["cycles"] for f in (one, other)
    ]
    assert cycles[0] <= factor * cycles[1]


RNG = np.random.default_rng(5)
X = RNG.standard_normal((6, 16)).astype(np.float32)
X[2, 3], X[4] = np.nan, 3
CASES = {
    "loops over heads and members": (
        lambda x: (
            heads(*[x.reshape(6, 4, 4) * n for n in (0.1, 0.2, 0.3)]),
            members(x.reshape(6, 4, 4), x[::-1].reshape(6, 4, 4)),
            experts(x, *[x[:, :, None] * jnp.arange(n, n + 16.0) / 100 for n in (1, 2)]),
        ),
        X,
    ),
    "folds of booleans": (
        lambda x: (jnp.isnan(x).any(0), jnp.isfinite(x).all(), (x > 0).any(1), (x < 2).all()),
        X,
    ),
    "one row of booleans": (lambda b: (b.all(), b.any(), ~b), (X > 0).reshape(-1)),
    "integers": (lambda x: (x.max(), x.min(0), jnp.bitwise_and.reduce(x)), (X[:2] * 50).astype(np.int8)),
    "axes": (lambda x: jnp.transpose(x.reshape(2, 3, 16), (2, 1, 0)) + 1, X),
    "rows": (lambda x: x.reshape(3, 2, 16) * x[:2], X),
    "coordinates": (
        lambda x: (x[:, None, :3] - x[None, :, :3], x[:, :3] * x[:, 3:4], (x[:, :2] > x[0, :2])),
        X,
    ),
    "halves folded in stages": (  # rows of the last tile have an odd length, for which there is no code
        lambda x: x.T.max((0, 2, 3)),
        RNG.standard_normal((6, 2, 103, 3)).astype(np.float16),
    ),
    "coordinates of halves": (
        lambda x: (x[:, None, :3] - x[None, :, :3], x[:, :2] * x[:, 3:4] + 1),
        X.astype(np.float16),
    ),
    "a choice of several": (
        lambda x: (
            jnp.select([x < -1, x < 0, x < 1], [-2.0, x, 0.0], 1.0),
            jnp.argmax(jnp.stack([x[0], x[1], x[2], x[1]]), 0),
            jnp.argmin(jnp.stack([x[:, 3], x[:, 2]], -1), -1),
        ),
        X,
    ),
    "gradients of extremes": (
        lambda x: jax.grad(lambda x: (jnp.maximum(x, 0.01 * x) + jnp.clip(x, -1, 1)).sum())(x),
        np.round(X),
    ),
    "products of elements": (
        lambda x: (
            jnp.einsum("ij,j->ij", x, x[0]),
            jnp.einsum("ij,i->ji", x, x[:, 0]),
            jnp.einsum("ij,ij->ji", x, x + 1),
        ),
        X,
    ),
    "boxes that are set": (
        lambda x: (
            jnp.zeros((6, 48)).at[:, 4:20].set(x[:, :16]).at[:, 36:].set(x[:, :12]),
            jnp.ones((6, 16)).at[2:4].set(x[:2]),
        ),
        X,
    ),
    "integers that are divided": (
        lambda x: (x // 10, x % 7, lax.rem(x, x[::-1] | 1), lax.div(x, jnp.full_like(x, -3))),
        RNG.integers(-(2**31), 2**31, (6, 16)).astype(np.int32),
    ),
    "quotients": (lambda x: (x / 8, x / -0.25, x / jnp.sqrt(jnp.float32(16)), x / 3), X),
}


@pytest.mark.parametrize("name", CASES)
def test_on_all_engines(name):
    function, x = CASES[name]
    x = np.nan_to_num(x) if x.dtype.kind == "f" and name != "folds of booleans" else x
    check_engines(function, SMALL, x)
    found = ipuxla.jit(function, target=SMALL, engine="tile")(x)
    # In double precision, since the last bits of XLA:CPU's sums of floats depend on the processor that it runs on.
    with jax.enable_x64(x.dtype == np.float32):
        wanted = jax.jit(function)(x.astype(np.float64) if x.dtype == np.float32 else x)
    for got, expected in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6 if x.dtype != np.float16 else 2e-3, atol=1e-7)


def test_products_of_which_the_sums_are_cast_without_code():
    """Products of few 8-bit floats, on tiles of one result each: off the multiply units, the code of the sums alone is none."""
    x = RNG.standard_normal((4, 5)).astype(jnp.float8_e5m2)
    target = SMALL.replace(num_tiles=37)
    for arithmetic, engine in (("float", "fast"), ("ring", "hlo")):
        want, found = (
            np.asarray(ipuxla.jit(lambda x: x.T @ x, target=target, engine=each, arithmetic=arithmetic)(x))
            for each in (engine, "tile")
        )
        assert found.any() and found.tobytes() == want.tobytes()


@pytest.mark.parametrize("tiles", [24, 40])
def test_coordinates_that_lie_on_a_tile_each(tiles):
    """Cells have one coordinate of all points, whose operands lie side by side there; on all engines."""
    target = SMALL.replace(num_tiles=tiles)
    x = RNG.standard_normal((60, 3)).astype(np.float32)

    def function(x):
        return x[None] - x[:, None]

    for engine in ("fast", "literal", "vertex", "tile"):
        found = ipuxla.jit(function, target=target, engine=engine)(x)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(function(x)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e5m2"])
def test_quotients_by_powers_of_two_keep_every_bit(dtype):
    """Also of numbers so small that the quotient is rounded, of infinities and zeros."""
    x = np.concatenate(
        [RNG.standard_normal(200) * 2.0 ** RNG.integers(-14, 14, 200), [0, -0.0, np.inf, -np.inf]]
    )
    x = x.astype(jnp.dtype(dtype))
    for divisor in (2.0, 64.0, -0.5, 2.0**-9):

        def function(x, divisor=divisor):
            return x / jnp.asarray(divisor, x.dtype)

        assert "divide" not in ipuxla.jit(function, target=SMALL).lower(x).as_text("hlo-optimized")
        found = np.asarray(ipuxla.jit(function, target=SMALL)(x))
        assert found.tobytes() == np.asarray(jax.jit(function)(x)).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("engine", ["fast", "tile"])
def test_quotients_by_other_constants_are_those_of_jax(dtype, engine):
    """XLA multiplies by the inverse as it was rounded; where that is no normal number, a quotient stays one."""
    with np.errstate(all="ignore"):
        x = (RNG.standard_normal(4000) * np.exp(RNG.uniform(-8, 8, 4000))).astype(dtype)
        x = np.concatenate([x, np.array([0, -0.0, np.inf, -np.inf, np.nan], dtype)])
    row = np.arange(2, 2 + len(x)).astype(dtype)

    def divided(x):
        numbers = (6, 30, 0.9, 255, 13.86, -3, 3e-3)
        return [x / jnp.asarray(n, dtype) for n in numbers] + [x / jnp.sqrt(jnp.asarray(96, dtype)), x / row]

    found = ipuxla.jit(divided, target=SMALL, engine=engine)(x)
    for got, want in zip(found, jax.jit(divided)(x), strict=True):
        got, want = (np.asarray(each).astype(np.float64) for each in (got, want))
        assert np.array_equal(got, want, equal_nan=True)


@pytest.mark.parametrize("number", [3e4, 7e30, 2e-41, np.inf, 0.0])
def test_quotients_by_what_has_no_normal_inverse_stay(number):
    """Whoever compiles the emulation may multiply there."""
    dtype = "float16" if number == 3e4 else "float32"
    x = np.array([0.0, -1.5, 6e4, np.inf, np.nan, 1e-7], dtype)
    with np.errstate(all="ignore"):
        divisor = np.asarray(number, dtype)

    def divided(x):
        return x / divisor

    lowered = ipuxla.jit(divided, target=SMALL).lower(x)
    is_quotient = re.search(r"\bdivide\b", lowered.as_text("hlo-optimized")) is not None
    assert is_quotient == (number != 7e30)
    np.testing.assert_array_equal(lowered.compile()(x), jax.jit(divided)(x))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_remainders_by_powers_of_two_keep_every_bit(dtype):
    """Of numbers of all sizes, infinities, and zeros, of which the sign is kept."""
    limits = jnp.finfo(dtype)
    x = RNG.standard_normal(4000) * 2.0 ** RNG.integers(limits.minexp, limits.maxexp - 2, 4000)
    x = np.where(abs(x) < float(limits.tiny), 1, x)  # smaller ones are zero in XLA
    x = np.concatenate([x, np.arange(-40, 40) / 4, [0, -0.0, np.inf, -np.inf, limits.max]])
    x = x.astype(jnp.dtype(dtype))
    for divisor in (1.0, 2.0, 64.0):

        def function(x, divisor=divisor):
            return lax.rem(x, jnp.full_like(x, divisor))

        assert "stablehlo.remainder" not in ipuxla.jit(function, target=SMALL).lower(x).as_text(
            "hlo-optimized"
        )
        found = np.asarray(ipuxla.jit(function, target=SMALL)(x))
        with np.errstate(invalid="ignore"):
            expected = np.fmod(x.astype(np.float64), divisor).astype(x.dtype)
        np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))
        is_number = ~np.isnan(expected.astype(np.float32))
        np.testing.assert_array_equal(np.signbit(found)[is_number], np.signbit(expected)[is_number])


def test_remainders_of_floats_without_zero():
    """A quotient below one has the floor zero, which float8_e8m0fnu has not: the division stays."""
    x = (2.0 ** np.arange(-3, 4)).astype(jnp.float8_e8m0fnu)

    def function(x):
        return lax.rem(x, jnp.full_like(x, 2))

    found, expected = (
        np.asarray(compiled(x)).astype(np.float32)
        for compiled in (ipuxla.jit(function, target=SMALL), jax.jit(function))
    )
    np.testing.assert_array_equal(found, expected)
