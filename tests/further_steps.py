"""Further steps of random programs: what libraries call besides arithmetic, most of it compiled to more than one operation.

Property tests of the engines draw from ``tests.programs`` alone, whose steps are single operations; fuzzing draws from both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from tests.programs import NARROW, Draw, Function, Maker, Step, Types

Wanted = Callable[[Any], bool]
Named = tuple[str, Function]
FURTHER: list[Maker] = []
"""Makers of steps, as ``tests.programs.random_programs`` takes them."""


def _float(type_: Any) -> bool:
    return jnp.issubdtype(type_.dtype, jnp.floating)


def _wide_float(type_: Any) -> bool:
    return type_.dtype in (np.float32, np.float64)


def _integer(type_: Any) -> bool:
    return jnp.issubdtype(type_.dtype, jnp.integer)


def _complex(type_: Any) -> bool:
    return type_.dtype.kind == "c"


def _ordered(type_: Any) -> bool:
    return _float(type_) or _integer(type_)


def _number(type_: Any) -> bool:
    return type_.dtype != np.bool_


def _with_rank(wanted: Wanted, least: int = 1) -> Wanted:
    return lambda type_: wanted(type_) and len(type_.shape) >= least


def _alone(wanted: Wanted) -> Callable[[Callable[[Draw, Any], Named]], Callable[[Draw, Any], Named]]:
    """Add steps of one operand: of its type, a function draws their text and what they compute."""

    def add(make: Callable[[Draw, Any], Named]) -> Callable[[Draw, Any], Named]:
        def maker(draw: Draw, types: Types, floats: Any) -> Step | None:
            fitting = [number for number, type_ in enumerate(types) if wanted(type_)]
            if not fitting:
                return None
            x = draw(st.sampled_from(fitting[-2:] + fitting))
            return Step(*make(draw, types[x]), (x,))

        FURTHER.append(maker)
        return make

    return add


def _beside(wanted: Wanted) -> Callable[[Callable[[Draw, Any], Named]], Callable[[Draw, Any], Named]]:
    """Add steps of an operand and an integer known at run time only, which may lie out of range."""

    def add(make: Callable[[Draw, Any], Named]) -> Callable[[Draw, Any], Named]:
        def maker(draw: Draw, types: Types, floats: Any) -> Step | None:
            fitting = [number for number, type_ in enumerate(types) if wanted(type_)]
            places = [number for number, type_ in enumerate(types) if _integer(type_)]
            if not fitting or not places:
                return None
            x, i = draw(st.sampled_from(fitting[-2:] + fitting)), draw(st.sampled_from(places))
            text, function = make(draw, types[x])
            return Step(text, lambda a, b: function(a, b.reshape(-1)[0].astype(np.int32)), (x, i))

        FURTHER.append(maker)
        return make

    return add


def _finite(x: Any) -> Any:
    return jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x)) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def _narrow(type_: Any, name: str) -> str:
    """Return the beginning of the name of a cumulative function if the type has 8 bits, else nothing."""
    return NARROW if name.startswith("cum") and type_.dtype.name.startswith("float8") else ""


def _moderate(x: Any) -> Any:
    return jnp.clip(_finite(x), -100, 100)


def _axis(draw: Draw, type_: Any) -> int:
    return draw(st.integers(0, len(type_.shape) - 1))


SMOOTH: dict[str, Function] = {
    "sin": jnp.sin,
    "cos": jnp.cos,
    "arctan": jnp.arctan,
    "log1p": lambda x: jnp.log1p(jnp.abs(x)),
    "expm1": lambda x: jnp.expm1(-jnp.abs(x)),
    "sqrt": lambda x: jnp.sqrt(jnp.abs(x) + 1),
    "cbrt": jnp.cbrt,
    "erf": lax.erf,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "log_softmax": lambda x: jax.nn.log_softmax(x, axis=0) if x.ndim else x,
    "standardize": lambda x: jax.nn.standardize(x, axis=0) if x.ndim else x,
    "logsumexp": jax.nn.logsumexp,
    "mean": jnp.mean,
    "var": jnp.var,
    "cumsum": lambda x: jnp.cumsum(x, axis=0) if x.ndim else x,
    "cumlogsumexp": lambda x: lax.cumlogsumexp(x, axis=0) if x.ndim else x,
    "sort": lambda x: jnp.sort(x, axis=0) if x.ndim else x,
    "outer": lambda x: jnp.outer(x, x)[:5, :5],
    "median": lambda x: jnp.median(x),
}


@_alone(_float)
def _smooth(draw: Draw, type_: Any) -> Named:
    name = draw(st.sampled_from(sorted(SMOOTH)))
    return _narrow(type_, name) + name, SMOOTH[name]


@_alone(_float)
def _gradient(draw: Draw, type_: Any) -> Named:
    """The gradient of a weighted sum of a smooth function's results."""
    name = draw(st.sampled_from(sorted(SMOOTH)))

    def function(x: Any) -> Any:
        def loss(x: Any) -> Any:
            y = SMOOTH[name](x)
            return jnp.sum(y * jnp.arange(y.size).reshape(y.shape).astype(y.dtype) * 0.25)

        return jax.grad(loss)(x)

    return f"{_narrow(type_, name)}grad_{name}", function


