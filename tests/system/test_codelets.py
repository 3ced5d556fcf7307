"""Users' codelets in decorated functions and functions mapped over tiles, beside what JAX makes of them."""

from __future__ import annotations

import importlib.metadata
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ipuxla
from hlo_passes.errors import MalformedForm
from hlo_passes.ops.point_form import COMBINERS, PointForm, at_points, read_by_points
from ipuxla.errors import InvalidCodelet
from tests.budgets import PROGRAM, budget
from tiles.compiler import step_costs
from tiles.engine.agreement import certify
from tiles.numerics.tolerance import check_close
from tiles.report import profile

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TARGET = ipuxla.Target.named("gc200").replace(num_tiles=64)
RNG = np.random.default_rng(0)


def drawn(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


@ipuxla.codelet("x[i + :3, :], w[:3] -> y[i, :]")
def smooth(x, w):
    return w @ x


@ipuxla.codelet("m[t, :, :] -> v[t, :], s[t], q[t, :, :]")
def statistics(m):
    q = m @ m.T
    return q.sum(0), jnp.trace(q), q


def scaled_by(x, s):
    @ipuxla.codelet("x[i] -> y[i]")
    def scaled(v):
        return v * s + jnp.arange(3.0).sum()

    return scaled(x)


def combined(how: str) -> Callable[..., Any]:
    return ipuxla.codelet("a[i, k], b[k, j] -> c[j, i]", combine=how)(lambda a, b: a * b)


X, W, A = drawn(40, 8), np.array([0.1, 0.2, 0.3], np.float32), drawn(20, 30)

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "window, fused around": (lambda x, w: jnp.sin(smooth(x * 2, w)), (X, W)),
    "results of several shapes": (statistics, (drawn(20, 5, 5),)),
    "vmap": (jax.vmap(smooth, in_axes=(0, None)), (drawn(6, 40, 8), W)),
    "vmap along other axes": (jax.vmap(smooth, in_axes=(2, 0)), (drawn(40, 8, 6), drawn(6, 3))),
    "gradient": (jax.grad(lambda x, w: (smooth(x, w) ** 2).sum(), argnums=(0, 1)), (X, W)),
    "closes over a traced value": (scaled_by, (drawn(10), np.float32(3))),
    "in a loop": (
        lambda x, w: jax.lax.scan(
            lambda c, _: (jnp.pad(smooth(c, w), ((1, 1), (0, 0))), c.sum()), x, None, length=3
        ),
        (X, W),
    ),
    "strides": (ipuxla.codelet("x[2*i + 2*:3 + 1] -> y[i]")(lambda v: v.sum()), (drawn(100),)),
    "several types": (
        ipuxla.codelet("x[i] -> y[i], z[i]")(lambda v: (v * 2, v > 3)),
        (np.arange(90, dtype=np.int32),),
    ),
    "stated parts": (
        ipuxla.codelet("a[i, j] -> b[j, i]", parts={"i": 5, "j": 6}, tiles=range(1, 61, 2))(lambda v: v + 1),
        (A,),
    ),
    "no index": (ipuxla.codelet("x[:] -> y[:]")(jnp.flip), (drawn(10),)),
    "one element for all": (ipuxla.codelet("x[i], s[] -> y[i]")(lambda v, s: v - s), (drawn(9), np.float32(2))),
    "tile map": (lambda a: ipuxla.tile_map(jnp.sort, a, tiles=range(3, 63, 3), cycles=900), (A,)),
    "tile map, given to all": (
        lambda a, b: ipuxla.tile_map(lambda r, m: m @ r, a, b, in_axes=(0, None), tiles=7),
        (A, drawn(4, 30)),
    ),
    **{f"combined by {how}": (combined(how), (drawn(20, 70), drawn(70, 9))) for how in ("add", "max", "min")},
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_codelets_compute_what_jax_makes_of_them(name: str, tmp_path: Path) -> None:
    function, arguments = PROGRAMS[name]
    want = jax.jit(function)(*arguments)

    def agree(got: Any) -> None:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), want, got)

    compiled = ipuxla.jit(function, target=TARGET).lower(*arguments).compile()
    agree(compiled(*arguments))
    certify(compiled.executable)
    compiled.save(tmp_path / "program")
    agree(ipuxla.load(tmp_path / "program", engine="literal")(*arguments))
    in_ring = [
        ipuxla.jit(function, target=TARGET, engine=engine, arithmetic="ring")(*arguments)
        for engine in ("hlo", "fast", "literal", "vertex")
    ]
    for other in in_ring[1:]:
        jax.tree.map(np.testing.assert_array_equal, in_ring[0], other)


