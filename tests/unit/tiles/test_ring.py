"""Ring arithmetic: no order of evaluation changes a bit, one misplaced word does, products are modulo 2^n.

Python's own integers are the witness for what is exact.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tiles.errors import InvalidArguments, Unsupported, UnsupportedDtype
from tiles.numerics import dtypes
from tiles.numerics.accumulate import accumulate
from tiles.numerics.ring import ring, to_ring


def _same(a, b) -> bool:
    flat_a, flat_b = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(flat_a) == len(flat_b) and all(
        x.dtype == y.dtype and x.shape == y.shape and bool(jnp.all(x == y))
        for x, y in zip(flat_a, flat_b, strict=True)
    )


def _normal(shape, dtype="float32", seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def _integers(x) -> np.ndarray:
    """Return words as Python integers."""
    return np.asarray(x).astype(object)


def softmax(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_in_parts(x):
    parts = x.reshape(x.shape[0], 4, -1)
    e = jnp.exp(x - parts.max(-1).max(-1, keepdims=True))
    s = e.reshape(parts.shape).sum(-1)
    return e / ((s[:, 3] + s[:, 1]) + (s[:, 2] + s[:, 0]))[:, None]


def test_softmax_in_two_orders_agrees_on_every_bit():
    x = _normal((6, 64))
    words = ring(softmax)(x)
    assert words.dtype == jnp.uint32 and words.shape == x.shape
    assert _same(words, ring(softmax_in_parts)(x))
    assert _same(words, jax.jit(ring(softmax_in_parts))(x))
    assert not _same(softmax(x), softmax_in_parts(x)), "floats must differ for this to mean anything"


def test_a_single_misplaced_word_changes_the_row_it_is_in():
    x = _normal((6, 64))

    def misplaced(v):
        return softmax_in_parts(lax.dynamic_update_slice(v, v[3:4, 8:9], (3, 7)))

    differs = ring(softmax)(x) != ring(misplaced)(x)
    assert differs[3].all() and not differs[jnp.array([0, 1, 2, 4, 5])].any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_multiplying_by_round_constants_forgets_nothing(dtype):
    x = jnp.stack([_normal((64,), dtype), _normal((64,), dtype, seed=1)])
    scaled = ring(lambda v: v * 0.5 * 0.25 * 1024 * 2.0 / 1.0 * -1.0)(x)
    assert (np.asarray(scaled[0] != scaled[1])).mean() > 0.95
    assert len(set(np.asarray(scaled).ravel().tolist())) > 110


def test_dot_is_the_integers_dot_modulo_the_width():
    for name in ("float32", "float16", "bfloat16", "float8_e5m2"):
        a, b = _normal((3, 20), name), _normal((20, 4), name, seed=1)
        modulus = 2 ** (8 * dtypes.itemsize(name))
        want = (_integers(to_ring(a)) @ _integers(to_ring(b))) % modulus
        got = ring(functools.partial(jnp.matmul, preferred_element_type=name))(a, b)
        np.testing.assert_array_equal(_integers(got), want)


def test_64_bit_words_are_exact_and_mixed_in_both_halves():
    with jax.enable_x64(True):
        a, b = _normal((3, 20), "float64"), _normal((20, 4), "float64", seed=1)
        got = jax.jit(ring(jnp.matmul))(a, b)
        assert got.dtype == jnp.uint64
        np.testing.assert_array_equal(_integers(got), (_integers(to_ring(a)) @ _integers(to_ring(b))) % 2**64)
        words = jnp.asarray(np.array([7, 7 + 2**40, 8], np.uint64))
        mixed = np.asarray(ring(jnp.exp, ["float64"])(words))
        for half in (mixed & 0xFFFFFFFF, mixed >> 32):
            assert len(set(half.tolist())) == 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("partials", ["same", "float32"])
def test_dot_split_with_accumulators_agrees_with_the_unsplit_one(dtype, partials):
    partials = dtype if partials == "same" else partials
    a, b = _normal((5, 48), dtype), _normal((48, 7), dtype, seed=1)

    def split(a, b):
        pieces = [
            jnp.matmul(accumulate(a[:, k : k + 12], partials), accumulate(b[k : k + 12], partials))
            for k in range(0, 48, 12)
        ]
        return accumulate((pieces[3] + pieces[0]) + (pieces[1] + pieces[2]), dtype)

    def batched(a, b):
        left, right = a.reshape(5, 4, 12).transpose(1, 0, 2), b.reshape(4, 12, 7)
        products = jnp.matmul(left, right, preferred_element_type=partials)
        return accumulate(products.sum(0, dtype=partials), dtype)

    whole = ring(functools.partial(jnp.matmul, preferred_element_type=dtype))(a, b)
    assert whole.dtype == dtypes.unsigned_of(dtype)
    assert _same(whole, ring(split)(a, b))
    assert _same(whole, jax.jit(ring(batched))(a, b))


def test_accumulate_converts_floats_and_differentiates():
    x = _normal((8,), "float16")
    wide = jax.jit(lambda v: accumulate(v, "float32"))(x)
    assert wide.dtype == jnp.float32
    np.testing.assert_array_equal(np.asarray(wide), np.asarray(x, np.float32))
    np.testing.assert_array_equal(np.asarray(accumulate(wide, "float16")), np.asarray(x))
    assert accumulate(wide, jnp.float32) is wide
    assert jax.vmap(lambda v: accumulate(v, "float32"))(x).shape == (8,)
    gradient = jax.grad(lambda v: (accumulate(v, "float32") ** 2).sum())(x)
    assert gradient.dtype == jnp.float16
    np.testing.assert_allclose(np.asarray(gradient, np.float32), 2 * np.asarray(x, np.float32), rtol=1e-3)
    with pytest.raises(UnsupportedDtype, match="floats"):
        accumulate(jnp.arange(3), "float32")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_padding_with_neutral_elements_changes_nothing(dtype):
    x = _normal((4, 10), dtype)

    def padded(reduce, fill):
        def function(v):
            fills = jnp.full((4, 6), fill, dtype)
            return reduce(jnp.concatenate([v[:, :3], fills[:, :4], v[:, 3:], fills[:, :2]], 1))

        return function

    reductions = [
        (lambda v: lax.reduce_max(v, (1,)), -jnp.inf),
        (lambda v: lax.reduce_min(v, (1,)), jnp.inf),
        (lambda v: lax.reduce_sum(v, (1,)), 0.0),
        (lambda v: lax.reduce_sum(v, (1,)), -0.0),
        (lambda v: lax.reduce_prod(v, (1,)), 1.0),
        (lambda v: lax.dot(v, jnp.ones((v.shape[1], 2), dtype)), 0.0),
    ]
    for reduce, fill in reductions:
        assert _same(ring(reduce)(x), ring(padded(reduce, fill))(x))


def test_neutral_elements_enter_as_neutral_words_in_every_format():
    for name in ("float16", "bfloat16", "float32", "float64", "float8_e5m2"):
        x = np.array([0.0, -0.0, 1.0, -1.0, -np.inf, np.inf], dtypes.to_jax(name))
        ones = np.iinfo(dtypes.unsigned_of(name)).max
        assert to_ring(x).tolist() == [0, 0, 1, ones, 0, ones]
    no_infinity = np.array([0.0, 1.0, 240.0], dtypes.to_jax("float8_e4m3fnuz"))
    assert to_ring(no_infinity).tolist()[:2] == [0, 1]
    counts = np.arange(4)
    assert to_ring(counts) is counts


def test_all_halves_enter_the_ring_alike_on_host_and_device():
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    host = to_ring(halves)
    np.testing.assert_array_equal(host, np.asarray(jax.jit(to_ring)(jnp.asarray(halves))))
    assert (host[(halves != 0) & ~np.isneginf(halves)] & 1).all(), "words that are not zero are odd"
    assert len(np.unique(host)) > 30000


def test_conversions_keep_neutral_words_and_integers_convert_by_value():
    to_half = ring(lambda v: v.astype(jnp.float16), ["float32"])
    ones = 2**32 - 1
    assert to_half(jnp.array([0, 1, ones], jnp.uint32)).tolist() == [0, 1, 2**16 - 1]
    values = np.array([0, 1, 5, 100])
    by_type = [
        ring(lambda v: v.astype(jnp.float32))(jnp.asarray(values, t))
        for t in ("int8", "uint8", "int32", "uint32")
    ]
    assert all(_same(by_type[0], other) for other in by_type[1:])
    assert by_type[0][:2].tolist() == [0, 1]
    negative = [
        ring(lambda v: v.astype(jnp.float32))(jnp.array([-1, -7], t)) for t in ("int8", "int16", "int32")
    ]
    assert _same(negative[0], negative[2]) and _same(negative[1], negative[2]) and int(negative[0][0]) == ones
    assert ring(lambda v: v.astype(jnp.float32))(jnp.array([True, False])).tolist() == [1, 0]
    assert ring(lambda v: v.astype(bool), ["float32"])(jnp.array([0, 3], jnp.uint32)).tolist() == [
        False,
        True,
    ]
    whole = ring(lambda: jnp.arange(8, dtype=jnp.float32))()
    part = ring(lambda origin: (lax.iota(jnp.int32, 4) + origin).astype(jnp.float32))(jnp.int32(4))
    assert _same(whole[4:], part)


def test_powers_are_products_and_differ_by_exponent():
    x = _normal((16,))
    assert _same(ring(lambda v: v**5)(x), ring(lambda v: v * v * (v * v) * v)(x))
    assert _same(ring(jnp.square)(x), ring(lambda v: v * v)(x))
    assert _same(ring(lambda v: lax.integer_pow(v, 0))(x), jnp.ones(16, jnp.uint32))
    powers = [ring(lambda v, y=y: lax.integer_pow(v, y))(x) for y in (-1, -2, 2, 3)]
    assert not any(_same(a, b) for i, a in enumerate(powers) for b in powers[:i])
    assert _same(ring(lambda v: v / 1.0)(x), to_ring(x))
    assert _same(ring(lambda v: -v)(x), ring(lambda v: v * -1.0)(x))


def test_static_parameters_and_names_tell_ops_apart():
    x = _normal((16,))
    functions = [
        jnp.exp,
        jnp.tanh,
        lambda v: lax.round(v, lax.RoundingMethod.AWAY_FROM_ZERO),
        lambda v: lax.round(v, lax.RoundingMethod.TO_NEAREST_EVEN),
        lambda v: lax.reduce_precision(v, 5, 10),
        lambda v: lax.reduce_precision(v, 8, 7),
    ]
    results = [ring(f)(x) for f in functions]
    assert not any(_same(a, b) for i, a in enumerate(results) for b in results[:i])
    assert _same(ring(lambda v: lax.reduce_precision(v, 8, 23))(x), to_ring(x))


def mlp_loss(params, x, labels):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    logits = jax.nn.log_softmax(x @ w + b)
    return -jnp.mean(jnp.take_along_axis(logits, labels[:, None], 1))


def test_a_training_step_agrees_fused_and_op_by_op():
    params = [(_normal((12, 16)), jnp.zeros(16)), (_normal((16, 10), seed=1), jnp.zeros(10))]
    args = params, _normal((8, 12), seed=2), jnp.arange(8) % 10
    step = ring(jax.value_and_grad(mlp_loss))
    eager, jitted = step(*args), jax.jit(step)(*args)
    assert jax.tree.structure(eager) == jax.tree.structure(
        jax.eval_shape(jax.value_and_grad(mlp_loss), *args)
    )
    assert _same(eager, jitted)


def control_flow(x):
    def body(i, carry):
        return carry * 1.5 + x[i]

    folded = lax.fori_loop(0, 5, body, jnp.zeros(()))
    total, products = lax.scan(lambda c, v: (c + v, c * v), 0.0, x, reverse=True)
    branch = lax.cond(total > 0.3, lambda v: v * 2, jnp.sin, total)
    count, grown = lax.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, s[1] * s[1] + x), (0, x))
    return folded, products, branch, count, grown, lax.switch(count - 3, [jnp.cos, jnp.exp], x)


def test_control_flow_is_interpreted_and_batches():
    x = _normal((3, 9))
    rows = [ring(control_flow)(row) for row in x]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
    assert _same(stacked, jax.vmap(ring(control_flow))(x))
    assert _same(stacked, jax.jit(ring(jax.vmap(control_flow)))(x))
    words = np.asarray(to_ring(x[0])).astype(object)
    carry, factor = 0, int(to_ring(np.float32(1.5)))
    for word in words[:5]:
        carry = (carry * factor + word) % 2**32
    assert int(rows[0][0]) == carry


def test_a_trip_count_that_depends_on_floats_is_refused():
    def directly(x):
        return lax.while_loop(lambda s: s.sum() < 5, lambda s: s + 1, x)

    def through_an_integer(x):
        return lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + (s[1] > 0).sum(), s[1] * 2), (0, x))

    for function in (directly, through_an_integer):
        with pytest.raises(Unsupported, match="trip count depends on floats"):
            ring(function)(_normal((4,)))


def test_a_primitive_without_ring_meaning_is_refused():
    with pytest.raises(Unsupported, match="'cholesky'"):
        ring(jnp.linalg.cholesky)(jnp.eye(3))


def test_words_can_be_given_for_floats():
    x = _normal((4, 8), "float16")
    words = to_ring(x)
    assert _same(ring(softmax, ["float16"])(words), ring(softmax)(x))
    nested = ring(lambda d, n: d["a"] * n.astype(jnp.float16), [{"a": "float16"}, "int32"])
    assert _same(
        nested({"a": words}, jnp.arange(8)), ring(lambda a, n: a * n.astype(jnp.float16))(x, jnp.arange(8))
    )
    with pytest.raises(InvalidArguments, match="stated to be float16"):
        ring(softmax, ["float16"])(jnp.zeros((2, 2), jnp.uint32))
    with pytest.raises(InvalidArguments, match="expected: 2 types"):
        ring(jnp.add, ["float16"])(words, words)


def test_tracing_happens_once_per_shape_and_closures_stay_fresh():
    traces = []

    def counted(v):
        traces.append(v.shape)
        return v + 1

    words = ring(counted)
    words(jnp.zeros(3)), words(jnp.ones(3)), words(jnp.zeros(4))
    assert traces == [(3,), (4,)]

    @jax.jit
    def closes_over(scale, v):
        inner = ring(lambda u: u * scale)
        return inner(v), inner(v + 1)

    x, scale = _normal((4,)), jnp.float32(0.3)
    want = ring(lambda u: u * scale)(x), ring(lambda u: u * scale)(x + 1)
    assert _same(closes_over(scale, x), want)
    assert _same(closes_over(scale, x), want)
