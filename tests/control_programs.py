"""Random programs with loops and branches, as JAX functions, for property tests.

A body is a list of steps over the values it can see. Steps are those of ``tests.programs`` and, here, loops, branches,
calls of shared functions and accesses at runtime offsets, which hold bodies themselves. Loops carry values of any type;
their bodies may swap them, leave them alone, and read what lies outside.
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

from tests.programs import STEPS, Draw, RandomProgram, Step

SIZES = (3, 4, 2, 1, 5)
COUNTER = jax.ShapeDtypeStruct((), np.int32)
MOST_TRIPS = 4
COMMON = ("unary", "binary", "broadcasting", "constant")
"""Steps that bodies mostly consist of, since they make what can be carried on."""


@dataclass(frozen=True)
class Body:
    """A function of ``num_values`` values: steps that add to them, and the numbers of those returned."""

    num_values: int
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        """Run the body."""
        values = list(given)
        for step in self.steps:
            values += made_by(step.function, *(values[number] for number in step.reads))
        return tuple(values[number] for number in self.results)

    def __repr__(self) -> str:
        steps = [f"{step.text}({', '.join(f'v{read}' for read in step.reads)})" for step in self.steps]
        returned = ", ".join(f"v{number}" for number in self.results)
        return f"{{{'; '.join([f'{self.num_values} values', *steps])}; return {returned}}}"


@dataclass(frozen=True)
class ControlProgram:
    """A function of positional arrays of stated types, with a tuple of results."""

    arguments: tuple[jax.ShapeDtypeStruct, ...]
    body: Body

    def function(self, *arrays: Any) -> tuple[Any, ...]:
        """Run the program; may be jitted, lowered and decorated."""
        return self.body(*(jnp.asarray(array) for array in arrays))

    def arrays(self, seed: int = 0) -> tuple[np.ndarray, ...]:
        """Return arguments."""
        return RandomProgram(self.arguments, (), ()).arrays(seed)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{a.dtype}{list(a.shape)}" for a in self.arguments)
        return f"ControlProgram({arguments}) " + repr(self.body).replace("; ", ";\n  ")


def made_by(function: Callable[..., Any], *operands: Any) -> tuple[Any, ...]:
    """Return what a step makes: several values, or one."""
    made = function(*operands)
    return made if isinstance(made, tuple) else (made,)


@dataclass(frozen=True)
class Scope:
    """What a body can see while it is drawn.

    Attributes:
      draw: given by hypothesis.
      floats: float types to convert to.
      types: of the values so far.
      depth: how many loops and branches may still be nested.
      shared: functions that any body may call, with the types of their arguments.
      exclude: names of steps not to use.
    """

    draw: Draw
    floats: Sequence[str]
    types: list[Any]
    depth: int
    shared: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]] = ()
    exclude: Sequence[str] = ()

    def pick(self, wanted: Callable[[Any], bool] = lambda _: True) -> int | None:
        """Draw the number of a value of a wanted type, most often one of the latest."""
        fitting = [number for number, type_ in enumerate(self.types) if wanted(type_)]
        return self.draw(st.sampled_from(fitting[-2:] + fitting)) if fitting else None

    def several(self, least: int, most: int) -> tuple[int, ...]:
        """Draw the numbers of some values, perhaps one of them twice."""
        count = self.draw(st.integers(least, most))
        return tuple(n for n in (self.pick() for _ in range(count)) if n is not None)

    def types_of(self, reads: Sequence[int]) -> list[Any]:
        """Return the types of values."""
        return [self.types[number] for number in reads]

    def body(self, sees: Sequence[Any], returns: Sequence[Any], most_steps: int = 5) -> Body:
        """Draw a body that sees values of given types and returns values of given types, which it must see."""
        inner = dataclasses.replace(self, types=list(sees), depth=self.depth - 1)
        steps = draw_steps(inner, 2, most_steps)
        return Body(len(sees), steps, inner.returned(returns, len(sees)))

    def returned(self, returns: Sequence[Any], num_seen: int) -> tuple[int, ...]:
        """Draw the numbers of values of given types: mostly made by steps, sometimes among the ``num_seen`` first."""
        numbers = []
        for like in returns:
            fitting = [number for number, type_ in enumerate(self.types) if _same(type_, like)]
            made = [number for number in fitting if number >= num_seen]
            numbers.append(self.draw(st.sampled_from(made * 5 + fitting)))
        return tuple(numbers)


def _same(one: Any, other: Any) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype)


def draw_steps(scope: Scope, least: int, most: int) -> tuple[Step, ...]:
    """Draw steps that read the scope's values and add to them."""
    own: list[Callable[[Scope], Step | None]] = [*RUNTIME] * 2
    if scope.depth > 0:
        own += [*CONTROL] * 4
    if scope.shared:
        own += [_call] * 4
    plain = [STEPS[name] for name in COMMON] * 5
    plain += [maker for name, maker in STEPS.items() if name not in scope.exclude]
    steps: list[Step] = []
    for _ in range(scope.draw(st.integers(least, most))):
        maker = scope.draw(st.sampled_from([*plain, *own]))
        step = maker(scope) if maker in own else maker(scope.draw, scope.types, scope.floats)
        if step is None:
            continue
        made = jax.eval_shape(lambda *xs, step=step: made_by(step.function, *xs), *scope.types_of(step.reads))
        if all(math.prod(type_.shape) <= 96 for type_ in made):
            steps.append(step)
            scope.types.extend(made)
    return tuple(steps)


