"""The names a program gives to its parts, and the user's own lines, from JAX to reports and errors."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig

import jax
import jax.extend
import jax.numpy as jnp
import pytest
from jax import lax
from jax.interpreters import mlir

import ipuxla
import ipuxla.errors
from hlo_passes.ir import Location, agreed, parse_module, print_module
from hlo_passes.passes import Flatten
from ipuxla import api
from ipuxla.errors import OutOfTileMemory
from ipuxla.frontend.frames import is_library, users_own
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.frontend.lower import to_stablehlo, trace
from ipuxla.frontend.names import NameStack, read_name_stack
from tiles.graph import Location as Place
from tiles.report import profile

X = jnp.ones((4, 4))
TARGET = ipuxla.Target.named("gc200").replace(num_tiles=8)


class Dense:
    """A module such as libraries have them: it names what it computes."""

    def __init__(self, name):
        self.name = name

    def __call__(self, w, x):
        with jax.named_scope(self.name):
            return jnp.tanh(x @ w)


class Block:
    def __init__(self, name):
        self.name, self.layers = name, (Dense("Dense_0"), Dense("Dense_1"))

    def __call__(self, w, x):
        with jax.named_scope(self.name):
            for layer in self.layers:
                x = layer(w, x)
            return x


def net(w, x, blocks=2):
    with jax.named_scope("GPT"):
        for number in range(blocks):
            x = Block(f"Block_{number}")(w, x)
    return x.sum()


def module_of(function, *arguments):
    leaves, tree = jax.tree.flatten((arguments, {}))
    traced = trace(jax.jit(function), leaves, lambda leaves: jax.tree.unflatten(tree, leaves))
    return import_stablehlo(to_stablehlo(traced.jaxpr, "<lambda>"))


def places_of(function, *arguments, op="stablehlo.dot_general"):
    """Return scopes and transforms of a function's operations of one kind."""
    found = (i.location for i in module_of(function, *arguments).walk() if i.op.name == op)
    return {(location.scope, location.transforms) for location in found}


def compiled(function, *arguments, **options):
    return ipuxla.jit(function, target=TARGET, **options).lower(*arguments).compile()


DENSE = {f"GPT/Block_{block}/Dense_{layer}" for block in range(2) for layer in range(2)}


# ---- what a name stack says


@pytest.mark.parametrize(
    ("text", "scope", "transforms"),
    [
        ("jit(step)/jvp(GPT)/Block_3/Dense_0/dot_general", "GPT/Block_3/Dense_0", ("jvp",)),
        ("jit(step)/transpose(jvp(GPT))/Block_3/mul", "GPT/Block_3", ("transpose",)),
        ("jit(f)/vmap(jvp(a))/vmap(b)/mul", "a/b", ("vmap", "jvp")),
        ("transpose(known(jvp(jit(f))))/a/mul", "a", ("transpose",)),
        ("jit(f)/jvp()/reduce_sum", "", ("jvp",)),
        ("jit(f)/a/jit(relu)/b/max", "a/b", ()),
        ("f/jvp(a)/while/body/closed_call/b/c/mul", "f/a/b/c", ("jvp",)),
        ("jit(f)/jvp(a)/cond/branch_1_fun/b/mul", "a/b", ("jvp",)),
        (
            "jit(f)/transpose(jvp(G))/B/jvp(G)/B/checkpoint/rematted_computation/D/tanh",
            "G/B/D",
            ("transpose", "rematted"),
        ),
        ("jit(f)/transpose(jvp(G))/B/jvp(G)/B/checkpoint/D/mul", "G/B/D", ("transpose", "checkpoint")),
        ("jit(f)/transpose(jvp(jvp()))/checkpoint/D/mul", "D", ("transpose", "checkpoint")),
        ("jit(f)/a/a/mul", "a/a", ()),
        ("jit(f)/vmap(a)/vmap(a)/mul", "a/a", ("vmap",)),
        ("jit(f)/jvp(inner/scope)/x y/mul", "inner/scope/x_y", ("jvp",)),
        ("jit(f)/heads(4)/:)/mul", "heads(4)/:)", ()),
        ("add", "", ()),
        ("", "", ()),
    ],
)
def test_name_stacks(text, scope, transforms):
    assert read_name_stack(text) == NameStack(scope, transforms)


