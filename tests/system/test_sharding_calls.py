"""How sharded functions are written and called: JAX's own words, and what is told where they are wrong."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import ipuxla
from ipuxla import runtime
from ipuxla.errors import (
    InvalidOption,
    IpuError,
    Unsupported,
    UnsupportedPrimitive,
    WrongArguments,
)
from ipuxla.experiments.digits import data_parallel, make_job
from ipuxla.experiments.settings import Settings
from tests.replicas import small_system
from tests.systems import auto_mesh
from tests.xla import groups_as_tables
from tiles.errors import InvalidExecutable, InvalidGraph

SYSTEM = small_system()
AUTO = auto_mesh((2, 4), ("data", "model"))
EXPLICIT = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
REAL = Mesh(np.array(jax.devices()[:1] * 8).reshape(2, 4), ("data", "model"))
RNG = np.random.default_rng(0)
X, W = (RNG.normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 8)))
ROWS, COLUMNS = P("data"), P(None, "model")


def on(spec, mesh=AUTO):
    return NamedSharding(mesh, spec)


def dense(x, w):
    return jnp.tanh(x @ w)


def jit(function, **options):
    return ipuxla.jit(function, **{"target": SYSTEM, "engine": "hlo", **options})


DECOMPOSITIONS = {
    "lu": jax.lax.linalg.lu,
    "qr": jnp.linalg.qr,
    "svd": lambda a: jnp.linalg.svd(a, compute_uv=False),
    "cholesky": lambda a: jnp.linalg.cholesky(a @ a.mT + jnp.eye(3)),
}


@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_decompositions_inside_a_shard_map(name):
    function, a = DECOMPOSITIONS[name], RNG.normal(size=(4, 3, 3)).astype(np.float32)
    mapped = jax.shard_map(lambda x: function(x), mesh=AUTO, in_specs=ROWS, out_specs=ROWS)
    pairs = zip(jax.tree.leaves(jit(mapped)(a)), jax.tree.leaves(function(a)), strict=True)
    for got, want in pairs:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def in_context(mesh, function):
    def call():
        with jax.sharding.use_abstract_mesh(mesh):
            return function()

    return call


def in_real_context():
    with jax.set_mesh(REAL):
        return jit(dense, in_shardings=(ROWS, COLUMNS))(X, W)


def described(mesh):
    return (
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=on(spec, mesh))
        for a, spec in ((X, ROWS), (W, COLUMNS))
    )


MANUAL = jax.shard_map(
    lambda x, w: jnp.tanh(jax.lax.psum(x @ w, "model")),
    mesh=AUTO,
    in_specs=(P("data", "model"), P("model")),
    out_specs=ROWS,
)
PARTLY = jax.shard_map(
    lambda x, w: jnp.tanh(jax.lax.psum(x @ w, "model")),
    mesh=AUTO,
    in_specs=(COLUMNS, P("model")),
    out_specs=P(),
    axis_names={"model"},
)


def twice_manual(x, **checks):
    """Return the tanh of sums over ``model``, by a shard_map over that axis inside one over ``data``."""

    def rows(x):
        columns = jax.shard_map(
            lambda x: jnp.tanh(jax.lax.psum(x.reshape(len(x), 2, -1).sum(1) / 4, "model")),
            in_specs=P(),
            out_specs=P(),
            axis_names={"model"},
            **checks,
        )
        return columns(x)

    return jax.shard_map(rows, mesh=AUTO, in_specs=ROWS, out_specs=ROWS, axis_names={"data"}, **checks)(x)


WAYS = {
    "in_shardings": lambda: jit(dense, in_shardings=(on(ROWS), on(COLUMNS)))(X, W),
    "out_shardings": lambda: jit(dense, out_shardings=on(P("data", "model")))(X, W),
    "a mesh of devices": lambda: jit(dense, in_shardings=(on(ROWS, REAL), on(COLUMNS, REAL)))(X, W),
    "specs in a context": in_context(AUTO, lambda: jit(dense, in_shardings=(ROWS, COLUMNS))(X, W)),
    "specs in an explicit context": in_context(
        EXPLICIT, lambda: jit(dense, in_shardings=(ROWS, COLUMNS))(X, W)
    ),
    "set_mesh": in_real_context,
    "types of arguments": lambda: jit(dense).lower(*described(AUTO)).compile()(X, W),
    "explicit types": lambda: jit(dense).lower(*described(EXPLICIT)).compile()(X, W),
    "a constraint": lambda: jit(lambda x, w: jax.lax.with_sharding_constraint(dense(x, w), on(ROWS)))(X, W),
    "reshard": lambda: jit(
        lambda x, w: jax.sharding.reshard(dense(x, w), on(ROWS, EXPLICIT)),
        in_shardings=(on(P(), EXPLICIT),) * 2,
    )(X, W),
    "shard_map": lambda: jit(MANUAL)(X, W),
    "shard_map inside": lambda: jit(lambda x, w: MANUAL(x * 2, w / 2))(X, W),
    "partly manual": lambda: jit(PARTLY, in_shardings=(on(ROWS), None))(X, W),
    "called by another": lambda: jit(lambda x: jit(dense, in_shardings=(on(ROWS), None))(x, W))(X),
    "called in jax.jit": lambda: jax.jit(jit(dense, in_shardings=(on(ROWS), None)))(X, W),
    "vmap": lambda: jax.vmap(jit(dense, in_shardings=(on(ROWS), None)), (0, None))(X[None], W)[0],
}


@pytest.mark.parametrize("way", WAYS)
def test_shardings_are_written_as_in_jax(way):
    np.testing.assert_allclose(WAYS[way](), np.tanh(X @ W), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("function", [MANUAL, dense, jax.checkpoint(dense)], ids=["manual", "auto", "again"])
def test_gradients_of_sharded_functions_are_sharded_programs(function):
    inner = jit(function, in_shardings=None if function is MANUAL else (on(ROWS), on(COLUMNS)))
    got = jax.grad(lambda x: inner(x, W).sum())(X)
    np.testing.assert_allclose(got, jax.grad(lambda x: dense(x, W).sum())(X), rtol=1e-4, atol=1e-5)


MIXED = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Auto))


@pytest.mark.parametrize("mesh", [EXPLICIT, MIXED], ids=["explicit", "mixed"])
def test_functions_with_explicit_axes_are_transformed_from_outside(mesh):
    inner = jit(dense, in_shardings=(on(ROWS, mesh), on(COLUMNS, mesh)), engine="fast")
    tangent = np.cos(X)
    wanted = jax.jvp(lambda x: dense(x, W), (X,), (tangent,))
    for got, want in zip(jax.jvp(lambda x: inner(x, W), (X,), (tangent,)), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    got = jax.jit(jax.grad(lambda x, w: inner(x, w).sum(), (0, 1)))(X, W)
    for own, want in zip(got, jax.grad(lambda x, w: dense(x, w).sum(), (0, 1))(X, W), strict=True):
        np.testing.assert_allclose(own, want, rtol=1e-4, atol=1e-5)
    twice = jax.vmap(inner, (0, None))(np.stack([X, 2 * X]), W)
    np.testing.assert_allclose(twice, np.tanh(np.stack([X, 2 * X]) @ W), rtol=2e-5, atol=1e-6)


def test_arguments_may_have_types_with_explicit_axes_of_the_callers_own_devices():
    inner = jit(dense, engine="fast")
    for function in (inner, jax.grad(lambda x, w: inner(x, w).sum())):
        traced = jax.jit(function).trace(*described(EXPLICIT))
        assert traced.lower(lowering_platforms=("cpu",)).as_text()


def test_a_function_that_is_manual_throughout_is_the_program_of_one_ipu():
    text = jit(MANUAL).lower(X, W).as_text("partitioned")
    assert "argument 0: P('data', 'model')" in text and "tensor<4x4xf32>" in text
    assert text.count("all_reduce") == 1 and "spmd_parameters" not in text
    said = jit(MANUAL).lower(X, W).compile().arguments
    assert [(a.name, a.shape, a.sharding) for a in said] == [
        ("x", (8, 16), "P('data', 'model')"),
        ("w", (16, 8), "P('model', None)"),
    ]
    other = jit(dense, in_shardings=(on(ROWS), on(COLUMNS))).lower(X, W)
    assert "result 0: P('data', 'model')" in other.as_text("partitioned")
    assert "test_sharding_calls.py" in other.as_text("hlo"), "source lines survive XLA"


def test_a_manual_module_need_say_nothing_of_its_arguments_and_results():
    text = re.sub(r" \{(jax\.|sdy\.sharding)[^{}]*\}", "", jit(MANUAL).lower(X, W).as_text("stablehlo"))
    assert "manual_computation" in text and "jax.result_info" not in text
    (got,) = ipuxla.compile_stablehlo(text, SYSTEM)(X, W)
    np.testing.assert_allclose(np.squeeze(got), np.tanh(X @ W), rtol=2e-5, atol=1e-6)


def test_groups_of_reductions_are_written_as_jax_writes_them():
    """In the same order of groups and members, along some axes, all, or all in another order."""

    def reduced(x):
        one = jax.lax.psum(x, "data") + jax.lax.pmax(x, ("model", "data"))
        return one, jax.lax.pmin(x, ("data", "model")), jax.lax.psum(x.sum(), "model")

    f = jax.shard_map(reduced, mesh=AUTO, in_specs=ROWS, out_specs=(ROWS, ROWS, P()), check_vma=False)
    x = jax.ShapeDtypeStruct(X.shape, X.dtype)
    with groups_as_tables():
        jaxs = jax.jit(f).trace(x).lower(lowering_platforms=("cpu",)).as_text()
    groups = re.compile(r"all_reduce.*replica_groups = (dense<.*?> : tensor<\S+>)")
    ours = groups.findall(jit(f).lower(x).as_text("stablehlo"))
    assert len(ours) == 4 and ours == groups.findall(jaxs)


def test_groups_of_more_devices_than_are_partitioned_for_are_named():
    mesh = auto_mesh((1024, 4), ("data", "m x"))

    def reduced(x):
        return jax.lax.psum(x, "data"), jax.lax.pmax(x, "m x"), jax.lax.psum(x.sum(), ("m x", "data"))

    both = P(("data", "m x"))
    f = jax.shard_map(reduced, mesh=mesh, in_specs=both, out_specs=(both, both, P()), check_vma=False)
    x = RNG.integers(0, 9, (4096, 1)).astype(np.float32)
    lowered = jit(f, target="pod64 x 64").lower(x)
    assert len(lowered.as_text("stablehlo")) < 4000 and "mesh_axes" in lowered.as_text("stablehlo")
    total, most, all_of_them = lowered.compile(engine="fast")(x)
    rows = x.reshape(1024, 4)
    np.testing.assert_array_equal(total, np.tile(rows.sum(0), (1024, 1)).reshape(4096, 1))
    np.testing.assert_array_equal(most, np.repeat(rows.max(1), 4).reshape(4096, 1))
    assert all_of_them == x.sum()


def test_programs_of_many_ipus_are_as_small_as_those_of_two():
    def step(count):
        mesh = auto_mesh((count,), ("data",))
        return jax.shard_map(
            lambda x: jax.lax.psum(x * 2, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
        )

    few = jit(step(2)).lower(jax.ShapeDtypeStruct((2, 8), np.float32))
    many = jit(step(2**16), target="pod64 x 1024").lower(jax.ShapeDtypeStruct((2**16, 8), np.float32))
    assert len(many.as_text("hlo-optimized")) < len(few.as_text("hlo-optimized")) + 40
    compiled = many.compile(engine="fast")
    assert compiled.executable.replicas.count == 2**16
    certificate = compiled.certify()
    assert (certificate.composites, certificate.composites_run) == (1, 0)
    assert "that 1 composites compute what their codelets do" in certificate.not_proved


def test_pmap_is_one_call_on_every_ipu():
    x = RNG.normal(size=(16, 5)).astype(np.float32)
    got = ipuxla.pmap(lambda v: v - jax.lax.pmean(v, "i"), "i", target=SYSTEM)(x)
    np.testing.assert_allclose(got, x - x.mean(0), rtol=1e-5, atol=1e-6)
    with pytest.raises(WrongArguments, match="leading axis for each of 16 IPUs"):
        ipuxla.pmap(lambda v: v, target=SYSTEM)(x[:3])
    w = {"w": RNG.normal(size=(5, 3)).astype(np.float32)}
    shared = ipuxla.pmap(lambda v, w: jax.lax.psum(v @ w["w"], "i"), "i", target=SYSTEM, in_axes=(0, None))
    np.testing.assert_allclose(shared(x, w), np.tile(x.sum(0) @ w["w"], (16, 1)), rtol=1e-4, atol=1e-5)
    with pytest.raises(WrongArguments, match=r"(?s)an axis for each argument.*2 arguments.*1"):
        shared(x)
    with pytest.raises(InvalidOption, match="over its leading axis, or the same on every IPU"):
        ipuxla.pmap(lambda v: v, target=SYSTEM, in_axes=1)


def test_a_mesh_is_one_of_the_systems_ipus():
    assert ipuxla.mesh("dss8440").shape == {"ipu": 16}
    assert ipuxla.mesh("gc2 x 16", (4, 2), ("row", "card")).axis_names == ("row", "card")
    with pytest.raises(InvalidOption, match="a mesh of 8 x 4 does not fit on dss8440"):
        ipuxla.mesh("dss8440", (8, 4), ("a", "b"))
    with pytest.raises(InvalidOption, match="a name of its own for every axis"):
        ipuxla.mesh("dss8440", (8, 2), ("a", "a"))


def test_a_saved_program_runs_where_no_mesh_is(tmp_path):
    jit(dense, engine="fast", in_shardings=(on(ROWS), on(COLUMNS))).lower(X, W).compile().save(tmp_path / "p")
    for engine in ("fast", "vertex"):
        got = ipuxla.load(tmp_path / "p", engine=engine)(X, W)
        np.testing.assert_allclose(got, np.tanh(X @ W), rtol=2e-5, atol=1e-6)
    program = ipuxla.load(tmp_path / "p")
    claims = dataclasses.replace(program.executable, differs_along=((), ("model",)))
    with pytest.raises(InvalidExecutable, match="along other axes than its signature says"):
        runtime._check_fit(program.signature, claims, "p")
    signature = program.signature
    data = signature.to_data()
    first = data["placement"]["inputs"][0]
    for digits, rest in (
        ([[[2, 5]], *first[1:]], {}),  # no digit of a device's number
        ([first[0], first[0]], {}),  # one digit twice: nobody holds the parts off the diagonal
        (first[:1], {}),  # of a vector
        (first, {"result_shapes": [[4, 10**6]]}),
    ):
        damaged = {**data, "placement": {**data["placement"], **rest}}
        damaged["placement"]["inputs"] = [digits, *data["placement"]["inputs"][1:]]
        with pytest.raises(InvalidExecutable, match=r"parts that devices hold|places arrays of other shapes"):
            type(signature).from_data(damaged)


def test_steps_in_parallel_give_the_losses_of_one_batch(tmp_path):
    settings = Settings(target=SYSTEM, batch_size=128, hidden=(16,), output_dir=tmp_path)
    job = make_job(settings)
    sharded = ipuxla.jit(job.step, target=SYSTEM, **data_parallel(settings))
    alone = jax.jit(job.step)
    one, other = job.start(), job.start()
    for step, (images, labels) in zip(range(20), job.schedule.batches(job.data), strict=False):
        *one, loss = sharded(*one, images, labels)
        *other, wanted = alone(*other, images, labels)
        np.testing.assert_allclose(loss, wanted, rtol=1e-4, err_msg=f"step {step}")
    with pytest.raises(InvalidOption, match="a batch size that 16 divides"):
        data_parallel(Settings(target=SYSTEM, batch_size=100, output_dir=tmp_path))


def over_a_halo(x):
    """Return a square matrix: XLA's partitioner brings it together from neighbours' rows and puts it apart again."""
    return jnp.pad(x.reshape(-1), (0, 96)).reshape(12, 12)


DECISIONS = {
    "branch": lambda a: jax.lax.cond(jnp.abs(a @ a.T).max() > 3, lambda m: m @ m.T, lambda m: m * 2, a),
    "choice": lambda a: jax.lax.switch(
        jnp.argmax(a[:3, 0] @ a[:3]) % 3, [lambda m: m, lambda m: m @ m, jnp.cos], a
    ),
    "loop": lambda a: jax.lax.while_loop(
        lambda m: jnp.abs(m).sum(-1).max() < 100, lambda m: m @ m.T + 2 * m, a
    ),
}
"""Of values that differ along no axis of the mesh, as all devices compute them, which their program does not show."""


@pytest.mark.parametrize("engine", ["hlo", "fast", "literal"])
@pytest.mark.parametrize("name", DECISIONS)
def test_devices_agree_on_what_the_partitioner_takes_for_equal(name, engine):
    def function(x):
        return DECISIONS[name](over_a_halo(x))

    x = X.reshape(-1)[:48].reshape(16, 3)
    got = jit(function, engine=engine, in_shardings=on(P(("data", "model"))))(x)
    np.testing.assert_allclose(got, jax.jit(function)(x), rtol=1e-5, atol=1e-5)


def test_a_matrix_exponential_over_a_mesh():
    """It squares as often as a norm says, in branches that exchange."""

    def function(x):
        a = over_a_halo(x)
        a /= 1 + jnp.abs(a).max()
        return jax.scipy.linalg.expm((a @ a.T + 2 * jnp.eye(12)) / 8)

    x = X.reshape(-1)[:48].reshape(16, 3)
    got = jit(function, engine="fast", in_shardings=on(P(("data", "model"))))(x)
    np.testing.assert_allclose(got, jax.jit(function)(x), rtol=1e-5, atol=1e-5)


def test_a_decision_of_the_users_own_devices_is_not_made_equal():
    """In a ``shard_map`` over one axis, beside which XLA partitions: what some decide not to reach stays an error."""

    def part(x):
        return jax.lax.cond(x.sum() > 3, lambda: jax.lax.psum(x, "data"), lambda: x)

    function = jax.shard_map(
        part, mesh=AUTO, in_specs=ROWS, out_specs=ROWS, axis_names={"data"}, check_vma=False
    )
    with pytest.raises(InvalidGraph, match="a replica may wait for one that does not take part"):
        jit(function, engine="fast", in_shardings=on(P("data", "model")))(X)


OTHER = auto_mesh((4,), ("z",))
LARGE = auto_mesh((32,), ("z",))
TWINS = auto_mesh((2, 2), ("a", "a"))
HUGE = auto_mesh((4096,), ("z",))
X4096 = np.zeros((4096, 16), np.float32)


def uneven_branches(x):
    return jax.lax.cond(jax.lax.axis_index("data") == 0, lambda: jax.lax.psum(x, "data"), lambda: x)


def uneven_rounds(x):
    return jax.lax.while_loop(lambda s: s.sum() < 9, lambda s: s + jax.lax.psum(s, "data"), x)


def over_data(function):
    return jax.shard_map(function, mesh=AUTO, in_specs=ROWS, out_specs=ROWS, check_vma=False)


BAD = {
    "two meshes": (
        lambda: jit(
            lambda x, w: jax.lax.with_sharding_constraint(dense(x, w), on(P("z"), OTHER)),
            in_shardings=(on(ROWS), None),
        )(X, W),
        InvalidOption,
        r"(?s)written for two meshes.*data=2, model=4.*z=4.*test_sharding_calls\.py:\d+",
    ),
    "more devices": (
        lambda: jit(dense, in_shardings=(on(P("z"), LARGE), None))(np.zeros((32, 16), np.float32), W),
        InvalidOption,
        r"written for 32 devices \(z=32\), and dss8440\*? has 16 IPUs",
    ),
    "one IPU": (
        lambda: jit(dense, target="gc200", in_shardings=(on(ROWS), None))(X, W),
        InvalidOption,
        r"(?s)written for 8 devices \(data=2, model=4\), and gc200 has 1 IPU.*gc200 x 8",
    ),
    "too many to partition": (
        lambda: jit(dense, in_shardings=(on(P("z"), HUGE), None)).lower(X4096, W),
        Unsupported,
        r"(?s)4,096 devices is partitioned by XLA, which does so for 2,048 at most.*jax\.shard_map",
    ),
    "prints": (
        lambda: jit(lambda x: (jax.debug.print("{}", x), x)[1], in_shardings=on(ROWS))(X),
        UnsupportedPrimitive,
        r"(?s)debug\.print inside a program of several IPUs.*test_sharding_calls\.py:\d+",
    ),
    "callbacks": (
        lambda: jit(
            lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
            in_shardings=on(ROWS),
        )(X),
        UnsupportedPrimitive,
        "pure_callback calls the host",
    ),
    "a collective that some skip": (
        lambda: jit(
            jax.shard_map(uneven_branches, mesh=AUTO, in_specs=ROWS, out_specs=ROWS, check_vma=False),
            engine="fast",
        )(X),
        InvalidGraph,
        r"(?s)a replica may wait for one that does not take part.*test_sharding_calls\.py:\d+.*jax\.lax\.pmax",
    ),
    "a collective along the axis that its condition differs along": (
        lambda: jit(
            over_data(lambda x: jax.lax.cond(x.sum() > 3, lambda: jax.lax.psum(x, "data"), lambda: x)),
            engine="fast",
        )(X),
        InvalidGraph,
        r"(?s)a replica may wait for one that does not take part.*may differ along data, decides",
    ),
    "two axes of one name in a sharding": (
        lambda: jit(dense, in_shardings=(on(P("a"), TWINS), None))(X, W),
        InvalidOption,
        "a name of its own for every axis",
    ),
    "two axes of one name in a type": (
        lambda: jit(lambda x: x + x).lower(jax.ShapeDtypeStruct((4,), "float32", sharding=on(P("a"), TWINS))),
        InvalidOption,
        "a name of its own for every axis",
    ),
    "two axes of one name around": (
        in_context(TWINS, lambda: jit(dense, in_shardings=(P("a"), None))(X, W)),
        InvalidOption,
        "a name of its own for every axis",
    ),
    "two axes of one name inside": (
        lambda: jit(lambda x: jax.lax.with_sharding_constraint(x + x, on(P("a"), TWINS)))(X),
        InvalidOption,
        r"(?s)a name of its own for every axis.*'a', 'a'.*test_sharding_calls\.py:\d+",
    ),
    "a collective that some skip, by operations": (
        lambda: jit(over_data(uneven_branches), engine="hlo")(X),
        InvalidGraph,
        r"(?s)all_reduce: a replica may wait for one that does not take part: if of .*along data.*test_sharding_calls\.py:\d+.*jax\.lax\.pmax",
    ),
    "a collective that some repeat, by operations": (
        lambda: jit(over_data(uneven_rounds), engine="hlo")(X),
        InvalidGraph,
        r"(?s)all_reduce: a replica may wait for one that does not take part: while of .*along data.*test_sharding_calls\.py:\d+",
    ),
    "groups that miss members": (
        lambda: jit(over_data(lambda x: jax.lax.psum(x, "model", axis_index_groups=[[0, 1]])))(X),
        InvalidOption,
        r"(?s)groups of a collective are not every place along its axis once.*\[\[0, 1\]\].*test_sharding_calls\.py:\d+",
    ),
    "an axis that the mesh has not": (
        lambda: jit(
            jax.shard_map(lambda x: jax.lax.psum(x, "dta"), mesh=AUTO, in_specs=ROWS, out_specs=ROWS)
        )(X),
        InvalidOption,
        r"(?s)no mesh around it has: 'dta'.*test_sharding_calls\.py:\d+",
    ),
    "a gradient through a shard_map inside another": (
        lambda: jit(jax.grad(lambda x: twice_manual(x).sum()))(X),
        Unsupported,
        r"(?s)a derivative through a jax.shard_map inside a jax.shard_map.*check_vma=False.*test_sharding_calls\.py:\d+",
    ),
    "a sum of bfloat16 over some axes by hand": (
        lambda: jit(
            jax.shard_map(
                lambda x: jax.lax.psum(x, "data"),
                mesh=AUTO,
                in_specs=P("data"),
                out_specs=P(),
                axis_names={"data"},
            )
        )(jnp.ones((8, 8), jnp.bfloat16)),
        Unsupported,
        r"(?s)reduction of bfloat16 between devices in a shard_map over some axes.*reduce in float32",
    ),
    "a mesh of fractions": (
        lambda: ipuxla.mesh("dss8440", (2.5, 2), ("a", "b")),
        InvalidOption,
        r"the shape of a mesh is a sequence of whole numbers",
    ),
    "a mesh of one number": (
        lambda: ipuxla.mesh("dss8440", 4, ("a",)),
        InvalidOption,
        r"is a sequence of whole numbers",
    ),
    "a mesh whose axes are numbers": (
        lambda: ipuxla.mesh("dss8440", (2, 2), (1, 2)),
        InvalidOption,
        r"named by strings",
    ),
    "a permutation beyond the axis": (
        lambda: jit(
            jax.shard_map(
                lambda x: jax.lax.ppermute(x, "data", [(0, 5)]), mesh=AUTO, in_specs=ROWS, out_specs=ROWS
            )
        )(X),
        InvalidOption,
        r"(?s)names a device that its axis has not.*\(0, 5\).*test_sharding_calls\.py:\d+",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_told_in_one_line_with_its_place(name):
    call, error, said = BAD[name]
    with pytest.raises(error, match=said) as caught:
        call()
    assert isinstance(caught.value, IpuError)


def test_a_shard_map_inside_another_has_a_gradient_where_jax_does_not_check_what_varies():
    def loss(x):
        return (twice_manual(x, check_vma=False) ** 2).sum()

    want = jax.grad(lambda x: (jnp.tanh(x.reshape(8, 2, -1).sum(1)) ** 2).sum())(X)
    np.testing.assert_allclose(jit(jax.grad(loss), engine="fast")(X), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("groups", [[[0], [1], [2], [3]], [[2, 3], [0, 1]]])
def test_groups_may_be_written_in_any_order(groups):
    def summed(x):
        return jax.lax.psum(x, "model", axis_index_groups=groups)

    manual = jax.shard_map(
        summed, mesh=AUTO, in_specs=P(("data", "model")), out_specs=P(("data", "model")), check_vma=False
    )
    rows = X.reshape(2, 4, -1)
    group = {place: members for members in groups for place in members}
    want = np.stack([rows[:, group[place]].sum(1) for place in range(4)], 1).reshape(X.shape)
    np.testing.assert_allclose(jit(manual, engine="fast")(X), want, rtol=1e-6)


def test_angles_of_what_an_ipu_has_leave_the_loop_over_layers():
    """Which of them it has follows from its number: an invariant, as the position is."""

    def layers(position, weights, x):
        def layer(x, w):
            angle = position / 10_000.0 ** (jnp.arange(64) / 64)
            return x * w + jnp.cos(angle), None

        return jax.lax.scan(layer, x, weights)[0]

    x, weights = np.linspace(0, 1, 64, dtype=np.float32), np.linspace(0.5, 1, 4, dtype=np.float32)
    lowered = jit(layers, in_shardings=(on(P()), on(P()), on(P("model")))).lower(np.float32(3), weights, x)
    before, _, inside = lowered.as_text("hlo-optimized").partition("hlo.repeat")
    assert "stablehlo.cosine" in before and "stablehlo.power" in before
    assert "stablehlo.cosine" not in inside and "stablehlo.power" not in inside
    got = lowered.compile()(np.float32(3), weights, x)
    np.testing.assert_allclose(got, jax.jit(layers)(np.float32(3), weights, x), rtol=1e-5, atol=1e-6)


GATHERED = jax.lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
ADDED = jax.lax.ScatterDimensionNumbers(
    update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)


def taken_and_added(x, numbers):
    cut = jax.lax.with_sharding_constraint(x, on(ROWS))
    taken = jax.lax.gather(cut, numbers[:, None], GATHERED, (1, x.shape[1]), mode="clip")
    return jax.lax.scatter_add(jnp.zeros_like(x), numbers[:, None], cut * taken, ADDED, mode="drop")


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        (np.int8, (3, -7, 4, 100, 0)),
        (np.uint32, (3, 2**32 - 1, 2**31, 3, 0)),
    ],
)
def test_indices_of_any_type_where_sizes_do_not_divide(dtype, numbers):
    x, numbers = X[:5], np.array(numbers, dtype)  # XLA's partitioner ends the process at such indices
    own = [min(max(int(n), 0), 4) for n in numbers]
    want = np.zeros_like(x)
    for row, n, taken in zip(x, numbers, x[own], strict=True):
        if 0 <= n < 5:
            want[int(n)] += row * taken
    np.testing.assert_allclose(jit(taken_and_added)(x, numbers), want, rtol=1e-6)


@pytest.mark.parametrize("engine", ["hlo", "fast", "literal"])
def test_what_all_members_decide_alike_is_evaluated(engine):
    def rounds(x):  # the maximum over all, and a condition that is equal along the axis of the sum
        x = jax.lax.while_loop(
            lambda s: jax.lax.pmax(s.sum(), "data") < 9, lambda s: s + jax.lax.psum(s, "data"), x
        )
        return jax.lax.cond(x.sum() > 3, lambda: jax.lax.psum(x, "model"), lambda: x)

    x = np.abs(X) / 100
    want = x.reshape(2, -1, X.shape[1])
    while want.sum((1, 2)).max() < 9:
        want = want + want.sum(0)
    want = np.concatenate([4 * part if part.sum() > 3 else part for part in want])
    np.testing.assert_allclose(jit(over_data(rounds), engine=engine)(x), want, rtol=1e-5)


def test_collectives_of_constants():
    def each(x):
        ones, threes, both = jnp.ones(3), jnp.full(4, 3.0), ("data", "model")
        sums = jax.lax.psum((ones, x[0], jnp.zeros(3)), "data")
        moved = jax.lax.fori_loop(
            0, 2, lambda _, c: c + jax.lax.ppermute(threes, "model", [(0, 1), (2, 0)]), jnp.zeros(4)
        )
        return (
            *sums,
            jax.lax.psum(jnp.float32(2), both)[None],
            jax.lax.pmax(ones, both),
            jax.lax.all_gather(ones * 2, "model"),
            jax.lax.psum_scatter(threes, "model", tiled=True),
            jax.lax.all_to_all(threes, "model", 0, 0, tiled=True),
            moved,
        )

    def witness(data, model):
        x = X[4 * data : 4 * data + 4]
        sums = 2 * np.ones(3), x[0] + X[4 - 4 * data], np.zeros(3)
        moved = np.full(4, 6.0 * (model in (0, 1)))
        others = np.full(1, 12.0), np.full(4, 3.0), moved
        return *sums, np.full(1, 16.0), np.ones(3), np.full((4, 3), 2.0), *others

    out = P(("data", "model"))
    mapped = jax.shard_map(each, mesh=AUTO, in_specs=ROWS, out_specs=out, check_vma=False)
    wanted = [
        np.concatenate(parts) for parts in zip(*(witness(n // 4, n % 4) for n in range(8)), strict=True)
    ]
    for got, want in zip(jit(mapped, engine="fast")(X), wanted, strict=True):
        np.testing.assert_array_equal(got, want.astype(np.float32))


def test_assertions_of_the_function_itself_are_its_own():
    def refuse(x):
        assert x.ndim == 3
        return x

    with pytest.raises(AssertionError):
        jit(refuse, in_shardings=on(ROWS))(X)


def test_arguments_that_parts_do_not_divide_are_named():
    """A ``ValueError``, as JAX's, which does not say which of the leaves it is."""
    leaf = jax.ShapeDtypeStruct((7, 3), np.float32, sharding=on(ROWS))
    with pytest.raises(
        ValueError, match=r"argument p\['w'\]: \d+ parts do not divide dimension 0 of \[7, 3\]"
    ):
        jit(lambda p, x: p["w"] + x).lower({"w": leaf}, 1.0)


