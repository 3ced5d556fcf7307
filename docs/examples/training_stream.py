"""A training loop on the device: batches stream in through a Repeat, losses stream out, weights stay where they are."""

import numpy as np

import tiles


def build(target: tiles.Target, steps: int, batch: int = 32, features: int = 64) -> tiles.Graph:
    """Return a graph that fits weights to batches ``(x, y)`` by gradient descent on the mean squared error."""
    graph = tiles.Graph(target, "training_stream")
    weights = graph.add_input((features, 1), "float32", "weights")
    graph.donated = (0,)  # updated in place
    xs = graph.add_host_to_device_stream("xs", "float32", (batch, features))
    ys = graph.add_host_to_device_stream("ys", "float32", (batch, 1))
    losses = graph.add_device_to_host_stream("losses", "float32", ())

    step = tiles.Sequence()
    x = graph.add_tensor((batch, features), "float32", "x")
    y = graph.add_tensor((batch, 1), "float32", "y")
    step.add(tiles.CopyFromStream(xs.name, x.name))
    step.add(tiles.CopyFromStream(ys.name, y.name))
    predicted = tiles.poplin.matmul(tiles.Site(graph, sequence=step), x, weights)
    error = tiles.popops.sub(tiles.Site(graph, sequence=step), predicted, y)
    squares = tiles.popops.mul(tiles.Site(graph, sequence=step), error, error)
    loss = tiles.popops.mul(
        tiles.Site(graph, sequence=step),
        tiles.popops.reduce(tiles.Site(graph, sequence=step), squares, (0, 1)),
        1 / batch,
    )
    step.add(tiles.CopyToStream(loss.name, losses.name))
    contract_batch = (((0,), (0,)), ((), ()))
    gradient = tiles.poplin.dot_general(tiles.Site(graph, sequence=step), x, error, contract_batch)
    change = tiles.popops.mul(tiles.Site(graph, sequence=step), gradient, 0.2 / batch)
    new = tiles.popops.sub(tiles.Site(graph, sequence=step), weights, change)
    step.add(tiles.Copy(weights.name, (new.name,)))

    graph.program.add(tiles.Repeat(steps, step))
    graph.outputs = [weights.name]
    return graph


def main(target: tiles.Target | None = None, steps: int = 200) -> None:
    """Train on noiseless data, print the first and the last loss and what the streams carried."""
    random = np.random.default_rng(0)
    truth = random.standard_normal((64, 1)).astype(np.float32)
    xs = random.standard_normal((steps, 32, 64)).astype(np.float32)
    executable = tiles.compile_graph(build(target or tiles.Target.named("gc200"), steps))
    engine = tiles.make_engine(executable)
    start = np.zeros((64, 1), np.float32)
    (weights,), trace = engine.run(start, streams={"xs": xs, "ys": xs @ truth})
    losses = trace.streams["losses"]
    print(
        f"loss {losses[0]:.3f} -> {losses[-1]:.6f}, largest error of a weight {abs(weights - truth).max():.4f}"
    )


if __name__ == "__main__":
    main()
