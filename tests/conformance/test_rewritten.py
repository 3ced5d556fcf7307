"""Operations that are read as others: one device, tokens, constant shapes, and what StableHLO keeps for old programs."""

import jax
import numpy as np
import pytest
from jax import lax

import ipuxla
from hlo_passes.errors import UnsupportedOp, UnsupportedType
from ipuxla.frontend.importer import import_stablehlo

F = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def _main(arguments, results, body):
    return f"func.func @main({arguments}) -> {results} {{\n{body}\n}}"


EINSUMS = {
    "ab,bc->ac": ((4, 5), (5, 3)),
    "abc,adc->dab": ((2, 3, 4), (2, 5, 4)),
    "ab,cd->da": ((2, 3), (4, 5)),
    "ab,a->": ((2, 3), (2,)),
    "...b,bc->...c": ((2, 3, 4), (4, 5)),
    "ab->ba": ((2, 3),),
    "abc->b": ((2, 3, 4),),
}


@pytest.mark.parametrize("config", EINSUMS)
def test_einsum(config, evaluates_to):
    arrays = [np.arange(np.prod(s), dtype=np.float32).reshape(s) - 3 for s in EINSUMS[config]]
    expected = np.einsum(config, *arrays)
    types = [f"tensor<{''.join(f'{n}x' for n in x.shape)}f32>" for x in (*arrays, expected)]
    names = ["%x", "%y"][: len(arrays)]
    name = "einsum" if len(arrays) == 2 else "unary_einsum"
    body = f"""%0 = "stablehlo.{name}"({", ".join(names)}) {{einsum_config = "{config}"}}
        : ({", ".join(types[:-1])}) -> {types[-1]}
      return %0 : {types[-1]}"""
    arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=False))
    evaluates_to(_main(arguments, types[-1], body), arrays, [expected])


@pytest.mark.parametrize(("dim", "batch"), [(0, 0), (1, 0), (1, 1), (2, 1)])
def test_torch_index_select(dim, batch, evaluates_to):
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    index = np.array([[0, 1], [1, 0]], np.int32) if batch else np.array([1, 0, 1], np.int32)
    if batch:
        expected = np.stack([np.take(x[b], index[b], axis=dim - 1) for b in range(2)])
    else:
        expected = np.take(x, index, axis=dim)
    shapes = ["x".join(map(str, a.shape)) for a in (x, index, expected)]
    tx, ti, tr = (f"tensor<{s}xi32>" for s in shapes)
    body = f"""%0 = "stablehlo.torch_index_select"(%x, %i) {{dim = {dim} : i64, batch_dims = {batch} : i64}}
        : ({tx}, {ti}) -> {tr}
      return %0 : {tr}"""
    evaluates_to(_main(f"%x: {tx}, %i: {ti}", tr, body), [x, index], [expected])


def test_dot_and_get_dimension_size(evaluates_to):
    body = """%0 = stablehlo.dot %x, %y : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2xf32>
      %1 = stablehlo.get_dimension_size %x, dim = 1 : (tensor<2x3xf32>) -> tensor<i32>
      return %0, %1 : tensor<2xf32>, tensor<i32>"""
    text = _main("%x: tensor<2x3xf32>, %y: tensor<3xf32>", "(tensor<2xf32>, tensor<i32>)", body)
    evaluates_to(text, [F, F[1]], [F @ F[1], np.int32(3)])


REGION = """({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
  %1 = stablehlo.add %a, %b : tensor<f32>
  stablehlo.return %1 : tensor<f32> })"""
GROUPS = "replica_groups = dense<[[{}]]> : tensor<1x{}xi64>"
COLLECTIVES = {
    "all_reduce": (REGION, ""),
    "reduce_scatter": (REGION, ", scatter_dimension = 0 : i64"),
    "all_gather": ("", ", all_gather_dim = 0 : i64"),
    "all_to_all": ("", ", split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 1 : i64"),
    "collective_broadcast": ("", ""),
}


def _collective(name, groups):
    region, more = COLLECTIVES[name]
    type_ = "tensor<2x3xf32>"
    body = f"""%0 = "stablehlo.{name}"(%x) {region} {{{groups}{more}}} : ({type_}) -> {type_}
      return %0 : {type_}"""
    return _main(f"%x: {type_}", type_, body)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_of_one_device_exchange_nothing(name, evaluates_to):
    evaluates_to(_collective(name, GROUPS.format("0", 1)), [F], [F])


def test_a_broadcast_to_others_leaves_zeros(evaluates_to):
    evaluates_to(_collective("collective_broadcast", GROUPS.format("1", 1)), [F], [np.zeros_like(F)])


@pytest.mark.parametrize("name", ["all_reduce", "collective_broadcast"])
def test_collectives_of_several_devices_are_a_named_error(name):
    with pytest.raises(UnsupportedOp, match="one device"):
        import_stablehlo(_collective(name, GROUPS.format("0, 1", 2)))