# ---- from JAX


def test_named_scopes_are_read():
    def f(x):
        with jax.named_scope("outer"):
            y = x @ x
            with jax.named_scope("inner"):
                y = y @ x
        return y @ y

    assert places_of(f, X) == {("outer", ()), ("outer/inner", ()), ("", ())}


def test_every_layer_has_its_own_scope():
    assert places_of(net, X, X) == {(scope, ()) for scope in DENSE}


def test_the_transforms_of_a_gradient_are_told_apart():
    forward = {(scope, ("jvp",)) for scope in DENSE}
    assert places_of(jax.grad(net), X, X) == forward | {(scope, ("transpose",)) for scope in DENSE}


def test_checkpoints_are_told_apart():
    block = Block("Block_0")

    def f(w, x):
        with jax.named_scope("GPT"):
            return jax.checkpoint(block)(w, x).sum()

    found = places_of(jax.grad(f), X, X)
    assert {scope for scope, _ in found} == {"GPT/Block_0/Dense_0", "GPT/Block_0/Dense_1"}
    assert {transforms for _, transforms in found} == {
        ("jvp",),
        ("transpose", "rematted"),
        ("transpose", "checkpoint"),
    }


def test_vmap_is_told_apart():
    found = places_of(jax.vmap(Dense("Dense_0"), (None, 0)), X, X[None])
    assert found == {("Dense_0", ("vmap",))}


def test_loops_and_inner_functions_go_on_from_where_they_are_called():
    layer = jax.jit(Dense("Dense_0"))

    def f(w, x):
        with jax.named_scope("loop"):
            x, _ = lax.scan(lambda x, _: (layer(w, x), None), x, None, length=3)
        with jax.named_scope("branch"):
            return lax.cond(x.sum() > 0, lambda x: Dense("taken")(w, x), lambda x: x, x)

    found = compiled(f, X, X)
    scopes = {Place.read(group.location).scope for _, group in found.executable.groups()}
    assert {"loop/Dense_0", "branch/taken"} <= scopes
    assert not any("body" in scope or "branch_" in scope for scope in scopes)


def test_transforms_of_decorated_functions_are_told_apart(monkeypatch):
    found = []
    step = ipuxla.jit(net, target=TARGET)
    original = api.jaxpr_pipeline

    def kept(*arguments):
        found.append(original(*arguments))
        return found[-1]

    monkeypatch.setattr(api, "jaxpr_pipeline", kept)
    jax.grad(step)(X, X)
    dots = [{i.location.transforms for i in p.module.walk() if "dot" in i.op.name} for p in found]
    assert dots == [{("jvp",)}, {("transpose",)}]


@pytest.fixture
def few_frames():
    """Settings of a user's own that leave frames out of StableHLO."""
    settings = {"jax_include_full_tracebacks_in_locations": False, "jax_traceback_in_locations_limit": 1}
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("few_frames")
def test_lines_and_scopes_come_whatever_the_settings(library):
    (dot,) = [i for i in module_of(lambda w, x: library.dense(w, x), X, X).walk() if "dot" in i.op.name]
    assert (dot.location.file, dot.location.scope) == (__file__, "Dense_0")


def test_a_module_keeps_its_name():
    assert module_of(net, X, X).name == "_lambda"


# ---- the user's own frame


