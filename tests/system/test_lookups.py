"""An embedding larger than any tile: a lookup and its gradient touch what they need and little else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.testing import check_engines
from tiles.compiler import step_costs
from tiles.report.code import code_data

ROWS, WIDTH, LOOKUPS = 50_000, 256, 128
TABLE = jnp.sin(jnp.arange(ROWS * WIDTH, dtype=jnp.float32)).reshape(ROWS, WIDTH)
IDS = jnp.arange(LOOKUPS) * 7919 % ROWS


def _step(table, ids):
    """Descend: nothing of the table's size is made but its successor."""
    return table - 0.01 * jax.grad(lambda t: (t[ids] ** 2).sum())(table)


PROGRAMS = {
    "lookup": (lambda table, ids: table[ids] * 2, 8_000),
    "gradient": (  # its zeros alone take 4,350 cycles: 34.8 KB a tile at 8 bytes a cycle
        jax.grad(lambda table, ids: (table[ids] ** 2).sum()),
        18_000,
    ),
    "update": (lambda table, ids: table.at[ids].add(1.0), 9_000),
    "training step": (_step, 16_000),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_of_a_large_table(name, gc200):
    """A table of 51 MB would take 8,700 cycles to be read once by all tiles at 4 bytes a cycle."""
    function, most = PROGRAMS[name]
    compiled = check_engines(function, gc200, TABLE, IDS, engines=("fast",))
    assert compiled.cost_analysis()["cycles"] < most
    table_bytes = TABLE.nbytes / gc200.num_tiles
    copies = 1 if name == "lookup" else 2
    assert compiled.memory_analysis()["peak_bytes"] < (copies + 2) * table_bytes + 80_000


@pytest.mark.parametrize(("rows", "width"), [(1_000_000, 4), (4_000_000, 1)])
def test_few_rows_of_a_table_that_no_tile_holds(rows, width, gc200):
    """Three rows are looked up quickest on one tile; the table of 16 MB lies on as many as hold it."""
    table, ids = jax.ShapeDtypeStruct((rows, width), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.int32)
    compiled = ipuxla.jit(lambda table, ids: table[ids], target=gc200).lower(table, ids).compile()
    assert compiled.memory_analysis()["peak_bytes"] < gc200.bytes_per_tile / 2


def test_few_elements_of_a_vector_that_no_tile_holds(gc200):
    vector = jnp.arange(200_000, dtype=jnp.float32)
    check_engines(
        lambda v, i: (v[i], lax.dynamic_slice(v, (i[0],), (5,))),
        gc200.replace(num_tiles=16),
        vector,
        jnp.array([7, 199_999, -1, 77_777]),
        engines=("fast", "literal"),
    )


@pytest.mark.parametrize(
    "f", [lambda x: x[:3], lambda x: x[-1], lambda x: lax.cond(x[5, 0] > 0, lambda: x[7], lambda: x[0])]
)
def test_a_few_elements_of_an_array_that_no_tile_holds(f, gc200):
    """An array of 16 MB is spread over all tiles: the tile of the few that are read cannot hold it."""
    compiled = ipuxla.jit(f, target=gc200).lower(jax.ShapeDtypeStruct((1_000_000, 4), jnp.float32)).compile()
    assert compiled.memory_analysis()["peak_bytes"] < 40_000
    check_engines(f, gc200.replace(num_tiles=16), TABLE[:2_000], engines=("fast", "literal"))


@pytest.mark.parametrize(
    ("tokens", "dtype", "most"),
    [(128, jnp.float16, 500_000), (512, jnp.float16, 1_780_000), (128, jnp.float32, 1_280_000)],
)
def test_a_tied_embedding_takes_little_exchange_code(tokens, dtype, most, gc200):
    """A table of 50,257 x 768, its gradient and the output projection that shares it, in one step.

    The table waits as all that read it want it together: 23 KB and 8 % more cycles of 128 tokens where it waits as the first
    product does, whose 449 parts the lookup and the gradient's product have to combine. The logits' partials are added in long
    runs: 23 KB in floats where the last part's padding is taken for gaps. Of 512 tokens they are computed in slices: 52 KB
    where the slices are cut differently. Rows are looked up where the table lies: 67 KB where all of it is brought to where
    lookups are cut otherwise.
    """

    def step(table, ids, targets):
        def loss(table):
            logits = (table[ids] @ table.T).astype(jnp.float32)
            return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], 1))

        return table - dtype(0.1) * jax.grad(loss)(table)

    table, ids = jax.ShapeDtypeStruct((50_257, 768), dtype), jax.ShapeDtypeStruct((tokens,), jnp.int32)
    compiled = ipuxla.jit(step, target=gc200, donate_argnums=(0,)).lower(table, ids, ids).compile()
    executable = compiled.executable
    assert code_data(executable, range(len(executable.steps)))["exchangeCodeBytes"] < 20_000
    assert compiled.cost_analysis()["cycles"] < most
    assert compiled.memory_analysis()["fits"]