def _permute(pairs, count):
    type_ = "tensor<2x3xf32>"
    body = f"""%0 = "stablehlo.collective_permute"(%x) {{source_target_pairs = dense<{pairs}> : tensor<{count}x2xi64>}}
        : ({type_}) -> {type_}
      return %0 : {type_}"""
    return _main(f"%x: {type_}", type_, body)


def test_collective_permute(evaluates_to):
    evaluates_to(_permute("[[0, 0]]", 1), [F], [F])
    evaluates_to(_permute("", 0), [F], [np.zeros_like(F)])
    with pytest.raises(UnsupportedOp, match="one device"):
        import_stablehlo(_permute("[[0, 1], [1, 0]]", 2))


def test_tokens_and_numbers_of_devices(evaluates_to):
    body = """%0 = stablehlo.create_token : !stablehlo.token
      %1 = stablehlo.after_all %0, %t : !stablehlo.token
      %2 = stablehlo.partition_id : tensor<ui32>
      %3 = stablehlo.replica_id : tensor<ui32>
      return %1, %2, %3 : !stablehlo.token, tensor<ui32>, tensor<ui32>"""
    text = _main("%t: !stablehlo.token", "(!stablehlo.token, tensor<ui32>, tensor<ui32>)", body)
    evaluates_to(text, [], [np.uint32(0), np.uint32(0)])


def _custom_call(target):
    body = f"""%0 = stablehlo.custom_call @{target}(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>
      return %0 : tensor<2x3xf32>"""
    return _main("%x: tensor<2x3xf32>", "tensor<2x3xf32>", body)


def test_custom_calls_that_only_mark_pass_through(evaluates_to):
    evaluates_to(_custom_call("Sharding"), [F], [F])
    with pytest.raises(UnsupportedOp, match="custom_call @lapack_sgetrf"):
        import_stablehlo(_custom_call("lapack_sgetrf"))


SHAPED = {
    "dynamic_broadcast_in_dim": (
        "%s = stablehlo.constant dense<[4, 2, 3]> : tensor<3xi64>",
        "stablehlo.dynamic_broadcast_in_dim %x, %s, dims = [1, 2] : (tensor<2x3xf32>, tensor<3xi64>) -> {}",
        (4, 2, 3),
        lambda x: np.broadcast_to(x, (4, 2, 3)),
    ),
    "dynamic_reshape": (
        "%s = stablehlo.constant dense<[3, 2]> : tensor<2xi32>",
        "stablehlo.dynamic_reshape %x, %s : (tensor<2x3xf32>, tensor<2xi32>) -> {}",
        (3, 2),
        lambda x: x.reshape(3, 2),
    ),
    "dynamic_iota": (
        "%s = stablehlo.constant dense<[2, 3]> : tensor<2xi64>",
        "stablehlo.dynamic_iota %s, dim = 1 : (tensor<2xi64>) -> {}",
        (2, 3),
        lambda x: np.broadcast_to(np.arange(3, dtype=np.float32), (2, 3)),
    ),
    "dynamic_pad": (
        "%s = stablehlo.constant dense<[1, 0]> : tensor<2xi64>\n%z = stablehlo.constant dense<0.0> : tensor<f32>",
        "stablehlo.dynamic_pad %x, %z, %s, %s, %s"
        " : (tensor<2x3xf32>, tensor<f32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> {}",
        (5, 3),
        lambda x: np.stack([np.zeros(3, x.dtype), x[0], np.zeros(3, x.dtype), x[1], np.zeros(3, x.dtype)]),
    ),
    "real_dynamic_slice": (
        "%s = stablehlo.constant dense<[0, 1]> : tensor<2xi64>\n%l = stablehlo.constant dense<[2, 3]> : tensor<2xi64>"
        "\n%t = stablehlo.constant dense<1> : tensor<2xi64>",
        "stablehlo.real_dynamic_slice %x, %s, %l, %t"
        " : (tensor<2x3xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> {}",
        (2, 2),
        lambda x: x[:, 1:],
    ),
}


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("name", SHAPED)
def test_shapes_that_are_constants(name, is_known, evaluates_to):
    """The shape may also be missing from the types: it follows from the constants, through what reads them."""
    constants, operation, shape, expected = SHAPED[name]
    known = f"tensor<{''.join(f'{n}x' for n in shape)}f32>"
    found = known if is_known else f"tensor<{'?x' * len(shape)}f32>"
    body = f"{constants}\n%0 = {operation.format(found)}\n%1 = stablehlo.add %0, %0 : {found}\nreturn %1 : {found}"
    evaluates_to(_main("%x: tensor<2x3xf32>", found, body), [F], [2 * expected(F)])


FOLDED = """%one = stablehlo.constant dense<1> : tensor<2xi64>
%s = stablehlo.iota dim = 0 : tensor<2xi64>
%t = stablehlo.add %s, %one : tensor<2xi64>
%first = stablehlo.slice %t [1:2] : (tensor<2xi64>) -> tensor<1xi64>
%second = stablehlo.constant dense<3> : tensor<1xi64>
%l = stablehlo.concatenate %first, %second, dim = 0 : (tensor<1xi64>, tensor<1xi64>) -> tensor<2xi64>
%m = stablehlo.minimum %l, %l : tensor<2xi64>"""