@st.composite
def control_programs(
    draw: Draw,
    floats: Sequence[str] = ("float32",),
    arguments: Sequence[jax.ShapeDtypeStruct] | None = None,
    returns: Sequence[jax.ShapeDtypeStruct] = (),
    depth: int = 2,
    exclude: Sequence[str] = (),
) -> ControlProgram:
    """Draw a program.

    Args:
      draw: given by hypothesis.
      floats: float types to use.
      arguments: their types; drawn if None.
      returns: types of the first results, each that of an argument; what no step reads is returned too.
      depth: how deep loops and branches are nested.
      exclude: names in ``STEPS`` not to use.
    """
    if arguments is None:
        arguments = [_draw_type(draw, floats) for _ in range(draw(st.integers(2, 4)))]
    scope = Scope(draw, floats, list(arguments), depth, (), exclude)
    scope = dataclasses.replace(scope, shared=[_draw_shared(scope) for _ in range(draw(st.integers(0, 1)))])
    steps = (*draw_steps(scope, 1, 3), *_at_least_one(scope), *draw_steps(scope, 1, 3))
    read = {number for step in steps for number in step.reads}
    unread = [number for number in range(len(scope.types)) if number not in read]
    results = (*scope.returned(returns, len(arguments)), *dict.fromkeys(unread or [len(scope.types) - 1]))
    return ControlProgram(tuple(arguments), Body(len(arguments), steps, results))


def _at_least_one(scope: Scope) -> tuple[Step, ...]:
    """Draw a loop or branch at the top."""
    step = scope.draw(st.sampled_from(CONTROL))(scope)
    if step is None:
        return ()
    scope.types.extend(jax.eval_shape(lambda *xs: made_by(step.function, *xs), *scope.types_of(step.reads)))
    return (step,)


def _draw_type(draw: Draw, floats: Sequence[str]) -> jax.ShapeDtypeStruct:
    shape = tuple(draw(st.sampled_from(SIZES)) for _ in range(draw(st.sampled_from([1, 2, 2, 0]))))
    name = draw(st.sampled_from([*floats, *floats, "int32", "bool", "int8"]))
    return jax.ShapeDtypeStruct(shape, jnp.dtype(name))