def test_what_jax_refuses_itself_is_jaxs_error():
    with pytest.raises(ValueError, match="should evenly divide the shape"):
        jit(dense, in_shardings=(on(ROWS), None))(X[:7], W)
    with pytest.raises(NameError, match="unbound axis name: data"):
        jit(lambda x: jax.lax.psum(x, "data"))(X)
    send = jax.shard_map(
        lambda x: jax.lax.ppermute(x, "data", [(0, 1), (1, 1)]), mesh=AUTO, in_specs=ROWS, out_specs=ROWS
    )
    with pytest.raises(ValueError, match="must be unique"):
        jit(send)(X)


def test_devices_are_numbered_along_a_ring_where_the_program_goes_round_one():
    def rotated(x, along):
        size = 8 if along == "data" else 2
        return jax.lax.ppermute(jnp.tanh(x), along, [(i, (i + 1) % size) for i in range(size)])

    mesh = ipuxla.mesh("dss8440", (8, 2), ("data", "model"))
    x = np.arange(64, dtype=np.float32).reshape(16, 4) / 64
    for along, folded in (("data", ("data",)), ("model", ())):
        each = jax.shard_map(
            lambda x, along=along: rotated(x, along),
            mesh=mesh,
            in_specs=P(("data", "model")),
            out_specs=P(("data", "model")),
        )
        compiled = jit(each, engine="fast").lower(x).compile()
        assert compiled.executable.replicas.folded == folded
        by = np.roll(np.tanh(x).reshape(8, 2, 4), 1, axis=0 if along == "data" else 1)
        np.testing.assert_allclose(compiled(x), by.reshape(16, 4), rtol=1e-6)
    reduced = jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
    assert not jit(reduced, engine="fast").lower(x).compile().executable.replicas.folded


