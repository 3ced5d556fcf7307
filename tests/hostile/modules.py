"""StableHLO modules, as text, bytecode and portable artifacts, changed at random."""

from __future__ import annotations

import functools
import random
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax import export

import ipuxla
from hlo_passes.errors import HloError
from tiles.errors import IpuError
from tiles.target import Target

Source = str | bytes
TARGET = Target.named("gc200").replace(num_tiles=8)
F32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)


def _sorted(x: jax.Array) -> Any:
    return jnp.sort(x, axis=1), jnp.argmax(x, axis=0), jnp.cumsum(x, axis=1)


def _looping(x: jax.Array, n: jax.Array) -> Any:
    return jax.lax.while_loop(lambda c: c[1] < n, lambda c: (jnp.sin(c[0]), c[1] + 1), (x, 0))


def _branching(p: jax.Array, x: jax.Array) -> Any:
    return jax.lax.cond(p, lambda x: x * 2, lambda x: x - 1, x)


def _picked(x: jax.Array, i: jax.Array) -> Any:
    return x[i], x.at[i].add(1.0), jax.lax.dynamic_slice(x, (i[0], 0), (2, 3))


def _convolved(x: jax.Array, w: jax.Array) -> Any:
    y = jax.lax.conv_general_dilated(
        x, w, (1, 2), "SAME", rhs_dilation=(2, 1), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "SAME")


def _mixed(x: jax.Array, k: jax.Array) -> Any:
    bits = jax.lax.bitcast_convert_type(x, jnp.int32) ^ k
    return (
        jax.nn.softmax(x @ x.T),
        jnp.pad(x, ((1, 2), (0, 1)))[::-1],
        bits,
        jnp.fft.rfft(x).real,
        x.astype(jnp.bfloat16),
    )


PROGRAMS: dict[str, tuple[Any, ...]] = {
    "mixed": (_mixed, F32((4, 6)), jax.ShapeDtypeStruct((), jnp.int32)),
    "sorted": (_sorted, F32((3, 5))),
    "looping": (_looping, F32((4,)), jax.ShapeDtypeStruct((), jnp.int32)),
    "branching": (_branching, jax.ShapeDtypeStruct((), jnp.bool_), F32((4,))),
    "picked": (_picked, F32((6, 4)), jax.ShapeDtypeStruct((3,), jnp.int32)),
    "convolved": (_convolved, F32((1, 6, 6, 2)), F32((3, 3, 2, 2))),
}


@functools.cache
def corpus() -> tuple[Source, ...]:
    """Return every program in each form in which modules are handed on."""
    found: list[Source] = []
    for function, *arguments in PROGRAMS.values():
        lowered = jax.jit(function).lower(*arguments)
        module: Any = lowered.compiler_ir("stablehlo")
        found += [lowered.as_text(), module.operation.get_asm(print_generic_op_form=True)]
        found.append(ipuxla.jit(function).lower(*arguments).as_text("stablehlo", debug_info=True))
        found += [export.export(jax.jit(function))(*arguments).mlir_module_serialized]
    return tuple(found)


NUMBERS = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "64",
    "1000000000",
    "4294967296",
    "9223372036854775807",
    "99999999999999999999",
]
TYPES = [
    "f32",
    "f64",
    "bf16",
    "i1",
    "i32",
    "ui8",
    "i64",
    "complex<f32>",
    "f8E4M3FN",
    "i4",
    "!quant.uniform<i8:f32, 0.5>",
    "?",
]
_NUMBER, _TYPE, _WORD = (
    re.compile(r"-?\d+"),
    re.compile(r"x?\b(f32|i32|i1|bf16|i64)\b"),
    re.compile(r"[\w.@%#]+"),
)


def changed(source: Source, rng: random.Random) -> Source:
    """Return a source with one to four changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        source = _changed_text(source, rng) if isinstance(source, str) else changed_bytes(source, rng)
    return source


def changed_bytes(blob: bytes, rng: random.Random) -> bytes:
    """Return bytes of which some were replaced, dropped, doubled or moved."""
    if not blob:
        return bytes([rng.randrange(256)])
    at, length = rng.randrange(len(blob)), rng.choice((1, 1, 2, 4, 8, 30))
    kind = rng.randrange(6)
    if kind < 3:
        new = bytes(
            rng.choice((0, 1, 127, 128, 255, rng.randrange(256))) for _ in range(1 if kind else length)
        )
        return blob[:at] + new + blob[at + len(new) :]
    other = rng.randrange(len(blob))
    replacements = (b"", blob[other : other + length], blob[at : at + length] * 2)
    return blob[:at] + replacements[kind - 3] + blob[at + (0 if kind == 4 else length) :]


def _changed_text(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    k, other = rng.randrange(max(len(lines), 1)), rng.randrange(max(len(lines), 1))
    kind = rng.randrange(10)
    if not lines:
        return "module {}"
    if kind < 3:
        return _with_one_replaced(text, _NUMBER, NUMBERS, rng)
    if kind == 3:
        return _with_one_replaced(text, _TYPE, TYPES, rng)
    if kind == 4:
        return _with_one_replaced(text, _WORD, _WORD.findall(text), rng)
    if kind == 5:
        lines[k], lines[other] = lines[other], lines[k]
    elif kind == 6:
        lines[k : k + 1] = [] if rng.random() < 0.5 else lines[k : k + 1] * 2
    elif kind == 7:
        lines[k] = rng.choice([s for s in corpus() if isinstance(s, str)]).splitlines(keepends=True)[k % 5]
    elif kind == 8:
        depth = rng.choice((3, 50, 490, 3000, 20_000))
        opening, closing = rng.choice((("[", "]"), ("(", ")"), ("{", "}"), ("tuple<", ">"), ("({", "})")))
        return _at_random(text, opening * depth + closing * depth, rng)
    else:
        return _at_random(
            text, rng.choice(("\0", '"', "\udc80", "<", "}", "%0", "ä", "//", "\\", "? x", "-")), rng
        )
    return "".join(lines)


def _with_one_replaced(text: str, pattern: re.Pattern[str], others: list[str], rng: random.Random) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return text
    one = rng.choice(found)
    return text[: one.start()] + rng.choice(others) + text[one.end() :]


def _at_random(text: str, added: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + added + text[at:]


def source(seed: int, number: int) -> Source:
    """Return the changed module of a number."""
    rng = random.Random(f"{seed}, {number}")
    return changed(rng.choice(corpus()), rng)


def outcome(source: Source, untrusted: bool = False) -> str:
    """Compile a module, and return what came of it: ``compiled`` or the name of an error.

    Raises:
      Exception: one without a name of ours.
    """
    try:
        ipuxla.compile_stablehlo(source, TARGET, untrusted=untrusted)
    except (HloError, IpuError) as error:
        if type(error).__name__ == "InternalError":
            raise
        return type(error).__name__
    return "compiled"


def run(seed: int, number: int) -> str:
    """Compile the module of a number."""
    return outcome(source(seed, number))


def run_apart(seed: int, number: int) -> str:
    """Compile the module of a number, whose reading ended a process, as what anyone may have written."""
    return outcome(source(seed, number), untrusted=True)
