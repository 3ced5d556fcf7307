"""Random small programs over the supported operations, as JAX functions, for property tests.

A program is a list of steps; each reads earlier values and makes one. Values are small arrays of floats,
integers or booleans; every step is a call of ``jax.lax`` or ``jax.numpy``, so that programs go through the
frontend like a user's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

Draw = Callable[[st.SearchStrategy], Any]
Function = Callable[..., Any]
SIZES = (3, 4, 2, 1)
"""Sizes of the arguments' dimensions; the first is what shrinking ends at."""

FLOATS = ("float32", "bfloat16", "float16")
ALL_FLOATS = (*FLOATS, "float64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64, 4))
ALL_TYPES = ("float32", "float32", *ALL_FLOATS, *INTEGERS, "bool", "complex64", "complex128")
"""Every element type of a program's arguments, the usual one twice."""


@dataclass(frozen=True)
class Step:
    """``text`` names the function and its static arguments; ``reads`` are numbers of values before it."""

    text: str
    function: Function
    reads: tuple[int, ...]


Types = Sequence[Any]
Maker = Callable[[Draw, Types, Sequence[str]], Step | None]


@dataclass(frozen=True)
class RandomProgram:
    """A function of positional arrays with a tuple of results.

    Args:
      arguments: types of the arguments.
      steps: what is computed; arguments are the first values.
      results: numbers of the values returned.
    """

    arguments: tuple[jax.ShapeDtypeStruct, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def function(self, *arrays: Any) -> tuple[Any, ...]:
        """Run the program; may be jitted, lowered and decorated."""
        values = list(arrays)
        for step in self.steps:
            values.append(step.function(*(values[number] for number in step.reads)))
        return tuple(values[number] for number in self.results)

    def arrays(self, seed: int = 0) -> tuple[np.ndarray, ...]:
        """Return arguments: floats around 0, some of them whole, small integers, booleans."""
        rng = np.random.default_rng(seed)
        return tuple(_array(rng, argument) for argument in self.arguments)

    def __repr__(self) -> str:
        lines = [f"v{i} = argument {a.dtype}{list(a.shape)}" for i, a in enumerate(self.arguments)]
        for number, step in enumerate(self.steps, len(lines)):
            lines.append(f"v{number} = {step.text}({', '.join(f'v{read}' for read in step.reads)})")
        lines.append(f"return {', '.join(f'v{number}' for number in self.results)}")
        return "RandomProgram:\n  " + "\n  ".join(lines)


def _array(rng: np.random.Generator, argument: jax.ShapeDtypeStruct) -> np.ndarray:
    dtype = np.dtype(argument.dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, argument.shape).astype(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        low, high = max(-9, int(jnp.iinfo(dtype).min)), min(9, int(jnp.iinfo(dtype).max))
        return rng.integers(low, high + 1, argument.shape).astype(dtype)
    if dtype.kind == "c":
        real, imag = rng.normal(size=(2, *argument.shape))
        return (real + 1j * imag).astype(dtype)
    values = rng.normal(size=argument.shape)
    whole = rng.random(argument.shape) < 0.3
    values = np.where(whole, np.round(values), values)  # rounding makes zeros of both signs
    return values.astype(dtype)


@st.composite
def random_programs(
    draw: Draw,
    max_steps: int = 14,
    floats: Sequence[str] = ("float32",),
    exclude: Sequence[str] = (),
    sizes: Sequence[int] = SIZES,
    max_elements: int = 96,
    min_steps: int = 4,
    others: Sequence[str] = ("int32", "bool"),
    tries: int = 1,
    further: Sequence[Maker] = (),
    most_of_argument: float = math.inf,
) -> RandomProgram:
    """Draw a program.

    Args:
      draw: given by hypothesis.
      max_steps: most steps a program has.
      floats: float types to use.
      exclude: names in ``STEPS`` not to use.
      sizes: of the arguments' dimensions.
      max_elements: steps whose result would be bigger, or empty, are left out.
      min_steps: least steps that are drawn; a step that fits no value is left out.
      others: other types to use.
      tries: how often each step is drawn anew, on the average, where it was left out.
      further: makers besides those in ``STEPS``.
      most_of_argument: elements of an argument, at most.
    """
    makers = [*(maker for name, maker in STEPS.items() if name not in exclude), *further]
    arguments = tuple(
        _draw_type(draw, floats, sizes, others, most_of_argument) for _ in range(draw(st.integers(1, 3)))
    )
    types: list[Any] = list(arguments)
    steps: list[Step] = []
    wanted = draw(st.integers(min(min_steps, max_steps), max_steps))
    for _ in range(wanted * tries):
        if len(steps) == wanted:
            break
        step = draw(st.sampled_from(makers))(draw, types, floats)
        if step is None:
            continue
        try:
            made = jax.eval_shape(step.function, *(types[number] for number in step.reads))
        except (TypeError, ValueError, NotImplementedError):  # of a type that the operation does not take
            continue
        if 0 < math.prod(made.shape) <= max_elements:
            steps.append(step)
            types.append(made)
    read = {number for step in steps for number in step.reads}
    unread = [number for number in range(len(types)) if number not in read]
    other = draw(st.integers(0, len(types) - 1))
    return RandomProgram(arguments, tuple(steps), tuple(dict.fromkeys([*unread, other])))


def random_program(draw: Draw, **options: Any) -> tuple[Function, tuple[jax.ShapeDtypeStruct, ...]]:
    """Return a drawn program as a function and its arguments' types; options as of ``random_programs``."""
    program = draw(random_programs(**options))
    return program.function, program.arguments


def _draw_type(
    draw: Draw, floats: Sequence[str], sizes: Sequence[int], others: Sequence[str], most: float
) -> jax.ShapeDtypeStruct:
    rank = draw(st.sampled_from([2, 2, 1, 3, 0]))
    shape: tuple[int, ...] = ()
    for _ in range(rank):
        fitting = [n for n in sizes if n * math.prod(shape) <= most]
        shape = (*shape, draw(st.sampled_from(fitting)))
    dtype = draw(st.sampled_from([*floats, *floats, *others]))
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


JUMPS = frozenset(
    ("floor", "sign", "is_finite", "reduce_precision", "lt", "eq", "ne", "atan2", "round", "ceil", "rem")
) | {"argsort", "argmax", "argmin", "top_k", "bitcast", "searchsorted"}
"""Names of steps that turn the last bit of an operand into a different result; so do conversions to ``COARSE`` types."""
COARSE = ("int", "uint", "bool", "float8")
NARROW = "narrow_"
"""Beginning of names of steps of 8-bit floats that XLA rounds otherwise: at every step of a sum, which makes 4 of 6, or not at
all before a conversion."""


def jumps(step: Step) -> bool:
    """Return whether the last bit of an operand may make a different result."""
    name, _, rest = step.text.partition("[")
    return name in JUMPS or name.startswith(NARROW) or (name == "convert" and rest.startswith(COARSE))


def without_jumps(program: RandomProgram) -> RandomProgram:
    """Leave out the steps whose results jump, and all that depends on them."""
    kept = {number: number for number in range(len(program.arguments))}
    steps = []
    for number, step in enumerate(program.steps, len(program.arguments)):
        if all(read in kept for read in step.reads) and not jumps(step):
            kept[number] = len(program.arguments) + len(steps)
            steps.append(dataclasses.replace(step, reads=tuple(kept[read] for read in step.reads)))
    results = [kept[number] for number in program.results if number in kept]
    return RandomProgram(
        program.arguments, tuple(steps), tuple(dict.fromkeys([*results, max(kept.values())]))
    )


def with_smooth_results(program: RandomProgram) -> tuple[RandomProgram, tuple[int, ...]]:
    """Return a program that also returns what no jump has touched and no such value reads, and which results are smooth."""
    smooth = set(range(len(program.arguments)))
    read: set[int] = set()
    for number, step in enumerate(program.steps, len(program.arguments)):
        if smooth.issuperset(step.reads) and not jumps(step):
            smooth.add(number)
            read.update(step.reads)
    results = tuple(dict.fromkeys([*program.results, *sorted(smooth - read)]))
    places = tuple(place for place, number in enumerate(results) if number in smooth)
    return dataclasses.replace(program, results=results), places


# ---- steps: each maker returns a step that reads values of the given types, or None where none fits

STEPS: dict[str, Maker] = {}


def _step(maker: Maker) -> Maker:
    STEPS[maker.__name__.strip("_")] = maker
    return maker


def _pick(draw: Draw, types: Types, wanted: Callable[[Any], bool]) -> int | None:
    """Draw the number of a value of a wanted type, most often one of the latest."""
    fitting = [number for number, type_ in enumerate(types) if wanted(type_)]
    return draw(st.sampled_from(fitting[-2:] + fitting)) if fitting else None


def _is_float(type_: Any) -> bool:
    return jnp.issubdtype(type_.dtype, jnp.floating)


def _is_number(type_: Any) -> bool:
    return type_.dtype != np.bool_


def _has_rank(type_: Any) -> bool:
    return len(type_.shape) > 0


def _any(type_: Any) -> bool:
    return True


UNARY: dict[str, tuple[Callable[[Any], bool], Function]] = {
    "neg": (_is_number, lax.neg),
    "abs": (_is_number, lax.abs),
    "sign": (_is_number, lax.sign),
    "exp": (_is_float, lambda x: lax.exp(-lax.abs(x))),
    "tanh": (_is_float, lax.tanh),
    "logistic": (_is_float, lax.logistic),
    "rsqrt": (_is_float, lambda x: lax.rsqrt(lax.abs(x) + jnp.ones_like(x))),
    "floor": (_is_float, lax.floor),
    "not": (lambda t: not _is_float(t), lax.bitwise_not),
    "is_finite": (_is_float, lax.is_finite),
    "square": (_is_number, lambda x: x * x),
    "minus_zero": (_is_float, lambda x: x + jnp.full_like(x, -0.0)),
    "times_one": (_is_number, lambda x: x * jnp.ones_like(x)),
    "plus_zero": (_is_number, lambda x: x + jnp.zeros_like(x)),
    "relu": (_is_number, lambda x: jnp.maximum(x, jnp.zeros_like(x))),
    "helper": (_is_float, jax.jit(lambda x: jnp.where(x > 0, x, 0.5 * x))),
    "reduce_precision": (_is_float, lambda x: lax.reduce_precision(x, 5, 7)),
}
BINARY: dict[str, tuple[Callable[[Any], bool], Function]] = {
    "add": (_is_number, lax.add),
    "sub": (_is_number, lax.sub),
    "mul": (_is_number, lax.mul),
    "max": (_is_number, lax.max),
    "min": (_is_number, lax.min),
    "div": (_is_float, lambda x, y: lax.div(x, lax.abs(y) + jnp.ones_like(y))),
    "atan2": (_is_float, lax.atan2),
    "and": (lambda t: not _is_float(t), lax.bitwise_and),
    "or": (lambda t: not _is_float(t), lax.bitwise_or),
    "xor": (lambda t: not _is_float(t), lax.bitwise_xor),
    "lt": (_is_number, lax.lt),
    "eq": (_any, lax.eq),
    "ne": (_any, lax.ne),
}


@_step
def _unary(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    name = draw(st.sampled_from(sorted(UNARY)))
    wanted, function = UNARY[name]
    x = _pick(draw, types, wanted)
    return None if x is None else Step(name, function, (x,))


@_step
def _binary(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    name = draw(st.sampled_from(sorted(BINARY)))
    wanted, function = BINARY[name]
    x = _pick(draw, types, wanted)
    if x is None:
        return None
    y = _pick(draw, types, lambda t: t.shape == types[x].shape and t.dtype == types[x].dtype)
    assert y is not None
    return Step(name, function, (x, y))


@_step
def _broadcasting(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    """A binary operation whose second operand is broadcast, as ``x + bias``."""
    name = draw(st.sampled_from(["add", "mul", "max", "sub"]))
    function = BINARY[name][1]
    x = _pick(draw, types, lambda t: _is_number(t) and _has_rank(t))
    if x is None:
        return None
    y = _pick(draw, types, lambda t: t.dtype == types[x].dtype and _fits(t.shape, types[x].shape))
    if y is None:
        return None
    shape = types[x].shape
    return Step(f"{name}_broadcast", lambda a, b: function(a, jnp.broadcast_to(b, shape)), (x, y))


def _fits(small: tuple[int, ...], big: tuple[int, ...]) -> bool:
    return len(small) <= len(big) and all(a in (1, b) for a, b in zip(small[::-1], big[::-1], strict=False))


@_step
def _select(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    p = _pick(draw, types, lambda t: t.dtype == np.bool_)
    if p is None:
        return None
    x = _pick(draw, types, lambda t: t.shape == types[p].shape or types[p].shape == ())
    if x is None:
        return None
    y = _pick(draw, types, lambda t: t.shape == types[x].shape and t.dtype == types[x].dtype)
    assert y is not None
    return Step("select", lax.select, (p, x, y))


@_step
def _clamp(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    x = _pick(draw, types, _is_number)
    return None if x is None else Step("clip", lambda a: jnp.clip(a, -1, 2), (x,))


@_step
def _convert(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    x = _pick(draw, types, _any)
    name = draw(st.sampled_from([*floats, "int32", "int8", "bool"]))
    narrow = NARROW if types[x or 0].dtype.name.startswith("float8") else ""
    text = f"{narrow}convert[{name}]"
    return Step(text, lambda a: lax.convert_element_type(a, jnp.dtype(name)), (x or 0,))


@_step
def _constant(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    """A binary operation with a constant."""
    x = _pick(draw, types, _is_number)
    if x is None:
        return None
    value = draw(st.sampled_from([0, 1, -1, 2]))
    name = draw(st.sampled_from(["add", "mul", "max", "sub"]))
    function = BINARY[name][1]
    if draw(st.booleans()):
        return Step(f"{name}[{value}]", lambda a: function(a, jnp.full_like(a, value)), (x,))
    table = np.arange(math.prod(types[x].shape)).reshape(types[x].shape) % 5 - value
    return Step(f"{name}[table]", lambda a: function(a, jnp.asarray(table.astype(types[x].dtype))), (x,))


@_step
def _iota(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    x = _pick(draw, types, lambda t: _is_number(t) and _has_rank(t))
    if x is None:
        return None
    shape, dtype = types[x].shape, types[x].dtype
    axis = draw(st.integers(0, len(shape) - 1))
    return Step(f"add_iota[{axis}]", lambda a: a + lax.broadcasted_iota(dtype, shape, axis), (x,))


@_step
def _broadcast(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    x = _pick(draw, types, lambda t: len(t.shape) < 3)
    if x is None:
        return None
    old = types[x].shape
    places = sorted(draw(st.permutations(range(len(old) + 1)))[: len(old)])
    sizes = iter(old)
    extra = draw(st.sampled_from([1, 2, 3]))
    shape = tuple(next(sizes) if d in places else extra for d in range(len(old) + 1))
    return Step(f"broadcast{list(shape)}", lambda a: lax.broadcast_in_dim(a, shape, places), (x,))


@_step
def _transpose(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    x = _pick(draw, types, lambda t: len(t.shape) > 1)
    if x is None:
        return None
    permutation = tuple(draw(st.permutations(range(len(types[x].shape)))))
    return Step(f"transpose{list(permutation)}", lambda a: lax.transpose(a, permutation), (x,))


@_step
def _reshape(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    x = _pick(draw, types, _any)
    assert x is not None
    old = types[x].shape
    size = math.prod(old)
    shapes = {(size,), (1, *old), (*old, 1), old[::-1], tuple(n for n in old if n != 1)}
    shapes |= {(k, size // k) for k in (2, 3) if size % k == 0}
    shape = draw(st.sampled_from(sorted(shapes)))
    return Step(f"reshape{list(shape)}", lambda a: lax.reshape(a, shape), (x,))


@_step
def _slice(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    x = _pick(draw, types, _has_rank)
    if x is None:
        return None
    cuts = []
    for size in types[x].shape:
        start = draw(st.integers(0, size - 1))
        cuts.append((start, draw(st.integers(start + 1, size)), draw(st.sampled_from([1, 1, 2]))))
    start, limit, strides = zip(*cuts, strict=True)
    return Step(f"slice{cuts}", lambda a: lax.slice(a, start, limit, strides), (x,))


@_step
def _reverse(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    x = _pick(draw, types, _has_rank)
    if x is None:
        return None
    axes = tuple(draw(st.sets(st.integers(0, len(types[x].shape) - 1), min_size=1)))
    return Step(f"rev{list(axes)}", lambda a: lax.rev(a, axes), (x,))


@_step
def _pad(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    x = _pick(draw, types, lambda t: 1 <= len(t.shape) <= 2)
    if x is None:
        return None
    edges = st.tuples(st.integers(0, 2), st.integers(-1, 2), st.sampled_from([0, 0, 1]))
    config = [draw(edges) for _ in types[x].shape]
    if any(size + low + high < 1 for size, (low, high, _) in zip(types[x].shape, config, strict=True)):
        return None
    value = np.asarray(draw(st.sampled_from([0, 1]))).astype(types[x].dtype)
    return Step(f"pad{config}", lambda a: lax.pad(a, value, config), (x,))


@_step
def _pad_by_value(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    """Padding by an element known at run time only."""
    x = _pick(draw, types, lambda t: len(t.shape) == 1)
    if x is None:
        return None
    return Step("pad_by_first", lambda a: lax.pad(a, a[0], [(1, 1, 0)]), (x,))


@_step
def _concatenate(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    x = _pick(draw, types, _has_rank)
    if x is None:
        return None
    y = _pick(draw, types, lambda t: t.shape == types[x].shape and t.dtype == types[x].dtype)
    assert y is not None
    axis = draw(st.integers(0, len(types[x].shape) - 1))
    return Step(f"concatenate[{axis}]", lambda a, b: lax.concatenate([a, b], axis), (x, y))


@_step
def _reduce(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    name = draw(st.sampled_from(["sum", "max", "min"]))
    x = _pick(draw, types, lambda t: _is_number(t) and _has_rank(t))
    if x is None:
        return None
    axes = tuple(sorted(draw(st.sets(st.integers(0, len(types[x].shape) - 1), min_size=1))))
    function, keep = getattr(jnp, name), draw(st.booleans())
    return Step(f"{name}[{axes}, {keep}]", lambda a: function(a, axes, keepdims=keep), (x,))


@_step
def _reduce_booleans(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    x = _pick(draw, types, lambda t: t.dtype == np.bool_ and _has_rank(t))
    if x is None:
        return None
    name = draw(st.sampled_from(["any", "all"]))
    function = getattr(jnp, name)
    return Step(f"{name}[0]", lambda a: function(a, 0), (x,))


@_step
def _dot(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    x = _pick(draw, types, lambda t: _is_number(t) and _has_rank(t))
    if x is None:
        return None
    left = types[x].shape
    axis = draw(st.integers(0, len(left) - 1))
    y = _pick(draw, types, lambda t: t.dtype == types[x].dtype and left[axis] in t.shape)
    assert y is not None
    other = types[y].shape.index(left[axis])
    batches = [
        (i, j)
        for i, m in enumerate(left)
        for j, n in enumerate(types[y].shape)
        if m == n and i != axis and j != other
    ]
    batch = batches[:1] if batches and draw(st.booleans()) else []
    numbers = (((axis,), (other,)), (tuple(i for i, _ in batch), tuple(j for _, j in batch)))
    return Step(f"dot{numbers}", lambda a, b: lax.dot_general(a, b, numbers), (x, y))


@_step
def _matmul_transposed(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    """``(a @ a.T).T`` and the like: transposes on every side of a product."""
    x = _pick(draw, types, lambda t: _is_number(t) and len(t.shape) == 2)
    if x is None:
        return None
    before, after = draw(st.booleans()), draw(st.booleans())

    def function(a: Any) -> Any:
        product = a.T @ a if before else a @ a.T
        return product.T if after else product

    return Step(f"gram[{before}, {after}]", function, (x,))


@_step
def _softmax(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    x = _pick(draw, types, lambda t: _is_float(t) and _has_rank(t))
    return None if x is None else Step("softmax", jax.nn.softmax, (x,))


@_step
def _barrier(draw: Draw, types: Types, floats: Sequence[str]) -> Step | None:
    x = _pick(draw, types, _any)
    return Step("barrier", lambda a: lax.optimization_barrier(a), (x or 0,))