@pytest.mark.parametrize("is_known", [True, False])
def test_shapes_that_are_constants_once_folded(is_known, evaluates_to):
    """MLIR folds little (no iota, no minimum); here %s is [0, 1] and %m is [2, 3]."""
    found = f"tensor<{'2x2' if is_known else '?x?'}xf32>"
    body = f"""{FOLDED}
      %0 = stablehlo.real_dynamic_slice %x, %s, %m, %one
        : (tensor<2x3xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> {found}
      return %0 : {found}"""
    evaluates_to(_main("%x: tensor<2x3xf32>", found, body), [F], [F[:, 1:]])


def test_slice_sizes_of_a_gather_that_are_constants_once_folded(evaluates_to):
    body = f"""{FOLDED}
      %sizes = stablehlo.add %s, %s : tensor<2xi64>
      %i = stablehlo.constant dense<[1, 0]> : tensor<2xi32>
      %n = stablehlo.add %sizes, %one : tensor<2xi64>
      %0 = "stablehlo.dynamic_gather"(%x, %i, %n) {{dimension_numbers = #stablehlo.gather<offset_dims = [1],
        collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>}}
        : (tensor<2x3xf32>, tensor<2xi32>, tensor<2xi64>) -> tensor<2x3xf32>
      return %0 : tensor<2x3xf32>"""
    evaluates_to(_main("%x: tensor<2x3xf32>", "tensor<2x3xf32>", body), [F], [F[::-1]])


def test_shapes_that_are_computed_are_a_named_error():
    body = """%0 = stablehlo.dynamic_reshape %x, %s : (tensor<2x3xf32>, tensor<1xi64>) -> tensor<6xf32>
      return %0 : tensor<6xf32>"""
    text = _main("%x: tensor<2x3xf32>, %s: tensor<1xi64>", "tensor<?xf32>", body.replace("<6x", "<?x"))
    with pytest.raises(UnsupportedType, match=r"dynamic|not a supported type"):
        import_stablehlo(text)


@pytest.mark.parametrize("k", [3, 7])
def test_approximate_selection_takes_equal_elements_as_xlas_does(k):
    """In order of their positions; zeros and NaN of both signs in total order."""
    x = np.array([[-0.0, 0, 2, -0.0, 0, np.nan, 2, -np.nan, -np.inf, np.nan, 1, 2]], np.float32)
    got = ipuxla.jit(lambda x: lax.approx_max_k(x, k))(x)
    for mine, theirs in zip(got, jax.jit(lambda x: lax.approx_max_k(x, k))(x), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_array_equal(np.signbit(mine), np.signbit(theirs))


X = np.array([[3, -0.0, 7, 0, -np.inf, 7, 3, 1], [1, 2, 3, -5, 5, -6, np.inf, 8]], np.float32)
SELECTIONS = {
    "mhlo.topk": ("", "mhlo.attributes = {k = 3 : i64, largest = true}", True),
    "mhlo.topk of the least": ("", "mhlo.attributes = {k = 3 : i64, largest = false}", False),
    "stablehlo.dynamic_top_k": (", %c", "api_version = 2 : i32", True),
    "ApproxTopK": (
        ", %i, %z, %c",
        "called_computations = [@less], mhlo.backend_config = {reduction_dim = 1 : i64}",
        False,
    ),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_by_custom_calls(name, evaluates_to):
    more, attributes, is_descending = SELECTIONS[name]
    others = {"%i": "tensor<2x8xi32>", "%z": "tensor<f32>", "%c": "tensor<i32>"}
    types = ["tensor<2x8xf32>", *(others[operand] for operand in more.split(", ")[1:])]
    results = "(tensor<2x3xf32>, tensor<2x3xi32>)"
    text = f"""func.func private @less(%a: tensor<f32>, %b: tensor<f32>, %m: tensor<i32>, %n: tensor<i32>) -> tensor<i1> {{
      %0 = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      return %0 : tensor<i1>
    }}
    func.func @main(%x: tensor<2x8xf32>) -> {results} {{
      %c = stablehlo.constant dense<3> : tensor<i32>
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %i = stablehlo.iota dim = 1 : tensor<2x8xi32>
      %0:2 = stablehlo.custom_call @{name.split()[0]}(%x{more}) {{{attributes}}} : ({", ".join(types)}) -> {results}
      return %0#0, %0#1 : tensor<2x3xf32>, tensor<2x3xi32>
    }}"""
    columns = np.where(X == 0, np.where(np.signbit(X), -0.1, 0), X)
    order = np.argsort(-columns if is_descending else columns, axis=1, kind="stable")[:, :3].astype(np.int32)
    evaluates_to(text, [X], [np.take_along_axis(X, order, 1), order])
