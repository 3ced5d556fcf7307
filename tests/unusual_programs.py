"""Random programs of a few unusual operations: the rare parameters, shapes, types and values of what ``tests.programs`` draws plainly.

Each has one step that is drawn with all its parameters (dimension numbers of a convolution, modes of a gather, windows with
holes, several operands of a sort or of a reduction, widths of a bitcast, nested control) on arrays that may be empty, of one
element, of rank 0 or 7, and hold NaN, infinities, subnormal numbers and the least and greatest integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from tests.programs import ALL_FLOATS, ALL_TYPES, INTEGERS, Draw

Type = jax.ShapeDtypeStruct
Made = tuple[str, Callable[..., Any], tuple[Type, ...]]
"""A text, a function and the types of its arguments."""
MAKERS: dict[str, Callable[[Draw], Made]] = {}
WIDE = ("float32", "float64", "bfloat16", "float16", "int32", "int8", "uint16", "complex64")


@dataclass(frozen=True)
class UnusualProgram:
    """A function of positional arrays with a tuple of results.

    Args:
      text: what it computes.
      operation: computes it.
      arguments: types of the arguments.
    """

    text: str
    operation: Callable[..., Any]
    arguments: tuple[Type, ...]

    def function(self, *arrays: Any) -> tuple[Any, ...]:
        """Return all results in a row; may be jitted, lowered and decorated."""
        return tuple(jax.tree.leaves(self.operation(*arrays)))

    def arrays(self, seed: int = 0) -> tuple[np.ndarray, ...]:
        """Return arguments: a few of the elements are extreme in every other draw."""
        rng = np.random.default_rng(seed)
        share = float(rng.choice([0, 0.3]))
        return tuple(_array(rng, argument, share) for argument in self.arguments)

    def __repr__(self) -> str:
        return f"{self.text}({', '.join(f'{a.dtype}{list(a.shape)}' for a in self.arguments)})"


def _array(rng: np.random.Generator, type_: Type, share: float) -> np.ndarray:
    """Return an array of small numbers, so many of which are replaced by extreme ones."""
    dtype, shape = np.dtype(type_.dtype), type_.shape
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "c":
        real = np.dtype(f"f{dtype.itemsize // 2}")
        parts = [_array(rng, Type(shape, real), share) for _ in range(2)]
        return (parts[0] + 1j * parts[1]).astype(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        plain = rng.integers(max(-9, int(info.min)), min(9, int(info.max)) + 1, shape)
        extremes = [int(info.min), int(info.max), 0, 1, int(info.max) // 2]
        chosen = np.array(extremes, object)[rng.integers(0, len(extremes), shape)]
        return np.where(rng.random(shape) < share, chosen, plain).astype(dtype)
    plain = np.asarray(rng.normal(size=shape)).astype(dtype)
    limits = jnp.finfo(dtype)
    extremes = [np.nan, np.inf, -np.inf, -0.0, limits.max, limits.min, limits.tiny, limits.smallest_subnormal]
    chosen = np.array([np.asarray(x).astype(dtype) for x in extremes], dtype)[
        rng.integers(0, len(extremes), shape)
    ]
    return np.where(rng.random(shape) < share, chosen, plain)


@st.composite
def unusual_programs(draw: Draw) -> UnusualProgram:
    """Draw a program: one of ``MAKERS``, some of whose arguments and results may be used twice or not at all."""
    name = draw(st.sampled_from(sorted(MAKERS)))
    text, function, arguments = MAKERS[name](draw)
    tail = draw(st.sampled_from(["", "", "twice", "with arguments", "dead", "shared"]))
    if tail == "shared" and len(arguments) > 1 and arguments[0] == arguments[1]:
        return UnusualProgram(
            f"{text} of one", lambda x, *rest: function(x, x, *rest), (arguments[0], *arguments[2:])
        )
    functions: dict[str, Callable[..., Any]] = {
        "twice": lambda *xs: (made := function(*xs), made),
        "with arguments": lambda *xs: (function(*xs), xs),
        "dead": lambda *xs: [jax.tree.map(lambda x: x.ravel(), function(*xs)), function(*xs)][1],
    }
    return UnusualProgram(f"{text} {tail}".strip(), functions.get(tail, function), arguments)


def _maker(make: Callable[[Draw], Made]) -> Callable[[Draw], Made]:
    MAKERS[make.__name__.strip("_")] = make
    return make


def _shape(draw: Draw, least: int = 0, most: int = 7, elements: int = 300) -> tuple[int, ...]:
    """Draw a shape: often with ones, sometimes with a dimension of 0."""
    rank = draw(st.sampled_from([r for r in (1, 2, 2, 3, 0, 4, 6, 7) if least <= r <= most]))
    shape: list[int] = []
    for _ in range(rank):
        shape.append(
            draw(st.sampled_from([2, 3, 1, 1, 5, 4, 0] if math.prod(shape) * 5 <= elements else [1, 1, 0]))
        )
    if 0 in shape and draw(st.booleans()):  # fewer of the empty ones
        shape = [max(1, n) for n in shape]
    return tuple(shape)


def _type(draw: Draw, dtypes: Sequence[str] = ALL_TYPES, **options: int) -> Type:
    return Type(_shape(draw, **options), jnp.dtype(draw(st.sampled_from(dtypes))))


def _subset(draw: Draw, rank: int) -> tuple[int, ...]:
    return tuple(d for d in range(rank) if draw(st.booleans()))


def _index(draw: Draw, *shape: int) -> Type:
    return Type(
        shape,
        jnp.dtype(draw(st.sampled_from(["int32", "int64", "int8", "uint8", "uint32", "uint64", "int16"]))),
    )


# ---- shapes


@_maker
def _moving(draw: Draw) -> Made:
    x = _type(draw)
    rank, shape = len(x.shape), x.shape
    name = draw(
        st.sampled_from(["transpose", "broadcast", "rev", "pad", "concatenate", "reshape", "squeeze"])
    )
    if name == "transpose":
        order = tuple(draw(st.permutations(range(rank))))
        return f"transpose{order}", lambda a: lax.transpose(a, order), (x,)
    if name == "broadcast":
        extra = draw(st.sampled_from([0, 1, 2]))
        places = tuple(range(1, rank + 1))
        return f"broadcast[{extra}]", lambda a: lax.broadcast_in_dim(a, (extra, *shape, 1), places), (x,)
    if name == "rev":
        axes = _subset(draw, rank)
        return f"rev{axes}", lambda a: lax.rev(a, axes), (x,)
    if name == "pad":
        edges = st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.integers(0, 2))
        config = [draw(edges) for _ in shape]
        spans = [max(0, n + (n - 1) * step) for n, (_, _, step) in zip(shape, config, strict=True)]
        config = [
            (max(low, -n), max(high, -n - min(0, max(low, -n))), step)
            for n, (low, high, step) in zip(spans, config, strict=True)
        ]
        return f"pad{config}", lambda a, v: lax.pad(a, v, config), (x, Type((), x.dtype))
    if name == "concatenate" and rank:
        axis = draw(st.integers(0, rank - 1))
        other = Type(tuple(draw(st.integers(0, 2)) if d == axis else n for d, n in enumerate(shape)), x.dtype)
        return f"concatenate[{axis}]", lambda a, b: lax.concatenate([a, b, a, b], axis), (x, other)
    if name == "reshape":
        return "reshape", lambda a: a.reshape((1, *shape[::-1], 1)), (x,)
    return "squeeze", lambda a: a.squeeze() if 1 in shape else a, (x,)


@_maker
def _bits(draw: Draw) -> Made:
    """Bits of one type read as another, wider or narrower."""
    widths = {4: ("int4", "uint4"), 8: ("int8", "uint8", "float8_e5m2", "float8_e4m3fn"), 16: ("float16", "bfloat16", "int16", "uint16"),
              32: ("float32", "int32", "uint32"), 64: ("float64", "int64", "uint64", )}  # fmt: skip
    one, two = draw(st.sampled_from(sorted(widths))), draw(st.sampled_from(sorted(widths)))
    source, target = draw(st.sampled_from(widths[one])), draw(st.sampled_from(widths[two]))
    shape = _shape(draw, most=4)
    if two > one:
        shape = (*shape, two // one)
    return (
        f"bitcast[{target}]",
        lambda a: lax.bitcast_convert_type(a, jnp.dtype(target)),
        (Type(shape, jnp.dtype(source)),),
    )


@_maker
def _converting(draw: Draw) -> Made:
    x, to = _type(draw), draw(st.sampled_from(ALL_TYPES))
    return f"convert[{to}]", lambda a: lax.convert_element_type(a, jnp.dtype(to)), (x,)


# ---- elements

FLOAT_FUNCTIONS = """exp exp2 expm1 log log1p sin cos tan tanh logistic sqrt rsqrt cbrt floor ceil round sign abs neg is_finite erf
erfc asin acos atan sinh cosh asinh acosh atanh square""".split()
INTEGER_FUNCTIONS = "neg abs sign bitwise_not population_count clz square".split()
COMPLEX_FUNCTIONS = (
    "exp log sin cos tanh sqrt rsqrt neg abs real imag conj square sign expm1 log1p logistic".split()
)


@_maker
def _unary(draw: Draw) -> Made:
    x = _type(draw)
    kinds = {"c": COMPLEX_FUNCTIONS, "b": ["bitwise_not"]}
    names = kinds.get(x.dtype.kind) or (
        FLOAT_FUNCTIONS if jnp.issubdtype(x.dtype, jnp.floating) else INTEGER_FUNCTIONS
    )
    if np.dtype(x.dtype) == np.bool_:
        names = ["bitwise_not"]
    if x.dtype.name == "int4" or jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        names = [n for n in names if n != "abs"]  # which JAX refuses
    name = draw(st.sampled_from([n for n in names if hasattr(lax, n)]))
    return name, getattr(lax, name), (x,)


@_maker
def _binary(draw: Draw) -> Made:
    x = _type(draw)
    names = ["eq", "ne"]
    if jnp.issubdtype(x.dtype, jnp.floating):
        names = "add sub mul div max min rem pow atan2 nextafter lt ge eq ne".split()
        if x.dtype.name not in ("float32", "float64", "float16", "bfloat16"):
            names.remove("nextafter")
    elif np.dtype(x.dtype) == np.bool_:
        names = "bitwise_and bitwise_or bitwise_xor eq ne lt ge max min".split()
    elif jnp.issubdtype(x.dtype, jnp.integer):
        names = "add sub mul div max min rem lt ge shift_left shift_right_logical shift_right_arithmetic bitwise_xor".split()
    elif x.dtype.kind == "c":
        names = "add sub mul div eq ne pow".split()
    name = draw(st.sampled_from(names))
    return name, getattr(lax, name), (x, x)


@_maker
def _clamping(draw: Draw) -> Made:
    x = _type(draw, ["float32", "float16", "bfloat16", *INTEGERS])
    bound = Type((), x.dtype) if draw(st.booleans()) else x
    return "clamp", lax.clamp, (bound, x, bound)


@_maker
def _choosing(draw: Draw) -> Made:
    x = _type(draw)
    count = draw(st.integers(1, 4))
    which = Type(x.shape if draw(st.booleans()) else (), jnp.dtype(np.int32))
    return (
        f"select_n[{count}]",
        lambda i, *xs: lax.select_n(jnp.clip(i, 0, count - 1) if count != 2 else i > 0, *xs),
        (which, *[x] * count),
    )


@_maker
def _rounding(draw: Draw) -> Made:
    x = _type(draw, ALL_FLOATS)
    exponent, mantissa = draw(st.integers(2, 9)), draw(st.integers(0, 12))
    return (
        f"reduce_precision[{exponent}, {mantissa}]",
        lambda a: lax.reduce_precision(a, exponent, mantissa),
        (x,),
    )


# ---- folds


@_maker
def _reducing(draw: Draw) -> Made:
    x = _type(draw)
    axes = _subset(draw, len(x.shape))
    if np.dtype(x.dtype) == np.bool_:
        name = draw(st.sampled_from(["any", "all", "sum"]))
    elif x.dtype.kind == "c":
        name = draw(st.sampled_from(["sum", "prod"]))
    else:
        name = draw(st.sampled_from(["sum", "max", "min", "prod"]))
    if x.dtype.name.startswith(("float8", "int4", "uint4")) and name in ("sum", "prod"):
        name = "max"  # JAX (0.10.2) takes no sum of integers of 4 bits
    start = {"max": {"initial": 0}, "min": {"initial": 0}}.get(name, {})
    return f"{name}{axes}", lambda a: getattr(jnp, name)(a, axis=axes, **start), (x,)


@_maker
def _reducing_pairs(draw: Draw) -> Made:
    """A reduction of two operands by a region of several operations: in the ring an order of floats would mean nothing."""
    x = _type(draw, ["int32", "int8", "uint16", "int64"], most=4)
    y = Type(x.shape, jnp.dtype(np.int32))
    axes = _subset(draw, len(x.shape))

    def better(a: Any, b: Any) -> Any:
        takes = (a[0] < b[0]) | ((a[0] == b[0]) & (a[1] <= b[1]))
        return lax.select(takes, a[0], b[0]), lax.select(takes, a[1], b[1])

    top = np.asarray(jnp.iinfo(x.dtype).max, x.dtype)
    return (
        f"reduce_pairs{axes}",
        lambda a, b: lax.reduce((a, b), (top, np.int32(2**31 - 1)), better, axes),
        (x, y),
    )


@_maker
def _windows(draw: Draw) -> Made:
    """Windows with holes, over arrays with holes, padded and cropped, by any of several folds."""
    x = _type(draw, ["float32", "int32", "float16", "int8", "uint16", "float64"], least=1, most=3)
    rank = len(x.shape)
    size, stride, dilation, base = (
        tuple(draw(st.integers(1, most)) for _ in range(rank)) for most in (3, 3, 3, 3)
    )
    padding = tuple((draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(rank))
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    folds: dict[str, tuple[Any, Any]] = {
        "add": (lax.add, 0), "mul": (lax.mul, 1), "max": (lax.max, -np.inf if is_float else jnp.iinfo(x.dtype).min),
        "both": (lambda a, b: a + b + a * b, 0),
    }  # fmt: skip
    name = draw(st.sampled_from(sorted(folds)))
    fold, start = folds[name]
    return (
        f"window_{name}[{size}, {stride}, {padding}, {base}, {dilation}]",
        lambda a: lax.reduce_window(
            a, np.asarray(start, x.dtype), fold, size, stride, padding, base, dilation
        ),
        (x,),
    )


@_maker
def _pooling_gradient(draw: Draw) -> Made:
    x = _type(draw, ["float32", "float64", "bfloat16"], least=2, most=3)
    if 0 in x.shape:
        x = Type(tuple(max(2, n) for n in x.shape), x.dtype)
    rank = len(x.shape)
    size, stride = (tuple(draw(st.integers(1, 2)) for _ in range(rank)) for _ in range(2))

    def pooled(a: Any) -> Any:
        a = jnp.where(
            jnp.isnan(a), jnp.zeros_like(a), a
        )  # which element XLA takes beside a NaN is its own affair
        return jnp.sum(lax.reduce_window(a, -jnp.inf, lax.max, size, stride, "SAME") * 2)

    return f"grad_window_max[{size}, {stride}]", jax.grad(pooled), (x,)


@_maker
def _cumulating(draw: Draw) -> Made:
    x = _type(draw, ["float32", "int32", "float64", "complex64", "uint8", "int64", "float16"], least=1)
    name = draw(
        st.sampled_from(
            ["cumsum", "cumprod"] if x.dtype.kind == "c" else ["cumsum", "cumprod", "cummax", "cummin"]
        )
    )
    axis, reverse = draw(st.integers(0, len(x.shape) - 1)), draw(st.booleans())
    return f"{name}[{axis}, {reverse}]", lambda a: getattr(lax, name)(a, axis=axis, reverse=reverse), (x,)


# ---- products


@_maker
def _contracting(draw: Draw) -> Made:
    """A contraction with several batch and several contracted dimensions, in any order, of two types."""
    dtype = draw(st.sampled_from(WIDE))
    batch, contracted, left, right = (
        tuple(draw(st.sampled_from([2, 1, 3, 0])) for _ in range(draw(st.integers(0, 2)))) for _ in range(4)
    )
    names_a = (
        [("b", i) for i in range(len(batch))]
        + [("c", i) for i in range(len(contracted))]
        + [("l", i) for i in range(len(left))]
    )
    names_b = (
        [("b", i) for i in range(len(batch))]
        + [("c", i) for i in range(len(contracted))]
        + [("r", i) for i in range(len(right))]
    )
    sizes = {"b": batch, "c": contracted, "l": left, "r": right}
    names_a, names_b = draw(st.permutations(names_a)), draw(st.permutations(names_b))
    a, b = (Type(tuple(sizes[k][i] for k, i in names), jnp.dtype(dtype)) for names in (names_a, names_b))

    def places(names: Any, kind: str) -> tuple[int, ...]:
        return tuple(names.index((kind, i)) for i in range(len(sizes[kind])))

    numbers = ((places(names_a, "c"), places(names_b, "c")), (places(names_a, "b"), places(names_b, "b")))
    wider = (
        {"bfloat16": np.float32, "float16": np.float32, "int8": np.int32}.get(dtype)
        if draw(st.booleans())
        else None
    )
    return (
        f"dot_general{numbers}",
        lambda x, y: lax.dot_general(x, y, numbers, preferred_element_type=wider),
        (a, b),
    )


@_maker
def _convolving(draw: Draw) -> Made:
    """A convolution in any order of dimensions, strided, dilated, padded, cropped, reversed by its layout, in groups of features or batches."""
    dtype, rank = draw(st.sampled_from(WIDE)), draw(st.integers(0, 3))
    groups, batch_groups = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2), (3, 1)]))
    batch, features, outputs = (
        draw(st.sampled_from([1, 2])) * batch_groups,
        draw(st.integers(1, 2)),
        draw(st.integers(1, 2)) * groups * batch_groups,
    )
    image = tuple(draw(st.sampled_from([4, 3, 1, 2, 0])) for _ in range(rank))
    kernel = tuple(draw(st.sampled_from([2, 3, 1])) for _ in range(rank))
    order_a, order_b, order_c = (tuple(draw(st.permutations(range(rank + 2)))) for _ in range(3))
    stride, base, dilation = (tuple(draw(st.integers(1, 3)) for _ in range(rank)) for _ in range(3))
    padding = [
        (draw(st.integers(-1 if n > 1 else 0, 3)), draw(st.integers(-1 if n > 1 else 0, 3))) for n in image
    ]
    numbers = lax.ConvDimensionNumbers(order_a, order_b, order_c)
    shape_a, shape_b = [0] * (rank + 2), [0] * (rank + 2)
    for place, size in zip(order_a, (batch, features * groups, *image), strict=True):
        shape_a[place] = size
    for place, size in zip(order_b, (outputs, features, *kernel), strict=True):
        shape_b[place] = size
    types = Type(tuple(shape_a), jnp.dtype(dtype)), Type(tuple(shape_b), jnp.dtype(dtype))
    text = f"conv[{stride}, {padding}, {base}, {dilation}, {tuple(numbers)}, {groups}, {batch_groups}]"
    return (
        text,
        lambda x, y: lax.conv_general_dilated(
            x, y, stride, padding, base, dilation, numbers, groups, batch_groups
        ),
        types,
    )


# ---- places


@_maker
def _slicing(draw: Draw) -> Made:
    x = _type(draw, least=1, most=4)  # jaxlib does not read the slice of a scalar that it prints
    sizes = tuple(draw(st.integers(0, n)) for n in x.shape)
    starts = [_index(draw)] * len(x.shape)
    return f"dynamic_slice{sizes}", lambda a, *i: lax.dynamic_slice(a, i, sizes), (x, *starts)


@_maker
def _updating(draw: Draw) -> Made:
    x = _type(draw, most=4)
    sizes = tuple(draw(st.integers(0, n)) for n in x.shape)
    starts = [_index(draw)] * len(x.shape)
    return (
        "dynamic_update_slice",
        lambda a, u, *i: lax.dynamic_update_slice(a, u, i),
        (x, Type(sizes, x.dtype), *starts),
    )


MODES = (
    lax.GatherScatterMode.CLIP,
    lax.GatherScatterMode.FILL_OR_DROP,
    lax.GatherScatterMode.PROMISE_IN_BOUNDS,
)


@_maker
def _gathering(draw: Draw) -> Made:
    """A gather with windows, collapsed and batching dimensions, indices in any order of dimensions."""
    x = _type(draw, least=1, most=4)
    if 0 in x.shape:
        x = Type(tuple(max(1, n) for n in x.shape), x.dtype)
    rank = len(x.shape)
    kinds = [draw(st.sampled_from(["window", "collapsed", "batching", "window"])) for _ in range(rank)]
    batching = tuple(d for d in range(rank) if kinds[d] == "batching")
    collapsed = tuple(d for d in range(rank) if kinds[d] == "collapsed")
    sizes = tuple(1 if kinds[d] != "window" else draw(st.integers(0, n)) for d, n in enumerate(x.shape))
    indexed = [d for d in range(rank) if kinds[d] != "batching"]
    mapped = tuple(draw(st.permutations(indexed)))[: draw(st.integers(0, len(indexed)))]
    own = tuple(draw(st.sampled_from([2, 1, 3, 0])) for _ in range(draw(st.integers(0, 2))))
    batch_sizes = tuple(x.shape[d] for d in batching)
    indices = _index(draw, *batch_sizes, *own, len(mapped))
    windows = rank - len(batching) - len(collapsed)
    total = windows + len(batch_sizes) + len(own)
    offsets = tuple(sorted(draw(st.permutations(range(total)))[:windows]))
    mode = draw(st.sampled_from(MODES[:2]))
    numbers = lax.GatherDimensionNumbers(
        offsets,
        collapsed,
        mapped,
        operand_batching_dims=batching,
        start_indices_batching_dims=tuple(range(len(batching))),
    )
    return (
        f"gather[{numbers}, {sizes}, {mode}]",
        lambda a, i: lax.gather(a, i, numbers, sizes, mode=mode),
        (x, indices),
    )


@_maker
def _scattering(draw: Draw) -> Made:
    """A scatter with windows, inserted and batching dimensions; of a set one place is written once."""
    x = _type(draw, [t for t in ALL_TYPES if not t.startswith("float8")], least=1, most=4)
    if 0 in x.shape:
        x = Type(tuple(max(1, n) for n in x.shape), x.dtype)
    rank = len(x.shape)
    names = ["scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"]
    names = ["scatter"] if np.dtype(x.dtype) == np.bool_ else names[:3] if x.dtype.kind == "c" else names
    name = draw(st.sampled_from(names))
    kinds = [draw(st.sampled_from(["window", "inserted", "batching", "window"])) for _ in range(rank)]
    batching = tuple(d for d in range(rank) if kinds[d] == "batching")
    inserted = tuple(d for d in range(rank) if kinds[d] == "inserted")
    sizes = tuple(draw(st.integers(0, x.shape[d])) for d in range(rank) if kinds[d] == "window")
    indexed = [d for d in range(rank) if kinds[d] != "batching"]
    mapped = tuple(draw(st.permutations(indexed)))[: draw(st.integers(0, len(indexed)))]
    own = (
        ()
        if name == "scatter"
        else tuple(draw(st.sampled_from([2, 1, 3, 0])) for _ in range(draw(st.integers(0, 2))))
    )
    batch_sizes = tuple(x.shape[d] for d in batching)
    indices = _index(draw, *batch_sizes, *own, len(mapped))
    total = len(sizes) + len(batch_sizes) + len(own)
    windows = tuple(sorted(draw(st.permutations(range(total)))[: len(sizes)]))
    window_sizes, other_sizes = iter(sizes), iter((*batch_sizes, *own))
    updates = Type(
        tuple(next(window_sizes) if d in windows else next(other_sizes) for d in range(total)), x.dtype
    )
    mode = draw(st.sampled_from(MODES[:2]))
    numbers = lax.ScatterDimensionNumbers(
        windows,
        inserted,
        mapped,
        operand_batching_dims=batching,
        scatter_indices_batching_dims=tuple(range(len(batching))),
    )
    return (
        f"{name}[{numbers}, {mode}]",
        lambda a, i, u: getattr(lax, name)(a, i, u, numbers, mode=mode),
        (x, indices, updates),
    )


# ---- orders


@_maker
def _sorting(draw: Draw) -> Made:
    """A sort of several operands by several keys along any dimension."""
    shape = _shape(draw, least=1, most=4)
    keys, values = draw(st.integers(1, 2)), draw(st.integers(0, 2))
    kept = [t for t in ALL_TYPES if not t.startswith(("complex", "float8"))]
    types = tuple(Type(shape, jnp.dtype(draw(st.sampled_from(kept)))) for _ in range(keys + values))
    axis = draw(st.integers(0, len(shape) - 1))
    return (
        f"sort[{axis}, {keys}]",
        lambda *xs: lax.sort(xs, dimension=axis, is_stable=True, num_keys=keys),
        types,
    )


@_maker
def _ranking(draw: Draw) -> Made:
    x = _type(
        draw,
        ["float32", "int32", "bfloat16", "uint8", "int64", "float64", "float16", "int4"],
        least=1,
        most=4,
    )
    axis = draw(st.integers(0, len(x.shape) - 1))
    if not x.shape[axis]:
        x = Type(tuple(max(1, n) for n in x.shape), x.dtype)
    name = draw(st.sampled_from(["top_k", "argmax", "argmin"]))
    if name == "top_k":
        k = draw(st.integers(0, x.shape[-1]))
        return f"top_k[{k}]", lambda a: lax.top_k(a, k), (x,)
    kind = np.dtype(draw(st.sampled_from(["int32", "int8", "uint16"])))
    return f"{name}[{axis}]", lambda a: getattr(lax, name)(a, axis, kind), (x,)


# ---- random bits and control


@_maker
def _random_bits(draw: Draw) -> Made:
    shape, dtype = (
        _shape(draw, most=4),
        np.dtype(draw(st.sampled_from(["uint8", "uint16", "uint32", "uint64"]))),
    )
    name = draw(st.sampled_from(["RNG_THREE_FRY", "RNG_PHILOX", "RNG_DEFAULT"]))
    key = Type((4,), jnp.dtype(np.uint32))
    algorithm = getattr(lax.RandomAlgorithm, name)
    return (
        f"rng_bit_generator[{name}, {shape}, {dtype}]",
        lambda k: lax.rng_bit_generator(k, shape, dtype, algorithm),
        (key,),
    )


@_maker
def _nesting(draw: Draw) -> Made:
    """A loop, scan or branch in another, which carry arrays of any type."""
    x, y = _type(draw, most=3), _type(draw, most=3)
    kinds = [
        draw(st.sampled_from(["while", "scan", "cond", "switch", "fori"]))
        for _ in range(draw(st.integers(1, 3)))
    ]
    trips = [draw(st.integers(0, 3)) for _ in kinds]
    swaps = draw(st.booleans()) and (x.shape, x.dtype) == (y.shape, y.dtype)

    def changed(a: Any) -> Any:
        kind = a.dtype
        return ~a if kind == np.bool_ else (a + jnp.ones_like(a)).astype(kind)

    def body(level: int, state: Any, n: Any) -> Any:
        if level == len(kinds):
            a, b = state
            return (b, changed(a)) if swaps else (changed(a), b)
        inner = lambda s, k: body(level + 1, s, k)  # noqa: E731
        count = trips[level]
        match kinds[level]:
            case "while":
                bound = (n & 3) + count % 2
                return lax.while_loop(
                    lambda c: c[0] < bound, lambda c: (c[0] + 1, inner(c[1], c[0])), (jnp.int32(0), state)
                )[1]
            case "scan":
                final, seen = lax.scan(
                    lambda s, k: (inner(s, k), s[0]), state, jnp.arange(count, dtype=np.int32)
                )
                return (final[0], final[1]) if not count else (seen[-1], final[1])
            case "cond":
                return lax.cond(n > count, lambda s: inner(s, n), lambda s: s, state)
            case "switch":
                return lax.switch(
                    n, [lambda s: s, lambda s: inner(s, n + 1), lambda s: (changed(s[0]), s[1])], state
                )
            case _:
                return lax.fori_loop(0, count, lambda k, s: inner(s, k), state)

    return (
        f"nested{list(zip(kinds, trips, strict=True))}",
        lambda a, b, n: body(0, (a, b), n),
        (x, y, Type((), jnp.dtype(np.int32))),
    )