def test_frames_of_libraries_are_not_the_users():
    installed = f"{sysconfig.get_path('purelib')}/flax/linen/linear.py"
    scripts = f"{sysconfig.get_path('scripts')}/pytest"
    stdlib = f"{sysconfig.get_path('stdlib')}/functools.py"
    foreign = (
        "/opt/lib/python3.12/asyncio/base.py",
        "/usr/lib/python3/dist-packages/numpy/x.py",
        "<frozen runpy>",
    )
    for file in (installed, scripts, stdlib, jax.__file__, *foreign):
        assert is_library(file), file
    for file in (
        __file__,
        "train.py",
        "<stdin>",
        "<ipython-input-1>",
        "/home/me/bin/train.py",
        "C:\\me\\train.py",
    ):
        assert not is_library(file), file
    assert users_own([installed, jax.__file__, "train.py", "main.py"], str) == "train.py"
    assert users_own([jax.__file__, installed, scripts], str) == installed
    assert users_own([jax.__file__], str) is None


@pytest.fixture
def library(tmp_path):
    """A module in a folder such as packages are installed into."""
    folder = tmp_path / "site-packages" / "somelib"
    folder.mkdir(parents=True)
    file = folder / "linear.py"
    file.write_text(
        "import jax\n\n\ndef dense(w, x):\n    with jax.named_scope('Dense_0'):\n        return x @ w\n\n\n"
        "def run(w):\n    return dense(w, w)\n\n\n"
        "@jax.jit\ndef inner(w, x):\n    def body(c, _):\n        return jax.numpy.sin(dense(w, c)), None\n"
        "    return jax.lax.scan(body, x, None, 3)[0]\n\n\n"
        "@jax.jit\ndef jitted(w, x):\n    return inner(w, x)\n\n\n"
        "def checked(x):\n    return jax.lax.cond(x[0, 0] > 0, _called, lambda x: x, x)\n\n\n"
        "def _called(x):\n    return jax.pure_callback(lambda x: x, x, x)\n"
    )
    spec = importlib.util.spec_from_file_location("somelib_linear", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_line_is_the_users_who_calls_a_library(library):
    def f(w, x):
        with jax.named_scope("Net"):
            return library.dense(w, x)  # this line

    (dot,) = [i for i in module_of(f, X, X).walk() if "dot" in i.op.name]
    line = f.__code__.co_firstlineno + 2
    assert (dot.location.file, dot.location.line, dot.location.scope) == (__file__, line, "Net/Dense_0")


def test_unsupported_operations_name_the_users_line_too(library):
    def f(x):
        return library.dense(jax.lax.linalg.schur(x, sort_eig_vals=True)[0], x)  # this line

    with pytest.raises(ipuxla.errors.UnsupportedPrimitive) as caught:
        compiled(f, X)
    assert caught.value.location == f"{__file__}:{f.__code__.co_firstlineno + 1}"


def test_the_line_is_the_users_also_where_a_library_compiles_its_functions_apart(library):
    def f(w, x):
        x = library.jitted(w, x)
        with jax.named_scope("Net"):
            x = library.jitted(w, x)
        return library.jitted(w, jnp.tanh(x))

    module = module_of(f, X, X)
    found = {(i.location.file, i.location.is_provisional) for i in module.walk() if "dot" in i.op.name}
    assert found == {(library.__file__, True)}
    assert print_module(parse_module(print_module(module))) == print_module(module)
    dots = [i.location for i in Flatten().run(module).walk() if "dot" in i.op.name]
    first = f.__code__.co_firstlineno + 1
    assert {location.file for location in dots} == {__file__}
    assert [location.line for location in dots] == [first, first + 2, first + 3]
    assert [location.scope.startswith("Net") for location in dots] == [False, True, False]


def test_a_callback_in_a_library_names_the_users_line_and_what_turns_it_off(library):
    def f(x):
        return library.checked(x)  # this line

    with pytest.raises(ipuxla.errors.UnsupportedPrimitive, match="EQX_ON_ERROR") as caught:
        compiled(f, X)
    assert caught.value.location == f"{__file__}:{f.__code__.co_firstlineno + 1}"


def test_a_callback_that_lowering_brings_to_light_is_a_named_error():
    hidden = jax.extend.core.Primitive("solve")

    @hidden.def_impl
    def solve(x):
        return jax.pure_callback(lambda x: x, x, x)

    hidden.def_abstract_eval(lambda x: x)
    mlir.register_lowering(hidden, mlir.lower_fun(solve, multiple_results=False))

    def f(x):
        return jnp.tanh(hidden.bind(jnp.sin(x)))  # this line

    with pytest.raises(ipuxla.errors.UnsupportedPrimitive, match=r"^solve: .*calls the host") as caught:
        compiled(f, X)
    assert caught.value.location == f"{__file__}:{f.__code__.co_firstlineno + 1}"


# ---- to reports, errors and files


def test_reports_show_scopes():
    found = compiled(jax.grad(net), X, X)
    data = profile(found.executable)
    rows = {(row["scope"], *row["transforms"]) for row in data.operations}
    assert {(scope, "transpose") for scope in DENSE} | {(scope, "jvp") for scope in DENSE} <= rows
    assert all(row["location"].startswith("ipuxla/test_names.py:") for row in data.operations if row["scope"])
    text = data.text(40)
    assert "GPT/Block_1/Dense_0 [transpose]" in text and "ipuxla/test_names.py" in text
    live = data.data["compilation"]["memory"]["largestLive"]
    assert any(row["scope"] in DENSE for row in live)


def test_the_page_shows_scopes(tmp_path):
    compiled(net, X, X).report(tmp_path, X, X)
    html = (tmp_path / "report.html").read_text().replace("<wbr>", "")
    assert ">GPT/Block_1/Dense_0</td>" in html
    assert '"scope": "GPT/Block_1/Dense_0"' in (tmp_path / "profile.json").read_text()
    assert "GPT/Block_1/Dense_0" in (tmp_path / "summary.txt").read_text()


def test_memory_errors_show_scopes():
    big = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    with pytest.raises(OutOfTileMemory) as caught:
        compiled(net, big, big)
    assert "in GPT/Block_" in str(caught.value)


def test_saved_programs_keep_scopes(tmp_path):
    found = compiled(net, X, X)
    found.save(tmp_path / "net.ipuxla")
    loaded = ipuxla.load(tmp_path / "net.ipuxla")
    assert profile(loaded.executable).to_json() == profile(found.executable).to_json()
    assert "in GPT/Block_0/Dense_0" in loaded.as_text("program")


def test_layers_that_became_one_function_agree_on_their_scope():
    weights = [X] * 6

    def layer(w, x, name):
        with jax.named_scope(name):
            for step in range(12):
                with jax.named_scope("Dense_0"):
                    x = jnp.sin(x @ w) * (step + 1)
            return x

    def f(weights, x):
        with jax.named_scope("GPT"):
            for number, w in enumerate(weights):
                x = layer(w, x, f"Block_{number}")
        return x

    found = compiled(f, weights, X)
    optimized = found.as_text("hlo-optimized")
    assert "@layer_0" in optimized
    scopes = {Place.read(group.location).scope for _, group in found.executable.groups()}
    assert scopes == {"GPT/Block_*/Dense_0"}
    calls = [line.rpartition(" in ")[2] for line in optimized.splitlines() if "func.call" in line]
    assert calls == [f'"GPT/Block_{number}/Dense_0")' for number in range(6)]


def test_a_shared_location_says_what_all_have():
    one = Location("m.py", 3, 0, "", "GPT/Block_0/Dense_0", ("jvp", "vmap"))
    two = Location("m.py", 3, 0, "", "GPT/Block_1/Dense_0", ("vmap",))
    assert (agreed([one, two]).scope, agreed([one, two]).transforms) == ("GPT/Block_*/Dense_0", ("vmap",))
    assert agreed([one, Location("m.py", 4, 0, "", "GPT/Block_0")]).scope == "GPT/Block_0"
    assert agreed([Location("", 0), one]).source == "m.py:3"
    assert agreed([Location("m.py", 1, scope="a/x1"), Location("m.py", 1, scope="a/x12")]).scope == "a/x*"
