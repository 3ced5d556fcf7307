"""Collectives on grids of replicas and partitions, beside StableHLO's interpreter running every process of the grid."""

import functools
import itertools

import numpy as np
import pytest

from hlo_passes.ir import evaluate_partitioned, parse_module, print_module, verify
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from tests.conformance.interpreting import Case, interpreted

CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>"
WAYS = {
    "cross_replica, two": (2, 1, [[1, 0]], False, False),
    "cross_partition, two": (1, 2, [[0, 1]], True, False),
    "flattened_ids, two": (1, 2, [[1, 0]], True, True),
    "cross_replica": (4, 1, [[0, 1, 2, 3]], False, False),
    "cross_replica, of every partition": (3, 2, [[2, 0, 1]], False, False),
    "cross_replica, in groups": (4, 2, [[0, 3], [2, 1]], False, False),
    "cross_partition": (2, 3, [[1, 2, 0]], True, False),
    "cross_partition, in groups": (2, 2, [[1, 0]], True, False),
    "alone": (3, 1, [[2], [0], [1]], False, False),
    "flattened_ids": (2, 3, [[0, 5, 1], [4, 2, 3]], True, True),
    "flattened_ids of all": (3, 2, [[4, 0, 5, 1, 2, 3]], True, True),
}
DTYPES = {
    "f32": np.float32,
    "f16": np.float16,
    "f64": np.float64,
    "i32": np.int32,
    "ui8": np.uint8,
    "i1": np.bool_,
}
COMBINED = {"f32": "add", "f16": "maximum", "f64": "multiply", "i32": "add", "ui8": "xor", "i1": "or"}
SHAPES = ((12, 5), (12, 1), (12, 0), (12, 7))


def _drawn(seed, devices, shape, dtype):
    """Return a value for each device; sums and products of the floats are exact."""
    values = np.random.default_rng(seed).integers(-4, 5, (devices, *shape))
    return (values > 0) if dtype == np.bool_ else values.astype(dtype)


def _module(body, replicas, partitions, arguments, results):
    return f"""module attributes {{mhlo.num_replicas = {replicas} : i32, mhlo.num_partitions = {partitions} : i32}} {{
      func.func @main({arguments}) -> ({results}) {{
        {body}
        return %r{"#0, %r#1" if "," in results else ""} : {results}
      }}
    }}"""


