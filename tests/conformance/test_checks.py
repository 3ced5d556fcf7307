"""Run-time checks, callbacks of the host that only raise: values and errors of ``jax.jit``, on every engine."""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir
from jax.sharding import PartitionSpec

import ipuxla
from hlo_passes.ir import parse_module, print_module
from hlo_passes.ops import Stop
from hlo_passes.passes import PASSES
from ipuxla.errors import Unsupported, UnsupportedPrimitive
from ipuxla.frontend.checks import never_returns
from ipuxla.frontend.importer import import_stablehlo
from tiles.errors import ProgramAborted
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=16)
ENGINES = ("hlo", "fast", "literal", "vertex")
X = np.array([0.5, 1.0, 2.0], np.float32)


def checked(x: jax.Array, is_wrong: Any, text: str, *shown: Any) -> jax.Array:
    """Return x, or fail with a text and values: in the way of equinox, with a second callback for hosts that go on."""
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)

    def raises(*values: Any) -> Any:
        raise ArithmeticError(f"{text} {[np.asarray(v).tolist() for v in values]}")

    def shows(out: Any, *values: Any) -> Any:
        return np.full_like(out, np.nan)

    def fail(x: jax.Array) -> jax.Array:
        stopped = jax.pure_callback(raises, out, *shown)
        return jax.pure_callback(shows, out, stopped, *shown)

    return jax.lax.cond(is_wrong, fail, lambda x: x, x)


@jax.custom_jvp
def positive(x: jax.Array) -> jax.Array:
    """Return x, of which nothing may be negative; a check has no derivative of its own."""
    return checked(x, (x < 0).any(), "negative", x.min())


@positive.defjvp
def _positive(primals: Any, tangents: Any) -> Any:
    return positive(*primals), *tangents


def in_a_loop(x: jax.Array) -> jax.Array:
    def body(k: Any, x: jax.Array) -> jax.Array:
        return checked(x * 1.5, (x > 7).any(), "large", k, x)

    return jax.lax.fori_loop(0, 4, body, positive(x))


def in_a_while(x: jax.Array) -> jax.Array:
    def body(x: jax.Array) -> jax.Array:
        return checked(x * 2, x.sum() < 0, "falls", x)

    return jax.lax.while_loop(lambda x: jnp.abs(x).sum() < 100, body, x)


def in_a_scan(x: jax.Array) -> Any:
    def step(total: jax.Array, item: jax.Array) -> Any:
        total = checked(total + item, total < -1, "item", item, total)
        return total, total * 2

    return jax.lax.scan(step, jnp.float32(0), x)


def in_a_branch(x: jax.Array) -> jax.Array:
    return jax.lax.switch((x[0] > 0).astype(int), [positive, lambda x: positive(x + 1), jnp.sin], x)


def in_functions(x: jax.Array) -> jax.Array:
    inner = jax.jit(lambda x: positive(jnp.sin(x)))
    return inner(inner(x) + 1) * jnp.exp(positive(x))


def of_every_type(x: jax.Array) -> jax.Array:
    values = x.astype(jnp.bfloat16), x > 0, x.astype(jnp.int8), x * 1j, x[:0], x[0], x.astype(jnp.float16)
    return checked(x, x.sum() < 0, "types", *values)


def without_operands(x: jax.Array) -> jax.Array:
    return checked(x, x.sum() < 0, "bare") + 1


def complex_alone(x: jax.Array) -> jax.Array:
    return checked(x * 1j, x.sum() < 0, "complex", x[0] * 1j)


FUNCTIONS = {
    "in a loop": in_a_loop,
    "in a while": in_a_while,
    "in a scan": in_a_scan,
    "in a branch": in_a_branch,
    "in functions": in_functions,
    "of every type": of_every_type,
    "without operands": without_operands,
    "complex": complex_alone,
    "grad": jax.grad(lambda x: jnp.sum(positive(x) ** 2)),
    "vmap": lambda x: jax.vmap(jnp.sin)(positive(jnp.stack([x, x + 1]))),
}


def failed(function: Callable[..., Any], *args: Any) -> str:
    """Return what the check says that a call fails with."""
    try:
        jax.block_until_ready(function(*args))
    except ArithmeticError as error:  # its own, not within the text of one of XLA's
        assert any("test_checks.py" in note for note in error.__notes__)
        return str(error)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        return re.findall(r"ArithmeticError: (.*)", str(error))[-1]
    raise AssertionError("it did not fail")