def test_a_scan_reads_its_inputs_where_it_wants_them(gc200):
    """A selective state space: a row of each input a trip. 1.03 M cycles if the inputs stay where products left them."""

    def states(x, steps_of, inputs_of, outputs_of, decay):
        steps, inputs, outputs = jax.nn.softplus(x @ steps_of), x @ inputs_of, x @ outputs_of

        def body(state, read):
            x, step, into, out = read
            state = state * jnp.exp(step[..., None] * decay) + (step * x)[..., None] * into[:, None, :]
            return state, (state * out[:, None]).sum(-1)

        rows = tuple(a[:, None] for a in (x, steps, inputs, outputs))
        return lax.scan(body, jnp.zeros((1, 1536, 16)), rows)[1]

    shapes = (128, 1536), (1536, 1536), (1536, 16), (1536, 16), (1536, 16)
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    compiled = ipuxla.jit(states, target=gc200).lower(*arguments).compile()
    assert compiled.cost_analysis()["cycles"] < 800_000


def _counted_upwards(counts, parents, leaf, values):
    """Add a value at a leaf and at all nodes above it; ``counts`` [nodes, 9]."""

    def up(state):
        node, counts = state
        return parents[node], counts.at[node, node % 9].add(values)

    return jax.lax.while_loop(lambda state: state[0] > 0, up, (leaf, counts))[1]


@pytest.mark.parametrize("loop", ["while", "scan"])
def test_what_a_batched_loop_updates_and_then_chooses_from_as_a_whole_lies_on_all_tiles(loop, gc200):
    """A tree search's counts. Their update alone would have 300 KB on 11 tiles, and a trip would bring all of it there and back."""

    def steps(counts, leaves, chosen):
        def step(counts, read):
            leaf, is_chosen = read
            new = counts.at[leaf, leaf % 9].add(1.0)
            return jnp.where(is_chosen, new, counts), None

        return lax.scan(step, counts, (leaves, chosen))[0]

    def function(batch):
        rng = np.random.default_rng(0)
        counts = rng.random((batch, 65, 9), np.float32)
        if loop == "scan":
            return jax.vmap(steps), (counts, rng.integers(0, 65, (batch, 7)), rng.random((batch, 7)) < 0.5)
        parents = np.tile(np.maximum(np.arange(65) - 3, 0), (batch, 1))
        return jax.vmap(_counted_upwards), (
            counts,
            parents,
            rng.integers(0, 65, batch),
            rng.random(batch, np.float32),
        )

    batched, arguments = function(128)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arguments)
    compiled = ipuxla.jit(batched, target=gc200).lower(*shapes).compile()
    costs = step_costs(compiled.executable)
    assert max(cost.exchange_cycles for cost in costs) < 2_500  # 16,500 to bring 28 KB to a tile
    batched, arguments = function(6)
    check_engines(batched, gc200.replace(num_tiles=24), *arguments, engines=("fast", "literal"))


def test_a_matrix_of_which_a_loop_reads_a_column_before_it_changes_all_of_it_lies_on_all_tiles(gc200):
    """As Householder's reflections do. Its first reader would have it on one tile, to which every trip would bring 64 KB."""

    def reflected(a):
        def step(k, a):
            column = lax.dynamic_slice(a, (0, k), (a.shape[0], 1))
            v = column / (1 + jnp.sum(column * column))
            return a - v * (v.T @ a)

        return lax.fori_loop(0, a.shape[1], step, a)

    compiled = (
        ipuxla.jit(reflected, target=gc200).lower(jax.ShapeDtypeStruct((128, 128), jnp.float32)).compile()
    )
    assert max(cost.exchange_cycles for cost in step_costs(compiled.executable)) < 1_000
    a = np.random.default_rng(0).random((12, 12), np.float32)
    check_engines(reflected, gc200.replace(num_tiles=24), a, engines=("fast", "literal"))


@pytest.mark.parametrize("shape", [(65_536,), (256, 256)])
def test_what_is_sliced_first_lies_as_what_reads_all_of_it_wants_it(shape, gc200):
    """The first reader takes an end of it, on one tile or a few."""

    def ends_first(x):
        wrapped = jnp.concatenate([x[-1:], x, x[:1]])
        return wrapped[:-2] + wrapped[2:] - 2 * x

    compiled = ipuxla.jit(ends_first, target=gc200).lower(jax.ShapeDtypeStruct(shape, jnp.float32)).compile()
    assert len(compiled.executable.variables["arg0"].layout.tiles) > 1_000
    assert max(cost.exchange_cycles for cost in step_costs(compiled.executable)) < 2_000
    x = np.random.default_rng(0).random((40, *shape[1:]), np.float32)
    check_engines(ends_first, gc200.replace(num_tiles=16), x, engines=("fast", "literal"))
