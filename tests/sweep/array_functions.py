"""jax.numpy, with its linear algebra and Fourier transforms apart."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from tests.sweep.cases import SPECIAL, Function, Group, booleans, integers, normal, uniform

GROUP = Group("jax.numpy")
add = GROUP.add

X, Y = normal(3, 4), normal(3, 4, seed=1)
V, W = normal(7), normal(7, seed=1)
N, M = integers(9, 3, 4, low=-8), integers(9, 3, 4, low=1, seed=1)
U = integers(9, 3, 4).astype(np.uint8)
B, C = booleans(3, 4), booleans(3, 4, seed=1)
Z = X + 1j * Y
HALF, BRAIN = X.astype(np.float16), jnp.asarray(X, jnp.bfloat16)
POSITIVE = uniform(3, 4, low=0.1, high=3.0)


def each(function: Function) -> Function:
    """Return a function that applies one to every argument."""
    return lambda *arrays: [function(array) for array in arrays]


def pairs(function: Function) -> Function:
    """Return a function that applies one to every two arguments in turn."""
    return lambda *arrays: [function(a, b) for a, b in zip(arrays[::2], arrays[1::2], strict=True)]


# ---- elementwise

_UNARY = """abs absolute acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh cbrt ceil conj
conjugate cos cosh deg2rad degrees exp exp2 expm1 fabs floor i0 imag invert isfinite isinf isnan isneginf isposinf log
log10 log1p log2 logical_not negative positive rad2deg radians real reciprocal rint round sign signbit sin sinc sinh
sqrt square tan tanh trunc nan_to_num iscomplex isreal angle around spacing"""
_ON_FLOATS = {
    "cbrt",
    "deg2rad",
    "rad2deg",
    "degrees",
    "radians",
    "i0",
    "isneginf",
    "isposinf",
    "fabs",
    "spacing",
}
_ON_COMPLEX = {
    *(
        "abs",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "conj",
        "cos",
        "cosh",
        "exp",
        "expm1",
        "log",
        "log1p",
    ),
    *(
        "sin",
        "sinh",
        "sqrt",
        "square",
        "tan",
        "tanh",
        "sign",
        "angle",
        "isnan",
        "isfinite",
        "reciprocal",
        "log2",
        "log10",
    ),
    *("real", "imag", "round", "sinc", "nan_to_num", "exp2"),
}
for _name in _UNARY.split():
    _function = getattr(jnp, _name)
    if _name == "invert":
        add("jnp.invert", each(_function), N, U, B)
        continue
    add(f"jnp.{_name}", each(_function), X, SPECIAL, HALF, BRAIN)
    if _name not in _ON_FLOATS:
        add(f"jnp.{_name}: integers", each(_function), N, U)
    if _name in _ON_COMPLEX:
        add(f"jnp.{_name}: complex", _function, Z)

_BINARY = """add arctan2 atan2 copysign divide equal float_power floor_divide fmax fmin fmod greater greater_equal
heaviside hypot less less_equal logaddexp logaddexp2 maximum minimum mod multiply nextafter not_equal pow power
remainder subtract true_divide logical_and logical_or logical_xor isclose"""
_NOT_ON_INTEGERS = {
    "hypot",
    "logaddexp",
    "logaddexp2",
    "nextafter",
    "heaviside",
    "pow",
    "power",
    "float_power",
}
for _name in _BINARY.split():
    _function = getattr(jnp, _name)
    add(f"jnp.{_name}", pairs(_function), X, Y, SPECIAL[:, None], SPECIAL, HALF, HALF.T[:1].T, BRAIN, BRAIN)
    if _name not in _NOT_ON_INTEGERS:
        add(f"jnp.{_name}: integers", pairs(_function), N, M, U, U + np.uint8(1))

for _name in "bitwise_and bitwise_or bitwise_xor".split():
    add(f"jnp.{_name}", pairs(getattr(jnp, _name)), N, M, U, U + np.uint8(1), B, C)
for _name in "bitwise_left_shift bitwise_right_shift left_shift right_shift".split():
    add(f"jnp.{_name}", pairs(getattr(jnp, _name)), N, M, U, U + np.uint8(1))
for _name in "bitwise_invert bitwise_not bitwise_count".split():
    add(f"jnp.{_name}", each(getattr(jnp, _name)), N, U)
for _name in "gcd lcm".split():
    add(f"jnp.{_name}", getattr(jnp, _name), N, M)
add("jnp.power: integers", lambda n, m: (n**m, n**3, 2**m, n**0), N, M)
add("jnp.pow: Python exponents", lambda x: (x**2, x**-1, x**0.5, x**3, 2**x, x**0), POSITIVE)
add("jnp.pow: complex", lambda z: (z**2, z**-1, z**0.5, z**z), Z)
add("jnp.divmod", pairs(jnp.divmod), X, Y, N, M)
add("jnp.modf", each(jnp.modf), X, SPECIAL)
add("jnp.frexp", jnp.frexp, X)
add("jnp.ldexp", jnp.ldexp, X, N)
add("jnp.multiply: complex", lambda a, b: (a * b, a / b, a - b, a == b), Z, Z.T[:1].T)
add("jnp.clip", lambda x, n: (jnp.clip(x, -0.5, 0.5), jnp.clip(n, min=2), jnp.clip(x, max=x[:1])), X, N)
add("jnp.where", lambda b, x, y: (jnp.where(b, x, y), jnp.where(b, 1.0, y), jnp.where(b, x, 0)), B, X, Y)
add("jnp.where: one argument", lambda b: jnp.where(b, size=5, fill_value=-1), B)
add("jnp.select", lambda b, c, x, y: jnp.select([b, c], [x, y], 7.0), B, C, X, Y)
add("jnp.piecewise", lambda x: jnp.piecewise(x, [x < 0, x > 1], [-1.0, lambda x: x * 2, 0.0]), X)
add("jnp.choose", lambda n, x, y: jnp.choose(n, [x, y], mode="wrap"), N, X, Y)
add("jnp.interp", jnp.interp, X, np.sort(V), W)
add("jnp.interp: period", lambda x, v, w: jnp.interp(x, v, w, period=2.0), X, V, W)
add("jnp.vectorize", jnp.vectorize(lambda a, b: a @ b, signature="(n),(n)->()"), X, Y)
add("jnp.frompyfunc", lambda x, y: jnp.frompyfunc(lambda a, b: a * b + 1, 2, 1)(x, y), X, Y)
add("jnp.ufunc", lambda x, y: (jnp.add.outer(x, y), jnp.multiply.reduce(x), jnp.add.accumulate(y)), V, W)
add(
    "jnp.ufunc: at",
    lambda x, n, y: jnp.add.at(x, n, y, inplace=False),
    V,
    np.array([1, 5, 1]),
    np.ones(3, np.float32),
)
add("jnp.ufunc: reduceat", lambda x: jnp.add.reduceat(x, jnp.array([0, 3, 5])), V)

# ---- reductions

_REDUCTIONS = """all amax amin any argmax argmin average count_nonzero max mean median min nanargmax nanargmin nanmax
nanmean nanmedian nanmin nanprod nanstd nansum nanvar prod ptp std sum var"""
HOLES = np.where(np.arange(12).reshape(3, 4) % 5 == 1, np.nan, X).astype(np.float32)
for _name in _REDUCTIONS.split():
    _function = getattr(jnp, _name)

    def _reduce(x, n, function=_function):
        return function(x), function(x, axis=0), function(n, axis=-1, keepdims=True)

    if _name == "average":
        add("jnp.average", lambda x, y: (jnp.average(x), jnp.average(x, 0, y, returned=True)), X, POSITIVE)
        continue
    add(f"jnp.{_name}", _reduce, HOLES if "nan" in _name else X, N)
    add(f"jnp.{_name}: NaN", lambda x, f=_function: (f(x), f(x, axis=1)), HOLES)
add(
    "jnp.sum: where",
    lambda x, b: (jnp.sum(x, where=b), jnp.max(x, 0, where=b, initial=-9.0), jnp.mean(x, where=b)),
    X,
    B,
)
add(
    "jnp.sum: types",
    lambda n, h, b: (n.sum(dtype=jnp.float32), h.sum(), h.sum(dtype=jnp.float32), b.sum()),
    N,
    HALF,
    B,
)
add(
    "jnp.sum: of nothing",
    lambda x: (x.sum(), x.sum(0), x.prod(), x.any(), x.mean(1)),
    np.zeros((0, 3), np.float32),
)
for _name in "percentile nanpercentile quantile nanquantile".split():
    _scale = 100 if "percent" in _name else 1
    add(
        f"jnp.{_name}",
        lambda x, f=getattr(jnp, _name), s=_scale: (f(x, s * 0.3), f(x, jnp.array([0.25, 0.5]) * s, axis=0)),
        X,
    )
for _method in "lower higher midpoint nearest".split():
    add(f"jnp.quantile: {_method}", lambda x, m=_method: jnp.quantile(x, 0.3, axis=1, method=m), X)
for _name in "cumsum cumprod nancumsum nancumprod cumulative_sum cumulative_prod".split():
    add(f"jnp.{_name}", lambda x, n, f=getattr(jnp, _name): (f(x, axis=0), f(n, axis=1)), X, N)
add("jnp.cumulative_sum: with the start", lambda x: jnp.cumulative_sum(x, axis=1, include_initial=True), X)
add("jnp.allclose", jnp.allclose, X, X + 1e-9)
add(
    "jnp.array_equal",
    lambda x, y: (jnp.array_equal(x, y), jnp.array_equal(x, x), jnp.array_equiv(x, x[:1])),
    X,
    Y,
)
add("jnp.array_equiv", jnp.array_equiv, X, X)
add("jnp.apply_along_axis", lambda x: jnp.apply_along_axis(lambda v: v / v.sum(), 1, x), X)
add("jnp.apply_over_axes", lambda x: jnp.apply_over_axes(jnp.sum, x, [0, 1]), X)
add("jnp.trapezoid", lambda x, y: (jnp.trapezoid(x), jnp.trapezoid(x, y, axis=0)), X, Y)
add("jnp.diff", lambda x: (jnp.diff(x), jnp.diff(x, n=2, axis=0), jnp.diff(x, prepend=0.0)), X)
add("jnp.ediff1d", lambda x: jnp.ediff1d(x, to_begin=0.0), X)
add("jnp.gradient", lambda x: (jnp.gradient(x), jnp.gradient(x, 0.5, axis=1)), X)
add("jnp.cov", lambda x, y: (jnp.cov(x), jnp.cov(x, y, rowvar=False, ddof=0)), X, Y)
add("jnp.corrcoef", jnp.corrcoef, X)
add("jnp.correlate", lambda x, y: [jnp.correlate(x, y[:3], mode) for mode in ("full", "same", "valid")], V, W)
add("jnp.convolve", lambda x, y: [jnp.convolve(x, y[:3], mode) for mode in ("full", "same", "valid")], V, W)

# ---- shapes

add("jnp.append", lambda x, y: (jnp.append(x, y), jnp.append(x, y, axis=1)), X, Y)
add("jnp.array_split", lambda x: jnp.array_split(x, 3, axis=1), X)
for _name in "atleast_1d atleast_2d atleast_3d".split():
    add(f"jnp.{_name}", each(getattr(jnp, _name)), np.float32(2), V, X)
add("jnp.block", lambda x, y: jnp.block([[x, y], [y, x]]), X, Y)
add("jnp.broadcast_arrays", lambda x, v: jnp.broadcast_arrays(x, v[:4]), X, V)
add("jnp.broadcast_to", lambda v: jnp.broadcast_to(v, (2, 3, 7)), V)
for _name in "column_stack dstack hstack vstack stack concatenate concat".split():
    add(f"jnp.{_name}", lambda x, y, f=getattr(jnp, _name): f([x, y, x]), X, Y)
add("jnp.concatenate: of other types", lambda x, n: jnp.concatenate([x, n], axis=None), X, N)
add("jnp.stack: axis", lambda x, y: (jnp.stack([x, y], -1), jnp.concatenate([x, y], -1)), X, Y)
add("jnp.copy", jnp.copy, X)
add(
    "jnp.delete",
    lambda x: (
        jnp.delete(x, 1, axis=1),
        jnp.delete(x, jnp.array([0, 2]), axis=0, assume_unique_indices=True),
    ),
    X,
)
add("jnp.diag", lambda v, x: (jnp.diag(v), jnp.diag(x, 1), jnp.diag(v, -1)), V, X)
add("jnp.diagflat", jnp.diagflat, X)
add("jnp.diagonal", lambda x: (jnp.diagonal(x), jnp.diagonal(x, 1)), X)
add("jnp.expand_dims", lambda x: jnp.expand_dims(x, (0, 2)), X)
for _name in "flip fliplr flipud".split():
    add(f"jnp.{_name}", getattr(jnp, _name), X)
for _name, _axis in (("hsplit", 2), ("vsplit", 3), ("split", 3)):
    add(f"jnp.{_name}", lambda x, f=getattr(jnp, _name), n=_axis: f(x, n), X)
add("jnp.dsplit", lambda x: jnp.dsplit(x[None, :, :], 2), X)
add("jnp.split: at indices", lambda x: jnp.split(x, [1, 3], axis=1), X)
add("jnp.insert", lambda x: (jnp.insert(x, 1, 9.0, axis=1), jnp.insert(x, jnp.array([0, 2]), 5.0)), X)
add("jnp.matrix_transpose", jnp.matrix_transpose, X)
add(
    "jnp.meshgrid",
    lambda x, y: (jnp.meshgrid(x, y), jnp.meshgrid(x, y, indexing="ij", sparse=True)),
    V,
    W[:3],
)
add("jnp.moveaxis", lambda x: jnp.moveaxis(x[None], 0, -1), X)
_MODES = "constant edge linear_ramp maximum mean median minimum reflect symmetric wrap empty"
for _mode in _MODES.split():
    add(
        f"jnp.pad: {_mode}",
        lambda x, m=_mode: jnp.pad(x, ((1, 2), (0, 1)), m) if m != "empty" else jnp.pad(x, 1, m)[1:-1, 1:-1],
        X,
    )
add("jnp.pad", lambda x: (jnp.pad(x, 1, constant_values=3), jnp.pad(x, ((0, 0), (2, 1)))), X)
add("jnp.permute_dims", lambda x: jnp.permute_dims(x[None], (2, 0, 1)), X)
for _name in "ravel squeeze transpose".split():
    add(f"jnp.{_name}", getattr(jnp, _name), X[:, None])
add(
    "jnp.repeat",
    lambda x, n: (
        jnp.repeat(x, 2, axis=1),
        jnp.repeat(x, 3),
        jnp.repeat(x, n, axis=0, total_repeat_length=8),
    ),
    X,
    np.array([1, 4, 2]),
)
add("jnp.reshape", lambda x: (x.reshape(4, -1), x.reshape(-1), jnp.reshape(x, (2, 6), order="F")), X)
add("jnp.resize", lambda x: jnp.resize(x, (5, 3)), X)
add(
    "jnp.roll",
    lambda x, n: (jnp.roll(x, 2), jnp.roll(x, 1, axis=1), jnp.roll(x, (1, 2), (0, 1)), jnp.roll(x, n, 0)),
    X,
    5,
)
add("jnp.rollaxis", lambda x: jnp.rollaxis(x[None], 2), X)
add("jnp.rot90", lambda x: (jnp.rot90(x), jnp.rot90(x, 2)), X)
add("jnp.swapaxes", lambda x: jnp.swapaxes(x[None], 0, 2), X)
add("jnp.tile", lambda x: jnp.tile(x, (2, 3)), X)
for _name in "tril triu".split():
    add(f"jnp.{_name}", lambda x, f=getattr(jnp, _name): (f(x), f(x, 1), f(x[None], -1)), X)
add("jnp.unstack", lambda x: jnp.unstack(x, axis=1), X)
add("jnp.kron", jnp.kron, X, Y)
add(
    "jnp.astype",
    lambda x, n: (jnp.astype(x, jnp.int8), n.astype(jnp.float16), x.astype(bool), n.astype(jnp.uint8)),
    X,
    N,
)
add("jnp.packbits", lambda b: (jnp.packbits(b), jnp.packbits(b, axis=0, bitorder="little")), booleans(3, 11))
add("jnp.unpackbits", lambda u: (jnp.unpackbits(u), jnp.unpackbits(u, axis=1, count=5)), U)

# ---- making arrays

add("jnp.arange", lambda: (jnp.arange(5), jnp.arange(1.0, 2.0, 0.25), jnp.arange(7, 0, -2)))
add(
    "jnp.array",
    lambda x: (jnp.array([x, x + 1]), jnp.array([1, 2]), jnp.array(3.0), jnp.array([[x.sum(), 2.0]])),
    X,
)
add("jnp.asarray", lambda x: (jnp.asarray(x), jnp.asarray([1.0, 2.0], jnp.bfloat16)), X)
for _name in "bartlett blackman hamming hanning".split():
    add(f"jnp.{_name}", lambda f=getattr(jnp, _name): f(9))
add("jnp.kaiser", lambda: jnp.kaiser(9, 2.5))
add("jnp.eye", lambda: (jnp.eye(3), jnp.eye(2, 4, 1), jnp.identity(3)))
add("jnp.identity", lambda x: x[:3, :3] + jnp.identity(3), X)
add("jnp.fromfunction", lambda x: jnp.fromfunction(lambda i, j: i * j + x[0, 0], (3, 4)), X)
for _name in "empty_like full_like ones_like zeros_like".split():
    _extra = (2,) if _name == "full_like" else ()
    add(f"jnp.{_name}", lambda x, n, f=getattr(jnp, _name), e=_extra: (f(x, *e), f(n, *e)), X, N)
for _name in "empty ones zeros".split():
    add(f"jnp.{_name}", lambda f=getattr(jnp, _name): (f((2, 3)), f(4, jnp.int8), f((0, 2)), f((), bool)))
add("jnp.full", lambda x: (jnp.full((2, 3), x[0, 0]), jnp.full(3, 7), jnp.full((2,), jnp.inf)), X)
for _name in "geomspace linspace logspace".split():
    add(
        f"jnp.{_name}",
        lambda a, f=getattr(jnp, _name): (f(1.0, 3.0, 5), f(a, a + 2, 4, endpoint=False)),
        np.float32(1.5),
    )
for _name in "indices diag_indices tril_indices triu_indices".split():
    add(f"jnp.{_name}", lambda f=getattr(jnp, _name), n=(2, 3) if _name == "indices" else 3: f(n))
for _name in "diag_indices_from tril_indices_from triu_indices_from".split():
    add(f"jnp.{_name}", lambda x, f=getattr(jnp, _name): f(x[:3, :3]), X)
add("jnp.mask_indices", lambda: jnp.mask_indices(3, jnp.triu, size=6))
add("jnp.ix_", lambda x, n: x[jnp.ix_(n, n[:2])], X, np.array([2, 0, 1]))
add("jnp.tri", lambda: (jnp.tri(3), jnp.tri(3, 4, -1)))
add("jnp.vander", lambda x: (jnp.vander(x), jnp.vander(x, 3, increasing=True)), V)
add(
    "jnp.mgrid",
    lambda: (jnp.mgrid[0:3, 0:2], jnp.ogrid[0:1:5j], jnp.r_[1, 2, 3:6], jnp.c_[jnp.ones(2), jnp.zeros(2)]),
)

# ---- indexing

add(
    "jnp.take",
    lambda x, n: [jnp.take(x, n, axis=1, mode=m) for m in ("clip", "wrap", "fill")],
    X,
    np.array([0, 5, -1, 2]),
)
add("jnp.take_along_axis", lambda x: jnp.take_along_axis(x, jnp.argsort(x, axis=1), axis=1), X)
add("jnp.put", lambda x: jnp.put(x, jnp.array([1, 5]), jnp.array([7.0, 8.0]), inplace=False), X)
add("jnp.put_along_axis", lambda x, n: jnp.put_along_axis(x, n % 4, 9.0, axis=1, inplace=False), X, N)
add("jnp.place", lambda x, b: jnp.place(x, b, jnp.array([1.0, 2.0, 3.0]), inplace=False), X, B)
add("jnp.fill_diagonal", lambda x: jnp.fill_diagonal(x, 5.0, inplace=False), X)
add("jnp.extract", lambda b, x: jnp.extract(b, x, size=5, fill_value=0), B, X)
add("jnp.compress", lambda x: jnp.compress(jnp.array([True, False, True]), x, axis=0, size=2), X)
for _name in "argwhere flatnonzero nonzero".split():
    add(f"jnp.{_name}", lambda x, f=getattr(jnp, _name): f(x > 0, size=6, fill_value=0), X)
add("jnp.ravel_multi_index", lambda n: jnp.ravel_multi_index((n % 3, n % 4), (3, 4), mode="clip"), N)
add("jnp.unravel_index", lambda n: jnp.unravel_index(n % 12, (3, 4)), N)
add("jnp.unwrap", lambda x: jnp.unwrap(x * 5), V)
add("index: slices", lambda x: (x[1], x[-1, ::2], x[..., None], x[::-1, 1:3], x[:, -2:], x[None, 1:1]), X)
add(
    "index: arrays", lambda x, n: (x[n], x[n, n], x[:, n], x[n[:, None], n], x[-n]), X, np.array([2, 0, 1, 1])
)
add(
    "index: out of range",
    lambda x, n: (x[n], x.at[n].set(0.0), x.at[n].get(mode="fill", fill_value=-1)),
    V,
    np.array([9, -9, 3]),
)
add("index: a traced number", lambda x, i: (x[i], x[i, i], x[:, i], x[i, None]), X, 2)
add("index: masks", lambda x, b: (jnp.where(b, x, 0).sum(), x[np.array([True, False, True])]), X, B)
_UPDATES = "set add multiply divide min max power subtract mul"
for _name in _UPDATES.split():
    if hasattr(jnp.zeros(1).at[0], _name):
        add(
            f"index: .at[].{_name}",
            lambda x, n, y, f=_name: (getattr(x.at[n], f)(y), getattr(x.at[1:, 2], f)(2.0)),
            X,
            np.array([2, 0]),
            np.abs(Y[:2]),
        )
add("index: .at[].apply", lambda x, n: x.at[n].apply(jnp.sin), V, np.array([1, 3, 3]))
add("index: .at[].add, repeated", lambda x, n: x.at[n].add(1.0), V, np.array([1, 3, 3, 1, 1]))
add(
    "index: .at[].set, promises",
    lambda x, n: x.at[n].set(0.0, unique_indices=True, indices_are_sorted=True, mode="promise_in_bounds"),
    V,
    np.array([1, 3]),
)
add(
    "index: gradients",
    jax.grad(lambda x, n: (x[n] ** 2).sum() + (x.at[n].set(2.0) ** 3).sum()),
    V,
    np.array([1, 3, 1]),
)

# ---- order and sets

for _name in "sort argsort".split():
    _function = getattr(jnp, _name)
    add(f"jnp.{_name}", lambda x, n, b, f=_function: (f(x, axis=0), f(n), f(x, axis=None), f(b)), X, N, B)
    add(f"jnp.{_name}: descending", lambda x, f=_function: (f(x, descending=True), f(x, stable=False)), X)
    add(f"jnp.{_name}: special", _function, np.concatenate([SPECIAL, SPECIAL[::-1]]))
for _name in "partition argpartition".split():
    add(f"jnp.{_name}", lambda x, f=getattr(jnp, _name): jnp.sort(f(x, 2, axis=1)[:, :2], axis=1), X)
add("jnp.lexsort", lambda n, x: jnp.lexsort((x, n)), N[0] // 4, X[0])
add("jnp.sort_complex", jnp.sort_complex, Z)
add(
    "jnp.searchsorted",
    lambda v, x: [
        jnp.searchsorted(jnp.sort(v), x, method=m) for m in ("scan", "sort", "compare_all", "scan_unrolled")
    ],
    V,
    X,
)
add(
    "jnp.searchsorted: right",
    lambda v, x: jnp.searchsorted(v, x, side="right"),
    np.arange(5.0),
    np.array([1.0, 2.5, 9.0]),
)
add(
    "jnp.digitize",
    lambda x, v: (jnp.digitize(x, jnp.sort(v)), jnp.digitize(x, jnp.sort(v)[::-1], right=True)),
    X,
    V,
)
add(
    "jnp.bincount",
    lambda n, x: (jnp.bincount(n, length=9), jnp.bincount(n, x, length=4)),
    U.ravel(),
    X.ravel(),
)
add("jnp.histogram", lambda x: (jnp.histogram(x, 5), jnp.histogram(x, 4, (-1, 1), density=True)), X)
add("jnp.histogram2d", lambda x, y: jnp.histogram2d(x, y, 3), V, W)
add("jnp.histogramdd", lambda x: jnp.histogramdd(x, (2, 3, 2, 2)), X)
add("jnp.histogram_bin_edges", lambda x: jnp.histogram_bin_edges(x, 4), X)
K = integers(6, 13)
add(
    "jnp.unique",
    lambda n: jnp.unique(
        n, return_index=True, return_inverse=True, return_counts=True, size=7, fill_value=-1
    ),
    K,
)
add("jnp.unique: rows", lambda n: jnp.unique(n // 5, axis=0, size=3), N)
for _name in "unique_all unique_counts unique_inverse unique_values".split():
    add(
        f"jnp.{_name}",
        lambda n, f=getattr(jnp, _name): (
            tuple(f(n, size=7, fill_value=-1)) if f is not jnp.unique_values else f(n, size=7)
        ),
        K,
    )
add("jnp.union1d", lambda a, b: jnp.union1d(a, b, size=10), K, K + 2)
add("jnp.intersect1d", lambda a, b: jnp.intersect1d(a, b, size=5, fill_value=-1), K, K + 2)
add("jnp.setdiff1d", lambda a, b: jnp.setdiff1d(a, b, size=5, fill_value=-1), K, K + 2)
add("jnp.setxor1d", lambda a, b: jnp.setxor1d(a, b, size=8, fill_value=-1), K, K + 2)
add("jnp.isin", lambda a, b: (jnp.isin(a, b), jnp.isin(a, b, invert=True)), K, np.array([1, 3]))

# ---- products

add("jnp.dot", lambda x, y, v: (jnp.dot(x, y.T), jnp.dot(x, v), jnp.dot(v, v), jnp.dot(x, 2.0)), X, Y, V[:4])
add("jnp.inner", jnp.inner, X, Y)
add("jnp.outer", jnp.outer, V, W)
add("jnp.vdot", pairs(jnp.vdot), X, Y, Z, Z)
add("jnp.vecdot", jnp.vecdot, X, Y)
add("jnp.matvec", jnp.matvec, X, V[:4])
add("jnp.vecmat", jnp.vecmat, V[:3], X)
add(
    "jnp.matmul",
    lambda x, y, v: (x @ y.T, v @ x.T, x @ v, x[None, None] @ y.T, (x[:, None] @ y[..., None])),
    X,
    Y,
    V[:4],
)
add(
    "jnp.matmul: mixed types",
    lambda x, h, b, n: (x @ h.T, h @ h.T, b @ b.T, n @ n.T, x @ n.T, h @ b.T),
    X,
    HALF,
    BRAIN,
    N,
)
add(
    "jnp.matmul: preferred type",
    lambda h, u: (
        jnp.matmul(h, h.T, preferred_element_type=jnp.float32),
        jnp.matmul(u, u.T, preferred_element_type=jnp.int32),
    ),
    BRAIN,
    N.astype(np.int8),
)
add("jnp.matmul: complex", lambda z, x: (z @ z.T, z @ x.T), Z, X)
add("jnp.matmul: booleans", lambda b: b @ b.T, B)
add("jnp.matmul: nothing", lambda x: (x[:, :0] @ x[:, :0].T, x[:0] @ x.T), X)
add("jnp.tensordot", lambda x, y: (jnp.tensordot(x, y, 2), jnp.tensordot(x, y, ((0,), (0,)))), X, Y)
add("jnp.trace", lambda x: (jnp.trace(x), jnp.trace(x, 1)), X)
add("jnp.cross", lambda x, y: jnp.cross(x[:, :3], y[:, :3]), X, Y)
for _spec in (
    "ij,kj->ik",
    "ij,ij->",
    "ij->ji",
    "ij->j",
    "ij,kj->ijk",
    "...j,...j->...",
    "ii->i",
    "ij,jk,kl->il",
):
    _shapes = {"ii->i": (X[:, :3],), "ij->ji": (X,), "ij->j": (X,), "ij,jk,kl->il": (X, Y.T, X)}
    add(f"jnp.einsum: {_spec}", functools.partial(jnp.einsum, _spec), *_shapes.get(_spec, (X, Y)))
add(
    "jnp.einsum",
    lambda q, k, v: jnp.einsum("bqhd,bkhd,bkhe->bqhe", q, k, v, optimize="optimal"),
    normal(2, 3, 2, 4),
    normal(2, 5, 2, 4),
    normal(2, 5, 2, 3),
)
add(
    "jnp.einsum: preferred type",
    lambda h: jnp.einsum("ij,kj->ik", h, h, preferred_element_type=jnp.float32),
    BRAIN,
)
add("jnp.poly", lambda v: jnp.poly(v[:3]), V)
for _name in "polyadd polysub polymul".split():
    add(f"jnp.{_name}", lambda x, y, f=getattr(jnp, _name): f(x, y[:4]), V, W)
add("jnp.polyder", lambda v: (jnp.polyder(v), jnp.polyder(v, 2)), V)
add("jnp.polyint", lambda v: jnp.polyint(v, 2), V)
add("jnp.polydiv", lambda v, w: jnp.polydiv(v, w[:3]), V, W)
add("jnp.polyfit", lambda v, w: jnp.polyfit(v, w, 2), V, W)
add("jnp.polyval", lambda v, x: jnp.polyval(v, x), V, X)
add(
    "jnp.roots",
    lambda v: jnp.sort_complex(jnp.roots(v, strip_zeros=False)),
    V,
)