@_alone(_ordered)
def _rounded(draw: Draw, type_: Any) -> Named:
    name = draw(st.sampled_from(["round", "ceil", "rem"] if _float(type_) else ["rem"]))
    if name == "rem":
        return name, lambda x: lax.rem(x, jnp.full_like(x, 3))
    return name, {"round": lax.round, "ceil": lax.ceil}[name]


@_alone(_integer)
def _integers(draw: Draw, type_: Any) -> Named:
    """Operations of integers alone; shifts beyond the width and divisions by zero are XLA's to define."""
    amount = draw(st.integers(0, 9))
    functions: dict[str, Function] = {
        "shift_left": lambda x: lax.shift_left(x, jnp.full_like(x, amount % 8)),
        "shift_right_logical": lambda x: lax.shift_right_logical(x, jnp.full_like(x, amount % 8)),
        "shift_right_arithmetic": lambda x: lax.shift_right_arithmetic(x, jnp.full_like(x, amount % 8)),
        "population_count": lax.population_count,
        "clz": lax.clz,
        "div": lambda x: lax.div(x, jnp.full_like(x, amount % 8)),
        "div_self": lambda x: lax.div(jnp.full_like(x, amount % 8), x),
        "floor_divide": lambda x: x // jnp.full_like(x, amount % 5 + 1),
        "integer_pow": lambda x: lax.integer_pow(x, amount % 5),
        "one_hot": lambda x: jax.nn.one_hot(x, amount + 1, dtype=np.float32),
        "bits": lambda x: jax.random.bits(jax.random.key(x.reshape(-1)[0].astype(np.uint32)), (amount + 1,)),
    }
    name = draw(st.sampled_from(sorted(functions)))
    return f"{name}[{amount}]", functions[name]


@_alone(lambda t: t.dtype in (np.float32, np.int32, np.uint32, np.float64, np.int64, np.uint16, jnp.bfloat16))
def _bitcast(draw: Draw, type_: Any) -> Named:
    width = type_.dtype.itemsize
    other = draw(st.sampled_from([np.dtype(f"u{width}"), np.dtype(f"i{width}"), np.dtype(np.uint8)]))
    return f"bitcast[{other}]", lambda x: lax.bitcast_convert_type(x, other)


@_alone(_complex)
def _parts(draw: Draw, type_: Any) -> Named:
    functions: dict[str, Function] = {
        "real": jnp.real,
        "imag": jnp.imag,
        "conj": jnp.conj,
        "exp_complex": lambda x: jnp.exp(1j * x.real),
        "div_complex": lambda x: x / (jnp.abs(x) + 1),
    }
    name = draw(st.sampled_from(sorted(functions)))
    return name, functions[name]


@_alone(_wide_float)
def _paired(draw: Draw, type_: Any) -> Named:
    return "complex", lambda x: lax.complex(x, x * 0.5)


@_alone(_with_rank(_ordered))
def _sorted(draw: Draw, type_: Any) -> Named:
    axis, is_down = _axis(draw, type_), draw(st.booleans())
    k = draw(st.integers(1, type_.shape[-1]))
    functions: dict[str, Function] = {
        "sort": lambda x: jnp.sort(x, axis=axis, descending=is_down),
        "argsort": lambda x: jnp.argsort(x, axis=axis, descending=is_down),
        "argmax": lambda x: jnp.argmax(x, axis=axis),
        "argmin": lambda x: jnp.argmin(x, axis=axis),
        "top_k": lambda x: lax.top_k(x, k)[is_down],
        "searchsorted": lambda x: jnp.searchsorted(jnp.sort(x.reshape(-1)), x.reshape(-1)),
    }
    name = draw(st.sampled_from(sorted(functions)))
    return f"{name}[{axis}, {is_down}, {k}]", functions[name]