@functools.cache
def of_jit(name: str) -> tuple[Any, str]:
    """Return what ``jax.jit`` returns for X, and how it fails for -X."""
    jitted = jax.jit(FUNCTIONS[name])
    return jitted(X), failed(jitted, -X)


@pytest.mark.parametrize("engine", ["hlo", "fast", "vertex"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_errors_are_those_of_jit(name: str, engine: str) -> None:
    compiled = ipuxla.jit(FUNCTIONS[name], target=TARGET, engine=engine)
    values, text = of_jit(name)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), compiled(X), values)
    assert failed(compiled, -X) == text


def test_a_check_that_fails_later_fails_as_in_jit() -> None:
    compiled = ipuxla.jit(in_a_loop, target=TARGET)
    assert failed(compiled, 2 * X) == failed(jax.jit(in_a_loop), 2 * X)
    compiled(X)  # and the program can be called again


def test_certificates_prove_composites_beside_checks() -> None:
    x = np.linspace(2, 1, 300, dtype=np.float32)  # long enough that its sort is many steps
    compiled = ipuxla.jit(lambda x: jnp.sort(positive(x)), target=TARGET).lower(x).compile()
    assert compiled.certify().composites_run
    np.testing.assert_array_equal(compiled(x), np.sort(x))


def test_transformations_of_decorated_functions_keep_checks() -> None:
    compiled = ipuxla.jit(lambda x: jnp.sum(positive(x) ** 3), target=TARGET)
    np.testing.assert_allclose(jax.grad(compiled)(X), 3 * X**2, rtol=1e-6)
    assert failed(jax.grad(compiled), -X) == "negative [-2.0]"
    value, tangent = jax.jvp(compiled, (X,), (X,))
    np.testing.assert_allclose((value, tangent), (np.sum(X**3), np.sum(3 * X**3)), rtol=1e-6)


def test_wide_operands_keep_their_width() -> None:
    seen: list[Any] = []

    def raises(*values: Any) -> Any:
        seen.extend(values)
        raise ArithmeticError("wide")

    def function(x: jax.Array, n: jax.Array) -> jax.Array:
        return jax.lax.cond(x > 0, lambda: jax.pure_callback(raises, x, x, n, x * 1j), lambda: x)

    with jax.enable_x64(True):
        assert failed(ipuxla.jit(function, target=TARGET), np.float64(1 / 3), np.int64(2**40 + 1)) == "wide"
    assert [v.dtype.name for v in seen] == ["float64", "int64", "complex128"]
    assert (float(seen[0]), int(seen[1]), complex(seen[2])) == (1 / 3, 2**40 + 1, 1j / 3)


def test_a_check_whose_value_nobody_wants_is_none() -> None:
    def function(x: jax.Array) -> jax.Array:
        positive(x)
        return x + 1

    np.testing.assert_array_equal(ipuxla.jit(function, target=TARGET)(-X), jax.jit(function)(-X))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_printed_before_is_shown(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: jax.Array) -> jax.Array:
        jax.debug.print("before {}", x[0])
        x = positive(x)
        jax.debug.print("after {}", x[0])
        return x

    assert failed(ipuxla.jit(function, target=TARGET, engine=engine), -X) == "negative [-2.0]"
    assert capsys.readouterr().out.splitlines() == ["before -0.5"]


@pytest.mark.parametrize("engine", ENGINES)
def test_in_the_ring_the_error_is_the_programs(engine: str) -> None:
    compiled = ipuxla.jit(in_a_loop, target=TARGET, engine=engine, arithmetic="ring")
    reference = ipuxla.jit(in_a_loop, target=TARGET, engine="hlo", arithmetic="ring")
    np.testing.assert_array_equal(compiled(X), reference(X))
    with pytest.raises(ProgramAborted, match=r"run-time check 0 failed: .*test_checks.*raises"):
        compiled(-X)


