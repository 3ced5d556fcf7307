"""StableHLO modules, as text, bytecode and portable artifacts, changed at random."""

from __future__ import annotations

import dataclasses
import functools
import random
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax import export, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import ipuxla
from hlo_passes.errors import HloError
from tests.systems import auto_mesh
from tiles.errors import IpuError
from tiles.target import System, Target, find_system

Source = str | bytes
TARGET = Target.named("gc200").replace(num_tiles=8)
SYSTEM = dataclasses.replace(find_system("dss8440"), chip=TARGET)
"""What programs of several IPUs are compiled for."""
MESH = auto_mesh((2, 2), ("d", "m"))
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


def _manual(x: jax.Array, w: jax.Array) -> Any:
    """Every kind of exchange between replicas that a program can ask for by name."""
    total = lax.psum(x @ w, "m")
    place = lax.axis_index("d").astype(x.dtype)
    moved = lax.ppermute(total + place, "d", [(0, 1), (1, 0)])
    whole = lax.all_gather(moved, ("d", "m"), tiled=True)
    parts = lax.psum_scatter(whole, "m", tiled=True)
    return lax.all_to_all(parts, "d", 0, 1, tiled=True), lax.pmax(x.max(), ("d", "m"))


def _cut(x: jax.Array, w: jax.Array) -> Any:
    """Rows over one axis, columns over the other: exchanges are the partitioner's."""
    y = lax.with_sharding_constraint(jnp.tanh(x @ w), NamedSharding(MESH, P("m", "d")))
    return jnp.cumsum(y, axis=0), y[1:-1].sum()


MANUAL = jax.shard_map(
    _manual,
    mesh=MESH,
    in_specs=(P("d", "m"), P("m")),
    out_specs=(P(("d", "m")), P()),
    check_vma=False,
)
SHARDED: dict[str, tuple[Any, ...]] = {
    "manual": (MANUAL, F32((8, 4)), F32((4, 4))),
    "cut": (
        _cut,
        F32((8, 4), sharding=NamedSharding(MESH, P("d", "m"))),
        F32((4, 6), sharding=NamedSharding(MESH, P("m"))),
    ),
}
"""Programs of four IPUs."""


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


@functools.cache
def sharded_corpus() -> tuple[str, ...]:
    """Return programs of several IPUs, as their users wrote them and as every IPU runs them."""
    found: list[str] = []
    for function, *arguments in SHARDED.values():
        lowered = ipuxla.jit(function, target=SYSTEM).lower(*arguments)
        found.append(lowered.as_text("stablehlo"))
        # XLA's partitioner says neither how many run it, nor that its mesh is what it was for all together.
        alone = re.sub(r"  sdy\.mesh .*\n", "", lowered.as_text("partitioned"))
        alone = re.sub(r"mhlo\.num_\w+ = \d+ : i32,? ?", "", alone)
        for counts in ((1, 4), (2, 2)):
            said = "mhlo.num_replicas = {} : i32, mhlo.num_partitions = {} : i32".format(*counts)
            found.append(alone.replace("attributes {", f"attributes {{{said}, ", 1).replace(", }", "}", 1))
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


_TABLE = re.compile(r"dense<[^>]*> : tensor<\w+xi64>")
_COUNT = re.compile(r"(num_replicas|num_partitions|handle|type|_dim|_dimension|_count) = -?\d+")


def changed_exchange(text: str, rng: random.Random) -> str:
    """Return a module in which another exchange is asked for: groups, pairs, dimensions, channels, numbers of devices."""
    if rng.random() < 0.5:
        found = _COUNT.search(rng.choice([m[0] for m in _COUNT.finditer(text)] or [""]))
        what = found[1] if found else ""
        return _with_one_replaced(text, _COUNT, [f"{what} = {n}" for n in NUMBERS], rng)
    rows, columns = rng.choice(((1, 4), (2, 2), (4, 1), (1, 1), (1, 2), (3, 2), (0, 0), (1, 1000)))
    members = list(range(rows * columns))
    rng.shuffle(members)
    if members and rng.random() < 0.4:
        members[rng.randrange(len(members))] = rng.choice((-1, 0, 1, 4, 2**31, 2**62))
    table = str([members[k * columns : (k + 1) * columns] for k in range(rows)]) if members else ""
    return _with_one_replaced(text, _TABLE, [f"dense<{table}> : tensor<{rows}x{columns}xi64>"], rng)


def _with_one_replaced(text: str, pattern: re.Pattern[str], others: list[str], rng: random.Random) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return text
    one = rng.choice(found)
    return text[: one.start()] + rng.choice(others) + text[one.end() :]


def _at_random(text: str, added: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + added + text[at:]


def source(seed: int, number: int) -> tuple[Source, Target | System]:
    """Return the changed module of a number, and the machine that it is for."""
    rng = random.Random(f"{seed}, {number}")
    if rng.random() < 0.25:
        text = rng.choice(sharded_corpus())
        return (changed_exchange if rng.random() < 0.7 else changed)(text, rng), SYSTEM
    return changed(rng.choice(corpus()), rng), TARGET


def outcome(source: Source, target: Target | System = TARGET, untrusted: bool = False) -> str:
    """Compile a module, and return what came of it: ``compiled`` or the name of an error.

    Raises:
      Exception: one without a name of ours.
    """
    try:
        ipuxla.compile_stablehlo(source, target, untrusted=untrusted)
    except (HloError, IpuError) as error:
        if type(error).__name__ == "InternalError":
            raise
        return type(error).__name__
    return "compiled"


def run(seed: int, number: int) -> str:
    """Compile the module of a number."""
    return outcome(*source(seed, number))


def run_apart(seed: int, number: int) -> str:
    """Compile the module of a number, whose reading ended a process, as what anyone may have written."""
    return outcome(*source(seed, number), untrusted=True)
