"""Codelets that cost what their tile code does: which variants cells run, their cycles, and where there is no code."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from tests.unit.tiles.elements_running import DATA, SCRATCH, STATE, trace
from tests.unit.tiles.test_elements_rows import Memory
from tiles.compiler import certify, compile_graph
from tiles.compiler.costs import group_extents
from tiles.elements import (
    Access,
    Arrangement,
    TileCode,
    TileSimulator,
    as_text,
    compile_cell,
    contiguous,
    cost_of,
    formula_of,
    named,
)
from tiles.elements.cell import ELEMENT, ROW
from tiles.elements.elementwise import Elementwise, lanes_choices
from tiles.elements.emitter import Emitter
from tiles.elements.variants import UNNAMED, NoVariant, variant_or_why
from tiles.errors import NoTileCode, OutOfRegisters
from tiles.graph import (
    PARALLEL,
    REDUCTION,
    Dim,
    Extents,
    Graph,
    IndexMap,
    OpForm,
    along,
    identity_map,
)
from tiles.poplibs import popops
from tiles.poplibs.forms import broadcast_map, map_form, reduce_form
from tiles.poplibs.popnn.rows import RowFunction
from tiles.poplibs.popops.expr import arg, call, constant_row, rows_of
from tiles.poplibs.popops.inner_loops import loop_of
from tiles.poplibs.popops.map import Map
from tiles.poplibs.popops.map_code import rows_code
from tiles.poplibs.popops.reduce import Reduce, reduce_codelet
from tiles.target import Basis, Target

F, H = "float32", "float16"
MK2 = named("mk2")
TARGET = Target.named("gc200")
ROWS = Arrangement((Access(), Access(ROW, 4)), (Access(),), has_rows=True)


def axpy(shapes: list[tuple[int, ...]], dtype: str = F) -> tuple[Map, Extents]:
    """Return ``a * b + c`` on operands that broadcast to the first one's shape, and one cell of all of it."""
    body, outputs = rows_of([call("add", call("multiply", arg(0), arg(1)), arg(2))], (dtype,) * 3)
    form = map_form(shapes[0], tuple(broadcast_map(s, shapes[0]) for s in shapes), 1)
    extents = Extents(form, tuple(np.array([n]) for n in shapes[0]), (dtype,) * 3, (dtype,))
    return Map(body, outputs, (dtype,) * 3, (dtype,)), extents


@pytest.mark.parametrize(
    ("f", "dtypes", "how"),
    [
        (lambda a, b: a * b + 1, [F, F], contiguous(2)),
        (lambda a, b: a * b + 1, [H, H], contiguous(2)),
        (lambda a, b: a + b, ["int32"] * 2, contiguous(2)),
        (lambda a, b: a * jnp.tanh(b), [F, F], ROWS),
        (lambda a, b: a * jnp.tanh(b), [F, F], dataclasses.replace(ROWS, shares_rows=True)),
    ],
)
def test_the_formula_is_the_cost_of_the_slowest_worker(f, dtypes, how) -> None:
    jaxpr = trace(f, dtypes)
    code = compile_cell(jaxpr, (tuple(dtypes), (jaxpr.out_avals[0].dtype.name,)), how, MK2)
    n, rows = (x.ravel() for x in np.meshgrid(np.arange(70), np.arange(1, 15)))
    rows = rows if how.has_rows else np.ones_like(n)
    assert (formula_of(code, MK2).cycles(n, rows) == cost_of(code, {"n": n, "rows": rows}, MK2).cycles).all()


def _crowded(*x):
    return sum(jnp.tanh(a) * b - a / b for a in x for b in x)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(
    ("f", "operands", "dtype"),
    [(lambda a, b: a * b + 1, 2, F), (lambda a, b: a * b + 1, 2, H), (_crowded, 3, F), (_crowded, 4, H)],
)
def test_code_before_it_is_scheduled_says_the_least_that_it_costs(f, operands, dtype, separate) -> None:
    how = dataclasses.replace(contiguous(operands), separate=separate)
    jaxpr, dtypes = trace(f, [dtype] * operands), ((dtype,) * operands, (dtype,))
    done = formula_of(compile_cell(jaxpr, dtypes, how, MK2), MK2)
    n = np.arange(1, 2000, 13)
    least = []
    for lanes in lanes_choices(dtypes[0] + dtypes[1], how):
        nest = Elementwise(Emitter(MK2), jaxpr, *dtypes, how, lanes)
        items = tuple(nest.items())
        code = TileCode("", MK2.name, tuple(nest.arguments), items, lanes=lanes)
        least.append(formula_of(code, MK2).cycles(n))
    assert (np.min(least, axis=0) <= done.cycles(n)).all()
    assert (2 * np.min(least, axis=0) > done.cycles(n))[-1] or f is _crowded


