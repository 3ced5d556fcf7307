"""What is known of loops and branches before a run, and what is left: endless loops, floats, replicas, long tables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from tiles.report import cost_analysis
from tiles.report.static_trips import MOST_ELEMENTS, MOST_TRIPS, static_trips

X = jnp.linspace(0.0, 1.0, 16)


def compiled(function, target, *more, **options):
    return ipuxla.jit(function, target=target, **options).lower(X, *more).compile()


def test_a_branch_on_a_counter_and_a_loop_up_to_one_are_known(small_target):
    def triangle(x):
        def row(i, x):
            x = lax.fori_loop(0, i, lambda j, x: jnp.sin(x) + j, x)
            return lax.cond(i % 3 == 1, lambda x: x[::-1] * 2, lambda x: x, x)

        return lax.fori_loop(0, 7, row, x)

    cost = compiled(triangle, small_target).cost_analysis()
    run = compiled(triangle, small_target, engine="literal").profile(X)
    assert cost["cycles"] == run.cycles
    assert cost["unresolved"] == []
    (outer, inner, branch) = run.data["execution"]["control"]
    assert (outer["trips"], inner["trips"], sorted(branch["branches"])) == (7, sum(range(7)), [2, 5])


@pytest.mark.parametrize("limit", [MOST_TRIPS - 1, MOST_TRIPS])
def test_a_loop_without_an_end_is_left_and_one_that_ends_in_time_is_not(small_target, limit):
    def wait(x):
        return lax.while_loop(lambda s: (s[0] < limit) | (s[0] < 0), lambda s: (s[0] + 1, s[1] * 2), (0, x))

    cost = compiled(lambda x: wait(x)[1], small_target).cost_analysis()
    assert (cost["cycles"] is None) == (limit == MOST_TRIPS)


def test_a_loop_that_never_ends_takes_no_longer(small_target):
    def stuck(x):
        return lax.while_loop(lambda s: s[0] >= 0, lambda s: ((s[0] + 1) % 7, s[1] * 2), (1, x))[1]

    cost = compiled(stuck, small_target).cost_analysis()
    least, most = cost["cycles_bounds"]
    assert cost["cycles"] is None and most is None and least > 0
    assert [entry["kind"] for entry in cost["unresolved"]] == ["while"]


def test_floats_decide_nothing_in_advance(small_target):
    def grow(x):
        return lax.while_loop(lambda s: s[0] < 100.0, lambda s: (s[0] * 1.5, s[1] * 2), (jnp.float32(1), x))[
            1
        ]

    assert static_trips(compiled(grow, small_target).executable) == {}


def test_what_an_input_decides_is_bounded_by_its_branches(small_target):
    def choose(x, n):
        return lax.switch(n, [lambda x: x, lambda x: jnp.sin(x) * x, lambda x: jnp.sort(x)], x)

    program = compiled(choose, small_target, jnp.int32(0))
    least, most = program.cost_analysis()["cycles_bounds"]
    runs = [program.profile(X, jnp.int32(n)).cycles for n in range(3)]
    assert (least, most) == (min(runs), max(runs))


def test_a_function_that_an_unknown_loop_calls_too_is_known_where_it_is_sure(small_target):
    @jax.jit
    def twice(x):
        return lax.fori_loop(0, 2, lambda i, x: lax.cond(i == 1, jnp.sin, lambda x: x + 1, x), x)

    def function(x, n):
        return lax.fori_loop(0, n, lambda _, x: twice(x), twice(x))

    program = compiled(function, small_target, jnp.int32(0))
    cost = program.cost_analysis()
    runs = [program.profile(X, jnp.int32(n)).cycles for n in (0, 3)]
    assert cost["cycles_bounds"][0] <= runs[0] < runs[1]
    assert cost["cycles"] is None


def test_long_tables_are_not_run(small_target):
    table = jnp.asarray(np.arange(MOST_ELEMENTS + 1) % 3, jnp.int32)

    def look_up(x):
        return lax.fori_loop(0, 4, lambda i, x: lax.cond(table[i * i] == 1, jnp.sin, lambda x: x, x), x)

    big = small_target.replace(num_tiles=64)
    assert static_trips(compiled(look_up, big, check_memory=False).executable) == {}


def test_what_replicas_decide_each_for_itself_is_not_known():
    mesh = jax.sharding.AbstractMesh((4,), ("d",))
    spec = jax.sharding.PartitionSpec("d")

    def body(x):
        first = lax.cond(lax.axis_index("d") == 0, lambda x: jnp.sin(x), lambda x: x * 2, x)
        return lax.fori_loop(0, 5, lambda i, x: lax.cond(i == 2, jnp.cos, lambda x: x, x), first)

    function = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)
    executable = (
        ipuxla.jit(function, target="m2000")
        .lower(jax.ShapeDtypeStruct((64,), jnp.float32))
        .compile()
        .executable
    )
    cost = cost_analysis(executable)
    assert [entry["kind"] for entry in cost["unresolved"]] == ["switch"]
    assert list(static_trips(executable).values()) == [(4, 1)]  # JAX's branches are those of false and true


def test_trips_are_counted_while_jax_traces_something_else(small_target):
    """As where a decorated function is first called inside jax.jit, and its sharding chosen by cycles."""

    def loop(x):
        return lax.fori_loop(0, 6, lambda i, x: lax.cond(i % 2 == 0, jnp.sin, lambda x: x * 2, x), x)

    program, found = compiled(loop, small_target), []

    @jax.jit
    def outer(x):
        found.append(program.cost_analysis()["cycles"])
        return x + 1

    outer(X)
    assert found == [program.profile(X).cycles]
