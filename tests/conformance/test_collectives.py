"""Collectives of several replicas and partitions: as the specification says them, evaluated on all devices at once.

What is expected is written down here with NumPy, process by process, from the specification's pseudocode.
"""

import itertools

import numpy as np
import pytest

from hlo_passes import ops
from hlo_passes.errors import EvaluationError, HloError, MalformedStableHLO, VerificationError
from hlo_passes.ir import evaluate_module, evaluate_partitioned, parse_module, print_module, verify
from hlo_passes.ops import DeviceGroups, Moves
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo

REGION = """({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
  %sum = stablehlo.add %a, %b : tensor<f32>
  stablehlo.return %sum : tensor<f32> })"""
RESULTS = {
    "all_reduce": "tensor<4x6xf32>",
    "reduce_scatter": "tensor<2x6xf32>",
    "all_gather": "tensor<4x12xf32>",
    "all_to_all": "tensor<4x6xf32>",
    "collective_broadcast": "tensor<4x6xf32>",
}
MORE = {
    "reduce_scatter": ", scatter_dimension = 0 : i64",
    "all_gather": ", all_gather_dim = 1 : i64",
    "all_to_all": ", split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64",
}
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, "


def _text(body, arguments, results, replicas, partitions):
    return f"""module attributes {{mhlo.num_replicas = {replicas} : i32, mhlo.num_partitions = {partitions} : i32}} {{
      func.func @main({arguments}) -> ({results}) {{
        {body}
      }}
    }}"""


def _collective(name, groups, replicas=1, partitions=1, channel=False, flattened=False):
    region = REGION if "reduce" in name else ""
    kind = RESULTS[name]
    count, size = np.shape(groups)
    attributes = f"replica_groups = dense<{groups}> : tensor<{count}x{size}xi64>{MORE.get(name, '')}"
    attributes = f"{CHANNEL if channel else ''}{attributes}{', use_global_device_ids' if flattened else ''}"
    if name == "reduce_scatter":
        kind = f"tensor<{4 // _members(size, partitions, channel, flattened)}x6xf32>"
    if name == "all_gather":
        kind = f"tensor<4x{6 * _members(size, partitions, channel, flattened)}xf32>"
    body = f"""%0 = "stablehlo.{name}"(%x) {region} {{{attributes}}} : (tensor<4x6xf32>) -> {kind}
        return %0 : {kind}"""
    return _text(body, "%x: tensor<4x6xf32>", kind, replicas, partitions)


def _members(size, partitions, channel, flattened):
    return size * partitions if channel and not flattened else size


def _process_groups(name, groups, replicas, partitions, channel, flattened):
    """Return lists of device numbers, replica by replica, as the specification's four functions do."""
    number = lambda replica, partition: replica * partitions + partition  # noqa: E731
    if flattened:
        return groups
    if not channel:
        return [[number(r, p) for r in group] for group in groups for p in range(partitions)]
    if name in ("all_reduce", "all_gather", "reduce_scatter"):
        return [[number(r, p) for p in range(partitions) for r in group] for group in groups]
    return [[number(r, p) for p in group] for group in groups for r in range(replicas)]


def _expected(name, x, groups):
    found = {}
    for group in groups:
        values = [x[n] for n in group]
        for place, n in enumerate(group):
            match name:
                case "all_reduce":
                    found[n] = np.sum(values, 0)
                case "reduce_scatter":
                    found[n] = np.split(np.sum(values, 0), len(group), 0)[place]
                case "all_gather":
                    found[n] = np.concatenate(values, 1)
                case "all_to_all":
                    found[n] = np.concatenate([np.split(v, len(group), 0)[place] for v in values], 0)
                case "collective_broadcast":
                    found[n] = values[0]
    return np.stack([found.get(n, np.zeros_like(x[n])) for n in range(len(x))])