@pytest.mark.parametrize("f", [lambda x: jnp.sum(x * x, 0), lambda x: jnp.sum(x * x, 1)])
def test_the_formula_of_reductions(f) -> None:
    jaxpr = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((6, 8), F))
    code = compile_cell(jaxpr, ((F,), (F,)), contiguous(1), MK2)
    n, rows = (x.ravel() for x in np.meshgrid(np.arange(1, 40), np.arange(1, 15)))
    assert (formula_of(code, MK2).cycles(n, rows) == cost_of(code, {"n": n, "rows": rows}, MK2).cycles).all()


def test_what_one_vertex_cannot_count_takes_several() -> None:
    code = compile_cell(trace(lambda a: -a, [F]), ((F,), (F,)), contiguous(1), named("mk1"))
    formula = formula_of(code, named("mk1"))
    most = 2 * 6 * 4095
    one, two = formula.cycles(np.array([most, 2 * most]))
    assert two == 2 * one


def test_vectors_run_one_variant() -> None:
    codelet, extents = axpy([(12, 30)] * 3)
    (part,) = codelet.tile_code(extents, TARGET)
    assert (int(part.n[0]), part.rows) == (360, 1)
    simulator = TileSimulator(MK2, 1 << 17)
    arguments = {"n": 360, **{name: DATA + 4096 * k for k, name in enumerate(("in0", "in1", "in2", "out0"))}}
    run = simulator.run(part.variant.code, arguments, STATE, SCRATCH)
    cycles = codelet.cycles(extents, TARGET)
    assert (int(cycles.value[0]), cycles.basis) == (int(run.cycles[0]), Basis.DERIVED)
    assert "configs/isa/mk2.json" in cycles.source


@pytest.mark.parametrize(
    ("shapes", "loops", "together"),
    [
        ([(40, 32), (32,), (40, 32)], (40, 32), False),
        ([(2, 320), (320,), (2, 320)], (2, 320), True),
        ([(40, 32), (40, 1), (1,)], (40, 32), False),
        ([(5, 8, 32), (5, 1, 32), (32,)], (40, 32), False),
        ([(5, 8, 32), (5, 1, 1), (5, 8, 1)], (40, 32), False),
    ],
)
def test_what_rows_share_makes_loops_over_rows(shapes, loops, together) -> None:
    """Few long rows are shared by the workers, many are taken in turn; the simulator takes as long as is stated."""
    codelet, extents = axpy(shapes)
    (part,) = codelet.tile_code(extents, TARGET)
    assert (int(part.rows[0]), int(part.n[0])) == loops
    memory = Memory(loops[1], loops[0], 1 if together else 6)
    for name in ("in0", "in1", "in2", "out0"):
        memory.put(name, np.zeros(loops, F))
    run = memory.simulator.run(part.variant.code, memory.arguments, STATE, SCRATCH)
    assert codelet.cycles(extents, TARGET).value[0] == run.cycles[0]


def test_every_cell_runs_the_variant_of_its_alignment() -> None:
    codelet, extents = axpy([(40, 30), (30,), (40, 30)])
    sizes = (np.array([40, 40, 40, 1]), np.array([30, 15, 1, 15]))
    parts = codelet.tile_code(dataclasses.replace(extents, sizes=sizes), TARGET)
    assert (sum(np.asarray(part.runs, int) for part in parts) == 1).all()
    aligned, odd = ({id(p.variant) for p in parts if p.runs[k]} for k in (0, 1))
    assert aligned != odd


def test_vertices_of_other_names_run_the_same_code() -> None:
    """Code is compiled once, and stands under each name; so does the reason why there is none."""
    body, outputs = rows_of([call("multiply", arg(0), arg(0))], (F,))
    made = [
        rows_code(body, outputs, (F,), ((ELEMENT, True),), False, np.int64(60), np.int64(1), TARGET, name)
        for name in ("one", "two")
    ]
    one, two = (part.variant for (part,) in made)
    assert (one.code.name, two.code.name) == ("one", "two")
    assert one.code.items is two.code.items
    assert one.formula == two.formula
    found = variant_or_why(lambda: (_ for _ in ()).throw(OutOfRegisters(f"{UNNAMED}: not enough")))
    assert isinstance(found, NoVariant)
    assert found.named("three").error().what == "three: not enough"


