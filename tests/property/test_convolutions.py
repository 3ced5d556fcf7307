"""Random convolutions and windows: placed on tiles they equal the module on every bit."""

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from tests.budgets import PROGRAM, budget
from tiles.numerics.tolerance import check_close
from tiles.target import Target

TARGETS = [Target.named("gc200").replace(num_tiles=n) for n in (4, 23)]
small = st.integers(1, 3)


@st.composite
def convolutions(draw):
    """Return a convolution of one spatial dimension and its operands' shapes."""
    feature_groups, batch_groups = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2)]))
    size, taps, inputs = draw(st.integers(3, 9)), draw(st.integers(1, 4)), draw(small)
    outputs = draw(small) * feature_groups * batch_groups
    options = {
        "window_strides": (draw(small),),
        "padding": [(draw(st.integers(-1, 3)), draw(st.integers(0, 3)))],
        "lhs_dilation": (draw(small),),
        "rhs_dilation": (draw(small),),
        "feature_group_count": feature_groups,
        "batch_group_count": batch_groups,
    }
    spelled = draw(st.sampled_from([("NWC", "WIO", "NWC"), ("NCW", "OIW", "NCW"), ("CWN", "IWO", "WNC")]))
    lhs = {"N": draw(small) * batch_groups, "C": inputs * feature_groups, "W": size}
    rhs = {"I": inputs, "O": outputs, "W": taps}
    options["dimension_numbers"] = spelled
    return tuple(lhs[a] for a in spelled[0]), tuple(rhs[a] for a in spelled[1]), options


@budget(PROGRAM)
@given(convolutions(), st.sampled_from(TARGETS), st.sampled_from(["fast", "literal"]))
def test_random_convolutions(case, target, engine):
    lhs_shape, rhs_shape, options = case
    rng = np.random.default_rng(0)
    lhs, rhs = (rng.standard_normal(s).astype(np.float32) for s in (lhs_shape, rhs_shape))

    def f(x, w):
        return lax.conv_general_dilated(x, w, **options)

    lowered = ipuxla.jit(f, target=target).lower(lhs, rhs)
    check_close(lowered.compile(engine="fast")(lhs, rhs), jax.jit(f)(lhs, rhs))
    found = lowered.compile(engine=engine, arithmetic="ring")(lhs, rhs)
    np.testing.assert_array_equal(found, lowered.compile(engine="hlo", arithmetic="ring")(lhs, rhs))


@budget(PROGRAM)
@given(
    st.lists(
        st.tuples(st.integers(1, 7), small, small, st.integers(0, 2), st.integers(0, 2)),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(["max", "add"]),
    st.sampled_from(TARGETS),
    st.sampled_from(["fast", "literal"]),
)
def test_random_pooling_and_its_gradient(axes, kind, target, engine):
    sizes, window, strides, low, high = zip(*axes, strict=True)
    fold, start = {"max": (lax.max, -np.inf), "add": (lax.add, 0.0)}[kind]

    def f(x):
        return lax.reduce_window(x, start, fold, window, strides, list(zip(low, high, strict=True)))

    def both(x):
        value, pull = jax.vjp(f, x)
        return value, pull(value)

    x = np.round(np.random.default_rng(0).standard_normal(sizes) * 2).astype(np.float32)
    lowered = ipuxla.jit(both, target=target).lower(x)
    words = lowered.compile(engine="hlo", arithmetic="ring")(x)
    found = lowered.compile(engine=engine, arithmetic="ring")(x)
    jax.tree.map(np.testing.assert_array_equal, found, words)
