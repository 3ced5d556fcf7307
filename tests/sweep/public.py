"""What the sweep is complete over: the public functions of JAX's modules, by the prefixes that cases name them with."""

from __future__ import annotations

import inspect
from types import ModuleType

import jax
import jax.numpy as jnp
import jax.scipy as scipy
import jax.scipy.cluster.vq
import jax.scipy.fft
import jax.scipy.integrate
import jax.scipy.interpolate
import jax.scipy.ndimage
import jax.scipy.optimize
import jax.scipy.sparse.linalg
import jax.scipy.spatial.transform
import jax.scipy.stats

PUBLIC: dict[str, ModuleType] = {
    "jnp": jnp,
    "linalg": jnp.linalg,
    "fft": jnp.fft,
    "lax": jax.lax,
    "lax.linalg": jax.lax.linalg,
    "nn": jax.nn,
    "nn.initializers": jax.nn.initializers,
    "random": jax.random,
    "image": jax.image,
    "ops": jax.ops,
    "scipy.special": scipy.special,
    "scipy.linalg": scipy.linalg,
    "scipy.fft": scipy.fft,
    "scipy.integrate": scipy.integrate,
    "scipy.interpolate": scipy.interpolate,
    "scipy.ndimage": scipy.ndimage,
    "scipy.optimize": scipy.optimize,
    "scipy.signal": scipy.signal,
    "scipy.stats": scipy.stats,
    "scipy.cluster.vq": scipy.cluster.vq,
    "scipy.spatial.transform": scipy.spatial.transform,
    "sparse.linalg": scipy.sparse.linalg,
}

_ON_THE_HOST = "answers from types and shapes, or reads and writes files: nothing is left for a device"
_NO_STATIC_SHAPE = "its result's shape depends on numbers, so that no jit takes it"
_COLLECTIVE = "collectives: under vmap and shard_map in cases of those names"
_SHAPES = "numbers of dimensions, computed while tracing"

LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(
        (
            *(
                "array_repr",
                "array_str",
                "array_to_string",
                "broadcast_shapes",
                "can_cast",
                "einsum_path",
                "finfo",
                "iinfo",
            ),
            *(
                "from_dlpack",
                "frombuffer",
                "fromfile",
                "fromiter",
                "fromstring",
                "get_printoptions",
                "printoptions",
            ),
            *(
                "iscomplexobj",
                "isdtype",
                "isrealobj",
                "isscalar",
                "issubdtype",
                "iterable",
                "load",
                "ndim",
                "promote_types",
            ),
            *("result_type", "save", "savez", "set_printoptions", "shape", "size", "array2string"),
        ),
        _ON_THE_HOST,
    ),
    "trim_zeros": _NO_STATIC_SHAPE,
    **dict.fromkeys(
        (
            *(
                "all_gather",
                "all_to_all",
                "axis_index",
                "axis_size",
                "pbroadcast",
                "pcast",
                "pmax",
                "pmean",
                "pmin",
                "ppermute",
            ),
            *(
                "psend",
                "precv",
                "pshuffle",
                "psum",
                "psum_scatter",
                "pswapaxes",
                "ragged_all_to_all",
                "all_gather_reduced",
            ),
            *(
                "pvary",
                "preduced",
                "reduced_vary_cast",
                "unreduced_psum",
                "unreduced_psum_scatter",
                "unreduced_reduce_scatter",
            ),
        ),
        _COLLECTIVE,
    ),
    **dict.fromkeys(
        (
            *(
                "conv_dimension_numbers",
                "conv_general_permutations",
                "conv_general_shape_tuple",
                "conv_shape_tuple",
            ),
            *(
                "conv_transpose_shape_tuple",
                "dtype",
                "padtype_to_pads",
                "reduce_window_shape_tuple",
                "shape_as_value",
            ),
            *(
                "get_scaled_dot_general_config",
                "ConvGeneralDilatedDimensionNumbers",
                "DotDimensionNumbers",
                "PrecisionLike",
            ),
        ),
        _SHAPES,
    ),
    **dict.fromkeys(("after_all", "create_token"), "orders effects, which a program on an IPU has not"),
    **dict.fromkeys(
        ("approx_max_k", "approx_min_k", "top_k"),
        "tested with sorting: tests/system/test_sorting_and_random.py",
    ),
    **dict.fromkeys(("scaled_dot_general", "scaled_dot"), "by the name of scaled_matmul"),
    "with_sharding_constraint": "by the name of mesh: with_sharding_constraint",
    "key_dtype": _ON_THE_HOST,
    "key_impl": _ON_THE_HOST,
    "random_gamma_p": "a primitive: by the name of random.gamma",
}
"""Names without a case, each with the reason."""


def public_functions(module: ModuleType) -> list[str]:
    """Return the names of a module's public functions: no classes, no primitives, no modules."""
    found = []
    for name in dir(module):
        value = getattr(module, name)
        if name.startswith("_") or name.endswith("_p") or inspect.ismodule(value) or not callable(value):
            continue
        if not inspect.isclass(value):
            found.append(name)
    return found