def test_rows_of_halves_that_begin_inside_words_have_no_code() -> None:
    codelet, extents = axpy([(40, 31), (31,), (40, 31)], H)
    assert codelet.cycles(extents, TARGET).basis is Basis.ASSUMED
    even = dataclasses.replace(extents, sizes=(np.array([40]), np.array([30])))
    assert codelet.cycles(even, TARGET).basis is Basis.DERIVED
    both = dataclasses.replace(extents, sizes=(np.array([40, 40]), np.array([30, 31])))
    cycles = codelet.cycles(both, TARGET)
    assert cycles.basis is Basis.ASSUMED
    assert cycles.value[0] == codelet.cycles(even, TARGET).value[0]
    assert cycles.value[1] == codelet.cycles(extents, TARGET).value[0]


def test_machines_with_other_workers_have_no_code() -> None:
    codelet, extents = axpy([(40, 30)] * 3)
    other = TARGET.replace(workers_per_tile=4)
    assert codelet.cycles(extents, other).basis is Basis.ASSUMED
    assert codelet.variant_bytes(extents, other) == codelet.code_bytes(other)


def test_scalars_are_loaded_once() -> None:
    codelet, extents = axpy([(100,), (1,), (1,)], H)
    (part,) = codelet.tile_code(extents, TARGET)
    assert part.variant.code.arguments[:3] == ("in0", "in1", "in2") and not part.variant.code.scratch_bytes
    whole = axpy([(100,), (100,), (100,)], H)
    assert codelet.cycles(extents, TARGET).value < whole[0].cycles(whole[1], TARGET).value


def test_the_allocator_keeps_the_bytes_of_the_code() -> None:
    graph = Graph(Target.named("gc200").replace(num_tiles=4))
    x, y = graph.add_input((64, 8), F, "x"), graph.add_input((64, 8), F, "y")
    z = popops.map(graph, call("tanh", call("multiply", call("add", arg(0), arg(1)), arg(1))), [x, y])
    graph.outputs.append(z.name)
    executable = compile_graph(graph)
    ((_, group),) = executable.groups()
    (buffer,) = [b for name, b in executable.buffers.items() if name == f"code {group.codelet.label}"]
    sizes = tuple(np.array([split.hi[0] - split.lo[0]]) for split in group.plan.splits)
    (part,) = group.codelet.tile_code(Extents(group.form, sizes, (F, F), (F,)), graph.target)
    assert buffer.size_bytes == part.variant.code_bytes
    certify(executable)


def test_as_text_prints_every_variant_with_its_costs() -> None:
    """The printed code is that of the variants; codelets without code say why."""

    def f(x, b):
        return jnp.sort(jnp.tanh(x * b + 1) * x, axis=1)

    compiled = ipuxla.jit(f, target="gc200").lower(np.ones((64, 96), F), np.ones(96, F)).compile()
    text = compiled.as_text("tile")
    found = 0
    for _, group in compiled.executable.groups():
        extents = group_extents(compiled.executable, group)
        try:
            parts = group.codelet.tile_code(extents, TARGET)
        except NoTileCode:
            assert f"{group.codelet.label}: no tile code" in text
            continue
        found += 1
        for part in parts:
            assert as_text(part.variant.code, MK2) in text
            alike = [other for other in parts if other.variant is part.variant]
            assert f"{max(int(np.max(other.cycles)) for other in alike):,} cycles" in text
    assert found
    rows = compiled.profile().data["operations"]
    shown = [variant for row in rows for variant in row["tileCode"]]
    assert shown and all(variant["codeBytes"] > 0 and variant["cycles"] > 0 for variant in shown)


def test_gelu_takes_what_its_assembly_does() -> None:
    """The loop of PopLibs' assembly: 21 slots for two floats. Generated code needs as many, within a tenth."""
    attrs = {"kind": "popnn.gelu", "body": (), "dtype": F}
    stated = loop_of("nonlinearity", attrs, F)
    assert (stated.slots, stated.width(F, TARGET), stated.basis) == (21, 2, Basis.DOCUMENTED)
    code = compile_cell(trace(jax.nn.gelu, [F]), ((F,), (F,)), contiguous(1), MK2)
    more, less = (formula_of(code, MK2).cycles(12 * k) for k in (101, 100))
    assert 0.9 * 21 <= (more - less) / 6 <= 1.1 * 21


def fold_of_squares(shape: tuple[int, int], reduced: int, dtype: str) -> tuple[Reduce, Extents]:
    """Return a sum of squares over one of two dimensions, and one cell of all of it."""
    codelet = reduce_codelet("add", dtype, (("multiply", (0, 0), ()),), (dtype,))
    dims = tuple(Dim(f"d{k}", n, REDUCTION if k == reduced else PARALLEL) for k, n in enumerate(shape))
    form = OpForm(dims, (identity_map(2),), (IndexMap((along(1 - reduced),)),))
    return codelet, Extents(form, tuple(np.array([n]) for n in shape), (dtype,), (dtype,))


