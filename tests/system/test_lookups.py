"""An embedding larger than any tile: a lookup and its gradient touch what they need and little else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from ipuxla.testing import check_engines

ROWS, WIDTH, LOOKUPS = 50_000, 256, 128
TABLE = jnp.sin(jnp.arange(ROWS * WIDTH, dtype=jnp.float32)).reshape(ROWS, WIDTH)
IDS = jnp.arange(LOOKUPS) * 7919 % ROWS


def _step(table, ids):
    """Descend: nothing of the table's size is made but its successor."""
    return table - 0.01 * jax.grad(lambda t: (t[ids] ** 2).sum())(table)


PROGRAMS = {
    "lookup": (lambda table, ids: table[ids] * 2, 8_000),
    "gradient": (jax.grad(lambda table, ids: (table[ids] ** 2).sum()), 16_000),
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
