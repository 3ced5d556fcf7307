"""``jax.debug.print``: the lines that ``jax.jit`` shows, in program order, on every engine, through every pass."""

from __future__ import annotations

import contextlib
import io
import json
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from hlo_passes.errors import UnsupportedOp
from hlo_passes.ir import parse_module, print_module
from hlo_passes.passes import PASSES
from ipuxla.errors import UnsupportedPrimitive
from ipuxla.frontend.importer import import_stablehlo
from tiles.compiler import PrintStep, check
from tiles.errors import InvalidExecutable
from tiles.graph import read_message
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=16)
ENGINES = ("hlo", "fast", "literal", "vertex")


def shown(function: Callable[..., Any], *args: Any) -> list[str]:
    """Return the lines that a call shows."""
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        jax.block_until_ready(function(*args))
        jax.effects_barrier()
    return written.getvalue().splitlines()


class Pair(typing.NamedTuple):
    """A tree with names."""

    left: Any
    right: Any


def formats(x: jax.Array, n: jax.Array, c: jax.Array) -> jax.Array:
    """Print as people do."""
    show = jax.debug.print(ordered=True)
    show("hello")
    show("braces {{}} and {}", n)
    show("x {} {x!r} {x.shape} {y[1]:.3f} {x.dtype}", n, x=x, y=x)
    show("{} {} {}", (x, n), {"a": x, "b": [n, "s", None]}, Pair(x, n))
    show("static {s:>8} {i} {f:.2f} {shape} {b} {d}", s="abc", i=3, f=2.5, shape=x.shape, b=True, d=x.dtype)
    show("{c} {c!r} {c.imag}", c=c)
    show("{n:5d}|{m:>10}|{n:x}|{x:}", n=n, m=n, x=x)
    show("{} {:.2f} {}", x.astype(jnp.bfloat16), x[0].astype(jnp.float16), x > 0)
    show("{} {} {}", x.astype(jnp.float8_e4m3fn), n.astype(jnp.int4), n.astype(jnp.uint16))
    show("{0} {0} {1}", n, 2)
    show('a\nbreak {} "quoted" \\', n)
    show("{:>{w}}|", n, w="7")
    show("{}", jnp.arange(3000, dtype=jnp.float32) * 0.5)
    return x


VALUES = (np.array([1, -2, 3.5e-7], np.float32), np.int32(7), np.array([1 + 2j, -3e-9j], np.complex64))


def flows(x: jax.Array, n: jax.Array) -> jax.Array:
    """Print from loops, branches and functions that a program has once."""
    show = jax.debug.print(ordered=True)

    @jax.jit
    def step(s: jax.Array) -> jax.Array:
        show("step {}", s.sum())
        return s * 2

    def body(i: jax.Array, s: jax.Array) -> jax.Array:
        show("loop {i}: {s}", i=i, s=s)
        jax.lax.cond(i % 2 == 0, lambda: show("even {}", i), lambda: show("odd"))
        return step(s) if i is not None else s

    x = jax.lax.fori_loop(0, n, body, x)
    x, _ = jax.lax.scan(lambda s, k: (show("scan {} {}", k, s[0]), (s + k, None))[1], x, jnp.arange(3.0))
    k = jax.lax.while_loop(lambda k: k < 100, lambda k: (show("while {}", k), k * 3)[1], n)
    show("same {}", k)
    show("same {}", k)
    show("unread {}", jnp.sin(x))
    return step(step(x))


@pytest.mark.parametrize("engine", ENGINES)
def test_lines_are_those_of_jax(engine: str) -> None:
    for function, args in ((formats, VALUES), (flows, (VALUES[0], np.int32(5)))):
        assert shown(ipuxla.jit(function, target=TARGET, engine=engine), *args) == shown(
            jax.jit(function), *args
        )


def test_the_ring_shows_words_the_same_on_every_engine() -> None:
    lines = [
        shown(ipuxla.jit(flows, target=TARGET, engine=e, arithmetic="ring"), VALUES[0], np.int32(5))
        for e in ENGINES
    ]
    assert all(found == lines[0] for found in lines) and len(lines[0]) == len(
        shown(jax.jit(flows), VALUES[0], np.int32(5))
    )
    assert lines[0][0].startswith("loop {i}: {s}: 0, [")


@pytest.mark.parametrize("passes", [",".join(PASSES), "", *PASSES])
def test_no_pass_drops_repeats_merges_or_moves_a_print(passes: str) -> None:
    found = shown(ipuxla.jit(flows, target=TARGET, engine="hlo", passes=passes), VALUES[0], np.int32(5))
    assert found == shown(jax.jit(flows), VALUES[0], np.int32(5))


