"""What JAX users expect of a decorated function besides calling it."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.experimental import pallas

import ipuxla
from ipuxla.errors import Unsupported, UnsupportedPrimitive, WrongArguments

X = jnp.arange(6.0).reshape(2, 3)


@pytest.fixture
def scaled(small_target):
    return ipuxla.jit(lambda x, n: {"y": jnp.sin(x) * n}, target=small_target, static_argnums=1)


def test_shapes_without_compiling(scaled):
    assert scaled.eval_shape(X, 2) == {"y": jax.ShapeDtypeStruct((2, 3), jnp.float32)}
    assert [e.primitive.name for e in scaled.trace(X, 2).jaxpr.eqns] == ["ipu_call"]


def test_exported_functions_compute_the_same(scaled):
    exported = export.export(ipuxla.jit(lambda x: scaled(x, 3)))(X)
    np.testing.assert_array_equal(exported.call(X)["y"], scaled(X, 3)["y"])


def test_a_cleared_cache_traces_again(small_target):
    calls = []
    function = ipuxla.jit(lambda x: calls.append(1) or x + 1, target=small_target)
    function(X), function(X)
    before = len(calls)
    function.clear_cache()
    np.testing.assert_array_equal(function(X), X + 1)
    assert len(calls) == 2 * before


def test_disabled_jit_runs_what_is_written(small_target):
    seen = []
    function = ipuxla.jit(lambda x: seen.append(float(x.sum())) or x, target=small_target)
    with jax.disable_jit():
        function(X)
    assert seen == [15.0]


@pytest.mark.parametrize("role", ["in_shardings", "out_shardings"])
def test_shardings_of_no_mesh_are_a_named_error(role):
    with pytest.raises(Unsupported, match=f"{role}: a sharding that names no axes of a mesh"):
        ipuxla.jit(jnp.sin, **{role: jax.sharding.SingleDeviceSharding(jax.devices()[0])})


def _kernel(x_ref, y_ref):
    y_ref[...] = x_ref[...] + 1


EFFECTS = {
    "Pallas kernel": lambda x: pallas.pallas_call(_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(
        x
    ),
    "calls the host": lambda x: jax.pure_callback(np.sin, x, x),
}


@pytest.mark.parametrize("what", EFFECTS)
def test_effects_are_named_as_what_they_are(what):
    with pytest.raises(UnsupportedPrimitive, match=what) as caught:
        ipuxla.jit(EFFECTS[what])(X)
    assert "test_jit_methods.py" in str(caught.value)


def test_refs_made_inside_are_values(small_target):
    def f(x, n):
        ref, log = jax.new_ref(x), jax.new_ref(jnp.zeros(4))

        def step(i, _):
            ref[...] = ref[...] * 2
            ref[0, 1:] += 1.0
            jax.lax.cond(i > 1, lambda: log.__setitem__(i, ref[0, 0]), lambda: None)
            return _

        jax.lax.fori_loop(0, n, step, 0)
        return ref[...], jax.freeze(log)

    for engine in ("fast", "literal"):
        got = ipuxla.jit(f, target=small_target, engine=engine, static_argnums=1)(X, 4)
        jax.tree.map(np.testing.assert_allclose, got, jax.jit(f, static_argnums=1)(X, 4))
    gradient = jax.grad(lambda x: ipuxla.jit(f, target=small_target, static_argnums=1)(x, 3)[0].sum())(X)
    np.testing.assert_allclose(gradient, np.full_like(X, 8.0))


def _blocked(x, y):
    """Multiply by blocks of 4, as Pallas' own introduction does; ``interpret`` writes it as a loop over the grid."""

    def kernel(x_ref, y_ref, out_ref):
        @pallas.when(pallas.program_id(2) == 0)
        def _():
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...] @ y_ref[...]

    return pallas.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype),
        grid=(x.shape[0] // 4, y.shape[1] // 4, x.shape[1] // 4),
        in_specs=[
            pallas.BlockSpec((4, 4), lambda i, j, k: (i, k)),
            pallas.BlockSpec((4, 4), lambda i, j, k: (k, j)),
        ],
        out_specs=pallas.BlockSpec((4, 4), lambda i, j, k: (i, j)),
        interpret=True,
    )(x, y)