def test_a_saved_program_stops_with_the_name_and_the_values(tmp_path: Path) -> None:
    compiled = ipuxla.jit(positive, target=TARGET).lower(X).compile()
    compiled.save(tmp_path / "f.ipu")
    text = compiled.as_text("stablehlo")
    again = ipuxla.compile_stablehlo(text, target=TARGET)
    for program in (ipuxla.load(tmp_path / "f.ipu"), pickle.loads(pickle.dumps(compiled)), again):
        np.testing.assert_array_equal(jax.tree.leaves(program(X))[0], X)
        with pytest.raises(
            ProgramAborted, match=r"run-time check 0 failed: .*checked.<locals>.raises"
        ) as caught:
            program(-X)
        assert caught.value.value == np.float32(-2)


def test_every_pass_keeps_checks() -> None:
    module = import_stablehlo(ipuxla.jit(in_a_loop, target=TARGET).lower(X).as_text("stablehlo"))
    assert print_module(parse_module(print_module(module))) == print_module(module)
    count = sum(isinstance(i.op, Stop) for i in module.walk())
    assert count == 2
    for name, made in PASSES.items():
        found = made().run(module)
        assert sum(isinstance(i.op, Stop) for i in found.walk()) >= count, name


def _calls(x: Any) -> Any:
    raise ValueError(x)


class _Raises:
    def method(self, x: Any) -> Any:
        raise ValueError(x)


def _tries(x: Any) -> Any:
    try:
        raise ValueError(x)
    except ValueError:
        pass


def _yields(x: Any) -> Any:
    yield x
    raise ValueError(x)


async def _waits(x: Any) -> Any:
    raise ValueError(x)


def _loops(x: Any) -> Any:
    while True:
        x += 1


def _may(x: Any) -> Any:
    if x > 0:
        raise ValueError(x)


def test_constants_and_donated_arguments_stay_beside_checks() -> None:
    table = jnp.asarray(np.arange(3, dtype=np.float32))

    def function(x: jax.Array, unused: jax.Array, y: jax.Array) -> Any:
        positive(y)
        return positive(x) + table, y * 2

    compiled = ipuxla.jit(function, target=TARGET, donate_argnums=2)
    first, second = compiled(X, X, jnp.asarray(-X))
    np.testing.assert_allclose(first, X + np.arange(3))
    np.testing.assert_allclose(second, -2 * X)


def test_what_never_returns_is_known_from_its_code() -> None:
    for function in (_calls, _Raises().method, functools.partial(_calls, 3), _loops):
        assert never_returns(function)
    for function in (_tries, _yields, _waits, _may, lambda x: _calls(x), np.sin, len, _Raises, None):
        assert not never_returns(function)


def test_callbacks_that_may_return_are_refused_beside_checks_too() -> None:
    def function(x: jax.Array) -> jax.Array:
        x = positive(x)
        return jax.pure_callback(lambda x: x, x, x)  # this line

    line = function.__code__.co_firstlineno + 2
    with pytest.raises(UnsupportedPrimitive, match="may return") as caught:
        ipuxla.jit(function, target=TARGET)(X)
    assert caught.value.location == f"{__file__}:{line}"


def test_checks_that_only_lowering_brings_to_light() -> None:
    hidden = jax.extend.core.Primitive("solve")
    hidden.def_impl(lambda x: positive(x) * 2)
    hidden.def_abstract_eval(lambda x: x)
    mlir.register_lowering(hidden, mlir.lower_fun(lambda x: positive(x) * 2, multiple_results=False))

    compiled = ipuxla.jit(lambda x: hidden.bind(jnp.sin(x)), target=TARGET)
    np.testing.assert_allclose(compiled(X), 2 * np.sin(X), rtol=1e-6)
    assert failed(compiled, -X).startswith("negative")


@pytest.mark.parametrize("engine", ["fast", "hlo"])
def test_as_part_of_an_outer_jit_it_is_a_named_error(engine: str) -> None:
    with pytest.raises(Unsupported, match="may stop"):
        jax.jit(ipuxla.jit(positive, target=TARGET, engine=engine))(X)


def test_many_ipus_have_no_checks() -> None:
    mesh = ipuxla.mesh("gc200 x 2")
    placed = jax.sharding.NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    with pytest.raises(UnsupportedPrimitive, match="one of them would stop"):
        ipuxla.jit(positive, target="gc200 x 2", in_shardings=placed)(np.ones(4, np.float32))