def loss(x: jax.Array) -> jax.Array:
    jax.debug.print("x {}", x, ordered=True)
    y = jnp.sin(x) * x
    jax.debug.print("y {:.3f} {}", y.sum(), y, ordered=True)
    return y.sum()


TRANSFORMED: dict[str, Callable[..., Any]] = {
    "grad": jax.grad,
    "vmap": jax.vmap,
    "jit": jax.jit,
    "jit of value_and_grad": lambda f: jax.jit(jax.value_and_grad(f)),
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "inside another": lambda f: jax.jit(lambda x: f(x) + f(2 * x)),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
}


@pytest.mark.parametrize("name", TRANSFORMED)
@pytest.mark.parametrize("engine", ["hlo", "fast"])
def test_transformations_print_what_they_do_in_jax(name: str, engine: str) -> None:
    transform, x = TRANSFORMED[name], np.array([0.5, 1, 2], np.float32)
    if name == "vmap":
        x = np.stack([x, -x])
    assert shown(transform(ipuxla.jit(loss, target=TARGET, engine=engine)), x) == shown(
        transform(jax.jit(loss)), x
    )


@pytest.mark.parametrize("engine", ["hlo", "fast", "literal"])
def test_64_bits_are_shown_in_full_also_under_jit(engine: str) -> None:
    def wide(x: Any, k: Any) -> Any:
        jax.debug.print("{} {!r} {}", x, k, x.sum() + 1j)
        return x

    with jax.enable_x64(True):
        args = np.array([1 / 3, 1e-200]), np.int64(2**40)
        expected = shown(jax.jit(wide), *args)
        decorated = ipuxla.jit(wide, target=TARGET, engine=engine)
        assert shown(decorated, *args) == expected
        if engine != "literal":
            assert shown(jax.jit(decorated), *args) == expected


def test_a_saved_program_prints_and_is_certified(tmp_path: Any) -> None:
    compiled = ipuxla.jit(flows, target=TARGET, engine="literal").lower(VALUES[0], np.int32(5)).compile()
    compiled.certify()
    compiled.save(tmp_path / "prints.ipuxla")
    expected = shown(jax.jit(flows), VALUES[0], np.int32(5))
    for engine in ENGINES[1:]:
        assert (
            shown(ipuxla.load(tmp_path / "prints.ipuxla", engine=engine), VALUES[0], np.int32(5)) == expected
        )


def test_what_is_printed_is_in_the_trace_and_has_a_price() -> None:
    def two(x: jax.Array) -> jax.Array:
        jax.debug.print("x {} {}", x, x.sum(), ordered=True)
        jax.debug.print("nothing", ordered=True)
        return x

    compiled = ipuxla.jit(two, target=TARGET).lower(VALUES[0]).compile()
    engine = compiled._runner._machine
    engine.print_to = io.StringIO()
    trace = engine.run(VALUES[0])[1]
    assert trace.lines == tuple(shown(jax.jit(two), VALUES[0]))
    assert engine.print_to.getvalue().splitlines() == list(trace.lines)
    assert [(p.title, p.part, p.value.shape) for p in trace.prints] == [
        ("x {} {}", 0, (3,)),
        ("x {} {}", 1, ()),
        ("nothing", 0, (0,)),
    ]
    costs = compiled.cost_analysis()
    quiet = ipuxla.jit(lambda x: (x, x.sum()), target=TARGET).lower(VALUES[0]).compile().cost_analysis()
    moved, waited = (costs[key] - quiet[key] for key in ("host_exchange_bytes", "sync_cycles"))
    assert moved == 16
    assert waited == 3 * TARGET.global_sync_cycles