@pytest.mark.parametrize("engine", ["fast", "literal"])
def test_interpreted_pallas_kernels_are_operations(small_target, engine):
    x = np.arange(96.0, dtype=np.float32).reshape(8, 12) % 7
    jitted = ipuxla.jit(_blocked, target=small_target, engine=engine)
    np.testing.assert_array_equal(jitted(x, x.T), x @ x.T)


def test_tangents_of_interpreted_pallas_kernels(small_target):
    def kernel(x_ref, out_ref):
        out_ref[...] = jnp.sin(x_ref[...])

    def f(x):
        return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

    _, got = jax.jvp(jax.vmap(ipuxla.jit(f, target=small_target)), (X,), (X,))
    np.testing.assert_allclose(got, np.cos(X) * X, rtol=1e-6)


# ---- compiled programs


def test_costs_without_arguments_where_nothing_depends_on_data(scaled, tmp_path):
    compiled = scaled.lower(X, 2).compile()
    assert compiled.profile().to_json() == compiled.profile(X).to_json()
    compiled.report(tmp_path / "static")
    compiled.report(tmp_path / "run", X)
    for path in (tmp_path / "run").iterdir():
        assert path.read_bytes() == (tmp_path / "static" / path.name).read_bytes()


def test_costs_without_arguments_where_loops_follow_data(small_target):
    looping = ipuxla.jit(
        lambda n: jax.lax.while_loop(lambda c: c < n, lambda c: c * 2, 1), target=small_target
    )
    with pytest.raises(WrongArguments, match="depends on the arguments"):
        looping.lower(jnp.int32(5)).compile().profile()


def test_wrong_arguments_are_named_and_few(small_target):
    params = {f"layer{k}": {"w": jnp.ones((2, 2)), "b": jnp.ones(2)} for k in range(60)}
    total = ipuxla.jit(lambda p: sum(jax.tree.leaves(jax.tree.map(jnp.sum, p))), target=small_target)
    compiled = total.lower(params).compile()
    with pytest.raises(WrongArguments, match=r"missing: argument 0\['layer7'\]\['b'\]") as caught:
        compiled({**params, "layer7": {"w": params["layer7"]["w"]}})
    assert len(str(caught.value)) < 1200
    wrong = jax.tree.map(lambda x: x.astype(jnp.int32), params)
    with pytest.raises(WrongArguments, match=r"argument 0\['layer0'\]\['b'\] is not of the type") as caught:
        compiled(wrong)
    assert "and 114 more" in str(caught.value) and len(str(caught.value)) < 1200


def test_the_package_shows_its_names():
    assert set(dir(ipuxla)) == set(ipuxla.__all__)
    assert ipuxla.__version__


def test_options_of_jit_that_change_no_program(small_target):
    double = functools.partial(ipuxla.jit, target=small_target, inline=True, keep_unused=True)(
        lambda x, y: x * 2
    )
    np.testing.assert_array_equal(double(X, X), X * 2)
    assert len(double.lower(X, X).compile().signature.inputs) == 2


def test_stages_describe_arguments_and_results_as_those_of_jax(small_target):
    def f(x, key, *, scale):
        return {"y": x * scale, "key": jax.random.split(key, 3), "n": jnp.int8(2)}

    call = (X, jax.random.key(1)), {"scale": np.float32(2)}
    theirs = jax.jit(f, donate_argnums=0).lower(*call[0], **call[1])
    lowered = ipuxla.jit(f, target=small_target, donate_argnums=0).lower(*call[0], **call[1])
    for stage in (lowered, lowered.compile()):
        assert (stage.in_tree, stage.out_tree) == (theirs.in_tree, theirs.out_tree)
        assert stage.donate_argnums == (0,)
        for said in ("args_info", "out_info"):
            ours, wanted = (jax.tree.leaves(getattr(x, said)) for x in (stage, theirs))
            assert [(x.shape, x.dtype) for x in ours] == [(x.shape, x.dtype) for x in wanted]
        assert [x.donated for x in jax.tree.leaves(stage.args_info)] == [True, False, False]