def _draw_shared(scope: Scope) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Draw a function that bodies may call."""
    takes = scope.types_of(scope.several(1, 2))
    body = dataclasses.replace(scope, depth=1).body(takes, takes)
    return jax.jit(_shared(body)), tuple(takes)


def _shared(body: Body) -> Callable[..., Any]:
    def shared(*values: Any) -> tuple[Any, ...]:
        return body(*values)

    return shared


# ---- steps with bodies


def _trips(scope: Scope) -> tuple[str, tuple[int, ...], Callable[..., Any]]:
    """Draw how often a loop runs: a constant, or a number known at run time; text, reads and the count of those."""
    is_integer = lambda t: jnp.issubdtype(t.dtype, jnp.integer)  # noqa: E731
    number = scope.pick(is_integer) if scope.draw(st.booleans()) else None
    if number is None:
        count = scope.draw(st.sampled_from([3, 2, MOST_TRIPS, 1, 0]))
        return str(count), (), lambda *_: count
    return "n", (number,), lambda x, *_: x.astype(jnp.int32).sum() % MOST_TRIPS


def _decision(x: Any) -> Any:
    """Return a predicate made of any value."""
    if x.dtype == jnp.bool_:
        return x.any()
    if jnp.issubdtype(x.dtype, jnp.integer):
        return (x.astype(jnp.int32).sum() & 1) == 0
    return x.astype(jnp.float32).sum() > 0


def _fori(scope: Scope) -> Step:
    text, counts, trips = _trips(scope)
    carried, captured = scope.several(1, 3), scope.several(0, 2)
    types = scope.types_of(carried)
    body = scope.body([COUNTER, *types, *scope.types_of(captured)], types)

    def function(*values: Any) -> Any:
        rest = values[len(counts) :]
        state, outside = rest[: len(carried)], rest[len(carried) :]
        return lax.fori_loop(0, trips(*values), lambda i, s: body(i, *s, *outside), state)

    return Step(f"fori[{text}, {len(carried)} carried]{body}", function, (*counts, *carried, *captured))


def _while(scope: Scope) -> Step:
    """Runs while a value it carries says so, but not too long."""
    limit = scope.draw(st.sampled_from([3, 2, MOST_TRIPS, 1, 0]))
    carried, captured = scope.several(1, 3), scope.several(0, 2)
    decides = scope.draw(st.integers(0, len(carried) - 1))
    types = scope.types_of(carried)
    body = scope.body([COUNTER, *types, *scope.types_of(captured)], types)

    def function(*values: Any) -> Any:
        outside = values[len(carried) :]

        def goes_on(state: Any) -> Any:
            return (state[0] < limit) & _decision(state[1 + decides])

        def round_(state: Any) -> Any:
            return (state[0] + 1, *body(*state, *outside))

        return lax.while_loop(goes_on, round_, (jnp.int32(0), *values[: len(carried)]))

    text = f"while[at most {limit}, by carried {decides} of {len(carried)}]{body}"
    return Step(text, function, (*carried, *captured))


def _layers(scope: Scope) -> Step:
    """Runs a body several times in a Python loop: operations that repeat, which passes make a function."""
    count = scope.draw(st.integers(2, 4))
    carried, captured = scope.several(1, 3), scope.several(0, 2)
    types = scope.types_of(carried)
    body = scope.body([*types, *scope.types_of(captured)], types)

    def function(*values: Any) -> Any:
        state, outside = values[: len(carried)], values[len(carried) :]
        for _ in range(count):
            state = body(*state, *outside)
        return state

    return Step(f"layers[{count}, {len(carried)} carried]{body}", function, (*carried, *captured))


def _scan(scope: Scope) -> Step | None:
    xs = scope.pick(lambda t: len(t.shape) > 0)
    if xs is None:
        return None
    carried, captured = scope.several(1, 2), scope.several(0, 2)
    types, rows = scope.types_of(carried), scope.types[xs]
    row = jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype)
    sees = [row, *types, *scope.types_of(captured)]
    stacked = scope.draw(st.sampled_from([[], [row], [types[0]], [row, types[-1]]]))
    body = scope.body(sees, [*types, *stacked])
    is_reversed = scope.draw(st.booleans())

    def function(rows: Any, *values: Any) -> Any:
        outside = values[len(carried) :]

        def step(state: Any, x: Any) -> Any:
            made = body(x, *state, *outside)
            return made[: len(carried)], made[len(carried) :]

        state, ys = lax.scan(step, values[: len(carried)], rows, reverse=is_reversed)
        return (*state, *ys)

    text = f"scan[{len(carried)} carried{', reversed' * is_reversed}]{body}"
    return Step(text, function, (xs, *carried, *captured))


def _cond(scope: Scope) -> Step | None:
    return _branches(scope, 2, lambda p, bodies, operands: lax.cond(_decision(p), *bodies, *operands))


def _switch(scope: Scope) -> Step | None:
    """The index is often no branch's number."""

    def choose(index: Any, bodies: Any, operands: Any) -> Any:
        return lax.switch(index.astype(jnp.int32).sum(), bodies, *operands)

    return _branches(scope, scope.draw(st.integers(2, 4)), choose, np.integer)


