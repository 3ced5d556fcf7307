"""StableHLO modules that are written for several devices: partitioned as sharded functions are, or refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import ipuxla
from hlo_passes.errors import MalformedStableHLO
from ipuxla import cli
from ipuxla.errors import InvalidOption, Unsupported
from tests.replicas import small_system
from tests.systems import auto_mesh
from tiles.engine import certify

SYSTEM = small_system()
MESH = auto_mesh((2, 4), ("data", "model"))
RNG = np.random.default_rng(0)
X, W = (RNG.normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 8)))
WANTED = np.tanh(X @ W)


def dense(x, w):
    return jnp.tanh(x @ w)


def exported(function):
    return export.export(jax.jit(function), platforms=["cpu"])(X, W)


def sharded(x, w):
    constrain = jax.lax.with_sharding_constraint
    return dense(constrain(x, on(P("data"))), constrain(w, on(P(None, "model"))))


def on(spec):
    return NamedSharding(MESH, spec)


def manual(x, w):
    specs = (P("data", "model"), P("model"))
    return jax.shard_map(
        lambda x, w: jnp.tanh(jax.lax.psum(x @ w, "model")), mesh=MESH, in_specs=specs, out_specs=P("data")
    )(x, w)


def transfer(attributes, argument=""):
    """Return a module that sends its argument out."""
    return f"""module attributes {{mhlo.num_partitions = 4 : i32}} {{
      {attributes}
      func.func @main(%x: tensor<4xf32> {argument}) -> tensor<4xf32> {{
        %t = stablehlo.create_token : !stablehlo.token
        %u = "stablehlo.outfeed"(%x, %t) <{{outfeed_config = ""}}>
          : (tensor<4xf32>, !stablehlo.token) -> !stablehlo.token
        return %x : tensor<4xf32>
      }}
    }}"""


def by_hand(
    mesh, x, w, attributes="mhlo.num_partitions = 8 : i32", marks="sdy.sharding = #sdy.sharding<@mesh, "
):
    """Return a module of a product, written for the devices of a mesh."""
    end = ">" if "#sdy" in marks else ""
    return f"""module @product attributes {{{attributes}}} {{
  {mesh}
  func.func public @main(%x: tensor<8x16xf32> {{{marks}{x}{end}}}, %w: tensor<16x8xf32> {{{marks}{w}{end}}})
      -> tensor<8x8xf32> {{
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    %1 = stablehlo.tanh %0 : tensor<8x8xf32>
    return %1 : tensor<8x8xf32>
  }}
}}"""


SHARDY = by_hand('sdy.mesh @mesh = <["d"=2, "m"=4]>', '[{"d"}, {}]', '[{}, {"m"}]')
GSPMD = by_hand(
    "", '"{devices=[2,1,4]<=[8] last_tile_dim_replicate}"', '"{replicated}"', marks="mhlo.sharding = "
)
OWN_ORDER = by_hand(
    'sdy.mesh @mesh = <["d"=2, "m"=4], device_ids=[0, 2, 4, 6, 1, 3, 5, 7]>', '[{"d"}, {}]', '[{}, {"m"}]'
)
UNDIVIDED = by_hand('sdy.mesh @mesh = <["d"=3]>', '[{"d"}, {}]', '[{}, {"d"}]')
LOCAL = """module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["d"=2, "m"=2]>
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.partition_id : tensor<ui32>
    %1 = stablehlo.convert %0 : (tensor<ui32>) -> tensor<f32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %3 = stablehlo.multiply %x, %2 : tensor<4xf32>
    %4 = "stablehlo.all_reduce"(%3) <{
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, use_global_device_ids,
      replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "m">]>
    }> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %4 : tensor<4xf32>
  }
}"""
MODULES = {
    "exported": (lambda: exported(sharded).mlir_module_serialized, "data=2, model=4"),
    "exported, manual": (lambda: exported(manual).mlir_module_serialized, "data=2, model=4"),
    "exported, as text": (lambda: exported(sharded).mlir_module(), "data=2, model=4"),
    "by hand": (lambda: SHARDY, "d=2, m=4"),
    "marks of GSPMD": (lambda: GSPMD, "partition=8"),
    "devices in an order of their own": (lambda: OWN_ORDER, "d=2, m=4"),
    "sizes that do not divide": (lambda: UNDIVIDED, "d=3"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_many_devices_is_partitioned(name):
    module, mesh = MODULES[name]
    source = module()
    compiled = ipuxla.compile_stablehlo(source, SYSTEM, engine="hlo")
    assert f"// mesh: {mesh}\n" in compiled.as_text("partitioned")
    np.testing.assert_allclose(compiled(X, W)[0], WANTED, rtol=2e-5, atol=1e-6)
    with pytest.raises(
        InvalidOption, match=r"(?s)written for [38] devices.*target=\"gc200 x [38]\".*no mesh"
    ):
        ipuxla.compile_stablehlo(source)


def test_calls_of_a_library_come_back_from_xla_with_their_results():
    square = X @ X.T + 8 * np.eye(8, dtype=np.float32)
    factor = jax.jit(jnp.linalg.cholesky, in_shardings=on(P("data")))
    source = export.export(factor, platforms=["cpu"])(square).mlir_module_serialized
    (got,) = ipuxla.compile_stablehlo(source, SYSTEM, engine="hlo")(square)
    np.testing.assert_allclose(got, np.linalg.cholesky(square), rtol=1e-4, atol=1e-5)


def test_a_sharded_program_without_arguments():
    def numbers():
        return jax.lax.with_sharding_constraint(jnp.arange(16.0), on(P("data")))

    np.testing.assert_array_equal(ipuxla.jit(numbers, target=SYSTEM, engine="hlo")(), np.arange(16))


def test_a_module_of_many_devices_runs_in_tile_memory_and_is_saved(tmp_path):
    compiled = ipuxla.compile_stablehlo(SHARDY, SYSTEM, engine="literal")
    np.testing.assert_allclose(compiled(X, W)[0], WANTED, rtol=2e-5, atol=1e-6)
    certify(compiled.executable)
    compiled.save(tmp_path / "product")
    np.testing.assert_allclose(ipuxla.load(tmp_path / "product")(X, W)[0], WANTED, rtol=2e-5, atol=1e-6)


def test_a_module_from_anywhere_is_partitioned_in_a_process_of_its_own(tmp_path, capsys):
    path = tmp_path / "product.mlir"
    path.write_text(SHARDY)
    assert cli.run(["ipuxla", "compile", str(path), "--target=dss8440", "--print=partitioned"]) == 0
    assert "// argument 0: P('d', None)\n// argument 1: P(None, 'm')" in capsys.readouterr().out
    two = SHARDY.replace("  sdy.mesh", '  sdy.mesh @other = <["z"=4]>\n  sdy.mesh')
    with pytest.raises(InvalidOption, match="one module is written for two meshes"):
        ipuxla.compile_stablehlo(two, SYSTEM, untrusted=True)


def test_a_module_that_is_one_devices_program_is_left_as_it_is():
    one = by_hand('sdy.mesh @mesh = <["d"=1]>', '[{"d"}, {}]', '[{}, {"d"}]', "")
    np.testing.assert_allclose(ipuxla.compile_stablehlo(one, engine="hlo")(X, W)[0], WANTED, rtol=2e-5)
    compiled = ipuxla.compile_stablehlo(LOCAL, SYSTEM, engine="hlo")
    np.testing.assert_array_equal(
        compiled(np.ones(4, np.float32))[0], np.ones(4), "0 + 1, of devices 0 and 1"
    )
    assert compiled.executable.replicas.count == 4


IN_PLACE = '#stablehlo.mesh<axes = [#stablehlo.mesh_axis<name = "d", size = 2>, #stablehlo.mesh_axis<name = "m", size = 2>]>'


def test_groups_may_say_their_mesh_themselves():
    x = np.arange(4, dtype=np.float32)
    for mesh in (IN_PLACE, IN_PLACE.replace('"d"', '"rows of \u00e4"')):
        compiled = ipuxla.compile_stablehlo(
            LOCAL.replace("mesh = @mesh", f"mesh = {mesh}"), SYSTEM, engine="hlo"
        )
        np.testing.assert_array_equal(compiled(x)[0], x)
    other = LOCAL.replace("mesh = @mesh", f"mesh = {IN_PLACE.replace('2', '3')}")
    with pytest.raises(MalformedStableHLO, match=r"(?s)along a mesh of d=3, m=3.*a mesh of all 4 devices"):
        ipuxla.compile_stablehlo(other, SYSTEM, engine="hlo")


REFUSED = {
    "replicas of partitions": (
        SHARDY.replace("mhlo.num_partitions = 8", "mhlo.num_replicas = 2"),
        Unsupported,
        "2 replicas with shardings",
    ),
    "a mesh larger than the system": (
        SHARDY.replace('"m"=4', '"m"=16'),
        InvalidOption,
        r"written for 32 devices \(d=2, m=16\), and dss8440\*? has 16 IPUs",
    ),
    "a stream of each device": (transfer(""), Unsupported, "(?s)outfeed in a program of several IPUs.*:5"),
    "a stream of a sharded program": (
        transfer('sdy.mesh @m = <["d"=4]>', '{sdy.sharding = #sdy.sharding<@m, [{"d"}]>}'),
        Unsupported,
        "(?s)outfeed in a program of several IPUs.*:5",
    ),
    "an axis that the mesh has not": (
        SHARDY.replace('[{"d"}, {}]', '[{"e"}, {}]'),
        MalformedStableHLO,
        r'arg 0 - unknown axis name: "e"',
    ),
    "an axis used twice": (
        SHARDY.replace('[{"d"}, {}]', '[{"d"}, {"d"}]'),
        MalformedStableHLO,
        'arg 0 - duplicate axis ref: "d"',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_a_module_is_told_by_name(name):
    source, error, said = REFUSED[name]
    with pytest.raises(error, match=said):
        ipuxla.compile_stablehlo(source, SYSTEM, engine="hlo")


@pytest.mark.parametrize("results", [0, 1, 2])
def test_what_ends_xlas_compilation_is_no_part_of_the_program(results):
    """XLA compiles no code for what it partitions; the result that keeps it from that is taken out again."""

    def function(x, w):
        return (dense(x, w), x.sum())[:results]

    lowered = ipuxla.jit(function, target=SYSTEM, in_shardings=(on(P("data")), on(P(None, "model")))).lower(
        X, W
    )
    text = lowered.as_text("partitioned")
    assert "custom_call" not in text and "custom-call" not in text
    assert [line.split(":")[0] for line in text.splitlines() if line.startswith("// result")] == [
        f"// result {number}" for number in range(results)
    ]
    for got, wanted in zip(lowered.compile()(X, W), (WANTED, X.sum()), strict=False):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