WAYS = {
    "cross_replica": ([[0, 1]], 2, 2, False, False),
    "cross_replica, turned": ([[1, 0]], 2, 1, False, False),
    "cross_replica_and_partition, cross_partition": ([[0, 1]], 2, 2, True, False),
    "of two replicas each": ([[0, 2], [1, 3]], 4, 1, False, False),
    "flattened_ids": ([[0, 3], [1, 2]], 2, 2, True, True),
    "flattened_ids of partitions": ([[0, 2], [1, 3]], 1, 4, True, True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", RESULTS)
def test_collectives_exchange_in_the_groups_of_the_specification(name, way):
    groups, replicas, partitions, channel, flattened = WAYS[way]
    if flattened and name in ("all_to_all", "collective_broadcast"):
        pytest.skip("has no flattened ids")
    module = import_stablehlo(_collective(name, groups, replicas, partitions, channel, flattened))
    verify(module)
    assert parse_module(print_module(module)).mesh == module.mesh
    x = np.random.default_rng(0).normal(size=(replicas * partitions, 4, 6)).astype(np.float32)
    wanted = _expected(name, x, _process_groups(name, groups, replicas, partitions, channel, flattened))
    for each in (module, optimize(module)):
        (got,) = evaluate_partitioned(each, x)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_a_broadcast_leaves_out_devices():
    module = import_stablehlo(_collective("collective_broadcast", [[2, 0]], replicas=3))
    x = np.broadcast_to(np.arange(1, 4, dtype=np.float32)[:, None, None], (3, 4, 6))
    np.testing.assert_array_equal(evaluate_partitioned(module, x)[0][:, 0, 0], [3, 0, 3])


@pytest.mark.parametrize(
    ("channel", "pairs", "sent"),
    [
        (False, "[[0, 1], [1, 0]]", [2, 3, 0, 1]),
        (True, "[[0, 1], [1, 0]]", [1, 0, 3, 2]),
        (True, "[[1, 0]]", [1, -1, 3, -1]),
    ],
)
def test_permutations_send_in_every_group(channel, pairs, sent):
    count = pairs.count("[") - 1
    body = f"""%0 = "stablehlo.collective_permute"(%x) {{{CHANNEL if channel else ""}source_target_pairs =
          dense<{pairs}> : tensor<{count}x2xi64>}} : (tensor<3xf32>) -> tensor<3xf32>
        return %0 : tensor<3xf32>"""
    module = import_stablehlo(_text(body, "%x: tensor<3xf32>", "tensor<3xf32>", 2, 2))
    x = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    wanted = [np.zeros(3) if n < 0 else x[n] for n in sent]
    np.testing.assert_array_equal(evaluate_partitioned(module, x)[0], wanted)
    (instruction,) = module.entry_computation.instructions
    assert instruction.op.groups.size == 2, "along one axis, alike on the other"


def test_devices_know_their_numbers():
    body = """%0 = stablehlo.replica_id : tensor<ui32>
      %1 = stablehlo.partition_id : tensor<ui32>
      return %0, %1 : tensor<ui32>, tensor<ui32>"""
    module = import_stablehlo(_text(body, "", "tensor<ui32>, tensor<ui32>", 2, 3))
    replica, partition = evaluate_partitioned(optimize(module))
    np.testing.assert_array_equal(replica, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(partition, [0, 1, 2, 0, 1, 2])
    with pytest.raises(EvaluationError, match="evaluate_partitioned"):
        evaluate_module(module)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([[0, 1], [1, 2]], "replica id #1 seen more than once"),
        ([[0, 1]], "(?s)all_reduce: member 2 is in no group.*expected: groups of all 4 members"),
        ([[0, 1], [2, 4]], "replica id #3 not seen"),
        ([[0, 1], [2, -1]], "groups of one size"),
    ],
)
def test_groups_that_are_none_are_named(groups, said):
    with pytest.raises(HloError, match=said):
        import_stablehlo(_collective("all_reduce", groups, replicas=4))


@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_groups_that_do_not_make_the_shapes_are_named(name, replicas):
    """jaxlib's verifier takes them; a pass found out, and called it a bug of ours."""
    text = _collective(name, [[0, 1], [2, 3]], replicas=4)
    alone = f"dense<{[[k] for k in range(replicas)]}> : tensor<{replicas}x1xi64>"
    text = text.replace("num_replicas = 4", f"num_replicas = {replicas}")
    text = text.replace("dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>", alone)
    with pytest.raises(
        MalformedStableHLO, match=rf"{name} gives .* on {replicas} devices, and the module says"
    ):
        import_stablehlo(text)


def test_a_permutation_that_sends_two_to_one_is_named():
    body = """%0 = "stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 1], [2, 1]]> : tensor<2x2xi64>}
        : (tensor<3xf32>) -> tensor<3xf32>
      return %0 : tensor<3xf32>"""
    with pytest.raises(HloError, match="duplicate targets"):
        import_stablehlo(_text(body, "%x: tensor<3xf32>", "tensor<3xf32>", 3, 1))
    with pytest.raises(
        MalformedStableHLO, match=r"(?s)permute: a permutation names device 2.*devices 0 to 1"
    ):
        import_stablehlo(_text(body.replace("[2, 1]", "[1, 2]"), "%x: tensor<3xf32>", "tensor<3xf32>", 2, 1))


def test_a_collective_of_other_devices_than_the_modules_is_no_valid_ir():
    text = print_module(import_stablehlo(_collective("all_reduce", [[0, 1, 2, 3]], replicas=4)))
    verify(parse_module(text))
    with pytest.raises(VerificationError, match="groups of 4 devices in a program of 2"):
        verify(parse_module(text.replace('"replica" = 4', '"replica" = 2')))


def test_equal_collectives_of_one_value_are_merged_and_others_kept():
    group = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
    body = f"""%0 = "stablehlo.all_reduce"(%x) {REGION} {{{group}}} : (tensor<4xf32>) -> tensor<4xf32>
      %1 = "stablehlo.all_reduce"(%x) {REGION} {{{group}}} : (tensor<4xf32>) -> tensor<4xf32>
      %2 = stablehlo.multiply %0, %1 : tensor<4xf32>
      %3 = "stablehlo.all_reduce"(%2) {REGION} {{{group}}} : (tensor<4xf32>) -> tensor<4xf32>
      %4 = "stablehlo.all_gather"(%x) {{{group}, all_gather_dim = 0 : i64}} : (tensor<4xf32>) -> tensor<8xf32>
      return %3 : tensor<4xf32>"""
    module = import_stablehlo(_text(body, "%x: tensor<4xf32>", "tensor<4xf32>", 2, 1))
    names = [i.op.name for i in optimize(module).walk() if i.op.is_collective]
    assert names == ["stablehlo.all_reduce"] * 2 + ["stablehlo.all_gather"], "kept though nobody reads it"


def test_collectives_stay_in_loops_and_branches():
    group = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
    reduce = f'"stablehlo.all_reduce"(%x) {REGION} {{{group}}} : (tensor<4xf32>) -> tensor<4xf32>'
    body = f"""%c = stablehlo.constant dense<3> : tensor<i32>
      %z = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %r:2 = stablehlo.while(%i = %z, %s = %x) : tensor<i32>, tensor<4xf32>
       cond {{
        %p = stablehlo.compare LT, %i, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      }} do {{
        %n = stablehlo.add %i, %one : tensor<i32>
        %t = {reduce}
        %u = stablehlo.add %s, %t : tensor<4xf32>
        stablehlo.return %n, %u : tensor<i32>, tensor<4xf32>
      }}
      return %r#1 : tensor<4xf32>"""
    module = import_stablehlo(_text(body, "%x: tensor<4xf32>", "tensor<4xf32>", 2, 1))
    optimized = optimize(module)
    assert not any(i.op.is_collective for i in optimized.entry_computation.instructions)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(evaluate_partitioned(optimized, x)[0], x + 3 * x.sum(0))


def test_groups_are_short_and_equal_ones_are_equal():
    mesh = (("a", 2), ("b", 3), ("c", 4))
    for length in range(4):
        for axes in itertools.permutations("abc", length):
            groups = DeviceGroups.along(mesh, axes)
            assert not groups.listed
            assert groups == DeviceGroups.of(groups.members)
            found = groups.axes_of(mesh)
            assert found is not None and DeviceGroups.along(mesh, found) == groups
    assert len(str(DeviceGroups.along((("d", 2**16),), ("d",)))) < 120
    assert DeviceGroups.of(np.array([[0, 3], [1, 2]])).axes_of(mesh) is None
    assert Moves.of((n, (n + 1) % 2**16) for n in range(2**16)).runs == ((0, 1, 2**16 - 1), (2**16 - 1, 0, 1))


def test_complex_values_are_exchanged_part_by_part():
    region = REGION.replace("f32", "complex<f32>")
    body = f"""%0 = "stablehlo.all_reduce"(%x) {region} {{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}}
        : (tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
      return %0 : tensor<4xcomplex<f32>>"""
    kind = "tensor<4xcomplex<f32>>"
    optimized = optimize(import_stablehlo(_text(body, f"%x: {kind}", kind, 2, 1)))
    (both,) = (i for i in optimized.walk() if isinstance(i.op, ops.AllReduce))  # they cross together
    assert [v.type.np_dtype for v in both.operands] == [np.float32] * 2
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    real, imag = evaluate_partitioned(optimized, x, -x)
    np.testing.assert_array_equal(real, np.broadcast_to(x.sum(0), (2, 4)))
    np.testing.assert_array_equal(imag, np.broadcast_to(-x.sum(0), (2, 4)))