def _branches(
    scope: Scope, count: int, choose: Callable[..., Any], kind: type[np.generic] = np.generic
) -> Step | None:
    decider = scope.pick(lambda t: kind is np.generic or jnp.issubdtype(t.dtype, kind))
    if decider is None:
        return None
    operands = scope.several(1, 3)
    types = scope.types_of(operands)
    returns = [
        types[scope.draw(st.integers(0, len(types) - 1))] for _ in range(scope.draw(st.integers(1, 3)))
    ]
    bodies = [scope.body(types, returns, 3) for _ in range(count)]
    text = f"{'switch' if kind is np.integer else 'cond'}[{', '.join(map(repr, bodies))}]"
    return Step(text, lambda d, *values: choose(d, bodies, values), (decider, *operands))


def _call(scope: Scope) -> Step | None:
    """Call a shared function twice: the second time with what the first returned."""
    function, takes = scope.draw(st.sampled_from(scope.shared))
    found = [scope.pick(lambda t, like=like: _same(t, like)) for like in takes]
    reads = tuple(number for number in found if number is not None)
    if len(reads) < len(takes):
        return None
    return Step("call_twice", lambda *values: function(*function(*values)), reads)


# ---- runtime offsets


def _dynamic_slice(scope: Scope) -> Step | None:
    x, index = scope.pick(lambda t: len(t.shape) > 0), scope.pick(_is_index)
    if x is None or index is None:
        return None
    shape = scope.types[x].shape
    sizes = tuple(scope.draw(st.integers(1, size)) for size in shape)
    axis = scope.draw(st.integers(0, len(shape) - 1))
    starts = lambda i: [i if d == axis else jnp.zeros_like(i) for d in range(len(shape))]  # noqa: E731
    return Step(
        f"dynamic_slice[{axis}, {sizes}]", lambda a, i: lax.dynamic_slice(a, starts(i), sizes), (x, index)
    )


def _dynamic_update(scope: Scope) -> Step | None:
    x, index = scope.pick(lambda t: len(t.shape) > 0), scope.pick(_is_index)
    if x is None or index is None:
        return None
    big = scope.types[x]
    fits = lambda t: t.dtype == big.dtype and len(t.shape) in (len(big.shape), len(big.shape) - 1)  # noqa: E731
    update = scope.pick(lambda t: fits(t) and all(map(int.__le__, t.shape[::-1], big.shape[::-1])))
    assert update is not None

    def function(a: Any, b: Any, i: Any) -> Any:
        b = b if b.ndim == a.ndim else b[None]
        return lax.dynamic_update_slice(a, b, [i, *[jnp.zeros_like(i)] * (a.ndim - 1)])

    return Step("dynamic_update", function, (x, update, index))


def _is_index(type_: Any) -> bool:
    return _same(type_, COUNTER)


CONTROL: tuple[Callable[[Scope], Step | None], ...] = (_fori, _while, _scan, _cond, _switch, _layers)
RUNTIME: tuple[Callable[[Scope], Step | None], ...] = (_dynamic_slice, _dynamic_update)