class Odd:
    """A type that no file can hold."""


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a logger": (lambda x: jax.debug.log("{}", x), "logger"),
    "a key": (lambda x: jax.debug.print("{}", jax.random.key(0)), "key_data"),
    "an object": (lambda x: jax.debug.print("{} {}", x, Odd()), "where in memory"),
    "a function": (lambda x: jax.debug.print("{} {f}", x, f=loss), "where in memory"),
    "an attribute": (lambda x: jax.debug.print("{0.__class__}", x), "reads something else"),
    "a method": (lambda x: jax.debug.print("{x.at}", x=x), "reads something else"),
    "a width": (lambda x: jax.debug.print("{:>99999}", x.sum()), "wider"),
    "a specification": (lambda x: jax.debug.print("{:d}", x.sum()), "does not fit"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_data_is_refused_with_the_users_line(case: str) -> None:
    prints, words = REFUSED[case]
    with pytest.raises(UnsupportedPrimitive, match=words) as caught:
        ipuxla.jit(lambda x: (prints(x), x)[1], target=TARGET)(np.ones((4, 2), np.float32))
    assert str(caught.value.location).startswith(__file__)


def test_options_of_printing_are_those_of_the_trace() -> None:
    def function(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x)
        return x

    with np.printoptions(precision=2, suppress=True, threshold=10**9):
        compiled = ipuxla.jit(function, target=TARGET).lower(VALUES[0]).compile()
        expected = shown(jax.jit(function), VALUES[0])
    assert shown(compiled, VALUES[0]) == expected != shown(jax.jit(lambda x: function(x)), VALUES[0])
    with np.printoptions(formatter={"float": str}), pytest.raises(UnsupportedPrimitive, match="formatter"):
        ipuxla.jit(lambda x: function(x), target=TARGET)(VALUES[0])


def test_messages_in_the_ir_and_in_modules_from_elsewhere() -> None:
    module = import_stablehlo(
        ipuxla.jit(flows, target=TARGET).lower(VALUES[0], np.int32(5)).as_text("stablehlo")
    )
    assert print_module(parse_module(print_module(module))) == print_module(module)
    good = '{"arguments":[{"value":0}],"dtypes":["float32"],"keywords":{},"options":{},"ordered":true,"template":"{}"}'
    for config, operands in (
        (good, "%x, %x"),
        (good, ""),
        ("{}", "%x"),
        (good.replace('"{}"', '"{0.__class__}"'), "%x"),
    ):
        types = ", ".join("tensor<2xf32>" for _ in operands.split(",") if operands)
        text = f"""func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
          stablehlo.custom_call @ipuxla.print({operands}) {{backend_config = {json.dumps(config)}, has_side_effect = true}}
            : ({types}) -> ()
          return %x : tensor<2xf32>
        }}"""
        with pytest.raises(UnsupportedOp, match=r"a message|as its message says"):
            import_stablehlo(text)


def _message(**changes: Any) -> str:
    data = {
        "arguments": [{"value": 0}],
        "dtypes": ["float32"],
        "keywords": {},
        "options": {},
        "ordered": False,
        "template": "{}",
    }
    return json.dumps(data | changes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "nonsense",
        _message(extra=1),
        _message(template=3),
        _message(template="{"),
        _message(template="{0.__init__.__globals__}"),
        _message(template="{0[__class__].mro}"),
        _message(template="{:{0.__class__}}"),
        _message(dtypes=["O"]),
        _message(dtypes=["float32x"]),
        _message(arguments=[{"value": 1}]),
        _message(arguments=[{"value": True}]),
        _message(arguments=[{"text": [1, 2]}]),
        _message(arguments=[{"record": ["a b", []]}]),
        _message(arguments=[3]),
        _message(arguments=[{"dict": [[{"value": 0}, None]]}]),
        _message(options={"formatter": {}}),
        _message(options={"precision": "x"}),
        _message(options={"floatmode": "odd"}),
        _message(keywords={"a": {"call": []}}),
    ],
)
def test_texts_that_are_no_message_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_message(text)


def test_a_message_reads_back_as_it_was() -> None:
    text = _message()
    assert read_message(text).format([np.float32(1.5)]) == "1.5"
    assert read_message(read_message(text).to_text()) == read_message(text)
    far = read_message(_message(template="{:>{w}}", keywords={"w": {"text": ["99999999", "99999999"]}}))
    with pytest.raises(ValueError, match="wider"):
        far.format([np.float32(1)])


def test_executables_whose_messages_are_torn_are_refused() -> None:
    def two(x: jax.Array) -> jax.Array:
        jax.debug.print("x {} {}", x, x + 1)
        jax.debug.print("y {}", x)
        return x

    executable = ipuxla.jit(two, target=TARGET).lower(VALUES[0]).compile().executable
    prints = [n for n, step in enumerate(executable.steps) if isinstance(step, PrintStep)]
    assert len(prints) == 3
    first, second, third = (executable.steps[n] for n in prints)

    def with_steps(*steps: Any) -> Any:
        changed = list(executable.steps)
        for number, step in zip(prints, steps, strict=True):
            changed[number] = step
        return replace(executable, steps=tuple(changed))

    check(with_steps(first, second, third))
    for damaged in (
        (second, first, third),
        (first, third, second),
        (first, first, third),
        (replace(first, part=2), second, third),
        (replace(first, part=-1), second, third),
        (replace(first, part=True), second, third),
        (first, replace(second, message=third.message), third),
        (first, replace(second, message="{}"), third),
        (replace(first, message=""), second, third),
        (first, second, replace(third, part=1)),
    ):
        with pytest.raises(InvalidExecutable):
            check(with_steps(*damaged))