@pytest.mark.parametrize("axes", [("data",), ("model",), ("data", "model")])
def test_a_broadcast_comes_from_any_member(axes):
    """``jax.lax.pbroadcast``, of which JAX has a rule for GPUs alone; also where the other axes are XLA's."""
    every = P(("data", "model"))
    x = RNG.normal(size=(8, 3)).astype(np.float32)
    mesh = x.reshape(2, 4, 3)
    wanted = {("data",): mesh[1:], ("model",): mesh[:, 1:2], ("data", "model"): mesh[0, 1]}[axes]
    for engine in ("hlo", "literal"):
        mapped = jax.shard_map(
            lambda x: jax.lax.pbroadcast(x, axes, 1),
            mesh=AUTO,
            in_specs=every,
            out_specs=every,
            check_vma=False,
        )
        got = jit(mapped, engine=engine)(x)
        np.testing.assert_array_equal(got, np.broadcast_to(wanted, (2, 4, 3)).reshape(8, 3))
    if len(axes) == 1:
        own = P(axes[0])
        partly = jax.shard_map(
            lambda x: jax.lax.pbroadcast(x, axes, 1),
            mesh=AUTO,
            in_specs=own,
            out_specs=own,
            axis_names=set(axes),
            check_vma=False,
        )
        each = np.split(x, AUTO.shape[axes[0]])
        np.testing.assert_array_equal(jit(partly)(x), np.concatenate([each[1]] * len(each)))


def test_arrays_without_elements_are_cut_like_others():
    sharded = ipuxla.jit(
        lambda x: (x + 1, x.sum(0)), target=SYSTEM, in_shardings=NamedSharding(AUTO, P("data"))
    )
    empty, zeros = sharded(np.zeros((0, 8), np.float32))
    assert empty.shape == (0, 8)
    np.testing.assert_array_equal(zeros, np.zeros(8))