def test_a_codelet_has_its_own_name_line_and_plan() -> None:
    compiled = ipuxla.jit(lambda x, w: jnp.sin(smooth(x * 2, w)), target=TARGET).lower(X, W).compile()
    (found,) = [g for _, g in compiled.executable.groups() if g.codelet.label == "smooth"]
    assert "test_codelets.py" in found.location
    assert found.plan.num_cells > 8 and found.form.shape[0] == 38


def test_stated_parts_lie_where_they_were_put() -> None:
    function, (a,) = PROGRAMS["stated parts"]
    compiled = ipuxla.jit(function, target=TARGET).lower(a).compile()
    (found,) = [g for _, g in compiled.executable.groups() if g.form.shape == (30, 20)]
    assert sorted(found.plan.tiles) == list(range(1, 61, 2))
    assert found.plan.grid == (6, 5)


def test_stated_cycles_are_charged() -> None:
    def charged(slots: int) -> int:
        f = ipuxla.codelet("x[i] -> y[i]", cycles=slots, parts={"i": 10})(lambda v: v + 1)
        return ipuxla.jit(f, target=TARGET).lower(drawn(600)).compile().cost_analysis()["cycles"]

    assert charged(1100) - charged(100) == 60 * 1000  # 60 points a tile, six workers in turn


@pytest.mark.parametrize(
    ("function", "basis"),
    [
        (lambda v, w: v * jnp.tanh(w) + 1, "DERIVED"),
        (lambda v, w: v.astype("bfloat16").astype("float32") * w, "DERIVED"),
        (lambda v, w: v.astype("float8_e5m2").astype("float32") * w, "ASSUMED"),
    ],
)
def test_functions_of_elements_cost_what_their_code_does(function, basis) -> None:
    """Elements that all read one vector are rows of code; what has no code is estimated."""
    f = ipuxla.codelet("x[i, j], w[j] -> y[i, j]")(function)
    compiled = ipuxla.jit(f, target=TARGET).lower(drawn(600, 32), drawn(32)).compile()
    assert basis in {str(cost.compute_basis) for cost in step_costs(compiled.executable)}


def test_a_module_with_a_codelet_is_data() -> None:
    text = ipuxla.jit(smooth, target=TARGET).lower(X, W).as_text("stablehlo")
    read = ipuxla.compile_stablehlo(text, target=TARGET)
    np.testing.assert_allclose(read(X, W)[0], jax.jit(smooth)(X, W), rtol=1e-5, atol=1e-5)


