"""Tolerances: what they accept, what they refuse, and what they say."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tiles.numerics.tolerance import NotClose, check_close, max_error, tolerance_of, ulp_distance


def test_tolerances_by_type():
    assert [tolerance_of(d) for d in ("float32", "float16", "bfloat16", "int32", "bool")] == [
        1e-4,
        1e-2,
        1e-2,
        0,
        0,
    ]


def test_neighbours_of_eight_bits_are_close():
    """Nine is 8 or 10 in a type whose numbers there lie two apart."""
    check_close(np.array([8.0], ml_dtypes.float8_e5m2), np.array([10.0], ml_dtypes.float8_e5m2))
    check_close(np.array([10.0], ml_dtypes.float8_e5m2), np.array([8.0], ml_dtypes.float8_e5m2))
    with pytest.raises(NotClose):
        check_close(np.array([12.0], ml_dtypes.float8_e5m2), np.array([8.0], ml_dtypes.float8_e5m2))
    with pytest.raises(NotClose):
        check_close(np.array([10.0], ml_dtypes.float8_e3m4), np.array([8.0], ml_dtypes.float8_e3m4))


@pytest.mark.parametrize(
    ("dtype", "share"), [(np.float32, 1e-4), (np.float16, 1e-2), (ml_dtypes.bfloat16, 1e-2)]
)
def test_error_is_relative_to_the_largest_value(dtype, share):
    want = np.array([100.0, 0.0, -50.0], dtype)
    inside, outside = want.copy(), want.copy()
    inside[1], outside[1] = 100 * share * 0.9, 100 * share * 1.1
    check_close(inside, want)
    with pytest.raises(NotClose, match=r"at \[1\]"):
        check_close(outside, want, "loss")


def test_integers_booleans_and_keys_are_exact():
    check_close(np.arange(3), np.arange(3))
    with pytest.raises(NotClose, match=r"1 of 3 differ; at \[2\]"):
        check_close(np.array([0, 1, 3]), np.arange(3))
    with pytest.raises(NotClose):
        check_close(np.array([True]), np.array([False]))
    check_close(jax.random.key(3), jax.random.key(3))
    with pytest.raises(NotClose):
        check_close(jax.random.key(3), jax.random.key(4))


def test_nans_and_infinities_must_lie_in_the_same_places():
    want = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    check_close(want.copy(), want)
    assert max_error(want, want) == 0
    for place, value in ((0, 1.0), (1, -np.inf), (3, np.nan), (2, 3.0)):
        got = want.copy()
        got[place] = value
        assert max_error(got, want) == np.inf
        with pytest.raises(NotClose, match="off by inf"):
            check_close(got, want)


def test_shape_type_and_structure_count():
    with pytest.raises(NotClose, match=r"float32\[2\], expected float32\[1, 2\]"):
        check_close(np.zeros(2, np.float32), np.zeros((1, 2), np.float32))
    with pytest.raises(NotClose, match="float32"):
        check_close(jnp.zeros(2), np.zeros(2, np.float16))
    with pytest.raises(NotClose, match="structure"):
        check_close((1, 2), [1, 2])
    with pytest.raises(NotClose, match=r"params\['w'\]\[1\]: "):
        check_close({"w": [1, 2]}, {"w": [1, 3]}, "params")
    check_close(
        {"w": (np.zeros(0, np.float32), np.int64(2**62))}, {"w": (np.zeros(0, np.float32), np.int64(2**62))}
    )


def test_zero_results_allow_no_error():
    assert max_error(np.zeros(2), np.zeros(2)) == 0
    assert max_error(np.array([1e-9]), np.zeros(1)) == np.inf
    assert max_error(np.array([2**62 + 1]), np.array([2**62])) == pytest.approx(2.0**-62)


def _neighbours(dtype):
    bits = np.arange(2 ** (8 * np.dtype(dtype).itemsize), dtype=f"uint{8 * np.dtype(dtype).itemsize}")
    values = bits.view(dtype)
    with np.errstate(invalid="ignore"):
        values = values.astype(np.float64)
    return np.unique(values[np.isfinite(values)]).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_ulp_distance_counts_representable_numbers(dtype):
    ordered = _neighbours(dtype)
    assert (ulp_distance(ordered[1:], ordered[:-1]) == 1).all()
    assert (ulp_distance(ordered, ordered) == 0).all()
    assert ulp_distance(ordered[:1], ordered[-1:])[0] == len(ordered) - 1


def test_ulp_distance_of_wide_types_and_specials():
    one = np.float32(1)
    assert ulp_distance(np.nextafter(one, np.float32(2)), one) == 1
    assert ulp_distance(np.float64(-0.0), np.float64(0.0)) == 0
    assert ulp_distance(np.finfo(np.float64).max, -np.finfo(np.float64).max) == 2 * (0x7FF0000000000000 - 1)
    assert ulp_distance(np.float32(np.nan), np.float32(np.nan)) == 0
    assert ulp_distance(np.float32(np.nan), one) == 2**64 - 1
    with pytest.raises(TypeError):
        ulp_distance(one, np.float64(1))