@_alone(_with_rank(_number))
def _cumulated(draw: Draw, type_: Any) -> Named:
    name = draw(st.sampled_from(["cumsum", "cumprod", "cummax", "cummin"]))
    axis, reverse = _axis(draw, type_), draw(st.booleans())
    text = f"{_narrow(type_, name)}{name}[{axis}, {reverse}]"
    return text, lambda x: getattr(lax, name)(x, axis=axis, reverse=reverse)


@_alone(_with_rank(_ordered))
def _windows(draw: Draw, type_: Any) -> Named:
    """Sums, maxima and minima of windows, whose padding may be more than a window."""
    name = draw(st.sampled_from(["add", "max", "min"]))
    rank, dtype = len(type_.shape), type_.dtype
    size, stride, dilation = (tuple(draw(st.integers(1, most)) for _ in range(rank)) for most in (3, 2, 2))
    padding = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(rank))
    info: Any = jnp.iinfo(dtype) if _integer(type_) else jnp.finfo(dtype)
    start = {"add": 0, "max": info.min, "min": info.max}[name]
    folds: dict[str, Function] = {"add": lax.add, "max": lax.max, "min": lax.min}
    return f"window_{name}[{size}, {stride}, {padding}, {dilation}]", lambda x: lax.reduce_window(
        x, np.asarray(start, dtype), folds[name], size, stride, padding, window_dilation=dilation
    )


@_alone(lambda t: _number(t) and len(t.shape) == 3)
def _convolved(draw: Draw, type_: Any) -> Named:
    """A convolution of a value with a part of itself, both finite: whether padding times infinity is a NaN is left open."""
    outputs, width = draw(st.integers(1, type_.shape[0])), draw(st.integers(1, type_.shape[2]))
    stride, dilation, base = (draw(st.integers(1, 2)) for _ in range(3))
    padding = [(draw(st.integers(-1, 2)), draw(st.integers(0, 2)))]
    return (
        f"conv[{outputs}, {width}, {stride}, {dilation}, {base}, {padding}]",
        lambda x: lax.conv_general_dilated(
            (x := _finite(x)), x[:outputs, :, :width], (stride,), padding, (base,), (dilation,)
        ),
    )


MODES = ("clip", "fill", "wrap")
UPDATES = ("set", "add", "multiply", "min", "max")


@_alone(_with_rank(lambda t: True))
def _taken(draw: Draw, type_: Any) -> Named:
    axis, mode = _axis(draw, type_), draw(st.sampled_from(MODES))
    places = draw(st.lists(st.integers(-3, type_.shape[axis] + 2), min_size=1, max_size=5))
    return f"take[{places}, {axis}, {mode}]", lambda x: jnp.take(x, np.array(places), axis, mode=mode)


@_beside(_with_rank(lambda t: True))
def _taken_at(draw: Draw, type_: Any) -> Named:
    axis, mode, count = _axis(draw, type_), draw(st.sampled_from(MODES)), draw(st.integers(1, 3))
    return f"take_at[{count}, {axis}, {mode}]", lambda x, i: jnp.take(
        x, i + jnp.arange(count), axis, mode=mode
    )


@_beside(_with_rank(_number))
def _scattered(draw: Draw, type_: Any) -> Named:
    """Updates of rows: those of ``set`` are apart, since nobody says which of two is the last."""
    name, count = draw(st.sampled_from(UPDATES)), draw(st.integers(1, 3))
    step, mode = 1 if name == "set" else draw(st.integers(0, 1)), draw(st.sampled_from(["drop", "clip"]))
    mode = "drop" if name == "set" else mode
    rows = min(count, type_.shape[0])
    return f"scatter_{name}[{rows}, {step}, {mode}]", lambda x, i: getattr(
        x.at[i + step * jnp.arange(rows)], name
    )(x[::-1][:rows], mode=mode)


@_beside(_with_rank(lambda t: True))
def _sliced_at(draw: Draw, type_: Any) -> Named:
    sizes = tuple(draw(st.integers(1, size)) for size in type_.shape)
    return f"dynamic_slice[{sizes}]", lambda x, i: lax.dynamic_slice(x, (i,) * x.ndim, sizes)


@_beside(_with_rank(lambda t: True))
def _updated_at(draw: Draw, type_: Any) -> Named:
    sizes = tuple(draw(st.integers(1, size)) for size in type_.shape)
    return f"dynamic_update_slice[{sizes}]", lambda x, i: lax.dynamic_update_slice(
        x, lax.rev(x, range(x.ndim))[tuple(slice(size) for size in sizes)], (i,) * x.ndim
    )


