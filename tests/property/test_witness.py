"""Engine ``hlo`` means what its operations mean one by one, though XLA compiles them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from jax import lax

import ipuxla
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=4)

Step = Callable[[Any, Any], Any]


def slice_of(size: int) -> Step:
    return lambda x, start: lax.dynamic_slice(x, (start,), (min(size, x.shape[0]),))


def update_of(size: int) -> Step:
    return lambda x, start: lax.dynamic_update_slice(x, -x[: min(size, x.shape[0])], (start,))


def rows_of(size: int) -> Step:
    return lambda x, start: jnp.take(x, start + jnp.arange(size, dtype=start.dtype), mode="clip")


KINDS = st.sampled_from([slice_of, slice_of, update_of, rows_of])


@given(
    st.tuples(*(st.tuples(KINDS, st.just(size)) for size in (7, 4, 2))),
    st.tuples(*[st.sampled_from([-3, 0, 1, 2, 4, 9])] * 3),
    st.booleans(),
)
def test_offsets_are_clamped_operation_by_operation(
    steps: Sequence[tuple[Callable[[int], Step], int]], starts: Sequence[int], is_unsigned: bool
) -> None:
    """A slice of a slice is clamped twice: XLA:CPU adds the offsets first where one jit compiles both."""
    x = np.arange(10, dtype=np.float32)
    dtype = np.uint32 if is_unsigned else np.int32
    values = np.abs(starts).astype(dtype) if is_unsigned else np.asarray(starts, dtype)

    def program(x: Any, starts: Any) -> Any:
        for (kind, size), start in zip(steps, starts, strict=True):
            x = kind(size)(x, start)
        return x

    want = np.asarray(program(x, [jnp.asarray(v) for v in values]))  # every operation compiled alone
    got = ipuxla.jit(program, target=TARGET, engine="hlo")(x, list(values))
    np.testing.assert_array_equal(np.asarray(got), want)