@pytest.mark.parametrize("reduced", [0, 1])
def test_folds_with_a_prologue_cost_what_the_simulator_takes(reduced) -> None:
    codelet, extents = fold_of_squares((40, 32), reduced, F)
    (part,) = codelet.tile_code(extents, TARGET)
    memory = Memory(32, 40)
    memory.put("in0", np.zeros((40, 32), F))
    memory.put("out0", np.zeros((1, 40), F))
    run = memory.simulator.run(part.variant.code, memory.arguments, STATE, SCRATCH)
    cycles = codelet.cycles(extents, TARGET)
    assert (int(cycles.value[0]), cycles.basis) == (int(run.cycles[0]), Basis.DERIVED)


@pytest.mark.parametrize("dtype", ["uint8", H, F])
@pytest.mark.parametrize("reduced", [1, 0])
def test_what_a_fold_costs_depends_on_no_other_cell(dtype, reduced) -> None:
    """Rows of other lengths in the same question may begin inside words."""
    codelet, form = reduce_codelet("max", dtype), reduce_form((64, 64), (reduced,))
    sizes = np.array([[8, 16], [8, 15], [7, 64], [64, 2], [1, 1]])
    together = codelet.cycles(Extents(form, tuple(sizes.T), (dtype,), (dtype,)), TARGET).value
    alone = [
        int(
            np.squeeze(
                codelet.cycles(
                    Extents(form, tuple(np.atleast_1d(row[:, None])), (dtype,), (dtype,)), TARGET
                ).value
            )
        )
        for row in sizes
    ]
    assert together.tolist() == alone


def test_workers_share_the_elements_of_few_rows() -> None:
    codelet, extents = fold_of_squares((1, 960), 1, F)
    shares, joined = codelet.tile_code(extents, TARGET)
    assert (int(shares.n[0]), int(shares.rows[0])) == (160, 6)
    assert (int(joined.n[0]), int(joined.rows[0])) == (6, 1)
    many = fold_of_squares((60, 960), 1, F)
    assert len(many[0].tile_code(many[1], TARGET)) == 1


def test_sums_of_halves_go_to_the_accumulators_in_f32_and_are_narrowed_after() -> None:
    codelet, extents = fold_of_squares((60, 960), 1, H)
    whole, narrowing = codelet.tile_code(extents, TARGET)
    assert "f16v4acc" in as_text(whole.variant.code, MK2)
    assert narrowing.n[0] == 60


def test_functions_of_rows_cost_their_stages() -> None:
    """The mean subtracted: a fold, its results halved, and what each row takes from its elements."""
    body = (
        ("fold", (0,), (("operation", "add"),)),
        constant_row(1 / 64, F),
        ("multiply", (1, 2), ()),
        ("subtract", (0, 3), ()),
        ("multiply", (4, 4), ()),
        ("power", (5, 5), ()),
    )
    form = map_form((40, 64), [identity_map(2)])
    extents = Extents(form, (np.array([40]), np.array([64])), (F,), (F,))
    without = RowFunction("popnn.power_of_rows", body, (1,), (F,), F)
    assert without.cycles(extents, TARGET).basis is Basis.ASSUMED
    codelet = RowFunction("popnn.centred", body[:-1], (1,), (F,), F)
    fold, single, last = codelet.tile_code(extents, TARGET)
    assert (int(fold.rows[0]), int(fold.n[0])) == (40, 64)
    assert int(single.n[0]) == 40
    assert (int(last.rows[0]), int(last.n[0])) == (40, 64)
    assert codelet.cycles(extents, TARGET).basis is Basis.DERIVED
    assert codelet.cycles(extents, TARGET).value[0] == sum(int(p.cycles[0]) for p in (fold, single, last))


@pytest.mark.parametrize(("function", "basis"), [("cosine", Basis.FITTED), ("tanh", Basis.DERIVED)])
def test_functions_of_the_c_library_keep_their_figure_in_expressions(function, basis) -> None:
    body, outputs = rows_of([call("multiply", call(function, arg(0)), arg(1))], (F, F))
    form = map_form((600,), [identity_map(1)] * 2)
    cycles = Map(body, outputs, (F, F), (F,)).cycles(Extents(form, (np.array([600]),), (F, F), (F,)), TARGET)
    alone = loop_of(function, {}, F).total(100, F, TARGET)
    assert cycles.basis is basis and cycles.value[0] > 6 * 0.75 * alone