@_beside(lambda t: True)
def _switched(draw: Draw, type_: Any) -> Named:
    """A branch that an integer chooses, out of range too."""
    count = draw(st.integers(1, 3))
    branches = [lambda x, k=k: jnp.roll(x, k) for k in range(count)]
    return f"switch[{count}]", lambda x, i: lax.switch(i, branches, x)


@_beside(_float)
def _looped(draw: Draw, type_: Any) -> Named:
    """A loop whose trips are known at run time only."""
    most = draw(st.integers(1, 4))
    return f"loop[{most}]", lambda x, i: lax.fori_loop(0, i % most, lambda _, y: 0.5 * jnp.sin(y) + x, x)


@_alone(_with_rank(_number))
def _scanned(draw: Draw, type_: Any) -> Named:
    reverse = draw(st.booleans())
    return f"scan[{reverse}]", lambda x: lax.scan(
        lambda c, row: (c + row, c * row), jnp.zeros_like(x[0]), x, reverse=reverse
    )[1]


@_alone(_with_rank(lambda t: True))
def _moved(draw: Draw, type_: Any) -> Named:
    axis, k = _axis(draw, type_), draw(st.integers(-3, 3))
    functions: dict[str, Function] = {
        "roll": lambda x: jnp.roll(x, k, axis),
        "repeat": lambda x: jnp.repeat(x, abs(k) % 3 + 1, axis),
        "tile": lambda x: jnp.tile(x, 2),
        "stack": lambda x: jnp.stack([x, jnp.flip(x, axis)], axis),
        "tril": lambda x: jnp.tril(x, k) if x.ndim > 1 else x,
        "diagonal": lambda x: jnp.diagonal(x, k % 2) if x.ndim > 1 and x.shape[1] > 1 else x,
        "swapaxes": lambda x: jnp.swapaxes(x, axis, 0),
        "pad_edge": lambda x: jnp.pad(x, 1, mode="edge"),
        "pad_wrap": lambda x: jnp.pad(x, 1, mode="wrap"),
    }
    name = draw(st.sampled_from(sorted(functions)))
    return f"{name}[{axis}, {k}]", functions[name]


@_alone(_with_rank(_number, 2))
def _mapped(draw: Draw, type_: Any) -> Named:
    """Functions of rows, mapped over them; a convolution's are finite, as in ``_convolved``."""
    functions: dict[str, Function] = {
        "inner": lambda row: jnp.vdot(row, row),
        "rolled": lambda row: jnp.roll(row, 1),
        "convolve": lambda row: jnp.convolve((x := _finite(row).reshape(-1)), x[:2], mode="same"),
        "segment_sum": lambda row: jax.ops.segment_sum(row, np.arange(row.shape[0]) % 2, 3),
        "trapezoid": lambda row: jnp.diff(row, axis=0),
    }
    name = draw(st.sampled_from(sorted(functions)))
    return f"vmap_{name}", jax.vmap(functions[name])


@_alone(lambda t: _wide_float(t) and len(t.shape) == 2 and t.shape[0] <= 64)
def _factored(draw: Draw, type_: Any) -> Named:
    """Factors and solutions of a positive definite matrix; of a large one they take minutes in the ring."""

    def definite(x: Any) -> Any:
        x = jnp.tanh(x)
        return x @ x.T + 3 * jnp.eye(x.shape[0], dtype=x.dtype)

    functions: dict[str, Function] = {
        "cholesky": lambda x: jnp.linalg.cholesky(definite(x)),
        "solve_triangular": lambda x: lax.linalg.triangular_solve(definite(x), x, left_side=True, lower=True),
        "det": lambda x: jnp.linalg.det(definite(x)),
        "inv": lambda x: jnp.linalg.inv(definite(x)),
    }
    name = draw(st.sampled_from(sorted(functions)))
    return name, functions[name]


@_alone(lambda t: t.dtype == np.float32 and len(t.shape) > 0)
def _transformed(draw: Draw, type_: Any) -> Named:
    """Fourier transforms of values whose sums do not overflow: where infinities go is said to be left open."""
    functions: dict[str, Function] = {
        "fft": lambda x: jnp.fft.fft(_moderate(x)).imag,
        "rfft": lambda x: jnp.fft.rfft(_moderate(x)).real,
        "irfft": lambda x: jnp.fft.irfft(jnp.fft.rfft(_moderate(x)), x.shape[-1]),
    }
    name = draw(st.sampled_from(sorted(functions)))
    return name, functions[name]
