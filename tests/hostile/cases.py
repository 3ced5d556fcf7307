"""Modules that somebody might write to see what happens, by name."""

from __future__ import annotations


def _ifs(depth: int) -> str:
    body = "stablehlo.return %x : tensor<f32>"
    for k in range(depth):
        other = "stablehlo.return %x : tensor<f32>"
        body = f'%r{k} = "stablehlo.if"(%p) ({{ {body} }}, {{ {other} }}) : (tensor<i1>) -> tensor<f32>\n'
        body += f"{'func' if k == depth - 1 else 'stablehlo'}.return %r{k} : tensor<f32>"
    return f"func.func @main(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {{ {body} }}"


def _calls(depth: int, times: int) -> str:
    functions = []
    for k in range(depth):
        name = "@main" if not k else f"private @f{k}"
        calls = "\n".join(
            f"%r{c + 1} = call @f{k + 1}(%r{c}) : (tensor<f32>) -> tensor<f32>" for c in range(times)
        )
        functions.append(
            f"func.func {name}(%r0: tensor<f32>) -> tensor<f32> {{ {calls}\n return %r{times} : tensor<f32> }}"
        )
    return "\n".join(
        [
            *functions,
            f"func.func private @f{depth}(%x: tensor<f32>) -> tensor<f32> {{ return %x : tensor<f32> }}",
        ]
    )


def _padded(low: int, high: int, interior: int, size: int) -> str:
    result = f"tensor<{size}xf32>"
    return (
        f"func.func @main(%x: tensor<2xf32>, %c: tensor<f32>) -> {result} {{\n"
        f"%r = stablehlo.pad %x, %c, low = [{low}], high = [{high}], interior = [{interior}] :"
        f" (tensor<2xf32>, tensor<f32>) -> {result}\n return %r : {result} }}"
    )


def _windows(attributes: str, size: int) -> str:
    return (
        f"func.func @main(%x: tensor<4xf32>, %c: tensor<f32>) -> tensor<{size}xf32> {{\n"
        '%r = "stablehlo.reduce_window"(%x, %c) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):\n'
        "%s = stablehlo.add %a, %b : tensor<f32>\n stablehlo.return %s : tensor<f32> })"
        f" {{{attributes}}} : (tensor<4xf32>, tensor<f32>) -> tensor<{size}xf32>\n return %r : tensor<{size}xf32> }}"
    )


def _sum_of(type_: str) -> str:
    return f"func.func @main(%x: {type_}) -> {type_} {{ %r = stablehlo.add %x, %x : {type_}\n return %r : {type_} }}"


def _nested(opening: str, closing: str, depth: int) -> str:
    return f"module attributes {{mhlo.a = {opening * depth}{closing * depth}}} {{}}"


MODULES: dict[str, str | bytes] = {
    "20,000 brackets": _nested("[", "]", 20_000),
    "20,000 brackets between the quotes of comments": '// "\n' + _nested("[", "]", 20_000) + '//"',
    "20,000 tuples": f"func.func @main(%x: {'tuple<' * 20_000}f32{'>' * 20_000}) {{ return }}",
    "400 tuples": f"func.func @main(%x: {'tuple<' * 400}tensor<f32>{'>' * 400}) {{ return }}",
    "100 branches": _ifs(100),
    "300 branches": _ifs(300),
    "padding of 1e9": _padded(0, 10**9, 0, 10**9 + 2),
    "padding and cutting of 1e9": _padded(10**9, -(10**9), 0, 2),
    "padding between elements of 1e9": _padded(0, 0, 10**9, 10**9 + 2),
    "window dilation of 2^32": _windows(
        "window_dimensions = array<i64: 2>, padding = dense<[[4294967296, 0]]> : tensor<1x2xi64>,"
        " window_dilations = array<i64: 4294967296>",
        4,
    ),
    "base dilation of 2^32": _windows(
        "window_dimensions = array<i64: 1>, window_strides = array<i64: 12884901889>,"
        " base_dilations = array<i64: 4294967296>, window_dilations = array<i64: 1>",
        1,
    ),
    "rank 200": _sum_of(f"tensor<{'1x' * 200}f32>"),
    "more elements than 64 bits count": _sum_of("tensor<4294967296x4294967296x4294967296xi8>"),
    "recursion": _calls(2, 1)
    .replace("@f2", "@main")
    .replace("func.func private @main", "func.func private @unused"),
    "2,000 calls in calls": _calls(2000, 1),
    "2^60 calls": _calls(60, 2),
    "an exchange among groups of nothing": (
        "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
        '%r = "stablehlo.all_to_all"(%x) {split_dimension = 0 : i64, concat_dimension = 0 : i64,'
        " split_count = 1 : i64, replica_groups = dense<> : tensor<0x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>\n"
        " return %r : tensor<4xf32> }"
    ),
    "replicas in words": 'module attributes {mhlo.num_replicas = "two"} { func.func @main() { return } }',
    "partitions below one": """module attributes {mhlo.num_partitions = -3 : i32} { sdy.mesh @mesh = <["a"=2]>
      func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> } }""",
    "no partitions, and shardings": """module attributes {mhlo.num_partitions = 0 : i32} { sdy.mesh @mesh = <["a"=2]>
      func.func @main(%a: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}) -> tensor<4xf32> {
      return %a : tensor<4xf32> } }""",
    "lone surrogate": "module {} // \udc80",
    "nothing": "",
    "zero byte": "\0",
    "half a magic number": b"ML\xefR",
    "bytecode of nothing": b"ML\xefR\r" + b"\xff" * 50,
}
