"""Convolutions as every backend of XLA has them.

XLA:GPU leaves convolutions to cuDNN, which has none of integers, and few whose result is wider than their operands.
Everything that convolves goes through here, so that a program means the same wherever JAX's default device is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles._jax_compat import conv_dimension_numbers, dot_general
from tiles.platforms import default_platform


def convolve(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    *,
    precision: Any = None,
    preferred_element_type: Any,
) -> Array:
    """Return ``lax.conv_general_dilated`` of the same arguments.

    Elsewhere than on a CPU, integers are multiplied window by window, which takes memory for as many copies of ``lhs`` as
    the kernel has taps; and floats are as wide as their sums before they are multiplied, which rounds nothing.

    Args:
      lhs: activations.
      rhs: kernel.
      window_strides: for each spatial dimension, as are the three that follow.
      padding: at both ends, in elements of the dilated ``lhs``; negative to leave elements out.
      lhs_dilation: distance of elements of ``lhs``, 1 if None.
      rhs_dilation: distance of taps, 1 if None.
      dimension_numbers: ``lax.ConvDimensionNumbers``.
      feature_group_count: groups of channels.
      batch_group_count: groups of the batch.
      precision: of products of floats.
      preferred_element_type: in which sums are made, and the result's.
    """
    dtype = np.dtype(preferred_element_type)
    if default_platform() != "cpu":
        lhs, rhs = lhs.astype(dtype), rhs.astype(dtype)
        if not jnp.issubdtype(dtype, np.floating):
            ones = (1,) * len(window_strides)
            dilations = (lhs_dilation or ones, rhs_dilation or ones)
            groups = (feature_group_count, batch_group_count)
            return in_windows(lhs, rhs, window_strides, padding, dilations, dimension_numbers, groups)
    return lax.conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        dimension_numbers,
        feature_group_count,
        batch_group_count,
        precision=precision,
        preferred_element_type=dtype,
    )


def in_windows(
    lhs: Array,
    rhs: Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilations: tuple[Sequence[int], Sequence[int]],
    dimension_numbers: Any,
    groups: tuple[int, int],
) -> Array:
    """Return a convolution of two arrays of one type as one product of matrices, of windows with the kernel.

    Args:
      lhs: activations.
      rhs: kernel.
      strides: of windows.
      padding: at both ends of each spatial dimension.
      dilations: of ``lhs`` and of ``rhs``.
      dimension_numbers: ``lax.ConvDimensionNumbers``.
      groups: of features and of the batch; at least one of them is 1.
    """
    spec = conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    x, kernel = lax.transpose(lhs, spec.lhs_spec), lax.transpose(rhs, spec.rhs_spec)
    # [N, C, *space] -> [N, C, *(positions, taps)]
    edges = [(low, high, step - 1) for (low, high), step in zip(padding, dilations[0], strict=True)]
    x = lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *edges])
    taps = kernel.shape[2:]
    for number, (count, stride, distance) in enumerate(zip(taps, strides, dilations[1], strict=True)):
        axis = 2 + 2 * number
        free = x.shape[axis] - ((count - 1) * distance + 1)
        positions = free // stride + 1 if free >= 0 else 0
        index = np.arange(positions)[:, None] * stride + np.arange(count) * distance
        shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
        x = (
            jnp.take(x, index.reshape(-1), axis=axis).reshape(shape)
            if index.size
            else jnp.zeros(shape, x.dtype)
        )
    # groups first in both: [G, N, C, ...] of windows, [G, O, I, *taps] of the kernel
    features, batches = groups
    count, outputs = max(groups), kernel.shape[0]
    if batches > 1:
        x = x.reshape(count, x.shape[0] // count, *x.shape[1:])
    else:
        x = jnp.moveaxis(x.reshape(x.shape[0], features, x.shape[1] // features, *x.shape[2:]), 1, 0)
    kernel = kernel.reshape(count, outputs // count, *kernel.shape[1:])
    of_taps = range(3, 3 + len(taps))
    contracted = (2, *(4 + 2 * number for number in range(len(taps)))), (2, *of_taps)
    sums = dot_general(x, kernel, (contracted, ((0,), (0,))), preferred_element_type=x.dtype)
    # [G, N, *positions, O] -> [N, G * O, *positions] -> as asked for
    sums = jnp.moveaxis(sums, (1, 0, -1), (0, 1, 2))
    sums = sums.reshape(sums.shape[0], math.prod(sums.shape[1:3]), *sums.shape[3:])
    return lax.transpose(sums, np.argsort(spec.out_spec).tolist())