def _collective(name, way, element, shape, operands=1):
    """Return text of a collective of arrays [12, n] and what its members get."""
    replicas, partitions, groups, channel, flattened = WAYS[way]
    members = len(groups[0])
    is_of_partitions = channel and not flattened
    if is_of_partitions and name not in ("all_to_all", "collective_broadcast"):
        groups, members = [[r] for r in range(replicas)], partitions  # cross_replica_and_partition
    said = f"replica_groups = dense<{groups}> : tensor<{len(groups)}x{len(groups[0])}xi64>"
    said += f", {CHANNEL}" * channel + ", use_global_device_ids" * flattened
    rows, columns = shape
    result = {"all_gather": (rows, columns * members), "reduce_scatter": (rows // members, columns)}
    result |= {"all_to_all": (rows // members, columns * members)}
    more = {
        "all_gather": ", all_gather_dim = 1 : i64",
        "reduce_scatter": ", scatter_dimension = 0 : i64",
        "all_to_all": f", split_dimension = 0 : i64, concat_dimension = 1 : i64, split_count = {members} : i64",
    }
    region = f"""({{ ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
        %c = stablehlo.{COMBINED[element]} %a, %b : tensor<{element}>
        stablehlo.return %c : tensor<{element}> }})"""
    region = region if "reduce" in name else ""
    kind = f"tensor<{rows}x{columns}x{element}>"
    out = "tensor<{}x{}x{}>".format(*result.get(name, shape), element)
    names = ", ".join(f"%x{k}" for k in range(operands))
    kinds, outs = ", ".join([kind] * operands), ", ".join([out] * operands)
    left = "%r" if operands == 1 else f"%r:{operands}"
    body = f'{left} = "stablehlo.{name}"({names}) {region} {{{said}{more.get(name, "")}}} : ({kinds}) -> ({outs})'
    arguments = ", ".join(f"%x{k}: {kind}" for k in range(operands))
    return _module(body, replicas, partitions, arguments, outs), replicas, partitions


def _cases():
    """Return cases by name: every collective in every kind of groups, its type and size changing with the place."""
    found = {}
    for place, (name, way) in enumerate(itertools.product(NAMES, WAYS)):
        if WAYS[way][-1] and name in ("all_to_all", "collective_broadcast"):
            continue  # have no flattened ids
        for number, element in enumerate(DTYPES):
            if (place + number) % 3:
                continue
            shape = SHAPES[(place + number // 3) % len(SHAPES)]
            if name == "all_gather" and not shape[1]:
                shape = (0, 3)  # what is joined is never empty
            text, replicas, partitions = _collective(name, way, element, shape)
            given = _drawn(place, replicas * partitions, shape, DTYPES[element])
            found[f"{name}, {way}, {element}"] = Case(text, replicas, partitions, (given,))
    for name in ("all_reduce", "all_gather", "all_to_all"):
        text, replicas, partitions = _collective(name, "cross_replica, two", "f32", (12, 3), operands=2)
        given = tuple(_drawn(k, replicas * partitions, (12, 3), np.float32) for k in range(2))
        found[f"{name} of several"] = Case(text, replicas, partitions, given)
    kind = "tensor<5xi32>"
    for replicas, partitions, channel, pairs in PERMUTATIONS:
        said = f"source_target_pairs = dense<{pairs}> : tensor<{len(pairs)}x2xi64>" + f", {CHANNEL}" * channel
        body = f'%r = "stablehlo.collective_permute"(%x) {{{said}}} : ({kind}) -> {kind}'
        given = _drawn(0, replicas * partitions, (5,), np.int32)
        text = _module(body, replicas, partitions, f"%x: {kind}", kind)
        found[f"collective_permute {pairs} of {replicas} x {partitions}{', partitions' * channel}"] = Case(
            text, replicas, partitions, (given,)
        )
    for replicas, partitions in ((1, 2), (2, 2), (3, 3)):
        text = _module(
            _step(replicas, partitions), replicas, partitions, "%x: tensor<4xf32>", "tensor<4xf32>"
        )
        given = _drawn(1, replicas * partitions, (4,), np.float32)
        found[f"a step on {replicas} x {partitions}"] = Case(text, replicas, partitions, (given,))
    return found


NAMES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "collective_broadcast")
PERMUTATIONS = [
    (2, 1, False, [[0, 1], [1, 0]]),
    (2, 1, False, [[1, 0]]),
    (1, 2, True, [[0, 1]]),
    (2, 2, False, [[1, 0], [0, 1]]),
    (3, 3, True, [[0, 1], [1, 2], [2, 0]]),
    (3, 3, False, [[2, 0]]),
]


def _step(replicas, partitions):
    """Return a sum over replicas turned by one partition, scaled by where each process is."""
    kind, turn = "tensor<4xf32>", [[p, (p + 1) % partitions] for p in range(partitions)]
    return f"""%p = stablehlo.partition_id : tensor<ui32>
        %q = stablehlo.replica_id : tensor<ui32>
        %s = stablehlo.add %p, %q : tensor<ui32>
        %f = stablehlo.convert %s : (tensor<ui32>) -> tensor<f32>
        %w = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> {kind}
        %m = stablehlo.add %x, %w : {kind}
        %t = "stablehlo.all_reduce"(%m) ({{ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %e = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %e : tensor<f32> }})
          {{replica_groups = dense<[{list(range(replicas))}]> : tensor<1x{replicas}xi64>}} : ({kind}) -> {kind}
        %u = "stablehlo.collective_permute"(%t) {{{CHANNEL},
          source_target_pairs = dense<{turn}> : tensor<{partitions}x2xi64>}} : ({kind}) -> {kind}
        %r = stablehlo.multiply %u, %w : {kind}"""


CASES = _cases()


@functools.cache
def _interpreted():
    return dict(zip(CASES, interpreted(list(CASES.values())), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_processes_get_what_the_interpreter_gives_them(name):
    case, wanted = CASES[name], _interpreted()[name]
    if wanted is None:
        pytest.skip(f"the interpreter needs a core for each of {case.replicas * case.partitions} processes")
    module = import_stablehlo(case.text)
    verify(module)
    for each in (module, parse_module(print_module(module)), optimize(module)):
        for got, want in zip(evaluate_partitioned(each, *case.arrays), wanted, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
