"""More layers than fit: weights lie beside the IPU in a remote buffer, and a Repeat loads one layer after another."""

import sys

import numpy as np

import tiles


def build(target: tiles.Target, layers: int, width: int = 64, batch: int = 16) -> tiles.Graph:
    """Return a graph that applies ``tanh(x @ w)`` for every row ``w`` of the remote buffer ``weights``."""
    graph = tiles.Graph(target, "remote_layers")
    graph.add_remote_buffer("weights", "float32", (width, width), repeats=layers)
    x = graph.add_input((batch, width), "float32", "x")
    value = graph.add_tensor((batch, width), "float32", "value")
    weight = graph.add_tensor((width, width), "float32", "weight")
    layer = graph.add_tensor((), "int32", "layer")
    graph.program.add(tiles.Copy(value.name, (x.name,)))
    zero = tiles.popops.fill(graph, (), "int32", 0)
    graph.program.add(tiles.Copy(layer.name, (zero.name,)))

    step = tiles.Sequence()
    step.add(tiles.CopyFromRemote("weights", weight.name, rows=layer.name))
    product = tiles.poplin.matmul(tiles.Site(graph, sequence=step), value, weight)
    result = tiles.popops.tanh(tiles.Site(graph, sequence=step), product)
    largest = tiles.popops.reduce(tiles.Site(graph, sequence=step), result, (0, 1), "max")
    step.add(tiles.PrintTensor(largest.name, "largest"))
    step.add(tiles.Copy(value.name, (result.name,)))
    following = tiles.popops.add(tiles.Site(graph, sequence=step), layer, 1)
    step.add(tiles.Copy(layer.name, (following.name,)))

    graph.program.add(tiles.Repeat(layers, step))
    graph.outputs = [value.name]
    return graph


def main(target: tiles.Target | None = None, layers: int = 24) -> None:
    """Run the layers, print the largest value after each, and compare with NumPy."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((layers, 64, 64)).astype(np.float32) / 6
    x = want = random.standard_normal((16, 64)).astype(np.float32)
    for w in weights:
        want = np.tanh(want @ w)
    engine = tiles.make_engine(tiles.compile_graph(build(target or tiles.Target.named("gc200"), layers)))
    engine.copy_to_remote_buffer("weights", weights)
    engine.print_to = sys.stderr
    (value,), _ = engine.run(x)
    print(f"{layers} layers, largest difference from NumPy {abs(value - want).max():.1e}")


if __name__ == "__main__":
    main()