@given(st.data())
@budget(PROGRAM)
def test_forms_select_what_their_text_says(data: st.DataObject) -> None:
    """Brute force over all points of drawn forms of one axis of an operand."""
    ints = st.integers(1, 3)
    a, b, offset, dilation = data.draw(ints), data.draw(ints), data.draw(st.integers(0, 2)), data.draw(ints)
    window, k = data.draw(st.integers(1, 4)), data.draw(ints)
    how = data.draw(st.sampled_from(sorted(COMBINERS)))
    form = PointForm.parse(f"x[{a}*i + {b}*k + {dilation}*:{window} + {offset}, j], w[k] -> y[j, i, :]")
    length = offset + b * (k - 1) + dilation * (window - 1) + 1 + data.draw(st.integers(0, 9))
    x = RNG.integers(-3, 4, (length, 2)).astype(np.int32)
    w = RNG.integers(-3, 4, k).astype(np.int32)
    sizes = form.sizes([x.shape, w.shape])
    assert PointForm.parse(str(form)) == form
    (got,) = at_points(
        form, sizes, lambda x, w: (x * w,), read_by_points(form, sizes, [jnp.asarray(x), jnp.asarray(w)]), how
    )
    n = sizes["i"]
    assert (n - 1) * a < length - offset - b * (k - 1) - dilation * (window - 1) <= n * a
    want = np.zeros((2, n, window), np.int32)
    fold = {"add": np.sum, "mul": np.prod, "max": np.max, "min": np.min}[how]
    for j in range(2):
        for i in range(n):
            for p in range(window):
                terms = [x[a * i + b * q + dilation * p + offset, j] * w[q] for q in range(k)]
                want[j, i, p] = fold(terms)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("form", "words"),
    {
        "x[i]": "one -> between",
        "x[i, i] -> y[i]": "every index at most once",
        "x[i] -> y[j]": "which says how many points",
        "x[-i] -> y[i]": "an axis as",
        "x[i -> y[i]": "arrays as",
        "x[i] y[i] -> z[i]": "arrays as",
        "x[i] -> y[2*i]": "axes of a result",
        "x[i] -> y[i], z[]": "the indices i in every result",
        "x[i + :3 + :2] -> y[i]": "one window",
    }.items(),
)
def test_what_is_no_form_is_said(form: str, words: str) -> None:
    with pytest.raises(MalformedForm, match=words):
        PointForm.parse(form)
    with pytest.raises(InvalidCodelet, match=words):
        ipuxla.codelet(form)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "combiner": (lambda: ipuxla.codelet("x[i] -> y[]", combine="mean"), "no way to combine"),
    "nothing to combine": (lambda: ipuxla.codelet("x[i] -> y[i]", combine="add"), "leave combine out"),
    "cycles": (lambda: ipuxla.codelet("x[i] -> y[i]", cycles=0), "issue slots"),
    "rank": (lambda: smooth(drawn(4), W), "arrays of rank 2, 1"),
    "window": (lambda: smooth(X, drawn(2)), "inside its axis"),
    "extents": (lambda: combined("add")(drawn(3, 4), drawn(5, 6)), "one extent for k"),
    "rank of a result": (lambda: ipuxla.codelet("x[i] -> y[i, :]")(lambda v: v)(drawn(4)), "1 axes"),
    "number of results": (lambda: ipuxla.codelet("x[i] -> y[i]")(lambda v: (v, v))(drawn(4)), "1 results"),
    "complex": (lambda: ipuxla.codelet("x[i] -> y[i]")(lambda v: v * 1j)(drawn(4)), "real and imaginary"),
    "index to cut": (
        lambda: ipuxla.codelet("x[i] -> y[i]", parts={"k": 2})(jnp.sin)(drawn(4)),
        "no index 'k'",
    ),
    "parts": (lambda: ipuxla.codelet("x[i] -> y[i]", parts={"i": 9})(jnp.sin)(drawn(4)), "into 9 parts"),
    "tiles": (lambda: ipuxla.codelet("x[i] -> y[i]", tiles=[1, 2, 4]), "evenly spaced"),
    "tiles for parts": (
        lambda: ipuxla.codelet("x[i] -> y[i]", parts={"i": 2}, tiles=range(3))(jnp.sin)(drawn(4)),
        "2 parts for 3 tiles",
    ),
    "leading axes": (lambda: ipuxla.tile_map(jnp.add, drawn(3), drawn(4)), "one leading axis"),
    "nothing mapped": (lambda: ipuxla.tile_map(jnp.sin, drawn(3), in_axes=None), "0 or None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_said(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(InvalidCodelet, match=words):
        make()


@pytest.mark.parametrize(
    ("combine", "dtype"), [("add", "float32"), ("mul", "float16"), ("max", "int32"), ("min", "float32")]
)
def test_points_that_pad_an_uneven_part_contribute_nothing(combine, dtype) -> None:
    """Parts of 29, 29 and 22: of zeros that pad the last one this function makes what would win or count."""
    sign = {"max": 1, "min": -1}.get(combine, 1)

    @ipuxla.codelet("a[i], b[j] -> y[i]", combine=combine, parts={"i": 2, "j": 3})
    def contribution(a, b):
        far = jnp.asarray(sign * 3, dtype) - jnp.asarray(sign, dtype) * (a - b) ** 2
        return far if combine in ("max", "min") else jnp.where(far == 3, far, jnp.asarray(1, dtype))

    a, b = np.array([0, 9, 10], dtype), np.full(80, 10, dtype)
    want = contribution(a, b)
    lowered = ipuxla.jit(contribution, target=TARGET).lower(a, b)
    for engine in ("fast", "literal"):
        check_close(lowered.compile(engine=engine)(a, b), want, engine)


def test_a_function_of_elements_runs_by_its_code_where_it_was_compiled_and_where_it_is_loaded(
    tmp_path,
) -> None:
    """With floats as near to JAX as others; in the ring, every bit of the literal engine's words."""

    @ipuxla.codelet("a[i, j], b[j] -> y[i, j]", parts={"i": 5})
    def softened(a, b):
        return jnp.where(a > b, jnp.exp(a - b), jnp.sqrt(jnp.abs(a) + b * b))

    def f(a, b):
        return softened(a, b) * 2

    a, b = drawn(10, 33), drawn(33)
    lowered = ipuxla.jit(f, target=TARGET).lower(a, b)
    compiled = lowered.compile(engine="tile")
    assert compiled.tile_coverage().codelets["softened"].by_code == 5
    check_close(compiled(a, b), f(a, b), "by its code")
    in_ring = lowered.compile(engine="tile", arithmetic="ring")
    check_close(in_ring(a, b), lowered.compile(engine="literal", arithmetic="ring")(a, b), "ring")
    compiled.save(tmp_path / "f.ipu")
    loaded = ipuxla.load(tmp_path / "f.ipu")
    assert loaded.tile_coverage().vertices_share == compiled.tile_coverage().vertices_share == 1
    assert "tile code softened" in loaded.as_text("tile")


def test_why_a_codelet_has_no_code_is_named() -> None:
    compiled = ipuxla.jit(smooth, target=TARGET).lower(drawn(30, 4), drawn(3)).compile()
    assert "a point of codelet smooth is more than one element" in str(compiled.tile_coverage())


def test_what_no_codelet_may_do_is_named_with_its_line() -> None:
    def too_many(x):
        return ipuxla.tile_map(jnp.sin, x)

    def printing(x):
        return ipuxla.codelet("x[i] -> y[i]")(lambda v: (jax.debug.print("{}", v), v)[1])(x)

    def too_few(x):
        return ipuxla.tile_map(jnp.sin, x, tiles=(1, 2, 3))

    with pytest.raises(InvalidCodelet, match=r"tiles 0 to 99; .* has 64") as caught:
        ipuxla.jit(too_many, target=TARGET).lower(drawn(100)).compile()
    assert "test_codelets.py" in str(caught.value.location)
    with pytest.raises(InvalidCodelet, match="exchanges items with the host") as caught:
        ipuxla.jit(printing, target=TARGET).lower(drawn(100)).compile()
    assert "test_codelets.py" in str(caught.value.location)
    with pytest.raises(InvalidCodelet, match="100 entries to 3 tiles"):
        ipuxla.jit(too_few, target=TARGET).lower(drawn(100))


def test_what_a_loop_in_a_codelet_takes_is_unknown_and_reports_say_so_with_its_line() -> None:
    def looping(x):
        return ipuxla.codelet("x[i] -> y[i]")(
            lambda v: jax.lax.while_loop(lambda v: v < 9, lambda v: v * 2, v)
        )(x)

    def cost(f):
        return ipuxla.jit(f, target=TARGET).lower(drawn(10)).compile()

    compiled = cost(looping)
    figures = compiled.cost_analysis()
    assert figures["basis_cycles"]["UNKNOWN"] == figures["cycles"] > 0
    assert figures["cycles_range"] is None
    text = profile(compiled.executable).text()
    assert "UNKNOWN 100.0%" in text
    assert "no tile code for stablehlo.while of" in text and "test_codelets.py" in text and "cycles=" in text
    stated = ipuxla.codelet("x[i] -> y[i]", cycles=90)(
        lambda v: jax.lax.while_loop(lambda v: v < 9, lambda v: v * 2, v)
    )
    known = profile(cost(stated).executable).text()
    assert "UNKNOWN" not in known and "likely" in known


def test_a_loop_with_a_constant_count_takes_its_trips() -> None:
    def figures(trips):
        def counted(x):
            return ipuxla.codelet("x[i] -> y[i]", parts={"i": 1})(
                lambda v: jax.lax.fori_loop(0, trips, lambda i, v: v * v + 1, v)
            )(x)

        return ipuxla.jit(counted, target=TARGET).lower(drawn(6)).compile().cost_analysis()

    one, five, nine = (figures(trips) for trips in (1, 5, 9))
    assert five["basis_cycles"]["UNKNOWN"] == 0 and five["cycles_range"] is not None
    assert nine["cycles"] - five["cycles"] == five["cycles"] - one["cycles"] >= 4 * 6 * 2


def test_packages_offer_codelets(monkeypatch: pytest.MonkeyPatch) -> None:
    here = importlib.metadata.EntryPoint("smooth", f"{__name__}:smooth", "ipuxla.codelets")
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [here] if group == here.group else []
    )
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda self: smooth)
    assert ipuxla.installed_codelets() == {"smooth": smooth}
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda self: 3)
    with pytest.raises(InvalidCodelet, match=r"what ipuxla\.codelet returns"):
        ipuxla.installed_codelets()


def test_jacobi_rotations_on_tiles() -> None:
    eigh = runpy.run_path(str(EXAMPLES / "jacobi.py"))["eigh"]
    a = drawn(8, 8)
    a = a + a.T
    values, vectors = ipuxla.jit(lambda a: eigh(a, sweeps=6), target=TARGET)(a)
    np.testing.assert_allclose(np.sort(values), np.linalg.eigvalsh(a), atol=1e-4)
    np.testing.assert_allclose(vectors @ a, np.diag(values) @ vectors, atol=1e-4)


def test_a_fourier_transform_on_tiles() -> None:
    fft = runpy.run_path(str(EXAMPLES / "tile_fft.py"))["fft"]
    real, imaginary = drawn(96), drawn(96)
    re, im = ipuxla.jit(lambda re, im: fft(re, im, 8), target=TARGET)(real, imaginary)
    np.testing.assert_allclose(
        np.asarray(re) + 1j * np.asarray(im), np.fft.fft(real + 1j * imaginary), atol=1e-3
    )
